//! Makes the facts of a request, decides its limits, and records the decision. Every door passes here, whether the
//! request is to be served, answered, explained or tested.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;

use crate::config::Config;
use crate::limiting::key::Key;
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::TokenClaims;
use crate::limiting::source::{Facts, SourceOrigin};
use crate::limiting::{Evaluation, Verdict};
use crate::proxy::account::request_context::{Places, RequestContext, RoutedRequest};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::steps::door::{Ask, Door, LimitDelay, LimitDoor};
use crate::proxy::steps::request_body::KeyBody;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::upstream::balance;

/// Limits of a route that decide together, evaluated as far as that is possible without a store.
pub struct EvaluatedLimits<'f> {
    pub facts: Facts<'f>,
    /// Index of the first of them among the limits of the route.
    first: usize,
    pub evaluations: Vec<Evaluation>,
}

impl<'f> EvaluatedLimits<'f> {
    fn evaluate<'a, D: LimitDoor<'a>>(door: &D, limits: &D::Limits, indexes: Range<usize>, facts: Facts<'f>) -> Self {
        let first = indexes.start;
        let evaluations = door.evaluate(&limits.as_ref()[indexes], &facts);
        EvaluatedLimits { facts, first, evaluations }
    }

    /// Leaves out the limits that have decided already.
    fn skip_decided(&mut self, earlier: &Verdict) {
        let places = earlier.checks.iter().filter_map(|checked| checked.limit.checked_sub(self.first));
        places.for_each(|place| self.evaluations[place] = Evaluation::NotApplicable);
    }
}

/// The decision of limits, before it is applied to the request. `N` is the note of the door.
pub struct LimitDecision<'r, N> {
    /// The verdict of these limits and of those before them.
    verdict: Verdict,
    note: N,
    delay: Option<LimitDelay<'r>>,
}

/// Applies the route's limits, unless the client is on the route's `allow` list, and takes the places that the request
/// needs. A request that a `leaky_bucket` delays waits here.
///
/// The request takes its places right before the decision, so a request without a place is charged nothing. A request
/// holds no place while it waits for its body or its turn.
pub async fn apply_limits<'a, D: Door<'a>>(
    door: &mut D,
    routed: RoutedRequest<'_>,
    offers_switch: bool,
) -> Result<Places, Refusal> {
    let route = routed.route;
    let first = route.auth_limit_count();
    if is_exempt(door, routed, first..route.limits.len()) {
        return door.take_places(routed, offers_switch);
    }
    let needs_claims = needs_claims(door, &route.limits[first..]);
    await_token_keys(door, needs_claims).await;
    let body = read_key_body(door, routed, needs_claims).await?;
    let mut places = door.take_places(routed, offers_switch)?;
    let earlier = door.admission_mut().verdict.take();
    let mut facts = request_facts(door, routed, needs_claims);
    facts.body = body.facts();
    let mut limits = EvaluatedLimits::evaluate(door, route, first..route.limits.len(), facts);
    earlier.iter().for_each(|earlier| limits.skip_decided(earlier));
    let decision = decide_limits(door, route, limits, Ask::HOLD, earlier).await;
    match record_decision(door, route, routed.identity, decision) {
        Ok(None) => {}
        Ok(Some(delay)) => {
            door.return_places(places);
            wait_for_turn(door, delay).await;
            places = match door.take_places(routed, offers_switch) {
                Ok(places) => places,
                Err(refusal) => {
                    door.refund_charges();
                    return Err(refusal);
                }
            };
        }
        Err(refusal) => {
            door.return_places(places);
            return Err(refuse_calls(door, route, body, refusal).await);
        }
    }
    door.end_delay();
    door.pass_body(&body, routed.head.server_path());
    Ok(places)
}

/// Returns the refusal, for which the door knows the calls in the body then.
async fn refuse_calls<'a, D: Door<'a>>(door: &mut D, route: &Route, body: KeyBody, refusal: Refusal) -> Refusal {
    // Boxed, so that the future of a request that is admitted is not larger for it.
    Box::pin(door.read_refused_calls(route, body)).await;
    refusal
}

/// Applies the limits that `auth` lists, unless the client is on the route's `allow` list. They are decided before
/// credentials are verified, and do not know the identity.
pub async fn apply_auth_limits<'a, D: Door<'a>>(door: &mut D, routed: RoutedRequest<'_>) -> Result<(), Refusal> {
    let route = routed.route;
    let indexes = 0..route.auth_limit_count();
    if is_exempt(door, routed, indexes.clone()) {
        return Ok(());
    }
    let limits = EvaluatedLimits::evaluate(door, route, indexes, request_facts(door, routed, false));
    let decision = decide_limits(door, route, limits, Ask::HOLD, None).await;
    match apply_decision(door, route, routed.identity, decision).await {
        Ok(()) => Ok(()),
        Err(refusal) => Err(refuse_calls(door, route, KeyBody::None, refusal).await),
    }
}

/// Applies all limits of the route to a request that another proxy describes, unless the client is on the route's
/// `allow` list.
pub async fn apply_described_limits<'a, D: Door<'a>>(
    door: &mut D,
    routed: RoutedRequest<'_>,
    ask: Ask,
) -> Result<(), Refusal> {
    let route = routed.route;
    if is_exempt(door, routed, 0..route.limits.len()) {
        return Ok(());
    }
    await_token_keys(door, needs_claims(door, &route.limits)).await;
    let limits = evaluate_described(door, routed);
    let decision = decide_limits(door, route, limits, ask, None).await;
    apply_decision(door, route, routed.identity, decision).await
}

/// Applies limits that a caller names. The door knows the values that they read.
pub async fn apply_named_limits<'a, D: LimitDoor<'a>>(
    door: &mut D,
    named: &D::Limits,
    ask: Ask,
) -> Result<(), Refusal> {
    let no_headers = HeaderMap::new();
    let facts = Facts::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), "", &no_headers);
    let client = ClientAddress::of_peer(facts.client, true);
    let limits = EvaluatedLimits::evaluate(door, named, 0..named.as_ref().len(), facts);
    let decision = decide_limits(door, named, limits, ask, None).await;
    apply_decision(door, named, &client, decision).await
}

/// Returns whether no limit at these indexes applies: there is none, or the client is on the route's `allow` list,
/// which is recorded.
pub fn is_exempt<'a, D: Door<'a>>(door: &mut D, routed: RoutedRequest<'_>, indexes: Range<usize>) -> bool {
    if indexes.is_empty() {
        return true;
    }
    let is_allowed = door.is_client_in(&routed.route.allow, routed.identity);
    if is_allowed {
        door.record_bypass(routed.route, indexes);
    }
    is_allowed
}

/// Decides limits of a route or list, and records how long the request waits for a store outside this process.
/// `earlier`: the verdict of the limits before them.
pub async fn decide_limits<'r, 'a, D: LimitDoor<'a>>(
    door: &D,
    all: &'r D::Limits,
    EvaluatedLimits { facts, first, evaluations }: EvaluatedLimits<'_>,
    ask: Ask,
    earlier: Option<Verdict>,
) -> LimitDecision<'r, D::Note> {
    let limits = &all.as_ref()[first..first + evaluations.len()];
    // The request reserves its waiting slot before the decision. Otherwise the store could assign a queue position to a
    // request that cannot wait.
    let (mut verdict, slot) = match door.reserve_slots(limits, &evaluations) {
        Ok(slot) => {
            let start = (!door.limiter().store().is_in_process()).then(Instant::now);
            let verdict = door.decide(limits, evaluations, ask).await;
            start.into_iter().for_each(|start| door.add_wait(start));
            (verdict, slot)
        }
        Err(place) => (Verdict::queue_full(place), None),
    };
    let delay = verdict.delay_ms(limits).zip(slot).map(|((place, delay_ms), slot)| LimitDelay {
        limit: &limits[place],
        duration: Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0)),
        slot,
    });
    verdict.shift_indexes(first);
    LimitDecision { delay, ..note_verdict(door, all, first, &facts, (verdict, earlier)) }
}

/// Counts the verdict of the limits from index `first` on, and notes what logs or explanations show of it. `earlier`:
/// the verdict of the limits before them.
pub fn note_verdict<'r, 'a, D: LimitDoor<'a>>(
    door: &D,
    limits: &D::Limits,
    first: usize,
    facts: &Facts<'_>,
    (verdict, earlier): (Verdict, Option<Verdict>),
) -> LimitDecision<'r, D::Note> {
    door.count_decision(limits, &verdict);
    let verdict = match earlier {
        Some(earlier) => earlier.followed_by(verdict),
        None => verdict,
    };
    let note = door.note_decision(limits, first, facts, &verdict);
    LimitDecision { verdict, note, delay: None }
}

/// Records a decision, and waits if a limit delays the request.
pub async fn apply_decision<'a, D: LimitDoor<'a>>(
    door: &mut D,
    limits: &D::Limits,
    client: &ClientAddress,
    decision: LimitDecision<'_, D::Note>,
) -> Result<(), Refusal> {
    if let Some(delay) = record_decision(door, limits, client, decision)? {
        wait_for_turn(door, delay).await;
    }
    door.end_delay();
    Ok(())
}

/// Records a decision. Returns the delay of a request that has to wait. The caller calls [`LimitDoor::end_delay`] once
/// the request proceeds.
fn record_decision<'r, 'a, D: LimitDoor<'a>>(
    door: &mut D,
    limits: &D::Limits,
    client: &ClientAddress,
    decision: LimitDecision<'r, D::Note>,
) -> Result<Option<LimitDelay<'r>>, Refusal> {
    let LimitDecision { verdict, note, delay } = decision;
    let (is_refused, end) = (verdict.refused, verdict.end(limits.as_ref()));
    door.record_decision(limits, client, verdict, note);
    if is_refused { Err(end.into()) } else { Ok(delay) }
}

async fn wait_for_turn<'a, D: LimitDoor<'a>>(door: &mut D, delay: LimitDelay<'_>) {
    // Boxed, so that the future of a request that no limit delays is not larger for it.
    Box::pin(door.wait_for_turn(delay)).await;
}

/// Returns whether the request may have claims, and one of `limits` reads them.
fn needs_claims<'a, D: Door<'a>>(door: &D, limits: &[Arc<Limit>]) -> bool {
    let may_have_claims = door.admission().claims.is_some() || door.config().jwt.is_some();
    may_have_claims && limits.iter().any(|limit| limit.needs_claims())
}

/// Waits for newer keys if headers for the server state claims of the token that `[jwt]` verifies, and it needs them.
pub async fn await_stated_keys<'a, D: Door<'a>>(door: &D, route: &Route) {
    await_token_keys(door, route.request_headers.states_claims()).await;
}

/// Waits for newer keys if limits read the token that `[jwt]` verifies, and it needs them.
async fn await_token_keys<'a, D: Door<'a>>(door: &D, needs_claims: bool) {
    let verifier = door.config().jwt.as_ref().filter(|_| needs_claims && door.admission().claims.is_none());
    if let Some(verifier) = verifier.filter(|verifier| verifier.remote_keys().is_some()) {
        // Boxed, so that the future of other requests is not larger for it.
        Box::pin(door.await_token_keys(verifier)).await;
    }
}

/// Reads the request body if a limit that applies to the request reads it, and no other limit refuses the request.
async fn read_key_body<'a, D: Door<'a>>(
    door: &mut D,
    routed: RoutedRequest<'_>,
    needs_claims: bool,
) -> Result<KeyBody, Refusal> {
    let route = routed.route;
    let Some(max) = route.key_body.and_then(|max| usize::try_from(max).ok()) else { return Ok(KeyBody::None) };
    let earlier = door.admission_mut().verdict.take();
    let (is_needed, decision) = {
        let facts = request_facts(door, routed, needs_claims);
        let is_needed = needs_key_body(route, &facts);
        let refusing = if is_needed { find_refusing(door, route, facts) } else { None };
        match refusing {
            // Boxed, so that the future of a request that is admitted is not larger for it.
            Some(limits) => (true, Ok(Box::pin(decide_limits(door, route, limits, Ask::HOLD, earlier)).await)),
            None => (is_needed, Err(earlier)),
        }
    };
    match decision {
        Err(earlier) => door.admission_mut().verdict = earlier,
        // If they admit the request after all, because a unit became free in the meantime, the others decide without
        // them.
        Ok(decision) => {
            if let Err(refusal) = record_decision(door, route, routed.identity, decision) {
                return Err(refuse_calls(door, route, KeyBody::None, refusal).await);
            }
        }
    }
    if is_needed { door.read_key_body(route, max).await } else { Ok(KeyBody::None) }
}

/// Finds the limits that certainly refuse a request before its body is read. Returns `None` if no limit does.
fn find_refusing<'f, 'a, D: Door<'a>>(door: &D, route: &Route, facts: Facts<'f>) -> Option<EvaluatedLimits<'f>> {
    let first = route.auth_limit_count();
    let limits = &route.limits[first..];
    if limits.iter().all(|limit| limit.depends_on_body(&facts)) {
        return None;
    }
    let mut found = EvaluatedLimits::evaluate(door, route, first..route.limits.len(), facts);
    let mut has_any = false;
    for (limit, evaluation) in limits.iter().zip(&mut found.evaluations) {
        let is_base = || limits.iter().any(|other| other.after.as_ref() == Some(&limit.name));
        let refuses = door.knows_refusal(limit, evaluation, &found.facts) && !is_base();
        if !refuses {
            *evaluation = Evaluation::NotApplicable;
        }
        has_any |= refuses;
    }
    has_any.then_some(found)
}

/// Returns whether a limit that applies to the request reads the body.
fn needs_key_body(route: &Route, facts: &Facts<'_>) -> bool {
    let needs_body = |limit: &Arc<Limit>| limit.reads_body_of(facts.server_path) && limit.may_apply_before_body(facts);
    route.limits.iter().any(needs_body)
}

/// Returns the hash of the `hash_on` key of the upstream at `index`, which selects the server.
pub fn hash_key(request: &RequestContext<'_>, routed: RoutedRequest<'_>, index: usize) -> Option<u64> {
    hash_of_key(request, routed, request.view.upstreams[index].hash_on()?)
}

/// Returns the hash of a key that reads nothing of the body. `None` if the request lacks a part of it.
pub fn hash_of_key<'a, D: Door<'a>>(door: &D, routed: RoutedRequest<'_>, key: &Key) -> Option<u64> {
    let needs_claims = key.sources().any(|source| source.kind().origin() == SourceOrigin::Token);
    balance::hash_key(key, &request_facts(door, routed, needs_claims))
}

/// Returns the facts that keys and conditions can read from the request, without its body.
pub fn request_facts<'f, 'a: 'f, D: Door<'a>>(door: &'f D, routed: RoutedRequest<'f>, needs_claims: bool) -> Facts<'f> {
    let config: &'f Config = door.config();
    Facts {
        claims: needs_claims.then(|| read_claims(door)).flatten(),
        certificate: door.certificate(),
        geo: config.geo.as_deref(),
        user: door.admission().user.as_deref(),
        body_length: door.body_length(),
        stated_ms: door.stated_ms(),
        ..head_facts(routed, door.headers())
    }
}

/// Evaluates all limits of the route for a request that another proxy describes. Certificate and body of the question
/// are those of that proxy.
pub fn evaluate_described<'f, 'a: 'f, D: Door<'a>>(door: &'f D, routed: RoutedRequest<'f>) -> EvaluatedLimits<'f> {
    let route = routed.route;
    let needs_claims = needs_claims(door, &route.limits);
    let has_joined_lines = door.has_joined_lines();
    let facts =
        Facts { certificate: None, body_length: None, has_joined_lines, ..request_facts(door, routed, needs_claims) };
    EvaluatedLimits::evaluate(door, route, 0..route.limits.len(), facts)
}

/// Returns the facts that the head of a request contains.
pub fn head_facts<'f>(routed: RoutedRequest<'f>, headers: &'f HeaderMap) -> Facts<'f> {
    let RoutedRequest { route, head, identity } = routed;
    Facts {
        method: head.method().as_str(),
        host: head.read_host(),
        path: head.path(),
        query: head.query(),
        server_path: head.server_path(),
        server_query: head.server_query(),
        params: &route.params,
        ..Facts::new(identity.ip, &route.name, headers)
    }
}

/// Returns the claims of the token that `auth` verified, or of the one that `[jwt]` verifies. Called only if a key
/// needs them, because verifying a signature is slow.
fn read_claims<'a, D: Door<'a>>(door: &D) -> Option<TokenClaims> {
    match &door.admission().claims {
        Some(claims) => Some(TokenClaims::One(claims.clone())),
        None => door.verify_token(door.config().jwt.as_ref()?),
    }
}
