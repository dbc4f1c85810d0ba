//! What one limit did in a replay. Filled by the replay, read by `render`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::limit::Verdict;
use crate::limit::decision::{Check, Decision};
use crate::limit::key::{self, Cost, Facts, KeyPart, Missing};
use crate::limit::rule::Limit;

use super::sketch::{Distinct, Frequent};
use super::tightest::Tightest;

pub struct Tally {
    pub limit: Arc<Limit>,
    pub seen: u64,
    pub refused: u64,
    pub keys: Distinct,
    pub refused_keys: Distinct,
    pub top: Frequent,
    pub tightest: Tightest,
    /// Requests without a part of the key, by part.
    pub absent: BTreeMap<String, u64>,
    /// Requests whose cost is not in the log.
    pub cost_absent: u64,
}

/// Counted for each key that is named in the end.
const COUNTED_PER_NAMED: usize = 20;
const COUNTED_MIN: usize = 2000;

impl Tally {
    pub fn new(limit: &Arc<Limit>, max_keys: usize, top: usize) -> Tally {
        Tally {
            limit: limit.clone(),
            seen: 0,
            refused: 0,
            keys: Distinct::default(),
            refused_keys: Distinct::default(),
            top: Frequent::new(COUNTED_MIN.max(top * COUNTED_PER_NAMED)),
            tightest: Tightest::new(&limit.rule, max_keys),
            absent: BTreeMap::new(),
            cost_absent: 0,
        }
    }

    /// `place` is the limit's place in its route.
    pub fn add(
        &mut self,
        place: usize,
        verdict: &Verdict,
        asked: Option<&(Vec<Check>, Decision)>,
        facts: &Facts,
        no_host: bool,
        now_ms: i64,
    ) {
        let found = asked.and_then(|(checks, decision)| {
            let place = checks.iter().position(|check| Arc::ptr_eq(&check.limit, &self.limit))?;
            Some((&checks[place], decision.answers.get(place)?.admitted))
        });
        if let Some((check, admitted)) = found {
            self.asked(check, admitted, facts, no_host, now_ms);
            return;
        }
        self.note_absent(facts, no_host);
        // Decided without asking: a part of the key is missing, for instance.
        if let Some(checked) = verdict.checks.iter().find(|checked| checked.limit == place) {
            self.seen += 1;
            self.refused += u64::from(!checked.outcome.admitted());
        }
    }

    fn asked(&mut self, check: &Check, admitted: bool, facts: &Facts, no_host: bool, now_ms: i64) {
        self.seen += 1;
        let mut hasher = DefaultHasher::new();
        check.key.hash(&mut hasher);
        let hash = hasher.finish();
        self.keys.add(hash);
        self.tightest.add(hash, check.cost, now_ms);
        // Whoever comes after another limit refuses in its place.
        if !admitted && !check.role.base {
            self.refused += 1;
            self.refused_keys.add(hash);
            self.top.add(shown(&check.key));
        }
        if no_host || check.key.contains('!') {
            self.note_absent(facts, no_host);
        }
        self.cost_absent += u64::from(match &self.limit.cost {
            Cost::Fixed(_) => false,
            Cost::Header(name) => !facts.headers.contains_key(name),
            Cost::Query(_) => facts.query.is_none(),
        });
    }

    /// Counts the parts that the state key marks as missing.
    fn note_absent(&mut self, facts: &Facts, no_host: bool) {
        let Limit { name, rule, key, .. } = &*self.limit;
        if no_host && key.0.contains(&KeyPart::Host) {
            *self.absent.entry("host".to_owned()).or_default() += 1;
        }
        let Some(text) = key::state_key("", name, rule.name(), key, Missing::Shared, facts) else { return };
        for part in shown(&text).split(',').filter_map(|part| part.strip_suffix('!')) {
            match self.absent.get_mut(part) {
                Some(count) => *count += 1,
                None => *self.absent.entry(part.to_owned()).or_default() += 1,
            }
        }
    }
}

/// The client's part of a state key.
fn shown(key: &str) -> &str {
    let start = key.find('{').map_or(0, |at| at + 1);
    let end = key.rfind('}').unwrap_or(key.len()).max(start);
    &key[start..end]
}
