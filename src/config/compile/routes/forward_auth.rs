//! Forward authentication of a route: the auth server, the headers that it gets and the ones that it returns. Called
//! by `routes`.

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use http::uri::PathAndQuery;

use crate::auth::forward::{CopiedHeader, ForwardAuth};
use crate::config::compile::routes::identity_header::parse_identity_header;
use crate::config::compile::upstreams::Upstreams;
use crate::config::origin;
use crate::config::reader::{At, Section};
use crate::config::schema::route;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text, is_name, parse_header_name};
use crate::upstream::Server;
use crate::upstream::caps::ServerCaps;

/// Keys of `auth` that belong to `forward`, and keys that do not.
const FORWARD_KEYS: [&ConfigOption; 5] = [
    &route::auth::REQUEST_HEADERS.option,
    &route::auth::COPY_HEADERS.option,
    &route::auth::USER.option,
    &route::auth::TIMEOUT.option,
    &route::auth::ON_ERROR.option,
];
const OTHER_KEYS: [&ConfigOption; 3] =
    [&route::auth::REALM.option, &route::auth::USER_HEADER.option, &route::auth::FORWARD_CREDENTIALS.option];
const FORWARD_HELP: &str = "write the URL of the auth server, like \"http://127.0.0.1:4180/oauth2/auth\", or \"NAME/path\" with an [upstream.NAME]";
/// Headers that name the user, if `user` does not name one.
const USER_HEADERS: [&str; 3] = ["x-auth-request-user", "remote-user", "x-forwarded-user"];
/// Headers that only the gateway sets.
const OWN_HEADERS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-uri",
    "x-real-ip",
    "x-request-id",
];

/// Compiles the keys of `auth` that belong to `forward`.
pub fn compile_forward_auth(section: &Section, upstreams: &mut Upstreams) -> Option<ForwardAuth> {
    let Some(node) = section.node(&route::auth::FORWARD) else {
        report_stray_keys(
            section,
            &FORWARD_KEYS,
            "only an auth server has this option",
            "use it together with `forward`",
        );
        return None;
    };
    let help = "an auth server sends its own challenges, and states the identity in `copy_headers`";
    report_stray_keys(section, &OTHER_KEYS, "it does not apply to `forward`", help);
    let target = compile_target(section, node, upstreams);
    let request_headers = match section.node(&route::auth::REQUEST_HEADERS) {
        Some(_) => section.read_strings(&route::auth::REQUEST_HEADERS, parse_sent_header).map(Some),
        None => Some(None),
    };
    let copy_headers = match section.node(&route::auth::COPY_HEADERS) {
        Some(_) => section.read_strings(&route::auth::COPY_HEADERS, parse_copied_header),
        None => Some(Vec::new()),
    };
    let copy_headers = copy_headers.and_then(|copied| check_unique(section, copied));
    if let (Some(Some(sent)), Some(copied)) = (&request_headers, &copy_headers) {
        check_not_stated(section, sent, copied);
    }
    let user = compile_user(section, copy_headers.as_deref().unwrap_or_default());
    let timeout = section.get(&route::auth::TIMEOUT);
    let is_open_on_error = section.get(&route::auth::ON_ERROR);
    let (upstream, target) = target?;
    Some(ForwardAuth {
        upstream,
        upstream_name: upstreams.list.get(upstream)?.name.clone(),
        target,
        request_headers: request_headers?.map(|names| names.into_iter().map(|at| at.value).collect()),
        copy_headers: copy_headers?,
        user,
        timeout,
        is_open_on_error,
    })
}

/// Reports keys that do not belong to the method of `auth`.
fn report_stray_keys(section: &Section, options: &[&ConfigOption], what: &str, help: &str) {
    for option in options {
        if let Some(node) = section.node(option) {
            section.report_fault::<()>(option.name, node, what, help);
        }
    }
}

/// Compiles `forward`: a URL with a path, or `NAME/path`. Returns the index of the upstream, and path with query.
fn compile_target(section: &Section, node: &Node, upstreams: &mut Upstreams) -> Option<(usize, String)> {
    let Value::String(text) = &node.value else {
        return section.report_wrong_type(route::auth::FORWARD.name, "a string", node);
    };
    let text = text.value.as_str();
    if !origin::is_url(text) {
        let (name, target) = split_target(text, 0);
        if !is_name(name) {
            return section.parse_node(route::auth::FORWARD.name, node, |text| {
                let help = match origin::check_origin(&format!("http://{}", split_target(text, 0).0)) {
                    Ok(()) => format!("write \"http://{text}\""),
                    Err(_) => FORWARD_HELP.to_owned(),
                };
                invalid_text(format!("`{text}` is neither a URL nor the name of an upstream"), help)
            });
        }
        let target = section.parse_node(route::auth::FORWARD.name, node, |_| parse_target(target));
        return upstreams.names.find(section.sources, node.place, name).zip(target);
    }
    let after_scheme = text.find("://").map_or(0, |at| at + "://".len());
    let server = section.parse_node(route::auth::FORWARD.name, node, |text| {
        if text.starts_with("unix:") {
            let help = "write forward = \"auth/path\" and [upstream.auth] with servers = [\"unix:/PATH\"]";
            return invalid_text("a Unix socket needs an upstream of its own", help);
        }
        let (url, target) = split_target(text, after_scheme);
        let transport = &upstreams.transport;
        let origin = origin::parse_origin(url, transport.protocol, || transport.tls_settings())?;
        Ok((Server { origin, weight: 1, caps: ServerCaps::default() }, parse_target(target)?))
    });
    server.map(|(server, target)| (upstreams.intern_url_list(vec![server]), target))
}

/// Splits a URL or `NAME/path` before its path. `from`: where the host or name begins.
fn split_target(text: &str, from: usize) -> (&str, &str) {
    let at = text[from..].find(['/', '?', '#']).map_or(text.len(), |at| from + at);
    text.split_at(at)
}

/// Parses path and query of the auth requests.
fn parse_target(text: &str) -> Result<String, TextFault> {
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') && PathAndQuery::try_from(text).is_ok();
    match text.bytes().next() {
        None => Ok("/".to_owned()),
        Some(b'/') if is_plain => Ok(text.to_owned()),
        _ => invalid_text(
            format!("`{text}` is not the path of a request"),
            "write a path that starts with `/`, and percent-encode spaces, `#` and other special characters",
        ),
    }
}

/// Parses a header of the client that the auth server gets.
fn parse_sent_header(text: &str) -> Result<HeaderName, TextFault> {
    let name = parse_header_name(text)?;
    if OWN_HEADERS.contains(&name.as_str()) {
        return invalid_text(
            format!("`{name}` cannot be chosen"),
            "leave it out: the gateway sets the headers that describe the client and the connection",
        );
    }
    Ok(name)
}

/// Parses `NAME` or `FROM>TO`.
fn parse_copied_header(text: &str) -> Result<CopiedHeader, TextFault> {
    let (from, to) = text.split_once('>').map_or((text, text), |(from, to)| (from.trim(), to.trim()));
    let header = CopiedHeader { from: parse_header_name(from)?, to: parse_header_name(to)? };
    if let Some(name) = [&header.from, &header.to].into_iter().find(|name| OWN_HEADERS.contains(&name.as_str())) {
        return invalid_text(
            format!("`{name}` cannot be copied"),
            "it describes the connection, the framing or the client, which the gateway sets itself",
        );
    }
    // Credentials are removed from requests of this route alone.
    if header.to != AUTHORIZATION && header.to != COOKIE {
        parse_identity_header(to)?;
    }
    if header.from == SET_COOKIE {
        return invalid_text("`set-cookie` is for clients", "leave it out: clients get the cookies of the auth server");
    }
    Ok(header)
}

/// Reports headers that are copied to the same name twice.
fn check_unique(section: &Section, copied: Vec<At<CopiedHeader>>) -> Option<Vec<CopiedHeader>> {
    for (index, At { place, value }) in copied.iter().enumerate() {
        if copied[..index].iter().any(|earlier| earlier.value.to == value.to) {
            let what = format!("`{}` occurs twice", value.to);
            return section.report_fault_at(route::auth::COPY_HEADERS.name, *place, &what, "remove one of the two");
        }
    }
    Some(copied.into_iter().map(|at| at.value).collect())
}

/// Reports headers that the client and the auth server could both state to the upstream server. Credentials are an
/// exception: clients have to send them.
fn check_not_stated(section: &Section, sent: &[At<HeaderName>], copied: &[CopiedHeader]) {
    let is_stated = |name: &HeaderName| copied.iter().any(|copied| copied.to == *name);
    for At { place, value: name } in sent {
        if *name != AUTHORIZATION && *name != COOKIE && is_stated(name) {
            let what = format!("`{name}` is in `copy_headers`, so clients must not send it");
            let help = "remove it from one of the two lists: clients could forge it otherwise";
            section.report_fault_at::<()>(route::auth::REQUEST_HEADERS.name, *place, &what, help);
        }
    }
}

/// Compiles `user`: a copied header, under its name in the auth response or in the request to the upstream server.
fn compile_user(section: &Section, copied: &[CopiedHeader]) -> Option<HeaderName> {
    let find = |name: &str| copied.iter().find(|copied| copied.from == name || copied.to == name);
    let from = |copied: &CopiedHeader| copied.from.clone();
    let Some(node) = section.node(&route::auth::USER) else {
        return USER_HEADERS.iter().find_map(|name| find(name)).map(from);
    };
    section.parse_node(route::auth::USER.name, node, |text| {
        let name = parse_header_name(text)?;
        match find(name.as_str()) {
            Some(copied) => Ok(from(copied)),
            None => invalid_text(
                format!("`{name}` is not in `copy_headers`"),
                format!("add it there: copy_headers = [\"{name}\"]"),
            ),
        }
    })
}
