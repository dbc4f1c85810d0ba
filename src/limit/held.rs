//! What an admitted request holds of its limits until it ends: the charges that may still change
//! and the leases to give back. Made by [`super::Limiter::decide_asks`] for the limits that want it,
//! kept by the request's account; dropping it, on whichever path, settles all of it once.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::afterwards::{Afterwards, End};
use super::answer::Answer;
use super::decision::Check;
use super::desk::{ChargedAt, Desk, LeaseId};

pub struct Held {
    desk: Rc<Desk>,
    charges: Vec<HeldCharge>,
    /// The answer is known, so the end of the request changes no charge but leases.
    answered: bool,
}

/// Slots that a request took. They go back when the last of those who share them lets go: the request
/// itself, and its exchange with the upstream, which may go on without a client.
pub struct HeldLeases(RefCell<Held>);

/// One check that was charged.
struct HeldCharge {
    /// Its `tag` is the receipt.
    check: Check,
    place: ChargedAt,
    lease: Option<LeaseId>,
    /// Of a limit with turns: when that of this charge has passed.
    over: Option<Instant>,
    /// The request waits for its turn, which goes back if it leaves.
    waits: bool,
}

impl Held {
    /// `charged`: the checks to watch with their answers, `None` when there are none.
    pub fn new(
        desk: &Rc<Desk>,
        charged: impl Iterator<Item = (Check, Answer)>,
        place: ChargedAt,
        waits: bool,
    ) -> Option<Box<Held>> {
        let mut charges = Vec::new();
        for (mut check, answer) in charged {
            check.tag = answer.receipt;
            let afterwards = check.limit.afterwards.as_ref();
            let lease = afterwards.is_some_and(|wants| wants.lease).then(|| desk.renew(&check, place));
            let waits = waits && check.rule.delays() && answer.retry_ms > 0;
            let reset = Duration::from_millis(u64::try_from(answer.reset_ms).unwrap_or(0));
            let over = check.rule.delays().then(|| Instant::now() + reset);
            charges.push(HeldCharge { check, place, lease: lease.flatten(), over, waits });
        }
        (!charges.is_empty()).then(|| Box::new(Held { desk: desk.clone(), charges, answered: false }))
    }

    /// Its turn has come: the request goes on.
    pub fn go_on(&mut self) {
        self.charges.iter_mut().for_each(|charge| charge.waits = false);
    }

    /// Takes the leases out, for the request to share with its exchange.
    pub fn leases(&mut self) -> Option<Rc<HeldLeases>> {
        let charges = std::mem::take(&mut self.charges);
        let (leases, others): (Vec<_>, Vec<_>) = charges.into_iter().partition(|charge| charge.linger().is_some());
        self.charges = others;
        let held = Held { desk: self.desk.clone(), charges: leases, answered: true };
        (!held.charges.is_empty()).then(|| Rc::new(HeldLeases(RefCell::new(held))))
    }

    /// The outcome is known, and settles what was charged; the first one counts.
    pub fn settle(&mut self, end: End<'_>) {
        if self.answered {
            return;
        }
        self.answered = true;
        self.end(|charge| match charge.wants() {
            Some(wants) if wants.lease => (0, true),
            Some(wants) => (wants.correction(end, charge.check.cost), false),
            None => (0, false),
        });
    }

    /// Ends every charge with a correction, or keeps it for later.
    fn end(&mut self, outcome: impl Fn(&HeldCharge) -> (i64, bool)) {
        let mut corrections = Vec::new();
        for charge in std::mem::take(&mut self.charges) {
            let (delta, later) = outcome(&charge);
            if later {
                self.charges.push(charge);
                continue;
            }
            if let Some(lease) = charge.lease {
                self.desk.forget(lease);
            }
            if delta != 0 {
                let mut check = charge.check;
                check.cost = delta;
                match charge.over.filter(|_| delta < 0) {
                    Some(over) => self.desk.give_turn_back(check, charge.place, over),
                    None => corrections.push((check, charge.place)),
                }
            }
        }
        self.desk.adjust(corrections);
    }
}

impl HeldCharge {
    fn wants(&self) -> Option<&Afterwards> {
        self.check.limit.afterwards.as_ref()
    }

    /// Of a lease alone.
    fn linger(&self) -> Option<Duration> {
        self.wants().filter(|wants| wants.lease).map(|wants| wants.linger)
    }
}

impl HeldLeases {
    /// How long after the client left the next of them goes back; `None` once all have.
    pub fn linger(&self) -> Option<Duration> {
        self.0.borrow().charges.iter().filter_map(HeldCharge::linger).min()
    }

    /// Gives back those that go back `after` the client left, or before.
    pub fn give_back(&self, after: Duration) {
        self.0.borrow_mut().end(|charge| match charge.linger() {
            Some(linger) if linger > after => (0, true),
            _ => (-charge.check.cost, false),
        });
    }
}

impl Drop for Held {
    /// The end of the response, or of a request that never had one.
    fn drop(&mut self) {
        let answered = self.answered;
        self.end(|charge| match charge.wants() {
            _ if charge.waits => (-charge.check.cost, false),
            Some(wants) if wants.lease => (-charge.check.cost, false),
            Some(wants) if !answered => (wants.correction(End::Aborted, charge.check.cost), false),
            _ => (0, false),
        });
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("charges", &self.charges.len()).finish_non_exhaustive()
    }
}
