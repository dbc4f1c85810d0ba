//! Values of `request_headers.set`, which may have placeholders for what the gateway knows of the client. Called by
//! `edit`.

use http::HeaderValue;

use crate::config::closest::find_closest;
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::source::{Source, SourceKind};
use crate::route::client_facts::{CLAIM_WORD, ClientFact};
use crate::template::TextTemplate;

/// The value of a header that a route sets.
pub enum StatedValue {
    Fixed(HeaderValue),
    Template(TextTemplate<ClientFact>),
}

/// The names of the placeholders in other programs, each with ours.
const FOREIGN_NAMES: [(&str, &str); 16] = [
    ("$ssl_client_s_dn", "{tls_subject}"),
    ("$ssl_client_escaped_cert", "{tls_cert_pem}"),
    ("$ssl_client_cert", "{tls_cert_pem}"),
    ("$ssl_client_fingerprint", "{tls_fingerprint}, which is SHA-256"),
    ("$remote_addr", "{client_ip}"),
    ("$remote_user", "{user}"),
    ("$request_id", "{request_id}"),
    ("$jwt_claim_", "{jwt:NAME}"),
    ("%DOWNSTREAM_PEER_SUBJECT%", "{tls_subject}"),
    ("%DOWNSTREAM_PEER_URI_SAN%", "{tls_san}"),
    ("%DOWNSTREAM_PEER_FINGERPRINT_256%", "{tls_fingerprint}"),
    ("%DOWNSTREAM_PEER_CERT%", "{tls_cert_pem}"),
    ("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "{client_ip}"),
    ("{http.request.tls.client.subject}", "{tls_subject}"),
    ("{http.request.tls.client.fingerprint}", "{tls_fingerprint}"),
    ("{http.auth.user.id}", "{user}"),
];

/// Parses a value. A word in braces is a placeholder; with spaces around it, it is the text itself, and so is
/// everything else in braces, such as JSON.
pub fn parse_stated_value(text: &str) -> Result<StatedValue, TextFault> {
    let fixed_value = values::parse_header_value(text)?;
    if let Some((foreign, own)) = FOREIGN_NAMES.iter().find(|(foreign, _)| text.contains(foreign)) {
        return invalid_text(format!("`{foreign}` is a variable of another program"), format!("write {own}"));
    }
    let template = TextTemplate::parse(text, |name, _| parse_placeholder(name))?;
    let has_placeholders = template.placeholders().next().is_some();
    Ok(if has_placeholders { StatedValue::Template(template) } else { StatedValue::Fixed(fixed_value) })
}

/// Parses the text in a pair of braces; `None` if it is the text itself.
fn parse_placeholder(name: &str) -> Result<Option<ClientFact>, TextFault> {
    if let Some((_, fact)) = ClientFact::NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(Some(fact.clone()));
    }
    if name.starts_with(CLAIM_WORD) {
        let source = Source::parse(name, &[SourceKind::Claim]);
        return match source {
            Some(claim) => claim.map(|claim| Some(ClientFact::Source(claim))),
            None => invalid_text(format!("`{{{name}}}` names no claim"), "write {jwt:sub}"),
        };
    }
    let fact_names = ClientFact::NAMES.iter().map(|(name, _)| *name);
    let word = name.split(':').next().unwrap_or_default();
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if !is_word {
        return Ok(None);
    }
    let near = find_closest(name, fact_names.clone()).map(|near| format!("did you mean `{{{near}}}`? "));
    let names: Vec<String> = fact_names.map(|name| format!("{{{name}}}")).collect();
    let help = format!(
        "{}the placeholders are {}, {{jwt:CLAIM}}; for the text itself write `{{ {name} }}`",
        near.unwrap_or_default(),
        names.join(", ")
    );
    invalid_text(format!("unknown placeholder `{{{name}}}`"), help)
}
