//! Reads a question: what it asks about, and the facts of the request in question. The facts replace the head of the
//! question, so that everything after this reads the request of the client as if the client had sent it here.
//!
//! Asking proxies pass the headers of their clients on. So the facts come from one family of headers, which the config
//! names; headers of another family are the client's, and mean nothing.
//!
//! A header of the family that is absent or repeated is a mistake of the asking proxy. What it contains was chosen by
//! the client, so a method, target or host that cannot be read is a reason to refuse the request.

use std::sync::Arc;

use http::header::{FORWARDED, HOST};
use http::request::Parts;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::canonical;
use crate::config::{Config, percent_decode};
use crate::ends::End;
use crate::limiting::limit::Limit;
use crate::proxy::head::described;
use crate::proxy::words::refusal::Refusal;
use crate::route::decide::{DecidePoint, FactFamily};

/// A question of another proxy.
#[derive(Debug)]
pub struct ProxyQuestion<'c> {
    /// The name that it asks about.
    pub name: String,
    pub point: &'c DecidePoint,
    pub purpose: QuestionPurpose,
    /// The repair of the head of the request in question, or the reason to refuse it.
    pub described: Result<Option<End>, End>,
}

impl ProxyQuestion<'_> {
    /// Returns the limit `name` as the list of the question has it: with the cost that the list sets. After a reload
    /// that took it from the list, as it is on its own.
    pub fn find_limit<'c>(&self, config: &'c Config, name: &str) -> Option<&'c Arc<Limit>> {
        let of_list = config.route_at(self.point.route).limits.iter().find(|limit| limit.name == name);
        of_list.or_else(|| config.limits.find(name))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionPurpose {
    /// `/decide/NAME`: whether the limits admit a request.
    Decide,
    /// `/settle/NAME`: correct the charges of an earlier decision.
    Settle,
}

/// The path of questions, before the name.
const DECIDE: &str = "/decide/";
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");

/// Reads a question of a trusted peer, and replaces the head of the question by that of the request in question.
///
/// # Errors
/// Nobody may ask about the name, or the facts are missing or repeated.
pub fn read_question<'c>(parts: &mut Parts, config: &'c Config) -> Result<ProxyQuestion<'c>, Refusal> {
    let (purpose, rest) = find_purpose(parts).ok_or(End::DecideName)?;
    let (name, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (name, point) = find_point(name, config).ok_or(End::DecideName)?;
    let rest = rest.to_owned();
    let mut described = Ok(None);
    if purpose == QuestionPurpose::Decide {
        check_client_address(&parts.headers, config)?;
        check_id(&parts.headers, point)?;
        described = match replace_head(parts, point.from, &rest) {
            Ok(fault) => Ok(fault),
            Err(HeadFault::Request(reject)) => Err(reject),
            Err(HeadFault::Question(fault)) => return Err(fault),
        };
    }
    Ok(ProxyQuestion { name, point, purpose, described })
}

/// Why the head of the request in question cannot be read.
#[derive(Clone, Copy, Debug)]
enum HeadFault {
    /// The asking proxy does not state it.
    Question(Refusal),
    /// The client sent something that is not a valid head.
    Request(End),
}

impl From<Refusal> for HeadFault {
    fn from(fault: Refusal) -> HeadFault {
        HeadFault::Question(fault)
    }
}

impl From<End> for HeadFault {
    fn from(reject: End) -> HeadFault {
        HeadFault::Request(reject)
    }
}

/// Returns whether the gateway must finish its work on a question even if the asking proxy leaves: a receipt counts as
/// used before the charges are corrected, and the answer to a question that may be repeated is charged before it is
/// known to others.
pub fn must_be_finished(parts: &Parts, config: &Config) -> bool {
    let Some((purpose, rest)) = find_purpose(parts) else { return false };
    let name = rest.split('/').next().unwrap_or_default();
    let once = || find_point(name, config).and_then(|(_, point)| point.once.as_ref());
    purpose == QuestionPurpose::Settle || once().is_some_and(|id| parts.headers.contains_key(id))
}

/// Finds the decision that a question asks for whose head cannot be parsed. `head`: the bytes that have arrived.
pub fn find_point_of_unparsed<'c>(head: &[u8], config: &'c Config) -> Option<&'c DecidePoint> {
    let target = head.split(|byte| matches!(byte, b' ' | b'\r' | b'\n')).nth(1)?;
    let path = target.split(|byte| matches!(byte, b'?' | b'#')).next()?;
    let name = path.strip_prefix(DECIDE.as_bytes())?.split(|byte| *byte == b'/').next()?;
    find_point(str::from_utf8(name).ok()?, config).map(|(_, point)| point)
}

/// Returns the purpose of a question, and its path from the name on.
fn find_purpose(parts: &Parts) -> Option<(QuestionPurpose, &str)> {
    // The path as received: dots in the client's part of it must not lead to another name.
    let path = parts.uri.path();
    match (path.strip_prefix(DECIDE), path.strip_prefix("/settle/")) {
        (Some(rest), _) => Some((QuestionPurpose::Decide, rest)),
        (None, Some(rest)) => Some((QuestionPurpose::Settle, rest)),
        (None, None) => None,
    }
}

/// Finds the decision that a part of the path names.
fn find_point<'c>(name: &str, config: &'c Config) -> Option<(String, &'c DecidePoint)> {
    let name = percent_decode(name).and_then(|name| String::from_utf8(name).ok())?;
    let point = config.decide.find(&name)?;
    Some((name, point))
}

/// Refuses a question that names the client only in `Forwarded`, unless the config says that proxies set this header:
/// few do, but all pass it on.
fn check_client_address(headers: &HeaderMap, config: &Config) -> Result<(), Refusal> {
    let is_stated = config.server.client_address.headers.is_configured || headers.contains_key(X_FORWARDED_FOR);
    if headers.contains_key(FORWARDED) && !is_stated {
        let detail = "the asking proxy does not set X-Forwarded-For, and Forwarded may be the client's own";
        return Err(Refusal::with_text(End::DecideFacts, detail));
    }
    Ok(())
}

/// Refuses a question with several ids of the request.
fn check_id(headers: &HeaderMap, point: &DecidePoint) -> Result<(), Refusal> {
    match point.once.as_ref().map(|name| headers.get_all(name).iter().count()) {
        Some(2..) => Err(Refusal::with_text(
            End::DecideFacts,
            "the header of `once` is repeated, so the request has no clear id",
        )),
        None | Some(_) => Ok(()),
    }
}

/// Returns whether the head of the request in question has no host.
pub fn lacks_host(parts: &Parts) -> bool {
    !parts.headers.contains_key(HOST) && parts.uri.authority().is_none()
}

/// Replaces method, target and `Host` by those of the request in question. Returns the fault of its target that was
/// repaired.
fn replace_head(parts: &mut Parts, family: FactFamily, rest: &str) -> Result<Option<End>, HeadFault> {
    let headers = &parts.headers;
    let (method, target, host) = match family {
        FactFamily::Path => {
            let query = parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
            let path = if rest.is_empty() { "/" } else { rest };
            let (uri, fault) = parse_path(format!("{path}{query}").as_bytes(), parts.uri.clone())?;
            parts.uri = uri;
            remove_empty_host(&mut parts.headers);
            return Ok(fault);
        }
        FactFamily::Forwarded => (
            read_one(
                headers,
                &X_FORWARDED_METHOD,
                "X-Forwarded-Method must occur once, with the method of the request",
            )?,
            read_one(headers, &X_FORWARDED_URI, "X-Forwarded-Uri must occur once, with the path of the request")?,
            Some(read_one(
                headers,
                &X_FORWARDED_HOST,
                "X-Forwarded-Host must occur once, with the host of the request; empty if it has none",
            )?),
        ),
        FactFamily::Original => {
            let method = "X-Original-Method must occur once, with the method of the request";
            let method = read_one(headers, &X_ORIGINAL_METHOD, method)?;
            let target = match (headers.contains_key(X_ORIGINAL_URL), headers.contains_key(X_ORIGINAL_URI)) {
                (true, false) => read_one(headers, &X_ORIGINAL_URL, "X-Original-URL must occur once")?,
                (false, true) => read_one(headers, &X_ORIGINAL_URI, "X-Original-URI must occur once")?,
                (true, true) => {
                    return Err(Refusal::with_text(
                        End::DecideFacts,
                        "X-Original-URL and X-Original-URI must not both be set",
                    )
                    .into());
                }
                (false, false) => {
                    return Err(Refusal::with_text(
                        End::DecideFacts,
                        "X-Original-URL or X-Original-URI must state the request",
                    )
                    .into());
                }
            };
            // A URL names the host. A path does not, and then `Host` does.
            (method, target, None)
        }
    };
    let method = described::parse_method(method.as_bytes())?;
    let (uri, host, fault) = parse_target(target, host, parts)?;
    parts.method = method;
    parts.uri = uri;
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    remove_empty_host(&mut parts.headers);
    Ok(fault)
}

/// Removes an empty `Host`: the request in question has no host, as HTTP/1.0 allows.
fn remove_empty_host(headers: &mut HeaderMap) {
    if headers.get(HOST).is_some_and(HeaderValue::is_empty) && headers.get_all(HOST).iter().count() == 1 {
        headers.remove(HOST);
    }
}

/// Returns the only value of a header.
fn read_one<'h>(headers: &'h HeaderMap, name: &HeaderName, fault: &'static str) -> Result<&'h HeaderValue, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(Refusal::with_text(End::DecideFacts, fault)),
    }
}

/// Parses the target of the request: a path, or a URL, whose host must not contradict `host`. Returns the path, the
/// host if it replaces that of the question, and the fault that was repaired.
fn parse_target(
    target: &HeaderValue,
    host: Option<&HeaderValue>,
    parts: &Parts,
) -> Result<(Uri, Option<HeaderValue>, Option<End>), End> {
    let text = target.as_bytes();
    if text.first() == Some(&b'/') || text == b"*" {
        // A request without its own host has the host of the question, which is in the target over HTTP/2.
        let base = if host.is_some() { Uri::default() } else { parts.uri.clone() };
        let (uri, fault) = parse_path(text, base)?;
        return Ok((uri, host.cloned(), fault));
    }
    let (url, fault) = described::parse_target(text)?;
    let authority = match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(authority)) => authority.as_str().as_bytes(),
        _ => return Err(End::TargetForm),
    };
    if host.is_some_and(|host| !is_same_host(host.as_bytes(), authority)) {
        return Err(End::HostMismatch);
    }
    let host = HeaderValue::from_bytes(authority).map_err(|_| End::HostInvalid)?;
    let path = url.path_and_query().map_or("/", PathAndQuery::as_str);
    let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
    let (uri, _) = parse_path(path.as_bytes(), Uri::default())?;
    Ok((uri, Some(host), fault))
}

/// Returns whether two hosts are the same in canonical form, with the same port if both state one.
fn is_same_host(one: &[u8], other: &[u8]) -> bool {
    let read = |text: &[u8]| {
        let authority = canonical::authority::parse_authority(text)?;
        let text = authority.rewritten.map_or_else(|| text.to_vec(), String::into_bytes);
        Some((text.get(..authority.host_len)?.to_vec(), authority.port))
    };
    match (read(one), read(other)) {
        (Some((one, port)), Some((other, other_port))) => {
            one == other && (port == other_port || port.is_none() || other_port.is_none())
        }
        _ => false,
    }
}

/// Parses a path with an optional query, and puts it instead of that of `uri`. Also returns the fault that was
/// repaired.
fn parse_path(text: &[u8], uri: Uri) -> Result<(Uri, Option<End>), End> {
    let (target, fault) = described::parse_target(text)?;
    let mut parts = uri.into_parts();
    parts.path_and_query = target.into_parts().path_and_query;
    let uri = Uri::from_parts(parts).map_err(|_| End::TargetForm)?;
    Ok((uri, fault))
}
