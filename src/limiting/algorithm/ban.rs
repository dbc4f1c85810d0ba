//! Bans: a key that its limit has refused `after` times within `within_ms` is refused for `for_ms`, and for longer each
//! time that this happens again. Twin of `lua/ban.lua`: same names, same order.
//!
//! A limit with `ban` has two states for each key: its own and this one. The check of the limit comes first; a refusal
//! of it has a cost here, and an admission has none. While the key is banned, nothing is counted, so a ban ends when it
//! was said to end.
//!
//! - The times of the refusals are exact, so `after` refusals within any `within_ms` begin a ban. It begins with the
//!   refusal that completes them.
//! - Ban number n lasts `for_ms` times `grow` to the power of n - 1, at most `at_most_ms`. Bans are forgotten once the
//!   key has not been banned for `at_most_ms`.

use std::fmt::Write;

use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::interface::COUNT;
use crate::limiting::algorithm::params::{OptionError, OptionValues, Param, RATE, option_error};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Step};
use crate::limiting::answer::{Answer, BanAnswer};

/// The numbers of a `ban`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    pub after: i64,
    pub within_ms: i64,
    pub for_ms: i64,
    pub grow: i64,
    pub at_most_ms: i64,
}

/// State of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanState {
    /// End of the last ban.
    until_ms: i64,
    /// Bans so far.
    level: i64,
    /// Times of the refusals that count, the oldest first.
    refusals: Box<[i64]>,
}

/// Most refusals that a ban can wait for. Their times fit the text of a state, see `lua/shapes/cells.lua`.
pub const AFTER_MAX: i64 = 256;
/// Largest factor by which bans grow.
pub const GROW_MAX: i64 = 100;
/// Largest number of bans that is counted.
const LEVEL_MAX: i64 = 99;

impl Algorithm for Ban {
    type State = BanState;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[];

    const NUMBER: Number = COUNT;

    /// A ban is an option of limits, and no limit has it as its algorithm.
    fn build(_options: &OptionValues) -> Result<Ban, OptionError> {
        Err(option_error(RATE.name(), "a ban has no rate", ""))
    }

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        vec![self.after, self.within_ms, self.for_ms, self.grow, self.at_most_ms]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.after, window_ms: self.within_ms }
    }

    /// Answers whether the key is banned, and with a cost counts a refusal. The receipt is the number of bans; it is
    /// negative if this refusal began the last one.
    fn decide(&self, state: Option<&BanState>, now: i64, cost: i64, _tag: i64) -> Step<BanState> {
        let Ban { after, within_ms: within, at_most_ms: at_most, .. } = *self;
        let none = BanState::default();
        let state = state.unwrap_or(&none);
        let (mut until_ms, mut level, mut is_repaired) = (state.until_ms, state.level.min(LEVEL_MAX), false);
        // A ban that ends later comes from a longer setting, or from a clock that was wrong. It has to be stored, or it
        // would start again with each request.
        if until_ms > now + at_most {
            (until_ms, is_repaired) = (now + at_most, true);
        }
        if now < until_ms {
            let left = until_ms - now;
            let next = is_repaired.then(|| BanState { until_ms, level, refusals: Box::default() });
            return self.step((false, 0, left, left, level), next, now);
        }
        if now >= until_ms + self.memory_ms() {
            (until_ms, level) = (0, 0);
        }

        let is_counted = |ms: &i64| *ms > now - within && *ms <= now + within;
        let mut refusals: Vec<i64> = state.refusals.iter().copied().filter(is_counted).collect();
        let count = i64::try_from(refusals.len()).unwrap_or(AFTER_MAX);
        if cost == 0 {
            let reset_ms = refusals.last().map_or(0, |last| last + within - now);
            return self.step((true, (after - count).max(0), 0, reset_ms, level), None, now);
        }
        let clock = now.max(refusals.last().copied().unwrap_or(0));
        refusals.push(clock);
        let count = count + 1;
        if count < after {
            let next = BanState { until_ms, level, refusals: refusals.into() };
            return self.step((false, after - count, 0, clock + within - now, level), Some(next), now);
        }
        let length = self.length_ms(level);
        level = (level + 1).min(LEVEL_MAX);
        let next = BanState { until_ms: now + length, level, refusals: Box::default() };
        self.step((false, 0, length, length, -level), Some(next), now)
    }

    /// Nothing corrects a ban.
    fn adjust(&self, _state: Option<&BanState>, _now: i64, _delta: i64, _receipt: i64) -> Option<Corrected<BanState>> {
        None
    }

    fn text(state: &BanState) -> String {
        let mut text = format!("{} {}", state.until_ms, state.level);
        for ms in &state.refusals {
            let _ = write!(text, " {ms}");
        }
        text
    }

    fn share(&self, _n: i64) -> Ban {
        self.clone()
    }

    fn with_number(&self, after: i64) -> Ban {
        Ban { after, ..*self }
    }

    fn max_number(&self) -> i64 {
        AFTER_MAX
    }

    /// The script parses and writes the time of each refusal.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        1 + self.after / 32
    }

    fn describe(&self) -> String {
        let Ban { after, within_ms, for_ms, grow, at_most_ms } = *self;
        let [within, length, at_most] = [within_ms, for_ms, at_most_ms].map(format_duration);
        let refusals = if after == 1 { "refusal" } else { "refusals" };
        let longer =
            if grow > 1 { format!(", each time {grow} times as long, at most {at_most}") } else { String::new() };
        format!("{after} {refusals} within {within} ban a key for {length}{longer}")
    }
}

impl Ban {
    /// Returns how long a ban lasts after `level` others.
    fn length_ms(&self, level: i64) -> i64 {
        let mut length = self.for_ms;
        if self.grow > 1 {
            for _ in 0..level {
                if length >= self.at_most_ms {
                    break;
                }
                length *= self.grow;
            }
        }
        length.min(self.at_most_ms)
    }

    /// Returns how long bans are remembered after the last one.
    fn memory_ms(&self) -> i64 {
        if self.grow > 1 { self.at_most_ms } else { 0 }
    }

    fn step(
        &self,
        (admitted, remaining, retry_ms, reset_ms, receipt): (bool, i64, i64, i64, i64),
        next: Option<BanState>,
        now: i64,
    ) -> Step<BanState> {
        let ttl_ms = |state: &BanState| {
            let last = state.refusals.last().map_or(0, |last| last + self.within_ms);
            (state.until_ms + self.memory_ms()).max(last).max(now + 1) - now
        };
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt, ban: BanAnswer::None },
            next: next.map(|state| {
                let ttl_ms = ttl_ms(&state);
                (state, ttl_ms)
            }),
        }
    }
}
