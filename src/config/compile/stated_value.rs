//! Values of `request_headers.set`, which may have placeholders for what the gateway knows of the client. Called by
//! `edit`.

use http::HeaderValue;

use crate::config::closest::find_closest;
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::source::{Source, SourceKind};
use crate::route::client_facts::{CLAIM_WORD, ClientFact};
use crate::telemetry::access_log::LogField;
use crate::template::TextTemplate;

/// The value of a header that a route sets.
pub enum StatedValue {
    Fixed(HeaderValue),
    Template(TextTemplate<ClientFact>),
}

/// The names of the placeholders in other programs, each with ours.
const FOREIGN_NAMES: [(&str, &str); 40] = [
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
    ("%DOWNSTREAM_REMOTE_ADDRESS%", "{client_ip}"),
    ("{http.request.remote.host}", "{client_ip}"),
    ("{http.request.tls.client.subject}", "{tls_subject}"),
    ("{http.request.tls.client.fingerprint}", "{tls_fingerprint}"),
    ("{http.auth.user.id}", "{user}"),
    ("$ssl_protocol", "{tls}"),
    ("$ssl_cipher", "{tls_cipher}"),
    ("$ssl_server_name", "{tls_name}"),
    ("$server_protocol", "{protocol}"),
    ("$request_method", "{method}"),
    ("$host", "{host}"),
    ("$uri", "{path}"),
    ("$request_uri", "{target}"),
    ("$args", "{query}"),
    ("$query_string", "{query}"),
    ("$geoip2_data_country_code", "{country}"),
    ("%PROTOCOL%", "{protocol}"),
    ("%DOWNSTREAM_TLS_VERSION%", "{tls}"),
    ("%DOWNSTREAM_TLS_CIPHER%", "{tls_cipher}"),
    ("%REQUESTED_SERVER_NAME%", "{tls_name}"),
    ("{http.request.method}", "{method}"),
    ("{http.request.host}", "{host}"),
    ("{http.request.uri.path}", "{path}"),
    ("{http.request.uri}", "{target}"),
    ("{http.request.uri.query}", "{query}"),
    ("{http.request.tls.version}", "{tls}"),
    ("{http.request.tls.cipher_suite}", "{tls_cipher}"),
];

/// Variables of nginx that begin so. A text may contain other words with `$`.
const NGINX_VARIABLES: [&str; 13] = [
    "$http_",
    "$ssl_",
    "$arg_",
    "$cookie_",
    "$server_",
    "$remote_",
    "$realip_",
    "$upstream_",
    "$proxy_",
    "$geoip_",
    "$host",
    "$scheme",
    "$request_",
];

/// Parses a value. A word in braces is a placeholder; with spaces around it, it is the text itself, and so is
/// everything else in braces, such as JSON.
pub fn parse_stated_value(text: &str) -> Result<StatedValue, TextFault> {
    let fixed_value = values::parse_header_value(text)?;
    refuse_foreign_names(text)?;
    let template = TextTemplate::parse(text, |name, _| parse_placeholder(name))?;
    let has_placeholders = template.placeholders().next().is_some();
    Ok(if has_placeholders { StatedValue::Template(template) } else { StatedValue::Fixed(fixed_value) })
}

/// Parses a value of `response_headers`, which has no placeholders.
pub fn parse_response_value(text: &str) -> Result<HeaderValue, TextFault> {
    let value = values::parse_header_value(text)?;
    let help = "write the text itself: response headers have no placeholders";
    refuse_foreign_names(text).map_err(|fault| TextFault { help: help.to_owned(), ..fault })?;
    let own = ClientFact::NAMES.iter().map(|(name, _)| format!("{{{name}}}")).find(|name| text.contains(name));
    match own {
        Some(name) => invalid_text(
            format!("response headers have no placeholders, but `{name}` is one of `request_headers`"),
            "state facts about the client to the server, which can answer with them",
        ),
        None => Ok(value),
    }
}

/// Returns whether a text contains a variable of another program. One that ends with `_` is the start of a name.
pub fn contains_variable(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let goes_on = text[at + name.len()..].starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
        !goes_on || !name.starts_with('$') || name.ends_with('_')
    })
}

/// Refuses variables of other programs, which would reach the other side as they are.
pub fn refuse_foreign_names(text: &str) -> Result<(), TextFault> {
    let known = FOREIGN_NAMES.iter().find(|(foreign, _)| contains_variable(text, foreign));
    if let Some((foreign, own)) = known {
        return invalid_text(format!("`{foreign}` is a variable of another program"), format!("write {own}"));
    }
    // Envoy's are like `%RESPONSE_FLAGS%` and `%REQ(:path)%`. A text like `%DCBUNG%20` is percent-encoded.
    let is_of_envoy = |word: &str| {
        let name = word.split_once('(').map_or(word, |(name, rest)| if rest.ends_with(')') { name } else { "" });
        let is_encoded = !word.contains(['_', '(']) && word.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
        name.len() > 2 && !is_encoded && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    let of_envoy = text.split('%').skip(1).find(|word| is_of_envoy(word)).filter(|_| text.matches('%').count() > 1);
    let of_nginx = NGINX_VARIABLES.iter().find_map(|start| {
        let rest = text.find(start).map(|at| &text[at..])?;
        // `$hostile` is not a variable.
        let goes_on = rest[start.len()..].starts_with(|next: char| next.is_ascii_alphabetic());
        (start.ends_with('_') || !goes_on).then_some(rest)
    });
    let variable = match (of_envoy, of_nginx) {
        (Some(word), _) => format!("%{word}%"),
        (None, Some(rest)) => {
            let end = rest[1..].find(|char: char| !char.is_ascii_alphanumeric() && char != '_');
            rest[..end.map_or(rest.len(), |end| end + 1)].to_owned()
        }
        (None, None) => return Ok(()),
    };
    invalid_text(format!("`{variable}` is a variable of another program"), "write the text itself, or a placeholder")
}

/// Finds the fact that a placeholder names; `None` if there is no such fact.
pub fn find_fact(name: &str) -> Result<Option<ClientFact>, TextFault> {
    if let Some((_, fact)) = ClientFact::NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(Some(fact.clone()));
    }
    if !name.starts_with(CLAIM_WORD) {
        return Ok(None);
    }
    match Source::parse(name, &[SourceKind::Claim]) {
        Some(claim) => claim.map(|claim| Some(ClientFact::Source(claim))),
        None => invalid_text(format!("`{{{name}}}` names no claim"), "write {jwt:sub}"),
    }
}

/// Returns a name as ours are written.
pub fn canonical_word(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

/// Parses the text in a pair of braces; `None` if it is the text itself.
fn parse_placeholder(name: &str) -> Result<Option<ClientFact>, TextFault> {
    if let Some(fact) = find_fact(name)? {
        return Ok(Some(fact));
    }
    if let Some(field) = LogField::find(name) {
        return invalid_text(format!("`{{{name}}}` is a field of the access log only"), why_only_logged(field));
    }
    let fact_names = ClientFact::NAMES.iter().map(|(name, _)| *name);
    // Caddy's have dots and digits: `{http.regexp.name.1}`.
    let word = name.split(':').next().unwrap_or_default();
    let is_word = word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.bytes().all(|byte| {
            byte.is_ascii_alphabetic() || b"_-.".contains(&byte) || word.contains('.') && byte.is_ascii_digit()
        });
    if !is_word {
        return Ok(None);
    }
    let near =
        find_closest(&canonical_word(name), fact_names.clone()).map(|near| format!("did you mean `{{{near}}}`? "));
    let names: Vec<String> = fact_names.map(|name| format!("{{{name}}}")).collect();
    let help = format!(
        "{}the placeholders are {}, {{jwt:CLAIM}}; for the text itself write `{{ {name} }}`",
        near.unwrap_or_default(),
        names.join(", ")
    );
    invalid_text(format!("unknown placeholder `{{{name}}}`"), help)
}

/// Returns why the server cannot get this field of the access log, or what it gets instead.
fn why_only_logged(field: LogField) -> &'static str {
    match field {
        LogField::Client => "it is called {client_ip} in headers",
        LogField::Time => "leave it out: the server has a clock",
        LogField::TraceId | LogField::UserAgent | LogField::Referer => {
            "leave it out: the server gets the header of the client (traceparent, user-agent or referer)"
        }
        LogField::Limit
        | LogField::Decision
        | LogField::Key
        | LogField::Keys
        | LogField::RefusedBy
        | LogField::Candidates => {
            "leave it out: a refused request does not reach the server, and with over = \"annotate\" the header \
             x-limit-exceeded names the limits that a request exceeds"
        }
        LogField::AuthMs => "leave it out: only the log measures times",
        LogField::Status
        | LogField::Reason
        | LogField::Setting
        | LogField::Upstream
        | LogField::Server
        | LogField::Tries
        | LogField::UpstreamMs
        | LogField::DurationMs
        | LogField::Bytes
        | LogField::BytesIn
        | LogField::BytesUncompressed => "leave it out: it is known only after the server has got the request",
        // These are placeholders of headers too.
        LogField::RequestId
        | LogField::Country
        | LogField::User
        | LogField::Method
        | LogField::Host
        | LogField::Path
        | LogField::Query
        | LogField::Protocol
        | LogField::Tls
        | LogField::TlsCipher
        | LogField::TlsName
        | LogField::TlsSubject
        | LogField::Route => "it is a placeholder of headers, too",
    }
}
