//! Verifies the token of a request on a route with `auth = { jwt = NAME }`.

use crate::auth::TokenAuth;
use crate::ends::End;
use crate::limiting::clock;
use crate::limiting::source::jwt::{PresentedToken, TokenClaims};
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::steps::door::Door;
use crate::proxy::steps::limits;
use crate::proxy::words::refusal::Refusal;

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
            door.verify_token(&auth.verifier).and_then(TokenClaims::into_only).ok_or(End::CredentialsInvalid)?
        }
    };
    let user = claims.get(&auth.user_claim).map(str::to_owned);
    door.admission_mut().claims = Some(claims);
    user.ok_or(End::CredentialsInvalid.into())
}
