//! Describes how the client proves its identity (`auth`). Tokens are verified; passwords and auth servers are not
//! asked, so that the rest of the explanation assumes that they agree.

use http::HeaderMap;

use crate::auth::credentials::Credentials;
use crate::auth::forward::ForwardAuth;
use crate::auth::{AuthMethod, TokenAuth, is_valid_user};
use crate::ends::End;
use crate::explain::explanation::AuthReport;
use crate::explain::limits;
use crate::explain::walk::{ExplainWalk, Findings};
use crate::limiting::clock;
use crate::limiting::source::jwt::{PresentedToken, TokenClaims};
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::steps::auth::forward::auth_response::remove_client_headers;
use crate::proxy::steps::auth::{remove_credentials, state_user};
use crate::proxy::words::refusal::Refusal;

/// Reads the credentials of a request whose route has `auth`, and decides the limits of `auth`.
pub async fn authenticate(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    routed: RoutedRequest<'_>,
    headers: &mut HeaderMap,
) -> Result<(), Refusal> {
    let Some(auth) = &routed.route.auth else { return Ok(()) };
    match &auth.method {
        AuthMethod::Basic(_) => {
            let credentials = Credentials::from_headers(headers).map_err(|fault| refuse(found, "basic", fault))?;
            let detail =
                "the password was not verified; the limits of `auth` do not apply to passwords verified recently";
            report(found, "basic", "unknown", Some(&credentials.user), detail);
            found.explanation.notes.push("the password was not verified; this assumes that it is right".to_owned());
            limits::apply_auth_limits(walk, found, routed, headers).await?;
            found.user = Some(credentials.user);
        }
        AuthMethod::Jwt(token) => {
            let user = verify_token(walk, found, routed, headers, token).await?;
            report(found, "jwt", "verified", Some(&user), "the signature and the times of the token are valid");
            found.user = Some(user);
        }
        AuthMethod::Forward(rule) => {
            limits::apply_auth_limits(walk, found, routed, headers).await?;
            assume_approval(walk, found, rule);
            remove_client_headers(headers, rule);
            return Ok(());
        }
    }
    remove_credentials(headers, auth);
    match &found.user {
        Some(user) => state_user(headers, auth, user).ok_or(End::CredentialsInvalid.into()),
        None => Ok(()),
    }
}

/// Returns the identity in the token.
async fn verify_token(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    routed: RoutedRequest<'_>,
    headers: &HeaderMap,
    auth: &TokenAuth,
) -> Result<String, Refusal> {
    let invalid = |found: &mut Findings| refuse(found, "jwt", End::CredentialsInvalid);
    let claims = match auth.verifier.find_verified(headers, clock::now_ms() / 1000) {
        PresentedToken::Verified(claims) => claims,
        PresentedToken::Missing => return Err(refuse(found, "jwt", End::CredentialsMissing)),
        PresentedToken::Invalid => return Err(invalid(found)),
        PresentedToken::Unverified => {
            limits::apply_auth_limits(walk, found, routed, headers).await?;
            let claims = limits::read_claims(walk, &auth.verifier, headers).and_then(TokenClaims::into_only);
            claims.ok_or_else(|| invalid(found))?
        }
    };
    let user = claims.get(&auth.user_claim).filter(|user| is_valid_user(user)).map(str::to_owned);
    found.claims = Some(claims);
    user.ok_or_else(|| invalid(found))
}

fn assume_approval(walk: &ExplainWalk<'_>, found: &mut Findings, rule: &ForwardAuth) {
    let name = &rule.upstream_name;
    found.explanation.notes.push(format!("the auth server {name} was not asked; this assumes that it approves"));
    found.user = walk.input.user.clone().filter(|user| rule.user.is_some() && is_valid_user(user));
    found.is_user_unknown = rule.user.is_some() && found.user.is_none();
    let user = found.user.clone();
    // The query may contain a secret.
    let path = rule.target.split('?').next().unwrap_or_default();
    let detail = format!("the auth server {name} decides, with {path}");
    report(found, "forward", "unknown", user.as_deref(), &detail);
}

fn refuse(found: &mut Findings, method: &str, end: End) -> Refusal {
    let (credentials, detail) = match end {
        End::CredentialsMissing => ("missing", "the request has no credentials for this route"),
        _ => ("invalid", "the credentials are malformed or not valid"),
    };
    report(found, method, credentials, None, detail);
    end.into()
}

fn report(found: &mut Findings, method: &str, credentials: &str, user: Option<&str>, detail: &str) {
    found.explanation.auth = Some(AuthReport {
        method: method.to_owned(),
        credentials: credentials.to_owned(),
        user: user.map(str::to_owned),
        detail: detail.to_owned(),
    });
}
