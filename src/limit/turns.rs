//! Turns that requests give back because they do not wait for them. A store takes back only the last
//! turn of a queue, as any other would leave a hole; those that come too early are kept and brought
//! again, newest first, with those that follow. Kept by `desk`.

use std::cell::RefCell;
use std::collections::HashMap;

use super::decision::{Check, Decision};

/// By state key.
#[derive(Default)]
pub struct Turns(RefCell<HashMap<String, Unused>>);

#[derive(Default)]
struct Unused {
    turns: Vec<Check>,
    /// Somebody brings the turns of this key to the store.
    under_way: bool,
}

/// Keys of which turns are kept; of more, those that nobody brings are forgotten.
const KEYS_MAX: usize = 1024;
/// Turns of one call.
const AT_ONCE: usize = 256;

impl Turns {
    /// Keeps `check`, whose tag is the turn. True if the caller has to bring the turns of its key.
    pub fn keep(&self, check: Check) -> bool {
        let mut keys = self.0.borrow_mut();
        if keys.len() >= KEYS_MAX {
            keys.retain(|_, unused| unused.under_way);
        }
        let unused = keys.entry(check.key.clone()).or_default();
        unused.turns.push(check);
        !std::mem::replace(&mut unused.under_way, true)
    }

    /// The turns of `key` to bring now, newest first; those that have passed by the clock of their
    /// store are of no use.
    pub fn take(&self, key: &str, now_ms: i64) -> Vec<Check> {
        let mut keys = self.0.borrow_mut();
        let Some(unused) = keys.get_mut(key) else { return Vec::new() };
        let now_us = now_ms.saturating_mul(1000);
        let mut turns = std::mem::take(&mut unused.turns);
        turns.retain(|check| check.tag > now_us);
        turns.sort_by_key(|check| std::cmp::Reverse(check.tag));
        turns.truncate(AT_ONCE);
        turns
    }

    /// What came of `brought`; without an answer it is not known what became of them, and they are
    /// not brought again. True if others have come meanwhile.
    pub fn end(&self, key: &str, brought: Vec<Check>, decision: Option<&Decision>) -> bool {
        let mut keys = self.0.borrow_mut();
        let Some(unused) = keys.get_mut(key) else { return false };
        let more = !unused.turns.is_empty();
        if let Some(decision) = decision {
            let answers = brought.into_iter().zip(&decision.answers);
            unused.turns.extend(answers.filter(|(_, answer)| !answer.admitted).map(|(check, _)| check));
        }
        unused.under_way = more;
        if unused.turns.is_empty() {
            keys.remove(key);
        }
        more
    }
}
