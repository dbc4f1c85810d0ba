//! What one limit did in a replay. Filled by the replay, read by `text` and `json`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use crate::limit::Verdict;
use crate::limit::afterwards::{Charge, Outcomes};
use crate::limit::answer::Answer;
use crate::limit::decision::Check;
use crate::limit::limits::Limit;
use crate::limit::source::{Facts, Source};

use super::ends::Ending;
use super::entry::ReplayEntry;
use super::sketch::{Distinct, Frequent};
use super::tightest::{Back, Tightest};

pub struct Tally {
    pub limit: Arc<Limit>,
    pub seen: u64,
    pub refused: u64,
    /// Of those it would have admitted.
    pub refused_by_others: u64,
    /// Admitted, but not before their turn.
    pub delayed: u64,
    pub longest_delay_ms: i64,
    /// Charges given back because of how the request ended.
    pub returned: u64,
    pub keys: Distinct,
    pub refused_keys: Distinct,
    pub top: Frequent,
    pub tightest: Tightest,
    pub gaps: Gaps,
}

/// Requests of which the log does not say what the limit wants to know.
#[derive(Default)]
pub struct Gaps {
    /// By place among the sources of the key.
    absent: Vec<u64>,
    pub cost: u64,
    /// For a limit that follows the end of a request.
    pub duration: u64,
    pub status: u64,
    /// Answered 502, 503 or 504, perhaps because no upstream server could be reached.
    pub unreachable: u64,
    /// Refused by a limit when logged.
    pub limited: u64,
    /// Not evaluated, by what the limit reads that the log does not hold.
    pub unknown: Vec<(Source, u64)>,
    /// Not asked: shorter than the steps of the time stamps, for a limit of what runs at once.
    pub blurred: u64,
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
            refused_by_others: 0,
            delayed: 0,
            longest_delay_ms: 0,
            returned: 0,
            keys: Distinct::default(),
            refused_keys: Distinct::default(),
            top: Frequent::new(COUNTED_MIN.max(top * COUNTED_PER_NAMED)),
            tightest: Tightest::new(&limit.rule, max_keys),
            gaps: Gaps { absent: vec![0; limit.key.sources().count()], ..Gaps::default() },
        }
    }

    /// The store was asked; the hash of the key.
    pub fn asked(&mut self, check: &Check, answer: Answer, entry: &ReplayEntry, facts: &Facts, no_host: bool) -> u64 {
        self.seen += 1;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&check.key);
        self.keys.add(hash);
        // Whoever comes after another limit refuses in its place.
        if !answer.admitted && !check.role.base {
            self.refused += 1;
            self.refused_keys.add(hash);
            self.top.add(shown(&check.key));
        }
        if no_host || check.key.contains('!') {
            self.note_absent(facts, no_host);
        }
        let unstated = |source: &Source| match source {
            // The log shows the whole query, or none.
            Source::Query(_) => facts.query.is_none(),
            source => facts.text(source, self.limit.repeated) == Ok(None),
        };
        self.gaps.cost += u64::from(self.limit.cost.source().is_some_and(unstated));
        self.note_end(entry);
        hash
    }

    /// The request was charged, and may have to wait; what it gives back at its end.
    pub fn charged(&mut self, check: &Check, answer: Answer, ending: Ending) -> Option<Check> {
        self.delayed += u64::from(answer.retry_ms > 0);
        self.longest_delay_ms = self.longest_delay_ms.max(answer.retry_ms);
        let delta = ending.delta(check);
        if delta == 0 {
            return None;
        }
        self.returned += u64::from(check.rule.lease_ms().is_none());
        Some(Check { cost: delta, tag: answer.receipt, ..check.clone() })
    }

    /// The same where nobody is refused. Keys with numbers of their own need none.
    pub fn needs(&mut self, key: u64, check: &Check, ending: Ending, now_ms: i64) -> Option<Back> {
        if !Arc::ptr_eq(&check.rule, &check.limit.rule) {
            return None;
        }
        let answer = self.tightest.take(key, check, now_ms)?;
        let delta = ending.delta(check);
        (delta != 0).then_some(Back { key, delta, receipt: answer.receipt })
    }

    /// Whether the log tells enough of what runs at once: of nine in ten requests at least.
    pub fn can_judge(&self) -> bool {
        self.gaps.blurred * 10 <= self.seen + self.gaps.blurred
    }

    /// More may be needed than the tightest number.
    pub fn is_lower_bound(&self) -> bool {
        self.gaps.blurred > 0 || self.unknown() > 0 || self.tightest.is_lower_bound()
    }

    /// Not asked, as nobody can tell what the request ran beside.
    pub fn blurred(&mut self, facts: &Facts) {
        let applies = self.limit.applies(facts) != Ok(false);
        self.gaps.blurred += u64::from(applies);
    }

    /// Not asked: the limit reads `source`, which the log does not hold.
    pub fn not_evaluated(&mut self, source: &Source) {
        match self.gaps.unknown.iter_mut().find(|(known, _)| known == source) {
            Some((_, count)) => *count += 1,
            None => self.gaps.unknown.push((source.clone(), 1)),
        }
    }

    /// Requests for which the limit could not be evaluated.
    pub fn unknown(&self) -> u64 {
        self.gaps.unknown.iter().map(|(_, count)| count).sum()
    }

    /// Decided without asking, if at all: a part of the key is missing, for instance. `place` is
    /// the limit's place in its route.
    pub fn unasked(&mut self, place: usize, verdict: &Verdict, facts: &Facts, no_host: bool) {
        if self.limit.applies(facts) == Ok(true) {
            self.note_absent(facts, no_host);
        }
        if let Some(checked) = verdict.checks.iter().find(|checked| checked.limit == place) {
            self.seen += 1;
            self.refused += u64::from(!checked.outcome.admitted());
        }
    }

    fn note_end(&mut self, entry: &ReplayEntry) {
        let (Some(wants), gaps) = (&self.limit.afterwards, &mut self.gaps) else { return };
        gaps.duration += u64::from(entry.duration_ms.is_none());
        if wants.charge == Charge::Always {
            return;
        }
        gaps.status += u64::from(entry.status.is_none());
        gaps.limited += u64::from(entry.limited);
        if let (Charge::RefundOn(outcomes), Some(status)) = (&wants.charge, entry.status) {
            let Outcomes { connect_error, statuses, classes, .. } = outcomes;
            let told = classes.contains(&5) || statuses.iter().any(|told| *told == status);
            gaps.unreachable += u64::from(*connect_error && !told && (502..=504).contains(&status));
        }
    }

    /// Counts the parts that are missing.
    fn note_absent(&mut self, facts: &Facts, no_host: bool) {
        let Limit { key, repeated, .. } = &*self.limit;
        let parts = key.0.iter().flat_map(|part| part.sources().iter().map(move |source| (part, source)));
        for ((part, source), count) in parts.zip(&mut self.gaps.absent) {
            let unknown = no_host && *source == Source::Host;
            *count += u64::from(unknown || matches!(part.value(facts, *repeated), Ok(None)));
        }
    }

    /// The sources of the key that requests lack, by name, and how many lack them.
    pub fn absent(&self) -> BTreeMap<String, (&Source, u64)> {
        let counts = self.limit.key.sources().zip(self.gaps.absent.iter().copied());
        counts.filter(|(_, count)| *count > 0).map(|found| (found.0.to_string(), found)).collect()
    }
}

/// The client's part of a state key.
fn shown(key: &str) -> &str {
    let start = key.find('{').map_or(0, |at| at + 1);
    let end = key.rfind('}').unwrap_or(key.len()).max(start);
    &key[start..end]
}
