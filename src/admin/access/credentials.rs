//! Finds the owner of the token in a request. Called by `mod.rs`.

use std::time::{Instant, SystemTime};

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::admin::access::sessions::{SESSION_PREFIX, Sessions};
use crate::admin::access::{AccessFault, AccessRefusal, AdminCaller, refuse};
use crate::admin::lifecycle::format_rfc3339;
use crate::config::Admin;
use crate::config::admin_tokens::{AdminToken, TokenDigest};

const SEND_TOKEN: &str = "send the admin token: `Authorization: Bearer TOKEN`";
const ONE_TOKEN: &str = "the request has several Authorization headers; send one";
const SESSION_ENDED: &str = "the session has ended; open another with the admin token";

/// Returns the caller that the request's token identifies; `None` if no token is configured and the request has no
/// token of a session.
pub fn find_caller(
    headers: &HeaderMap,
    admin: &Admin,
    sessions: &Sessions,
    time: SystemTime,
    now: Instant,
) -> Result<Option<AdminCaller>, AccessRefusal> {
    // A proxy in between and the gateway might believe different ones.
    if headers.get_all(AUTHORIZATION).iter().nth(1).is_some() {
        return Err(refuse(AccessFault::TokenUnknown, ONE_TOKEN));
    }
    let bearer = read_bearer(headers);
    let is_session = bearer.is_some_and(|bearer| bearer.starts_with(SESSION_PREFIX.as_bytes()));
    let Some(bearer) = bearer.filter(|_| is_session || !admin.tokens.is_empty()) else {
        return match admin.tokens.is_empty() {
            true => Ok(None),
            false => Err(refuse(AccessFault::TokenMissing, SEND_TOKEN)),
        };
    };
    let digest = TokenDigest::of_token(bearer);
    if let Some(token) = find_token(&admin.tokens, digest) {
        let caller =
            AdminCaller { name: Some(token.name.clone()), role: token.role, token: Some(digest), is_session: false };
        return match token.expires {
            Some(expires) if expires <= time => {
                let detail = format!("the token `{}` expired at {}; use another", token.name, format_rfc3339(expires));
                Err(AccessRefusal { caller: Some(Box::new(caller)), ..refuse(AccessFault::TokenExpired, detail) })
            }
            _ => Ok(Some(caller)),
        };
    }
    match sessions.find_session(digest, admin, now, time) {
        Some(caller) => Ok(Some(caller)),
        None if is_session => Err(refuse(AccessFault::SessionEnded, SESSION_ENDED)),
        None => Err(refuse(AccessFault::TokenUnknown, format!("the token is unknown; {SEND_TOKEN}"))),
    }
}

/// Compares with every token, so that the time does not reveal which one was nearly right.
fn find_token(tokens: &[AdminToken], digest: TokenDigest) -> Option<&AdminToken> {
    tokens.iter().fold(None, |found, token| if token.digest == digest { Some(token) } else { found })
}

fn read_bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let header = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = header.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii()).filter(|token| !token.is_empty())
}

/// Returns whether the request has a token.
pub fn has_bearer(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION)
}
