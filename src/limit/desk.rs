//! One worker's back office of a store: brings corrections of charges to it and renews the leases
//! of requests under way. Nothing here makes a request wait. Made with the store by
//! [`super::Limiter`], used by `held`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use super::decision::{Check, Op};
use super::store::Store;
use super::store::memory::Memory;

pub struct Desk {
    pub store: Store,
    /// Answers for `on_error = "local"` while the store is away.
    pub local: Arc<Memory>,
    leases: RefCell<Slab<Lease>>,
    /// When the renewal looks at the leases next; `None` while there are none.
    planned: Cell<Option<Instant>>,
    /// A lease has come that is due before that.
    sooner: Notify,
    /// Calls under way that nobody waits for.
    pending: Cell<usize>,
}

/// Where a charge was made, and is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Store,
    Local,
}

struct Lease {
    check: Check,
    place: Place,
    every: Duration,
    due: Instant,
}

/// A lease among those of its worker.
#[derive(Clone, Copy, Debug)]
pub struct LeaseId(usize);

/// Leases renewed by one call.
const RENEWED_AT_ONCE: usize = 256;
/// Renewals per life of a lease: two may fail before it ends.
const RENEWALS: u32 = 3;
/// Leases due this soon are renewed along with those that are due.
const ALONG: Duration = Duration::from_millis(100);

impl Desk {
    pub fn new(store: Store, local: Arc<Memory>) -> Rc<Desk> {
        Rc::new(Desk {
            store,
            local,
            leases: RefCell::default(),
            planned: Cell::new(None),
            sooner: Notify::new(),
            pending: Cell::new(0),
        })
    }

    /// Calls under way that nobody waits for: a worker ends after them.
    pub fn pending(&self) -> usize {
        self.pending.get()
    }

    /// Adjusts every charge where it was made, at most once: a call that fails may have happened,
    /// so it is counted and not made again.
    pub fn adjust(self: &Rc<Self>, corrections: Vec<(Check, Place)>) {
        if corrections.is_empty() {
            return;
        }
        let (local, stored): (Vec<_>, Vec<_>) = corrections.into_iter().partition(|(_, place)| *place == Place::Local);
        self.adjust_local(local.into_iter().map(|(check, _)| check).collect());
        let stored: Vec<Check> = stored.into_iter().map(|(check, _)| check).collect();
        match &self.store {
            _ if stored.is_empty() => {}
            Store::Memory(memory) => drop(memory.run_now(Op::Adjust, &stored)),
            store => {
                let (store, call) = (store.clone(), Call::begin(self));
                spawn_local(async move {
                    let _ = store.run(Op::Adjust, stored).await;
                    drop(call);
                });
            }
        }
    }

    fn adjust_local(&self, checks: Vec<Check>) {
        if !checks.is_empty() {
            self.local.run_now(Op::Adjust, &checks);
        }
    }

    /// Renews the lease that `check` stands for until it is forgotten; `None` if it does not end
    /// by itself.
    pub fn renew(self: &Rc<Self>, check: &Check, place: Place) -> Option<LeaseId> {
        let life_ms = u64::try_from(check.rule.lease_ms()?).unwrap_or(0);
        let every = Duration::from_millis(life_ms) / RENEWALS;
        let check = Check { cost: 0, ..check.clone() };
        let due = Instant::now() + every;
        let id = self.leases.borrow_mut().insert(Lease { check, place, every, due });
        match self.planned.get() {
            Some(planned) if due < planned => self.sooner.notify_one(),
            Some(_) => {}
            None => {
                self.planned.set(Some(due));
                spawn_local(renewal(self.clone()));
            }
        }
        Some(LeaseId(id))
    }

    pub fn forget(&self, lease: LeaseId) {
        self.leases.borrow_mut().try_remove(lease.0);
    }

    /// When the next lease is due.
    fn next_due(&self) -> Option<Instant> {
        self.leases.borrow().iter().map(|(_, lease)| lease.due).min()
    }

    /// The leases that are due, as renewals.
    fn due(&self) -> Vec<(Check, Place)> {
        let until = Instant::now() + ALONG;
        let mut leases = self.leases.borrow_mut();
        let due = leases.iter_mut().filter(|(_, lease)| lease.due <= until);
        due.map(|(_, lease)| {
            lease.due = Instant::now() + lease.every;
            (lease.check.clone(), lease.place)
        })
        .collect()
    }
}

/// Renews leases as they fall due, until there are none.
async fn renewal(desk: Rc<Desk>) {
    while let Some(due) = desk.next_due() {
        desk.planned.set(Some(due));
        tokio::select! {
            () = sleep_until(due) => {}
            () = desk.sooner.notified() => continue,
        }
        let mut renewals = desk.due();
        while !renewals.is_empty() {
            let rest = renewals.split_off(renewals.len().min(RENEWED_AT_ONCE));
            desk.adjust(std::mem::replace(&mut renewals, rest));
        }
    }
    desk.planned.set(None);
}

/// Counted among the pending ones until dropped.
pub struct Call(Rc<Desk>);

impl Call {
    pub fn begin(desk: &Rc<Desk>) -> Call {
        desk.pending.set(desk.pending.get() + 1);
        Call(desk.clone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}
