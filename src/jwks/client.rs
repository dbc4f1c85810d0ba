//! HTTP client for issuers. Every exchange has a deadline and every response a maximum size; redirects are not
//! followed.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, LOCATION, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use serde::Deserialize;
use tokio::time::timeout;

use crate::https_client::{HttpsClient, OWN_USER_AGENT, Schemes, build_client, join_causes};
use crate::jwks::schedule::lifetime_of;
use crate::limiting::source::jwt::jwk::KeySet;
use crate::limiting::source::jwt::remote_keys::{IssuerLocation, RemoteKeySettings};
use crate::net::is_this_machine;

/// Time limit of a refresh: discovery, connections and responses.
const REFRESH: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes. A key has one kilobyte, or a few with its certificates.
const RESPONSE_MAX: usize = 512 * 1024;
/// The path of the document about an issuer, by OpenID Connect Discovery 1.0.
const DISCOVERY: &str = "/.well-known/openid-configuration";

pub struct KeyClient(HttpsClient<Empty<Bytes>>);

/// The parts of a discovery document that are read.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl KeyClient {
    /// Creates a client that trusts the CAs in PEM, or the CAs of the system.
    ///
    /// # Errors
    /// What is wrong with the CAs.
    pub fn new(ca: Option<&str>) -> Result<KeyClient, String> {
        build_client(ca, Schemes::HttpsOrHttp, CONNECT).map(KeyClient)
    }

    /// Fetches the keys of an issuer. Also returns how long they are fresh.
    ///
    /// # Errors
    /// What went wrong, for the log.
    pub async fn fetch_keys(&self, settings: &RemoteKeySettings) -> Result<(KeySet, Duration), String> {
        let late = |_| Err(format!("no response within {} seconds", REFRESH.as_secs()));
        timeout(REFRESH, self.fetch_keys_unbounded(settings)).await.unwrap_or_else(late)
    }

    async fn fetch_keys_unbounded(&self, settings: &RemoteKeySettings) -> Result<(KeySet, Duration), String> {
        let jwks_uri = match &settings.location {
            IssuerLocation::Jwks(url) => url.clone(),
            IssuerLocation::Issuer(issuer) => self.discover(issuer).await?,
        };
        let (headers, body) = self.get(&jwks_uri).await?;
        let keys = KeySet::from_jwks(&body, &settings.algorithms).map_err(|fault| format!("{jwks_uri}: {fault}"))?;
        Ok((keys, lifetime_of(&headers)))
    }

    /// Returns the URL of the issuer's key set.
    async fn discover(&self, issuer: &str) -> Result<String, String> {
        let url = format!("{}{DISCOVERY}", issuer.strip_suffix('/').unwrap_or(issuer));
        let (_, body) = self.get(&url).await?;
        let document: Discovery = serde_json::from_slice(&body)
            .map_err(|error| format!("{url} is not a discovery document of OpenID: {error}"))?;
        let Discovery { issuer: stated, jwks_uri } = document;
        // Otherwise, an issuer could have its keys verify the tokens of another one.
        if stated != issuer {
            return Err(format!("{url} is about the issuer {stated:?}; `issuer` must be exactly that of the tokens"));
        }
        match is_safe(&jwks_uri, issuer) {
            true => Ok(jwks_uri),
            false => Err(format!("{url} names the keys {jwks_uri:?}, which is not an https URL")),
        }
    }

    async fn get(&self, url: &str) -> Result<(HeaderMap, Bytes), String> {
        let request = Request::get(url)
            .header(ACCEPT, "application/json, application/jwk-set+json")
            .header(USER_AGENT, OWN_USER_AGENT)
            .body(Empty::new())
            .map_err(|error| format!("{url}: {error}"))?;
        let response = self.0.request(request).await.map_err(|error| format!("{url}: {}", join_causes(&error)))?;
        let (parts, body) = response.into_parts();
        if parts.status.is_redirection() {
            let to = parts.headers.get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
            return Err(format!("{url} redirects to {to:?}, which is not followed: name the URL itself"));
        }
        if parts.status != StatusCode::OK {
            return Err(format!("{url} responds {}", parts.status));
        }
        let body = Limited::new(body, RESPONSE_MAX).collect().await.map_err(|error| format!("{url}: {error}"))?;
        Ok((parts.headers, body.to_bytes()))
    }
}

/// Returns whether nobody on the way can replace the keys at this URL. Plain HTTP is for an issuer on this machine.
fn is_safe(url: &str, issuer: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    match uri.scheme_str() {
        Some("https") => true,
        Some("http") => issuer.starts_with("http://") && uri.host().is_some_and(is_this_machine),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_issuer_on_this_machine_may_name_plain_http() {
        let (remote, local) = ("https://id.test", "http://localhost:5556/dex");
        for (url, issuer, is_accepted) in [
            ("https://keys.test/jwks", remote, true),
            ("https://keys.test/jwks", local, true),
            ("http://keys.test/jwks", remote, false),
            ("http://127.0.0.1/jwks", remote, false),
            ("http://127.0.0.1/jwks", local, true),
            ("http://[::1]:5556/jwks", local, true),
            ("http://keys.test/jwks", local, false),
            ("http://localhost.keys.test/jwks", local, false),
            ("file:///etc/jwks", local, false),
            ("/jwks", remote, false),
            ("", remote, false),
        ] {
            assert_eq!(is_safe(url, issuer), is_accepted, "{url} of {issuer}");
        }
    }
}
