//! Refuses requests to protect the gateway or an upstream, before anything else is spent on them: the process rule
//! (`[server.overload]`), and circuit breakers. Called by `live`, before authentication and limits, so that such
//! a refusal charges no limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ends::End;
use crate::overload::process_load::WHOLE_SHARE;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::words::jitter::add_jitter;
use crate::proxy::words::refusal::Refusal;
use crate::route::Action;
use crate::snapshot::overload_end;
use crate::upstream::breaker::machine::BreakerRule;
use crate::upstream::breaker::{BreakerKind, BreakerPermit, BreakerRefusal, CircuitBreaker};
use crate::upstream::eject::Blame;

/// How long a client waits that the process rule refused, before the jitter.
const OVERLOAD_WAIT_MS: u64 = 2_000;

/// Refuses the request if the process is overloaded. Otherwise counts it as in flight until its response has ended.
pub fn check_overload(request: &mut RequestContext<'_>) -> Result<(), Refusal> {
    let Some(rule) = &request.view.snapshot.config.server.overload else { return Ok(()) };
    let process = &request.client.worker.process;
    let random = || rand::random_range(0..WHOLE_SHARE);
    match process.overload.admit(rule, process.fleet.now_ms(), Instant::now(), random) {
        Ok(permit) => {
            request.account.hold_overload_permit(permit);
            Ok(())
        }
        Err(condition) => Err(shed(overload_end(condition), OVERLOAD_WAIT_MS)),
    }
}

/// Refuses the request if the breaker of its upstream or of its route does. Otherwise returns their permits, which
/// return the place of a probe if the request does not reach a server.
pub fn check_breakers(request: &RequestContext<'_>, routed: RoutedRequest<'_>) -> Result<Vec<BreakerPermit>, Refusal> {
    let (view, Some((index, _))) = (request.view, request.route) else { return Ok(Vec::new()) };
    let Action::Upstream(upstream) = routed.route.action else { return Ok(Vec::new()) };
    let upstream = &view.snapshot.upstreams[upstream];
    // The branch of a split is chosen once the client is known. Its breaker decides then.
    let of_upstream =
        upstream.breaker().zip(upstream.settings.breaker.as_ref()).filter(|_| routed.route.split.is_none());
    let of_route =
        view.snapshot.route_breakers.get(index).and_then(Option::as_ref).zip(routed.route.breaker.as_deref());
    let admit = |guarding| admit_by_breaker(request, routed, guarding);
    of_upstream.into_iter().chain(of_route).map(admit).collect()
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
