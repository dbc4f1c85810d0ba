//! `ShouldRateLimit`: decides the descriptors of a request by the limits of their rules.

use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::envoy::rate_limit::{DescriptorStatus, LimitCode, RateLimitRequest, RateLimitResponse};
use crate::envoy::rules::RateLimitDomain;
use crate::grpc::CallError;
use crate::limiting::answer::{Answer, NEVER};
use crate::limiting::decision::{Check, Op};
use crate::limiting::source::Facts;
use crate::limiting::{LimitResult, Outcome, Verdict};
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::doors::grpc::call;
use crate::proxy::doors::grpc::plan::{self, Checks, DescriptorPlan, HitOp, Plan};
use crate::proxy::doors::grpc::status;
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::steps::door::{Ask, LimitDoor};
use crate::proxy::steps::limits::{apply_decision, head_facts, note_verdict};
use crate::proxy::steps::response::problem::{fixed_response, forbid_caching};
use crate::route::Route;
use crate::telemetry::metrics::DescriptorResult;

/// Refuses a request that the limits cannot decide. Clients of Envoy choose the values of descriptors, and by their
/// headers also which descriptors there are. An error would be wrong: Envoy may let requests pass whose calls fail.
pub fn refuse_undecidable(descriptors: usize, why: &str) -> RateLimitResponse {
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    let mut response = fixed_response(StatusCode::TOO_MANY_REQUESTS, format!("{why}\n"), text);
    forbid_caching(&mut response);
    let refusal = DescriptorStatus { code: LimitCode::OverLimit.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: LimitCode::OverLimit.into(),
        statuses: vec![refusal; descriptors],
        response_headers_to_add: status::list_headers(response.headers()),
        raw_body: response.body_mut().take_full().unwrap_or_default(),
        ..RateLimitResponse::default()
    }
}

/// Decides a request.
///
/// # Errors
/// The config of the asking Envoy exceeds a bound.
pub async fn decide_request(
    request: &mut RequestContext<'_>,
    head: &ValidatedHead,
    identity: ClientAddress,
    question: &RateLimitRequest,
) -> Result<RateLimitResponse, CallError> {
    question.check_bounds()?;
    let (view, client) = (request.view, request.client);
    let metrics = &client.worker.process.metrics;
    let refuse = |why: &str| {
        question.descriptors.iter().for_each(|_| metrics.rpc.count_descriptor(DescriptorResult::Undecidable));
        Ok(refuse_undecidable(question.descriptors.len(), why))
    };
    if let Some(excess) = question.find_excess() {
        return refuse(&excess);
    }
    let config = &view.snapshot.config;
    let Some(domain) = config.rls.find(&question.domain) else {
        question.descriptors.iter().for_each(|_| metrics.rpc.count_descriptor(DescriptorResult::UnknownDomain));
        let statuses = question.descriptors.iter().map(|_| status::unlimited(0)).collect();
        return Ok(status::build_answer(request, statuses, None));
    };
    let route = config.route_at(domain.route);
    request.route = Some((domain.route, route));
    request.account.count_on_route(route, view.route_counters(domain.route));
    let no_headers = HeaderMap::new();
    let entries = question.descriptors.first().map(plan::entries_of).unwrap_or_default();
    let call = head_facts(RoutedRequest { route, head, identity: &identity }, &no_headers);
    let call = Facts { geo: config.geo.as_deref(), ..call };
    let facts = plan::add_descriptor(&entries, &call);
    let statuses = match decide_descriptors(request, (domain, route), question, &facts, call::find_end(request)).await {
        Ok(statuses) => statuses,
        Err(why) => return refuse(&why),
    };
    // The answer tells whether a limit refuses, and gets no rate limit headers itself.
    let verdict = request.admission.verdict.take().map(keep_strictest);
    Ok(status::build_answer(request, statuses, verdict.as_ref()))
}

/// A door as rate limit requests see it.
pub trait DescriptorDoor<'a>: LimitDoor<'a, Limits = Route> {
    /// Observes which limits apply to the descriptors.
    fn observe_plan(&self, _plan: &Plan) {}

    /// Refunds units, and returns the state of each key afterwards.
    fn refund(&self, checks: Vec<Check>, until: Option<Instant>) -> impl Future<Output = Vec<Option<Answer>>>;

    /// Observes what has been decided about each descriptor.
    fn observe_decided(&self, _decided: &Decided, _descriptors: &[DescriptorPlan], _facts: &Facts<'_>) {}
}

impl<'a> DescriptorDoor<'a> for RequestContext<'a> {
    fn observe_plan(&self, plan: &Plan) {
        for descriptor in &plan.descriptors {
            self.client.worker.process.metrics.rpc.count_descriptor(match descriptor {
                DescriptorPlan::Unmatched => DescriptorResult::Unmatched,
                DescriptorPlan::Exempt => DescriptorResult::Exempt,
                DescriptorPlan::Limited(..) => DescriptorResult::Limited,
            });
        }
    }

    /// While the store is unavailable, nothing is refunded: that may refuse too early, never too late.
    async fn refund(&self, checks: Vec<Check>, until: Option<Instant>) -> Vec<Option<Answer>> {
        let refund = self.limiter().refund_units(checks);
        match until {
            Some(until) => timeout_at(until, refund).await.unwrap_or_default(),
            None => refund.await,
        }
    }
}

/// Decides the descriptors by the limits of their rules, and records the decision. Returns their statuses.
///
/// # Errors
/// The limits cannot decide the request, and the text says why.
pub async fn decide_descriptors<'a, D: DescriptorDoor<'a>>(
    door: &mut D,
    (domain, route): (&RateLimitDomain, &Route),
    question: &RateLimitRequest,
    facts: &Facts<'_>,
    until: Option<Instant>,
) -> Result<Vec<DescriptorStatus>, String> {
    let plan = plan::make_plan(door.limiter(), domain, route, question, facts)?;
    door.observe_plan(&plan);
    let start = (!door.limiter().store().is_in_process()).then(std::time::Instant::now);
    let (decided, descriptors) = run_plan(door, plan, until).await;
    start.into_iter().for_each(|start| door.add_wait(start));
    door.observe_decided(&decided, &descriptors, facts);
    let statuses = descriptors.iter().map(|descriptor| decided.describe(descriptor)).collect();
    let identity = ClientAddress::of_peer(facts.client, true);
    let decision = note_verdict(door, route, 0, facts, (decided.into_verdict(), None));
    // The statuses say whether a limit refuses.
    let _ = apply_decision(door, route, &identity, decision).await;
    Ok(statuses)
}

/// Results of a plan.
pub struct Decided {
    pub takes: DecidedChecks,
    pub peeks: DecidedChecks,
    pub refunds: Checks,
    /// The state of each key after its refund, if the store reported it.
    pub refunded: Vec<Option<Answer>>,
}

/// Checks with the verdict about them.
#[derive(Default)]
pub struct DecidedChecks {
    pub checks: Checks,
    /// The results, with places in `checks` as the indexes of limits.
    pub verdict: Verdict,
}

/// Runs a plan, and returns what applies to each descriptor.
async fn run_plan<'a, D: DescriptorDoor<'a>>(
    door: &D,
    plan: Plan,
    until: Option<Instant>,
) -> (Decided, Vec<DescriptorPlan>) {
    let Plan { takes, peeks, refunds, descriptors } = plan;
    let (refunded, takes, peeks) = if peeks.is_empty() && refunds.is_empty() {
        (Vec::new(), decide_checks(door, Op::Take, takes, until).await, DecidedChecks::default())
    } else {
        // Boxed, so that the future of a plan that only charges is not larger for it.
        Box::pin(async {
            tokio::join!(
                biased;
                refund_checks(door, &refunds, until),
                decide_checks(door, Op::Take, takes, until),
                peek_checks(door, peeks, until)
            )
        })
        .await
    };
    (Decided { takes, peeks, refunds, refunded }, descriptors)
}

async fn decide_checks<'a, D: DescriptorDoor<'a>>(
    door: &D,
    op: Op,
    mut checks: Checks,
    until: Option<Instant>,
) -> DecidedChecks {
    if checks.is_empty() {
        return DecidedChecks::default();
    }
    let evaluations = std::mem::take(&mut checks.evaluations);
    let verdict = door.decide(&checks.limits, evaluations, Ask { op, until, ..Ask::HOLD }).await;
    DecidedChecks { checks, verdict }
}

async fn peek_checks<'a, D: DescriptorDoor<'a>>(door: &D, checks: Checks, until: Option<Instant>) -> DecidedChecks {
    let costs: Vec<i64> =
        checks.evaluations.iter().map(|evaluation| evaluation.check().map_or(0, |check| check.cost)).collect();
    let mut results = decide_checks(door, Op::Peek, checks, until).await;
    for result in &mut results.verdict.checks {
        // A peek returns what one more hit would leave, but it charges nothing.
        if let (Outcome::Store(answer) | Outcome::Local(answer), Some(cost)) =
            (&mut result.outcome, costs.get(result.limit))
            && answer.admitted
        {
            answer.remaining += cost;
        }
    }
    results
}

/// Refunds units. Returns the state of each key, in the order of `refunds`.
async fn refund_checks<'a, D: DescriptorDoor<'a>>(
    door: &D,
    refunds: &Checks,
    until: Option<Instant>,
) -> Vec<Option<Answer>> {
    let mut states = vec![None; refunds.limits.len()];
    let (mut places, mut checks) = (Vec::new(), Vec::new());
    for (place, evaluation) in refunds.evaluations.iter().enumerate() {
        if let Some(check) = evaluation.check() {
            places.push(place);
            checks.push(check.clone());
        }
    }
    if checks.is_empty() {
        return states;
    }
    let answers = door.refund(checks, until).await;
    places.into_iter().zip(answers).for_each(|(place, answer)| states[place] = answer);
    states
}

impl Decided {
    /// Returns the status of a descriptor.
    fn describe(&self, descriptor: &DescriptorPlan) -> DescriptorStatus {
        match descriptor {
            DescriptorPlan::Unmatched => status::unlimited(0),
            DescriptorPlan::Exempt => status::unlimited(u32::MAX),
            DescriptorPlan::Limited(HitOp::Take, places) => self.takes.describe(places),
            DescriptorPlan::Limited(HitOp::Look, places) => self.peeks.describe(places),
            DescriptorPlan::Limited(HitOp::Refund, places) => {
                let state = |place: &usize| (&self.refunds.limits[*place], self.refunded[*place].as_ref());
                status::describe_refunds(places.iter().map(state))
            }
        }
    }

    /// Returns the verdict of all limits that decided. Its indexes are those of the limits of the route.
    fn into_verdict(self) -> Verdict {
        let (takes, peeks) = (self.takes.into_verdict(), self.peeks.into_verdict());
        let is_refused = takes.refused || peeks.refused;
        Verdict { refused: is_refused, ..takes.followed_by(peeks) }
    }
}

impl DecidedChecks {
    fn describe(&self, places: &[usize]) -> DescriptorStatus {
        let results = self.verdict.checks.iter().filter(|result| places.contains(&result.limit));
        status::describe_results(results.map(|result| (&self.checks.limits[result.limit], result)))
    }

    fn into_verdict(mut self) -> Verdict {
        let indexes = &self.checks.indexes;
        self.verdict.checks.iter_mut().for_each(|result| result.limit = indexes[result.limit]);
        self.verdict.refused_keys.iter_mut().for_each(|refused| refused.limit = indexes[refused.limit]);
        self.verdict.comparisons.iter_mut().for_each(|compared| compared.candidate = indexes[compared.candidate]);
        self.verdict
    }
}

/// Keeps one result of each limit, because a list of rate limit headers has each limit once: the one that refuses for
/// longest, or leaves least.
fn keep_strictest(mut verdict: Verdict) -> Verdict {
    let rank = |result: &LimitResult| match result.outcome.answer() {
        Some(answer) if !answer.admitted => (0, if answer.retry_ms == NEVER { i64::MIN } else { -answer.retry_ms }),
        Some(answer) => (2, answer.remaining),
        None if !result.outcome.is_admitted() => (1, 0),
        None => (3, 0),
    };
    verdict.checks.sort_by_key(|result| (result.limit, rank(result)));
    verdict.checks.dedup_by_key(|result| result.limit);
    verdict
}
