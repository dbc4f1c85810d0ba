//! Reports the outcomes of requests to the circuit breakers that admitted them. `dispatch` wraps the way of a request
//! to a server in [`watch`]; the response body reports what follows the head.
//!
//! An error is a response with a status from 500, a gRPC status that says that the server failed, a failed connection,
//! a closed connection, an invalid response or a timeout. Actions of the client are not results, and neither are
//! refusals by the gateway itself.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use http::{HeaderMap, StatusCode};
use tokio::time::{Sleep, sleep_until};

use crate::grpc::GrpcCode;
use crate::proxy::outbound::send_clock::SendClock;
use crate::proxy::steps::forward::ForwardedResponse;
use crate::proxy::words::refusal::Refusal;
use crate::upstream::breaker::BreakerPermit;

/// One permit, and the timer that reports its request as slow while it still waits.
struct WatchedPermit<'p> {
    permit: &'p mut BreakerPermit,
    timer: Option<Pin<Box<Sleep>>>,
    is_reported_slow: bool,
}

impl WatchedPermit<'_> {
    /// Reports the request as slow as soon as it is: a server that hangs opens the breaker long before its timeout.
    fn poll_slow(&mut self, waiting_since: Instant, now_ms: &impl Fn() -> u64, cx: &mut Context<'_>) {
        let Some(slow) = self.permit.slow_after().filter(|_| !self.is_reported_slow) else { return };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until((waiting_since + slow).into())));
        if timer.as_mut().poll(cx).is_ready() {
            self.is_reported_slow = true;
            self.permit.report_slow(now_ms());
        }
    }
}

/// Runs `forward`, and reports its result to the breakers of `permits`. A request without a result keeps its permits
/// unreported: they return their places when they are dropped.
pub async fn watch(
    permits: &mut [BreakerPermit],
    clock: &SendClock,
    now_ms: impl Fn() -> u64,
    forward: impl Future<Output = Result<ForwardedResponse, Refusal>>,
) -> Result<ForwardedResponse, Refusal> {
    let mut forward = pin!(forward);
    let watches = permits.iter_mut().map(|permit| WatchedPermit { permit, timer: None, is_reported_slow: false });
    let mut watches: Vec<WatchedPermit> = watches.collect();
    let result = poll_fn(|cx| {
        let poll = forward.as_mut().poll(cx);
        if let (Poll::Pending, Some(since)) = (&poll, clock.waiting_since()) {
            watches.iter_mut().for_each(|watches| watches.poll_slow(since, &now_ms, cx));
        }
        poll
    })
    .await;
    let is_error = match &result {
        Ok(ForwardedResponse { response, .. }) => is_failure(response.status(), response.headers()),
        Err(error) => match error.end.row().is_upstream_failure {
            true => true,
            false => return result,
        },
    };
    let wait = clock.waiting_since().map(|since| since.elapsed());
    for WatchedPermit { permit, .. } in watches {
        let is_slow = wait.zip(permit.slow_after()).is_some_and(|(wait, slow)| wait >= slow);
        permit.report_end(now_ms(), is_slow, is_error);
    }
    result
}

/// Returns whether a response says that its server failed.
fn is_failure(status: StatusCode, headers: &HeaderMap) -> bool {
    status.is_server_error() || GrpcCode::from_headers(headers).is_some_and(GrpcCode::is_server_failure)
}
