//! Concurrency with leases: requests hold at most `in_flight` units at once. Twin of `lua/concurrency.lua`: same names,
//! same order. A unit is released when its request ends. If its gateway crashes, the unit expires `lease_ms` after its
//! last renewal. So the wait of a refusal is an upper bound: a unit may be released earlier.

use crate::limiting::algorithm::params::{Field, LINGER, OptionError, OptionValues, Param};
use crate::limiting::algorithm::tree::{ENTRIES_MAX, Tree};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Step};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};

/// Admits at most `in_flight` units at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    pub in_flight: i64,
    /// How long a unit lasts in the store after its last renewal. Longer than the configured `lease`: see
    /// `lifetime_ms`.
    pub lease_ms: i64,
}

/// State of a key: its leases. It is boxed, because the states of most algorithms are a few numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeasesState(Box<LeaseSet>);

/// All leases of a key. A lease of several units has an entry for each bit of its number: one of five units has entries
/// of weight 1 and 4. The id of an entry is the tag of the lease plus the number of the bit.
#[derive(Clone, Debug, Default, PartialEq)]
struct LeaseSet {
    /// The longest lease time that used the state; no lease is shortened below it.
    longest: i64,
    units: Tree<Unit>,
    /// Bit and expiry of each id, as one number: see [`RADIX`].
    ids: Tree<(i64, i64)>,
}

/// Bit, expiry and id of an entry.
type Unit = (i64, i64, i64);

/// Maximum number of entries of each bit that one decision removes, and that it corrects, so that no decision takes
/// long after many have expired together.
const CLEANUP_MAX: usize = 256;
/// Bit and expiry are stored as one number, `bit * RADIX + expiry`. Larger than any expiry until the
/// year 4199.
const RADIX: i64 = 1 << 46;
/// A lease time that never ends in practice. An expiry that far ahead is still less than [`RADIX`].
const FOREVER_MS: i64 = 1 << 42;
/// Default of `lease`.
const LEASE_MS: i64 = 15_000;
/// Renewals within the lifetime of a unit.
pub const RENEWALS: u32 = 4;
/// Longest time from the end of an outage to the renewals that it delayed: a connection attempt, the pause before
/// it, and the pause before the renewals are tried again.
const RECOVERY_MS: i64 = 2000;

const IN_FLIGHT: Field<i64> = Field::<i64>::integer("in_flight", 1, ENTRIES_MAX).overridable();
const LEASE: Field<i64> = Field::<i64>::duration("lease", 1000, 3_600_000);

impl Algorithm for Concurrency {
    type State = LeasesState;

    const LEADING: Param = IN_FLIGHT.param;
    const FURTHER_PARAMS: &'static [Param] = &[LEASE.param, LINGER.param];

    const NUMBER: Number = Number { name: "in_flight", words: "in_flight", least: 1 };

    const NEEDS_TAG: bool = true;

    fn build(options: &OptionValues) -> Result<Concurrency, OptionError> {
        let in_flight = options.require(&IN_FLIGHT)?;
        Ok(Concurrency { in_flight, lease_ms: lifetime_ms(options.get(&LEASE).unwrap_or(LEASE_MS)) })
    }

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        vec![self.in_flight, self.lease_ms]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.in_flight, window_ms: self.lease_ms }
    }

    /// Entries are counted bit by bit. The time when enough of them expire is found by bisection of the lease time; a
    /// correction does not need it.
    fn work(&self, most_cost: i64, correction: bool) -> i64 {
        let bits = |number: i64| i64::from(i64::BITS - number.max(1).leading_zeros());
        let weights = bits(most_cost.min(self.in_flight));
        let reads = match weights {
            1 => 0,
            _ if correction => weights,
            _ => weights * bits(self.lease_ms) / 2,
        };
        4 + self.in_flight / 1000 + reads
    }

    fn share(&self, n: i64) -> Concurrency {
        Concurrency { in_flight: (self.in_flight / n).max(1), ..*self }
    }

    fn with_number(&self, in_flight: i64) -> Concurrency {
        Concurrency { in_flight, ..*self }
    }

    fn max_number(&self) -> i64 {
        ENTRIES_MAX
    }

    fn lease_ms(&self) -> Option<i64> {
        Some(self.lease_ms)
    }

    fn with_endless_lease(&self) -> Option<Concurrency> {
        Some(Concurrency { lease_ms: FOREVER_MS, ..*self })
    }

    fn describe(&self) -> String {
        format!("{} in flight", self.in_flight)
    }

    fn describe_number(&self) -> String {
        format!("in_flight {}", self.in_flight)
    }

    fn decide(&self, state: Option<&LeasesState>, now: i64, cost: i64, tag: i64) -> Step<LeasesState> {
        let Concurrency { in_flight: limit, lease_ms: lease } = *self;
        let empty = LeaseSet::default();
        let leases = state.map_or(&empty, |state| &state.0);
        let live = leases.live(now);
        let longest = if live > 0 { leases.longest.max(lease) } else { lease };
        // An expiry further ahead than the longest lease comes from a clock that was wrong. It has to be shortened and
        // stored, or the lease of a crashed gateway would last until then.
        let latest_allowed = now + longest;
        let mut latest = if live > 0 { leases.latest() } else { now };
        let is_repaired = latest > latest_allowed;
        latest = latest.min(latest_allowed);

        let admitted = cost == 0 || live + cost <= limit;
        let charge = if admitted { cost } else { 0 };
        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = leases.free_at(limit - cost, now).min(latest_allowed) - now;
        }
        let expiry = now + lease;
        if charge > 0 {
            latest = latest.max(expiry);
        }
        let reset_ms = latest - now;
        let store = cost > 0 && (admitted || is_repaired || live > 0 && longest > leases.longest);
        let remaining = (limit - live - charge).max(0);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: tag, ban: BanAnswer::None },
            next: store.then(|| (leases.with_lease(now, longest, live == 0, tag, charge, expiry), reset_ms)),
        }
    }

    /// Corrects a lease; the receipt is its tag. A negative `delta` releases units. A positive one renews a lease of
    /// that many units. Units that the store had lost are held again, even beyond `in_flight`, because the request is
    /// still running.
    fn adjust(
        &self,
        state: Option<&LeasesState>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<LeasesState>> {
        let lease = self.lease_ms;
        let empty = LeaseSet::default();
        let leases = state.map_or(&empty, |state| &state.0);
        let live = leases.live(now);
        let longest = if live > 0 { leases.longest.max(lease) } else { lease };
        let latest = if live > 0 { leases.latest().min(now + longest) } else { now };
        if delta < 0 {
            let (held, until) = leases.find_lease(receipt, now);
            let units = (-delta).min(held);
            if units == 0 {
                return None;
            }
            if units == live {
                return Some((LeasesState::default(), 1, units));
            }
            let until = until.min(now + longest);
            return Some((leases.with_lease(now, longest, false, receipt, held - units, until), latest - now, units));
        }
        if delta == 0 {
            return None;
        }
        let expiry = now + lease;
        Some((leases.with_lease(now, longest, live == 0, receipt, delta, expiry), latest.max(expiry) - now, delta))
    }

    /// Formats pairs of an id and its bit and expiry as one number; before them the longest lease, as another pair.
    fn text(state: &LeasesState) -> String {
        let LeaseSet { longest, units, .. } = &*state.0;
        if units.sum() == 0 {
            return String::new();
        }
        let units = units.entries().into_iter().map(|((bit, expiry, id), _)| format!(" {id} {}", bit * RADIX + expiry));
        format!("lease -{longest}") + &units.collect::<String>()
    }
}

/// Returns how long a unit lasts in the store, so that an outage shorter than `lease` does not end a lease. When an
/// outage starts, up to one renewal interval has passed. After it ends, the gateway needs `RECOVERY_MS` to renew. The
/// rest is `lease`: three quarters of the lifetime less the recovery.
fn lifetime_ms(lease: i64) -> i64 {
    let renewals = i64::from(RENEWALS);
    (lease + RECOVERY_MS) * renewals / (renewals - 1)
}

impl LeaseSet {
    fn bits(&self) -> i64 {
        self.units.last().map_or(0, |(bit, ..)| bit + 1)
    }

    /// Returns the number of units held at `now`.
    fn live(&self, now: i64) -> i64 {
        let of = |bit| {
            self.units.weight_since((bit, now + 1, i64::MIN)) - self.units.weight_since((bit + 1, i64::MIN, i64::MIN))
        };
        (0..self.bits()).map(of).sum()
    }

    /// Returns the latest expiry; 0 if there is none.
    fn latest(&self) -> i64 {
        let of = |bit| self.units.floor((bit, i64::MAX, i64::MAX)).filter(|unit| unit.0 == bit);
        (0..self.bits()).filter_map(of).map(|(_, expiry, _)| expiry).max().unwrap_or(0)
    }

    /// Returns when no more than `units` will be held, if no request arrives or ends.
    fn free_at(&self, units: i64, now: i64) -> i64 {
        if self.bits() == 1 {
            return self.units.key_at(units).map_or(now, |(_, expiry, _)| expiry);
        }
        let (mut low, mut high) = (now, self.latest());
        while high - low > 1 {
            let middle = i64::midpoint(low, high);
            if self.live(middle) <= units {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// Returns bit and expiry of an id as one number.
    fn score(&self, id: i64) -> Option<i64> {
        self.ids.ceiling((id, i64::MIN)).filter(|((found, _), _)| *found == id).map(|((_, score), _)| score)
    }

    /// Returns the units of the lease with this tag at `now`, and its expiry.
    fn find_lease(&self, tag: i64, now: i64) -> (i64, i64) {
        let (mut held, mut until) = (0, now);
        for bit in 0..self.bits() {
            if let Some(expiry) = self.score(tag + bit).map(|score| score - bit * RADIX).filter(|expiry| *expiry > now)
            {
                held += 1 << bit;
                until = expiry;
            }
        }
        (held, until)
    }

    fn set_entry(&mut self, bit: i64, id: i64, expiry: Option<i64>) {
        if let Some(old) = self.score(id) {
            self.ids.set((id, old), 0);
            self.units.set((old / RADIX, old % RADIX, id), 0);
        }
        if let Some(expiry) = expiry {
            self.ids.set((id, bit * RADIX + expiry), 1);
            self.units.set((bit, expiry, id), 1 << bit);
        }
    }

    /// Returns the state in which `tag` holds `units` until `expiry`. `drop_others` drops all other leases.
    fn with_lease(&self, now: i64, longest: i64, drop_others: bool, tag: i64, units: i64, expiry: i64) -> LeasesState {
        let mut leases = if drop_others { LeaseSet::default() } else { self.clone() };
        leases.longest = longest;
        for bit in 0..leases.bits() {
            leases.shorten_expiries(bit, now + longest);
            leases.remove_expired(bit, now);
        }
        let mut bit = 0;
        while units >> bit > 0 || bit < leases.bits() {
            let is_wanted = units >> bit & 1 == 1;
            leases.set_entry(bit, tag + bit, is_wanted.then_some(expiry));
            bit += 1;
        }
        LeasesState(Box::new(leases))
    }

    /// Shortens entries of the bit that expire after `latest_allowed`.
    fn shorten_expiries(&mut self, bit: i64, latest_allowed: i64) {
        for _ in 0..CLEANUP_MAX {
            let Some((_, _, id)) = self.unit(bit, latest_allowed + 1, i64::MAX) else { return };
            self.set_entry(bit, id, Some(latest_allowed));
        }
    }

    /// Removes entries of the bit that have expired.
    fn remove_expired(&mut self, bit: i64, now: i64) {
        for _ in 0..CLEANUP_MAX {
            let Some((_, _, id)) = self.unit(bit, i64::MIN, now) else { return };
            self.set_entry(bit, id, None);
        }
    }

    /// Returns the first entry of the bit that expires between `from` and `to`.
    fn unit(&self, bit: i64, from: i64, to: i64) -> Option<Unit> {
        let (unit, _) = self.units.ceiling((bit, from, i64::MIN))?;
        (unit.0 == bit && unit.1 <= to).then_some(unit)
    }
}
