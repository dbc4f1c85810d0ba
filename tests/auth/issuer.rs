//! An OpenID issuer with TLS and keys that a test rotates. It serves one discovery document and one key set below each
//! first segment of a path, so that one server can be several issuers.

use std::io;
use std::sync::{Arc, Mutex};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::support::ca::Ca;
use crate::support::upstream::{Peer, Upstream, ok};
use crate::upstreams::tls::{secured, server_config};

pub struct Issuer {
    server: Upstream,
    ca: Ca,
    state: Arc<Mutex<IssuerState>>,
}

#[derive(Default)]
struct IssuerState {
    keys: Vec<Value>,
    /// Respond 500 to everything.
    is_down: bool,
    /// Number of fetched key sets.
    fetches: usize,
    /// Whole responses by target.
    responses: Vec<(String, String)>,
}

/// A key pair with its `kid`.
pub struct SigningKey {
    id: String,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    pub fn new(id: &str) -> SigningKey {
        SigningKey { id: id.to_owned(), pair: Ed25519KeyPair::generate().unwrap() }
    }

    pub fn jwk(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        json!({ "kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": self.id, "x": x })
    }

    /// Returns a header with a token that has these claims.
    pub fn bearer(&self, claims: &Value) -> String {
        let head = json!({ "alg": "EdDSA", "kid": self.id }).to_string();
        let [head, claims] = [head, claims.to_string()].map(|text| URL_SAFE_NO_PAD.encode(text));
        let message = format!("{head}.{claims}");
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(message.as_bytes()));
        format!("authorization: Bearer {message}.{signature}\r\n")
    }
}

impl Issuer {
    pub fn start(keys: &[&SigningKey]) -> Issuer {
        let (ca, state) = (Ca::new("of an issuer"), Arc::<Mutex<IssuerState>>::default());
        let pair = ca.issue(&["127.0.0.1"], "issuer");
        let shared = state.clone();
        let server = secured(server_config(&pair, None, &[]), true, move |peer| serve(peer, &shared));
        let issuer = Issuer { server, ca, state };
        issuer.rotate(keys);
        issuer
    }

    /// Replaces the keys.
    pub fn rotate(&self, keys: &[&SigningKey]) {
        self.state.lock().unwrap().keys = keys.iter().map(|key| key.jwk()).collect();
    }

    pub fn set_down(&self, is_down: bool) {
        self.state.lock().unwrap().is_down = is_down;
    }

    /// Responds to `target` with these bytes.
    pub fn respond(&self, target: &str, response: impl Into<String>) {
        self.state.lock().unwrap().responses.push((target.to_owned(), response.into()));
    }

    /// Returns how often a key set was fetched.
    pub fn fetches(&self) -> usize {
        self.state.lock().unwrap().fetches
    }

    /// The URL of an issuer.
    pub fn url(&self, name: &str) -> String {
        format!("https://{}/{name}", self.server.addr)
    }

    pub fn ca(&self) -> String {
        self.ca.pem()
    }
}

fn serve(peer: &mut Peer, state: &Mutex<IssuerState>) -> io::Result<()> {
    while let Some(request) = peer.request()? {
        let target = request.target().to_owned();
        let host = request.get("host").unwrap_or_default().to_owned();
        let response = {
            let mut state = state.lock().unwrap();
            let name = target.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
            if state.is_down {
                "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_owned()
            } else if let Some((_, response)) = state.responses.iter().find(|(of, _)| *of == target) {
                response.clone()
            } else if target.ends_with("/.well-known/openid-configuration") {
                let issuer = format!("https://{host}/{name}");
                ok(&json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/jwks") }).to_string())
            } else {
                state.fetches += 1;
                ok(&json!({ "keys": state.keys }).to_string())
            }
        };
        peer.send(response)?;
    }
    Ok(())
}
