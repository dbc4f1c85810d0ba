//! Results of one limit in a replay. Filled by the replay, read by `text` and `json`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use crate::limiting::Verdict;
use crate::limiting::answer::Answer;
use crate::limiting::decision::Check;
use crate::limiting::key::KeyPart;
use crate::limiting::key::SourceValues;
use crate::limiting::key::shown_key::ShownValue;
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::limit::Limit;
use crate::limiting::limit::charge_rules::{ChargeCondition, OutcomeSet};
use crate::limiting::source::{Facts, Source};
use crate::limiting::usage::hash_key;
use crate::limiting::usage::sketch::{DistinctKeys, FrequentKeys};
use crate::replay::counts::LINES_MIN;
use crate::replay::in_progress::LoggedEnd;
use crate::replay::input::entry::{ProxySign, ReplayEntry};
use crate::replay::logged_facts::LoggedFacts;
use crate::replay::tightest::{NumberRefund, Tightest};
use crate::telemetry::metrics::CandidateEffect;

pub struct Tally {
    pub limit: Arc<Limit>,
    pub seen: u64,
    pub refused: u64,
    /// Requests that the limit would have admitted but another refused.
    pub refused_by_others: u64,
    /// Comparisons of a candidate with its incumbent, by their effect.
    pub effects: [u64; CandidateEffect::ALL.len()],
    /// Admitted, but delayed.
    pub delayed: u64,
    pub longest_delay_ms: i64,
    /// Charges refunded because of how the request ended.
    pub returned: u64,
    /// Requests of clients that may be proxies.
    proxied: u64,
    /// Requests to routes whose `auth` lists the limit. They are not replayed.
    pub of_auth: u64,
    pub keys: DistinctKeys,
    pub refused_keys: DistinctKeys,
    pub top: FrequentKeys,
    pub tightest: Tightest,
    pub missing: MissingData,
}

/// Requests for which the log lacks a value that the limit needs.
#[derive(Default)]
pub struct MissingData {
    /// Missing key parts, by their index in the key.
    absent: Vec<u64>,
    pub cost: u64,
    /// Missing durations, for a limit that depends on the end of a request.
    pub duration: u64,
    pub status: u64,
    /// Responses 502, 503 or 504 whose cause may be an unreachable upstream.
    pub unreachable: u64,
    /// Requests that a limit refused when they were logged.
    pub limited: u64,
    /// Requests that were not evaluated, by the missing source.
    pub unknown: Vec<(Source, u64)>,
    /// Requests shorter than the resolution of the time stamps, for a limit of concurrent requests; not evaluated.
    pub blurred: u64,
    /// Requests that were evaluated by keys in the log, by the index of the part in the key.
    logged_parts: Vec<u64>,
    /// Requests for which overrides could not be found, because the log has only hashes of keys.
    pub overrides: u64,
}

/// Number of candidates counted per listed key.
const COUNTED_PER_NAMED: usize = 20;
const COUNTED_MIN: usize = 2000;
/// Number of distinct keys that are counted exactly.
const EXACT_MAX: usize = 65_536;
/// More keys are estimated with 2^14 registers: the standard error is below 1 %.
const REGISTER_BITS: u32 = 14;

impl Tally {
    pub fn new(limit: &Arc<Limit>, max_keys: usize, top: usize) -> Tally {
        Tally {
            limit: limit.clone(),
            seen: 0,
            refused: 0,
            refused_by_others: 0,
            effects: [0; CandidateEffect::ALL.len()],
            delayed: 0,
            longest_delay_ms: 0,
            returned: 0,
            proxied: 0,
            of_auth: 0,
            keys: DistinctKeys::new(EXACT_MAX, REGISTER_BITS),
            refused_keys: DistinctKeys::new(EXACT_MAX, REGISTER_BITS),
            top: FrequentKeys::new(COUNTED_MIN.max(top * COUNTED_PER_NAMED)),
            tightest: Tightest::new(&limit.rule, max_keys),
            missing: MissingData {
                absent: vec![0; limit.counted_key().sources().count()],
                logged_parts: vec![0; limit.counted_key().0.len()],
                ..MissingData::default()
            },
        }
    }

    /// Records a decision of the store by `limit`, which has the price of the route; returns the hash of the key.
    pub fn record_decision(&mut self, limit: &Limit, check: &Check, answer: Answer, logged: &LoggedFacts) -> u64 {
        let LoggedFacts { facts, entry, no_host } = *logged;
        self.seen += 1;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&check.key);
        self.keys.add_key(hash);
        if let Some(sign) = entry.proxy_sign.filter(|_| self.limit.reads_address()) {
            self.proxied += u64::from(sign != ProxySign::ThisMachine);
            // A key without an address does not belong to one client.
            if sign == ProxySign::NamesClient || self.has_address_in_key() {
                self.tightest.mark_proxy(hash, sign);
            }
        }
        // A limit that follows another refuses in its place.
        if !answer.admitted && !check.role.base {
            self.refused += 1;
            self.refused_keys.add_key(hash);
            let counted = check.counted_key();
            let client = state_key_parts(&counted);
            self.top.add_key(hash_key(client), client, 1);
        }
        if no_host || check.key.contains('!') {
            self.count_absent(logged);
        }
        self.count_logged_parts(logged);
        let unstated = |source: &Source| match source {
            // A log contains the whole query or none.
            Source::Query(_) => facts.query.is_none(),
            source => facts.text(source, self.limit.repeated) == Ok(None),
        };
        self.missing.cost += u64::from(limit.cost.sources().iter().any(unstated));
        self.record_end(entry);
        hash
    }

    /// Records that the request was charged and perhaps delayed; returns what it refunds at its end.
    pub fn record_charge(&mut self, limit: &Limit, check: &Check, answer: Answer, ending: LoggedEnd) -> Option<Check> {
        self.delayed += u64::from(answer.retry_ms > 0);
        self.longest_delay_ms = self.longest_delay_ms.max(answer.retry_ms);
        let delta = ending.charge_delta(limit, check);
        if delta == 0 {
            return None;
        }
        self.returned += u64::from(check.rule.lease_ms().is_none());
        Some(check.clone().correction(delta, answer.receipt))
    }

    /// Does the same for the search without refusals. Keys with their own budget are not part of the search.
    pub fn record_need(
        &mut self,
        key: u64,
        (limit, check): (&Limit, &Check),
        ending: LoggedEnd,
        now_ms: i64,
    ) -> Option<NumberRefund> {
        if !Arc::ptr_eq(&check.rule, &self.limit.rule) {
            return None;
        }
        let answer = self.tightest.charge(key, check, now_ms)?;
        let delta = ending.charge_delta(limit, check);
        (delta != 0).then_some(NumberRefund { key, delta, receipt: answer.receipt })
    }

    /// Returns whether all its requests were to routes whose `auth` lists it.
    pub fn is_only_of_auth(&self) -> bool {
        self.of_auth > 0 && self.seen == 0 && self.count_unknown() == 0
    }

    /// Returns whether the limit refused, delayed or could not evaluate a request, or differs from the one that it is a
    /// candidate of.
    pub fn has_effect(&self) -> bool {
        let [_, would_refuse, would_admit] = self.effects;
        self.refused + self.delayed + self.count_unknown() + would_refuse + would_admit > 0
            || self.seen > 0 && !self.can_judge()
    }

    /// Returns whether the log shows enough about concurrency: for at least nine in ten requests.
    pub fn can_judge(&self) -> bool {
        self.missing.blurred * 10 <= self.seen + self.missing.blurred
    }

    /// Returns why the tightest number may come from a proxy.
    pub fn find_proxy(&self) -> Option<ProxySign> {
        let is_most = !self.has_address_in_key() && self.proxied * 2 > self.seen;
        let sign = self.tightest.find_proxy().or(is_most.then_some(ProxySign::Private));
        sign.filter(|sign| *sign != ProxySign::Private || self.seen > LINES_MIN)
    }

    fn has_address_in_key(&self) -> bool {
        self.limit.counted_key().sources().any(Source::reads_address)
    }

    /// Returns whether more than the tightest number may be needed.
    pub fn is_lower_bound(&self) -> bool {
        self.missing.blurred > 0 || self.count_unknown() > 0 || self.tightest.is_lower_bound()
    }

    /// Records a request that was not evaluated, because the log does not show what ran concurrently.
    pub fn record_blurred(&mut self, facts: &Facts) {
        let applies = self.limit.applies_to(facts) != Ok(false);
        self.missing.blurred += u64::from(applies);
    }

    /// Records a request that was not evaluated, because the log lacks `source`.
    pub fn record_not_evaluated(&mut self, source: &Source) {
        match self.missing.unknown.iter_mut().find(|(known, _)| known == source) {
            Some((_, count)) => *count += 1,
            None => self.missing.unknown.push((source.clone(), 1)),
        }
    }

    /// Returns the number of requests for which the limit could not be evaluated.
    pub fn count_unknown(&self) -> u64 {
        self.missing.unknown.iter().map(|(_, count)| count).sum()
    }

    /// Records a request decided without the store, for example because a key part is missing. `place` is the index of
    /// the limit in its route.
    pub fn record_unasked(&mut self, place: usize, verdict: &Verdict, logged: &LoggedFacts) {
        if self.limit.applies_to(logged.facts) == Ok(true) {
            self.count_absent(logged);
            self.count_logged_parts(logged);
        }
        if let Some(checked) = verdict.checks.iter().find(|checked| checked.limit == place) {
            self.seen += 1;
            self.refused += u64::from(!checked.outcome.is_admitted());
        }
    }

    fn record_end(&mut self, entry: &ReplayEntry) {
        let (Some(rules), missing) = (&self.limit.charge_rules, &mut self.missing) else { return };
        missing.duration += u64::from(entry.duration_ms.is_none());
        if rules.charge == ChargeCondition::Always {
            return;
        }
        missing.status += u64::from(entry.status.is_none());
        missing.limited += u64::from(entry.limited);
        if let (ChargeCondition::RefundOn(outcomes), Some(status)) = (&rules.charge, entry.status) {
            let OutcomeSet { connect_error, statuses, classes, .. } = outcomes;
            let is_listed = classes.contains(&5) || statuses.iter().any(|listed| *listed == status);
            missing.unreachable += u64::from(*connect_error && !is_listed && (502..=504).contains(&status));
        }
    }

    /// Counts missing key parts.
    fn count_absent(&mut self, logged: &LoggedFacts) {
        let parts =
            self.limit.counted_key().0.iter().flat_map(|part| part.sources().iter().map(move |source| (part, source)));
        for ((part, source), count) in parts.zip(&mut self.missing.absent) {
            let unknown = logged.no_host && *source == Source::Host;
            *count += u64::from(unknown || matches!(logged.part_value(part, self.limit.repeated), Ok(None)));
        }
    }

    /// Counts the parts whose values come from the keys in the log.
    fn count_logged_parts(&mut self, logged: &LoggedFacts) {
        let mut has_hash = false;
        for (part, count) in self.limit.counted_key().0.iter().zip(&mut self.missing.logged_parts) {
            let Some(value) = logged.logged_value(part) else { continue };
            *count += 1;
            has_hash |= matches!(value, ShownValue::Hash(_));
        }
        self.missing.overrides +=
            u64::from(has_hash && self.limit.overrides.has_any() && !self.limit.overrides.can_match_hashes());
    }

    /// Returns the parts of the key that come from the keys in the log, with the number of requests.
    pub fn logged_parts(&self) -> impl Iterator<Item = (&KeyPart, u64)> {
        self.limit.counted_key().0.iter().zip(self.missing.logged_parts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Returns the missing sources of the key by name, with the number of requests that lack them.
    pub fn absent_sources(&self) -> BTreeMap<String, (&Source, u64)> {
        let counts = self.limit.counted_key().sources().zip(self.missing.absent.iter().copied());
        counts.filter(|(_, count)| *count > 0).map(|found| (found.0.to_string(), found)).collect()
    }
}
