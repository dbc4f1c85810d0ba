//! `Authorization/Check`: decides a request of another proxy by the limits of a route or a `[decide.NAME]`, which
//! `context_extensions` names. Envoy sends the whole head of the request, so limits read it as they read proxied ones.

use std::mem::swap;
use std::net::IpAddr;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};

use crate::config::Config;
use crate::ends::End;
use crate::envoy::HeaderPair;
use crate::envoy::authorization::{
    Attributes, CheckRequest, CheckResponse, DeniedResponse, HeaderOption, HttpAttributes, HttpStatus, OVERWRITE,
    OkResponse, RpcStatus,
};
use crate::grpc::{CallError, GrpcCode};
use crate::limiting::limit::Limit;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{ClientBody, Received, RequestContext};
use crate::proxy::doors::grpc::call;
use crate::proxy::doors::grpc::status;
use crate::proxy::head::described;
use crate::proxy::head::identity::{self, ClientAddress};
use crate::proxy::render::call_ids::CallIds;
use crate::proxy::steps::door::Ask;
use crate::proxy::steps::pipeline::decide_described;
use crate::proxy::steps::response::problem::{PROBLEM, fixed_response, forbid_caching, problem_document};
use crate::proxy::steps::response::refusal_response::ErrorFormat;
use crate::proxy::words::known_headers::HeaderSet;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::route::decide::{DecidePoint, why_undecidable};
use crate::route::error_pages::PageFormat;

/// The entry of `context_extensions` that names the limits.
pub const NAME: &str = "decide";

/// Decides a request. What is wrong with the head of the request is a refusal, because the client chose it: Envoy may
/// let requests pass whose checks fail.
///
/// # Errors
/// The question names no limits, or lacks the request.
pub async fn check_request(
    request: &mut RequestContext<'_>,
    peer: ClientAddress,
    question: &CheckRequest,
) -> Result<CheckResponse, CallError> {
    let attributes = question.attributes.as_ref().ok_or_else(|| lacking("attributes"))?;
    let config = &request.view.snapshot.config;
    let (point, route) = find_limits(config, attributes)?;
    request.route = Some((point.route, route));
    request.account.count_on_route(route, request.view.route_counters(point.route));
    let http = find_http(attributes)?;
    request.has_joined_lines = joins_lines(point, http);
    let (parts, repaired) = match build_parts(http) {
        Ok(built) => built,
        Err(reject) => return Ok(refuse_head(request, &reject.into())),
    };
    let identity = match find_source(attributes) {
        // Envoy has judged the forwarding headers by its own settings.
        Some(ip) => ClientAddress::of_peer(config.server.client_address.nat64.client_of(ip), false),
        None => identity::identify(peer.ip, &parts.headers, &config.server.client_address),
    };
    // Nothing reports the response, so no charge is held for its correction.
    let ask = Ask { until: call::find_end(request), ..Ask::CHARGE };
    // The request in question takes the place of the call while it takes its steps.
    let mut described = Received { header_set: HeaderSet::from_headers(&parts.headers), parts, body: ClientBody::Gone };
    swap(&mut *request.received, &mut described);
    let result = decide_described(request, route, identity, repaired, ask).await;
    swap(&mut *request.received, &mut described);
    // The answer to Envoy gets no rate limit headers itself.
    let verdict = request.admission.verdict.take();
    Ok(match (result, verdict) {
        (Err(refusal), Some(verdict)) if refusal.end.is_by_limit() => {
            record_refusal(request, &refusal);
            deny(status::build_verdict_response(request, &verdict))
        }
        (Err(refusal), _) => refuse_head(request, &refusal),
        (Ok(()), Some(verdict)) => allow(status::build_verdict_response(request, &verdict).headers()),
        (Ok(()), None) => allow(&HeaderMap::new()),
    })
}

/// Refuses a request whose check is longer than the gateway reads. Its client has sent that many headers.
pub fn refuse_long_check() -> CheckResponse {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let problem = problem_document(status, "the request head has more bytes than allowed here", None);
    deny(fixed_response(status, problem, PROBLEM))
}

fn lacking(what: &str) -> CallError {
    CallError::new(GrpcCode::InvalidArgument, format!("the check has no {what}"))
}

/// Finds the request that a check is about.
///
/// # Errors
/// The check has none.
pub fn find_http(attributes: &Attributes) -> Result<&HttpAttributes, CallError> {
    let http = attributes.request.as_ref().and_then(|request| request.http.as_ref());
    http.ok_or_else(|| lacking("HTTP request"))
}

/// Finds the route whose limits decide.
///
/// # Errors
/// The check names no limits, or they cannot decide it.
pub fn find_limits<'c>(config: &'c Config, attributes: &Attributes) -> Result<(&'c DecidePoint, &'c Route), CallError> {
    let name = attributes.context_extensions.get(NAME).and_then(|name| str::from_utf8(name).ok()).ok_or_else(|| {
        let what = format!("context_extensions has no entry `{NAME}` with the name of a [decide.NAME] or a route");
        CallError::new(GrpcCode::InvalidArgument, what)
    })?;
    let unknown = || CallError::new(GrpcCode::NotFound, "context_extensions names no [decide.NAME] and no route");
    let point = config.decide.find(name).ok_or_else(unknown)?;
    let route = config.route_at(point.route);
    match route.limits.iter().find_map(|limit| why_unanswerable(limit)) {
        Some(why) => Err(CallError::new(GrpcCode::FailedPrecondition, why)),
        None => Ok((point, route)),
    }
}

/// Returns whether Envoy may have joined the lines of a header: it does so without `encode_raw_headers`.
pub fn joins_lines(point: &DecidePoint, http: &HttpAttributes) -> bool {
    point.joins_lines.unwrap_or_else(|| list_raw_headers(http).is_none())
}

fn list_raw_headers(http: &HttpAttributes) -> Option<&Vec<HeaderPair>> {
    http.header_map.as_ref().map(|map| &map.headers).filter(|list| !list.is_empty())
}

/// Returns why a limit cannot decide a check.
fn why_unanswerable(limit: &Limit) -> Option<&'static str> {
    match limit.rule.has_queue() {
        true => Some("a limit delays requests, but Envoy does not wait for an answer that long"),
        false => why_undecidable(limit),
    }
}

/// Returns the address of the client, as Envoy knows it.
fn find_source(attributes: &Attributes) -> Option<IpAddr> {
    let address = attributes.source.as_ref()?.address.as_ref()?.socket_address.as_ref()?;
    let ip: IpAddr = str::from_utf8(&address.address).ok()?.parse().ok()?;
    Some(ip.to_canonical())
}

/// Builds the head of the request as an HTTP/1.1 client would send it. What concerns the connection to Envoy is left
/// out. Also returns the fault that was repaired.
///
/// # Errors
/// The head is invalid.
pub fn build_parts(http: &HttpAttributes) -> Result<(Parts, Option<End>), End> {
    let (mut parts, ()) = Request::new(()).into_parts();
    let (target, repaired) = described::parse_target(&http.path)?;
    (parts.method, parts.uri, parts.version) = (described::parse_method(&http.method)?, target, Version::HTTP_11);
    parts.headers = collect_headers(http)?;
    let host = HeaderValue::from_maybe_shared(http.host.clone()).map_err(|_| End::HostInvalid)?;
    parts.headers.insert(HOST, host);
    Ok((parts, repaired))
}

/// Collects the headers of the request.
///
/// # Errors
/// The application may read a header that this gateway does not accept as one.
fn collect_headers(http: &HttpAttributes) -> Result<HeaderMap, End> {
    let mut headers = HeaderMap::new();
    for HeaderPair { key, value, raw_value } in list_raw_headers(http).unwrap_or(&http.headers) {
        // Envoy lists the method and the target among the headers, as HTTP/2 does.
        if key.starts_with(b":") {
            continue;
        }
        let value = if raw_value.is_empty() { value.clone() } else { raw_value.clone() };
        let name = HeaderName::from_bytes(key).map_err(|_| End::HeaderCharacter)?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| End::HeaderCharacter)?;
        headers.try_append(name, value).map_err(|_| End::MaxHeaders)?;
    }
    [CONTENT_LENGTH, TRANSFER_ENCODING].iter().for_each(|name| drop(headers.remove(name)));
    Ok(headers)
}

/// Refuses a request before its limits.
fn refuse_head(request: &mut RequestContext<'_>, refusal: &Refusal) -> CheckResponse {
    record_refusal(request, refusal);
    deny(refusal.to_response(
        None,
        None,
        ErrorFormat {
            format: PageFormat::Json,
            pages: None,
            request_id: None,
            hint: None,
            is_for_proxy: false,
            call_ids: &CallIds::Unknown,
        },
    ))
}

/// Counts and logs a refusal, as `finish_response` does for those that are responses themselves.
fn record_refusal(request: &mut RequestContext<'_>, refusal: &Refusal) {
    request.account.record_refusal(refusal.end, &request.client.worker.process.metrics);
}

fn allow(headers: &HeaderMap) -> CheckResponse {
    let response_headers_to_add = list_options(headers);
    CheckResponse {
        status: Some(RpcStatus { code: GrpcCode::Ok as i32 }),
        ok_response: Some(OkResponse { response_headers_to_add }),
        denied_response: None,
    }
}

/// Denies the request with the response that Envoy gives to its client.
fn deny(mut response: Response<ResponseBody>) -> CheckResponse {
    forbid_caching(&mut response);
    let denial = DeniedResponse {
        status: Some(HttpStatus { code: response.status().as_u16().into() }),
        headers: list_options(response.headers()),
        body: response.body_mut().take_full().unwrap_or_default(),
    };
    CheckResponse {
        status: Some(RpcStatus { code: GrpcCode::PermissionDenied as i32 }),
        denied_response: Some(denial),
        ok_response: None,
    }
}

fn list_options(headers: &HeaderMap) -> Vec<HeaderOption> {
    let option = |field| HeaderOption { header: Some(field), append_action: OVERWRITE };
    status::list_headers(headers).into_iter().map(option).collect()
}
