//! What a client sent in place of a request, when its connection or its stream ends with it: counted, logged, and
//! told where it is another protocol. Called by `h1` and `followed`.

use std::time::SystemTime;

use http::StatusCode;

use super::Worker;
use super::head_check::MalformedHead;
use crate::http::answer::access_log;
use crate::http::answer::cause::{Cause, EndReason};
use crate::http::answer::problem;
use crate::http::answer::refusal::client_closed;
use crate::http::context::Client;
use crate::http::deadline::Phase;
use crate::metrics::Cutoff;

/// The longest target that the parser takes.
const TARGET_MAX: usize = 65_534;

/// Why the parser gave up on `bytes`; `None` when it was the connection that ended.
pub fn cutoff(error: &hyper::Error, bytes: &[u8]) -> Option<Cutoff> {
    if error.is_parse_too_large() {
        let long = bytes.split(|byte| *byte == b' ').nth(1).is_some_and(|target| target.len() > TARGET_MAX);
        return Some(if long { Cutoff::TargetTooLong } else { Cutoff::HeadTooLarge });
    }
    if !error.is_parse() {
        return None;
    }
    Some(match bytes {
        [0x16, 0x03, ..] => Cutoff::TlsHello,
        _ if bytes.starts_with(b"PRI * HTTP/2.0\r\n") => Cutoff::Http2Preface,
        _ => Cutoff::MalformedHead,
    })
}

/// Counts, logs and tells it; `bytes` are what there is of the head.
pub fn refused(client: &Client, cutoff: Cutoff, bytes: &[u8]) {
    let common = &client.local.common;
    common.metrics.http_rejected(cutoff).inc();
    access_log::unread(client, bytes, status(cutoff), cutoff.into());
    let means = match cutoff {
        Cutoff::TlsHello => "a client speaks TLS on a listener without it",
        Cutoff::Http2Preface => "a client speaks HTTP/2 on a listener without it",
        _ => return,
    };
    common.complaints.client(cutoff, &client.listener, client.peer, format_args!("{means}"));
}

/// Counts and logs a malformed head whose stream is reset. It is logged with the status that HTTP/1.1 would have
/// answered.
pub fn malformed(client: &Client, rule: Cutoff, head: &MalformedHead) {
    client.local.common.metrics.http_rejected(rule).inc();
    let MalformedHead { method, authority, path } = head;
    access_log::malformed(client, (method, authority, path), StatusCode::BAD_REQUEST, rule.into());
}

fn status(cutoff: Cutoff) -> StatusCode {
    match cutoff {
        Cutoff::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Cutoff::TargetTooLong => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// The whole answer to it, in the form of every refusal.
pub fn answer(client: &Client, cutoff: Cutoff) -> Vec<u8> {
    let (status, cause) = (status(cutoff), Cause::from(cutoff));
    let detail = match cutoff {
        Cutoff::HeadTooLarge => "the request head has more bytes or fields than allowed here",
        Cutoff::TargetTooLong => "the request target is longer than allowed here",
        Cutoff::TlsHello => "this port speaks HTTP without TLS",
        _ => "the request line or a field is malformed",
    };
    let view = client.local.view();
    let server = &view.snapshot.config.server;
    // Whom a trusted proxy speaks for is unknown.
    let hints = server.hints.are_for(client.peer) && !server.trusted_proxies.contains(client.peer);
    let body = problem::about(status, detail, cause.setting.filter(|_| hints));
    let reason = status.canonical_reason().unwrap_or_default();
    let date = httpdate::fmt_http_date(SystemTime::now());
    let (status, length) = (status.as_u16(), body.len());
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: {}\r\ncontent-length: {length}\r\nconnection: close\r\ndate: \
         {date}\r\n\r\n{body}",
        problem::PROBLEM_TYPE
    )
    .into_bytes()
}

/// Counts and logs a head that was begun and did not come to its end.
pub fn ended(worker: &Worker, client: &Client, bytes: &[u8]) {
    let deadline = client.deadline();
    // A request under way has a line of its own, and what it left unread is no head.
    if bytes.is_empty() || !deadline.awaits_head() {
        return;
    }
    let (status, cause): (StatusCode, Cause) = match deadline.expired().and_then(Phase::timeout) {
        Some(cutoff) => (StatusCode::REQUEST_TIMEOUT, cutoff.into()),
        None if worker.draining() => (client_closed(), EndReason::Shutdown.into()),
        None => {
            client.local.common.metrics.http_rejected(Cutoff::ClientLeft).inc();
            (client_closed(), Cutoff::ClientLeft.into())
        }
    };
    access_log::unread(client, bytes, status, cause);
}
