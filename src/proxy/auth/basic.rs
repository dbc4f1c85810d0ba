//! Verifies the user and the password of a request on a route with `auth = { basic = FILE }`.

use crate::auth::credentials::Credentials;
use crate::auth::password_verifier::{Known, Verified};
use crate::auth::{AuthFault, PasswordAuth};
use crate::proxy::limits;
use crate::proxy::request_context::{RequestContext, RoutedRequest};
use crate::proxy::response::refusal::Refusal;

/// Returns the user. The limits of `auth` decide before a hash is computed. They do not decide for credentials that
/// were verified recently, nor for those that another request verifies at the moment: neither is another guess.
pub async fn verify_password(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    auth: &PasswordAuth,
) -> Result<String, Refusal> {
    let Credentials { user, password } =
        Credentials::from_headers(&request.received.parts.headers).map_err(Refusal::Unauthorized)?;
    let verifier = &request.client.local.common.passwords;
    let candidate = auth.users.find(&user, verifier.seed_of(&user)).ok_or(Refusal::Unauthorized(AuthFault::Invalid))?;
    let id = verifier.identify(&user, &password, candidate.hash, candidate.is_known);
    loop {
        let pending = match verifier.look_up(&id, auth.max_age) {
            Known::Match => return Ok(user),
            Known::Pending(pending) => pending,
            Known::Unknown(ticket) => {
                limits::apply_auth_limits(request, routed).await?;
                verifier.queue_password(ticket, candidate.hash, password.clone(), candidate.is_known)
            }
        };
        // A client that shuts down its side must not keep its place in the queue.
        let _waits = request.account.deadline().hold_back();
        match pending.wait().await {
            Verified::Match => return Ok(user),
            Verified::Mismatch => return Err(Refusal::Unauthorized(AuthFault::Invalid)),
            Verified::Busy => return Err(Refusal::PasswordQueueFull),
            Verified::Abandoned => {}
        }
    }
}
