//! The charge manager: everything that happens to charges after the decision. Each worker has one per store. It sends
//! corrections to the place of the charge, renews the leases of running requests, and refunds queue positions. It
//! applies the current rule of each key, from the config and the active overrides. No request ever waits for the
//! manager: its calls run in separate tasks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use prometheus::IntCounter;
use tokio::task::{spawn_local, yield_now};
use tokio::time::Instant;

use crate::limiting::answer::Answer;
use crate::limiting::charges::ChargedAt;
use crate::limiting::charges::backlog::{self, Backlog};
use crate::limiting::charges::leases::{LeaseId, Leases, Renewals};
use crate::limiting::charges::queue_refunds::{QueueRefund, QueueRefunds};
use crate::limiting::decision::{Check, ErrorKind, Op};
use crate::limiting::gateways::Gateways;
use crate::limiting::hold_times::HoldTimes;
use crate::limiting::limit::LimitTable;
use crate::limiting::overrides::table::OverrideBudget;
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::store::{Store, Stores};
use crate::limiting::supervise::restart_on_panic;
use crate::limiting::usage::recorder::DecisionRecorder;
use crate::telemetry::metrics::SettlementMetrics;

/// Manages the charges that one worker has made in one store.
pub struct ChargeManager {
    pub store: Store,
    /// The in-memory store, which decides for limits with `on_error = "local"` while the store is unavailable.
    pub local: Arc<MemoryStore>,
    pub hold_times: Arc<HoldTimes>,
    pub decisions: DecisionRecorder,
    /// Counts charges that settle by the usage of responses.
    pub settlements: SettlementMetrics,
    gateways: Arc<Gateways>,
    /// The active limits.
    limits: RefCell<Arc<LimitTable>>,
    /// Unused queue positions whose refund the store has not accepted yet, indexed by [`ChargedAt`].
    queue_refunds: [QueueRefunds; 2],
    /// Corrections that the store has not accepted yet.
    backlog: Backlog,
    leases: Leases,
    /// Number of calls under way that no request waits for.
    pending: Cell<usize>,
    /// True once another store is active.
    retired: Cell<bool>,
    /// Counts restarts of tasks that panicked.
    restarts: IntCounter,
}

impl ChargeManager {
    pub fn new(store: Store, stores: &Stores) -> Rc<ChargeManager> {
        let metrics = &stores.metrics;
        Rc::new(ChargeManager {
            store,
            local: stores.memory.clone(),
            hold_times: stores.hold_times.clone(),
            decisions: DecisionRecorder::new(&stores.usage, &stores.ledger),
            settlements: metrics.settlements.clone(),
            gateways: stores.gateways.clone(),
            limits: RefCell::default(),
            queue_refunds: Default::default(),
            backlog: Backlog::new(metrics),
            leases: Leases::default(),
            pending: Cell::new(0),
            retired: Cell::new(false),
            restarts: metrics.store.task_restarts.clone(),
        })
    }

    /// Returns the number of calls under way that no request waits for. A worker that stops waits for them.
    pub fn pending_calls(&self) -> usize {
        self.pending.get()
    }

    /// Marks the store as replaced by another one. Undelivered corrections are then kept for a shorter time.
    pub fn retire(&self) {
        self.retired.set(true);
    }

    /// Applies a new config: from now on charges are corrected and leases renewed by its `limits`.
    pub fn apply_limits(&self, limits: &Arc<LimitTable>) {
        *self.limits.borrow_mut() = limits.clone();
        self.hold_times.apply_limits(limits);
        self.leases.update(|check, place| self.update_rule(check, place));
    }

    /// Replaces the rule of the check by the current rule of its key. The rule stays if the algorithm corrects a charge
    /// by the rule that made it, if the limit no longer exists, or if it has another algorithm now.
    fn update_rule(&self, check: &mut Check, place: ChargedAt) {
        if check.rule.corrects_by_own_rule() {
            return;
        }
        let limits = self.limits.borrow();
        let Some(limit) = limits.find(&check.limit.name).filter(|limit| limit.rule.name() == check.rule.name()) else {
            return;
        };
        // The request of the charge stated the rate.
        if limit.key_rate.is_some() {
            return;
        }
        let own = check
            .override_values
            .as_deref()
            .and_then(|override_key| limit.overrides.find(override_key))
            .map(|entry| entry.budget);
        let rule = match own {
            None => limit.rule.clone(),
            Some(OverrideBudget::Rule(rule)) => rule,
            Some(OverrideBudget::Blocked | OverrideBudget::Unlimited) => return,
        };
        check.rule = match place {
            ChargedAt::Store => rule,
            ChargedAt::Local => self.gateways.local_rule(&rule),
        };
    }

    /// Sends each correction to the place of its charge. If the store fails, the corrections that are safe to repeat
    /// go to the backlog.
    pub fn send_corrections(self: &Rc<Self>, mut corrections: Vec<(Check, ChargedAt)>) {
        if corrections.is_empty() {
            return;
        }
        corrections.iter_mut().for_each(|(check, place)| self.update_rule(check, *place));
        let (local, stored): (Vec<_>, Vec<_>) =
            corrections.into_iter().partition(|(_, place)| *place == ChargedAt::Local);
        self.adjust_local(local.into_iter().map(|(check, _)| check).collect());
        let stored: Vec<Check> = stored.into_iter().map(|(check, _)| check).collect();
        if !stored.is_empty() && self.store.run_in_process(Op::Adjust, &stored).is_none() {
            let (call, stored) = (PendingCall::begin(self), Rc::new(stored));
            spawn_local(async move {
                let outcomes = call.0.store.adjust_each(&stored).await;
                call.0.keep_repeatable(Rc::unwrap_or_clone(stored), outcomes);
            });
        }
    }

    /// Resets the key of a charge (`clear_on`). A ban of the key stays. If the store does not respond, nothing is
    /// reset.
    pub fn clear_key(self: &Rc<Self>, check: Check, place: ChargedAt) {
        let checks = vec![Check { ban: None, ..check }];
        if place == ChargedAt::Local {
            self.local.run_now(Op::Reset, &checks);
        } else if self.store.run_in_process(Op::Reset, &checks).is_none() {
            let (call, checks) = (PendingCall::begin(self), Rc::new(checks));
            spawn_local(async move {
                if call.0.store.reset(&checks).await.is_err() {
                    call.0.backlog.count_lost();
                }
            });
        }
    }

    /// Keeps the failed corrections that are safe to repeat. The others are lost.
    fn keep_repeatable(self: &Rc<Self>, checks: Vec<Check>, outcomes: Vec<Result<Answer, ErrorKind>>) {
        for (check, outcome) in checks.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) => {}
                Err(kind) if backlog::is_repeatable(&check, kind) => self.adjust_later(check),
                Err(_) => self.backlog.count_lost(),
            }
        }
    }

    fn adjust_later(self: &Rc<Self>, check: Check) {
        if self.backlog.add(check) {
            self.spawn_supervised(
                |manager| async move { manager.backlog.send_all(&manager.store, &manager.retired).await },
            );
        }
    }

    /// Runs `work` as one of the calls that a stopping worker waits for, and starts it again if it panics. The entry
    /// that caused the panic may be lost, but not the entries queued behind it.
    fn spawn_supervised<Work>(self: &Rc<Self>, work: impl Fn(Rc<ChargeManager>) -> Work + 'static)
    where
        Work: Future<Output = ()> + 'static,
    {
        let call = PendingCall::begin(self);
        spawn_local(async move { restart_on_panic(call.0.restarts.clone(), || work(call.0.clone())).await });
    }

    /// Refunds a queue position whose request left before its turn. The position passes at `passes_at`; after that, a
    /// refund has no effect.
    pub fn refund_queue_position(self: &Rc<Self>, mut check: Check, place: ChargedAt, passes_at: Instant) {
        self.update_rule(&mut check, place);
        let (limit, key, now) = (check.limit.id, check.key.clone(), Instant::now());
        let refunds = &self.queue_refunds[place as usize];
        if !refunds.add(QueueRefund { check, passes_at }, now) {
            return;
        }
        if place == ChargedAt::Store && self.store.now_in_process().is_none() {
            self.spawn_supervised(move |manager| {
                let key = key.clone();
                async move { manager.refund_positions(limit, &key).await }
            });
            return;
        }
        let batch = refunds.take_batch(limit, &key, now);
        let checks = checks_of(&batch);
        let decision = match place {
            ChargedAt::Local => Some(self.local.run_now(Op::Adjust, &checks)),
            ChargedAt::Store => self.store.run_in_process(Op::Adjust, &checks),
        };
        refunds.end_batch(limit, &key, batch, decision.as_ref());
    }

    /// Sends the unused queue positions of a key to the store until no new ones arrive.
    async fn refund_positions(&self, limit: u64, key: &str) {
        let refunds = &self.queue_refunds[ChargedAt::Store as usize];
        loop {
            // Requests that leave at the same time share one call.
            yield_now().await;
            let batch = refunds.take_batch(limit, key, Instant::now());
            let outcome = match batch.is_empty() {
                true => None,
                false => self.store.adjust(&Rc::new(checks_of(&batch))).await.ok(),
            };
            if !refunds.end_batch(limit, key, batch, outcome.as_ref()) {
                return;
            }
        }
    }

    /// Releases the leases of a decision whose outcome is unknown: the store may have charged them.
    pub fn release_leases(self: &Rc<Self>, checks: &[Check]) {
        for check in checks.iter().filter(|check| check.cost > 0 && check.rule.lease_ms().is_some()) {
            let mut check = Check { cost: -check.cost, ..check.clone() };
            self.update_rule(&mut check, ChargedAt::Store);
            self.adjust_later(check);
        }
    }

    fn adjust_local(&self, checks: Vec<Check>) {
        if !checks.is_empty() {
            self.local.run_now(Op::Adjust, &checks);
        }
    }

    /// Renews the lease of a charge until [`ChargeManager::stop_renewing`]. Returns `None` if the charge does not
    /// expire or is empty.
    pub fn start_renewing(self: &Rc<Self>, check: &Check, place: ChargedAt) -> Option<LeaseId> {
        let lease = self.leases.insert(check, place)?;
        if self.leases.start_renewal() {
            // Without this task all leases of the worker would expire, so it is started again if it panics.
            let manager = self.clone();
            spawn_local(restart_on_panic(self.restarts.clone(), move || renew_leases(manager.clone())));
        }
        Some(lease)
    }

    /// Ends the renewal of a lease, because its request has ended.
    pub fn stop_renewing(&self, lease: LeaseId) {
        if let Some((limit, held)) = self.leases.remove(lease) {
            self.hold_times.record_hold(limit, held);
        }
    }

    /// Sends the renewals that are due, without waiting for the store.
    fn renew_due(self: &Rc<Self>) {
        let due = self.leases.take_due();
        self.adjust_local(due.local);
        due.stored.into_iter().for_each(|call| self.renew_stored(call));
    }

    fn renew_stored(self: &Rc<Self>, Renewals { ids, checks, .. }: Renewals) {
        if self.store.run_in_process(Op::Adjust, &checks).is_some() {
            return;
        }
        let call = PendingCall::begin(self);
        spawn_local(async move {
            let outcomes = call.0.store.adjust_each(&Rc::new(checks)).await;
            let failed = ids.into_iter().zip(outcomes).filter(|(_, outcome)| outcome.is_err());
            call.0.leases.retry(failed.map(|(id, _)| id));
        });
    }
}

/// Renews leases as they become due, until there are none.
async fn renew_leases(manager: Rc<ChargeManager>) {
    while manager.leases.wait_due().await {
        manager.renew_due();
    }
}

fn checks_of(refunds: &[QueueRefund]) -> Vec<Check> {
    refunds.iter().map(|refund| refund.check.clone()).collect()
}

/// A call that counts as pending until it is dropped.
pub struct PendingCall(Rc<ChargeManager>);

impl PendingCall {
    pub fn begin(manager: &Rc<ChargeManager>) -> PendingCall {
        manager.pending.set(manager.pending.get() + 1);
        PendingCall(manager.clone())
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::limiting::algorithm::Rule;
    use crate::limiting::algorithm::concurrency::Concurrency;
    use crate::limiting::limit::{Limit, Mode};
    use crate::telemetry::metrics::Metrics;

    const LEASE_MS: i64 = 1200;

    fn slot() -> Check {
        let rule = Rule::Concurrency(Concurrency { in_flight: 1, lease_ms: LEASE_MS });
        Check::new(&Limit::bare("slots", rule, Mode::Enforce), "key".to_owned(), 1)
    }

    #[test]
    fn a_failed_renewal_task_is_restarted() {
        let metrics = Metrics::new().unwrap();
        let memory = Arc::new(MemoryStore::new(1000));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let manager = ChargeManager::new(Store::Memory(memory.clone()), &Stores::new(memory.clone(), &metrics));
            let mut held = slot();
            let taken = memory.run_now(Op::Take, &[held.clone()]);
            held.tag = taken.answers[0].receipt;
            let lease = manager.start_renewing(&held, ChargedAt::Store).unwrap();
            let broken = manager.leases.break_changes();
            let failed = async {
                while metrics.store.task_restarts.get() == 0 {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(Duration::from_secs(5), failed).await.expect("the renewal has failed and is started anew");
            drop(broken);
            sleep(Duration::from_millis(1700)).await;
            assert!(!memory.run_now(Op::Peek, &[slot()]).admitted, "its slot went to another");
            manager.stop_renewing(lease);
            let ended = async {
                while manager.leases.is_renewing() || !memory.run_now(Op::Peek, &[slot()]).admitted {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(Duration::from_secs(5), ended).await.expect("the lease ends, and with it the renewal");
        });
    }
}
