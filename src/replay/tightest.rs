//! The tightest number under which a limit would have refused nobody. In a world of its own, where
//! nobody is refused, the limit starts with the least number and gets the least larger one that
//! admits whenever it refuses. Called by the tally.
//!
//! What a key has used does not depend on the number as long as nothing is refused, so the number
//! in the end admits all, and one less would have refused the request that raised it.

use crate::limit::algo::{Rule, State, Step};
use crate::limit::answer::Answer;
use crate::limit::decision::Check;
use crate::limit::store::partition::{Entry, Hashed, Partition};

pub struct Tightest {
    /// With the number reached so far.
    rule: Rule,
    number: i64,
    taken: bool,
    impossible: Option<&'static str>,
    /// By the hash of the state key.
    keys: Partition<u64>,
    max_keys: usize,
}

/// What a request gives back at its end.
pub struct Back {
    pub key: u64,
    pub delta: i64,
    pub receipt: i64,
}

pub enum Needed {
    /// Nobody took anything.
    Nothing,
    Number(i64),
    /// No number would do; says why.
    None(&'static str),
}

impl Tightest {
    pub fn new(rule: &Rule, max_keys: usize) -> Tightest {
        let number = rule.number().least;
        Tightest {
            rule: rule.endless().as_ref().unwrap_or(rule).numbered(number),
            number,
            taken: false,
            impossible: rule.hopeless(),
            keys: Partition::default(),
            max_keys,
        }
    }

    pub fn needed(&self) -> Needed {
        match self.impossible {
            _ if !self.taken => Needed::Nothing,
            Some(why) => Needed::None(why),
            None => Needed::Number(self.number),
        }
    }

    /// Keys in use had to be forgotten: more may be needed.
    pub fn is_lower_bound(&self) -> bool {
        self.keys.forgotten() > 0
    }

    /// Takes the cost of `check`; its answer is `None` if nothing was taken.
    pub fn take(&mut self, key: u64, check: &Check, now_ms: i64) -> Option<Answer> {
        self.taken |= check.cost > 0;
        if check.cost == 0 || self.impossible.is_some() {
            return None;
        }
        let mut step = self.decide(&self.rule, key, check, now_ms);
        if !step.answer.admitted {
            self.raise(key, check, now_ms);
            step = self.decide(&self.rule, key, check, now_ms);
        }
        if let Some((state, ttl_ms)) = step.next {
            self.store(key, (state, ttl_ms), now_ms);
        }
        step.answer.admitted.then_some(step.answer)
    }

    pub fn adjust(&mut self, Back { key, delta, receipt }: &Back, now_ms: i64) {
        let state = self.keys.live(hashed(key), now_ms);
        let Some((state, ttl_ms)) = self.rule.adjust(state, now_ms, *delta, *receipt) else { return };
        // Without leases that run out, a key that holds none would stay.
        let held = self.rule.decide(Some(&state), now_ms, 0, 0).answer;
        if self.rule.lease_ms().is_some() && held.remaining == self.number {
            self.keys.remove(hashed(key));
        } else {
            self.store(*key, (state, ttl_ms), now_ms);
        }
    }

    /// No key is spent: whoever refuses gets a larger number.
    fn store(&mut self, key: u64, (state, ttl_ms): (State, i64), now_ms: i64) {
        let entry = Entry { state, expires_ms: now_ms.saturating_add(ttl_ms) };
        self.keys.store(hashed(&key), || key, (entry, false), now_ms, self.max_keys, |_| 0);
    }

    fn decide(&self, rule: &Rule, key: u64, check: &Check, now_ms: i64) -> Step<State> {
        rule.decide(self.keys.live(hashed(&key), now_ms), now_ms, check.cost, check.tag)
    }

    /// To the least number that admits `check`.
    fn raise(&mut self, key: u64, check: &Check, now_ms: i64) {
        let largest = self.rule.largest();
        let fits = |number| self.decide(&self.rule.numbered(number), key, check, now_ms).answer.admitted;
        let (mut low, mut high, mut step) = (self.number, self.number, 1);
        while !fits(high) {
            if high >= largest {
                self.impossible = Some("more would be needed than this algorithm can have");
                return;
            }
            (low, high) = (high, high.saturating_add(step).min(largest));
            step = step.saturating_mul(2);
        }
        while high - low > 1 {
            let middle = i64::midpoint(low, high);
            if fits(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        self.number = high;
        self.rule = self.rule.numbered(high);
    }
}

/// A key is a hash already.
fn hashed(key: &u64) -> Hashed<'_, u64> {
    Hashed { hash: *key, key }
}
