//! Serves one client connection, after its handshakes and until it closes.

use std::rc::Rc;

use bytes::Bytes;

use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::stream::Stream;
use crate::proxy::context::ClientConnection;
use crate::proxy::context::worker_context::WorkerContext;
use crate::proxy::server::http1;
use crate::proxy::server::http1::io::Http1Io;
use crate::proxy::server::http2;
use crate::proxy::server::preface;
use crate::telemetry::metrics::Protocol;

/// Serves `stream` until it ends, a timer ends it or the worker has drained it. The protocol is the one that TLS has
/// negotiated (`agreed`), or else that of the first bytes.
///
/// The task of a connection keeps its memory while the connection is idle. So large futures are boxed here, and dropped
/// when they are over.
pub async fn serve_connection(
    mut stream: Stream,
    agreed: Option<Protocol>,
    client: Rc<ClientConnection>,
    worker: Rc<WorkerContext>,
) {
    let connection = client.connection().clone();
    connection.enter_phase(Phase::Head, client.settings.header_timeout);
    // The gauge shows it as HTTP/1.1 until the protocol is known.
    let mut open = worker.count_open(&client.listener.name, agreed.unwrap_or(Protocol::Http11));
    let detected = match agreed {
        None if client.settings.http2 => Box::pin(preface::detect(&mut stream, &client, &worker)).await,
        agreed => Some((agreed.unwrap_or(Protocol::Http11), Bytes::new())),
    };
    match detected {
        Some((Protocol::Http2, start)) => {
            if agreed.is_none() {
                open = worker.count_open(&client.listener.name, Protocol::Http2);
            }
            Box::pin(http2::serve_connection(stream, start, client, &worker)).await;
        }
        Some((_, start)) => {
            http1::serve_connection(Box::new(Http1Io::new(stream, start, client)), &worker).await;
        }
        None => {}
    }
    drop(open);
    connection.close();
}
