//! Authentication of the clients of a route (`auth`): how they prove their identity, and what is accepted.
//!
//! Input: the config compiler builds a [`RouteAuth`] per route with `auth`. Output: the identity of the client, which
//! `proxy::steps::auth` computes before the limits of the route decide.
//!
//! - `user_table`: htpasswd files; `password_hash`: the formats of their hashes
//! - `credentials`: reads user and password from a request
//! - `password_verifier`: computes hashes on threads of its own, and remembers successes
//! - `guess_queue`: who is next for these threads
//!
//! To add a method: add a variant to [`AuthMethod`], its reader in `config::compile::routes::auth`, and its step in
//! `proxy::steps::auth`.

pub mod credentials;
pub mod forward;
pub mod guess_queue;
pub mod password_hash;
pub mod password_verifier;
pub mod user_table;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use crate::auth::forward::ForwardAuth;
use crate::auth::user_table::UserTable;
use crate::ends::End;
use crate::limiting::source::jwt::TokenVerifier;

/// `auth` of a route.
#[derive(Debug, PartialEq)]
pub struct RouteAuth {
    pub method: AuthMethod,
    /// Number of the route's limits, its first ones, that are decided before the credentials are verified.
    pub limit_count: usize,
    /// Value of `realm` in `WWW-Authenticate`, without quotes.
    pub realm: String,
    /// Request header that carries the identity to the upstream server. `None`: no header does.
    pub user_header: Option<HeaderName>,
    /// The upstream server gets the credentials of the client.
    pub forwards_credentials: bool,
}

/// How a client proves its identity.
#[derive(Debug, PartialEq)]
pub enum AuthMethod {
    Basic(PasswordAuth),
    Jwt(TokenAuth),
    Forward(ForwardAuth),
}

/// `auth = { basic = FILE }`: the client sends a user and a password.
#[derive(Debug, PartialEq)]
pub struct PasswordAuth {
    pub users: Arc<UserTable>,
    /// How long a success counts without another verification.
    pub max_age: Duration,
}

/// `auth = { jwt = NAME }`: the client sends a JSON Web Token.
#[derive(Debug, PartialEq)]
pub struct TokenAuth {
    pub verifier: Arc<TokenVerifier>,
    /// Claim that contains the identity.
    pub user_claim: String,
}

/// Longest identity in bytes. It occurs in the log, in limit keys and in a header.
pub const USER_MAX: usize = 256;

impl RouteAuth {
    /// Returns the headers in which the gateway states the identity, except those that clients may send because the
    /// auth server reads them.
    pub fn identity_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let forward = match &self.method {
            AuthMethod::Forward(rule) => Some(rule),
            AuthMethod::Basic(_) | AuthMethod::Jwt(_) => None,
        };
        let headers = forward.into_iter().flat_map(|rule| rule.owned_headers().filter(|name| !rule.is_sent(name)));
        self.user_header.iter().chain(headers)
    }

    /// Returns the headers that the method reads, or in which the upstream server gets the identity.
    pub fn read_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let (rule, token) = match &self.method {
            AuthMethod::Forward(rule) => (Some(rule), None),
            AuthMethod::Jwt(token) => (None, Some(&token.verifier.header)),
            AuthMethod::Basic(_) => (None, None),
        };
        let request_headers = rule.into_iter().filter_map(|rule| rule.request_headers.as_ref()).flatten();
        let owned_headers = rule.into_iter().flat_map(|rule| rule.owned_headers());
        self.user_header.iter().chain(request_headers).chain(owned_headers).chain(token)
    }

    /// Returns the value of `WWW-Authenticate` for a request without valid credentials. An auth server sends its own.
    pub fn challenge(&self, end: End) -> Option<String> {
        let realm = &self.realm;
        match (&self.method, end) {
            (AuthMethod::Basic(_), _) => Some(format!("Basic realm=\"{realm}\", charset=\"UTF-8\"")),
            (AuthMethod::Jwt(_), End::CredentialsInvalid) => {
                Some(format!("Bearer realm=\"{realm}\", error=\"invalid_token\""))
            }
            (AuthMethod::Jwt(_), _) => Some(format!("Bearer realm=\"{realm}\"")),
            (AuthMethod::Forward(_), _) => None,
        }
    }
}

/// Returns true if `user` is an identity that every server reads alike: not empty, at most [`USER_MAX`] bytes, without
/// control characters, and without spaces around it, which servers remove from the value of a header.
pub fn is_valid_user(user: &str) -> bool {
    !user.is_empty() && user.len() <= USER_MAX && user.trim() == user && !user.chars().any(char::is_control)
}
