//! Marks that can be used only once. A receipt of the admin API has one, so that it is redeemed only once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// A mark that can be used once until it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleUseMark {
    /// Random number that identifies the mark.
    pub id: u128,
    pub expires_ms: i64,
}

/// Marks used in this process. Their number is bounded, but no mark is ever accepted twice: after one is forgotten, all
/// marks that expire at the same time or before are refused.
#[derive(Default)]
pub struct UsedMarks {
    ids: BTreeSet<(i64, u128)>,
    /// Marks that expire by this time count as expired.
    floor_ms: i64,
}

/// Marks that this process has used in Redis, shared by all handles. A server that was restored from a backup may have
/// lost some.
#[derive(Clone, Default)]
pub struct SharedUsedMarks(Arc<Mutex<UsedMarks>>);

/// Result of using a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkUse {
    First,
    Again,
    Expired,
}

/// Maximum number of marks that are remembered.
const MARKS_MAX: usize = 65_536;

impl UsedMarks {
    /// Uses a mark.
    pub fn use_mark(&mut self, mark: SingleUseMark, now_ms: i64) -> MarkUse {
        if mark.expires_ms <= now_ms.max(self.floor_ms) {
            return MarkUse::Expired;
        }
        // Forgotten marks remain refused, even if the clock is set back.
        self.floor_ms = self.floor_ms.max(now_ms);
        self.ids = self.ids.split_off(&(now_ms, 0));
        if !self.ids.insert((mark.expires_ms, mark.id)) {
            return MarkUse::Again;
        }
        if self.ids.len() > MARKS_MAX
            && let Some((expires_ms, _)) = self.ids.pop_first()
        {
            self.floor_ms = self.floor_ms.max(expires_ms);
        }
        MarkUse::First
    }

    /// Releases a mark whose use had no effect, so that it can be used again.
    pub fn release_mark(&mut self, mark: SingleUseMark) {
        self.ids.remove(&(mark.expires_ms, mark.id));
    }
}

impl SharedUsedMarks {
    pub fn use_mark(&self, mark: SingleUseMark, now_ms: i64) -> MarkUse {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).use_mark(mark, now_ms)
    }

    pub fn release_mark(&self, mark: SingleUseMark) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).release_mark(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(id: u128, expires_ms: i64) -> SingleUseMark {
        SingleUseMark { id, expires_ms }
    }

    #[test]
    fn a_mark_counts_once_until_it_expires() {
        let mut marks = UsedMarks::default();
        assert_eq!(marks.use_mark(mark(1, 100), 99), MarkUse::First);
        assert_eq!(marks.use_mark(mark(1, 100), 99), MarkUse::Again);
        assert_eq!(marks.use_mark(mark(2, 100), 99), MarkUse::First);
        assert_eq!(marks.use_mark(mark(1, 100), 100), MarkUse::Expired);
        marks.use_mark(mark(3, 300), 200);
        assert_eq!(marks.ids.len(), 1, "expired ones are forgotten");
        marks.release_mark(mark(3, 300));
        assert_eq!(marks.use_mark(mark(3, 300), 200), MarkUse::First);
    }

    #[test]
    fn forgotten_receipts_are_not_accepted_again() {
        let mut marks = UsedMarks::default();
        let all: Vec<SingleUseMark> =
            (0..).zip(1000..).take(MARKS_MAX + 10).map(|(id, expires_ms)| mark(id, expires_ms)).collect();
        assert!(all.iter().all(|one| marks.use_mark(*one, 1) == MarkUse::First));
        assert_eq!(marks.ids.len(), MARKS_MAX);
        assert!(all.iter().all(|one| marks.use_mark(*one, 1) != MarkUse::First));
    }
}
