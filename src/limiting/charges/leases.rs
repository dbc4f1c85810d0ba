//! The leases of running requests: when each is due for renewal, and which of them one call renews. A `concurrency`
//! slot is a lease: it expires unless it is renewed, so the slots of a crashed gateway become free again. The
//! charge manager sends the renewals that this file plans.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::limiting::algorithm::concurrency::RENEWALS;
use crate::limiting::charges::ChargedAt;
use crate::limiting::decision::Check;

/// Maximum number of leases that one call renews.
const RENEWALS_MAX: usize = 256;
/// Maximum [`Rule::work`](crate::limiting::algorithm::Rule::work) of one renewal call: about 5 ms of Redis.
const RENEWAL_WORK: i64 = 1000;
/// Longest pause before a failed renewal is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// Leases that are due within this time are renewed together with those that are due now.
const EARLY: Duration = Duration::from_millis(100);

/// The leases of one worker.
#[derive(Default)]
pub struct Leases {
    entries: RefCell<Slab<Lease>>,
    /// When the renewal task wakes up next; `None` while it does not run.
    wakes_at: Cell<Option<Instant>>,
    /// Notified when a lease becomes due before `wakes_at`.
    sooner: Notify,
}

struct Lease {
    check: Check,
    place: ChargedAt,
    since: Instant,
    interval: Duration,
    due: Instant,
}

/// Identifies a lease among all leases of its worker.
#[derive(Clone, Copy, Debug)]
pub struct LeaseId(usize);

/// The leases that one call to the store renews.
#[derive(Default)]
pub struct Renewals {
    pub ids: Vec<LeaseId>,
    /// Checks of the leases, in the order of `ids`.
    pub checks: Vec<Check>,
    work: i64,
}

/// All renewals that are due.
pub struct DueRenewals {
    /// Renewals for the in-memory store.
    pub local: Vec<Check>,
    /// Renewals for the configured store, one element per call.
    pub stored: Vec<Renewals>,
}

impl Leases {
    /// Adds the lease of a charge. Returns `None` if the charge does not expire or is empty.
    pub fn insert(&self, check: &Check, place: ChargedAt) -> Option<LeaseId> {
        let every = renewal_interval(check).filter(|_| check.cost > 0)?;
        let since = Instant::now();
        let due = since + every;
        let id = self.entries.borrow_mut().insert(Lease { check: check.clone(), place, since, interval: every, due });
        if self.wakes_at.get().is_some_and(|at| due < at) {
            self.sooner.notify_one();
        }
        Some(LeaseId(id))
    }

    /// Removes a lease whose request has ended. Returns the id of its limit and how long the request held it.
    pub fn remove(&self, id: LeaseId) -> Option<(u64, Duration)> {
        let lease = self.entries.borrow_mut().try_remove(id.0)?;
        Some((lease.check.limit.id, lease.since.elapsed()))
    }

    /// Updates the check of every lease, for a new config. A lease that expires sooner now is renewed sooner.
    pub fn update(&self, update: impl Fn(&mut Check, ChargedAt)) {
        let now = Instant::now();
        for (_, lease) in self.entries.borrow_mut().iter_mut() {
            update(&mut lease.check, lease.place);
            lease.interval = renewal_interval(&lease.check).unwrap_or(lease.interval);
            lease.due = lease.due.min(now + lease.interval);
        }
        self.sooner.notify_one();
    }

    /// Returns whether the caller has to start the renewal task. False while one runs.
    pub fn start_renewal(&self) -> bool {
        if self.wakes_at.get().is_some() {
            return false;
        }
        self.wakes_at.set(self.next_due());
        true
    }

    /// Waits until a lease is due. Returns false once there are no leases, which ends the renewal task.
    pub async fn wait_due(&self) -> bool {
        while let Some(due) = self.next_due() {
            self.wakes_at.set(Some(due));
            tokio::select! {
                () = sleep_until(due) => return true,
                () = self.sooner.notified() => {}
            }
        }
        self.wakes_at.set(None);
        false
    }

    fn next_due(&self) -> Option<Instant> {
        self.entries.borrow().iter().map(|(_, lease)| lease.due).min()
    }

    /// Takes the renewals that are due and plans the next renewal of their leases.
    pub fn take_due(&self) -> DueRenewals {
        let now = Instant::now();
        let mut due = DueRenewals { local: Vec::new(), stored: Vec::new() };
        for (id, lease) in self.entries.borrow_mut().iter_mut().filter(|(_, lease)| lease.due <= now + EARLY) {
            lease.due = now + lease.interval;
            match lease.place {
                ChargedAt::Local => due.local.push(lease.check.clone()),
                ChargedAt::Store => {
                    if due.stored.last().is_none_or(|call| !call.has_capacity(&lease.check)) {
                        due.stored.push(Renewals::default());
                    }
                    if let Some(call) = due.stored.last_mut() {
                        call.add(LeaseId(id), lease.check.clone());
                    }
                }
            }
        }
        due
    }

    /// Plans another renewal soon, because the store may not have renewed these leases. A renewal also restores a
    /// lease that the store has lost, so it is repeated for as long as the requests run.
    pub fn retry(&self, failed: impl Iterator<Item = LeaseId>) {
        // The jitter keeps workers and gateways that lost the same store from retrying in step.
        let due = Instant::now() + RETRY.mul_f64(rand::random_range(0.5..1.0));
        let mut leases = self.entries.borrow_mut();
        for id in failed {
            // The request may have ended in the meantime. If another lease now has the id, that lease is renewed early.
            if let Some(lease) = leases.get_mut(id.0) {
                lease.due = lease.due.min(due);
                self.sooner.notify_one();
            }
        }
    }

    /// Returns whether the renewal task runs.
    #[cfg(test)]
    pub fn is_renewing(&self) -> bool {
        self.wakes_at.get().is_some()
    }

    /// Makes every change of a lease panic until the returned value is dropped.
    #[cfg(test)]
    pub fn break_changes(&self) -> impl Sized {
        self.entries.borrow()
    }
}

impl Renewals {
    fn work_of(check: &Check) -> i64 {
        check.rule.work(check.limit.max_cost, true)
    }

    /// Returns whether the call can renew one more lease. A lease that exceeds the bound alone gets a call of its own.
    fn has_capacity(&self, check: &Check) -> bool {
        let work = self.work.saturating_add(Renewals::work_of(check));
        self.ids.is_empty() || self.ids.len() < RENEWALS_MAX && work <= RENEWAL_WORK
    }

    fn add(&mut self, id: LeaseId, check: Check) {
        self.work = self.work.saturating_add(Renewals::work_of(&check));
        self.ids.push(id);
        self.checks.push(check);
    }
}

/// Returns the time between two renewals of the lease that `check` holds, if it holds one.
fn renewal_interval(check: &Check) -> Option<Duration> {
    let life_ms = u64::try_from(check.rule.lease_ms()?).unwrap_or(0);
    Some(Duration::from_millis(life_ms) / RENEWALS)
}
