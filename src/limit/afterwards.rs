//! What a limit wants once the outcome of an admitted request is known: keep the charge, give it
//! back, correct it, hold a lease meanwhile. Compiled from the config, asked by `held`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::algo::Rule;
use super::key::units;
use crate::grpc::{GrpcCode, is_grpc};

/// A limit that wants nothing afterwards has none of this.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Afterwards {
    pub charge: Charge,
    /// Where the answer states the true cost; of several the largest counts.
    pub settle: Option<Settle>,
    /// The charge is a lease: given back when the request ends, renewed until then.
    pub lease: bool,
    /// How long the lease outlives a client that left, while the upstream works on its request.
    pub linger: Duration,
    /// Requests of this limit that a worker holds back at once.
    pub max_delayed: Option<usize>,
}

/// A field of the response.
#[derive(Clone, Debug, PartialEq)]
pub enum Settle {
    Header(HeaderName),
    /// Of the trailers. A gRPC response without messages has them in its head.
    Trailer(HeaderName),
}

/// For which outcomes the charge stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Charge {
    #[default]
    Always,
    /// Only when the response matches: failed logins.
    On(Outcomes),
    /// Unless the outcome matches.
    RefundOn(Outcomes),
}

/// A set of outcomes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes {
    pub statuses: Vec<StatusCode>,
    /// Hundreds of the classes: 4 for `4xx`.
    pub classes: Vec<u16>,
    pub connect_error: bool,
    pub client_abort: bool,
    /// Of gRPC responses.
    pub grpc: Vec<GrpcCode>,
}

/// How an admitted request ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// With this answer, whoever made it.
    Answered { status: StatusCode, head: &'a HeaderMap, tail: ResponseTail<'a> },
    /// With an answer of our own, because no upstream server accepted a connection. None got a byte of the request.
    ConnectError { status: StatusCode, head: &'a HeaderMap },
    /// The client left before its response, or ended a request of which a server had got something, or this
    /// process gave the request up.
    Aborted,
}

/// What comes after the head of a response.
#[derive(Clone, Copy, Debug)]
pub enum ResponseTail<'a> {
    /// The end of the response has not arrived yet.
    Awaited,
    /// The response is whole, with these trailers: none, as a rule.
    Whole(&'a HeaderMap),
    /// The server broke it off.
    Cut,
}

impl Outcomes {
    /// `None`: only the end of the response tells.
    fn holds(&self, end: End<'_>) -> Option<bool> {
        match end {
            End::Answered { status, .. } if self.has(status) => Some(true),
            End::Answered { .. } if self.grpc.is_empty() => Some(false),
            End::Answered { head, tail, .. } => {
                let code = if is_grpc(head) { Some(code(head, tail)?) } else { None };
                Some(code.is_some_and(|code| self.grpc.contains(&code)))
            }
            End::ConnectError { status, head } => {
                let code = GrpcCode::stated(head);
                Some(self.connect_error || self.has(status) || code.is_some_and(|code| self.grpc.contains(&code)))
            }
            End::Aborted => Some(self.client_abort),
        }
    }

    fn has(&self, status: StatusCode) -> bool {
        self.statuses.contains(&status) || self.classes.contains(&(status.as_u16() / 100))
    }
}

/// The code of a gRPC response: in the trailers, or in the head where there are no messages. `None` while the
/// trailers are awaited. A response that ends without one is `UNKNOWN`, one that the server breaks off `UNAVAILABLE`.
fn code(head: &HeaderMap, tail: ResponseTail) -> Option<GrpcCode> {
    match (GrpcCode::stated(head), tail) {
        (Some(code), _) => Some(code),
        (None, ResponseTail::Awaited) => None,
        (None, ResponseTail::Whole(trailers)) => Some(GrpcCode::stated(trailers).unwrap_or(GrpcCode::Unknown)),
        (None, ResponseTail::Cut) => Some(GrpcCode::Unavailable),
    }
}

impl Settle {
    /// The lines that state the cost: `None` while the trailers are awaited.
    fn fields<'a>(&self, head: &'a HeaderMap, tail: ResponseTail<'a>) -> Option<impl Iterator<Item = &'a HeaderValue>> {
        let (name, fields) = match (self, tail) {
            (Settle::Header(name), _) => (name, Some(head)),
            (Settle::Trailer(name), _) if GrpcCode::stated(head).is_some() => (name, Some(head)),
            (Settle::Trailer(_), ResponseTail::Awaited) => return None,
            (Settle::Trailer(name), ResponseTail::Whole(trailers)) => (name, Some(trailers)),
            (Settle::Trailer(name), ResponseTail::Cut) => (name, None),
        };
        Some(fields.into_iter().flat_map(move |fields| fields.get_all(name)))
    }
}

impl Afterwards {
    /// What the algorithm itself wants.
    pub fn of(rule: &Rule) -> Afterwards {
        Afterwards { lease: rule.lease_ms().is_some(), ..Afterwards::default() }
    }

    pub fn wanted(self) -> Option<Afterwards> {
        (self != Afterwards::default()).then_some(self)
    }

    /// Whether anything but its end changes what a request of `cost` is charged.
    pub fn watches(&self) -> bool {
        self.lease || self.settle.is_some() || self.charge != Charge::Always
    }

    /// Units to charge on top of `cost`, or to give back if negative. `None`: only the end of the response tells.
    pub fn correction(&self, end: End<'_>, cost: i64) -> Option<i64> {
        let stands = match &self.charge {
            Charge::Always => true,
            // One who leaves before the answer stays charged: leaving must not hide a failed attempt.
            Charge::On(outcomes) => matches!(end, End::Aborted) || outcomes.holds(end)?,
            Charge::RefundOn(outcomes) => !outcomes.holds(end)?,
        };
        if !stands {
            return Some(-cost);
        }
        let (End::Answered { head, tail, .. }, Some(settle)) = (end, &self.settle) else { return Some(0) };
        let stated = settle.fields(head, tail)?.filter_map(|line| units(line.as_bytes())).max();
        Some(stated.map_or(0, |actual| actual - cost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::COST_MAX;

    const NAME: HeaderName = HeaderName::from_static("x-actual-cost");

    fn answered(status: u16, headers: &HeaderMap) -> End<'_> {
        End::Answered { status: StatusCode::from_u16(status).unwrap(), head: headers, tail: ResponseTail::Awaited }
    }

    #[test]
    fn a_charge_stands_for_the_outcomes_it_is_meant_for() {
        let none = HeaderMap::new();
        let failed = Outcomes { statuses: vec![StatusCode::UNAUTHORIZED], classes: vec![5], ..Outcomes::default() };
        let lost = Outcomes { connect_error: true, client_abort: true, ..Outcomes::default() };
        let down = End::ConnectError { status: StatusCode::BAD_GATEWAY, head: &none };
        let of =
            |charge: &Charge, end| Afterwards { charge: charge.clone(), ..Afterwards::default() }.correction(end, 3);
        for (charge, end, correction) in [
            (Charge::Always, answered(500, &none), 0),
            (Charge::On(failed.clone()), answered(401, &none), 0),
            (Charge::On(failed.clone()), answered(200, &none), -3),
            (Charge::On(failed.clone()), End::Aborted, 0),
            (Charge::On(lost.clone()), answered(502, &none), -3),
            (Charge::RefundOn(failed.clone()), answered(503, &none), -3),
            (Charge::RefundOn(failed.clone()), answered(403, &none), 0),
            (Charge::RefundOn(failed.clone()), down, -3),
            (Charge::RefundOn(failed), End::Aborted, 0),
            (Charge::RefundOn(lost.clone()), down, -3),
            (Charge::RefundOn(lost.clone()), End::Aborted, -3),
            (Charge::RefundOn(lost), answered(502, &none), 0),
        ] {
            assert_eq!(of(&charge, end), Some(correction), "{charge:?} {end:?}");
        }
    }

    #[test]
    fn a_stated_cost_is_settled_and_nonsense_is_not() {
        let settle = Afterwards { settle: Some(Settle::Header(NAME)), ..Afterwards::default() };
        for (stated, correction) in
            [("10", 7), ("3", 0), ("0", -3), ("99999999999999999999", COST_MAX - 3), ("-5", 0), ("1.5", 0), ("", 0)]
        {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_static(stated))]);
            assert_eq!(settle.correction(answered(200, &headers), 3), Some(correction), "{stated:?}");
        }
        let twice = ["2", "8", "no", "5"].map(|stated| (NAME, HeaderValue::from_static(stated)));
        assert_eq!(settle.correction(answered(200, &HeaderMap::from_iter(twice)), 3), Some(5));
        assert_eq!(settle.correction(answered(200, &HeaderMap::new()), 3), Some(0));
        assert_eq!(settle.correction(End::Aborted, 3), Some(0));
    }

    fn fields(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_grpc_code_is_known_with_the_head_or_at_the_end() {
        let (grpc, none) = (fields(&[("content-type", "application/grpc+proto")]), HeaderMap::new());
        let whole = fields(&[("content-type", "application/grpc"), ("grpc-status", "14")]);
        let (unavailable, fine) = (fields(&[("grpc-status", "14")]), fields(&[("grpc-status", "0")]));
        let outcomes = |codes: &[GrpcCode]| Outcomes { classes: vec![5], grpc: codes.to_vec(), ..Outcomes::default() };
        let refund = |code| Afterwards { charge: Charge::RefundOn(outcomes(&[code])), ..Afterwards::default() };
        let (down, unknown) = (refund(GrpcCode::Unavailable), refund(GrpcCode::Unknown));
        let (awaited, cut) = (ResponseTail::Awaited, ResponseTail::Cut);
        for (wants, status, head, tail, correction) in [
            (&down, 200, &grpc, awaited, None),
            (&down, 200, &grpc, ResponseTail::Whole(&unavailable), Some(-3)),
            (&down, 200, &grpc, ResponseTail::Whole(&fine), Some(0)),
            (&down, 200, &grpc, cut, Some(-3)),
            (&down, 200, &whole, awaited, Some(-3)),
            (&down, 503, &grpc, awaited, Some(-3)),
            // No gRPC: its status alone tells.
            (&down, 200, &none, awaited, Some(0)),
            (&down, 200, &none, ResponseTail::Whole(&unavailable), Some(0)),
            (&unknown, 200, &grpc, ResponseTail::Whole(&none), Some(-3)),
            (&unknown, 200, &grpc, cut, Some(0)),
        ] {
            let end = End::Answered { status: StatusCode::from_u16(status).unwrap(), head, tail };
            assert_eq!(wants.correction(end, 3), correction, "{wants:?} {end:?}");
        }
        assert_eq!(down.correction(End::Aborted, 3), Some(0));
        let status = StatusCode::BAD_GATEWAY;
        let charged = Afterwards {
            charge: Charge::On(Outcomes { grpc: vec![GrpcCode::Unavailable], ..Outcomes::default() }),
            ..Afterwards::default()
        };
        assert_eq!(charged.correction(End::ConnectError { status, head: &whole }, 3), Some(0));
        assert_eq!(charged.correction(End::Aborted, 3), Some(0));
    }

    #[test]
    fn a_cost_in_the_trailers_is_settled_at_the_end() {
        let settle = Afterwards { settle: Some(Settle::Trailer(NAME)), ..Afterwards::default() };
        let stated = fields(&[("x-actual-cost", "10")]);
        let at_once = fields(&[("grpc-status", "0"), ("x-actual-cost", "10")]);
        let none = HeaderMap::new();
        for (head, tail, correction) in [
            (&none, ResponseTail::Awaited, None),
            (&none, ResponseTail::Whole(&stated), Some(7)),
            (&none, ResponseTail::Whole(&none), Some(0)),
            (&none, ResponseTail::Cut, Some(0)),
            // A header of that name is none of the trailers.
            (&stated, ResponseTail::Whole(&none), Some(0)),
            (&at_once, ResponseTail::Awaited, Some(7)),
        ] {
            let end = End::Answered { status: StatusCode::OK, head, tail };
            assert_eq!(settle.correction(end, 3), correction, "{end:?}");
        }
    }
}
