//! One client connection from accept to close: which protocol it speaks, what the config allows it, and
//! what ends it. Spawned by `accept`.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::stream::Stream;
use super::{Worker, h1, h2, preface};
use crate::http::context::Client;
use crate::http::deadline::{Awaited, Phase};
use crate::metrics::Protocol;

/// What the config in force at the accept says of the connection, which may outlive many.
pub struct Bounds {
    pub header_timeout: Duration,
    pub keepalive_timeout: Duration,
    pub half_close_timeout: Duration,
    pub max_headers: usize,
    pub max_header_bytes: usize,
    pub max_streams: u32,
    /// Of an HTTP/2 connection as a whole: its streams have their own.
    pub stream_timeout: Duration,
    pub min_response_rate: u64,
    http2: bool,
}

/// Serves `stream` in the protocol that was agreed on, or else in that of its first bytes, until it ends,
/// its deadline passes or the worker has drained it.
pub async fn serve(mut stream: Stream, agreed: Option<Protocol>, client: Rc<Client>, worker: &Worker) {
    let bounds = Bounds::of(&client);
    client.deadline().arm(Phase::Head, bounds.header_timeout);
    // Until it is known, it counts as the older one.
    let mut open = worker.open(&client.listener, agreed.unwrap_or(Protocol::Http11));
    let told = match agreed {
        None if bounds.http2 => preface::tell(&mut stream, &client, worker).await,
        agreed => Some((agreed.unwrap_or(Protocol::Http11), Bytes::new())),
    };
    match told {
        Some((Protocol::Http2, start)) => {
            if agreed.is_none() {
                open = worker.open(&client.listener, Protocol::Http2);
            }
            h2::serve(stream, start, client, &bounds, worker).await;
        }
        Some((_, start)) => h1::serve(stream, start, client, &bounds, worker).await,
        None => {}
    }
    drop(open);
}

impl Bounds {
    pub fn of(client: &Client) -> Bounds {
        let view = client.local.view();
        let server = &view.snapshot.config.server;
        Bounds {
            header_timeout: server.header_timeout,
            keepalive_timeout: server.keepalive_timeout,
            half_close_timeout: server.half_close_timeout,
            max_headers: server.max_headers,
            max_header_bytes: server.max_header_bytes,
            max_streams: server.max_streams,
            stream_timeout: server.stream_timeout,
            min_response_rate: server.min_response_rate,
            http2: server.http2,
        }
    }
}

/// A deadline that the request itself did not answer for ends the connection.
pub fn has_ended(client: &Client, worker: &Worker) -> bool {
    if client.deadline().is_cut() || client.deadline().is_gone() {
        return true;
    }
    let expired = client.deadline().expired().map(Phase::timeout);
    let expired = expired.or_else(|| client.deadline().expired_request().map(Awaited::timeout));
    let expired = expired.or_else(|| client.deadline().ends_slow().map(Some));
    expired.inspect(|reason| worker.count_timeout(*reason)).is_some()
}
