//! Sliding log: exactly at most `limit` units in any interval of `window_ms`. It stores each charge until it leaves the
//! window. Twin of `lua/sliding_log.lua`: same names, same order.

use crate::limiting::algorithm::exact::EXACT;
use crate::limiting::algorithm::interface::{COUNT, parse_numbers};
use crate::limiting::algorithm::params::{Field, OptionError, OptionValues, PERIOD_MAX_MS, Param, RATE, option_error};
use crate::limiting::algorithm::tree::{ENTRIES_MAX, Tree};
use crate::limiting::algorithm::{Algorithm, Corrected, LATEST, Number, Policy, Step};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};

/// Admits at most `limit` units in any interval of `window_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    pub limit: i64,
    pub window_ms: i64,
    /// Redis stores new keys as sorted sets instead of lists.
    pub sorted_set: bool,
}

/// State of a key: its log. It is boxed, because the states of most algorithms are a few numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogState(Box<Log>);

/// Units charged in each millisecond. A charge counts for the whole window and one millisecond more: a charge at the
/// end of its millisecond and one at the beginning of the last may be less than a window apart.
#[derive(Clone, Debug, Default, PartialEq)]
struct Log {
    /// The longest window that used the log; charges are kept that long.
    longest: i64,
    /// The largest limit that used the log; that many units are kept.
    largest: i64,
    /// Time of the last charge. A refund does not change it.
    newest: i64,
    charges: Tree<i64>,
}

/// Maximum number of old charges that one decision removes, so that no decision takes long after many have expired
/// together.
const TRIMMED: usize = 64;

/// Maximum number of units of a limit for each millisecond of its window.
const PER_MS: i64 = 1000;

const STATE: Field<bool> = Field::<bool>::choice("state", ["list", "sorted_set"]);

impl Algorithm for SlidingLog {
    type State = LogState;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[STATE.param];

    const NUMBER: Number = COUNT;

    fn build(options: &OptionValues) -> Result<SlidingLog, OptionError> {
        let rate = options.require(&RATE)?;
        let sorted_set = options.get(&STATE).unwrap_or(false);
        let log = SlidingLog { limit: rate.count, window_ms: rate.per_ms, sorted_set };
        let largest = log.max_number();
        if log.limit > largest {
            let help = format!("sliding_window needs no entry for each unit; the largest count for this is {largest}");
            return Err(option_error(RATE.name(), "the log would be too long", help));
        }
        Ok(log)
    }

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        vec![self.limit, self.window_ms, i64::from(self.sorted_set)]
    }

    fn decode_rule(encoded: &str) -> Option<SlidingLog> {
        let &[limit, window_ms @ 1..=PERIOD_MAX_MS, sorted_set @ 0..=1] = &*parse_numbers(encoded)? else {
            return None;
        };
        let log = SlidingLog { limit, window_ms, sorted_set: sorted_set == 1 };
        (1..=log.max_number()).contains(&limit).then_some(log)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    /// A decision on charges of several units reads the charges of one block, see `WEIGHTED` in `lua/shapes/log.lua`,
    /// and the sums of all blocks. A refund of a whole charge searches a list from its newest entry. One of the newest
    /// charges removes each entry once, in one command, which is not counted: the charges were more work.
    fn work(&self, _most_cost: i64, correction: bool) -> i64 {
        let block = self.limit.isqrt().max(64).min(self.limit);
        let search = if correction && !self.sorted_set { self.limit / 200 } else { 0 };
        4 + block / 4 + self.limit / block / 8 + search
    }

    fn share(&self, n: i64) -> SlidingLog {
        SlidingLog { limit: (self.limit / n).max(1), ..*self }
    }

    fn with_number(&self, limit: i64) -> SlidingLog {
        SlidingLog { limit, ..*self }
    }

    fn max_number(&self) -> i64 {
        ENTRIES_MAX.min(self.window_ms * PER_MS)
    }

    fn decide(&self, state: Option<&LogState>, now: i64, cost: i64, _tag: i64) -> Step<LogState> {
        let SlidingLog { limit, window_ms: window, .. } = *self;
        let empty = Log::default();
        let log = state.map_or(&empty, |state| &state.0);
        let LogBounds { longest, largest, clock, restart } = self.bounds_at(log, now);
        // The first millisecond that counts.
        let edge = clock - window;

        // The newest charge that must leave the window before this cost fits.
        let (mut last, index) = (None, limit - cost);
        if cost > 0 && cost <= limit {
            last = match restart {
                Some(kept) => (index < kept).then_some(now),
                None => log.charges.key_at(index).filter(|last| *last >= edge),
            };
        }
        let admitted = cost == 0 || cost <= limit && last.is_none();
        let inside = restart.unwrap_or_else(|| log.charges.weight_since(edge));
        let charge = if admitted { cost } else { 0 };

        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if let Some(last) = last {
            retry_ms = last + window + 1 - now;
        }
        let mut latest = match restart {
            Some(kept) => (kept > 0).then_some(now),
            None => log.charges.last(),
        };
        if charge > 0 {
            latest = Some(clock);
        }
        let reset_ms = latest.map_or(0, |latest| (latest + window + 1 - now).max(0));
        let wider = restart.is_none() && (longest > log.longest || largest > log.largest);
        let store = cost > 0 && (admitted || restart.is_some_and(|kept| kept > 0) || wider);
        let remaining = (limit - inside - charge).max(0);
        let ttl_ms = if restart.is_some() || charge > 0 { clock } else { log.newest } + longest + 1 - now;
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: clock, ban: BanAnswer::None },
            next: store.then(|| (log.charged(restart, clock, charge, longest, largest), ttl_ms)),
        }
    }

    /// Corrects a charge; the receipt is its millisecond, or [`LATEST`] for the newest charges that still count.
    fn adjust(&self, state: Option<&LogState>, now: i64, delta: i64, receipt: i64) -> Option<Corrected<LogState>> {
        let SlidingLog { limit, .. } = *self;
        let empty = Log::default();
        let log = state.map_or(&empty, |state| &state.0);
        let LogBounds { longest, largest, clock, restart } = self.bounds_at(log, now);
        if delta < 0 && receipt == LATEST {
            let inside = restart.unwrap_or_else(|| log.charges.weight_since(clock - self.window_ms));
            let units = (-delta).min(inside);
            return match (units, restart) {
                (0, _) => None,
                _ if units == log.charges.sum() || restart == Some(units) => Some((LogState::default(), 1, units)),
                (_, Some(kept)) => {
                    let state = log.charged(Some(kept - units), clock, 0, longest, largest);
                    Some((state, clock + longest + 1 - now, units))
                }
                (_, None) => Some((log.without_newest(units), log.newest + longest + 1 - now, units)),
            };
        }
        if delta < 0 {
            if restart == Some(0) || receipt < log.newest.max(now) - longest {
                return None;
            }
            let weight = log.charges.weight(receipt);
            if weight == 0 {
                return None;
            }
            let units = (-delta).min(weight);
            if units == log.charges.sum() {
                return Some((LogState::default(), 1, units));
            }
            if let Some(kept) = restart {
                let kept = kept - units;
                return match kept {
                    1.. => Some((log.charged(Some(kept), clock, 0, longest, largest), longest + 1, units)),
                    _ => Some((LogState::default(), 1, units)),
                };
            }
            return Some((log.with_weight(receipt, weight - units), log.newest + longest + 1 - now, units));
        }
        if delta == 0 {
            return None;
        }
        let charge = delta.min(limit);
        Some((log.charged(restart, clock, charge, longest, largest), clock + longest + 1 - now, charge))
    }

    /// Formats longest window, largest limit and newest charge, then all earlier charges from the newest on. Units
    /// other than 1 follow after a colon.
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

/// Bounds of a log for a decision: longest window, largest limit, and the time of a new charge. `restart` means that
/// the stored charges do not count, but that number of units at the current time.
struct LogBounds {
    longest: i64,
    largest: i64,
    clock: i64,
    restart: Option<i64>,
}

impl SlidingLog {
    fn bounds_at(&self, log: &Log, now: i64) -> LogBounds {
        let (longest, largest) = (log.longest.max(self.window_ms), log.largest.max(self.limit));
        if log.charges.sum() == 0 || log.newest < now - log.longest {
            return LogBounds { longest: self.window_ms, largest: self.limit, clock: now, restart: Some(0) };
        }
        // A charge further ahead than a window comes from a clock that was wrong. What still counts has to be moved to
        // now and stored, or it would use up the limit until that time comes.
        if log.newest > now + longest {
            let kept = log.charges.weight_since(log.newest - longest).min(largest);
            return LogBounds { longest, largest, clock: now, restart: Some(kept) };
        }
        LogBounds { longest, largest, clock: now.max(log.newest), restart: None }
    }
}

impl Log {
    fn charged(&self, restart: Option<i64>, clock: i64, cost: i64, longest: i64, largest: i64) -> LogState {
        let mut charges = self.charges.clone();
        let mut newest = self.newest;
        if let Some(kept) = restart {
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
                // It is beyond any limit, but counts again if newer charges are refunded. So it is merged into the
                // next charge, as if it were as new as that.
                false => weight.min(EXACT - rest),
            };
            charges.set(oldest, 0);
            if let Some((next, weight)) = charges.first().filter(|_| kept > 0) {
                charges.set(next, weight + kept);
            }
        }
        LogState(Box::new(Log { longest, largest, newest, charges }))
    }

    /// Returns the log without its newest `units` units, which are fewer than all.
    fn without_newest(&self, units: i64) -> LogState {
        let mut log = self.clone();
        if let Some(ms) = log.charges.key_at(units) {
            let kept = log.charges.weight_since(ms) - units;
            log.charges.remove_from(ms);
            log.charges.set(ms, kept);
        }
        LogState(Box::new(log))
    }

    /// Returns the log with `weight` units at `ms`.
    fn with_weight(&self, ms: i64, weight: i64) -> LogState {
        let mut log = self.clone();
        log.charges.set(ms, weight);
        LogState(Box::new(log))
    }
}
