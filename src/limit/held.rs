//! What an admitted request holds of its limits until it ends: the charges that may still change
//! and the leases to give back. Made by [`super::Limiter::decide_asks`] for the limits that want it,
//! kept by the request's account; dropping it, on whichever path, settles all of it once.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::afterwards::{Afterwards, End, ResponseTail};
use super::answer::Answer;
use super::decision::Check;
use super::desk::{ChargedAt, Desk, LeaseId};

pub struct Held {
    desk: Rc<Desk>,
    charges: Vec<HeldCharge>,
    /// The outcome is known, so the end of the request changes no charge but leases.
    answered: bool,
    /// The head of the response, while some charges wait for its end.
    head: Option<Box<(StatusCode, HeaderMap)>>,
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
        (!charges.is_empty()).then(|| Box::new(Held { desk: desk.clone(), charges, answered: false, head: None }))
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
        let held = Held { desk: self.desk.clone(), charges: leases, answered: true, head: None };
        (!held.charges.is_empty()).then(|| Rc::new(HeldLeases(RefCell::new(held))))
    }

    /// Settles what was charged by the outcome; the first one counts. Charges that need the end of the response
    /// wait for it.
    pub fn settle(&mut self, end: End<'_>) {
        if self.answered || self.head.is_some() {
            return;
        }
        if self.correct(end) {
            self.answered = true;
        } else if let End::Answered { status, head, .. } = end {
            self.head = Some(Box::new((status, head.clone())));
        }
    }

    /// Some charges wait for the end of the response.
    pub fn awaits_end(&self) -> bool {
        self.head.is_some()
    }

    /// Settles charges that wait by how the response ended; `None`: the client has aborted it.
    pub fn finish(&mut self, tail: Option<ResponseTail<'_>>) {
        let Some(known) = self.head.take() else { return };
        let (status, head) = &*known;
        self.correct(tail.map_or(End::Aborted, |tail| End::Answered { status: *status, head, tail }));
        self.answered = true;
    }

    /// True when no charge waits any more, but leases.
    fn correct(&mut self, end: End<'_>) -> bool {
        let waits = Cell::new(false);
        self.end(|charge| match charge.wants() {
            Some(wants) if wants.lease => (0, true),
            Some(wants) => match wants.correction(end, charge.check.cost) {
                Some(delta) => (delta, false),
                None => {
                    waits.set(true);
                    (0, true)
                }
            },
            None => (0, false),
        });
        !waits.get()
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
            Some(wants) if !answered => (wants.correction(End::Aborted, charge.check.cost).unwrap_or(0), false),
            _ => (0, false),
        });
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("charges", &self.charges.len()).finish_non_exhaustive()
    }
}
