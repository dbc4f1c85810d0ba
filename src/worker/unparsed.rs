//! What a client sent in place of a request, when its connection ends with it: counted, and told where it
//! is another protocol. Called by `h1`.

use super::Worker;
use crate::http::context::Client;
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

pub fn tell(worker: &Worker, client: &Client, cutoff: Cutoff) {
    let common = &worker.local.common;
    common.metrics.http_rejected(cutoff).inc();
    let means = match cutoff {
        Cutoff::TlsHello => "a client speaks TLS on a listener without it",
        Cutoff::Http2Preface => "a client speaks HTTP/2 on a listener without it",
        _ => return,
    };
    common.complaints.client(cutoff, &client.listener, client.peer, means);
}
