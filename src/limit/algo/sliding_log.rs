//! Sliding log; twin of `lua/sliding_log.lua`, same names, same order. Exact: at most `limit` in
//! any stretch of `window_ms`. Costs memory for each unit of the limit, and in this process a copy
//! of the log for each charge.

use super::{Algorithm, Policy, Step};
use crate::limit::answer::{Answer, NEVER};

#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    pub limit: i64,
    pub window_ms: i64,
    /// Redis keeps new keys as sorted sets instead of lists.
    pub sorted_set: bool,
}

/// Time stamps in microseconds, oldest first, each once: those of one ms take the next free ones.
/// A stamp counts for a whole window from its ms on.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    stamps: Box<[i64]>,
}

impl Algorithm for SlidingLog {
    type State = State;

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        vec![self.limit, self.window_ms, i64::from(self.sorted_set)]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    fn share(&self, n: i64) -> SlidingLog {
        SlidingLog { limit: (self.limit / n).max(1), ..*self }
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64, _tag: i64) -> Step<State> {
        let SlidingLog { limit, window_ms: window, .. } = *self;
        let log = Log(state.map_or(&[], |state| &state.stamps));
        let Head { mut head, moved, kept, first } = self.head_at(log, now);

        // The newest stamp that must have left the window.
        let (mut last, place) = (None, limit - cost);
        if cost > 0 && cost <= limit {
            last = if place < kept { head.map(|head| head - place) } else { log.at(place + moved - kept) };
        }
        let last = last.map(ms).filter(|last| *last > now - window);
        let admitted = cost == 0 || cost <= limit && last.is_none();
        let inside = (log.above((now - window + 1) * 1000) - moved + kept).min(limit);
        let charge = if admitted { cost } else { 0 };
        if charge > 0 {
            head = Some(first + kept + charge - 1);
        }

        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if let Some(last) = last {
            retry_ms = last + window - now;
        }
        let reset_ms = head.map_or(0, |head| (ms(head) + window - now).max(0));
        let store = cost > 0 && (admitted || moved > 0);
        let remaining = limit - inside - charge;
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: first + kept },
            next: store.then(|| (log.pushed(moved, first, kept + charge, inside + charge), reset_ms)),
        }
    }

    /// The receipt is the first stamp of the charge: those that follow it are the rest.
    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, receipt: i64) -> Option<(State, i64)> {
        let SlidingLog { limit, window_ms: window, .. } = *self;
        let log = Log(state.map_or(&[], |state| &state.stamps));
        if delta < 0 {
            let from = log.above(receipt + (-delta).min(limit));
            let to = log.above(receipt.max((now - window + 1) * 1000));
            if from >= to {
                return None;
            }
            let head = log.at(if from == 0 { to } else { 0 });
            let ttl_ms = head.map_or(0, |head| ms(head) + window - now);
            return Some((log.removed(from, to), ttl_ms.min(2 * window).max(1)));
        }
        if delta == 0 {
            return None;
        }
        let Head { moved, kept, first, .. } = self.head_at(log, now);
        let inside = log.above((now - window + 1) * 1000);
        let count = kept + delta.min(limit);
        let keep = (inside - moved + count).min(limit);
        Some((log.pushed(moved, first, count, keep), ms(first + count - 1) + window - now))
    }

    /// Newest first.
    fn text(state: &State) -> String {
        let stamps: Vec<String> = state.stamps.iter().rev().map(i64::to_string).collect();
        stamps.join(" ")
    }
}

/// The newest stamp, how many of the newest are moved to now and how many of those remain, and the
/// first stamp that is free.
struct Head {
    head: Option<i64>,
    moved: i64,
    kept: i64,
    first: i64,
}

impl SlidingLog {
    fn head_at(&self, log: Log, now: i64) -> Head {
        let SlidingLog { limit, window_ms: window, .. } = *self;
        let mut head = log.at(0);
        let mut moved = 0;
        // A stamp further ahead than a whole window was left by another clock. All that are ahead
        // must be moved for good, or they would hold the limit until that time comes.
        if head.is_some_and(|head| ms(head) > now + window) {
            moved = log.above((now + 1) * 1000);
        }
        let kept = moved.min(limit);
        let first = log.at(moved).map_or(0, |stamp| stamp + 1).max(now * 1000);
        if kept > 0 {
            head = Some(first + kept - 1);
        }
        Head { head, moved, kept, first }
    }
}

fn ms(stamp: i64) -> i64 {
    stamp / 1000
}

/// Stamps, oldest first, counted from the newest.
#[derive(Clone, Copy)]
struct Log<'a>(&'a [i64]);

impl Log<'_> {
    /// The `i`-th newest.
    fn at(self, i: i64) -> Option<i64> {
        let place = self.0.len().checked_sub(1 + usize::try_from(i).ok()?)?;
        self.0.get(place).copied()
    }

    /// How many are `stamp` or newer.
    fn above(self, stamp: i64) -> i64 {
        let older = self.0.partition_point(|known| *known < stamp);
        i64::try_from(self.0.len() - older).unwrap_or(i64::MAX)
    }

    /// Without the `drop` newest, with `count` from `first` on; of all that the `keep` newest.
    fn pushed(self, drop: i64, first: i64, count: i64, keep: i64) -> State {
        let older = (keep - count).max(0);
        let old = self.range(drop, drop.saturating_add(older));
        State { stamps: old.iter().copied().chain(first + (count - keep).max(0)..first + count).collect() }
    }

    /// Without the `from`-th newest to before the `to`-th.
    fn removed(self, from: i64, to: i64) -> State {
        State { stamps: [self.range(to, i64::MAX), self.range(0, from)].concat().into() }
    }

    /// The `from`-th newest to before the `to`-th, oldest first.
    fn range(&self, from: i64, to: i64) -> &[i64] {
        let len = self.0.len();
        let place = |i: i64| len - usize::try_from(i).unwrap_or(len).min(len);
        &self.0[place(to)..place(from)]
    }
}
