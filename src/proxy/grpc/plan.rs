//! The plan of a rate limit request: which limits apply to its descriptors, and what each of them does. Pure; the
//! decisions follow in `rate_limit`.
//!
//! All checks that charge are decided together. Descriptors with 0 hits only look, and negative hits refund.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::HeaderMap;

use crate::envoy::rate_limit::{RateLimitDescriptor, RateLimitRequest};
use crate::envoy::rules::{ADDRESS_ENTRY, RateLimitDomain, RateLimitRule};
use crate::grpc::{CallError, GrpcCode};
use crate::limiting::decision::Check;
use crate::limiting::integers::COST_MAX;
use crate::limiting::limit::Limit;
use crate::limiting::source::{BodyFacts, DescriptorEntry, Facts};
use crate::limiting::{Evaluation, Limiter};
use crate::route::Route;

/// The most limits of all descriptors of a request: one store decision carries no more.
const LIMITS_MAX: usize = 16;

/// The checks of a request, by their operation.
#[derive(Default)]
pub struct Plan {
    pub takes: Checks,
    pub looks: Checks,
    pub refunds: Checks,
    /// The part of each descriptor.
    pub descriptors: Vec<DescriptorPlan>,
}

/// The checks that decide one descriptor.
#[derive(Debug, PartialEq, Eq)]
pub enum DescriptorPlan {
    /// No rule matches it.
    Unmatched,
    /// The rule of the descriptor has no limits.
    Exempt,
    /// Places in the checks of its operation.
    Limited(HitOp, Vec<usize>),
}

/// The operation of the hits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitOp {
    Take,
    Look,
    Refund,
}

/// Limits with their evaluations, in the order of the descriptors.
#[derive(Default)]
pub struct Checks {
    pub limits: Vec<Arc<Limit>>,
    pub evaluations: Vec<Evaluation>,
    /// Index of each limit among the limits of the route.
    pub indexes: Vec<usize>,
}

impl Checks {
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }
}

/// Hits of a descriptor: what they do, and how many there are.
pub fn read_hits(descriptor: &RateLimitDescriptor, request: &RateLimitRequest) -> (HitOp, i64) {
    let hits = descriptor.hits_addend.unwrap_or(match request.hits_addend {
        0 => 1,
        hits => hits.into(),
    });
    let units = i64::try_from(hits).unwrap_or(i64::MAX);
    match units {
        // What one hit would get.
        0 => (HitOp::Look, 1),
        _ if descriptor.is_negative_hits => (HitOp::Refund, units),
        _ => (HitOp::Take, units),
    }
}

/// Returns the entries of a descriptor.
pub fn entries_of(descriptor: &RateLimitDescriptor) -> Vec<DescriptorEntry<'_>> {
    descriptor.entries.iter().map(|entry| DescriptorEntry { key: &entry.key, value: &entry.value }).collect()
}

/// Returns the address of the client, if the descriptor has it.
pub fn find_address(entries: &[DescriptorEntry<'_>]) -> Option<IpAddr> {
    let entry = entries.iter().find(|entry| entry.key == ADDRESS_ENTRY.as_bytes())?;
    str::from_utf8(entry.value).ok()?.parse().ok()
}

/// Plans a request.
///
/// # Errors
/// The request cannot be decided: it has too many limits, or values that they cannot read.
pub fn make_plan(
    limiter: &Limiter,
    domain: &RateLimitDomain,
    route: &Route,
    request: &RateLimitRequest,
    facts: &Facts<'_>,
) -> Result<Plan, CallError> {
    let mut plan = Plan::default();
    let mut count = 0;
    for descriptor in &request.descriptors {
        let entries = entries_of(descriptor);
        let step = match domain.find_rule(&entries) {
            None => DescriptorPlan::Unmatched,
            Some(rule) if rule.limits.is_empty() => DescriptorPlan::Exempt,
            Some(rule) => {
                count += rule.limits.len();
                if count > LIMITS_MAX {
                    let what = format!("more than {LIMITS_MAX} limits apply to the descriptors of the request");
                    return Err(CallError::new(GrpcCode::InvalidArgument, what));
                }
                let (op, hits) = read_hits(descriptor, request);
                let facts = descriptor_facts(rule, &entries, facts)?;
                let checks = match op {
                    HitOp::Take => &mut plan.takes,
                    HitOp::Look => &mut plan.looks,
                    HitOp::Refund => &mut plan.refunds,
                };
                let places = rule.limits.iter().map(|index| add_check(limiter, checks, route, *index, (&facts, hits)));
                DescriptorPlan::Limited(op, places.collect::<Result<_, _>>()?)
            }
        };
        plan.descriptors.push(step);
    }
    Ok(plan)
}

/// Returns the facts of one descriptor. An error means that a limit of the rule reads the address of the client, which
/// the descriptor does not have.
fn descriptor_facts<'f>(
    rule: &RateLimitRule,
    entries: &'f [DescriptorEntry<'f>],
    facts: &Facts<'f>,
) -> Result<Facts<'f>, CallError> {
    if rule.reads_address && find_address(entries).is_none() {
        let what = "the value of remote_address is no IP address, but a limit reads it";
        return Err(CallError::new(GrpcCode::InvalidArgument, what));
    }
    Ok(add_descriptor(entries, facts))
}

/// Returns facts with the entries of a descriptor, and the address of the client if it has one.
pub fn add_descriptor<'f>(entries: &'f [DescriptorEntry<'f>], facts: &Facts<'f>) -> Facts<'f> {
    let client = find_address(entries).unwrap_or(facts.client);
    Facts { client, descriptor: entries, claims: None, body: BodyFacts::None, ..*facts }
}

/// Returns facts that know only the route.
pub fn bare_facts<'f>(route: &'f Route, no_headers: &'f HeaderMap) -> Facts<'f> {
    Facts {
        client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        method: "",
        host: "",
        path: "",
        query: None,
        headers: no_headers,
        route: &route.name,
        params: &[],
        claims: None,
        certificate: None,
        user: None,
        body: BodyFacts::None,
        descriptor: &[],
        body_length: None,
    }
}

/// Adds a limit to the checks, and returns its place. Descriptors that use the same budget share a check, because a
/// decision reads and writes each budget once.
fn add_check(
    limiter: &Limiter,
    checks: &mut Checks,
    route: &Route,
    index: usize,
    (facts, hits): (&Facts<'_>, i64),
) -> Result<usize, CallError> {
    let limit = &route.limits[index];
    let evaluation = evaluate(limiter, limit, facts, hits);
    if let Evaluation::Check(check) = &evaluation
        && let Some(place) = find_same(checks, index, check)
    {
        let is_chained = route.limits.iter().any(|other| other.after.as_ref() == Some(&limit.name));
        if is_chained || limit.after.is_some() {
            let what = format!(
                "two descriptors use the same budget of the limit {}, which comes after or before another",
                limit.name
            );
            return Err(CallError::new(GrpcCode::InvalidArgument, what));
        }
        if let Evaluation::Check(earlier) = &mut checks.evaluations[place] {
            if earlier.tenant != check.tenant {
                let what = format!("two descriptors use the same budget of the limit {} for two tenants", limit.name);
                return Err(CallError::new(GrpcCode::InvalidArgument, what));
            }
            earlier.cost = earlier.cost.saturating_add(check.cost).min(COST_MAX);
        }
        return Ok(place);
    }
    checks.limits.push(limit.clone());
    checks.indexes.push(index);
    checks.evaluations.push(evaluation);
    Ok(checks.limits.len() - 1)
}

/// Returns the place of an earlier check of the same budget.
fn find_same(checks: &Checks, index: usize, check: &Check) -> Option<usize> {
    let is_same = |(known, evaluation): (&usize, &Evaluation)| {
        *known == index && matches!(evaluation, Evaluation::Check(other) if other.key == check.key)
    };
    checks.indexes.iter().zip(&checks.evaluations).position(is_same)
}

/// Evaluates a limit for one descriptor. Each hit costs what a request costs.
fn evaluate(limiter: &Limiter, limit: &Arc<Limit>, facts: &Facts<'_>, hits: i64) -> Evaluation {
    match limit.applies_to(facts) {
        Ok(false) => Evaluation::NotApplicable,
        Err(unclear) => Evaluation::Unclear(unclear),
        Ok(true) => match limit.cost_of(facts) {
            Ok(cost) => limiter.evaluate(limit, facts, cost.saturating_mul(hits).min(COST_MAX)),
            Err(unclear) => Evaluation::Unclear(unclear),
        },
    }
}
