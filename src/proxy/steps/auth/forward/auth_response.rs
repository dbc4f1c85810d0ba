//! Handles the response of an auth server: its identity headers replace those of the client, or the client gets the
//! response.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{HeaderMap, Method, Response};
use http_body::Body as _;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::auth::forward::ForwardAuth;
use crate::auth::is_valid_user;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::RequestContext;
use crate::proxy::steps::auth::record_user;
use crate::proxy::steps::dispatch;

/// Bytes of a body that are read and discarded, so that its connection can be reused. The connection of a larger one
/// is closed.
const DISCARD_MAX: usize = 64 * 1024;

/// Removes the client's versions of the headers that only the auth server states. Called for every request, even if the
/// auth server states nothing.
pub fn remove_client_headers(headers: &mut HeaderMap, rule: &ForwardAuth) {
    for name in rule.owned_headers() {
        headers.remove(name);
    }
}

/// Takes over what the auth server states about a request that it lets pass: the headers for the upstream server, the
/// user, and the cookies for the client. Limits see the headers too. Returns false if the name of the user is invalid
/// or stated more than once: the upstream server could take another one than the limits and the log.
pub fn accept_identity(request: &mut RequestContext<'_>, rule: &ForwardAuth, stated: &HeaderMap) -> bool {
    request.admission.cookies = stated.get_all(SET_COOKIE).iter().cloned().collect();
    for copied in &rule.copy_headers {
        for value in stated.get_all(&copied.from) {
            request.received.parts.headers.append(copied.to.clone(), value.clone());
        }
    }
    let Some(name) = &rule.user else { return true };
    let mut users = stated.get_all(name).iter();
    let user = users.next();
    if users.next().is_some() {
        return false;
    }
    let Some(user) = user.filter(|user| !user.is_empty()) else { return true };
    match str::from_utf8(user.as_bytes()) {
        Ok(user) if is_valid_user(user) => record_user(request, user),
        _ => return false,
    }
    true
}

/// Prepares the response of the auth server for the client. `limit` bounds the time to discard a body that the client
/// must not get.
pub fn prepare_refusal(
    request: &RequestContext<'_>,
    mut response: Response<ResponseBody>,
    limit: Duration,
) -> Response<ResponseBody> {
    dispatch::clean_response(request, &mut response);
    if request.received.parts.method != Method::HEAD {
        return response;
    }
    let (parts, body) = response.into_parts();
    discard_body(body, limit);
    Response::from_parts(parts, ResponseBody::full(Bytes::new()))
}

/// Reads the rest of a body, within `limit` and up to `DISCARD_MAX` bytes, so that its connection can be reused.
pub fn discard_body(mut body: ResponseBody, limit: Duration) {
    if body.is_end_stream() {
        return;
    }
    spawn_local(timeout(limit, async move {
        let mut left = DISCARD_MAX;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }));
}
