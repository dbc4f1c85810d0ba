//! Requests leases of hot keys from the store, and returns the units that are left when they end. No request waits for
//! this: the units of a lease are there when the store has granted it, and until then the store decides each request.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::limiting::charges::ChargedAt;
use crate::limiting::charges::manager::{ChargeManager, PendingCall};
use crate::limiting::clock;
use crate::limiting::decision::{Check, Op};
use crate::limiting::hot_keys::{GrantedLease, HotKey, LeaseGrant, UnitLease};

/// A key is examined for being idle after this time without a new lease.
const IDLE: Duration = Duration::from_secs(1);

/// Requests the lease of `grant` for the key of `check`, in the background.
pub fn request_lease(manager: &Rc<ChargeManager>, grant: LeaseGrant, check: &Check) {
    let check = Check { cost: grant.size.debit, override_values: None, ..check.clone() };
    // A worker that stops waits until the lease has ended and what is left of it is returned.
    let call = PendingCall::begin(manager);
    let manager = manager.clone();
    spawn_local(async move {
        let key = grant.key().clone();
        if let Some(granted) = take_lease(&manager, grant, check.clone()).await {
            end_lease(&manager, granted, check, &key).await;
        }
        drop(call);
        sleep(IDLE).await;
        if let Some(hot_keys) = manager.store.hot_keys() {
            hot_keys.remove_idle(&key, clock::uptime_ms());
        }
    });
}

/// Debits the units of a lease.
async fn take_lease(manager: &Rc<ChargeManager>, grant: LeaseGrant, check: Check) -> Option<GrantedLease> {
    // The lease counts from here on, so it ends no later than the store would have it.
    let sent_ms = clock::uptime_ms();
    let outcome = manager.store.decide(Op::Take, &Rc::new(vec![check])).await;
    match outcome.ok().and_then(|decision| decision.answers.first().copied()) {
        Some(answer) => grant.finish(&answer, sent_ms, clock::uptime_ms()),
        None => {
            grant.fail(clock::uptime_ms());
            None
        }
    }
}

/// Waits for the end of a lease, and returns what is left of it and of the lease that it replaced.
async fn end_lease(manager: &Rc<ChargeManager>, granted: GrantedLease, check: Check, key: &HotKey) {
    let GrantedLease { lease, replaced } = granted;
    if let Some((receipt, units)) = replaced {
        return_units(manager, &check, receipt, units);
    }
    let UnitLease { ends_ms, receipt, .. } = lease;
    sleep(Duration::from_millis(ends_ms.saturating_sub(clock::uptime_ms()))).await;
    return_units(manager, &check, receipt, key.end_lease(&lease, clock::uptime_ms()));
}

fn return_units(manager: &Rc<ChargeManager>, check: &Check, receipt: i64, units: i64) {
    if units > 0 {
        let refund = Check { cost: -units, tag: receipt, ..check.clone() };
        manager.send_corrections(vec![(refund, ChargedAt::Store)]);
    }
}
