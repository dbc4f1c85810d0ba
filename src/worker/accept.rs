//! Accepting: one loop per listener and worker on a socket that all workers share, so that a
//! worker that is free takes the next connection and closing one handle resets nothing.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use super::listener::{Accepted, Listener};
use super::{Worker, connection};
use crate::http::context::Client;
use crate::http::downstream::gate::LastHost;
use crate::http::downstream::hop::Hop;

/// Pause after an accept failed for want of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until the task is aborted. Its address labels the connections in the metrics.
pub async fn accept(worker: Rc<Worker>, listener: Listener) {
    let name: Rc<str> = listener.addr().to_string().into();
    let acceptor = match listener.accept() {
        Ok(acceptor) => acceptor,
        Err(error) => return tracing::error!(listener = &*name, %error, "a worker cannot accept connections"),
    };
    loop {
        match acceptor.next().await {
            Ok(accepted) => admit(&worker, accepted, &name),
            Err(error) => pause(&name, &error).await,
        }
    }
}

/// Spawns the connection, or drops it when a cap is reached.
fn admit(worker: &Rc<Worker>, Accepted { stream, peer, port }: Accepted, name: &Rc<str>) {
    let Some(ticket) = worker.enter(peer) else { return };
    let open = worker.open(name);
    let client = Rc::new(Client {
        local: worker.local.clone(),
        ticket,
        listener: name.clone(),
        peer,
        hop: Hop::new(peer, false, port),
        last_host: LastHost::default(),
        inspector: worker.inspector(),
    });
    let worker = worker.clone();
    tokio::task::spawn_local(async move {
        connection::serve(stream, client, &worker).await;
        drop(open);
    });
}

async fn pause(name: &str, error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    tracing::warn!(listener = name, %error, "cannot accept a connection, pausing");
    tokio::time::sleep(PAUSE).await;
}
