//! What may happen only once, as receipts may be used. Kept by the stores.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// What may happen once, until it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Random: no two have the same.
    pub id: u128,
    pub expires_ms: i64,
}

/// The marks made in this process. Bounded, and yet none is ever accepted twice: to forget one is to
/// refuse all that expire no later.
#[derive(Default)]
pub struct Marks {
    ids: BTreeSet<(i64, u128)>,
    /// Marks that expire by then count as expired.
    floor_ms: i64,
}

/// The marks that this process has made in Redis, whatever handles on it come and go: a server that was
/// restored from a copy may know less.
#[derive(Clone, Default)]
pub struct SharedMarks(Arc<Mutex<Marks>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    First,
    Again,
    Expired,
}

/// Marks remembered.
const MARKS_MAX: usize = 65_536;

impl Marks {
    pub fn note(&mut self, mark: Mark, now_ms: i64) -> Use {
        if mark.expires_ms <= now_ms.max(self.floor_ms) {
            return Use::Expired;
        }
        // What is forgotten here stays refused, also by a clock that is set back.
        self.floor_ms = self.floor_ms.max(now_ms);
        self.ids = self.ids.split_off(&(now_ms, 0));
        if !self.ids.insert((mark.expires_ms, mark.id)) {
            return Use::Again;
        }
        if self.ids.len() > MARKS_MAX
            && let Some((expires_ms, _)) = self.ids.pop_first()
        {
            self.floor_ms = self.floor_ms.max(expires_ms);
        }
        Use::First
    }

    /// Nothing came of it: it may be used again.
    pub fn forget(&mut self, mark: Mark) {
        self.ids.remove(&(mark.expires_ms, mark.id));
    }
}

impl SharedMarks {
    pub fn note(&self, mark: Mark, now_ms: i64) -> Use {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(mark, now_ms)
    }

    pub fn forget(&self, mark: Mark) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).forget(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(id: u128, expires_ms: i64) -> Mark {
        Mark { id, expires_ms }
    }

    #[test]
    fn a_mark_counts_once_until_it_expires() {
        let mut marks = Marks::default();
        assert_eq!(marks.note(mark(1, 100), 99), Use::First);
        assert_eq!(marks.note(mark(1, 100), 99), Use::Again);
        assert_eq!(marks.note(mark(2, 100), 99), Use::First);
        assert_eq!(marks.note(mark(1, 100), 100), Use::Expired);
        marks.note(mark(3, 300), 200);
        assert_eq!(marks.ids.len(), 1, "expired ones are forgotten");
        marks.forget(mark(3, 300));
        assert_eq!(marks.note(mark(3, 300), 200), Use::First);
    }

    #[test]
    fn what_had_to_be_forgotten_is_not_accepted_again() {
        let mut marks = Marks::default();
        let all: Vec<Mark> =
            (0..).zip(1000..).take(MARKS_MAX + 10).map(|(id, expires_ms)| mark(id, expires_ms)).collect();
        assert!(all.iter().all(|one| marks.note(*one, 1) == Use::First));
        assert_eq!(marks.ids.len(), MARKS_MAX);
        assert!(all.iter().all(|one| marks.note(*one, 1) != Use::First));
    }
}
