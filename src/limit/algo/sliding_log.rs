//! Sliding log; twin of `lua/sliding_log.lua`, same names, same order. Exact: at most `limit` in
//! any stretch of `window_ms`. Remembers each charge, whatever its cost, until its window is over.

use super::algorithm::COUNT;
use super::exact::EXACT;
use super::params::{Field, Given, Misfit, Param, RATE, misfit};
use super::tree::{ENTRIES_MAX, Tree};
use super::{Algorithm, Number, Policy, Step};
use crate::limit::answer::{Answer, NEVER};

#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    pub limit: i64,
    pub window_ms: i64,
    /// Redis keeps new keys as sorted sets instead of lists.
    pub sorted_set: bool,
}

/// Boxed, as the states of most keys are a few numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogState(Box<Log>);

/// The units charged at each ms. A ms counts for a whole window and one ms more: what was charged
/// at its end and what comes at the beginning of the last may be that much closer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Log {
    /// The longest window and the largest limit that looked at the log keep what they need of it.
    longest: i64,
    largest: i64,
    /// When it was charged last, which a refund does not undo.
    newest: i64,
    charges: Tree<i64>,
}

/// Charges that a decision lets go at most, so that none is long after many have left together.
const TRIMMED: usize = 64;

/// Units of a limit for each ms of its window, at most.
const PER_MS: i64 = 1000;

const STATE: Field<bool> = Field::<bool>::either("state", ["list", "sorted_set"]);

impl Algorithm for SlidingLog {
    type State = LogState;

    const LEADING: Param = RATE.param;
    const OTHERS: &'static [Param] = &[STATE.param];

    const NUMBER: Number = COUNT;

    fn build(given: &Given) -> Result<SlidingLog, Misfit> {
        let rate = given.need(&RATE)?;
        let sorted_set = given.get(&STATE).unwrap_or(false);
        let log = SlidingLog { limit: rate.count, window_ms: rate.per_ms, sorted_set };
        let largest = log.largest();
        if log.limit > largest {
            let help = format!("sliding_window needs no entry for each unit; the largest count for this is {largest}");
            return Err(misfit(RATE.name(), "the log would be too long", help));
        }
        Ok(log)
    }

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        vec![self.limit, self.window_ms, i64::from(self.sorted_set)]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    /// Of charges of several units those of a block are read, as `WEIGHTED` in `lua/shapes/log.lua` says, and what
    /// all blocks hold. A charge that is given back whole is looked for from the newest entry of a list on.
    fn work(&self, _most_cost: i64, correction: bool) -> i64 {
        let block = self.limit.isqrt().max(64).min(self.limit);
        let search = if correction && !self.sorted_set { self.limit / 200 } else { 0 };
        4 + block / 4 + self.limit / block / 8 + search
    }

    fn share(&self, n: i64) -> SlidingLog {
        SlidingLog { limit: (self.limit / n).max(1), ..*self }
    }

    fn numbered(&self, limit: i64) -> SlidingLog {
        SlidingLog { limit, ..*self }
    }

    fn largest(&self) -> i64 {
        ENTRIES_MAX.min(self.window_ms * PER_MS)
    }

    fn decide(&self, state: Option<&LogState>, now: i64, cost: i64, _tag: i64) -> Step<LogState> {
        let SlidingLog { limit, window_ms: window, .. } = *self;
        let empty = Log::default();
        let log = state.map_or(&empty, |state| &state.0);
        let LogHead { longest, largest, clock, anew } = self.head(log, now);
        // The first ms that counts.
        let edge = clock - window;

        // The newest charge that must have left.
        let (mut last, place) = (None, limit - cost);
        if cost > 0 && cost <= limit {
            last = match anew {
                Some(kept) => (place < kept).then_some(now),
                None => log.charges.at(place).filter(|last| *last >= edge),
            };
        }
        let admitted = cost == 0 || cost <= limit && last.is_none();
        let inside = anew.unwrap_or_else(|| log.charges.since(edge));
        let charge = if admitted { cost } else { 0 };

        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if let Some(last) = last {
            retry_ms = last + window + 1 - now;
        }
        let mut latest = match anew {
            Some(kept) => (kept > 0).then_some(now),
            None => log.charges.last(),
        };
        if charge > 0 {
            latest = Some(clock);
        }
        let reset_ms = latest.map_or(0, |latest| (latest + window + 1 - now).max(0));
        let wider = anew.is_none() && (longest > log.longest || largest > log.largest);
        let store = cost > 0 && (admitted || anew.is_some_and(|kept| kept > 0) || wider);
        let remaining = (limit - inside - charge).max(0);
        let ttl_ms = if anew.is_some() || charge > 0 { clock } else { log.newest } + longest + 1 - now;
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: clock },
            next: store.then(|| (log.charged(anew, clock, charge, longest, largest), ttl_ms)),
        }
    }

    /// The receipt is the ms of the charge.
    fn adjust(&self, state: Option<&LogState>, now: i64, delta: i64, receipt: i64) -> Option<(LogState, i64)> {
        let SlidingLog { limit, .. } = *self;
        let empty = Log::default();
        let log = state.map_or(&empty, |state| &state.0);
        let LogHead { longest, largest, clock, anew } = self.head(log, now);
        if delta < 0 {
            if anew == Some(0) || receipt < log.newest.max(now) - longest {
                return None;
            }
            let weight = log.charges.weight(receipt);
            if weight == 0 {
                return None;
            }
            let units = (-delta).min(weight);
            if units == log.charges.sum() {
                return Some((LogState::default(), 1));
            }
            if let Some(kept) = anew {
                let kept = kept - units;
                return match kept {
                    1.. => Some((log.charged(Some(kept), clock, 0, longest, largest), longest + 1)),
                    _ => Some((LogState::default(), 1)),
                };
            }
            return Some((log.with(receipt, weight - units), log.newest + longest + 1 - now));
        }
        if delta == 0 {
            return None;
        }
        let charge = delta.min(limit);
        Some((log.charged(anew, clock, charge, longest, largest), clock + longest + 1 - now))
    }

    /// What it is kept for, the newest charge, and before it, newest first, all others; units but 1
    /// behind a colon.
    fn text(state: &LogState) -> String {
        let Log { longest, largest, newest, charges } = &*state.0;
        if charges.sum() == 0 {
            return String::new();
        }
        let mut text = format!("{longest} {largest} {newest} {}", charges.weight(*newest));
        for (ms, weight) in charges.entries().into_iter().rev().filter(|(ms, _)| ms < newest) {
            text += &if weight == 1 { format!(" {ms}") } else { format!(" {ms}:{weight}") };
        }
        text
    }
}

/// For whom the log is kept now, and when a charge counts from. `anew`: nothing that is stored
/// counts as it is, but so many units from now on.
struct LogHead {
    longest: i64,
    largest: i64,
    clock: i64,
    anew: Option<i64>,
}

impl SlidingLog {
    fn head(&self, log: &Log, now: i64) -> LogHead {
        let (longest, largest) = (log.longest.max(self.window_ms), log.largest.max(self.limit));
        if log.charges.sum() == 0 || log.newest < now - log.longest {
            return LogHead { longest: self.window_ms, largest: self.limit, clock: now, anew: Some(0) };
        }
        // A charge further ahead than a window was left by another clock. All that still counts
        // must be moved for good, or it would hold the limit until that time comes.
        if log.newest > now + longest {
            let kept = log.charges.since(log.newest - longest).min(largest);
            return LogHead { longest, largest, clock: now, anew: Some(kept) };
        }
        LogHead { longest, largest, clock: now.max(log.newest), anew: None }
    }
}

impl Log {
    fn charged(&self, anew: Option<i64>, clock: i64, cost: i64, longest: i64, largest: i64) -> LogState {
        let mut charges = self.charges.clone();
        let mut newest = self.newest;
        if let Some(kept) = anew {
            charges = Tree::default();
            charges.set(clock, kept);
            newest = clock;
        }
        if cost > 0 {
            newest = clock;
            charges.set(clock, charges.weight(clock) + cost);
        }
        for _ in 0..TRIMMED {
            let Some((oldest, weight)) = charges.first().filter(|(oldest, _)| *oldest < newest) else { break };
            let rest = charges.sum() - weight;
            let kept = match oldest < newest - longest {
                true => 0,
                false if rest < largest => break,
                // It counts again if what is newer is given back, as if it were as new as the next.
                false => weight.min(EXACT - rest),
            };
            charges.set(oldest, 0);
            if let Some((next, weight)) = charges.first().filter(|_| kept > 0) {
                charges.set(next, weight + kept);
            }
        }
        LogState(Box::new(Log { longest, largest, newest, charges }))
    }

    /// With so many units at `ms`.
    fn with(&self, ms: i64, weight: i64) -> LogState {
        let mut log = self.clone();
        log.charges.set(ms, weight);
        LogState(Box::new(log))
    }
}
