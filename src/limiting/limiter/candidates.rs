//! Candidates (`candidate_of`): limits that are tried beside the limit that they may replace, their incumbent. A
//! candidate is in shadow mode. It is decided together with its incumbent, and charged as if it were in effect in its
//! place: for requests that no other limit refuses. The comparison of both shows which requests the replacement would
//! affect.

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
    /// Candidates whose incumbent is among the limits. One that decides several descriptors is there once for each.
    candidates: Vec<LinkedCandidate>,
}

struct LinkedLimit {
    /// The limit with its tiers and all its descriptors: the index of the first of them.
    family: u8,
    /// The limit has a say about the request.
    applies: bool,
}

/// A candidate in one decision.
struct LinkedCandidate {
    /// Index of the limit.
    index: usize,
    family: u8,
    /// Index of its incumbent, for the same descriptor.
    incumbent_index: usize,
    /// The family of its incumbent.
    incumbent: u8,
    /// The key by which the request is recorded: that of the candidate, or of the incumbent if only that applies.
    key: Option<String>,
}

impl CandidateSet {
    /// Finds the candidates among `limits`, and links the checks of all limits. `None` if there are none, and no tiers
    /// that need links, which is the case for most routes. Limits with tiers and candidates are not part of chains, so
    /// chains may be linked later.
    pub fn link(limits: &[Arc<Limit>], evaluations: &mut [Evaluation]) -> Option<CandidateSet> {
        if limits.iter().all(|limit| limit.candidate_of.is_none() && !limit.has_linked_tiers()) {
            return None;
        }
        let mut links: Vec<LinkedLimit> = Vec::with_capacity(limits.len());
        let mut candidates = Vec::new();
        for (index, (limit, evaluation)) in limits.iter().zip(evaluations.iter()).enumerate() {
            let first = limits.iter().position(|other| other.name == limit.listed_name());
            let family = to_group(first.unwrap_or(index));
            let applies = !matches!(evaluation, Evaluation::NotApplicable | Evaluation::Shared(_));
            links.push(LinkedLimit { family, applies });
            let is_decided = !limit.is_wider_tier() && !matches!(evaluation, Evaluation::Shared(_));
            let incumbent = limit.candidate_of.as_ref().filter(|_| is_decided);
            let Some(at) = incumbent.and_then(|name| find_last(&limits[..index], name)) else { continue };
            let at = if let Evaluation::Shared(place) = evaluations[at] { place } else { at };
            let key = state_key(evaluation).or_else(|| state_key(&evaluations[at])).map(str::to_owned);
            let incumbent = links[at].family;
            candidates.push(LinkedCandidate { index, family, incumbent_index: at, incumbent, key });
        }
        let set = CandidateSet { limits: links, candidates };
        let parts = join_parts(limits, evaluations);
        set.skip_refused(&parts, evaluations);
        for (index, evaluation) in evaluations.iter_mut().enumerate() {
            if let Evaluation::Check(check) = evaluation {
                let family = set.limits[index].family;
                let incumbent = set.incumbent_of(family);
                let is_incumbent = set.candidates.iter().any(|candidate| candidate.incumbent == family);
                // A limit that refuses nothing is charged as without candidates: each descriptor by itself.
                let group = match incumbent.is_some() || is_incumbent && check.role.can_refuse() {
                    true => family,
                    false => to_group(parts[index]),
                };
                check.role.link = Some(CheckLink { group, incumbent });
            }
        }
        Some(set)
    }

    /// Leaves out the checks of limits that refuse without the store, because an override blocks one of their tiers: a
    /// limit charges all of its tiers or none. An enforcing limit refuses the whole request, so this affects limits
    /// that refuse nothing.
    fn skip_refused(&self, parts: &[usize], evaluations: &mut [Evaluation]) {
        let group_of = |index: usize| match self.incumbent_of(self.limits[index].family) {
            Some(_) => usize::from(self.limits[index].family),
            None => parts[index],
        };
        let refusing: Vec<usize> =
            (0..evaluations.len()).filter(|index| refuses_at_once(&evaluations[*index])).map(group_of).collect();
        for (index, evaluation) in evaluations.iter_mut().enumerate() {
            if matches!(evaluation, Evaluation::Check(_)) && refusing.contains(&group_of(index)) {
                *evaluation = Evaluation::NotApplicable;
            }
        }
    }

    fn incumbent_of(&self, family: u8) -> Option<u8> {
        self.candidates.iter().find(|candidate| candidate.family == family).map(|candidate| candidate.incumbent)
    }

    fn family_of(&self, index: usize) -> Option<u8> {
        self.limits.get(index).map(|limit| limit.family)
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
            let incumbent = self.family_of(index).and_then(|family| self.incumbent_of(family));
            incumbent.is_some_and(|incumbent| !self.is_refused_besides(incumbent, limits, verdict))
        };
        let mut kept = indexes.iter().map(|index| is_relevant(*index)).collect::<Vec<_>>().into_iter();
        checks.retain(|_| kept.next().unwrap_or_default());
        indexes.retain(|index| is_relevant(*index));
    }

    /// Reports whether a limit that is not in the family refuses the request.
    fn is_refused_besides(&self, family: u8, limits: &[Arc<Limit>], verdict: &Verdict) -> bool {
        verdict.refusals_of(limits, Mode::Enforce).any(|checked| self.family_of(checked.limit) != Some(family))
    }

    /// Reports whether the limits of a family admit the request. `None` if some were not evaluated.
    fn admits(&self, family: u8, verdict: &Verdict) -> Option<bool> {
        let mut is_whole = true;
        for (index, _) in self.limits.iter().enumerate().filter(|(_, limit)| limit.family == family && limit.applies) {
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
        for (place, LinkedCandidate { index, family, incumbent, .. }) in self.candidates.iter().enumerate() {
            let is_compared = self.candidates[..place].iter().any(|earlier| earlier.family == *family);
            if is_compared || self.is_refused_besides(*incumbent, limits, verdict) {
                continue;
            }
            let (Some(admits), Some(would)) = (self.admits(*incumbent, verdict), self.admits(*family, verdict)) else {
                continue;
            };
            let effect = match (admits, would) {
                (true, false) => CandidateEffect::WouldRefuse,
                (false, true) => CandidateEffect::WouldAdmit,
                (true, true) | (false, false) => CandidateEffect::Agree,
            };
            if let Some(outcome) = key_outcome(effect) {
                let keys = self.affected_keys(place, outcome, verdict);
                keys.into_iter().for_each(|key| record(&limits[*index], outcome, key));
            }
            comparisons.push(ComparedCandidate { candidate: *index, effect });
        }
        comparisons
    }

    /// Returns the keys that make the difference: usually one, but of several descriptors those that are refused.
    fn affected_keys(&self, first: usize, outcome: KeyOutcome, verdict: &Verdict) -> Vec<&str> {
        let all = self.candidates[first..].iter().filter(|other| other.family == self.candidates[first].family);
        let is_refused = |candidate: &&LinkedCandidate| {
            let index = if outcome == KeyOutcome::WouldRefuse { candidate.index } else { candidate.incumbent_index };
            verdict.checks.iter().any(|checked| checked.limit == index && !checked.outcome.is_admitted())
        };
        let keys: Vec<&str> = all.filter(is_refused).filter_map(|candidate| candidate.key.as_deref()).collect();
        // A wider tier refuses.
        if keys.is_empty() { self.candidates[first].key.as_deref().into_iter().collect() } else { keys }
    }
}

/// Finds the last limit of that name: a rate limit request may have several descriptors with the same limits.
fn find_last(limits: &[Arc<Limit>], name: &str) -> Option<usize> {
    limits.iter().rposition(|limit| limit.name == name)
}

/// Divides the limits into parts that are charged together or not at all: a limit with its tiers, for one descriptor.
/// Descriptors that share the check of a tier are one part. Returns for each limit the index of the first of its part.
fn join_parts(limits: &[Arc<Limit>], evaluations: &[Evaluation]) -> Vec<usize> {
    let mut parts: Vec<usize> = Vec::with_capacity(limits.len());
    for (index, (limit, evaluation)) in limits.iter().zip(evaluations).enumerate() {
        let leader = find_last(&limits[..=index], limit.listed_name()).unwrap_or(index);
        let mut part = parts.get(leader).copied().unwrap_or(leader);
        if let Evaluation::Shared(place) = evaluation {
            let (left, joined) = (part, parts[*place]);
            parts.iter_mut().filter(|other| **other == left).for_each(|other| *other = joined);
            part = joined;
        }
        parts.push(part);
    }
    parts
}

/// Returns whether the limit refuses without the store.
fn refuses_at_once(evaluation: &Evaluation) -> bool {
    match evaluation {
        Evaluation::Blocked(..)
        | Evaluation::MissingKey(_)
        | Evaluation::Unclear(_)
        | Evaluation::UnreadableBody(_) => true,
        Evaluation::Check(_) | Evaluation::Shared(_) | Evaluation::NotApplicable | Evaluation::Unlimited(_) => false,
    }
}

fn to_group(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
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
fn state_key(evaluation: &Evaluation) -> Option<&str> {
    match evaluation {
        Evaluation::Check(check) => Some(&check.key),
        Evaluation::Blocked(_, key) => Some(key),
        _ => None,
    }
}
