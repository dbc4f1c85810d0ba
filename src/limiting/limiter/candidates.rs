//! Candidates (`candidate_of`): limits that are tried beside the limit that they may replace, their incumbent. A
//! candidate is in shadow mode. It is decided together with its incumbent, and charged as if it were in force in its
//! place: for requests that no other limit refuses. The comparison of both tells whom the replacement would affect.

use std::sync::Arc;

use crate::limiting::chain::Evaluation;
use crate::limiting::decision::{Check, CheckLink};
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::usage::KeyOutcome;
use crate::limiting::verdict::{ComparedCandidate, Verdict};
use crate::telemetry::metrics::CandidateEffect;

/// The limits of a decision with candidates.
pub struct CandidateSet {
    limits: Vec<LinkedLimit>,
    /// Candidates whose incumbent is among the limits.
    candidates: Vec<LinkedCandidate>,
}

struct LinkedLimit {
    /// Number of the limit within the decision.
    group: u8,
    /// The limit has a say about the request.
    applies: bool,
}

/// A candidate in one decision.
struct LinkedCandidate {
    /// Index of the limit.
    index: usize,
    group: u8,
    /// The group of its incumbent.
    incumbent: u8,
    /// The key by which the request is recorded: that of the candidate, or of the incumbent if only that applies.
    key: Option<String>,
}

impl CandidateSet {
    /// Finds the candidates among `limits`, and links the checks of all limits. `None` if there are none, and no tiers that
    /// need links, which is the case for most routes.
    pub fn link(limits: &[Arc<Limit>], asks: &mut [Evaluation]) -> Option<CandidateSet> {
        if limits.iter().all(|limit| limit.candidate_of.is_none() && !limit.has_linked_tiers()) {
            return None;
        }
        let mut linked: Vec<LinkedLimit> = Vec::with_capacity(limits.len());
        let mut candidates = Vec::new();
        for (index, (limit, ask)) in limits.iter().zip(asks.iter()).enumerate() {
            // The last one: a rate limit request may have several descriptors with the same limits.
            let find = |name: &String| limits[..=index].iter().rposition(|other| other.name == *name);
            let group = u8::try_from(limit.tier_of.as_ref().and_then(find).unwrap_or(index)).unwrap_or(u8::MAX);
            linked.push(LinkedLimit { group, applies: !matches!(ask, Evaluation::NotApplicable) });
            let incumbent = limit.candidate_of.as_ref().filter(|_| !limit.is_wider_tier()).and_then(find);
            let Some(incumbent) = incumbent else { continue };
            let key = state_key(ask).or_else(|| state_key(&asks[incumbent])).map(str::to_owned);
            candidates.push(LinkedCandidate { index, group, incumbent: linked[incumbent].group, key });
        }
        let set = CandidateSet { limits: linked, candidates };
        for (limit, ask) in set.limits.iter().zip(asks) {
            if let Evaluation::Check(check) = ask {
                check.role.link = Some(CheckLink { group: limit.group, incumbent: set.incumbent_of(limit.group) });
            }
        }
        Some(set)
    }

    fn incumbent_of(&self, group: u8) -> Option<u8> {
        self.candidates.iter().find(|candidate| candidate.group == group).map(|candidate| candidate.incumbent)
    }

    fn group_of(&self, index: usize) -> Option<u8> {
        self.limits.get(index).map(|limit| limit.group)
    }

    /// Keeps only the checks of candidates that still matter, after incumbents have refused the request without the
    /// store: those whose incumbent alone refuses. `indexes` has the limit of each check.
    pub fn keep_relevant(
        &self,
        limits: &[Arc<Limit>],
        verdict: &Verdict,
        indexes: &mut Vec<usize>,
        checks: &mut Vec<Check>,
    ) {
        let is_relevant = |index: usize| {
            let incumbent = self.group_of(index).and_then(|group| self.incumbent_of(group));
            incumbent.is_some_and(|incumbent| !self.is_refused_besides(incumbent, limits, verdict))
        };
        let mut kept = indexes.iter().map(|index| is_relevant(*index)).collect::<Vec<_>>().into_iter();
        checks.retain(|_| kept.next().unwrap_or_default());
        indexes.retain(|index| is_relevant(*index));
    }

    /// Reports whether a limit that is not in the group refuses the request.
    fn is_refused_besides(&self, group: u8, limits: &[Arc<Limit>], verdict: &Verdict) -> bool {
        verdict.refusals_of(limits, Mode::Enforce).any(|checked| self.group_of(checked.limit) != Some(group))
    }

    /// Reports whether the limits of a group admit the request. `None` if some were not asked.
    fn admits(&self, group: u8, verdict: &Verdict) -> Option<bool> {
        let mut is_whole = true;
        for (index, _) in self.limits.iter().enumerate().filter(|(_, limit)| limit.group == group && limit.applies) {
            match verdict.checks.iter().find(|checked| checked.limit == index) {
                Some(checked) if !checked.outcome.is_admitted() => return Some(false),
                Some(_) => {}
                None => is_whole = false,
            }
        }
        is_whole.then_some(true)
    }

    /// Compares each candidate with its incumbent, and calls `record` with the limit and the key of each request that
    /// would be treated differently. A request that another limit refuses would be refused in any case, so nothing is
    /// compared.
    pub fn compare(
        self,
        limits: &[Arc<Limit>],
        verdict: &Verdict,
        record: impl Fn(&Limit, KeyOutcome, &str),
    ) -> Vec<ComparedCandidate> {
        let mut comparisons = Vec::with_capacity(self.candidates.len());
        for LinkedCandidate { index, group, incumbent, key } in &self.candidates {
            if self.is_refused_besides(*incumbent, limits, verdict) {
                continue;
            }
            let (Some(admits), Some(would)) = (self.admits(*incumbent, verdict), self.admits(*group, verdict)) else {
                continue;
            };
            let effect = match (admits, would) {
                (true, false) => CandidateEffect::WouldRefuse,
                (false, true) => CandidateEffect::WouldAdmit,
                (true, true) | (false, false) => CandidateEffect::Agree,
            };
            if let (Some(outcome), Some(key)) = (key_outcome(effect), key) {
                record(&limits[*index], outcome, key);
            }
            comparisons.push(ComparedCandidate { candidate: *index, effect });
        }
        comparisons
    }
}

/// Returns the outcome that is recorded for the key of a request; `None` if nothing would change for it.
fn key_outcome(effect: CandidateEffect) -> Option<KeyOutcome> {
    match effect {
        CandidateEffect::Agree => None,
        CandidateEffect::WouldRefuse => Some(KeyOutcome::WouldRefuse),
        CandidateEffect::WouldAdmit => Some(KeyOutcome::WouldAdmit),
    }
}

/// Returns the state key of an evaluation, if it has one.
fn state_key(ask: &Evaluation) -> Option<&str> {
    match ask {
        Evaluation::Check(check) => Some(&check.key),
        Evaluation::Blocked(_, key) => Some(key),
        _ => None,
    }
}
