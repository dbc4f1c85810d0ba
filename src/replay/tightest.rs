//! Finds the smallest number under which a limit would have refused nobody. Called by the tally.
//!
//! The search replays the requests as if nobody were refused. It starts with the smallest number; whenever the limit
//! would refuse, the number is raised to the smallest that admits. Without refusals, the usage of a key does not
//! depend on the number. The final number therefore admits every request, and one less would have refused the request
//! that raised it last.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::limiting::algorithm::{Rule, State, Step};
use crate::limiting::answer::Answer;
use crate::limiting::decision::Check;
use crate::limiting::partition::{Entry, Hashed, Partition};
use crate::replay::input::entry::ProxySign;

pub struct Tightest {
    /// The rule with the number reached so far.
    rule: Rule,
    number: i64,
    taken: bool,
    impossible: Option<&'static str>,
    /// States by the hash of the state key.
    keys: Partition<u64>,
    max_keys: usize,
    /// The key that raised the number last.
    decisive_key: Option<u64>,
    /// Keys of clients that may be proxies; at most `max_keys`.
    proxies: HashMap<u64, ProxySign>,
    /// The first sign that applies to a key for which there was no room.
    unmarked: Option<ProxySign>,
}

/// Refund of a request at its end.
pub struct NumberRefund {
    pub key: u64,
    pub delta: i64,
    pub receipt: i64,
}

pub enum NeededNumber {
    /// No cost was charged.
    Nothing,
    Number(i64),
    /// No number would suffice; contains the reason.
    None(Cow<'static, str>),
}

impl Tightest {
    pub fn new(rule: &Rule, max_keys: usize) -> Tightest {
        let number = rule.number().least;
        Tightest {
            rule: rule.with_endless_lease().as_ref().unwrap_or(rule).with_number(number),
            number,
            taken: false,
            impossible: rule.never_enough_reason(),
            keys: Partition::default(),
            max_keys,
            decisive_key: None,
            proxies: HashMap::new(),
            unmarked: None,
        }
    }

    /// Records that the client of a request with this key may be a proxy, with many clients behind it.
    pub fn mark_proxy(&mut self, key: u64, sign: ProxySign) {
        if let Some(known) = self.proxies.get_mut(&key) {
            *known = sign.min(*known);
        } else if self.proxies.len() < self.max_keys {
            self.proxies.insert(key, sign);
        } else {
            self.unmarked = Some(self.unmarked.map_or(sign, |known| sign.min(known)));
        }
    }

    /// Returns why the number may come from a proxy. If more keys were marked than are kept, any key may be one.
    pub fn find_proxy(&self) -> Option<ProxySign> {
        let key = self.decisive_key?;
        self.proxies.get(&key).copied().or(self.unmarked)
    }

    pub fn needed_number(&self) -> NeededNumber {
        match self.impossible {
            _ if !self.taken => NeededNumber::Nothing,
            Some(why) => NeededNumber::None(why.into()),
            None => NeededNumber::Number(self.number),
        }
    }

    /// Returns whether keys in use were evicted, so that more may be needed.
    pub fn is_lower_bound(&self) -> bool {
        self.keys.evicted_count() > 0
    }

    /// Charges the cost of `check`; the answer is `None` if no cost was charged.
    pub fn charge(&mut self, key: u64, check: &Check, now_ms: i64) -> Option<Answer> {
        self.taken |= check.cost > 0;
        if check.cost == 0 || self.impossible.is_some() {
            return None;
        }
        let mut step = self.decide(&self.rule, key, check, now_ms);
        if !step.answer.admitted {
            self.decisive_key = Some(key);
            self.raise_number(key, check, now_ms);
            step = self.decide(&self.rule, key, check, now_ms);
        }
        if let Some((state, ttl_ms)) = step.next {
            self.store_state(key, (state, ttl_ms), now_ms);
        }
        step.answer.admitted.then_some(step.answer)
    }

    pub fn adjust_charge(&mut self, NumberRefund { key, delta, receipt }: &NumberRefund, now_ms: i64) {
        let state = self.keys.live_state(to_hashed(key), now_ms);
        let Some((state, ttl_ms, _)) = self.rule.adjust(state, now_ms, *delta, *receipt) else { return };
        // Without expiring leases, a key without any would remain.
        let answer_now = self.rule.decide(Some(&state), now_ms, 0, 0).answer;
        if self.rule.lease_ms().is_some() && answer_now.remaining == self.number {
            self.keys.remove(to_hashed(key));
        } else {
            self.store_state(*key, (state, ttl_ms), now_ms);
        }
    }

    /// No key is exhausted, because a refusal raises the number.
    fn store_state(&mut self, key: u64, (state, ttl_ms): (State, i64), now_ms: i64) {
        let entry = Entry { state, expires_ms: now_ms.saturating_add(ttl_ms) };
        self.keys.store(to_hashed(&key), || key, (entry, false), now_ms, self.max_keys, |_| 0);
    }

    fn decide(&self, rule: &Rule, key: u64, check: &Check, now_ms: i64) -> Step<State> {
        rule.decide(self.keys.live_state(to_hashed(&key), now_ms), now_ms, check.cost, check.tag)
    }

    /// Raises the number to the smallest that admits `check`.
    fn raise_number(&mut self, key: u64, check: &Check, now_ms: i64) {
        let largest = self.rule.max_number();
        let fits = |number| self.decide(&self.rule.with_number(number), key, check, now_ms).answer.admitted;
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
        self.rule = self.rule.with_number(high);
    }
}

/// The key is a hash already.
fn to_hashed(key: &u64) -> Hashed<'_, u64> {
    Hashed { hash: *key, key }
}
