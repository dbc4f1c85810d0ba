//! Concurrency with leases; twin of `lua/concurrency.lua`, same names, same order. At most
//! `in_flight` units are held at once. A unit is given back when its request ends; when its holder
//! dies, it is free `lease_ms` after its last renewal. So the wait of a refusal is the longest:
//! a release may come earlier.

use super::{Algorithm, Policy, Step};
use crate::limit::answer::{Answer, NEVER};

#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    pub in_flight: i64,
    pub lease_ms: i64,
}

/// Leases, the one that expires first in front. A decision holds the ids from its tag on.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    leases: Box<[Lease]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Lease {
    expiry_ms: i64,
    id: i64,
}

enum Act {
    Add,
    Renew,
    Drop,
}

impl Algorithm for Concurrency {
    type State = State;

    const TAGGED: bool = true;

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        vec![self.in_flight, self.lease_ms]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.in_flight, window_ms: self.lease_ms }
    }

    fn share(&self, n: i64) -> Concurrency {
        Concurrency { in_flight: (self.in_flight / n).max(1), ..*self }
    }

    fn lease_ms(&self) -> Option<i64> {
        Some(self.lease_ms)
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64, tag: i64) -> Step<State> {
        let Concurrency { in_flight: limit, lease_ms: lease } = *self;
        let leases = Leases(state.map_or(&[], |state| &state.leases));
        let expiry = now + lease;
        let mut latest = leases.at(0).unwrap_or(now);
        // An expiry further ahead than a lease was left by another clock, or by a longer lease. It
        // must be cut for good, or what a dead holder left would stay until then.
        let mended = latest > expiry;

        // The latest of the leases that must have expired.
        let last = if cost > 0 && cost <= limit { leases.at(limit - cost) } else { None };
        let last = last.filter(|last| *last > now);
        let admitted = cost == 0 || cost <= limit && last.is_none();
        let live = leases.live(now);
        let charge = if admitted { cost } else { 0 };
        if charge > 0 {
            latest = expiry;
        }

        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if let Some(last) = last {
            retry_ms = last.min(expiry) - now;
        }
        let reset_ms = (latest.min(expiry) - now).max(0);
        let store = cost > 0 && (admitted || mended);
        let remaining = (limit - live - charge).max(0);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: tag },
            next: store.then(|| (leases.changed(now, expiry, tag, charge, &Act::Add), reset_ms)),
        }
    }

    /// The receipt is the tag. Less than 0 releases, 0 renews what is held, or takes one unit anew
    /// if the lease was lost and there is room.
    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, receipt: i64) -> Option<(State, i64)> {
        let Concurrency { in_flight: limit, lease_ms: lease } = *self;
        let leases = Leases(state.map_or(&[], |state| &state.leases));
        let expiry = now + lease;
        let held = leases.run(receipt, now);
        if delta < 0 {
            if held == 0 {
                return None;
            }
            let count = (-delta).min(held);
            let ttl_ms = (leases.at(0)?.min(expiry) - now).max(1);
            return Some((leases.changed(now, expiry, receipt + held - count, count, &Act::Drop), ttl_ms));
        }
        if delta == 0 && held > 0 {
            return Some((leases.changed(now, expiry, receipt, held, &Act::Renew), lease));
        }
        let room = match delta {
            0 => limit,
            _ if held > 0 => 2 * limit,
            _ => 0,
        };
        let count = delta.max(1).min(room - leases.live(now));
        if count < 1 {
            return None;
        }
        Some((leases.changed(now, expiry, receipt + held, count, &Act::Add), lease))
    }

    /// Pairs of id and expiry.
    fn text(state: &State) -> String {
        let leases: Vec<String> =
            state.leases.iter().map(|lease| format!("{} {}", lease.id, lease.expiry_ms)).collect();
        leases.join(" ")
    }
}

/// Leases, the first to expire in front, counted from the latest.
#[derive(Clone, Copy)]
struct Leases<'a>(&'a [Lease]);

impl Leases<'_> {
    /// The `i`-th latest expiry.
    fn at(self, i: i64) -> Option<i64> {
        let place = self.0.len().checked_sub(1 + usize::try_from(i).ok()?)?;
        self.0.get(place).map(|lease| lease.expiry_ms)
    }

    fn live(self, now: i64) -> i64 {
        let expired = self.0.partition_point(|lease| lease.expiry_ms <= now);
        i64::try_from(self.0.len() - expired).unwrap_or(i64::MAX)
    }

    fn holds(self, id: i64, now: i64) -> bool {
        self.0.iter().rev().take_while(|lease| lease.expiry_ms > now).any(|lease| lease.id == id)
    }

    /// How many ids from `first` on are held; those of one decision are held together.
    fn run(self, first: i64, now: i64) -> i64 {
        if !self.holds(first, now) {
            return 0;
        }
        let (mut low, mut high) = (0, 1);
        while self.holds(first + high, now) {
            (low, high) = (high, high * 2);
        }
        while high - low > 1 {
            let middle = i64::midpoint(low, high);
            if self.holds(first + middle, now) {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// Without what has expired, none later than `expiry`, and `act` done to `count` ids from
    /// `first` on.
    fn changed(self, now: i64, expiry: i64, first: i64, count: i64, act: &Act) -> State {
        let ids = first..first + count;
        let others = self.0.iter().filter(|lease| lease.expiry_ms > now && !ids.contains(&lease.id));
        let cut = others.map(|lease| Lease { expiry_ms: lease.expiry_ms.min(expiry), id: lease.id });
        let mut leases: Vec<Lease> = Vec::with_capacity(self.0.len() + ids.clone().count());
        leases.extend(cut);
        if !matches!(act, Act::Drop) {
            leases.extend(ids.map(|id| Lease { expiry_ms: expiry, id }));
        }
        State { leases: leases.into() }
    }
}
