//! The state of a key: the values that count, as hashes with times. In Redis it is a sorted set, see
//! `lua/shapes/values.lua`.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::limiting::algorithm::distinct::VALUES;

/// State of a key. It is boxed, because the states of most algorithms are a few numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueState(Box<ValueSet>);

#[derive(Clone, Debug, Default, PartialEq)]
struct ValueSet {
    /// The longest window that used the state; values are kept that long.
    longest: i64,
    /// The largest limit that used the state; that many values are kept.
    largest: i64,
    /// Start of the window, for rules whose windows begin with a value.
    start: i64,
    /// The values, by the time of the last request.
    entries: Box<[SeenValue]>,
}

/// A value. The order is that of Redis: by score, then by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SeenValue {
    /// Twice the time of the last request, and 1 more if several requests have used the value.
    score: i64,
    value: i64,
}

/// A request that uses a value.
#[derive(Clone, Copy)]
pub struct Use {
    pub value: i64,
    pub ms: i64,
    /// The value does not count yet.
    pub is_new: bool,
}

/// The change that a decision stores.
pub struct NewState {
    /// Times after this one are moved to it.
    pub moved_to: Option<i64>,
    pub used: Option<Use>,
    /// Values whose last request was before this time are removed when one is added.
    pub kept_since: i64,
    pub longest: i64,
    pub largest: i64,
    pub start: i64,
}

impl ValueState {
    pub fn longest(&self) -> i64 {
        self.0.longest
    }

    pub fn largest(&self) -> i64 {
        self.0.largest
    }

    pub fn start(&self) -> i64 {
        self.0.start
    }

    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// Returns how many values had their last request at `edge` or later.
    pub fn count_since(&self, edge: i64) -> i64 {
        let older = self.0.entries.partition_point(|entry| entry.score < 2 * edge);
        i64::try_from(self.0.entries.len() - older).unwrap_or(i64::MAX)
    }

    /// Returns the time of the last request of the n-th newest value, counted from 0.
    pub fn nth_newest(&self, n: i64) -> Option<i64> {
        let index = usize::try_from(n).ok()?;
        self.0.entries.iter().rev().nth(index).map(|entry| entry.score / 2)
    }

    /// Returns the time of the last request of a value.
    pub fn last_use(&self, value: i64) -> Option<i64> {
        self.find(value).map(|entry| entry.score / 2)
    }

    fn find(&self, value: i64) -> Option<&SeenValue> {
        self.0.entries.iter().find(|entry| entry.value == value)
    }

    /// Returns the state after a decision.
    pub fn updated(&self, new: &NewState) -> ValueState {
        let NewState { moved_to, used, kept_since, longest, largest, start } = *new;
        let mut entries = self.0.entries.to_vec();
        if let Some(now) = moved_to {
            let latest = 2 * now + 1;
            entries.iter_mut().for_each(|entry| entry.score = entry.score.min(latest));
        }
        if let Some(Use { value, ms, is_new }) = used {
            entries.retain(|entry| entry.value != value);
            entries.push(SeenValue { score: 2 * ms + i64::from(!is_new), value });
        }
        entries.sort_unstable();
        if used.is_some_and(|used| used.is_new) {
            entries.retain(|entry| entry.score >= 2 * kept_since);
            let surplus = entries.len().saturating_sub(usize::try_from(largest).unwrap_or(usize::MAX));
            entries.drain(..surplus);
        }
        ValueState(Box::new(ValueSet { longest, largest, start, entries: entries.into() }))
    }

    /// Returns the state without a value whose only request was at `ms`; `None` if it has no such value.
    pub fn without_single_use(&self, value: i64, ms: i64) -> Option<ValueState> {
        self.find(value).filter(|entry| entry.score == 2 * ms)?;
        let entries: Box<[SeenValue]> = self.0.entries.iter().copied().filter(|entry| entry.value != value).collect();
        match entries.is_empty() {
            true => Some(ValueState::default()),
            false => Some(ValueState(Box::new(ValueSet { entries, ..*self.0 }))),
        }
    }

    /// Formats longest window, largest limit and start of the window, then each value with its score.
    pub fn text(&self) -> String {
        let ValueSet { longest, largest, start, entries } = &*self.0;
        if entries.is_empty() {
            return String::new();
        }
        let mut text = format!("{longest}/{largest}/{start}");
        for SeenValue { score, value } in entries {
            let _ = write!(text, " {value}:{score}");
        }
        text
    }
}

/// Hashes a value to a number of [`VALUES`]. The key of the state is part of the hash: whoever finds two values with
/// the same hash has found them for one key only. Of 1000 values, two have the same hash with a probability of 10^-10.
pub fn hash_value(state_key: &str, value: &str) -> i64 {
    let count = VALUES.end() - VALUES.start() + 1;
    let digest = Sha256::new().chain_update(state_key).chain_update([0]).chain_update(value).finalize();
    let number = digest[..7].iter().fold(0, |number, byte| number << 8 | i64::from(*byte));
    number % count + VALUES.start()
}
