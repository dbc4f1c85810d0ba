//! Fixed window: at most `limit` units in each window, so at most twice that in any interval of the same length. Twin
//! of `lua/fixed_window.lua`: same names, same order.

use crate::limiting::algorithm::interface::{COUNT, parse_numbers};
use crate::limiting::algorithm::params::{Field, OptionError, OptionValues, PERIOD_MAX_MS, Param, RATE, check_count};
use crate::limiting::algorithm::records::{RecordAlgorithm, RecordsState};
use crate::limiting::algorithm::window::{Anchor, LIMIT_MAX, Window, WindowRecord};
use crate::limiting::algorithm::{Algorithm, Corrected, LeaseBasis, Number, Policy, Step, records};

/// Admits at most `limit` units in each window of `window_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    pub limit: i64,
    pub window_ms: i64,
    /// Windows start at multiples of `window_ms` since the epoch, instead of with their first request.
    pub clock: bool,
}

const ANCHOR: Field<bool> = Field::<bool>::choice("anchor", ["first_hit", "clock"]);

impl Algorithm for FixedWindow {
    type State = RecordsState<WindowRecord>;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[ANCHOR.param];

    const NUMBER: Number = COUNT;

    const CORRECTS_BY_OWN_RULE: bool = true;

    fn build(options: &OptionValues) -> Result<FixedWindow, OptionError> {
        let rate = options.require(&RATE)?;
        let clock = options.get(&ANCHOR).unwrap_or(false);
        Ok(FixedWindow { limit: check_count(LIMIT_MAX, rate.count)?, window_ms: rate.per_ms, clock })
    }

    fn params(&self, _now: i64) -> Vec<i64> {
        vec![self.limit, self.window_ms, i64::from(self.clock)]
    }

    fn decode_rule(encoded: &str) -> Option<FixedWindow> {
        let &[limit @ 1..=LIMIT_MAX, window_ms @ 1..=PERIOD_MAX_MS, clock @ 0..=1] = &*parse_numbers(encoded)? else {
            return None;
        };
        Some(FixedWindow { limit, window_ms, clock: clock == 1 })
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(self, state, now, cost)
    }

    fn adjust(
        &self,
        state: Option<&Self::State>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<Self::State>> {
        records::adjust(self, state, now, delta, receipt)
    }

    fn text(state: &Self::State) -> String {
        records::text(state, |WindowRecord { count, start_ms, length_ms, anchor }| {
            format!("{count} {start_ms} {length_ms} {}", i64::from(*anchor == Anchor::Clock))
        })
    }

    fn lease_basis(&self) -> Option<LeaseBasis> {
        Some(LeaseBasis { rate: self.limit, per_ms: self.window_ms, refill: None })
    }

    fn share(&self, n: i64) -> FixedWindow {
        FixedWindow { limit: (self.limit / n).max(1), ..*self }
    }

    fn with_number(&self, limit: i64) -> FixedWindow {
        FixedWindow { limit, ..*self }
    }

    fn max_number(&self) -> i64 {
        LIMIT_MAX
    }
}

impl RecordAlgorithm for FixedWindow {
    type Record = WindowRecord;

    fn matches(&self, record: &WindowRecord, _now: i64) -> bool {
        record.length_ms == self.window_ms && record.anchor == self.anchor()
    }

    fn decide_one(&self, record: Option<&WindowRecord>, now: i64, cost: i64) -> Step<WindowRecord> {
        self.window_at(record, now).decide(self.limit, now, cost)
    }

    fn adjust_one(
        &self,
        record: Option<&WindowRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<WindowRecord>> {
        self.window_at(record, now).adjust(now, delta, receipt)
    }

    /// Converts a window of another length. Its start remains, and it ends by this rule's length. With `clock`, the
    /// start is given by the clock; the count of a window more than twice as long does not apply to it. Then charges
    /// from before the conversion, even of the same ms, are never refunded from the new window.
    fn convert(&self, record: &WindowRecord, now: i64) -> (WindowRecord, i64) {
        let other = record.advanced(now);
        let Window { mut record, is_repaired, .. } = self.window_at(Some(&other), now);
        if self.clock && other.length_ms <= 2 * self.window_ms {
            record.count = other.count;
        } else if record.start_ms != other.start_ms && !is_repaired {
            record.start_ms = now + 1;
        }
        (record, record.count)
    }
}

impl FixedWindow {
    fn anchor(&self) -> Anchor {
        if self.clock { Anchor::Clock } else { Anchor::FirstHit }
    }

    fn window_at(&self, record: Option<&WindowRecord>, now: i64) -> Window {
        let FixedWindow { window_ms: window, clock, .. } = *self;

        let (mut count, mut start, mut is_repaired) = (0, if clock { 0 } else { now }, false);
        if let Some(record) = record {
            (count, start) = (record.count, record.start_ms);
            // A start further ahead than a whole window comes from a clock that was wrong. It has to be corrected and
            // stored, or the window would start again with each refusal.
            if start > now + window {
                (start, is_repaired) = (now, true);
            }
        }
        let at = now.max(start);
        let mut first = if clock { at - at % window } else { start };
        if start < first {
            (count, start) = (0, first);
        } else if at >= first + window {
            (count, start, first) = (0, at, at);
        }
        let record = WindowRecord { count, start_ms: start, length_ms: window, anchor: self.anchor() };
        Window { record, end: first + window, is_repaired }
    }
}
