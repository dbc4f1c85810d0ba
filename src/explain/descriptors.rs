//! Explains a rate limit request of Envoy: which `[[rls]]` applies to each descriptor, why the nearest others do not,
//! and what its limits do. The request takes the steps of `proxy::doors::grpc::rate_limit`, which charge nothing here.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::HeaderMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::config::Config;
use crate::ends::End;
use crate::envoy::pattern::{DescriptorPattern, EntryPattern, ValuePattern};
use crate::envoy::rate_limit::{
    DescriptorItem, DescriptorStatus, LimitCode, RateLimitDescriptor, RateLimitRequest, SHOULD_RATE_LIMIT,
};
use crate::envoy::rules::{RateLimitDomain, RateLimitRule};
use crate::explain::conditions::{describe_conditions, is_shown};
use crate::explain::explanation::{
    DescriptorReport, EntryReport, Explanation, LimitEffect, LimitReport, MismatchReport, OtherRoute, RateLimitReport,
    RequestDecision, StatusReport, VerdictReport,
};
use crate::explain::limit_report::{LimitFacts, describe_limit, describe_state, set_effect};
use crate::explain::limits::{list_checks, read_states};
use crate::explain::question::describe_call_error;
use crate::explain::routes::{COMPARED_MAX, SHOWN};
use crate::explain::verdict::{describe_admission, describe_refusal};
use crate::explain::walk::{ExplainContext, Findings};
use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, Op};
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::Limit;
use crate::limiting::source::{DescriptorEntry, Facts, Source};
use crate::limiting::{Evaluation, Limiter, Outcome, Verdict};
use crate::proxy::doors::grpc::plan::{self, Checks, DescriptorPlan, HitOp, Plan, entries_of};
use crate::proxy::doors::grpc::rate_limit::{Decided, DescriptorDoor, decide_descriptors};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::steps::door::{Ask, LimitDoor};
use crate::route::Route;

/// A rate limit request to explain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitInput {
    pub domain: String,
    pub descriptors: Vec<DescriptorInput>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorInput {
    pub entries: Vec<(String, String)>,
    /// 0 looks, and a negative number refunds.
    pub hits: i64,
}

impl RateLimitInput {
    /// Returns the request as the body of `POST /-/explain`.
    pub fn to_json(&self) -> Value {
        let descriptor = |input: &DescriptorInput| json!({ "entries": input.entries, "hits": input.hits });
        let descriptors: Vec<Value> = self.descriptors.iter().map(descriptor).collect();
        json!({ "rls": { "domain": self.domain, "descriptors": descriptors } })
    }

    /// Returns whether nothing is shown of the value of an entry.
    pub fn has_hidden_values(&self, display: &KeyDisplay) -> bool {
        let sources: Vec<Source> = self
            .descriptors
            .iter()
            .flat_map(|descriptor| &descriptor.entries)
            .map(|(key, _)| Source::Descriptor(key.clone()))
            .collect();
        display.hides_any(sources.iter())
    }

    /// Returns a limit of the descriptors that reads a value of which nothing is shown. The value may come from an
    /// entry with another name: a limit by `ip` reads the address in `remote_address`.
    pub fn find_hidden_limit<'c>(&self, config: &'c Config, display: &KeyDisplay) -> Option<&'c Limit> {
        let domain = config.rls.find(self.domain.as_bytes())?;
        let limits = &config.route_at(domain.route).limits;
        let question = self.to_message();
        let rules = question.descriptors.iter().filter_map(|descriptor| domain.find_rule(&entries_of(descriptor)));
        let of_rule = |rule: &'c RateLimitRule| {
            rule.limits.iter().filter_map(|index| limits.get(*index)).map(|limit| rule.with_price(limit))
        };
        let mut applied = rules.flat_map(of_rule);
        applied.find(|limit| display.hides_any(limit.sources())).map(AsRef::as_ref)
    }

    fn to_message(&self) -> RateLimitRequest {
        let item = |(key, value): &(String, String)| DescriptorItem {
            key: key.clone().into_bytes().into(),
            value: value.clone().into_bytes().into(),
        };
        let descriptor = |input: &DescriptorInput| RateLimitDescriptor {
            entries: input.entries.iter().map(item).collect(),
            limit: None,
            hits_addend: Some(input.hits.unsigned_abs()),
            is_negative_hits: input.hits < 0,
        };
        RateLimitRequest {
            domain: self.domain.clone().into_bytes().into(),
            descriptors: self.descriptors.iter().map(descriptor).collect(),
            hits_addend: 0,
        }
    }
}

/// Explains a rate limit request. Charges and refunds nothing.
pub async fn explain_rate_limit(input: &RateLimitInput, context: &ExplainContext<'_>) -> Explanation {
    let mut findings = Findings::new(context);
    let request = &mut findings.explanation.request;
    (request.method, request.path) = ("POST".to_owned(), SHOULD_RATE_LIMIT.to_owned());
    let question = input.to_message();
    findings.explanation.verdict = match (question.check_bounds(), question.find_excess()) {
        (Err(error), _) => describe_call_error(&error),
        (Ok(()), Some(excess)) => describe_undecidable(&excess),
        (Ok(()), None) => match decide_request(&question, input, context, &mut findings).await {
            Ok(verdict) => verdict,
            Err(why) => describe_undecidable(&why),
        },
    };
    findings.explanation
}

/// Describes a request that is refused because the limits cannot decide it.
fn describe_undecidable(why: &str) -> VerdictReport {
    let detail = format!("{why}, so the answer is OVER_LIMIT");
    VerdictReport { decision: RequestDecision::Reject.label().to_owned(), detail, ..VerdictReport::default() }
}

/// Decides the request. An error says why the limits cannot.
async fn decide_request(
    question: &RateLimitRequest,
    input: &RateLimitInput,
    context: &ExplainContext<'_>,
    found: &mut Findings,
) -> Result<VerdictReport, String> {
    let config = context.config;
    let domain = config.rls.find(&question.domain);
    let describe = |descriptor| describe_descriptor(descriptor, question, domain, context.display);
    let report = RateLimitReport {
        domain: input.domain.clone(),
        is_known: domain.is_some(),
        descriptors: question.descriptors.iter().map(describe).collect(),
    };
    let report = found.explanation.rls.insert(report);
    let Some(domain) = domain else {
        let detail = "no [[rls]] has this domain, so nothing limits its descriptors".to_owned();
        return Ok(VerdictReport { detail, ..describe_admission(found, None, None) });
    };
    if domain.rules().len() > COMPARED_MAX {
        let note = format!("only the first {COMPARED_MAX} [[rls]] of the domain were compared with the descriptors");
        found.explanation.notes.push(note);
    }
    let route = config.route_at(domain.route);
    let no_headers = HeaderMap::new();
    let facts = Facts {
        stated_ms: context.stated_ms,
        geo: config.geo.as_deref(),
        ..Facts::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), &route.name, &no_headers)
    };
    let mut preview =
        Preview { context, question, checks: RefCell::default(), limits: RefCell::default(), verdict: None };
    let statuses = decide_descriptors(&mut preview, (domain, route), question, &facts, None).await?;
    let limits = preview.limits.take();
    let has_limits = limits.iter().any(Option::is_some);
    for ((report, limits), status) in report.descriptors.iter_mut().zip(limits).zip(&statuses) {
        report.limits = limits.unwrap_or_default();
        report.status = Some(describe_status(status));
    }
    found.admission.verdict = preview.verdict;
    Ok(describe_end(found, route, has_limits, context.now_ms()))
}

fn describe_end(found: &Findings, route: &Route, has_limits: bool, now_ms: i64) -> VerdictReport {
    if found.admission.verdict.as_ref().is_some_and(|verdict| verdict.refused) {
        // The filter sets the status.
        return VerdictReport { status: None, ..describe_refusal(found, Some(route), &End::Exhausted.into(), now_ms) };
    }
    let mut report = describe_admission(found, Some(route), None);
    if !has_limits {
        "no limit applies to the descriptors".clone_into(&mut report.detail);
    }
    report
}

/// Takes a rate limit request through its steps without charging or refunding anything.
struct Preview<'a> {
    context: &'a ExplainContext<'a>,
    question: &'a RateLimitRequest,
    /// The checks by operation: take, look, refund.
    checks: RefCell<[PreviewedChecks; 3]>,
    /// The limits of each descriptor; `None` for one without limits.
    limits: RefCell<Vec<Option<Vec<LimitReport>>>>,
    verdict: Option<Verdict>,
}

#[derive(Default)]
struct PreviewedChecks {
    checks: Vec<Option<Check>>,
    /// Answers to a cost of 0.
    before: Vec<Option<Answer>>,
}

impl<'a> LimitDoor<'a> for Preview<'a> {
    type Limits = Route;
    type Note = ();

    fn limiter(&self) -> &'a Limiter {
        self.context.limiter
    }

    async fn decide(&self, limits: &[Arc<Limit>], evaluations: Vec<Evaluation>, ask: Ask) -> Verdict {
        let checks = list_checks(&evaluations);
        let before = read_states(self.context.limiter, &checks).await;
        let op = if ask.op == Op::Take { HitOp::Take } else { HitOp::Look };
        self.checks.borrow_mut()[op as usize] = PreviewedChecks { checks, before };
        self.context.limiter.decide(Op::Peek, limits, evaluations, false).await
    }

    fn note_decision(&self, _: &Route, _: usize, _: &Facts<'_>, _: &Verdict) {}

    fn record_decision(&mut self, _: &Route, _: &ClientAddress, verdict: Verdict, (): ()) {
        self.verdict = Some(verdict);
    }
}

impl<'a> DescriptorDoor<'a> for Preview<'a> {
    fn observe_plan(&self, plan: &Plan) {
        self.checks.borrow_mut()[HitOp::Refund as usize].checks = list_checks(&plan.refunds.evaluations);
    }

    /// The states are those before the refund.
    async fn refund(&self, checks: Vec<Check>, _: Option<Instant>) -> Vec<Option<Answer>> {
        let checks: Vec<Option<Check>> = checks.into_iter().map(Some).collect();
        read_states(self.context.limiter, &checks).await
    }

    fn observe_decided(&self, decided: &Decided, descriptors: &[DescriptorPlan], facts: &Facts<'_>) {
        let limits = self.question.descriptors.iter().zip(descriptors).map(|(descriptor, plan)| {
            let DescriptorPlan::Limited(op, places) = plan else { return None };
            let entries = entries_of(descriptor);
            let facts = plan::add_descriptor(&entries, facts);
            Some(places.iter().map(|place| self.describe_limit(decided, *op, *place, &facts)).collect())
        });
        self.limits.replace(limits.collect());
    }
}

impl Preview<'_> {
    fn describe_limit(&self, decided: &Decided, op: HitOp, place: usize, facts: &Facts<'_>) -> LimitReport {
        let (nothing, display) = (Verdict::default(), self.context.display);
        let Decided { takes, peeks, refunds, refunded } = decided;
        let (checks, verdict): (&Checks, &Verdict) = match op {
            HitOp::Take => (&takes.checks, &takes.verdict),
            HitOp::Look => (&peeks.checks, &peeks.verdict),
            HitOp::Refund => (refunds, &nothing),
        };
        let limit = &checks.limits[place];
        let previewed = &self.checks.borrow()[op as usize];
        let check = previewed.checks[place].as_ref();
        let before = if op == HitOp::Refund { refunded[place] } else { previewed.before[place] };
        let limit_facts = LimitFacts {
            limits: &checks.limits,
            index: place,
            facts,
            check,
            checked: verdict.checks.iter().find(|checked| checked.limit == place),
            verdict,
        };
        let mut report = describe_limit(limit, false);
        report.conditions = describe_conditions(limit, facts, display);
        report.compared = verdict.effect_of(place).map(|effect| effect.label().to_owned());
        limit_facts.describe(&mut report, display, before);
        if let (HitOp::Refund, Some(check)) = (op, check) {
            describe_refund(&mut report, check, before);
        }
        report
    }
}

/// Describes what a refund of the cost of `check` changes at most.
fn describe_refund(report: &mut LimitReport, check: &Check, before: Option<Answer>) {
    let Some(before) = before else {
        return set_effect(report, LimitEffect::Refunds, "the store is unavailable, so nothing is refunded");
    };
    let quota = check.rule.policy().quota;
    let after = before.remaining.saturating_add(check.cost).min(quota);
    report.state = Some(describe_state(&before, check, Some(before.remaining), Outcome::Store(before)));
    report.state.iter_mut().for_each(|state| state.remaining_after = after);
    let detail = format!("{} of {quota} left before it, at most {after} after it", before.remaining);
    set_effect(report, LimitEffect::Refunds, detail);
}

fn describe_status(status: &DescriptorStatus) -> StatusReport {
    let until_reset = status.duration_until_reset.as_ref();
    StatusReport {
        code: if status.code == LimitCode::OverLimit as i32 { "OVER_LIMIT" } else { "OK" }.to_owned(),
        limit: status.current_limit.as_ref().map(|limit| limit.name.clone()),
        remaining: status.limit_remaining,
        until_reset_ms: until_reset.map(|until| until.seconds * 1000 + i64::from(until.nanos) / 1_000_000),
    }
}

/// Describes a descriptor with the rules of its domain.
fn describe_descriptor(
    descriptor: &RateLimitDescriptor,
    question: &RateLimitRequest,
    domain: Option<&RateLimitDomain>,
    display: &KeyDisplay,
) -> DescriptorReport {
    let entries = entries_of(descriptor);
    let (op, hits) = plan::read_hits(descriptor, question);
    let operation = match op {
        HitOp::Take => "take",
        HitOp::Look => "look",
        HitOp::Refund => "refund",
    };
    let entry = |entry: &DescriptorEntry<'_>| EntryReport {
        key: text_of(entry.key),
        value: is_entry_shown(display, entry.key).then(|| text_of(entry.value)),
    };
    let rule = domain.and_then(|domain| domain.find_rule(&entries));
    DescriptorReport {
        entries: entries.iter().map(entry).collect(),
        operation: operation.to_owned(),
        hits,
        rule: rule.map(|rule| describe_pattern(&rule.pattern, display)),
        other_rules: domain.map_or_else(Vec::new, |domain| find_nearest_rules(domain, rule, &entries, display)),
        limits: Vec::new(),
        status: None,
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_entry_shown(display: &KeyDisplay, key: &[u8]) -> bool {
    is_shown(display, &Source::Descriptor(text_of(key)))
}

/// Writes a pattern as `path=/login remote_address=*`. Values that `[admin] keys` hides are left out.
fn describe_pattern(pattern: &DescriptorPattern, display: &KeyDisplay) -> String {
    let entry = |EntryPattern { key, value }: &EntryPattern| match value {
        ValuePattern::Any => format!("{key}=*"),
        value if is_entry_shown(display, key.as_bytes()) => format!("{key}={value}"),
        _ => format!("{key}=(hidden)"),
    };
    pattern.entries.iter().map(entry).collect::<Vec<_>>().join(" ")
}

/// Returns the rules that come nearest to a descriptor, without the one that applies.
fn find_nearest_rules(
    domain: &RateLimitDomain,
    applied: Option<&RateLimitRule>,
    entries: &[DescriptorEntry<'_>],
    display: &KeyDisplay,
) -> Vec<OtherRoute> {
    let rules = domain.rules().iter().take(COMPARED_MAX);
    let others = rules.filter(|rule| applied.is_none_or(|applied| applied.pattern != rule.pattern));
    let mut ranked: Vec<(&RateLimitRule, Vec<MismatchReport>)> =
        others.map(|rule| (rule, find_mismatches(&rule.pattern, entries, display))).collect();
    ranked.sort_by_key(|(rule, mismatches)| (rule.pattern.entries.len() != entries.len(), mismatches.len()));
    let describe = |(rule, mismatches): (&RateLimitRule, _)| OtherRoute {
        name: describe_pattern(&rule.pattern, display),
        mismatches,
    };
    ranked.into_iter().take(SHOWN).map(describe).collect()
}

/// Returns the conditions of a pattern that a descriptor does not meet.
fn find_mismatches(
    pattern: &DescriptorPattern,
    entries: &[DescriptorEntry<'_>],
    display: &KeyDisplay,
) -> Vec<MismatchReport> {
    let report = |condition: String, expected: &dyn ToString, found: Option<String>| MismatchReport {
        condition,
        expected: Some(expected.to_string()),
        found,
    };
    let mut mismatches = Vec::new();
    if pattern.entries.len() != entries.len() {
        let count_text = Some(entries.len().to_string());
        mismatches.push(report("number of entries".to_owned(), &pattern.entries.len(), count_text));
    }
    for (place, wanted) in pattern.entries.iter().enumerate() {
        let entry = match pattern.is_ordered {
            true => entries.get(place),
            false => entries.iter().find(|entry| entry.key == wanted.key.as_bytes()),
        };
        let is_shown = is_entry_shown(display, wanted.key.as_bytes());
        match entry {
            Some(entry) if wanted.matches(entry) => {}
            Some(entry) if entry.key != wanted.key.as_bytes() => {
                mismatches.push(report(format!("entry {}", place + 1), &wanted.key, Some(text_of(entry.key))));
            }
            Some(entry) if is_shown => {
                mismatches.push(report(wanted.key.clone(), &wanted.value, Some(text_of(entry.value))));
            }
            None if is_shown || wanted.value == ValuePattern::Any => {
                mismatches.push(report(wanted.key.clone(), &wanted.value, None));
            }
            _ => mismatches.push(MismatchReport { condition: wanted.key.clone(), ..MismatchReport::default() }),
        }
    }
    mismatches
}
