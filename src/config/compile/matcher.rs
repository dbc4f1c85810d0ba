//! Match conditions of a route: host, path, methods, header. Called by `routes`. Conditions are compared with
//! canonical hosts and paths, so one that is not canonical could never match and is rejected here.

use std::net::Ipv6Addr;

use http::{HeaderName, Method};

use crate::canonical::is_segment_byte;
use crate::config::compile::edit::read_pairs;
use crate::config::expressions::{ExpressionFlags, build_regex};
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::values;
use crate::config::values::{TextFault, invalid_text, is_host};
use crate::limiting::source::Source;
use crate::names::parse_forwarded_header;
use crate::received_headers::{Visibility, find_visibility};
use crate::route::matcher::{HeaderPattern, HostPattern, Matcher, PathPattern, Segment};
use crate::text::hex_byte;

const PATH_HELP: &str = "write \"/prefix/\", \"= /exact\", \"/users/{id}\" or \"~ ^/regex$\"";

pub fn compile_matcher(section: &Section) -> Option<Matcher> {
    let hosts = match section.node(&route::HOST) {
        Some(_) => {
            section.read_strings(&route::HOST, parse_host).map(|hosts| hosts.into_iter().map(|at| at.value).collect())
        }
        None => Some(Vec::new()),
    };
    let path = match section.node(&route::PATH) {
        Some(_) => section.parse_string(&route::PATH, parse_path_pattern),
        None => Some(PathPattern::Segments { segments: Vec::new(), exact: false }),
    };
    let methods = match section.node(&route::METHODS) {
        Some(_) => section
            .read_strings(&route::METHODS, parse_method)
            .map(|methods| methods.into_iter().map(|at| at.value).collect()),
        None => Some(Vec::new()),
    };
    let headers = match section.node(&route::HEADER) {
        Some(_) => section
            .read_table(&route::HEADER)
            .and_then(|table| read_pairs(section, &route::HEADER, table, parse_header_pattern))
            .and_then(|headers| check_forwarded(section, headers)),
        None => Some(Vec::new()),
    };
    if let (Some(PathPattern::Regex(regex)), Some(node)) = (&path, section.node(&route::PATH)) {
        section.sources.warn_if_slow(node.place, regex.as_str(), ExpressionFlags::default());
    }
    for (_, pattern) in headers.iter().flatten() {
        if let (HeaderPattern::Regex(expression), Some(node)) = (pattern, section.node(&route::HEADER)) {
            section.sources.warn_if_slow(
                node.place,
                expression.regex.as_str(),
                ExpressionFlags { ignore_case: expression.ignore_case, any_dot: true },
            );
        }
    }
    for (option, empty) in [
        (&route::HOST, hosts.as_ref().is_some_and(Vec::is_empty)),
        (&route::METHODS, methods.as_ref().is_some_and(Vec::is_empty)),
    ] {
        if let Some(node) = section.node(option).filter(|_| empty) {
            let help = format!("leave `{}` out to match every one", option.name);
            section.report_fault::<()>(option.name, node, "the list is empty", &help);
        }
    }
    Some(Matcher { hosts: hosts?, path: path?, methods: methods?, headers: headers? })
}

/// Checks that a request can have the headers once it is routed, and brings those that the gateway rewrites into its form.
fn check_forwarded(
    section: &Section,
    mut headers: Vec<(HeaderName, HeaderPattern)>,
) -> Option<Vec<(HeaderName, HeaderPattern)>> {
    for (name, pattern) in &mut headers {
        let result = parse_forwarded_header(name.as_str()).and_then(|name| {
            let is_rewritten = find_visibility(name.as_str()) == Visibility::Rewritten;
            match &*pattern {
                HeaderPattern::Text(value) if is_rewritten => {
                    let text = Source::Header(name).parse_written_text(&String::from_utf8_lossy(value.as_bytes()))?;
                    Ok(HeaderPattern::Text(values::parse_header_value(&text)?))
                }
                HeaderPattern::Text(_) => Ok(pattern.clone()),
                HeaderPattern::Regex(expression) => Source::Header(name)
                    .check_written_expression(expression.regex.as_str(), expression.ignore_case)
                    .map(|()| pattern.clone()),
            }
        });
        match result {
            Ok(compiled) => *pattern = compiled,
            Err(TextFault { what, help }) => {
                return section.report_fault(route::HEADER.name, section.node(&route::HEADER)?, &what, &help);
            }
        }
    }
    Some(headers)
}

/// Parses the pattern for the value of a header. `*` has no meaning in it, because `*/*` is a common value.
fn parse_header_pattern(text: &str) -> Result<HeaderPattern, TextFault> {
    if let Some(rest) = text.strip_prefix('~') {
        return values::parse_expression(text, rest).map(HeaderPattern::Regex);
    }
    let text = text.strip_prefix("= ").unwrap_or(text);
    values::parse_header_value(text).map(HeaderPattern::Text)
}

fn parse_host(text: &str) -> Result<HostPattern, TextFault> {
    const HELP: &str = "write a name like \"example.com\", \"*.example.com\" for every name below it, or \"app.*\" for every \
                        name that starts with it";
    if !text.is_ascii() {
        return invalid_text(
            format!("`{text}` is not ASCII"),
            "write the name in its ASCII form, which starts with xn--",
        );
    }
    let name = text.to_ascii_lowercase();
    if name == "*" || name == "_" {
        return invalid_text(format!("`{name}` alone is not a pattern"), "leave `host` out to match every host");
    }
    if let Some(suffix) = name.strip_prefix("*.") {
        return match is_host(suffix) {
            true => Ok(HostPattern::Suffix(format!(".{suffix}"))),
            false => invalid_text(format!("`{text}` is not a host pattern"), HELP),
        };
    }
    if let Some(prefix) = name.strip_suffix(".*") {
        return match is_host(prefix) {
            true => Ok(HostPattern::Prefix(format!("{prefix}."))),
            false => invalid_text(format!("`{text}` is not a host pattern"), HELP),
        };
    }
    if name.contains([' ', ',']) {
        let names: Vec<String> =
            name.split([' ', ',']).filter(|part| !part.is_empty()).take(4).map(|part| format!("\"{part}\"")).collect();
        let help = format!("write host = [{}] for several names, or remove the spaces", names.join(", "));
        return invalid_text(format!("`{text}` is not a host name"), help);
    }
    if name.contains('*') {
        return invalid_text("`*` may only replace the first labels, or the last ones", HELP);
    }
    if let Some(ip) = name.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
        return match ip.parse::<Ipv6Addr>() {
            Ok(ip) => Ok(HostPattern::Exact(format!("[{ip}]"))),
            Err(_) => invalid_text(format!("`{text}` is not an IPv6 address"), HELP),
        };
    }
    if name.parse::<Ipv6Addr>().is_ok() {
        return invalid_text("an IPv6 address has brackets in a host", format!("write \"[{name}]\""));
    }
    if let Some((name, port)) = name.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
        return invalid_text(format!("a host is matched without its port, here {port}"), format!("write \"{name}\""));
    }
    match is_host(&name) {
        true => Ok(HostPattern::Exact(name)),
        false => {
            invalid_text(format!("`{text}` is not a host name"), describe_host_habit(&name).unwrap_or(HELP.to_owned()))
        }
    }
}

/// Returns what a host in the style of another program should be: `Host(`a`)`, `.example.com` or `https://a`.
fn describe_host_habit(name: &str) -> Option<String> {
    let quoted = name.split('`').nth(1).filter(|_| name.starts_with("host("));
    let of_url = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://"));
    if let Some(inner) = quoted.or(of_url.map(|rest| rest.trim_end_matches('/'))).filter(|inner| is_host(inner)) {
        return Some(format!("write \"{inner}\""));
    }
    if let Some(suffix) = name.strip_prefix('.').filter(|suffix| is_host(suffix)) {
        return Some(format!("write host = [\"{suffix}\", \"*.{suffix}\"]"));
    }
    name.starts_with('~').then(|| {
        "a host is no regular expression: write each name, \"*.example.com\" for every name below it, or \"app.*\""
            .to_owned()
    })
}

/// Returns what a path in the style of another program should be: `^~ /a`, `~* a`, `/api/*` or `PathPrefix(`/api`)`.
fn describe_path_habit(text: &str) -> Option<String> {
    if let Some(prefix) = text.strip_prefix("^~") {
        return Some(format!("write \"{}\": the longest prefix precedes regular expressions", prefix.trim()));
    }
    if let Some(pattern) = text.strip_prefix("~*") {
        return Some(format!("write \"~ (?i){}\"", pattern.trim().replace('\\', "\\\\")));
    }
    let quoted = text.split('`').nth(1);
    match text.split_once('(').map(|(rule, _)| rule) {
        Some("PathPrefix") => quoted.map(|path| format!("write \"{path}\"")),
        Some("Path") => quoted.map(|path| format!("write \"= {path}\"")),
        Some("PathRegexp") => quoted.map(|path| format!("write \"~ {path}\"")),
        Some("Host" | "HostRegexp") => Some("write the name in `host`, and the path here".to_owned()),
        Some(_) if text.starts_with('/') && text.contains(['*', '$', '+']) => Some(format!("write \"~ ^{text}\"")),
        _ => text
            .strip_suffix('*')
            .filter(|prefix| prefix.starts_with('/') && !prefix.contains(['*', '(']))
            .map(|prefix| format!("write \"{prefix}\", which matches everything below it")),
    }
}

fn parse_path_pattern(text: &str) -> Result<PathPattern, TextFault> {
    parse_own_path(text).map_err(|fault| match describe_path_habit(text) {
        Some(help) => TextFault { help, ..fault },
        None => fault,
    })
}

fn parse_own_path(text: &str) -> Result<PathPattern, TextFault> {
    if let Some(pattern) = text.strip_prefix('~') {
        let pattern = pattern.trim_start();
        let regex = build_regex(pattern, ExpressionFlags::default())?;
        Source::Path.check_written_expression(pattern, false)?;
        if Source::Path.needs_repeated_slashes(pattern, false) {
            return invalid_text(
                format!("`{pattern}` matches no path: the route is found by the path without repeated slashes"),
                "write one slash; with merge_slashes = false, the server still gets all of them",
            );
        }
        return Ok(PathPattern::Regex(regex));
    }
    if let Some(path) = text.strip_prefix('=') {
        let path = path.trim_start();
        if path != "/" && path.ends_with('/') {
            let help = format!("write \"{path}\" to match it and all below, or \"~ ^{path}$\"");
            return invalid_text("an exact path does not end with a slash", help);
        }
        return Ok(PathPattern::Segments { segments: parse_segments(path, false)?, exact: true });
    }
    let segments = parse_segments(text, true)?;
    // Only the last segment of a template may omit the slash, because a template fixes the number of segments.
    let template = segments.iter().any(|segment| matches!(segment, Segment::Param(_)));
    Ok(PathPattern::Segments { exact: template && !text.ends_with('/'), segments })
}

fn parse_segments(path: &str, templates: bool) -> Result<Vec<Segment>, TextFault> {
    let Some(rest) = path.strip_prefix('/') else {
        return invalid_text(format!("`{path}` does not start with `/`"), PATH_HELP);
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        return if path.len() < 3 && path != "//" {
            Ok(Vec::new())
        } else {
            invalid_text("the path has an empty segment", PATH_HELP)
        };
    }
    let mut segments = Vec::new();
    for text in rest.split('/') {
        let segment = match text.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(_) if !templates => {
                return invalid_text("an exact path has no parameters", format!("write \"{path}\" without `=`"));
            }
            Some(name) => Segment::Param(values::parse_param_name(name)?),
            None => Segment::Literal(parse_literal(text)?),
        };
        if matches!(segment, Segment::Param(_)) && segments.contains(&segment) {
            return invalid_text(format!("the parameter `{text}` occurs twice"), "give the two different names");
        }
        segments.push(segment);
    }
    Ok(segments)
}

/// Parses one segment, in the only spelling that a canonical path can have.
fn parse_literal(text: &str) -> Result<String, TextFault> {
    if text.is_empty() {
        return invalid_text("the path has an empty segment", "write single slashes");
    }
    if matches!(text, "." | "..") {
        return invalid_text(format!("the path has a segment `{text}`"), "write the path it leads to");
    }
    if let Some(name) = text.strip_prefix(':') {
        return invalid_text(format!("`{text}` is matched literally"), format!("for a parameter write \"{{{name}}}\""));
    }
    if text.contains('*') {
        return invalid_text(
            "`*` has no meaning in a path",
            "a path matches by prefix: \"/v1/\" matches everything below it; otherwise use \"~ ^/regex$\"",
        );
    }
    if text.contains(['{', '}']) {
        return invalid_text("a parameter must be a whole segment", PATH_HELP);
    }
    check_segment_bytes(text)?;
    Ok(text.to_owned())
}

/// Checks that a path is canonical, as the paths of requests are.
pub fn check_canonical_path(path: &str) -> Result<(), TextFault> {
    let Some(rest) = path.strip_prefix('/') else {
        return invalid_text(
            format!("`{path}` does not start with `/`"),
            "write the path of a URL, like \"/old/page\"",
        );
    };
    for segment in rest.strip_suffix('/').unwrap_or(rest).split('/') {
        match segment {
            "" if rest.is_empty() => {}
            "" => return invalid_text("the path has an empty segment", "write single slashes"),
            "." | ".." => {
                return invalid_text(format!("the path has a segment `{segment}`"), "write the path it leads to");
            }
            segment => check_segment_bytes(segment)?,
        }
    }
    Ok(())
}

fn check_segment_bytes(text: &str) -> Result<(), TextFault> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex = [bytes.next().unwrap_or(0), bytes.next().unwrap_or(0)];
            check_encoded(hex)?;
        } else if !is_segment_byte(byte) {
            return invalid_text(
                format!("`{text}` contains a character that must be percent-encoded in a path"),
                "write it as %XX, upper case",
            );
        }
    }
    Ok(())
}

fn check_encoded(hex: [u8; 2]) -> Result<(), TextFault> {
    let text = String::from_utf8_lossy(&hex).into_owned();
    let Some(byte) = hex_byte(hex[0], hex[1]) else {
        return invalid_text(
            format!("`%{text}` is not a percent-encoded byte"),
            "write %XX with two hexadecimal digits",
        );
    };
    if is_segment_byte(byte) {
        return invalid_text(
            format!("`%{text}` never matches, since paths are decoded where they can be"),
            format!("write `{}`", char::from(byte)),
        );
    }
    if byte.is_ascii_control() {
        return invalid_text(format!("`%{text}` never matches, because such paths are rejected"), "leave it out");
    }
    match text.bytes().any(|b| b.is_ascii_lowercase()) {
        true => {
            invalid_text(format!("`%{text}` is not in upper case"), format!("write `%{}`", text.to_ascii_uppercase()))
        }
        false => Ok(()),
    }
}

pub fn parse_method(text: &str) -> Result<Method, TextFault> {
    const HELP: &str = "like \"GET\", \"POST\", \"PUT\", \"DELETE\"";
    if text == "CONNECT" {
        return invalid_text("CONNECT is always refused", HELP);
    }
    if text.contains('*') {
        return invalid_text("methods have no patterns", "leave `methods` out to match every method");
    }
    match Method::from_bytes(text.as_bytes()) {
        Ok(method) if !text.bytes().any(|b| b.is_ascii_lowercase()) => Ok(method),
        Ok(_) => invalid_text(
            format!("methods are in upper case, so `{text}` matches nothing"),
            format!("write \"{}\"", text.to_ascii_uppercase()),
        ),
        Err(_) if text.contains([' ', ',', '|']) => {
            let methods: Vec<String> = text
                .split([' ', ',', '|'])
                .filter(|method| !method.is_empty())
                .take(8)
                .map(|m| format!("\"{m}\""))
                .collect();
            invalid_text(format!("`{text}` is not one method"), format!("write [{}]", methods.join(", ")))
        }
        Err(_) => invalid_text(format!("`{text}` is not a method"), HELP),
    }
}

/// Parses `strip_prefix` or `add_prefix`: literal segments without a trailing slash.
pub fn parse_path_prefix(text: &str) -> Result<String, TextFault> {
    if !text.starts_with('/') {
        return invalid_text(format!("`{text}` does not start with `/`"), "write a path like \"/v1\"");
    }
    let text = text.strip_suffix('/').unwrap_or(text);
    for segment in text.split('/').skip(1) {
        parse_literal(segment)?;
    }
    Ok(text.to_owned())
}

/// Reads the status of a response, within the bounds of the table that the section is.
pub fn parse_status(section: &Section) -> Option<http::StatusCode> {
    let status = section.read(&route::respond::STATUS)?;
    u16::try_from(status).ok().and_then(|status| http::StatusCode::from_u16(status).ok())
}

/// Content type of a body whose type is not set.
pub const TEXT: http::HeaderValue = http::HeaderValue::from_static("text/plain; charset=utf-8");

pub fn parse_content_type(section: &Section) -> Option<http::HeaderValue> {
    section.parse_string(&route::respond::CONTENT_TYPE, |text| match text.contains('/') {
        true => values::parse_header_value(text),
        false => invalid_text(format!("`{text}` is not a content type"), "like \"text/plain\" or \"application/json\""),
    })
}
