//! Sections `[jwt]` and `[jwt.NAME]`: how tokens are verified. Called by `compile`.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::uri::Scheme;
use http::{HeaderName, Uri};

use crate::config::compile::names::{Definitions, NamedSection};
use crate::config::reader::{At, Section, find_choice};
use crate::config::schema::jwt;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::source::Source;
use crate::limiting::source::jwt::jwk::{KeySet, VerificationKey, least_secret};
use crate::limiting::source::jwt::remote_keys::{IssuerLocation, RemoteKeySettings, RemoteKeys};
use crate::limiting::source::jwt::{Algorithm, KeySource, TokenVerifier};
use crate::names::parse_forwarded_header;
use crate::net::is_this_machine;
use crate::tls::trust::TrustedRoots;

/// The accepted algorithms; those with a shared secret come first.
const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];
/// Number of algorithms with a shared secret, which a key set has only if they are listed.
const SYMMETRIC: usize = 3;

/// Claims that are arrays by their definition (RFC 8176, RFC 9068) or at common issuers.
const ARRAY_CLAIMS: &[&str] = &["amr", "roles", "groups", "entitlements", "permissions", "cognito:groups"];

/// Remedy for a limit that reads a claim while nothing configures verification.
pub const JWT_HELP: &str = "add one:\n\n[jwt]\nissuer = \"https://login.example.com\"";
const ISSUER_HELP: &str = "write the `iss` of its tokens, like \"https://login.example.com\"";
const JWKS_HELP: &str =
    "write the URL of a JSON Web Key Set, like \"https://login.example.com/jwks.json\", or a file with one";
const CA_HELP: &str = "give a file in PEM: the certificates that sign that of the issuer's server";
const KEYS_HELP: &str =
    "write issuer = \"https://...\" or jwks = \"https://...\" for the keys of an issuer, or key = \"${file:jwt.pem}\"";

/// Verifiers of the JWTs that limits and routes read.
pub struct TokenVerifiers {
    /// `[jwt]`: used on routes without `auth.jwt`. `None` if it is missing or wrong.
    pub default: Option<Arc<TokenVerifier>>,
    /// `[jwt]` exists, but is wrong.
    pub is_default_broken: bool,
    /// `[jwt.NAME]`.
    pub named: Definitions<Arc<TokenVerifier>>,
}

impl TokenVerifiers {
    /// Returns the keys that are fetched from issuers.
    pub fn list_remote_keys(&self) -> Vec<Arc<RemoteKeys>> {
        let tables: Vec<_> = self.named.places().filter_map(|(name, _)| self.named.get(name)).collect();
        self.default.iter().chain(&tables).filter_map(|verifier| verifier.remote_keys().cloned()).collect()
    }
}

/// Compiles `[jwt]` and all `[jwt.NAME]`.
pub fn compile_verifiers(section: &Section, named: Vec<NamedSection>) -> TokenVerifiers {
    let is_empty = section.written_table().entries.is_empty();
    let default = if is_empty { None } else { compile_jwt(section, jwt::TABLE.name) };
    let mut verifiers = Definitions::new(jwt::TABLE.name);
    for NamedSection { name, place, section } in named {
        verifiers.insert(name, place, compile_jwt(&section, &format!("{}.{name}", jwt::TABLE.name)));
    }
    TokenVerifiers { is_default_broken: !is_empty && default.is_none(), default, named: verifiers }
}

/// Compiles the section called `name`; `None` if it is wrong.
fn compile_jwt(section: &Section, name: &str) -> Option<Arc<TokenVerifier>> {
    let header: Option<HeaderName> = match section.node(&jwt::HEADER) {
        Some(_) => section.parse_string(&jwt::HEADER, parse_forwarded_header),
        None => Some(AUTHORIZATION),
    };
    let is_discovery = [&jwt::KEY, &jwt::JWKS].iter().all(|option| section.node(option).is_none());
    let issuer = read_texts(section, &jwt::ISSUER, |text| match is_discovery {
        true if text.contains(['?', '#']) => {
            invalid_text("an issuer has neither a query nor a fragment (OpenID Connect Discovery 1.0)", ISSUER_HELP)
        }
        true => parse_url(text, ISSUER_HELP),
        false => Ok(text.to_owned()),
    });
    let audience = read_texts(section, &jwt::AUDIENCE, |text| Ok(text.to_owned()));
    let keys = find_keys(section, name, issuer.as_deref());
    section.report_unknown();
    let (keys, algorithms) = keys?;
    let texts = |list: Vec<At<String>>| list.into_iter().map(|at| at.value).collect::<Vec<String>>();
    Some(Arc::new(TokenVerifier::new(header?, keys, &algorithms, &texts(issuer?), &texts(audience?))))
}

/// Reads a list that may be absent.
fn read_texts(
    section: &Section,
    option: &ConfigOption,
    parse: impl Fn(&str) -> Result<String, TextFault>,
) -> Option<Vec<At<String>>> {
    match section.node(option) {
        Some(_) => section.read_strings(option, parse),
        None => Some(Vec::new()),
    }
}

/// Finds out where the keys come from, and which algorithms are accepted.
fn find_keys(section: &Section, name: &str, issuers: Option<&[At<String>]>) -> Option<(KeySource, Vec<Algorithm>)> {
    let algorithms = match section.node(&jwt::ALGORITHMS) {
        Some(node) => {
            let list = section.read_strings(&jwt::ALGORITHMS, |text| find_choice(text, ALGORITHMS));
            if list.as_ref().is_some_and(Vec::is_empty) {
                let help = "name at least one, like \"ES256\"";
                return section.report_fault(jwt::ALGORITHMS.name, node, "the list is empty", help);
            }
            Some(list)
        }
        None => None,
    };
    let (ca, max_stale) = (section.read_pem(&jwt::CA), section.get(&jwt::MAX_STALE));
    let [key, jwks, issuer] = [&jwt::KEY, &jwt::JWKS, &jwt::ISSUER].map(|option| section.node(option));
    if let Some(node) = key {
        if let Some(node) = jwks {
            return section.report_fault(jwt::JWKS.name, node, "the section has a `key` too", "keep one of the two");
        }
        check_remote_options(section, false)?;
        let Some(algorithms) = algorithms else {
            let help = "list the accepted ones, like algorithms = [\"ES256\"]";
            return section.report_missing(format!("{} has no algorithms", section.title), help);
        };
        let algorithms = algorithms?;
        let key = read_key(section, node, &algorithms)?;
        let algorithms = algorithms.into_iter().map(|at| at.value).collect();
        return Some((KeySource::Fixed(Arc::new(KeySet::of(key))), algorithms));
    }
    let algorithms: Vec<Algorithm> = match algorithms {
        Some(list) => list?.into_iter().map(|at| at.value).collect(),
        None => ALGORITHMS[SYMMETRIC..].iter().map(|(_, algorithm)| *algorithm).collect(),
    };
    let location = match (jwks, issuer) {
        (Some(node), _) if matches!(&node.value, Value::String(text) if !text.value.contains("://")) => {
            check_remote_options(section, false)?;
            let keys = read_key_set(section, node, &algorithms)?;
            return Some((KeySource::Fixed(Arc::new(keys)), algorithms));
        }
        (Some(_), _) => IssuerLocation::Jwks(section.parse_string(&jwt::JWKS, |text| parse_url(text, JWKS_HELP))?),
        (None, Some(node)) => IssuerLocation::Issuer(find_issuer(section, node, issuers?)?),
        (None, None) => return section.report_missing(format!("{} has no keys", section.title), KEYS_HELP),
    };
    if let Some(node) = section.node(&jwt::CA)
        && let Err(what) = TrustedRoots::from_pem(ca.as_ref()?)
    {
        return section.report_fault(jwt::CA.name, node, &what, CA_HELP);
    }
    let name = name.to_owned();
    let settings = RemoteKeySettings { name, location, ca, algorithms: algorithms.clone(), max_stale };
    Some((KeySource::Remote(Arc::new(RemoteKeys::new(settings))), algorithms))
}

/// Reports options that have no meaning for keys that nobody fetches.
fn check_remote_options(section: &Section, is_remote: bool) -> Option<()> {
    let options: [&ConfigOption; 2] = [&jwt::CA, &jwt::MAX_STALE];
    let Some((option, node)) =
        options.into_iter().filter(|_| !is_remote).find_map(|option| Some((option, section.node(option)?)))
    else {
        return Some(());
    };
    let what = "the keys of this section are not fetched from a server";
    section.report_fault(option.name, node, what, "remove it, or write issuer = \"https://...\" instead of `key`")
}

/// Returns the issuer whose discovery document names the keys.
fn find_issuer(section: &Section, node: &Node, issuers: &[At<String>]) -> Option<String> {
    match issuers {
        [issuer] => Some(issuer.value.clone()),
        [] => section.report_fault(jwt::ISSUER.name, node, "the list is empty", ISSUER_HELP),
        [_, second, ..] => {
            let help = "write a [jwt.NAME] for each issuer, or name the keys of all with `jwks`";
            let what = "the keys of an issuer verify only its own tokens";
            section.report_fault_at(jwt::ISSUER.name, second.place, what, help)
        }
    }
}

/// Parses the URL of an issuer or a key set. Who can change the response on its way can sign any token, so it is `https`,
/// except on this machine.
fn parse_url(text: &str, help: &str) -> Result<String, TextFault> {
    let Ok(uri) = text.parse::<Uri>() else {
        return invalid_text(format!("`{text}` is not a URL"), help);
    };
    let host = uri.host().unwrap_or_default();
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    match uri.scheme() {
        _ if host.is_empty() || has_user || text.contains('#') => {
            invalid_text(format!("`{text}` is not a URL of keys"), help)
        }
        Some(scheme) if *scheme == Scheme::HTTPS => Ok(text.to_owned()),
        Some(scheme) if *scheme == Scheme::HTTP && is_this_machine(host) => Ok(text.to_owned()),
        Some(scheme) if *scheme == Scheme::HTTP => {
            let what = "without TLS, everybody on the way could replace the keys, and sign any token";
            invalid_text(what, "write https://, and name its authority in `ca` if it is your own")
        }
        _ => invalid_text(format!("`{text}` is not a URL"), help),
    }
}

fn read_key_set(section: &Section, node: &Node, algorithms: &[Algorithm]) -> Option<KeySet> {
    let text = section.read_file(&jwt::JWKS)?;
    match KeySet::from_jwks(text.as_bytes(), algorithms) {
        Ok(keys) => Some(keys),
        Err(what) => section.report_fault(jwt::JWKS.name, node, &what, JWKS_HELP),
    }
}

/// Reads the key. It must belong to the one family of all listed algorithms: a public key must never serve as an HMAC
/// secret.
fn read_key(section: &Section, node: &Node, algorithms: &[At<Algorithm>]) -> Option<VerificationKey> {
    let Value::String(text) = &node.value else {
        return section.report_wrong_type(jwt::KEY.name, "a string", node);
    };
    let first = algorithms.first()?;
    if let Some(other) = algorithms.iter().find(|at| at.value.family() != first.value.family()) {
        let what = "the algorithms need different kinds of keys, and there is only one key";
        return section.report_fault_at(
            jwt::ALGORITHMS.name,
            other.place,
            what,
            "keep those of one kind: HS*, RS* and PS*, ES256, ES384 or EdDSA",
        );
    }
    let secret = text.value.as_str();
    let listed_algorithms: Vec<Algorithm> = algorithms.iter().map(|at| at.value).collect();
    if ALGORITHMS[..SYMMETRIC].iter().any(|(_, algorithm)| *algorithm == first.value) {
        return read_shared_secret(section, node, secret, &listed_algorithms);
    }
    if secret.contains("PRIVATE KEY") {
        let help = "give the public key, which is all that is needed";
        return section.report_fault(jwt::KEY.name, node, "it is a private key", help);
    }
    match VerificationKey::from_pem(secret, &listed_algorithms) {
        Ok(key) => Some(key),
        Err(what) => section.report_fault(jwt::KEY.name, node, &what, "it starts with -----BEGIN PUBLIC KEY-----"),
    }
}

fn read_shared_secret(
    section: &Section,
    node: &Node,
    secret: &str,
    algorithms: &[Algorithm],
) -> Option<VerificationKey> {
    if secret.trim_start().starts_with("-----BEGIN") {
        let what = "a PEM key is not a secret, which the HS algorithms need";
        let help = "name the algorithm of this key, such as RS256, ES256 or EdDSA";
        return section.report_fault(jwt::KEY.name, node, what, help);
    }
    let least = algorithms.iter().map(|algorithm| least_secret(*algorithm)).max().unwrap_or_default();
    if secret.len() < least {
        let what = format!("the secret has {} bytes, these algorithms need {least}", secret.len());
        return section.report_fault(
            jwt::KEY.name,
            node,
            &what,
            "make one of random characters, like `openssl rand -base64 64`",
        );
    }
    Some(VerificationKey::from_secret(secret.as_bytes(), algorithms))
}

/// Checks that a key does not contain a claim that is known to be an array. Every request with such a token would be
/// refused.
pub fn check_key_claim(source: &Source) -> Result<(), TextFault> {
    let Source::Claim(name) = source else { return Ok(()) };
    let last = if name.starts_with('/') { name.rsplit('/').next().unwrap_or(name) } else { name };
    if !ARRAY_CLAIMS.contains(&last) {
        return Ok(());
    }
    let element = if name.starts_with('/') { format!("{name}/0") } else { format!("/{name}/0") };
    let help = format!(
        "test it in `when`, where each element counts: when = {{ jwt = {{ \"{name}\" = \"admin\" }} }}; or use the first one: \
         \"jwt:{element}\""
    );
    invalid_text(format!("`{source}` is an array, and a key needs one value"), help)
}
