//! Sections `[jwt]` and `[jwt.NAME]`: how tokens are verified. Called by `compile`.

use std::sync::Arc;

use http::HeaderName;
use http::header::AUTHORIZATION;

use crate::config::compile::names::{Definitions, NamedSection};
use crate::config::reader::{At, Section, find_choice};
use crate::config::schema::jwt;
use crate::config::tree::{Node, Value};
use crate::limiting::source::jwt::{Algorithm, DecodingKey, TokenVerifier};
use crate::names::parse_forwarded_header;

const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
    ("RS256", Algorithm::RS256),
    ("ES256", Algorithm::ES256),
    ("EdDSA", Algorithm::EdDSA),
];

/// Remedy for a limit that reads a claim while nothing configures verification.
pub const JWT_HELP: &str = "add one:\n\n[jwt]\nkey = \"${file:jwt.pem}\"\nalgorithms = [\"ES256\"]";

/// Verifiers of the JWTs that limits and routes read.
pub struct TokenVerifiers {
    /// `[jwt]`: used on routes without `auth.jwt`. `None` if it is missing or wrong.
    pub default: Option<Arc<TokenVerifier>>,
    /// `[jwt]` exists, but is wrong.
    pub is_default_broken: bool,
    /// `[jwt.NAME]`.
    pub named: Definitions<Arc<TokenVerifier>>,
}

/// Compiles `[jwt]` and all `[jwt.NAME]`.
pub fn compile_verifiers(section: &Section, named: Vec<NamedSection>) -> TokenVerifiers {
    let is_empty = section.written_table().entries.is_empty();
    let default = if is_empty { None } else { compile_jwt(section) };
    let mut verifiers = Definitions::new(jwt::TABLE.name);
    for NamedSection { name, place, section } in named {
        verifiers.insert(name, place, compile_jwt(&section));
    }
    TokenVerifiers { is_default_broken: !is_empty && default.is_none(), default, named: verifiers }
}

/// Compiles a section; `None` if it is wrong.
fn compile_jwt(section: &Section) -> Option<Arc<TokenVerifier>> {
    let key = section.node(&jwt::KEY);
    let algorithms = match section.node(&jwt::ALGORITHMS) {
        Some(_) => section.read_strings(&jwt::ALGORITHMS, |text| find_choice(text, ALGORITHMS)),
        None => None,
    };
    let header: Option<HeaderName> = match section.node(&jwt::HEADER) {
        Some(_) => section.parse_string(&jwt::HEADER, parse_forwarded_header),
        None => Some(AUTHORIZATION),
    };
    let [issuer, audience] = [&jwt::ISSUER, &jwt::AUDIENCE].map(|option| match section.node(option) {
        Some(_) => section.read_strings(option, |text| Ok(text.to_owned())),
        None => Some(Vec::new()),
    });
    let (given, listed) = (key.is_some(), section.node(&jwt::ALGORITHMS).is_some());
    section.report_unknown();
    match (given, listed) {
        (false, _) => {
            return section
                .report_missing(format!("{} has no key", section.title), "add one, like key = \"${file:jwt.pem}\"");
        }
        (true, false) => {
            let help = "list the accepted ones, like algorithms = [\"ES256\"]";
            return section.report_missing(format!("{} has no algorithms", section.title), help);
        }
        (true, true) => {}
    }
    let (node, algorithms) = (key?, algorithms?);
    let (decoding, secret) = read_decoding_key(section, node, &algorithms)?;
    let texts = |list: Vec<At<String>>| list.into_iter().map(|at| at.value).collect::<Vec<String>>();
    let algorithms: Vec<Algorithm> = algorithms.into_iter().map(|at| at.value).collect();
    Some(Arc::new(TokenVerifier::new(
        header?,
        decoding,
        secret.as_bytes(),
        &algorithms,
        &texts(issuer?),
        &texts(audience?),
    )))
}

/// Reads the key. It must belong to the one family of all listed algorithms: a public key must never serve as an HMAC
/// secret.
fn read_decoding_key(section: &Section, node: &Node, algorithms: &[At<Algorithm>]) -> Option<(DecodingKey, String)> {
    let Value::String(text) = &node.value else {
        return section.report_wrong_type(jwt::KEY.name, "a string", node);
    };
    let Some(first) = algorithms.first() else {
        let node = section.node(&jwt::ALGORITHMS)?;
        return section.report_fault(
            jwt::ALGORITHMS.name,
            node,
            "the list is empty",
            "name at least one, like \"ES256\"",
        );
    };
    if let Some(other) = algorithms.iter().find(|at| at.value.family() != first.value.family()) {
        let what = "the algorithms need different kinds of keys, and there is only one key";
        return section.report_fault_at(
            jwt::ALGORITHMS.name,
            other.place,
            what,
            "keep those of one kind: HS*, RS256, ES256 or EdDSA",
        );
    }
    let secret = text.value.as_str();
    let pem = secret.trim().as_bytes();
    let decoding = match first.value {
        Algorithm::RS256 => DecodingKey::from_rsa_pem(pem),
        Algorithm::ES256 => DecodingKey::from_ec_pem(pem),
        Algorithm::EdDSA => DecodingKey::from_ed_pem(pem),
        _ => return read_shared_secret(section, node, secret, algorithms),
    };
    match decoding {
        Ok(key) if !secret.contains("PRIVATE KEY") => Some((key, secret.to_owned())),
        Ok(_) => section.report_fault(
            jwt::KEY.name,
            node,
            "it is a private key",
            "give the public key, which is all that is needed",
        ),
        Err(_) => {
            let what = format!("it is not the public key of {:?} in PEM form", first.value);
            section.report_fault(jwt::KEY.name, node, &what, "it starts with -----BEGIN PUBLIC KEY-----")
        }
    }
}

fn read_shared_secret(
    section: &Section,
    node: &Node,
    secret: &str,
    algorithms: &[At<Algorithm>],
) -> Option<(DecodingKey, String)> {
    if secret.trim_start().starts_with("-----BEGIN") {
        let what = "a PEM key is not a secret, which the HS algorithms need";
        return section.report_fault(
            jwt::KEY.name,
            node,
            what,
            "name the algorithm of this key: RS256, ES256 or EdDSA",
        );
    }
    let least = |algorithm: &Algorithm| match algorithm {
        Algorithm::HS512 => 64,
        Algorithm::HS384 => 48,
        _ => 32,
    };
    let least = algorithms.iter().map(|at| least(&at.value)).max().unwrap_or(32);
    if secret.len() < least {
        let what = format!("the secret has {} bytes, these algorithms need {least}", secret.len());
        return section.report_fault(
            jwt::KEY.name,
            node,
            &what,
            "make one of random characters, like `openssl rand -base64 64`",
        );
    }
    Some((DecodingKey::from_secret(secret.as_bytes()), secret.to_owned()))
}
