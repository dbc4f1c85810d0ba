//! Handles the requests of listeners with `serve = "grpc"`: responds to the calls of Envoy and of others that speak its
//! protocols.
//!
//! Input: a unary call of a trusted peer. Output: its message and a status in the trailers. `proxy::doors::request`
//! calls this page instead of its own, and every answer passes `finish_response`.
//!
//! - `call`: reads the message of a call, and writes its answer.
//! - `rate_limit`: `RateLimitService/ShouldRateLimit`. `plan` finds the limits of its descriptors, and `status` writes
//!   the answer.
//! - `authorization`: `Authorization/Check`.
//!
//! To add a method, add it to [`RpcMethod`] with its path and its longest message, and its arm to `answer_call`.

pub mod authorization;
mod call;
pub mod plan;
pub mod rate_limit;
mod status;

use bytes::Bytes;
use http::{Method, Response, StatusCode};

use crate::envoy::authorization as checks;
use crate::envoy::health::{self, HealthCheckRequest, HealthCheckResponse, ServingStatus};
use crate::envoy::{decode_message, encode_message, rate_limit as messages};
use crate::grpc::{CallError, GrpcCode};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{Reply, RequestContext};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::steps::arrival::{
    check_framing, open_log_entry, record_target, report_untrusted_headers, validate_head,
};
use crate::proxy::steps::response::problem::{PROBLEM, fixed_response, forbid_caching, problem_document};
use crate::proxy::words::refusal::Refusal;
use crate::telemetry::metrics::RpcMethod;

/// Takes a call from its head to its answer. An error is the reason to refuse its head.
pub async fn handle_call(request: &mut RequestContext<'_>) -> Result<Reply, Refusal> {
    let identity = request.identity;
    open_log_entry(request);
    let fault = check_framing(request)?;
    let head = validate_head(request)?;
    record_target(request, &head);
    report_untrusted_headers(request);
    if let Some(reject) = fault {
        return Err(reject.into());
    }
    if !request.received.is_on_stream() || !request.received.is_grpc() || *head.method() != Method::POST {
        return Ok(Reply::Route(explain_protocol(), None));
    }
    let method = find_method(head.path());
    let answer = answer_call(request, method, &head, identity).await;
    let code = answer.as_ref().map_or_else(|error| error.code, |_| GrpcCode::Ok);
    request.client.worker.process.metrics.rpc.count_call(method, code);
    Ok(Reply::Route(call::build_response(answer), None))
}

/// Answers a request that is not a gRPC call.
fn explain_protocol() -> Response<ResponseBody> {
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let problem = problem_document(status, "this listener answers gRPC calls over HTTP/2", None);
    let mut response = fixed_response(status, problem, PROBLEM);
    forbid_caching(&mut response);
    response
}

fn find_method(path: &str) -> RpcMethod {
    match path {
        messages::SHOULD_RATE_LIMIT => RpcMethod::ShouldRateLimit,
        checks::CHECK => RpcMethod::Check,
        health::CHECK => RpcMethod::HealthCheck,
        _ => RpcMethod::Unknown,
    }
}

async fn answer_call(
    request: &mut RequestContext<'_>,
    method: RpcMethod,
    head: &ValidatedHead,
    identity: ClientAddress,
) -> Result<Bytes, CallError> {
    // The health is not a secret, and orchestrators check it from any address.
    if !identity.trusted_peer && method != RpcMethod::HealthCheck {
        let what = "this peer is not in `trusted_proxies` of the gateway";
        return Err(CallError::new(GrpcCode::PermissionDenied, what));
    }
    match method {
        RpcMethod::ShouldRateLimit => {
            let Some(message) = read_whole(request, messages::MESSAGE_MAX).await? else {
                let why = format!("the rate limit request has more than {} bytes", messages::MESSAGE_MAX);
                return Ok(encode_message(&rate_limit::refuse_undecidable(0, &why)));
            };
            let question = decode_message(message)?;
            let answer = rate_limit::decide_request(request, head, identity, &question).await?;
            Ok(encode_message(&answer))
        }
        RpcMethod::Check => {
            let Some(message) = read_whole(request, checks::MESSAGE_MAX).await? else {
                return Ok(encode_message(&authorization::refuse_long_check()));
            };
            let question = decode_message(message)?;
            let answer = authorization::check_request(request, identity, &question).await?;
            Ok(encode_message(&answer))
        }
        RpcMethod::HealthCheck => {
            let message = call::read_message(request, messages::MESSAGE_MAX).await?;
            check_health(request, &decode_message(message)?)
        }
        RpcMethod::Unknown => Err(CallError::new(GrpcCode::Unimplemented, "this gateway does not have this method")),
    }
}

/// Reads the message of a call. `None` if it is longer than `max`, which clients of Envoy can cause, because it
/// contains what they sent.
async fn read_whole(request: &mut RequestContext<'_>, max: usize) -> Result<Option<Bytes>, CallError> {
    match call::read_message(request, max).await {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.code == GrpcCode::ResourceExhausted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports the health of a service. The gateway serves until it drains, even without its store: limits then
/// decide by `on_error`.
fn check_health(request: &RequestContext<'_>, question: &HealthCheckRequest) -> Result<Bytes, CallError> {
    if !health::SERVICES.contains(&&*question.service) {
        return Err(CallError::new(GrpcCode::NotFound, "this gateway does not have this service"));
    }
    let is_draining = request.client.worker.is_draining.get();
    let status = if is_draining { ServingStatus::NotServing } else { ServingStatus::Serving };
    Ok(encode_message(&HealthCheckResponse { status: status.into() }))
}
