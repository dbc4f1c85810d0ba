//! Responses that the gateway makes itself and that are not errors: the echo server, redirects, and the proof for an
//! ACME server.

use std::fmt::Write;

use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use crate::config::Acme;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::connection::upload::Upload;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::steps::response::problem;
use crate::route::redirect::{Redirect, RedirectInput};

/// Path prefix of ACME proofs over plain HTTP (http-01, RFC 8555, section 8.3).
const ACME_CHALLENGE_PREFIX: &str = "/.well-known/acme-challenge/";

/// The built-in echo server, `upstream = "echo:"`. Streams the request's body back under its own content type. Without
/// a body, the response is the request line and the headers as text, as an upstream server would get them.
pub fn echo(method: &Method, target: &str, headers: &HeaderMap, upload: Option<Upload>) -> Response<ResponseBody> {
    let (body, content_type) = match upload {
        Some(upload) => (ResponseBody::echo(upload), headers.get(CONTENT_TYPE).cloned()),
        None => (ResponseBody::full(describe_head(method, target, headers)), None),
    };
    let mut response = Response::new(body);
    let content_type = content_type.unwrap_or(HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn describe_head(method: &Method, target: &str, headers: &HeaderMap) -> String {
    let mut text = format!("{method} {target} HTTP/1.1\n");
    for (name, value) in headers {
        let _ = writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    text
}

/// Redirects to the same address over HTTPS (`redirect_http`), with `port` unless it is 443.
///
/// The location has the canonical host and path, so that the client does not repeat ambiguous input over HTTPS. The
/// path is the one for servers: the client may have signed it. Returns `None` if the request has no host.
pub fn redirect_to_https(head: &ValidatedHead, port: u16) -> Option<Response<ResponseBody>> {
    let host = Some(head.read_host()).filter(|host| !host.is_empty())?;
    let path = Some(head.sent_path()).filter(|path| path.starts_with('/')).unwrap_or("/");
    let mut location = match port {
        443 => format!("https://{host}{path}"),
        _ => format!("https://{host}:{port}{path}"),
    };
    if let Some(query) = head.query() {
        location.push('?');
        location.push_str(query);
    }
    let location = HeaderValue::try_from(location).ok()?;
    let mut response =
        problem::fixed_response(StatusCode::PERMANENT_REDIRECT, "", HeaderValue::from_static("text/plain"));
    response.headers_mut().insert(LOCATION, location);
    Some(response)
}

/// Redirects a request (`redirect` of a route). Returns `None` if the map of the route does not list its path, and the
/// route has no other target.
pub fn redirect(redirect: &Redirect, head: &ValidatedHead, is_https: bool) -> Option<Response<ResponseBody>> {
    let target = head.server_target();
    let (rewritten_path, query) = target.split_once('?').map_or((&*target, None), |(path, query)| (path, Some(query)));
    let (host, path, sent_path) = (head.read_host(), head.matched_path(), head.sent_path());
    let input = RedirectInput { is_https, host, path, sent_path, rewritten_path, query };
    let (status, location) = redirect.locate(input)?;
    let location = HeaderValue::try_from(location).ok()?;
    let mut response = problem::fixed_response(status, "", HeaderValue::from_static("text/plain"));
    response.headers_mut().insert(LOCATION, location);
    Some(response)
}

/// Returns the proof for an open ACME challenge. Returns `None` for any other path: an app behind the gateway may serve
/// challenges of its own.
pub fn answer_acme_challenge(acme: &Acme, method: &Method, path: &str) -> Option<Response<ResponseBody>> {
    let token = path.strip_prefix(ACME_CHALLENGE_PREFIX).filter(|_| method == Method::GET)?;
    let proof = acme.challenges.key_authorization(token)?;
    Some(problem::fixed_response(StatusCode::OK, proof, HeaderValue::from_static("application/octet-stream")))
}
