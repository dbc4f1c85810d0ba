//! What a client sent in place of a request, when its connection ends with it: counted, logged, and told where
//! it is another protocol. Called by `h1`.

use http::StatusCode;

use super::Worker;
use crate::http::answer::access_log;
use crate::http::answer::cause::{Cause, EndReason};
use crate::http::answer::problem;
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
    let status = match cutoff {
        Cutoff::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Cutoff::TargetTooLong => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    };
    access_log::unread(client, bytes, status, cutoff.into());
    let means = match cutoff {
        Cutoff::TlsHello => "a client speaks TLS on a listener without it",
        Cutoff::Http2Preface => "a client speaks HTTP/2 on a listener without it",
        _ => return,
    };
    common.complaints.client(cutoff, &client.listener, client.peer, format_args!("{means}"));
}

/// Logs a head that was begun and did not come to its end.
pub fn ended(worker: &Worker, client: &Client, bytes: &[u8]) {
    let deadline = client.deadline();
    // A request under way has a line of its own, and what it left unread is no head.
    if bytes.is_empty() || !deadline.awaits_head() {
        return;
    }
    let (status, cause): (StatusCode, Cause) = match deadline.expired().and_then(Phase::timeout) {
        Some(cutoff) => (StatusCode::REQUEST_TIMEOUT, cutoff.into()),
        None if worker.draining() => (problem::client_closed(), EndReason::Shutdown.into()),
        None => (problem::client_closed(), EndReason::ClientLeft.into()),
    };
    access_log::unread(client, bytes, status, cause);
}
