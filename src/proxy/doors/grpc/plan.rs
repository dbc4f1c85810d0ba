//! The plan of a rate limit request: which limits apply to its descriptors, and what each of them does. Pure; the
//! decisions follow in `rate_limit`.
//!
//! All checks that charge are decided together. Descriptors with 0 hits only look, and negative hits refund.

use std::mem::discriminant;
use std::net::IpAddr;
use std::sync::Arc;

use crate::envoy::rate_limit::{RateLimitDescriptor, RateLimitRequest};
use crate::envoy::rules::{ADDRESS_ENTRY, RateLimitDomain, RateLimitRule};
use crate::limiting::decision::Check;
use crate::limiting::integers::COST_MAX;
use crate::limiting::limit::Limit;
use crate::limiting::source::{BodyFacts, DescriptorEntry, Facts, LazyCalls};
use crate::limiting::{Evaluation, Limiter};
use crate::route::Route;

/// Maximum number of limits of all descriptors of a request. Their tiers do not count: otherwise, Envoy would get an
/// error for IPv6 clients and let them pass, unlike IPv4 clients, whose address has no tiers.
const LIMITS_MAX: usize = 16;

/// The entry that has the own limit of a descriptor, for `rate = "descriptor:#limit"`. No rule matches by it.
const OWN_LIMIT_ENTRY: &[u8] = b"#limit";
/// Units of limits that descriptors have themselves, by their number. The first is unknown, and no rate has it.
const OWN_LIMIT_UNITS: [&str; 7] = ["", "second", "minute", "hour", "day", "month", "year"];

/// The checks of a request, by their operation.
#[derive(Default)]
pub struct Plan {
    pub takes: Checks,
    pub peeks: Checks,
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

impl DescriptorPlan {
    /// Returns the places of a descriptor with this operation.
    fn places_of(&self, op: HitOp) -> Option<&[usize]> {
        match self {
            DescriptorPlan::Limited(own, places) if *own == op => Some(places),
            _ => None,
        }
    }
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

    /// Adds the limit with that index on the route, and returns its place.
    fn push(&mut self, limit: &Arc<Limit>, index: usize, evaluation: Evaluation) -> usize {
        self.limits.push(limit.clone());
        self.indexes.push(index);
        self.evaluations.push(evaluation);
        self.limits.len() - 1
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

/// Returns the limit that a descriptor has itself, such as `100/minute`; `None` if it has none.
fn own_limit(descriptor: &RateLimitDescriptor) -> Option<String> {
    let limit = descriptor.limit?;
    let unit = usize::try_from(limit.unit).ok().and_then(|unit| OWN_LIMIT_UNITS.get(unit))?;
    Some(format!("{}/{unit}", limit.requests_per_unit))
}

/// Returns the address of the client, if the descriptor has it.
fn find_address(entries: &[DescriptorEntry<'_>]) -> Option<IpAddr> {
    let entry = entries.iter().find(|entry| entry.key == ADDRESS_ENTRY.as_bytes())?;
    str::from_utf8(entry.value).ok()?.parse().ok()
}

/// Plans a request. If candidates make it impossible to decide, it is decided without them.
///
/// # Errors
/// The request cannot be decided, and the text says why: too many limits apply, a limit cannot read its value, or
/// descriptors share a budget in a way that has no single charge. Clients of Envoy choose the values of descriptors,
/// and by their headers also which descriptors there are. So the caller refuses the request: Envoy may let requests
/// pass whose calls fail.
pub fn make_plan(
    limiter: &Limiter,
    domain: &RateLimitDomain,
    route: &Route,
    request: &RateLimitRequest,
    facts: &Facts<'_>,
) -> Result<Plan, String> {
    let is_candidate = |index: usize| route.limits[index].candidate_of.is_some();
    plan_limits(limiter, domain, route, (request, facts), |_| true).or_else(|error| {
        match route.limits.iter().any(|limit| limit.candidate_of.is_some()) {
            true => plan_limits(limiter, domain, route, (request, facts), |index| !is_candidate(index)),
            false => Err(error),
        }
    })
}

/// Plans a request for those limits of the route for whose index `is_wanted` is true.
fn plan_limits(
    limiter: &Limiter,
    domain: &RateLimitDomain,
    route: &Route,
    (request, facts): (&RateLimitRequest, &Facts<'_>),
    is_wanted: impl Fn(usize) -> bool,
) -> Result<Plan, String> {
    let mut plan = Plan::default();
    let mut count = 0;
    let replacements = find_replacements(domain, request);
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let entries = entries_of(descriptor);
        let is_replaced = |index: usize| {
            let names = replacements.iter().filter(|(by, _)| *by != place).flat_map(|(_, rule)| &rule.replaces);
            let limit = &route.limits[index];
            names.into_iter().any(|name| limit.listed_name() == name || limit.candidate_of.as_ref() == Some(name))
        };
        let step = match domain.find_rule(&entries) {
            None => DescriptorPlan::Unmatched,
            Some(rule) if rule.limits.is_empty() => DescriptorPlan::Exempt,
            Some(rule) => {
                let limits = || rule.limits.iter().copied().filter(|index| is_wanted(*index) && !is_replaced(*index));
                count += limits().filter(|index| !route.limits[*index].is_wider_tier()).count();
                if count > LIMITS_MAX {
                    return Err(format!("more than {LIMITS_MAX} limits apply to the descriptors of the request"));
                }
                if !replacements.is_empty() && limits().next().is_none() {
                    plan.descriptors.push(DescriptorPlan::Exempt);
                    continue;
                }
                let (op, hits) = read_hits(descriptor, request);
                let reads_address = || limits().any(|index| route.limits[index].reads_address());
                let own_limit = own_limit(descriptor);
                let own_entry =
                    own_limit.as_ref().map(|limit| DescriptorEntry { key: OWN_LIMIT_ENTRY, value: limit.as_bytes() });
                let entries: Vec<_> = entries.iter().copied().chain(own_entry).collect();
                let facts = descriptor_facts(&entries, facts, reads_address)?;
                let checks = match op {
                    HitOp::Take => &mut plan.takes,
                    HitOp::Look => &mut plan.peeks,
                    HitOp::Refund => &mut plan.refunds,
                };
                let start = checks.limits.len();
                let places = limits().map(|index| {
                    add_check(limiter, checks, (rule.with_price(&route.limits[index]), index), (&facts, hits))
                });
                let places: Vec<usize> = places.collect::<Result<_, _>>()?;
                let earlier = plan.descriptors.iter().filter_map(|descriptor| descriptor.places_of(op));
                check_shared_chains(checks, route, (&places, start), earlier)?;
                DescriptorPlan::Limited(op, places)
            }
        };
        plan.descriptors.push(step);
    }
    Ok(plan)
}

/// Finds the rules that replace limits of other descriptors, with the place of their descriptor.
fn find_replacements<'d>(domain: &'d RateLimitDomain, request: &RateLimitRequest) -> Vec<(usize, &'d RateLimitRule)> {
    if !domain.has_replacements() {
        return Vec::new();
    }
    let rules = request.descriptors.iter().map(|descriptor| domain.find_rule(&entries_of(descriptor))).enumerate();
    rules.filter_map(|(place, rule)| Some((place, rule.filter(|rule| !rule.replaces.is_empty())?))).collect()
}

/// Returns the facts of one descriptor. `reads_address` tells whether one of its limits reads the address of the
/// client. If one does and the descriptor has no address, this is an error.
fn descriptor_facts<'f>(
    entries: &'f [DescriptorEntry<'f>],
    facts: &Facts<'f>,
    reads_address: impl Fn() -> bool,
) -> Result<Facts<'f>, String> {
    if find_address(entries).is_none() && reads_address() {
        return Err("a limit reads remote_address, whose value is not an IP address".to_owned());
    }
    Ok(add_descriptor(entries, facts))
}

/// Returns facts with the entries of a descriptor, and the address of the client if it has one.
pub fn add_descriptor<'f>(entries: &'f [DescriptorEntry<'f>], facts: &Facts<'f>) -> Facts<'f> {
    let client = find_address(entries).unwrap_or(facts.client);
    Facts { client, descriptor: entries, claims: None, body: BodyFacts::None, calls: LazyCalls::default(), ..*facts }
}

/// Adds a limit to the checks, and returns its place. Descriptors that use the same budget share a check, because a
/// decision reads and writes each budget once.
///
/// # Errors
/// The descriptors use the budget for two tenants or two values of `distinct`, or a live override delays requests.
fn add_check(
    limiter: &Limiter,
    checks: &mut Checks,
    (limit, index): (&Arc<Limit>, usize),
    (facts, hits): (&Facts<'_>, i64),
) -> Result<usize, String> {
    let evaluation = limiter.evaluate_hits(limit, facts, facts, hits);
    if evaluation.check().is_some_and(|check| check.rule.has_queue()) {
        return Err(format!(
            "the override of a key of the limit {} delays requests, but Envoy does not wait",
            limit.name
        ));
    }
    if let Evaluation::Check(check) = &evaluation
        && let Some(place) = find_same(checks, index, check)
    {
        if let Evaluation::Check(earlier) = &mut checks.evaluations[place] {
            if earlier.tenant != check.tenant {
                let of = if limit.distinct.is_some() { "values of `distinct`" } else { "tenants" };
                return Err(format!("two descriptors use the same budget of the limit {} for two {of}", limit.name));
            }
            earlier.cost = earlier.cost.saturating_add(check.cost).min(COST_MAX);
        }
        checks.push(limit, index, Evaluation::Shared(place));
        return Ok(place);
    }
    Ok(checks.push(limit, index, evaluation))
}

/// Checks the chains of the newest descriptor, which has these places in the checks. It shares those before `start`
/// with one of the `earlier` descriptors of the same operation.
///
/// A chain may share all of its budgets with an earlier chain, which is then charged with the sum. It must not share
/// some of them: a budget that refuses hands over to the limit after it, which would be the wrong one for one of the
/// chains.
///
/// # Errors
/// A chain shares some of its budgets.
fn check_shared_chains<'p>(
    checks: &Checks,
    route: &Route,
    (places, start): (&[usize], usize),
    earlier: impl Iterator<Item = &'p [usize]> + Clone,
) -> Result<(), String> {
    let first_limit = |place: usize| first_of_chain(route, checks.indexes[place]);
    let decides_alike = |one: usize, other: usize| {
        let is_checked = matches!(checks.evaluations[other], Evaluation::Check(_) | Evaluation::Shared(_));
        let is_same = discriminant(&checks.evaluations[one]) == discriminant(&checks.evaluations[other]);
        one == other || !is_checked && is_same && checks.indexes[one] == checks.indexes[other]
    };
    for shared in places.iter().copied().filter(|place| *place < start) {
        let limit = &checks.limits[shared];
        if limit.after.is_none() && !route.limits.iter().any(|other| other.after.as_ref() == Some(&limit.name)) {
            continue;
        }
        let chain = |places: &[usize]| -> Vec<usize> {
            places.iter().copied().filter(|place| first_limit(*place) == first_limit(shared)).collect()
        };
        // The first descriptor with the place made the check.
        let owner = earlier.clone().find(|places| places.contains(&shared)).map(chain).unwrap_or_default();
        let own = chain(places);
        if owner.len() != own.len() || !owner.iter().zip(&own).all(|(one, other)| decides_alike(*one, *other)) {
            let name = &limit.name;
            return Err(format!("two descriptors use the same budget of the limit {name}, but not of the whole chain"));
        }
    }
    Ok(())
}

/// Returns the index of the first limit of the chain that a limit is part of.
fn first_of_chain(route: &Route, index: usize) -> usize {
    let mut first = index;
    while let Some(base) = &route.limits[first].after
        && let Some(at) = route.limits.iter().position(|limit| limit.name == *base)
    {
        first = at;
    }
    first
}

/// Returns the place of an earlier check of the same budget.
fn find_same(checks: &Checks, index: usize, check: &Check) -> Option<usize> {
    let is_same = |(known, evaluation): (&usize, &Evaluation)| {
        *known == index && evaluation.check().is_some_and(|other| other.key == check.key)
    };
    checks.indexes.iter().zip(&checks.evaluations).position(is_same)
}
