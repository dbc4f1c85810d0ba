//! Verifies the token of a request on a route with `auth = { jwt = NAME }`.

use std::borrow::Cow;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::timeout;

use crate::auth::TokenAuth;
use crate::ends::End;
use crate::limiting::clock;
use crate::limiting::source::jwt::{PresentedToken, TokenClaims, TokenVerifier};
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::steps::door::Door;
use crate::proxy::steps::limits;
use crate::proxy::words::jitter::add_jitter;
use crate::proxy::words::refusal::Refusal;

/// Longest time for which a request waits for newer keys.
const KEYS_WAIT: Duration = Duration::from_secs(2);

/// Approximate delay after which a client may try again while there are no keys. After a failure, keys are fetched
/// again after the same delay, or up to a minute later if the issuer has been down for some time.
const KEYS_RETRY_MS: u64 = 5000;

/// Waits until newer keys have been fetched, if the token needs them: for a bounded time, and only if the last keys
/// were not fetched just now.
pub async fn await_keys(headers: &HeaderMap, verifier: &TokenVerifier) {
    if let Some(mut refresh) = verifier.request_missing_key(headers, clock::now_ms() / 1000) {
        // Whatever the result is, the keys that there are then decide.
        let _ = timeout(KEYS_WAIT, refresh.changed()).await;
    }
}

/// Returns the identity in the token. The limits of `auth` decide first, unless the token was verified recently.
pub async fn verify_token<'a, D: Door<'a>>(
    door: &mut D,
    routed: RoutedRequest<'_>,
    auth: &TokenAuth,
) -> Result<String, Refusal> {
    let claims = match auth.verifier.find_verified(door.headers(), clock::now_ms() / 1000) {
        PresentedToken::Verified(claims) => claims,
        PresentedToken::Missing => return Err(End::CredentialsMissing.into()),
        PresentedToken::Invalid => return Err(End::CredentialsInvalid.into()),
        PresentedToken::Unverified => {
            limits::apply_auth_limits(door, routed).await?;
            if auth.verifier.remote_keys().is_some() {
                Box::pin(door.await_token_keys(&auth.verifier)).await;
            }
            // Without keys, the gateway cannot tell whether the token is valid.
            if !auth.verifier.has_keys(clock::now_ms() / 1000) {
                return Err(Refusal::retry_after(End::TokenKeys, Duration::from_millis(add_jitter(KEYS_RETRY_MS))));
            }
            door.verify_token(&auth.verifier).and_then(TokenClaims::into_only).ok_or(End::CredentialsInvalid)?
        }
    };
    let user = claims.get(&auth.user_claim).map(Cow::into_owned);
    door.admission_mut().claims = Some(claims);
    user.ok_or(End::CredentialsInvalid.into())
}
