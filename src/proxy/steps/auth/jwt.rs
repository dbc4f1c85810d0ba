//! Verifies the token of a request on a route with `auth = { jwt = NAME }`.

use std::sync::Arc;

use crate::auth::TokenAuth;
use crate::ends::End;
use crate::limiting::clock;
use crate::limiting::source::jwt::{Claims, PresentedToken};
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::steps::limits;
use crate::proxy::words::refusal::Refusal;

/// Returns the identity in the token. The limits of `auth` decide first, unless the token was verified recently.
pub async fn verify_token(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    auth: &TokenAuth,
) -> Result<String, Refusal> {
    let now_s = clock::now_ms() / 1000;
    let claims = match auth.verifier.find_verified(&request.received.parts.headers, now_s) {
        PresentedToken::Verified(claims) => claims,
        PresentedToken::Missing => return Err(End::CredentialsMissing.into()),
        PresentedToken::Invalid => return Err(End::CredentialsInvalid.into()),
        PresentedToken::Unverified => {
            limits::apply_auth_limits(request, routed).await?;
            verify_unseen(request, auth, now_s).ok_or(End::CredentialsInvalid)?
        }
    };
    let user = claims.get(&auth.user_claim).map(str::to_owned);
    request.claims = Some(claims);
    user.ok_or(End::CredentialsInvalid.into())
}

fn verify_unseen(request: &RequestContext<'_>, auth: &TokenAuth, now_s: i64) -> Option<Arc<Claims>> {
    auth.verifier.verify_request(&request.received.parts.headers, now_s)?.into_only()
}
