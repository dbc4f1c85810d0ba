//! What a limit wants once the outcome of an admitted request is known: keep the charge, give it
//! back, correct it, hold a lease meanwhile. Compiled from the config, asked by `held`.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::algo::Rule;
use super::key::units;
use super::source::{Source, SourceKind};

/// A limit that wants nothing afterwards has none of this.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Afterwards {
    pub charge: Charge,
    /// Where the answer states the true cost; of several the largest counts.
    pub settle: Option<Source>,
    /// The charge is a lease: given back when the request ends, renewed until then.
    pub lease: bool,
    /// How long the lease outlives a client that left, while the upstream works on its request.
    pub linger: Duration,
    /// Requests of this limit that a worker holds back at once.
    pub max_delayed: Option<usize>,
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
}

/// How an admitted request ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// With this answer, whoever made it.
    Answered { status: StatusCode, headers: &'a HeaderMap },
    /// With an answer of our own, because no upstream server accepted a connection. None got a byte of the request.
    ConnectError { status: StatusCode },
    /// The client left before its response, or ended a request of which a server had got something, or this
    /// process gave the request up.
    Aborted,
}

impl Outcomes {
    fn holds(&self, end: End<'_>) -> bool {
        match end {
            End::Answered { status, .. } => self.has(status),
            End::ConnectError { status } => self.connect_error || self.has(status),
            End::Aborted => self.client_abort,
        }
    }

    fn has(&self, status: StatusCode) -> bool {
        self.statuses.contains(&status) || self.classes.contains(&(status.as_u16() / 100))
    }
}

impl Afterwards {
    /// Where an answer may state a cost.
    pub const SOURCES: &[SourceKind] = &[SourceKind::Header];

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

    /// Units to charge on top of `cost`, or to give back if negative, once the request has ended.
    pub fn correction(&self, end: End<'_>, cost: i64) -> i64 {
        let stands = match &self.charge {
            Charge::Always => true,
            // One who leaves before the answer stays charged: leaving must not hide a failed attempt.
            Charge::On(outcomes) => matches!(end, End::Aborted) || outcomes.holds(end),
            Charge::RefundOn(outcomes) => !outcomes.holds(end),
        };
        if !stands {
            return -cost;
        }
        match (end, &self.settle) {
            (End::Answered { headers, .. }, Some(source)) => {
                source.in_answer(headers).filter_map(units).max().map_or(0, |actual| actual - cost)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::limit::key::COST_MAX;

    const NAME: HeaderName = HeaderName::from_static("x-actual-cost");

    fn answered(status: u16, headers: &HeaderMap) -> End<'_> {
        End::Answered { status: StatusCode::from_u16(status).unwrap(), headers }
    }

    #[test]
    fn a_charge_stands_for_the_outcomes_it_is_meant_for() {
        let none = HeaderMap::new();
        let failed = Outcomes { statuses: vec![StatusCode::UNAUTHORIZED], classes: vec![5], ..Outcomes::default() };
        let lost = Outcomes { connect_error: true, client_abort: true, ..Outcomes::default() };
        let down = End::ConnectError { status: StatusCode::BAD_GATEWAY };
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
            assert_eq!(of(&charge, end), correction, "{charge:?} {end:?}");
        }
    }

    #[test]
    fn a_stated_cost_is_settled_and_nonsense_is_not() {
        let settle = Afterwards { settle: Some(Source::Header(NAME)), ..Afterwards::default() };
        for (stated, correction) in
            [("10", 7), ("3", 0), ("0", -3), ("99999999999999999999", COST_MAX - 3), ("-5", 0), ("1.5", 0), ("", 0)]
        {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_static(stated))]);
            assert_eq!(settle.correction(answered(200, &headers), 3), correction, "{stated:?}");
        }
        let twice = ["2", "8", "no", "5"].map(|stated| (NAME, HeaderValue::from_static(stated)));
        assert_eq!(settle.correction(answered(200, &HeaderMap::from_iter(twice)), 3), 5);
        assert_eq!(settle.correction(answered(200, &HeaderMap::new()), 3), 0);
        assert_eq!(settle.correction(End::Aborted, 3), 0);
    }
}
