//! Turns that requests give back because they do not wait for them. A store takes back only the last
//! turn of a queue, as any other would leave a hole; those that come too early are kept and brought
//! again, newest first, with those that follow. Kept by `desk`.

use std::cell::RefCell;
use std::collections::HashMap;

use tokio::time::Instant;

use super::decision::{Check, Decision};

/// By the id of the limit, then by state key.
#[derive(Default)]
pub struct Turns(RefCell<HashMap<u64, HashMap<String, Unused>>>);

#[derive(Default)]
struct Unused {
    turns: Vec<Turn>,
    /// Somebody brings the turns of this key to the store.
    under_way: bool,
}

#[derive(Debug)]
pub struct Turn {
    /// Its tag is the turn.
    pub check: Check,
    /// When it has passed, by the time that has gone by since the store gave it: the store's clock may be
    /// another than this machine's.
    pub over: Instant,
}

/// Keys of one limit of which turns are kept; of more, those that nobody brings are forgotten.
const KEYS_MAX: usize = 1024;
/// Turns of one call.
const AT_ONCE: usize = 256;

impl Turns {
    /// True if the caller has to bring the turns of its key.
    pub fn keep(&self, turn: Turn, now: Instant) -> bool {
        let mut limits = self.0.borrow_mut();
        let Check { limit, key, .. } = &turn.check;
        if !limits.contains_key(&limit.id) {
            // Of those that are no longer in the config, nothing else would be forgotten.
            limits.retain(|_, keys| keys.values().any(|unused| unused.is_of_use(now)));
        }
        let keys = limits.entry(limit.id).or_default();
        if keys.len() >= KEYS_MAX && !keys.contains_key(key) {
            keys.retain(|_, unused| unused.is_of_use(now));
        }
        if keys.len() >= KEYS_MAX && !keys.contains_key(key) {
            keys.retain(|_, unused| unused.under_way);
        }
        let unused = keys.entry(key.clone()).or_default();
        unused.turns.push(turn);
        !std::mem::replace(&mut unused.under_way, true)
    }

    /// The turns of a limit's `key` to bring now, newest first; those that have passed are of no use.
    pub fn take(&self, limit: u64, key: &str, now: Instant) -> Vec<Turn> {
        let mut limits = self.0.borrow_mut();
        let Some(unused) = limits.get_mut(&limit).and_then(|keys| keys.get_mut(key)) else { return Vec::new() };
        let mut turns = std::mem::take(&mut unused.turns);
        turns.retain(|turn| turn.over > now);
        turns.sort_by_key(|turn| std::cmp::Reverse(turn.check.tag));
        turns.truncate(AT_ONCE);
        turns
    }

    /// What came of `brought`; without an answer it is not known what became of them, and they are
    /// not brought again. True if others have come meanwhile.
    pub fn end(&self, limit: u64, key: &str, brought: Vec<Turn>, decision: Option<&Decision>) -> bool {
        let mut limits = self.0.borrow_mut();
        let Some(keys) = limits.get_mut(&limit) else { return false };
        let Some(unused) = keys.get_mut(key) else { return false };
        let more = !unused.turns.is_empty();
        if let Some(decision) = decision {
            let answers = brought.into_iter().zip(&decision.answers);
            unused.turns.extend(answers.filter(|(_, answer)| !answer.admitted).map(|(turn, _)| turn));
        }
        unused.under_way = more;
        if unused.turns.is_empty() {
            keys.remove(key);
        }
        if keys.is_empty() {
            limits.remove(&limit);
        }
        more
    }
}

impl Unused {
    fn is_of_use(&self, now: Instant) -> bool {
        self.under_way || self.turns.iter().any(|turn| turn.over > now)
    }
}
