//! The tightest numbers under which a limit would have refused nobody, in one pass: what each key
//! would have used had nothing ever been refused. Called by the tally.

use std::collections::HashMap;

use crate::limit::algo::Rule;

/// What is sought depends on the algorithm; see [`Tightest::kind`].
pub struct Tightest {
    kind: Kind,
    keys: HashMap<u64, Use>,
    max_keys: usize,
    pub needed: i64,
    /// Keys still in use had to be forgotten: more may be needed.
    pub lower_bound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The smallest burst at the configured rate. Exact but for rounding up.
    Burst { rate: i64, per_ms: i64, lump_ms: i64 },
    /// The smallest count per window. Exact.
    Window { window_ms: i64, clock: bool },
    /// The largest count in two adjacent windows: at most this count is needed.
    Sliding { window_ms: i64 },
    /// Not known for this algorithm.
    Unknown,
}

/// What one key has used: units x `per_ms` not yet refilled, or the count of the window from
/// `at_ms` on and of the one before.
#[derive(Clone, Copy)]
struct Use {
    used: i64,
    before: i64,
    at_ms: i64,
}

/// Keeps sums of products exact.
const USED_MAX: i64 = 1 << 60;

impl Tightest {
    pub fn new(rule: &Rule, max_keys: usize) -> Tightest {
        Tightest { kind: Kind::of(rule), keys: HashMap::new(), max_keys, needed: 0, lower_bound: false }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn add(&mut self, key: u64, cost: i64, now: i64) {
        if cost == 0 || self.kind == Kind::Unknown {
            return;
        }
        if self.keys.len() >= self.max_keys && !self.keys.contains_key(&key) {
            self.forget(now);
        }
        let kind = self.kind;
        let state = self.keys.entry(key).or_insert(Use { used: 0, before: 0, at_ms: kind.start(now) });
        kind.advance(state, now);
        self.needed = self.needed.max(kind.take(state, cost));
    }

    /// Keys that are as good as new go; when that is not enough, so do others.
    fn forget(&mut self, now: i64) {
        let kind = self.kind;
        self.keys.retain(|_, state| {
            kind.advance(state, now);
            state.used > 0 || state.before > 0
        });
        if self.keys.len() > self.max_keys / 8 * 7 {
            let mut odd = false;
            self.keys.retain(|_, _| {
                odd = !odd;
                odd
            });
            self.lower_bound = true;
        }
    }
}

impl Kind {
    pub fn of(rule: &Rule) -> Kind {
        let policy = rule.policy();
        let window_ms = policy.window_ms.max(1);
        match rule {
            Rule::TokenBucket(bucket) => {
                let lump_ms = if bucket.interval { bucket.per_ms } else { 1 };
                Kind::Burst { rate: bucket.rate, per_ms: bucket.per_ms, lump_ms }
            }
            Rule::FixedWindow(window) => Kind::Window { window_ms: window.window_ms, clock: window.clock },
            #[allow(unreachable_patterns, reason = "reachable with each further algorithm")]
            other => match other.name() {
                "gcra" | "leaky_bucket" => Kind::Burst { rate: policy.quota.max(1), per_ms: window_ms, lump_ms: 1 },
                "sliding_log" | "sliding_window" => Kind::Sliding { window_ms },
                _ => Kind::Unknown,
            },
        }
    }

    fn start(self, now: i64) -> i64 {
        match self {
            Kind::Window { window_ms, clock: true } | Kind::Sliding { window_ms } => now - now.rem_euclid(window_ms),
            _ => now,
        }
    }

    fn advance(self, state: &mut Use, now: i64) {
        let passed = (now - state.at_ms).max(0);
        match self {
            Kind::Burst { rate, lump_ms, .. } => {
                let lumps = passed / lump_ms;
                state.used = state.used.saturating_sub(lumps.saturating_mul(rate * lump_ms)).max(0);
                state.at_ms = if state.used == 0 { state.at_ms.max(now) } else { state.at_ms + lumps * lump_ms };
            }
            Kind::Window { window_ms, .. } if passed >= window_ms => {
                *state = Use { used: 0, before: 0, at_ms: self.start(now) };
            }
            Kind::Sliding { window_ms } if passed >= window_ms => {
                let before = if passed < 2 * window_ms { state.used } else { 0 };
                *state = Use { used: 0, before, at_ms: self.start(now) };
            }
            Kind::Window { .. } | Kind::Sliding { .. } | Kind::Unknown => {}
        }
    }

    /// What is needed once `cost` is taken too.
    fn take(self, state: &mut Use, cost: i64) -> i64 {
        let per_ms = if let Kind::Burst { per_ms, .. } = self { per_ms } else { 1 };
        state.used = state.used.saturating_add(cost.saturating_mul(per_ms)).min(USED_MAX);
        let used = state.used + state.before;
        used / per_ms + i64::from(used % per_ms != 0)
    }
}
