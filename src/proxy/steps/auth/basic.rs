//! Verifies the user and the password of a request on a route with `auth = { basic = FILE }`.

use std::time::Instant;

use crate::auth::PasswordAuth;
use crate::auth::credentials::Credentials;
use crate::auth::guess_queue::Guess;
use crate::auth::password_verifier::{CachedResult, Verified};
use crate::ends::End;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::steps::limits;
use crate::proxy::words::refusal::Refusal;

/// Returns the user. The limits of `auth` decide before a hash is computed. They do not decide for credentials that
/// were verified recently, nor for those that another request verifies at the moment, if they come from the same
/// address: neither is another guess.
pub async fn verify_password(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    auth: &PasswordAuth,
) -> Result<String, Refusal> {
    let credentials = Credentials::from_headers(&request.received.parts.headers)?;
    let verifier = &request.client.worker.process.passwords;
    let seed = verifier.seed_of(&credentials.user);
    let candidate = auth.users.find(&credentials.user, seed).ok_or(End::CredentialsInvalid)?;
    let id = verifier.identify(&credentials, candidate, routed.identity.ip);
    loop {
        let pending = match verifier.look_up(&id, auth.max_age) {
            CachedResult::Match => return Ok(credentials.user),
            CachedResult::Pending(pending) => pending,
            CachedResult::Unknown(ticket) => {
                if let Err(refusal) = limits::apply_auth_limits(request, routed).await {
                    // If the right password were still accepted, further guesses would cost nothing.
                    verifier.forget_success(&id);
                    return Err(refusal);
                }
                let password = credentials.password.clone();
                verifier.queue_password(ticket, Guess::new(routed.identity.ip, seed), candidate, password)
            }
        };
        let start = Instant::now();
        let result = pending.wait().await;
        request.account.add_wait(start);
        match result {
            Verified::Match => return Ok(credentials.user),
            Verified::Mismatch => return Err(End::CredentialsInvalid.into()),
            Verified::Busy => return Err(End::PasswordQueueFull.into()),
            Verified::Abandoned => {}
        }
    }
}
