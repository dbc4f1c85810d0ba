//! One client connection from accept to close: which protocol it speaks, and what serves it in that.
//! Spawned by `accept`.

use std::rc::Rc;

use bytes::Bytes;

use super::bounds::Bounds;
use super::stream::Stream;
use super::{Worker, h1, h2, preface};
use crate::http::context::Client;
use crate::http::deadline::Phase;
use crate::metrics::Protocol;

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
