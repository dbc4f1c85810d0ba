//! Authentication: finds out who the client of a route with `auth` is, or refuses the request. Called by the request
//! page before the limits of the route, which may use the identity.
//!
//! Input: the headers that are forwarded and the route's `RouteAuth`. Output: the identity in the request context, from where
//! limits, log and the upstream server get it. `basic` verifies passwords, `jwt` verifies tokens, and `forward` asks an
//! auth server.
//!
//! To add a method, add a file with a function that returns the identity, and its arm in [`authenticate`]. Before
//! expensive work, the function calls `limits::apply_auth_limits`, which decides the `limits` of `auth`.

mod basic;
pub(crate) mod forward;
mod jwt;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Response};

use crate::auth::{AuthMethod, RouteAuth, is_valid_user};
use crate::ends::End;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::words::refusal::Refusal;

/// Authenticates the client, if the route has `auth`. Returns a response if the client gets one instead of that of the
/// route.
pub async fn authenticate(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
) -> Result<Option<Response<ResponseBody>>, Refusal> {
    let Some(auth) = &routed.route.auth else { return Ok(None) };
    // Boxed, so that the future of a request without authentication is not larger for it.
    let user = match &auth.method {
        AuthMethod::Basic(password) => Box::pin(basic::verify_password(request, routed, password)).await?,
        AuthMethod::Jwt(token) => Box::pin(jwt::verify_token(request, routed, token)).await?,
        AuthMethod::Forward(rule) => return Box::pin(forward::ask_auth_server(request, routed, rule)).await,
    };
    accept_user(request, auth, &user)?;
    Ok(None)
}

/// Records the identity of the client, and states it to the upstream server.
fn accept_user(request: &mut RequestContext<'_>, auth: &RouteAuth, user: &str) -> Result<(), Refusal> {
    if !is_valid_user(user) {
        return Err(End::CredentialsInvalid.into());
    }
    let headers = &mut request.received.parts.headers;
    remove_credentials(headers, auth);
    state_user(headers, auth, user).ok_or(End::CredentialsInvalid)?;
    record_user(request, user);
    Ok(())
}

/// Adds the header in which the upstream server gets the identity, if it gets one. Limits see it too. Returns `None` if
/// the identity is no value of a header.
pub fn state_user(headers: &mut HeaderMap, auth: &RouteAuth, user: &str) -> Option<()> {
    if let Some(name) = &auth.user_header {
        headers.insert(name.clone(), HeaderValue::from_bytes(user.as_bytes()).ok()?);
    }
    Some(())
}

/// Removes the credentials of an authenticated client, unless the upstream server gets them.
pub fn remove_credentials(headers: &mut HeaderMap, auth: &RouteAuth) {
    if auth.forwards_credentials {
        return;
    }
    let header = match &auth.method {
        AuthMethod::Basic(_) | AuthMethod::Forward(_) => &AUTHORIZATION,
        AuthMethod::Jwt(token) => &token.verifier.header,
    };
    headers.remove(header);
}

/// Records the identity of the client, for limits and the log.
fn record_user(request: &mut RequestContext<'_>, user: &str) {
    if let Some(entry) = request.account.log_entry() {
        entry.record_user(user);
    }
    request.user = Some(user.into());
}
