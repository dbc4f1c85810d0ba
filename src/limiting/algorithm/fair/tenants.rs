//! The tenants of a budget: their part of its state, and decisions from the point of view of one of them. Twin of the
//! same functions in `lua/fair.lua`.

use std::cell::Cell;

use crate::limiting::algorithm::exact::div_ceil;
use crate::limiting::algorithm::fair::{BUCKETS, Fair, RECEIPT, SHARED, TenantStanding};
use crate::limiting::algorithm::records::{RecordAlgorithm, RecordsState};
use crate::limiting::algorithm::refill::RefillRecord;
use crate::limiting::algorithm::token_bucket::{BucketLevel, marks_of};
use crate::limiting::algorithm::{Corrected, Step, records};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};

/// 1 / e: the part of the reserve that is always left to tenants within their share.
const GUARANTEED: f64 = 0.367_879_441_171_442_33;

/// State of a budget: the pool and the tenants, ordered by id.
#[derive(Clone, Debug, PartialEq)]
pub struct FairState {
    pub pool: RecordsState<RefillRecord>,
    tenants: Box<[Tenant]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Tenant {
    id: i64,
    tat_us: i64,
    weight: i64,
}

impl FairState {
    /// Formats the number of tenants, their weights, the pool, and the tenants.
    pub fn text(&self) -> String {
        let weight: i64 = self.tenants.iter().map(|tenant| tenant.weight).sum();
        let pool = records::text(&self.pool, |record| record.text(5));
        let mut text = format!("{} {weight}|{pool}", self.tenants.len());
        for Tenant { id, tat_us, weight } in &self.tenants {
            text.push_str(&format!(";{id} {tat_us} {weight}"));
        }
        text
    }
}

/// The budget from the point of view of one tenant. It implements the decisions by one record of the pool.
pub struct TenantView<'a> {
    fair: &'a Fair,
    tenants: &'a [Tenant],
    tenant: i64,
    /// Changes of a decision to the tenants.
    change: Cell<Option<TenantChange>>,
}

/// A change of the tenants: those with a TAT up to `edge_us` are removed, and `id` gets a new TAT, if there is one.
#[derive(Clone, Copy)]
struct TenantChange {
    edge_us: i64,
    id: i64,
    tat_us: Option<i64>,
}

/// The position of the tenant among all tenants at one time.
struct TenantPosition {
    /// The tenant, or the backlog that it shares.
    id: i64,
    is_shared: bool,
    /// The tenant is active, so it has a TAT.
    tat_us: Option<i64>,
    /// How far the TAT is ahead, at most `tau`.
    backlog: i64,
    /// Number and weights of all active tenants, including this one.
    active: i64,
    total: i64,
    /// Tenants with a TAT up to this time are inactive.
    edge_us: i64,
    clock_us: i64,
}

impl<'a> TenantView<'a> {
    pub fn new(fair: &'a Fair, state: Option<&'a FairState>, tenant: i64) -> TenantView<'a> {
        let tenants = state.map_or(&[][..], |state| &state.tenants);
        TenantView { fair, tenants, tenant, change: Cell::new(None) }
    }

    /// Looks the tenant up at `clock_ms`. If the time of the pool was wrong, those of the tenants are useless.
    fn share_at(&self, clock_ms: i64, is_repaired: bool) -> TenantPosition {
        let Fair { max_active, weight, .. } = *self.fair;
        let clock_us = clock_ms * 1000;
        let edge_us = if is_repaired { i64::MAX } else { clock_us - self.fair.active_ms * 1000 };
        let (mut active, mut total) = (0, 0);
        for tenant in self.tenants.iter().filter(|tenant| tenant.tat_us > edge_us) {
            active += 1;
            total += tenant.weight;
        }
        let find = |id: i64| self.tenants.binary_search_by_key(&id, |tenant| tenant.id).ok();
        // A tenant that is still stored keeps its own backlog even while it is inactive. Otherwise, it could share a
        // backlog with another tenant at the time that `Retry-After` promised.
        let is_shared = active >= max_active && find(self.tenant).is_none();
        let id = if is_shared { self.tenant % BUCKETS } else { self.tenant };
        let found = find(id).map(|index| self.tenants[index]).filter(|tenant| tenant.tat_us > edge_us);
        if let Some(own) = found {
            active -= 1;
            total -= own.weight;
        }
        let tat_us = found.map(|own| own.tat_us);
        let backlog = (tat_us.unwrap_or(0) - clock_us).clamp(0, self.fair.tau());
        TenantPosition { id, is_shared, tat_us, backlog, active: active + 1, total: total + weight, edge_us, clock_us }
    }

    /// Returns after how many ms `need` fits, if no other request arrives: others become inactive in the meantime.
    fn wait(&self, share: &TenantPosition, need: i64, free: i64) -> i64 {
        let fair = self.fair;
        let mut total = share.total;
        let mut wait = fair.wait_for_fit(need, free, share.backlog, total);
        // The latest TAT of a tenant that is inactive before that.
        let latest = share.clock_us + (wait - 1) * 1000 - fair.active_ms * 1000;
        let is_leaving =
            |tenant: &&Tenant| tenant.id != share.id && tenant.tat_us > share.edge_us && tenant.tat_us <= latest;
        let mut leaving: Vec<Tenant> = self.tenants.iter().filter(is_leaving).copied().collect();
        leaving.sort_unstable_by_key(|tenant| tenant.tat_us);
        for Tenant { tat_us, weight, .. } in leaving {
            let left = div_ceil(tat_us + fair.active_ms * 1000 - share.clock_us, 1000);
            if left >= wait {
                break;
            }
            total -= weight;
            wait = left.max(fair.wait_for_fit(need, free, share.backlog, total));
        }
        wait
    }

    pub fn next_state(&self, pool: RecordsState<RefillRecord>) -> FairState {
        let Some(TenantChange { edge_us, id, tat_us }) = self.change.get() else {
            return FairState { pool, tenants: self.tenants.into() };
        };
        let mut tenants = Vec::with_capacity(self.tenants.len() + 1);
        tenants.extend(self.tenants.iter().filter(|tenant| tenant.tat_us > edge_us && tenant.id != id));
        if let Some(tat_us) = tat_us {
            let index = tenants.partition_point(|tenant: &Tenant| tenant.id < id);
            tenants.insert(index, Tenant { id, tat_us, weight: self.fair.weight });
        }
        FairState { pool, tenants: tenants.into() }
    }
}

impl RecordAlgorithm for TenantView<'_> {
    type Record = RefillRecord;

    fn matches(&self, record: &RefillRecord, now: i64) -> bool {
        self.fair.pool.matches(record, now)
    }

    fn decide_one(&self, record: Option<&RefillRecord>, now: i64, cost: i64) -> Step<RefillRecord> {
        let fair = self.fair;
        let BucketLevel { record: before, full, is_repaired, .. } = fair.pool.level(record, now);
        let RefillRecord { mut used, at_ms: at, .. } = before;
        let share = self.share_at(at.max(now), is_repaired);
        let fits = cost <= fair.most();
        let need = cost.min(fair.most()) * fair.pool.per_ms;
        let increment = fair.increment(need, share.total);
        let free = full - used;
        let withheld = fair.withheld(share.backlog, increment);
        let admitted = cost == 0 || fits && need + withheld <= free;

        let mut retry_ms = 0;
        if !fits {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = at.max(now) + self.wait(&share, need, free) - now;
        }
        let mut backlog = share.backlog;
        if admitted {
            used += need;
            backlog += increment.filter(|increment| backlog + increment <= fair.tau()).unwrap_or(0);
        }
        let reset_ms = at + div_ceil(used, before.gain()) - now;
        let tat_us = share.clock_us + backlog;
        let renews = fits && share.tat_us != Some(tat_us);
        let store = cost > 0 && (admitted || is_repaired || renews);
        let next = || {
            self.change.set(Some(TenantChange { edge_us: share.edge_us, id: share.id, tat_us: Some(tat_us) }));
            match record {
                Some(record) if !admitted && !is_repaired => record.clone(),
                _ if admitted => RefillRecord {
                    marks: before.mark_charge(marks_of(record, is_repaired), fair.pool.is_marked()),
                    ..before.with_usage(used, at)
                },
                _ => before.with_usage(used, at),
            }
        };
        let is_within = || need + withheld <= guaranteed_units(fair.reserve_units());
        let active = (!share.is_shared).then_some(share.active.min(SHARED - 1));
        let active_code = active.unwrap_or(SHARED);
        let receipt = if cost == 0 {
            let permille = (backlog / (fair.tau() / 1000).max(1)).min(1000);
            TenantStanding { total_weight: share.total, permille, active }.receipt()
        } else if admitted {
            at.max(now) * RECEIPT + active_code
        } else {
            i64::from(fits && is_within()) * RECEIPT + active_code
        };
        Step {
            answer: Answer {
                admitted,
                remaining: fair.remaining(full - used, backlog, share.total),
                retry_ms,
                reset_ms: reset_ms.max(0),
                receipt,
                ban: BanAnswer::None,
            },
            next: store.then(|| (next(), fair.pool.stored_for(reset_ms).max(fair.retention_ms()))),
        }
    }

    /// Corrects a charge; the receipt contains its time. What the pool gets back is also taken from the backlog of the
    /// tenant. A further charge adds to the backlog, at most up to `tau`.
    fn adjust_one(
        &self,
        record: Option<&RefillRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<RefillRecord>> {
        let fair = self.fair;
        let (next, ttl, more) = fair.pool.adjust_one(record, now, delta, receipt.div_euclid(RECEIPT))?;
        let BucketLevel { record: before, is_repaired, .. } = fair.pool.level(record, now);
        let share = self.share_at(before.at_ms.max(now), is_repaired);
        let backlog = if delta < 0 {
            (share.backlog - fair.decrement(before.used - next.used, share.total)).max(0)
        } else {
            let increment = fair.increment(next.used - before.used, share.total).unwrap_or(fair.tau());
            (share.backlog + increment).min(fair.tau())
        };
        let is_kept = receipt >= 0 && (delta > 0 || share.tat_us.is_some());
        let tat_us = is_kept.then_some(share.clock_us + backlog);
        self.change.set(Some(TenantChange { edge_us: share.edge_us, id: share.id, tat_us }));
        Some((next, ttl.max(fair.retention_ms()), more))
    }

    fn convert(&self, record: &RefillRecord, now: i64) -> (RefillRecord, i64) {
        self.fair.pool.convert(record, now)
    }

    fn ttl(&self, record: &RefillRecord, now: i64) -> i64 {
        self.fair.pool.ttl(record, now).max(self.fair.retention_ms())
    }
}

/// Returns the level below which the pool never falls once the reserve was full and while the same tenants are active.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^50, and rounded down")]
fn guaranteed_units(reserve_units: i64) -> i64 {
    (reserve_units as f64 * GUARANTEED).floor() as i64
}
