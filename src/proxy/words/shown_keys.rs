//! The keys that the access log and the span of a request show. Computed after the decision, and only if the request
//! is logged with keys: a hash takes about a microsecond.

use crate::limiting::answer::NEVER;
use crate::limiting::key::KeyPart;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::Limit;
use crate::limiting::source::{BodyFacts, Facts, Source, SourceKind, SourceOrigin};
use crate::limiting::{LimitResult, Verdict};
use crate::route::Route;
use crate::snapshot::decision_label;
use crate::telemetry::metrics::{CandidateEffect, Decision};
use crate::telemetry::tap::TapDecision;

/// The keys of a request, with secrets as hashes. A key with an ambiguous part is not shown.
#[derive(Default)]
pub struct ShownKeys {
    /// The key of the limit that decided.
    pub deciding: Option<String>,
    /// The parts of the keys of all limits of the route, each once.
    pub all: Option<String>,
    /// The key of each check of the verdict. Empty if they are not wanted.
    pub each: Vec<Option<String>>,
}

/// Which keys the outputs of a request contain.
#[derive(Clone, Copy, Default)]
pub struct WantedKeys {
    /// The key of the limit that decided.
    pub deciding: bool,
    /// The keys of all limits of the route, for the access log.
    pub all: bool,
    /// The key of each limit beside its decision, for taps.
    pub each: bool,
}

/// Once the parts of all keys have this length in bytes, further parts are left out.
const ALL_MAX: usize = 8 * 1024;

impl ShownKeys {
    /// Describes the keys that a log entry contains.
    pub fn describe(
        wanted: WantedKeys,
        display: &KeyDisplay,
        route: &Route,
        facts: &Facts<'_>,
        verdict: &Verdict,
    ) -> ShownKeys {
        let WantedKeys { deciding: wants_deciding, all: wants_all, each: wants_each } = wanted;
        if !wants_deciding && !wants_all && !wants_each {
            return ShownKeys::default();
        }
        let describe_key = |check: &LimitResult| {
            let (limit, mut text) = (&route.limits[check.limit], String::with_capacity(64));
            display.write_key(&mut text, limit.counted_key(), facts, limit.repeated).ok().map(|()| text)
        };
        let deciding = find_deciding_check(route, verdict).filter(|_| wants_deciding).and_then(describe_key);
        let each = if wants_each { verdict.checks.iter().map(describe_key).collect() } else { Vec::new() };
        ShownKeys { deciding, all: wants_all.then(|| describe_all(display, route, facts)), each }
    }
}

fn describe_all(display: &KeyDisplay, route: &Route, facts: &Facts) -> String {
    let mut text = String::with_capacity(128);
    let mut shown_parts = Vec::new();
    for limit in &route.limits {
        for part in &limit.counted_key().0 {
            if shown_parts.contains(&part) || text.len() > ALL_MAX || !is_known(limit, part, facts) {
                continue;
            }
            shown_parts.push(part);
            let start = text.len();
            if start > 0 {
                text.push(',');
            }
            if display.write_part(&mut text, part, facts, limit.repeated).is_err() {
                text.truncate(start);
            }
        }
    }
    text
}

/// Returns whether the facts tell the value of a part of the limit's key, or that the request has none. The body is
/// only read for limits that apply to the request.
fn is_known(limit: &Limit, part: &KeyPart, facts: &Facts) -> bool {
    let reads = |kind| part.sources().iter().any(|source| source.kind() == kind);
    if *part == KeyPart::All || !part.sources().iter().any(|source| source.kind().origin() == SourceOrigin::Body) {
        return *part != KeyPart::All;
    }
    match facts.body {
        BodyFacts::None => limit.applies_to(facts) == Ok(true),
        BodyFacts::Form(_) => reads(SourceKind::Form),
        BodyFacts::Json(_) => reads(SourceKind::Json) || part.sources().iter().any(Source::reads_calls),
        BodyFacts::UnreadableBody(_) => false,
    }
}

/// Returns the most significant check: that of the limit that refused, or see `decision_rank`.
pub fn find_deciding_check<'v>(route: &Route, verdict: &'v Verdict) -> Option<&'v LimitResult> {
    verdict.longest_refusal(&route.limits).or_else(|| {
        let rank = |check: &&LimitResult| decision_rank(decision_label(&route.limits[check.limit], check));
        verdict.checks.iter().max_by_key(rank)
    })
}

/// Returns the decision of each limit for taps. `keys`: the key of each check.
pub fn describe_decisions(route: &Route, verdict: &Verdict, keys: Vec<Option<String>>) -> Vec<TapDecision> {
    let mut keys = keys.into_iter();
    let describe = |check: &LimitResult| {
        let (limit, answer) = (&route.limits[check.limit], check.outcome.answer());
        TapDecision {
            limit: limit.name.clone(),
            decision: decision_label(limit, check),
            remaining: answer.map(|answer| answer.remaining),
            retry_after_ms: answer.map(|answer| answer.retry_ms).filter(|retry_ms| *retry_ms != NEVER),
            key: keys.next().flatten(),
            effect: verdict.effect_of(check.limit),
        }
    };
    verdict.checks.iter().map(describe).collect()
}

/// Lists the candidates whose decisions differ from their incumbents. `None` if none differs.
pub fn list_affected(route: &Route, verdict: &Verdict) -> Option<String> {
    let affected = verdict.comparisons.iter().filter(|compared| compared.effect != CandidateEffect::Agree);
    let texts: Vec<String> = affected
        .map(|compared| format!("{}={}", route.limits[compared.candidate].name, compared.effect.label()))
        .collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

/// Ranks decisions: of several limits, the log shows the one with the highest rank.
fn decision_rank(decision: Decision) -> u8 {
    match decision {
        Decision::Deny | Decision::LocalDeny | Decision::ErrorClosed => 6,
        Decision::Annotate | Decision::Divert => 5,
        Decision::Delayed => 5,
        Decision::ShadowDeny => 4,
        Decision::ErrorOpen => 3,
        Decision::LocalAllow => 2,
        Decision::Allow => 1,
        Decision::Bypass => 0,
    }
}
