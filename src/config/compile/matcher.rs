//! Which requests a route takes: host, path, methods, header. Called by `route`. Patterns are
//! compared with canonical hosts and paths, so one that is not canonical would never match and
//! is refused here.

use std::net::Ipv6Addr;

use http::Method;
use regex::RegexBuilder;

use crate::config::reader::Section;
use crate::config::values::{self, Fault, fault, is_host};
use crate::route::{HostPattern, Matcher, PathPattern, Segment};

const PATH_HELP: &str = "write \"/prefix/\", \"= /exact\", \"/users/{id}\" or \"~ ^/regex$\"";

pub fn matcher(section: &Section) -> Option<Matcher> {
    let hosts = match section.node("host") {
        Some(_) => section.strings("host", host).map(|hosts| hosts.into_iter().map(|at| at.value).collect()),
        None => Some(Vec::new()),
    };
    let path = match section.node("path") {
        Some(_) => section.parse("path", path),
        None => Some(PathPattern::Segments { segments: Vec::new(), exact: false }),
    };
    let methods = match section.node("methods") {
        Some(_) => section.strings("methods", method).map(|methods| methods.into_iter().map(|at| at.value).collect()),
        None => Some(Vec::new()),
    };
    let headers = match section.node("header") {
        Some(_) => section.table("header").and_then(|table| super::edit::pairs(section, "header", table)),
        None => Some(Vec::new()),
    };
    for (key, empty) in
        [("host", hosts.as_ref().is_some_and(Vec::is_empty)), ("methods", methods.as_ref().is_some_and(Vec::is_empty))]
    {
        if let Some(node) = section.node(key).filter(|_| empty) {
            section.fault::<()>(key, node, "the list is empty", &format!("leave `{key}` out to match every one"));
        }
    }
    Some(Matcher { hosts: hosts?, path: path?, methods: methods?, headers: headers? })
}

fn host(text: &str) -> Result<HostPattern, Fault> {
    const HELP: &str = "write a name like \"example.com\", or \"*.example.com\" for every name below it";
    if !text.is_ascii() {
        return fault(format!("`{text}` is not ASCII"), "write the name in its ASCII form, which starts with xn--");
    }
    let name = text.to_ascii_lowercase();
    if name == "*" {
        return fault("`*` alone is no pattern", "leave `host` out to match every host");
    }
    if let Some(suffix) = name.strip_prefix("*.") {
        return match is_host(suffix) {
            true => Ok(HostPattern::Suffix(format!(".{suffix}"))),
            false => fault(format!("`{text}` is not a host pattern"), HELP),
        };
    }
    if name.contains('*') {
        return fault("`*` may only stand for the first labels", HELP);
    }
    if let Some(ip) = name.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
        return match ip.parse::<Ipv6Addr>() {
            Ok(ip) => Ok(HostPattern::Exact(format!("[{ip}]"))),
            Err(_) => fault(format!("`{text}` is not an IPv6 address"), HELP),
        };
    }
    if let Some((name, port)) = name.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
        return fault(format!("a host is matched without its port, here {port}"), format!("write \"{name}\""));
    }
    match is_host(&name) {
        true => Ok(HostPattern::Exact(name)),
        false => fault(format!("`{text}` is not a host name"), HELP),
    }
}

fn path(text: &str) -> Result<PathPattern, Fault> {
    if let Some(pattern) = text.strip_prefix('~') {
        return values::regex(&mut RegexBuilder::new(pattern.trim_start())).map(PathPattern::Regex);
    }
    if let Some(path) = text.strip_prefix('=') {
        let path = path.trim_start();
        if path != "/" && path.ends_with('/') {
            let help = format!("write \"{path}\" to match it and all below, or \"~ ^{path}$\"");
            return fault("an exact path does not end with a slash", help);
        }
        return Ok(PathPattern::Segments { segments: segments(path, false)?, exact: true });
    }
    let segments = segments(text, true)?;
    // Only a template's end says something without a slash: the number of its segments.
    let template = segments.iter().any(|segment| matches!(segment, Segment::Param(_)));
    Ok(PathPattern::Segments { exact: template && !text.ends_with('/'), segments })
}

fn segments(path: &str, templates: bool) -> Result<Vec<Segment>, Fault> {
    let Some(rest) = path.strip_prefix('/') else {
        return fault(format!("`{path}` does not start with `/`"), PATH_HELP);
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        return if path.len() < 3 && path != "//" {
            Ok(Vec::new())
        } else {
            fault("the path has an empty segment", PATH_HELP)
        };
    }
    let mut segments = Vec::new();
    for text in rest.split('/') {
        let segment = match text.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(_) if !templates => {
                return fault("an exact path has no parameters", format!("write \"{path}\" without `=`"));
            }
            Some(name) => Segment::Param(values::param_name(name)?),
            None => Segment::Literal(literal(text)?),
        };
        if matches!(segment, Segment::Param(_)) && segments.contains(&segment) {
            return fault(format!("the parameter `{text}` stands there twice"), "give the two different names");
        }
        segments.push(segment);
    }
    Ok(segments)
}

/// One segment in the only spelling that a canonical path can have.
fn literal(text: &str) -> Result<String, Fault> {
    if text.is_empty() {
        return fault("the path has an empty segment", "write single slashes");
    }
    if matches!(text, "." | "..") {
        return fault(format!("the path has a segment `{text}`"), "write the path it leads to");
    }
    if let Some(name) = text.strip_prefix(':') {
        return fault(format!("`{text}` is matched as it stands"), format!("for a parameter write \"{{{name}}}\""));
    }
    if text.contains('*') {
        return fault(
            "`*` has no meaning in a path",
            "a path matches by prefix: \"/v1/\" takes all below it; else use \"~ ^/regex$\"",
        );
    }
    if text.contains(['{', '}']) {
        return fault("a parameter must be a whole segment", PATH_HELP);
    }
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex = [bytes.next().unwrap_or(0), bytes.next().unwrap_or(0)];
            encoded(hex)?;
        } else if !(byte.is_ascii_alphanumeric() || b"-._~!$&'()+,;=:@".contains(&byte)) {
            return fault(
                format!("`{text}` holds a character that stands percent-encoded in a path"),
                "write it as %XX, upper case",
            );
        }
    }
    Ok(text.to_owned())
}

fn encoded(hex: [u8; 2]) -> Result<(), Fault> {
    let text = String::from_utf8_lossy(&hex).into_owned();
    let Ok(byte) = u8::from_str_radix(&text, 16) else {
        return fault(format!("`%{text}` is not a percent-encoded byte"), "write %XX with two hexadecimal digits");
    };
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        return fault(
            format!("`%{text}` never matches, since paths are decoded where they can be"),
            format!("write `{}`", char::from(byte)),
        );
    }
    if byte.is_ascii_control() {
        return fault(format!("`%{text}` never matches, since such paths are refused"), "leave it out");
    }
    match text.bytes().any(|b| b.is_ascii_lowercase()) {
        true => fault(format!("`%{text}` is not in upper case"), format!("write `%{}`", text.to_ascii_uppercase())),
        false => Ok(()),
    }
}

fn method(text: &str) -> Result<Method, Fault> {
    const HELP: &str = "like \"GET\", \"POST\", \"PUT\", \"DELETE\"";
    if text == "CONNECT" {
        return fault("CONNECT is always refused", HELP);
    }
    match Method::from_bytes(text.as_bytes()) {
        Ok(method) if !text.bytes().any(|b| b.is_ascii_lowercase()) => Ok(method),
        Ok(_) => fault(
            format!("methods are in upper case, so `{text}` matches nothing"),
            format!("write \"{}\"", text.to_ascii_uppercase()),
        ),
        Err(_) => fault(format!("`{text}` is not a method"), HELP),
    }
}

/// `strip_prefix`, `add_prefix`: literal segments, written without trailing slash.
pub fn prefix(text: &str) -> Result<String, Fault> {
    if !text.starts_with('/') {
        return fault(format!("`{text}` does not start with `/`"), "write a path like \"/v1\"");
    }
    let text = text.strip_suffix('/').unwrap_or(text);
    for segment in text.split('/').skip(1) {
        literal(segment)?;
    }
    Ok(text.to_owned())
}

pub fn status(range: std::ops::RangeInclusive<i64>, section: &Section) -> Option<http::StatusCode> {
    let status = section.integer("status", range)?;
    u16::try_from(status).ok().and_then(|status| http::StatusCode::from_u16(status).ok())
}

/// Of a body whose type is not said.
pub const TEXT: http::HeaderValue = http::HeaderValue::from_static("text/plain; charset=utf-8");

pub fn content_type(section: &Section) -> Option<http::HeaderValue> {
    section.parse("content_type", |text| match text.contains('/') {
        true => values::header_value(text),
        false => fault(format!("`{text}` is not a content type"), "like \"text/plain\" or \"application/json\""),
    })
}
