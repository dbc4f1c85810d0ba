//! One worker's back office of a store: brings corrections of charges to it and renews the leases
//! of requests under way, by the numbers that their keys have by then where the algorithm needs them. Nothing here makes a request
//! wait. Made with the store by [`super::Limiter`], used by `held`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounter;
use slab::Slab;
use tokio::sync::Notify;
use tokio::task::{spawn_local, yield_now};
use tokio::time::{Instant, sleep_until};

use super::algo::concurrency::RENEWALS;
use super::backlog::Backlog;
use super::decision::{Check, ErrorKind, Op};
use super::hold_times::HoldTimes;
use super::limits::LimitTable;
use super::local::local_rule;
use super::overrides::Budget;
use super::revive::revive;
use super::store::Store;
use super::store::memory::Memory;
use super::turns::{Turn, Turns};
use crate::metrics::{Gateways, Metrics};

pub struct Desk {
    pub store: Store,
    /// Answers for `on_error = "local"` while the store is away.
    pub local: Arc<Memory>,
    pub hold_times: Arc<HoldTimes>,
    gateways: Arc<Gateways>,
    /// Those in force.
    limits: RefCell<Arc<LimitTable>>,
    /// Given back and not yet taken back, by place.
    turns: [Turns; 2],
    /// What the store did not take back yet.
    backlog: Backlog,
    leases: RefCell<Slab<Lease>>,
    /// When the renewal looks at the leases next; `None` while there are none.
    planned: Cell<Option<Instant>>,
    /// A lease has come that is due before that.
    sooner: Notify,
    /// Calls under way that nobody waits for.
    pending: Cell<usize>,
    /// Another store is in force.
    retired: Cell<bool>,
    /// Of tasks that failed.
    restarts: IntCounter,
}

/// Where a charge was made, and is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargedAt {
    Store,
    Local,
}

struct Lease {
    check: Check,
    place: ChargedAt,
    since: Instant,
    every: Duration,
    due: Instant,
}

/// A lease among those of its worker.
#[derive(Clone, Copy, Debug)]
pub struct LeaseId(usize);

/// Leases renewed by one call, at most.
const RENEWED_AT_ONCE: usize = 256;
/// [`Rule::work`](super::algo::Rule::work) of one renewal call, at most: about 5 ms of Redis.
const RENEWAL_WORK: i64 = 1000;
/// Longest pause before a failed renewal is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// Leases due this soon are renewed along with those that are due.
const ALONG: Duration = Duration::from_millis(100);

impl Desk {
    pub fn new(store: Store, local: Arc<Memory>, hold_times: Arc<HoldTimes>, metrics: &Metrics) -> Rc<Desk> {
        Rc::new(Desk {
            store,
            local,
            hold_times,
            gateways: metrics.gateways.clone(),
            limits: RefCell::default(),
            turns: Default::default(),
            backlog: Backlog::new(metrics),
            leases: RefCell::default(),
            planned: Cell::new(None),
            sooner: Notify::new(),
            pending: Cell::new(0),
            retired: Cell::new(false),
            restarts: metrics.store_task_restarts.clone(),
        })
    }

    /// Calls under way that nobody waits for: a worker ends after them.
    pub fn pending(&self) -> usize {
        self.pending.get()
    }

    /// Another store is in force: this one is not kept for what it does not take.
    pub fn retire(&self) {
        self.retired.set(true);
    }

    /// Another config is in force: charges are corrected and leases renewed as its limits say.
    pub fn follow(&self, limits: &Arc<LimitTable>) {
        *self.limits.borrow_mut() = limits.clone();
        self.hold_times.follow(limits);
        let now = Instant::now();
        for (_, lease) in self.leases.borrow_mut().iter_mut() {
            self.bring_up_to_date(&mut lease.check, lease.place);
            lease.every = every(&lease.check).unwrap_or(lease.every);
            lease.due = lease.due.min(now + lease.every);
        }
        self.sooner.notify_one();
    }

    /// Gives the check the numbers its key has now, unless its charge is known by those it was made by.
    /// A limit that is gone, or counts in another way, leaves it those.
    fn bring_up_to_date(&self, check: &mut Check, place: ChargedAt) {
        if check.rule.own_numbers() {
            return;
        }
        let limits = self.limits.borrow();
        let Some(limit) = limits.named(&check.limit.name).filter(|limit| limit.rule.name() == check.rule.name()) else {
            return;
        };
        let own = check.whose.as_deref().and_then(|whose| limit.overrides.find(whose));
        let rule = match own {
            None => limit.rule.clone(),
            Some(Budget::Rule(rule)) => rule,
            Some(Budget::Blocked | Budget::Unlimited) => return,
        };
        check.rule = match place {
            ChargedAt::Store => rule,
            ChargedAt::Local => local_rule(&rule, &self.gateways),
        };
    }

    /// Adjusts every charge where it was made. What the store does not take is brought again, unless it may
    /// have happened; but a lease can be let go of twice.
    pub fn adjust(self: &Rc<Self>, mut corrections: Vec<(Check, ChargedAt)>) {
        if corrections.is_empty() {
            return;
        }
        corrections.iter_mut().for_each(|(check, place)| self.bring_up_to_date(check, *place));
        let (local, stored): (Vec<_>, Vec<_>) =
            corrections.into_iter().partition(|(_, place)| *place == ChargedAt::Local);
        self.adjust_local(local.into_iter().map(|(check, _)| check).collect());
        let stored: Vec<Check> = stored.into_iter().map(|(check, _)| check).collect();
        if !stored.is_empty() && self.store.run_at_once(Op::Adjust, &stored).is_none() {
            let (call, stored) = (OpenCall::begin(self), Rc::new(stored));
            spawn_local(async move {
                if let Err(kind) = call.0.store.adjust(&stored).await {
                    call.0.bring_again(Rc::unwrap_or_clone(stored), kind);
                }
            });
        }
    }

    /// What the store did not take for `kind`.
    fn bring_again(self: &Rc<Self>, checks: Vec<Check>, kind: ErrorKind) {
        let alone = checks.len() == 1;
        // A lease can be released twice. Of several other corrections, some may have been made.
        let repeatable = alone && !kind.is_unsure();
        let again = checks.into_iter().filter(|check| repeatable || check.rule.lease_ms().is_some());
        again.for_each(|check| self.bring_later(check));
    }

    fn bring_later(self: &Rc<Self>, check: Check) {
        if self.backlog.keep(check) {
            self.keep_doing(|desk| async move { desk.backlog.bring(&desk.store, &desk.retired).await });
        }
    }

    /// Does `work` until it is done, anew if it fails, as one of the calls that a worker ends after. What it had
    /// at hand when it failed may be lost, what waits for it is not.
    fn keep_doing<Work>(self: &Rc<Self>, work: impl Fn(Rc<Desk>) -> Work + 'static)
    where
        Work: Future<Output = ()> + 'static,
    {
        let call = OpenCall::begin(self);
        spawn_local(async move { revive(call.0.restarts.clone(), || work(call.0.clone())).await });
    }

    /// Gives back a turn that nobody waits for any more, and that has passed when it is `over`.
    pub fn give_turn_back(self: &Rc<Self>, mut check: Check, place: ChargedAt, over: Instant) {
        self.bring_up_to_date(&mut check, place);
        let (limit, key, now) = (check.limit.id, check.key.clone(), Instant::now());
        let turns = &self.turns[place as usize];
        if !turns.keep(Turn { check, over }, now) {
            return;
        }
        if place == ChargedAt::Store && self.store.now_at_once().is_none() {
            self.keep_doing(move |desk| {
                let key = key.clone();
                async move { desk.bring_turns(limit, &key).await }
            });
            return;
        }
        let brought = turns.take(limit, &key, now);
        let checks = checks(&brought);
        let decision = match place {
            ChargedAt::Local => Some(self.local.run_now(Op::Adjust, &checks)),
            ChargedAt::Store => self.store.run_at_once(Op::Adjust, &checks),
        };
        turns.end(limit, &key, brought, decision.as_ref());
    }

    async fn bring_turns(&self, limit: u64, key: &str) {
        let turns = &self.turns[ChargedAt::Store as usize];
        loop {
            // Requests that are turned away together come together.
            yield_now().await;
            let brought = turns.take(limit, key, Instant::now());
            let outcome = match brought.is_empty() {
                true => None,
                false => self.store.adjust(&Rc::new(checks(&brought))).await.ok(),
            };
            if !turns.end(limit, key, brought, outcome.as_ref()) {
                return;
            }
        }
    }

    /// Lets go of leases that may have been taken without a word of it.
    pub fn release(self: &Rc<Self>, checks: &[Check]) {
        for check in checks.iter().filter(|check| check.cost > 0 && check.rule.lease_ms().is_some()) {
            let mut check = Check { cost: -check.cost, ..check.clone() };
            self.bring_up_to_date(&mut check, ChargedAt::Store);
            self.bring_later(check);
        }
    }

    fn adjust_local(&self, checks: Vec<Check>) {
        if !checks.is_empty() {
            self.local.run_now(Op::Adjust, &checks);
        }
    }

    /// Renews the lease of a charge with its whole cost until it is forgotten. `None` if the charge does not
    /// end by itself, or holds nothing.
    pub fn renew(self: &Rc<Self>, check: &Check, place: ChargedAt) -> Option<LeaseId> {
        let every = every(check).filter(|_| check.cost > 0)?;
        let check = check.clone();
        let since = Instant::now();
        let due = since + every;
        let id = self.leases.borrow_mut().insert(Lease { check, place, since, every, due });
        match self.planned.get() {
            Some(planned) if due < planned => self.sooner.notify_one(),
            Some(_) => {}
            None => {
                self.planned.set(Some(due));
                // Nobody else renews these leases: if it fails, it must not have been for good.
                let desk = self.clone();
                spawn_local(revive(self.restarts.clone(), move || renewal(desk.clone())));
            }
        }
        Some(LeaseId(id))
    }

    /// Its request has ended.
    pub fn forget(&self, lease: LeaseId) {
        if let Some(lease) = self.leases.borrow_mut().try_remove(lease.0) {
            self.hold_times.note(lease.check.limit.id, lease.since.elapsed());
        }
    }

    /// When the next lease is due.
    fn next_due(&self) -> Option<Instant> {
        self.leases.borrow().iter().map(|(_, lease)| lease.due).min()
    }

    /// Renews the leases that are due, without waiting for the store.
    fn renew_due(self: &Rc<Self>) {
        let until = Instant::now() + ALONG;
        let (mut local, mut stored) = (Vec::new(), vec![Renewals::default()]);
        for (id, lease) in self.leases.borrow_mut().iter_mut().filter(|(_, lease)| lease.due <= until) {
            lease.due = Instant::now() + lease.every;
            match lease.place {
                ChargedAt::Local => local.push(lease.check.clone()),
                ChargedAt::Store => {
                    if stored.last().is_none_or(|call| !call.has_capacity(&lease.check)) {
                        stored.push(Renewals::default());
                    }
                    if let Some(call) = stored.last_mut() {
                        call.add(id, lease.check.clone());
                    }
                }
            }
        }
        self.adjust_local(local);
        stored.into_iter().filter(|call| !call.ids.is_empty()).for_each(|call| self.renew_stored(call));
    }

    fn renew_stored(self: &Rc<Self>, Renewals { ids, checks, .. }: Renewals) {
        if self.store.run_at_once(Op::Adjust, &checks).is_some() {
            return;
        }
        let call = OpenCall::begin(self);
        spawn_local(async move {
            let outcomes = call.0.store.adjust_each(&Rc::new(checks)).await;
            let failed = ids.into_iter().zip(outcomes).filter(|(_, outcome)| outcome.is_err());
            call.0.renew_again(failed.map(|(id, _)| id));
        });
    }

    /// Renews leases again soon, because the store may not have renewed them. As a renewal restores what was lost,
    /// this goes on for as long as their requests run.
    fn renew_again(&self, failed: impl Iterator<Item = usize>) {
        // Workers and gateways that lost the same store do not come back in step.
        let due = Instant::now() + RETRY.mul_f64(rand::random_range(0.5..1.0));
        let mut leases = self.leases.borrow_mut();
        for id in failed {
            // The request may have ended meanwhile. Another one with the same id is renewed early.
            if let Some(lease) = leases.get_mut(id) {
                lease.due = lease.due.min(due);
                self.sooner.notify_one();
            }
        }
    }
}

/// One call to the store that renews leases.
#[derive(Default)]
struct Renewals {
    ids: Vec<usize>,
    /// In the order of `ids`.
    checks: Vec<Check>,
    work: i64,
}

impl Renewals {
    fn work_of(check: &Check) -> i64 {
        check.rule.work(check.limit.cost.most(), true)
    }

    /// Whether it can renew one more lease. One that exceeds the bound alone gets a call of its own.
    fn has_capacity(&self, check: &Check) -> bool {
        let work = self.work.saturating_add(Renewals::work_of(check));
        self.ids.is_empty() || self.ids.len() < RENEWED_AT_ONCE && work <= RENEWAL_WORK
    }

    fn add(&mut self, id: usize, check: Check) {
        self.work = self.work.saturating_add(Renewals::work_of(&check));
        self.ids.push(id);
        self.checks.push(check);
    }
}

fn checks(turns: &[Turn]) -> Vec<Check> {
    turns.iter().map(|turn| turn.check.clone()).collect()
}

/// Time between two renewals of the lease that the check stands for, if it is one.
fn every(check: &Check) -> Option<Duration> {
    let life_ms = u64::try_from(check.rule.lease_ms()?).unwrap_or(0);
    Some(Duration::from_millis(life_ms) / RENEWALS)
}

/// Renews leases as they fall due, until there are none.
async fn renewal(desk: Rc<Desk>) {
    while let Some(due) = desk.next_due() {
        desk.planned.set(Some(due));
        tokio::select! {
            () = sleep_until(due) => {}
            () = desk.sooner.notified() => continue,
        }
        desk.renew_due();
    }
    desk.planned.set(None);
}

/// Counted among the pending ones until dropped.
pub struct OpenCall(Rc<Desk>);

impl OpenCall {
    pub fn begin(desk: &Rc<Desk>) -> OpenCall {
        desk.pending.set(desk.pending.get() + 1);
        OpenCall(desk.clone())
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::limit::algo::{Rule, concurrency::Concurrency};
    use crate::limit::limits::{Limit, Mode};

    const LEASE_MS: i64 = 1200;

    fn slot() -> Check {
        let rule = Rule::Concurrency(Concurrency { in_flight: 1, lease_ms: LEASE_MS });
        Check::new(&Limit::bare("slots", rule, Mode::Enforce), "key".to_owned(), 1)
    }

    #[test]
    #[expect(clippy::await_holding_refcell_ref, reason = "that is the fault")]
    fn a_renewal_that_fails_is_started_anew() {
        let metrics = Metrics::new().unwrap();
        let memory = Arc::new(Memory::new(1000));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let desk = Desk::new(Store::Memory(memory.clone()), memory.clone(), Arc::default(), &metrics);
            let mut held = slot();
            let taken = memory.run_now(Op::Take, &[held.clone()]);
            held.tag = taken.answers[0].receipt;
            let lease = desk.renew(&held, ChargedAt::Store).unwrap();
            // Whoever changes the leases meanwhile fails.
            let looked_at = desk.leases.borrow();
            let failed = async {
                while metrics.store_task_restarts.get() == 0 {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(Duration::from_secs(5), failed).await.expect("the renewal has failed and is started anew");
            drop(looked_at);
            sleep(Duration::from_millis(1700)).await;
            assert!(!memory.run_now(Op::Peek, &[slot()]).admitted, "its slot went to another");
            desk.forget(lease);
            let ended = async {
                while desk.planned.get().is_some() || !memory.run_now(Op::Peek, &[slot()]).admitted {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(Duration::from_secs(5), ended).await.expect("the lease ends, and with it the renewal");
        });
    }
}
