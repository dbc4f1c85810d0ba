//! Asks an auth server whether a request may pass (`auth = { forward = ... }`), before the limits of the route decide
//! and before its body is read.
//!
//! Input: a request with its route. Output: the identity in the request context, or the response that the client gets
//! instead, such as a redirect to a login page.
//!
//! - this file: the flow of one check
//! - `auth_request`: the request to the auth server
//! - `auth_response`: handles the response of the auth server
//!
//! The auth servers are an upstream like any other: `outbound` selects a server, connects, retries and ejects.

mod auth_request;
pub(crate) mod auth_response;

use std::time::{Duration, Instant};

use http::Response;
use tokio::time::timeout;

use crate::auth::forward::ForwardAuth;
use crate::ends::End;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::head::request_id;
use crate::proxy::steps::auth::forward::auth_request::build_auth_request;
use crate::proxy::steps::auth::forward::auth_response::{
    accept_identity, discard_body, prepare_refusal, remove_client_headers,
};
use crate::proxy::steps::forward;
use crate::proxy::steps::forward::ForwardedResponse;
use crate::proxy::steps::limits;
use crate::proxy::steps::outgoing_request;
use crate::proxy::words::refusal::Refusal;
use crate::route::Timeouts;
use crate::telemetry::metrics::ForwardAuthOutcome;

/// Added to the bound of the whole exchange, which also bounds the wait for a connection. If a server does not respond,
/// its own deadline, which may expire up to 100 ms late, then expires first and counts as an error of that server.
const GRACE: Duration = Duration::from_millis(200);

/// Sends a request to the auth server for approval. Returns the auth response if it refuses the request.
///
/// # Errors
/// A limit of `auth` refuses the request, the request must not be forwarded to any server, or the auth server failed.
pub async fn ask_auth_server(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    rule: &ForwardAuth,
) -> Result<Option<Response<ResponseBody>>, Refusal> {
    limits::apply_auth_limits(request, routed).await?;
    if request.request_id.is_none() {
        // The auth server and the upstream server get the same id.
        let is_trusted = routed.identity.trusted_peer;
        request.request_id = Some(request_id::received_or_new(&request.received.parts.headers, is_trusted));
    }
    let start = Instant::now();
    let result = exchange(request, routed, rule).await?;
    request.account.add_wait(start);
    if let Some(entry) = request.account.log_entry() {
        entry.record_auth_time(start.elapsed());
    }
    // The gateway itself works on the request now.
    request.account.deadline().disarm();
    remove_client_headers(&mut request.received.parts.headers, rule);
    let response = match result {
        Ok(response) => response,
        Err(error) => return pass_or_refuse(request, rule, error),
    };
    if response.status().is_success() {
        let (parts, body) = response.into_parts();
        discard_body(body, rule.timeout);
        if !accept_identity(request, rule, &parts.headers) {
            request.account.count_forward_auth(ForwardAuthOutcome::ErrorClosed);
            return Err(End::AuthServer.into());
        }
        request.account.count_forward_auth(ForwardAuthOutcome::Admitted);
        return Ok(None);
    }
    let has_failed = response.status().is_server_error();
    if has_failed && rule.is_open_on_error {
        discard_body(response.into_body(), rule.timeout);
        request.account.count_forward_auth(ForwardAuthOutcome::ErrorOpen);
        return Ok(None);
    }
    record_refusal(request, has_failed);
    Ok(Some(prepare_refusal(request, response, rule.timeout)))
}

/// Decides about a request after an exchange without a response.
fn pass_or_refuse(
    request: &mut RequestContext<'_>,
    rule: &ForwardAuth,
    error: Refusal,
) -> Result<Option<Response<ResponseBody>>, Refusal> {
    if error.end == End::FileDescriptors {
        let failures = &request.client.worker.process.failure_log;
        failures.log_descriptor_shortage("requests that need a new connection to an auth server are refused");
    }
    if rule.is_open_on_error {
        request.account.count_forward_auth(ForwardAuthOutcome::ErrorOpen);
        return Ok(None);
    }
    request.account.count_forward_auth(ForwardAuthOutcome::ErrorClosed);
    Err(End::AuthServer.into())
}

/// Logs and counts a request whose client gets the response of the auth server. `has_failed`: the response says that
/// the auth server failed.
fn record_refusal(request: &mut RequestContext<'_>, has_failed: bool) {
    let (outcome, end) = if has_failed {
        (ForwardAuthOutcome::ErrorClosed, End::AuthServer)
    } else {
        (ForwardAuthOutcome::Refused, End::AuthRefused)
    };
    request.account.count_forward_auth(outcome);
    if let Some(entry) = request.account.log_entry() {
        entry.record_end(end);
    }
}

/// Sends the request to the auth server and waits for the head of its response.
///
/// # Errors
/// The outer error: the request must not be forwarded.
async fn exchange(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    rule: &ForwardAuth,
) -> Result<Result<Response<ResponseBody>, Refusal>, Refusal> {
    let servers = &request.view.upstreams[rule.upstream];
    let mut outgoing = build_auth_request(request, routed, rule)?;
    outgoing.hash = limits::hash_key(request, routed, rule.upstream);
    outgoing.proxy_header = outgoing_request::proxy_header(request.client, routed.identity.ip, servers);
    let (deadline, limit) = (request.account.deadline(), rule.timeout);
    outgoing.respond_by = Some(Instant::now() + limit);
    let of_route = &routed.route.timeouts;
    let timeouts = Timeouts { connect: of_route.connect.min(limit), response: limit, ..(**of_route).clone() };
    let forwarded = forward::forward_request(servers, deadline, &timeouts, &mut outgoing, None, None);
    Ok(match timeout(limit + GRACE, forwarded).await {
        Ok(forwarded) => forwarded.map(|ForwardedResponse { response, .. }| response),
        Err(_) => Err(Refusal::within(End::UpstreamTimeout, limit)),
    })
}
