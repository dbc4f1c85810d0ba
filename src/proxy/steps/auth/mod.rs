//! Authentication: finds out who the client of a route with `auth` is, or refuses the request. Called before the
//! limits of the route, which may use the identity.
//!
//! Input: the headers that are forwarded and the route's `RouteAuth`. Output: the identity in the `Admission`, from
//! where limits, log and the upstream server get it. `basic` verifies passwords, `jwt` verifies tokens, and `forward`
//! asks an auth server.
//!
//! To add a method, add a file with a function that returns the identity, and its arm in [`authenticate`]. If somebody
//! else has to answer, make it a method of [`Door`], so that explanations can assume the answer. Before expensive work,
//! the function calls `limits::apply_auth_limits`, which decides the `limits` of `auth`.

pub(crate) mod basic;
pub(crate) mod forward;
pub(crate) mod jwt;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Response};

use crate::auth::{AuthMethod, RouteAuth, is_valid_user};
use crate::ends::End;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::steps::door::Door;
use crate::proxy::words::refusal::Refusal;

/// Authenticates the client, if the route has `auth`. Returns a response if the client gets one instead of that of the
/// route.
pub async fn authenticate<'a, D: Door<'a>>(
    door: &mut D,
    routed: RoutedRequest<'_>,
) -> Result<Option<Response<ResponseBody>>, Refusal> {
    let Some(auth) = &routed.route.auth else { return Ok(None) };
    if let Some(proof) = door.logged_proof() {
        return proof.map(|()| None).map_err(Refusal::from);
    }
    // Boxed, so that it does not enlarge the future of a request without authentication.
    let user = match &auth.method {
        AuthMethod::Basic(password) => Box::pin(door.verify_password(routed, password)).await,
        AuthMethod::Jwt(token) => Box::pin(jwt::verify_token(door, routed, token)).await,
        AuthMethod::Forward(rule) => return Box::pin(door.ask_auth_server(routed, rule)).await,
    };
    let user = user.and_then(|user| accept_user(door, auth, &user).map(|()| user));
    match &user {
        Ok(user) => door.observe_identity(auth, Ok(user)),
        Err(refusal) => door.observe_identity(auth, Err(refusal.end)),
    }
    user.map(|_| None)
}

/// Records the identity of the client, and states it to the upstream server.
fn accept_user<'a, D: Door<'a>>(door: &mut D, auth: &RouteAuth, user: &str) -> Result<(), Refusal> {
    if !is_valid_user(user) {
        return Err(End::CredentialsInvalid.into());
    }
    let headers = door.headers_mut();
    remove_credentials(headers, auth);
    state_user(headers, auth, user).ok_or(End::CredentialsInvalid)?;
    record_user(door, user);
    Ok(())
}

/// Adds the header in which the upstream server gets the identity, if it gets one. Limits see it too. Returns `None` if
/// the identity is not a value of a header.
fn state_user(headers: &mut HeaderMap, auth: &RouteAuth, user: &str) -> Option<()> {
    if let Some(name) = &auth.user_header {
        headers.insert(name.clone(), HeaderValue::from_bytes(user.as_bytes()).ok()?);
    }
    Some(())
}

/// Removes the credentials of an authenticated client, unless the upstream server gets them.
fn remove_credentials(headers: &mut HeaderMap, auth: &RouteAuth) {
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
pub fn record_user<'a, D: Door<'a>>(door: &mut D, user: &str) {
    door.record_user(user);
    door.admission_mut().user = Some(user.into());
}
