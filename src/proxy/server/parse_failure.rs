//! Counts, logs and answers heads that cannot be parsed and that end their connection or stream.

use std::time::SystemTime;

use http::header::STRICT_TRANSPORT_SECURITY;
use http::{HeaderValue, StatusCode};

use crate::config::Service;
use crate::ends::End;
use crate::proxy::account::log_entry;
use crate::proxy::connection::phase::Phase;
use crate::proxy::context::ClientConnection;
use crate::proxy::context::worker_context::WorkerContext;
use crate::proxy::doors::decide::question::find_point_of_unparsed;
use crate::proxy::head::frame_head::{FrameHead, SETTINGS};
use crate::proxy::render::accept;
use crate::proxy::steps::response::error_page;
use crate::proxy::steps::response::error_page::ErrorFacts;
use crate::proxy::steps::response::problem;
use crate::route::decide::X_LIMIT_STATUS;

/// The longest request target that the parser accepts.
const TARGET_MAX: usize = 65_534;

/// Returns why the parser, which accepts heads of `max_bytes`, rejected `bytes`. `None` if the connection has failed
/// instead.
pub fn find_parse_end(error: &hyper::Error, bytes: &[u8], max_bytes: usize) -> Option<End> {
    if error.is_parse_too_large() {
        return Some(if is_target_too_long(bytes, max_bytes) { End::TargetTooLong } else { End::HeadTooLarge });
    }
    if !error.is_parse() {
        return None;
    }
    Some(match bytes {
        [0x16, 0x03, ..] => End::TlsHello,
        _ if bytes.starts_with(b"PRI * HTTP/2.0\r\n") => End::Http2Preface,
        _ => End::MalformedHead,
    })
}

/// Returns whether the target of a request is longer than the parser accepts, or does not end within `max_bytes`.
fn is_target_too_long(bytes: &[u8], max_bytes: usize) -> bool {
    let bytes = bytes.get(..max_bytes).unwrap_or(bytes).trim_ascii_start();
    let mut parts = bytes.splitn(3, |byte| matches!(byte, b' ' | b'\n'));
    let (_method, target, rest) = (parts.next(), parts.next(), parts.next());
    target.is_some_and(|target| target.len() > TARGET_MAX || (rest.is_none() && !target.is_empty()))
}

/// Counts and logs a rejected head, of which `bytes` have arrived. Reports clients that speak another protocol.
pub fn report_rejected(client: &ClientConnection, end: End, bytes: &[u8]) {
    let process = &client.worker.process;
    process.metrics.rejected_counter(end).inc();
    let status = end.status();
    log_entry::log_rejected_head(client, bytes, deny_status(client, status, bytes).unwrap_or(status), end);
    if matches!(end, End::TlsHello | End::Http2Preface) {
        let message = end.row().log_text();
        process.failure_log.log_rejected_client(end, &client.listener.name, client.peer, format_args!("{message}"));
    }
}

/// Returns the status that replaces that of a rejected head, if the head is a question of another proxy. The client of
/// that proxy may have caused the rejection, so it is a refusal like any other.
fn deny_status(client: &ClientConnection, status: StatusCode, bytes: &[u8]) -> Option<StatusCode> {
    if client.listener.settings.service != Service::Decide {
        return None;
    }
    let view = client.worker.view();
    let config = &view.snapshot.config;
    let may_ask = config.server.client_address.trusted.contains(client.peer);
    let point = find_point_of_unparsed(bytes, config).filter(|_| may_ask)?;
    point.deny_as.replace(status)
}

/// Makes the complete response to a rejected head, of which `bytes` have arrived: HTTP/1.1, but for a client that
/// speaks HTTP/2, which would not understand that. The client gets the error page of the server in the format that its
/// `Accept` prefers, if that header has arrived.
pub fn error_response(client: &ClientConnection, end: End, bytes: &[u8]) -> Vec<u8> {
    if end == End::Http2Preface {
        return http2_refusal();
    }
    let (status, detail) = (end.status(), end.row().text);
    let view = client.worker.view();
    let server = &view.snapshot.config.server;
    // Behind a trusted proxy the client is unknown, so that it gets no hints.
    let hints = server.hints.apply_to(client.peer) && !server.client_address.trusted.contains(client.peer);
    let problem = || problem::problem_document(status, detail, end.row().setting.filter(|_| hints));
    let facts = ErrorFacts { status, detail, request_id: None, retry_after: None };
    let format = accept::negotiate_head(bytes);
    let (mut headers, body) = error_page::build_page(&facts, format, server.error_pages.as_deref(), problem);
    headers.extend(client.listener.hsts.clone().map(|hsts| (STRICT_TRANSPORT_SECURITY, hsts)));
    let replacement = deny_status(client, status, bytes);
    headers.extend(replacement.map(|_| (X_LIMIT_STATUS, HeaderValue::from(status.as_u16()))));
    let status = replacement.unwrap_or(status);
    let reason = status.canonical_reason().unwrap_or_default();
    let mut response = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in &headers {
        response.extend_from_slice(name.as_str().as_bytes());
        response.extend_from_slice(b": ");
        response.extend_from_slice(value.as_bytes());
        response.extend_from_slice(b"\r\n");
    }
    let date = httpdate::fmt_http_date(SystemTime::now());
    let length = body.len();
    let end = format!("content-length: {length}\r\nconnection: close\r\ndate: {date}\r\n\r\n");
    response.extend_from_slice(end.as_bytes());
    if !bytes.starts_with(b"HEAD ") {
        response.extend_from_slice(body.as_bytes());
    }
    response
}

/// Makes the response to a client that speaks HTTP/2 where it must not: empty SETTINGS, and GOAWAY with the error
/// HTTP_1_1_REQUIRED (RFC 9113, sections 6.8 and 7).
fn http2_refusal() -> Vec<u8> {
    const GOAWAY: u8 = 7;
    const HTTP_1_1_REQUIRED: u32 = 0xd;
    const TEXT: &[u8] = b"use HTTP/1.1, or negotiate h2 in the TLS handshake (ALPN)";
    let frame = |kind, length| FrameHead { length, kind, flags: 0, stream: 0 }.write().unwrap_or_default();
    let last_stream = 0_u32.to_be_bytes();
    let error = HTTP_1_1_REQUIRED.to_be_bytes();
    let goaway = frame(GOAWAY, last_stream.len() + error.len() + TEXT.len());
    [&frame(SETTINGS, 0)[..], &goaway, &last_stream, &error, TEXT].concat()
}

/// Counts and logs a head of which only the beginning, `bytes`, has arrived.
pub fn report_incomplete(worker: &WorkerContext, client: &ClientConnection, bytes: &[u8]) {
    let connection = client.connection();
    // A request under way has its own log line, and unread bytes of its body are not a head.
    if bytes.is_empty() || !connection.awaits_head() {
        return;
    }
    let end = match connection.expired_phase().and_then(Phase::end) {
        Some(end) => end,
        None if worker.is_draining() => End::Shutdown,
        None => {
            client.worker.process.metrics.rejected_counter(End::LeftInHead).inc();
            End::LeftInHead
        }
    };
    log_entry::log_rejected_head(client, bytes, end.status(), end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_too_long_if_it_does_not_end_within_the_bound() {
        for (bytes, is_too_long) in [
            ("GET /abcdef", true),
            ("\r\nGET /abcdefgh HTTP/1.1\r\nhost: a\r\n", true),
            ("GET /abc HTTP/1.1\r\nhost: a\r\n", false),
            ("GET /abc\nhost: a\r\n", false),
            ("AVERYLONGMETHODWITHOUTEND", false),
            ("AVERYLONGMET / HTTP/1.1", false),
            ("", false),
        ] {
            assert_eq!(is_target_too_long(bytes.as_bytes(), 12), is_too_long, "{bytes:?}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(TARGET_MAX));
        assert!(is_target_too_long(long.as_bytes(), 1 << 20));
    }
}
