//! Rules for charges once the outcome of a request is known: keep the charge, refund it, correct it to the stated cost,
//! reset its key, or hold a lease until the request ends. Compiled from the options `charge_on`, `refund_on`,
//! `clear_on`, `settle` and `linger` of a limit; applied by the guard of the charges.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use crate::grpc::{GrpcCode, is_grpc};
use crate::limiting::algorithm::Rule;
use crate::limiting::limit::bytes::CountedBytes;
use crate::limiting::limit::cost::StatusPrices;
use crate::limiting::limit::request_end::{RequestEnd, ResponseTail};
use crate::limiting::limit::settle::{BodyUsage, Settle, UsageRules};

/// How the outcome of a request changes the charge of one limit. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChargeRules {
    pub charge: ChargeCondition,
    /// Places where the response reports the true cost. If it is reported several times, the largest counts.
    pub settle: Option<Settle>,
    /// The charge is a lease: renewed while the request runs, released when it ends.
    pub lease: bool,
    /// How long the lease lasts after the client has disconnected, while the upstream server works on the request.
    pub linger: Duration,
    /// A request that an overloaded upstream refuses is refunded.
    pub refund_overload: bool,
    /// The responses of servers that reset the key.
    pub clear_on: Option<OutcomeSet>,
    /// Maximum number of requests that may wait in the queue of this limit at once; `None` uses the setting of the
    /// server.
    pub max_delayed: Option<usize>,
}

/// The outcomes for which the charge remains.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ChargeCondition {
    #[default]
    Always,
    /// Charged only for matching responses, such as failed logins; otherwise refunded.
    On(OutcomeSet),
    /// Refunded for matching outcomes.
    RefundOn(OutcomeSet),
}

/// A set of outcomes, as listed in `charge_on`, `refund_on` or `clear_on`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutcomeSet {
    pub statuses: Vec<StatusCode>,
    /// First digits of status classes: 4 for `4xx`.
    pub classes: Vec<u16>,
    pub connect_error: bool,
    pub client_abort: bool,
    /// Status codes of gRPC responses.
    pub grpc: Vec<GrpcCode>,
}

impl fmt::Display for OutcomeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut outcomes: Vec<String> = self.statuses.iter().map(|status| status.as_str().to_owned()).collect();
        outcomes.extend(self.classes.iter().map(|class| format!("{class}xx")));
        outcomes.extend(self.connect_error.then(|| "connect_error".to_owned()));
        outcomes.extend(self.client_abort.then(|| "client_abort".to_owned()));
        outcomes.extend(self.grpc.iter().map(|code| format!("grpc:{}", code.label())));
        f.write_str(&outcomes.join(", "))
    }
}

impl OutcomeSet {
    /// Returns whether the outcome is in the set; `None` if this depends on the end of the response.
    fn contains_outcome(&self, end: RequestEnd<'_>) -> Option<bool> {
        match end {
            RequestEnd::Response { status, .. } if self.contains_status(status) => Some(true),
            RequestEnd::Response { .. } if self.grpc.is_empty() => Some(false),
            RequestEnd::Response { head, tail, .. } => {
                let code = if is_grpc(head) { Some(code(head, tail)?) } else { None };
                Some(code.is_some_and(|code| self.grpc.contains(&code)))
            }
            // A limit that is shared with other routes may lack `refund_overload`: no server got the request either
            // way.
            RequestEnd::ConnectError { status, head } | RequestEnd::Overloaded { status, head } => {
                let code = GrpcCode::from_headers(head);
                Some(
                    self.connect_error
                        || self.contains_status(status)
                        || code.is_some_and(|code| self.grpc.contains(&code)),
                )
            }
            RequestEnd::Aborted => Some(self.client_abort),
        }
    }

    fn contains_status(&self, status: StatusCode) -> bool {
        self.statuses.contains(&status) || self.classes.contains(&(status.as_u16() / 100))
    }
}

/// Returns the status code of a gRPC response, from its trailers or, for a response without messages, its headers.
/// `None` means that the trailers have not arrived yet. A response that ends without a code counts as `UNKNOWN`, one
/// that the server aborts as `UNAVAILABLE`.
fn code(head: &HeaderMap, tail: ResponseTail) -> Option<GrpcCode> {
    match (GrpcCode::from_headers(head), tail) {
        (Some(code), _) => Some(code),
        (None, ResponseTail::Awaited) => None,
        (None, ResponseTail::Whole(trailers)) => Some(GrpcCode::from_headers(trailers).unwrap_or(GrpcCode::Unknown)),
        (None, ResponseTail::Cut) => Some(GrpcCode::Unavailable),
    }
}

impl ChargeRules {
    /// Returns the rules that the algorithm needs in any case: a lease for `concurrency`.
    pub fn for_rule(rule: &Rule) -> ChargeRules {
        ChargeRules { lease: rule.lease_ms().is_some(), ..ChargeRules::default() }
    }

    /// Returns the rules, or `None` if they change nothing.
    pub fn unless_default(self) -> Option<ChargeRules> {
        (self != ChargeRules::default()).then_some(self)
    }

    /// Returns the rules with other costs by status.
    pub fn with_status_prices(mut self, prices: Option<&Arc<StatusPrices>>) -> ChargeRules {
        let settle = Settle { statuses: prices.cloned(), ..self.settle.unwrap_or_default() };
        self.settle = (settle != Settle::default()).then_some(settle);
        self
    }

    /// Returns whether the outcome of a request may change its charge.
    pub fn may_change_charge(&self) -> bool {
        self.refund_overload || self.depends_on_response()
    }

    /// Returns whether the response to a request may change its charge.
    pub fn depends_on_response(&self) -> bool {
        self.lease || self.settle.is_some() || self.clear_on.is_some() || self.charge != ChargeCondition::Always
    }

    /// Returns whether the response of a server resets the key. `None` means that this depends on its end.
    pub fn clears(&self, end: RequestEnd<'_>) -> Option<bool> {
        match (&self.clear_on, end) {
            (Some(outcomes), RequestEnd::Response { .. }) => outcomes.contains_outcome(end),
            _ => Some(false),
        }
    }

    /// Returns the bytes that a request costs; `None` if it costs something else.
    pub fn counted_bytes(&self) -> Option<CountedBytes> {
        self.settle.as_ref().map(|settle| settle.bytes).filter(|bytes| bytes.is_any())
    }

    /// How the limit settles by the body of the response.
    pub fn usage(&self) -> Option<&UsageRules> {
        self.settle.as_ref()?.usage.as_ref()
    }

    /// Returns whether a request that ends like this is charged. `None` means that this depends on the end of the
    /// response.
    pub fn is_charged(&self, end: RequestEnd<'_>) -> Option<bool> {
        if self.refund_overload && matches!(end, RequestEnd::Overloaded { .. }) {
            return Some(false);
        }
        Some(match &self.charge {
            ChargeCondition::Always => true,
            // A client that disconnects before the response remains charged. Otherwise, it could hide failed attempts.
            ChargeCondition::On(outcomes) => matches!(end, RequestEnd::Aborted) || outcomes.contains_outcome(end)?,
            ChargeCondition::RefundOn(outcomes) => !outcomes.contains_outcome(end)?,
        })
    }

    /// Returns the units to charge on top of `cost`, or to refund if negative. `None` means that this depends on the
    /// end of the response.
    pub fn correction(&self, end: RequestEnd<'_>, cost: i64, usage: BodyUsage) -> Option<i64> {
        if let (RequestEnd::Aborted, BodyUsage::Read { .. }) = (end, usage) {
            // The head of the response was accepted as a reason to charge. A client that disconnects later changes
            // nothing.
            return Some(usage.correction(cost));
        }
        if !self.is_charged(end)? {
            return Some(-cost);
        }
        if let (Some(prices), Some(status)) =
            (self.settle.as_ref().and_then(|settle| settle.statuses.as_ref()), end.status())
        {
            return Some(prices.cost_of(status) - cost);
        }
        let (RequestEnd::Response { head, tail, .. }, Some(settle)) = (end, &self.settle) else { return Some(0) };
        if usage == BodyUsage::Awaited {
            return None;
        }
        Some(usage.or_stated(settle.stated_cost(head, tail)?).correction(cost))
    }

    /// Returns whether a header or trailer of the response states the cost.
    pub fn is_cost_stated(&self, end: RequestEnd<'_>) -> bool {
        let (RequestEnd::Response { head, tail, .. }, Some(settle)) = (end, &self.settle) else { return false };
        settle.stated_cost(head, tail).flatten().is_some()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::limiting::integers::COST_MAX;
    use crate::limiting::limit::settle::SettleField;

    const NAME: HeaderName = HeaderName::from_static("x-actual-cost");

    fn settle_by(field: SettleField) -> ChargeRules {
        let settle = Settle { fields: vec![field], ..Settle::default() };
        ChargeRules { settle: Some(settle), ..ChargeRules::default() }
    }

    fn answered(status: u16, headers: &HeaderMap) -> RequestEnd<'_> {
        RequestEnd::Response {
            status: StatusCode::from_u16(status).unwrap(),
            head: headers,
            tail: ResponseTail::Awaited,
        }
    }

    #[test]
    fn a_charge_stands_for_the_outcomes_it_is_meant_for() {
        let none = HeaderMap::new();
        let failed = OutcomeSet { statuses: vec![StatusCode::UNAUTHORIZED], classes: vec![5], ..OutcomeSet::default() };
        let lost = OutcomeSet { connect_error: true, client_abort: true, ..OutcomeSet::default() };
        let down = RequestEnd::ConnectError { status: StatusCode::BAD_GATEWAY, head: &none };
        let of = |charge: &ChargeCondition, end| {
            ChargeRules { charge: charge.clone(), ..ChargeRules::default() }.correction(end, 3, BodyUsage::Unread)
        };
        for (charge, end, correction) in [
            (ChargeCondition::Always, answered(500, &none), 0),
            (ChargeCondition::On(failed.clone()), answered(401, &none), 0),
            (ChargeCondition::On(failed.clone()), answered(200, &none), -3),
            (ChargeCondition::On(failed.clone()), RequestEnd::Aborted, 0),
            (ChargeCondition::On(lost.clone()), answered(502, &none), -3),
            (ChargeCondition::RefundOn(failed.clone()), answered(503, &none), -3),
            (ChargeCondition::RefundOn(failed.clone()), answered(403, &none), 0),
            (ChargeCondition::RefundOn(failed.clone()), down, -3),
            (ChargeCondition::RefundOn(failed), RequestEnd::Aborted, 0),
            (ChargeCondition::RefundOn(lost.clone()), down, -3),
            (ChargeCondition::RefundOn(lost.clone()), RequestEnd::Aborted, -3),
            (ChargeCondition::RefundOn(lost), answered(502, &none), 0),
        ] {
            assert_eq!(of(&charge, end), Some(correction), "{charge:?} {end:?}");
        }
    }

    #[test]
    fn a_stated_cost_is_settled_and_nonsense_is_not() {
        let settle = settle_by(SettleField::Header(NAME));
        for (stated, correction) in
            [("10", 7), ("3", 0), ("0", -3), ("99999999999999999999", COST_MAX - 3), ("-5", 0), ("1.5", 0), ("", 0)]
        {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_static(stated))]);
            assert_eq!(
                settle.correction(answered(200, &headers), 3, BodyUsage::Unread),
                Some(correction),
                "{stated:?}"
            );
        }
        let twice = ["2", "8", "no", "5"].map(|stated| (NAME, HeaderValue::from_static(stated)));
        assert_eq!(settle.correction(answered(200, &HeaderMap::from_iter(twice)), 3, BodyUsage::Unread), Some(5));
        assert_eq!(settle.correction(answered(200, &HeaderMap::new()), 3, BodyUsage::Unread), Some(0));
        assert_eq!(settle.correction(RequestEnd::Aborted, 3, BodyUsage::Unread), Some(0));
    }

    fn fields(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_grpc_code_is_known_with_the_head_or_at_the_end() {
        let (grpc, none) = (fields(&[("content-type", "application/grpc+proto")]), HeaderMap::new());
        let whole = fields(&[("content-type", "application/grpc"), ("grpc-status", "14")]);
        let (unavailable, fine) = (fields(&[("grpc-status", "14")]), fields(&[("grpc-status", "0")]));
        let outcomes =
            |codes: &[GrpcCode]| OutcomeSet { classes: vec![5], grpc: codes.to_vec(), ..OutcomeSet::default() };
        let refund =
            |code| ChargeRules { charge: ChargeCondition::RefundOn(outcomes(&[code])), ..ChargeRules::default() };
        let (down, unknown) = (refund(GrpcCode::Unavailable), refund(GrpcCode::Unknown));
        let (awaited, cut) = (ResponseTail::Awaited, ResponseTail::Cut);
        for (rules, status, head, tail, correction) in [
            (&down, 200, &grpc, awaited, None),
            (&down, 200, &grpc, ResponseTail::Whole(&unavailable), Some(-3)),
            (&down, 200, &grpc, ResponseTail::Whole(&fine), Some(0)),
            (&down, 200, &grpc, cut, Some(-3)),
            (&down, 200, &whole, awaited, Some(-3)),
            (&down, 503, &grpc, awaited, Some(-3)),
            // Without gRPC, only the status counts.
            (&down, 200, &none, awaited, Some(0)),
            (&down, 200, &none, ResponseTail::Whole(&unavailable), Some(0)),
            (&unknown, 200, &grpc, ResponseTail::Whole(&none), Some(-3)),
            (&unknown, 200, &grpc, cut, Some(0)),
        ] {
            let end = RequestEnd::Response { status: StatusCode::from_u16(status).unwrap(), head, tail };
            assert_eq!(rules.correction(end, 3, BodyUsage::Unread), correction, "{rules:?} {end:?}");
        }
        assert_eq!(down.correction(RequestEnd::Aborted, 3, BodyUsage::Unread), Some(0));
        let status = StatusCode::BAD_GATEWAY;
        let charged = ChargeRules {
            charge: ChargeCondition::On(OutcomeSet { grpc: vec![GrpcCode::Unavailable], ..OutcomeSet::default() }),
            ..ChargeRules::default()
        };
        assert_eq!(
            charged.correction(RequestEnd::ConnectError { status, head: &whole }, 3, BodyUsage::Unread),
            Some(0)
        );
        assert_eq!(charged.correction(RequestEnd::Aborted, 3, BodyUsage::Unread), Some(0));
    }

    #[test]
    fn a_cost_in_the_trailers_is_settled_at_the_end() {
        let settle = settle_by(SettleField::Trailer(NAME));
        let stated = fields(&[("x-actual-cost", "10")]);
        let at_once = fields(&[("grpc-status", "0"), ("x-actual-cost", "10")]);
        let none = HeaderMap::new();
        for (head, tail, correction) in [
            (&none, ResponseTail::Awaited, None),
            (&none, ResponseTail::Whole(&stated), Some(7)),
            (&none, ResponseTail::Whole(&none), Some(0)),
            (&none, ResponseTail::Cut, Some(0)),
            // A header with that name is not a trailer.
            (&stated, ResponseTail::Whole(&none), Some(0)),
            (&at_once, ResponseTail::Awaited, Some(7)),
        ] {
            let end = RequestEnd::Response { status: StatusCode::OK, head, tail };
            assert_eq!(settle.correction(end, 3, BodyUsage::Unread), correction, "{end:?}");
        }
    }
    #[test]
    fn usage_that_is_not_proven_is_not_refunded() {
        let none = HeaderMap::new();
        let rules = settle_by(SettleField::Header(NAME));
        let stated = fields(&[("x-actual-cost", "7")]);
        let whole = |head| RequestEnd::Response { status: StatusCode::OK, head, tail: ResponseTail::Whole(&none) };
        let read = |units, is_proven| BodyUsage::Read { units, is_proven };
        for (end, usage, correction) in [
            (whole(&none), BodyUsage::Awaited, None),
            (whole(&none), BodyUsage::Unread, Some(0)),
            (whole(&none), read(10, true), Some(7)),
            (whole(&none), read(1, true), Some(-2)),
            (whole(&none), read(10, false), Some(7)),
            (whole(&none), read(1, false), Some(0)),
            (RequestEnd::Aborted, read(10, false), Some(7)),
            (RequestEnd::Aborted, read(1, false), Some(0)),
            (RequestEnd::Aborted, read(1, true), Some(-2)),
            (RequestEnd::Aborted, BodyUsage::Unread, Some(0)),
            (whole(&stated), read(1, false), Some(4)),
            (whole(&stated), read(9, true), Some(6)),
        ] {
            assert_eq!(rules.correction(end, 3, usage), correction, "{end:?} {usage:?}");
        }
        // A client that disconnects after the head of the response cannot make its charge a refund.
        let outcomes = OutcomeSet { client_abort: true, ..OutcomeSet::default() };
        let refunds = ChargeRules { charge: ChargeCondition::RefundOn(outcomes), ..rules };
        assert_eq!(refunds.correction(RequestEnd::Aborted, 3, read(1, false)), Some(0));
        assert_eq!(refunds.correction(RequestEnd::Aborted, 3, BodyUsage::Unread), Some(-3));
    }
}
