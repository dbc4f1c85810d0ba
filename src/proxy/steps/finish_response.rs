//! The end of every request: turns the result of `handle_request` into the response that the client gets. Every
//! response passes here, whether it comes from a server or from the gateway.

use http::header::{CONNECTION, SET_COOKIE, STRICT_TRANSPORT_SECURITY};
use http::{HeaderValue, Response, StatusCode, Version};

use crate::config::Service;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{ClientBody, Reply, RequestContext};
use crate::proxy::connection::upgrade::TunnelPermit;
use crate::proxy::connection::upload::Upload;
use crate::proxy::head::body::RequestBody;
use crate::proxy::head::request_id;
use crate::proxy::steps::compress;
use crate::proxy::steps::response::cors;
use crate::proxy::steps::response::edits;
use crate::proxy::steps::response::error_page;
use crate::proxy::steps::response::error_page::intercept;
use crate::proxy::steps::response::grpc;
use crate::proxy::steps::response::problem::forbid_caching;
use crate::proxy::steps::response::refusal_response::ErrorFormat;
use crate::proxy::steps::response::unread_body;
use crate::proxy::steps::tunnel::Tunnel;
use crate::proxy::words::refusal::Refusal;
use crate::route::decide::X_LIMIT_STATUS;
use crate::route::error_pages::ErrorPages;
use crate::route::{Action, Route};

/// Completes the response. From here on, the account of the request belongs to the response body, or to the tunnel that
/// the connection becomes. It ends when that body or tunnel ends.
pub fn finish_response(mut request: RequestContext<'_>, result: Result<Reply, Refusal>) -> Response<ResponseBody> {
    let is_preflight = matches!(result, Ok(Reply::Preflight(_)));
    let is_for_one = !matches!(result, Ok(Reply::Route(..) | Reply::Gateway(_) | Reply::Preflight(_)));
    let (mut response, tunnel) = match result {
        Ok(Reply::Route(mut response, tunnel)) => {
            settle_response(&mut request, &mut response, false);
            (response, tunnel)
        }
        Ok(Reply::AuthServer(mut response)) => {
            settle_response(&mut request, &mut response, true);
            (response, None)
        }
        Ok(Reply::Gateway(mut response) | Reply::Preflight(mut response)) => {
            edit_own_response(&request, &mut response);
            (response, None)
        }
        Ok(Reply::Decision(response)) => (response, None),
        Err(refusal) => {
            let mut response = build_refusal(&mut request, &refusal);
            edit_own_response(&request, &mut response);
            (response, None)
        }
    };
    if is_for_one {
        forbid_caching(&mut response);
    }
    apply_deny_status(&request, &mut response);
    add_auth_cookies(&mut request, &mut response);
    add_ratelimit_headers(&request, &mut response);
    add_request_id(&request, &mut response);
    add_hsts(&request, &mut response);
    add_alt_svc(&request, &mut response);
    if !is_preflight {
        add_cors_headers(&request, &mut response);
    }
    compress_response(&mut request, &mut response);
    end_request_body(&mut request, &mut response);
    announce_close(&request, &mut response);
    hand_over_account(request, &mut response, tunnel);
    response
}

/// Settles the charges of the limits according to the response, and applies the route's `response_headers`.
/// `is_refused`: the response comes from the auth server, which has not allowed the request.
fn settle_response(request: &mut RequestContext<'_>, response: &mut Response<ResponseBody>, is_refused: bool) {
    if let Some(permit) = request.account.overload_permit() {
        permit.record_head(true);
    }
    if !is_refused {
        request.account.note_route_response();
    }
    // Charges depend on the response as the server sent it, so they are settled before the edits.
    request.account.settle_by_response(response, response.body().ends_by_close());
    if let Some(body) = response.body().as_full() {
        request.account.settle_by_full_body(body);
    }
    if let Some(route) = request.matched_route() {
        // An auth server may want the client to log in.
        if let Some(pages) = route.error_pages.as_ref().filter(|_| !is_refused) {
            intercept_error(request, route, pages, response);
        }
        let status = response.status();
        edits::apply_response_edits(response.headers_mut(), status, &route.response_headers);
    }
}

/// Replaces an error response of an upstream server, if the route intercepts its status. gRPC clients get the original,
/// and so does a client of an extended CONNECT, which reads only the status.
fn intercept_error(
    request: &mut RequestContext<'_>,
    route: &Route,
    pages: &ErrorPages,
    response: &mut Response<ResponseBody>,
) {
    let is_from_server = matches!(route.action, Action::Upstream(_));
    let is_excluded = request.wants_grpc_errors || request.received.is_connect();
    if !is_from_server || is_excluded || !intercept::is_replaced(pages, response) {
        return;
    }
    let charges = request.account.take_pending_charges();
    let (format, id) = (request.error_format(), request.logged_id().and_then(error_page::showable_id));
    intercept::replace_response(response, charges, pages, format, id);
}

/// Builds the error response for a refusal, counts and logs it, and settles the charges of the limits.
fn build_refusal(request: &mut RequestContext<'_>, refusal: &Refusal) -> Response<ResponseBody> {
    // A server that failed or timed out took its time; other refusals took none.
    if let Some(permit) = request.account.overload_permit() {
        permit.record_head(refusal.end.row().is_upstream_failure);
        if !refusal.end.row().follows_service {
            permit.return_place();
        }
    }
    let (route, verdict) = (request.matched_route(), request.admission.verdict.as_ref());
    request.account.record_refusal(refusal.end, &request.client.worker.process.metrics);
    // Operators find the refusals of limits by their id, whether the request is logged or not. An id that all responses
    // have is on pages too.
    let server = &request.view.snapshot.config.server;
    let id = match refusal.end.is_by_limit() || server.answer_request_id {
        true => request.request_id.clone(),
        false => request.logged_id().cloned(),
    };
    let pages = match route {
        Some(route) => route.error_pages.as_deref(),
        None => server.error_pages.as_deref(),
    };
    let hints = &server.hints;
    let format = ErrorFormat {
        format: request.error_format(),
        pages,
        request_id: id.as_ref().and_then(error_page::showable_id),
        hint: refusal.end.row().setting.filter(|_| hints.apply_to(request.identity.ip)),
        is_for_proxy: request.question.is_some(),
        call_ids: &request.admission.call_ids,
    };
    let response = refusal.to_response(route, request.admission.verdict.as_ref(), format);
    // A gRPC response always has status 200, so charges and the metrics of a split depend on the status of the refusal
    // itself.
    let status = response.status();
    request.account.record_branch_refusal(status);
    let response = if request.wants_grpc_errors { grpc::build_response(refusal, route, verdict) } else { response };
    request.account.settle_by_refusal(status, response.headers(), refusal.end);
    response
}

/// Applies the route's `response_headers` to a response that the gateway gives instead of the route, if they are
/// `on = "all"` responses.
fn edit_own_response(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    if let Some(edit) = request.found_route().map(|route| &route.response_headers).filter(|edit| edit.on_refusals) {
        let status = response.status();
        edits::apply_response_edits(response.headers_mut(), status, edit);
    }
}

/// Gives a refusal the status that the asking proxy accepts, and states its own status in a header.
fn apply_deny_status(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    let status = response.status();
    if let Some(replacement) = request.question.and_then(|question| question.deny_as.replace(status)) {
        response.headers_mut().insert(X_LIMIT_STATUS, HeaderValue::from(status.as_u16()));
        *response.status_mut() = replacement;
    }
}

/// Adds the cookies of an auth server that allowed the request, even if the request failed later: the auth server may
/// have renewed a session.
fn add_auth_cookies(request: &mut RequestContext<'_>, response: &mut Response<ResponseBody>) {
    for cookie in request.admission.cookies.drain(..) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}

fn add_ratelimit_headers(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    let view = request.view;
    if let (Some((index, route)), Some(verdict)) = (request.route, &request.admission.verdict) {
        let dialects = route.ratelimit_headers.as_ref().unwrap_or(&view.snapshot.config.ratelimit_headers);
        view.ratelimit.add_headers(response, dialects, (index, route), verdict);
    }
}

fn add_request_id(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    let is_wanted = request.view.snapshot.config.server.answer_request_id;
    if let Some(id) = request.request_id.as_ref().filter(|_| is_wanted) {
        request_id::add_to_response(response.headers_mut(), id);
    }
}

/// Compresses the response if the route requests it. At this point, all headers are final, and the limits have settled
/// by the response as the server sent it.
fn compress_response(request: &mut RequestContext<'_>, response: &mut Response<ResponseBody>) {
    if let Some(settings) = request.matched_route().and_then(|route| route.compress.as_deref()) {
        compress::compress_response(request, settings, response);
    }
}

/// Sets `Strict-Transport-Security` if the listener has `hsts`. It replaces the header of the upstream server, because
/// browsers use only one (RFC 6797, section 8.1).
fn add_hsts(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    if let Some(hsts) = &request.client.listener.hsts {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
    }
}

/// Tells the client whether the listener has HTTP/3.
fn add_alt_svc(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    let (client, version) = (request.client, request.received.parts.version);
    let worker = &client.worker;
    let now = (worker.is_draining.get(), client.connection().now_ms());
    worker.alt_services.write_header(response.headers_mut(), &client.listener, version, now);
}

/// Adds the headers that let the page read the response, if `cors` allows it. A request without a route has the `cors`
/// of `[server]`. Decisions for other proxies get none: those proxies answer the page.
fn add_cors_headers(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    let config = &request.view.snapshot.config;
    if !config.has_cors || request.client.listener.settings.service != Service::Http {
        return;
    }
    if let Some(policy) = config.cors_policy(request.found_route) {
        cors::write_cors_headers(response.headers_mut(), policy, request.origin.as_ref());
    }
}

/// Makes sure that the unread rest of the request body cannot be parsed as the next request.
fn end_request_body(request: &mut RequestContext<'_>, response: &mut Response<ResponseBody>) {
    if request.received.is_on_stream() {
        // The connection discards its rest.
        drop(request.received.body.take_unread_if(|_| true));
    } else if request.must_close {
        close_after(response);
    } else if let Some(body) = take_rest(&mut request.received.body) {
        unread_body::discard_or_close(body, request.account.deadline(), &request.received.parts.headers, response);
    }
}

/// Takes what nobody has read of the body.
fn take_rest(body: &mut ClientBody) -> Option<RequestBody> {
    body.take_unread_if(|_| true).or_else(|| body.take_read_ahead().and_then(Upload::into_unread))
}

/// Tells an HTTP/1.1 client to reconnect if this worker is being stopped.
fn announce_close(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    let is_http1 = request.received.parts.version <= Version::HTTP_11;
    if request.client.worker.is_draining.get() && is_http1 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        close_after(response);
    }
}

fn close_after(response: &mut Response<ResponseBody>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// Counts the response. The request then ends with the response body or, if the server switched protocols, with the
/// tunnel.
fn hand_over_account(request: RequestContext<'_>, response: &mut Response<ResponseBody>, tunnel: Option<TunnelPermit>) {
    let (client, route) = (request.client, request.matched_route());
    let upload = if let ClientBody::Opened(progress) = request.received.body { Some(progress) } else { None };
    let account = request.account.record_response(response, route, &request.view.snapshot, upload);
    match (response.body_mut().take_switched(), route, tunnel) {
        (Some(server), Some(route), Some(permit)) => {
            client.tunnel.set(Some(Tunnel::new(client, server, account, route.timeouts.clone(), permit)));
        }
        _ => response.body_mut().attach_account(account),
    }
}
