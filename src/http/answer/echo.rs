//! The built-in echo server, `upstream = "echo:"`: shows a request as an upstream would get it.
//! Called by `gateway` in place of `forward`.

use std::fmt::Write;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Response};

use crate::http::answer::body::Body;
use crate::http::downstream::upload::Upload;

/// A request with a body gets it back, streamed, under its own content type; one without gets its
/// request line and header fields as text.
pub fn answer(method: &Method, target: &str, headers: &HeaderMap, upload: Option<Upload>) -> Response<Body> {
    let (body, content_type) = match upload {
        Some(upload) => (Body::echo(upload), headers.get(CONTENT_TYPE).cloned()),
        None => (Body::full(description(method, target, headers)), None),
    };
    let mut response = Response::new(body);
    let content_type = content_type.unwrap_or(HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn description(method: &Method, target: &str, headers: &HeaderMap) -> String {
    let mut text = format!("{method} {target} HTTP/1.1\n");
    for (name, value) in headers {
        let _ = writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    text
}
