//! One hot key: its leases, how many decisions it has, and when it needs the next lease.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limiting::algorithm::lease_basis::LeaseTerms;
use crate::limiting::algorithm::{LeaseBasis, Rule};
use crate::limiting::answer::{Answer, BanAnswer};
use crate::limiting::decision::Check;
use crate::limiting::hot_keys::slot::{LeaseSlot, SlotContent};
use crate::limiting::hot_keys::terms::{KeyUse, LeaseSize};
use crate::telemetry::metrics::LeaseCounts;

/// A key is no longer hot below `hot_after` divided by this number, so that a key near the threshold does not
/// alternate.
const COOL_BELOW: i64 = 2;
/// Demand is measured over at least this time, in ms.
const MEASURED_MS: u64 = 50;
/// Value of [`HotKey::left`] before the store has answered.
const UNKNOWN: i64 = -1;

/// A key with leases. All workers of this process share it. Times are ms of
/// [`clock::uptime_ms`](crate::limiting::clock).
pub struct HotKey {
    /// The state key.
    pub key: Box<str>,
    /// The rule that the leases were debited under. With another rule they are not spent.
    rule: Arc<Rule>,
    basis: LeaseBasis,
    terms: LeaseTerms,
    slots: [LeaseSlot; 2],
    /// The lease that each slot got last.
    leases: Mutex<[Option<UnitLease>; 2]>,
    /// Units of all decisions since the key became hot.
    demanded: AtomicU64,
    /// Units that the limit had left when the store last answered, or [`UNKNOWN`].
    left: AtomicI64,
    /// When the whole quota is available again, by the last answer.
    full_at_ms: AtomicU64,
    /// Size of the last lease.
    granted: AtomicU64,
    /// No lease is requested before.
    pause_until_ms: AtomicU64,
    /// A request for a lease is under way.
    is_requesting: AtomicBool,
    /// Incremented to end all leases, including those that are being granted.
    epoch: AtomicU64,
    pace: Mutex<Pace>,
    counts: Arc<LeaseCounts>,
}

/// How fast a key uses units.
#[derive(Clone, Copy, Debug)]
struct Pace {
    since_ms: u64,
    demanded: u64,
    per_second: i64,
}

/// One lease that was granted.
#[derive(Clone, Copy, Debug)]
pub struct UnitLease {
    slot: usize,
    pub ends_ms: u64,
    /// When the window of the charge ends; `None` for a bucket, whose unspent units are not returned.
    window_ends_ms: Option<u64>,
    /// Receipt of the charge.
    pub receipt: i64,
}

/// A lease that was just granted.
#[derive(Debug)]
pub struct GrantedLease {
    pub lease: UnitLease,
    /// Receipt and unspent units of the lease that it replaced, if these have to be returned.
    pub replaced: Option<(i64, i64)>,
}

/// The right to request one lease. At most one exists per key.
pub struct LeaseGrant {
    key: Arc<HotKey>,
    pub size: LeaseSize,
    epoch: u64,
}

/// Units that were spent for a request. Unless they are committed, they go back when this value is dropped.
pub struct SpentUnits {
    key: Arc<HotKey>,
    slot: usize,
    units: u64,
    ends_ms: u64,
    answer: Answer,
    is_committed: bool,
}

impl HotKey {
    /// Makes a hot key for `check`, at `now_ms`. Returns `None` if its limit or rule has no leases.
    pub fn new(check: &Check, counts: Arc<LeaseCounts>, now_ms: u64) -> Option<HotKey> {
        let terms = check.limit.lease?;
        let basis = check.rule.lease_basis().filter(|basis| basis.can_lease(terms.horizon_ms))?;
        Some(HotKey {
            key: check.key.as_str().into(),
            rule: check.rule.clone(),
            basis,
            terms,
            slots: Default::default(),
            leases: Mutex::default(),
            demanded: AtomicU64::new(0),
            left: AtomicI64::new(UNKNOWN),
            full_at_ms: AtomicU64::new(now_ms),
            granted: AtomicU64::new(0),
            pause_until_ms: AtomicU64::new(0),
            is_requesting: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            pace: Mutex::new(Pace { since_ms: now_ms, demanded: 0, per_second: terms.hot_after }),
            counts,
        })
    }

    /// Returns whether the leases are of the limit and rule that `check` has now.
    pub fn is_for(&self, check: &Check) -> bool {
        let same_rule = Arc::ptr_eq(&self.rule, &check.rule) || *self.rule == *check.rule;
        same_rule && check.limit.lease == Some(self.terms) && *self.key == *check.key
    }

    /// Counts a decision of `units`.
    pub fn count_demand(&self, units: u64) {
        self.demanded.fetch_add(units, Ordering::Relaxed);
    }

    /// Spends `units` of one lease at `now_ms`. The lease that ends first is used first.
    pub fn spend(self: &Arc<Self>, units: u64, now_ms: u64) -> Option<SpentUnits> {
        let [first, second] = &self.slots;
        let order = if first.content().ends_ms <= second.content().ends_ms { [0, 1] } else { [1, 0] };
        let (slot, left) = order.into_iter().find_map(|slot| Some((slot, self.slots[slot].spend(units, now_ms)?)))?;
        let unspent = left.units + self.slots[1 - slot].content().spendable(now_ms);
        let remaining = self.left.load(Ordering::Relaxed).max(0).saturating_add(to_signed(unspent));
        let reset_ms = self.full_at_ms.load(Ordering::Relaxed).saturating_sub(now_ms);
        let answer = Answer {
            admitted: true,
            remaining,
            retry_ms: 0,
            reset_ms: to_signed(reset_ms),
            receipt: 0,
            ban: BanAnswer::None,
        };
        Some(SpentUnits { key: self.clone(), slot, units, ends_ms: left.ends_ms, answer, is_committed: false })
    }

    /// Returns the units that this gateway could still spend at `now_ms`.
    pub fn unspent(&self, now_ms: u64) -> u64 {
        self.slots.iter().map(|slot| slot.content().spendable(now_ms)).sum()
    }

    /// Records the response of the store to a decision of the key at `now_ms`.
    pub fn record_answer(&self, answer: &Answer, now_ms: u64) {
        self.left.store(answer.remaining, Ordering::Relaxed);
        self.full_at_ms.store(now_ms.saturating_add(answer.reset_ms.max(0).unsigned_abs()), Ordering::Relaxed);
    }

    /// Returns the right to request a lease at `now_ms`, if the key needs one and nobody else requests it. `gateways`
    /// is the number of gateways that share the limit.
    pub fn begin_grant(self: &Arc<Self>, gateways: i64, now_ms: u64) -> Option<LeaseGrant> {
        let unspent = self.unspent(now_ms);
        let is_due = unspent * 2 <= self.granted.load(Ordering::Relaxed)
            && now_ms >= self.pause_until_ms.load(Ordering::Relaxed)
            && self.left.load(Ordering::Relaxed) != UNKNOWN
            && self.next_size(i64::MAX, gateways, now_ms).is_some();
        if !is_due || self.is_requesting.swap(true, Ordering::AcqRel) {
            return None;
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut grant = LeaseGrant { key: self.clone(), size: LeaseSize { debit: 0, units: 0 }, epoch };
        let demand = self.lock_pace().measure(self.demanded.load(Ordering::Relaxed), now_ms);
        if demand * COOL_BELOW < self.terms.hot_after {
            return None;
        }
        grant.size = self.next_size(demand, gateways, now_ms)?;
        Some(grant)
    }

    /// Returns the size of the next lease at a `demand` in units per second.
    fn next_size(&self, demand: i64, gateways: i64, now_ms: u64) -> Option<LeaseSize> {
        let left = self.left.load(Ordering::Relaxed);
        let full_in_ms = to_signed(self.full_at_ms.load(Ordering::Relaxed).saturating_sub(now_ms));
        let unspent = to_signed(self.unspent(now_ms));
        self.terms.size(&self.basis, &KeyUse { demand, left, full_in_ms, unspent, gateways })
    }

    /// Returns whether the key had few decisions recently and has no units to spend, so that it can be forgotten.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        let mut pace = self.lock_pace();
        let is_measured = now_ms.saturating_sub(pace.since_ms) >= MEASURED_MS;
        let demand = pace.measure(self.demanded.load(Ordering::Relaxed), now_ms);
        is_measured && demand * COOL_BELOW < self.terms.hot_after && self.unspent(now_ms) == 0
    }

    /// Ends a lease, and returns the units that have to be returned to the store, for its receipt.
    pub fn end_lease(&self, lease: &UnitLease, now_ms: u64) -> i64 {
        self.release(lease, self.slots[lease.slot].take_rest(lease.ends_ms), now_ms)
    }

    /// Counts the `rest` of an ended lease as returned or expired. Returns the units to return.
    fn release(&self, lease: &UnitLease, rest: u64, now_ms: u64) -> i64 {
        let is_returned = lease.window_ends_ms.is_some_and(|ends_ms| now_ms < ends_ms);
        let count = if is_returned { &self.counts.returned } else { &self.counts.expired };
        count.fetch_add(rest, Ordering::Relaxed);
        if is_returned { to_signed(rest) } else { 0 }
    }

    /// Ends all leases without returning anything, because the state of the key was changed.
    pub fn end_all(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let rest: u64 = self.slots.iter().map(|slot| slot.replace(SlotContent::default()).units).sum();
        self.counts.expired.fetch_add(rest, Ordering::Relaxed);
    }

    /// Returns whether unspent units of this key go back to the store.
    fn returns_units(&self) -> bool {
        self.basis.refill.is_none()
    }

    fn lock_pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pace {
    /// Returns the units per second, given how many the key `demanded` until `now_ms`.
    fn measure(&mut self, demanded: u64, now_ms: u64) -> i64 {
        let elapsed_ms = now_ms.saturating_sub(self.since_ms);
        if elapsed_ms >= MEASURED_MS {
            let units = demanded.wrapping_sub(self.demanded);
            let per_second = to_signed(units.saturating_mul(1000) / elapsed_ms);
            *self = Pace { since_ms: now_ms, demanded, per_second };
        }
        self.per_second
    }
}

impl LeaseGrant {
    pub fn key(&self) -> &Arc<HotKey> {
        &self.key
    }

    /// Takes the answer of the store to the charge, which was sent at `sent_ms` and answered before
    /// `now_ms`. Returns the lease, if units were debited.
    pub fn finish(self, answer: &Answer, sent_ms: u64, now_ms: u64) -> Option<GrantedLease> {
        let HotKey { basis, terms, counts, .. } = &*self.key;
        self.key.record_answer(answer, now_ms);
        if !answer.admitted {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            self.key.pause(now_ms);
            return None;
        }
        let (usable, life_ms) = basis.usable(self.size.units, answer.reset_ms, terms.horizon_ms);
        let (size, units) = (self.size.debit.unsigned_abs(), usable.unsigned_abs());
        counts.grants.fetch_add(1, Ordering::Relaxed);
        counts.granted.fetch_add(size, Ordering::Relaxed);
        counts.expired.fetch_add(size.saturating_sub(units), Ordering::Relaxed);
        let window_ends_ms = self.key.returns_units().then(|| sent_ms + answer.reset_ms.max(0).unsigned_abs());
        let content = SlotContent { units, ends_ms: sent_ms + life_ms.unsigned_abs() };
        Some(self.key.place(content, window_ends_ms, answer.receipt, self.epoch, now_ms))
    }

    /// Records that the store did not respond. The charge may have happened; then its units are lost.
    pub fn fail(self, now_ms: u64) {
        self.key.counts.failed.fetch_add(1, Ordering::Relaxed);
        self.key.pause(now_ms);
    }
}

impl HotKey {
    /// Puts a lease into the slot with fewer units, unless the leases of `epoch` have been ended.
    fn place(
        &self,
        content: SlotContent,
        window_ends_ms: Option<u64>,
        receipt: i64,
        epoch: u64,
        now_ms: u64,
    ) -> GrantedLease {
        self.granted.store(content.units, Ordering::Relaxed);
        let spendable = |slot: usize| self.slots[slot].content().spendable(now_ms);
        let slot = usize::from(spendable(0) > spendable(1));
        let lease = UnitLease { slot, ends_ms: content.ends_ms, window_ends_ms, receipt };
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = self.slots[slot].replace(content).units;
        let earlier = leases[slot].replace(lease);
        if self.epoch.load(Ordering::Acquire) != epoch {
            // The key was reset in the meantime, so it is unknown whether its state still has the charge.
            self.counts.expired.fetch_add(self.slots[slot].take_rest(content.ends_ms), Ordering::Relaxed);
        }
        drop(leases);
        let earlier = earlier.map(|earlier| (earlier.receipt, self.release(&earlier, rest, now_ms)));
        GrantedLease { lease, replaced: earlier.filter(|(_, units)| *units > 0) }
    }

    /// Requests no lease for one horizon.
    fn pause(&self, now_ms: u64) {
        let until_ms = now_ms + self.terms.horizon_ms.unsigned_abs();
        self.pause_until_ms.store(until_ms, Ordering::Relaxed);
    }
}

impl Drop for LeaseGrant {
    fn drop(&mut self) {
        self.key.is_requesting.store(false, Ordering::Release);
    }
}

impl SpentUnits {
    pub fn key(&self) -> &Arc<HotKey> {
        &self.key
    }

    /// The answer of the limit. Its `remaining` is what the limit had left when the store last answered, and what this
    /// gateway has not spent.
    pub fn answer(&self) -> Answer {
        self.answer
    }

    /// Returns the answer as if nothing had been spent, for a request that another limit refuses.
    pub fn answer_without_charge(&self) -> Answer {
        Answer { remaining: self.answer.remaining.saturating_add(to_signed(self.units)), ..self.answer }
    }

    /// Keeps the units spent: the request is admitted.
    pub fn commit(mut self) {
        self.is_committed = true;
        self.key.counts.spent.fetch_add(self.units, Ordering::Relaxed);
        self.key.counts.decisions.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for SpentUnits {
    fn drop(&mut self) {
        if !self.is_committed && !self.key.slots[self.slot].put_back(self.units, self.ends_ms) {
            self.key.counts.expired.fetch_add(self.units, Ordering::Relaxed);
        }
    }
}

fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
