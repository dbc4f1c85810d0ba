//! Refuses requests to protect the gateway or an upstream: the process rule (`[server.overload]`), circuit breakers,
//! and the bounds of requests and tunnels at once. Called by `live` in two steps, and neither charges a limit:
//!
//! - Before authentication and limits, requests are refused that would find no place now (`check_overload`,
//!   `check_breakers`). They cost nothing then.
//! - Right before the limits decide, the others take their places (`take_places`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ends::End;
use crate::limiting::limit::over::Over;
use crate::overload::OverloadCondition;
use crate::overload::process_load::WHOLE_SHARE;
use crate::proxy::account::request_context::{Places, RequestContext, RoutedRequest};
use crate::proxy::connection::upgrade::TunnelPermit;
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::words::jitter::add_jitter;
use crate::proxy::words::refusal::Refusal;
use crate::route::{Action, Route};
use crate::snapshot::overload_end;
use crate::upstream::breaker::machine::BreakerRule;
use crate::upstream::breaker::{BreakerKind, BreakerPermit, BreakerRefusal, CircuitBreaker};
use crate::upstream::eject::Blame;

/// How long a client waits that the process rule refused, before the jitter.
const OVERLOAD_WAIT_MS: u64 = 2_000;

/// Refuses the request if the process is overloaded.
pub fn check_overload(request: &RequestContext<'_>) -> Result<(), Refusal> {
    let Some(rule) = &request.view.snapshot.config.server.overload else { return Ok(()) };
    let process = &request.client.worker.process;
    let random = || rand::random_range(0..WHOLE_SHARE);
    process.overload.check(rule, process.fleet.now_ms(), random).map_err(shed_by_process)
}

/// Refuses the request if the breaker of its upstream or of its route does.
pub fn check_breakers(request: &RequestContext<'_>, routed: RoutedRequest<'_>) -> Result<(), Refusal> {
    let now_ms = || request.client.worker.process.fleet.now_ms();
    let mut breakers = guarding_breakers(request, routed);
    breakers
        .try_for_each(|(breaker, _)| breaker.check(now_ms, Blame::from_ip(routed.identity.ip)).map_err(shed_by_breaker))
}

/// Takes the places of a request that is about to be decided by its limits. The account holds those among the requests
/// in flight.
pub fn take_places(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    offers_switch: bool,
) -> Result<Places, Refusal> {
    let tunnel = take_tunnel(request, routed, offers_switch)?;
    check_capacity(request, routed.route)?;
    let breakers = guarding_breakers(request, routed)
        .map(|guarding| admit_by_breaker(request, routed, guarding))
        .collect::<Result<_, _>>()?;
    if !request.account.take_place(routed.route) {
        return Err(End::MaxInFlight.into());
    }
    if let Some(rule) = &request.view.snapshot.config.server.overload {
        let process = &request.client.worker.process;
        match process.overload.admit(rule, process.fleet.now_ms(), Instant::now()) {
            Ok(permit) => request.account.hold_overload_permit(permit),
            Err(condition) => {
                request.account.return_places();
                return Err(shed_by_process(condition));
            }
        }
    }
    Ok(Places { tunnel, breakers })
}

/// Takes the place of a tunnel, if the request offers to switch protocols.
fn take_tunnel(
    request: &RequestContext<'_>,
    routed: RoutedRequest<'_>,
    offers_switch: bool,
) -> Result<Option<TunnelPermit>, Refusal> {
    if !offers_switch {
        // An extended CONNECT has no meaning without a tunnel.
        return if request.received.is_connect() { Err(End::Connect.into()) } else { Ok(None) };
    }
    let max_tunnels = request.view.snapshot.config.server.max_tunnels;
    let (client, process) = (routed.identity.ip, &request.client.worker.process);
    let permit = process.tunnels.acquire(client, max_tunnels);
    if permit.is_none() {
        process.failure_log.log_rejected_client(
            End::MaxTunnels,
            &request.client.listener.name,
            client,
            format_args!(
                "max_tunnels = {max_tunnels} is reached, or this client has its share of them: refusing upgrades; raise it \
                 under [server], or limit the tunnels of a client"
            ),
        );
    }
    permit.map(Some).ok_or(End::MaxTunnels.into())
}

/// Refuses a request whose upstream would certainly refuse it.
fn check_capacity(request: &RequestContext<'_>, route: &Route) -> Result<(), Refusal> {
    // A limit may send the request to another upstream.
    let may_divert = || route.limits.iter().any(|limit| matches!(limit.over, Over::Divert(_)));
    let mut upstreams = route.upstreams().map(|index| &request.view.upstreams[index]);
    let Some(first) = upstreams.next() else { return Ok(()) };
    let is_full = |servers: &WorkerUpstream| servers.is_full_for(route.priority);
    match is_full(first) && upstreams.all(is_full) && !may_divert() {
        true => Err(first.refuse_full(route.priority)),
        false => Ok(()),
    }
}

/// Returns the breakers of the request's upstream and route, each with its rule.
fn guarding_breakers<'r>(
    request: &RequestContext<'r>,
    routed: RoutedRequest<'r>,
) -> impl Iterator<Item = (&'r Arc<CircuitBreaker>, &'r BreakerRule)> {
    let snapshot = &request.view.snapshot;
    let found = request.route.zip(match routed.route.action {
        Action::Upstream(upstream) => Some(&snapshot.upstreams[upstream]),
        _ => None,
    });
    let of_both = found.map(|((index, _), upstream)| {
        // The branch of a split is chosen once the client is known. Its breaker decides then.
        let of_upstream =
            upstream.breaker().zip(upstream.settings.breaker.as_ref()).filter(|_| routed.route.split.is_none());
        let of_route = snapshot.route_breakers.get(index).and_then(Option::as_ref).zip(routed.route.breaker.as_deref());
        of_upstream.into_iter().chain(of_route)
    });
    of_both.into_iter().flatten()
}

/// Exchanges the permit of the route's upstream for one of the upstream at `index`, to which a limit diverts the
/// request (`over`), or which the route has chosen (`split`).
pub fn divert_permits(
    request: &RequestContext<'_>,
    routed: RoutedRequest<'_>,
    index: usize,
    permits: &mut Vec<BreakerPermit>,
) -> Result<(), Refusal> {
    permits.retain(|permit| permit.kind() == BreakerKind::Route);
    let upstream = &request.view.snapshot.upstreams[index];
    let Some(guarding) = upstream.breaker().zip(upstream.settings.breaker.as_ref()) else { return Ok(()) };
    permits.push(admit_by_breaker(request, routed, guarding)?);
    Ok(())
}

fn admit_by_breaker(
    request: &RequestContext<'_>,
    routed: RoutedRequest<'_>,
    (breaker, rule): (&Arc<CircuitBreaker>, &BreakerRule),
) -> Result<BreakerPermit, Refusal> {
    let now_ms = || request.client.worker.process.fleet.now_ms();
    let permit = breaker.admit(rule.slow_ms, now_ms, Blame::from_ip(routed.identity.ip));
    permit.map_err(shed_by_breaker)
}

fn shed_by_process(condition: OverloadCondition) -> Refusal {
    shed(overload_end(condition), OVERLOAD_WAIT_MS)
}

fn shed_by_breaker(refusal: BreakerRefusal) -> Refusal {
    let end = match refusal.kind {
        BreakerKind::Upstream => End::UpstreamBreaker,
        BreakerKind::Route => End::RouteBreaker,
    };
    shed(end, refusal.wait_ms)
}

/// Refuses a request, and has its client wait for `wait_ms` and a jitter.
fn shed(end: End, wait_ms: u64) -> Refusal {
    Refusal::retry_after(end, Duration::from_millis(add_jitter(wait_ms)))
}
