//! Accepting: one loop per listener and worker on a socket that all workers share, so that a
//! worker that is free takes the next connection and closing one handle resets nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};

use super::listener::Listener;
use super::{Worker, connection};
use crate::http::context::Client;
use crate::http::downstream::hop::Hop;

/// Pause after an accept failed for want of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until the task is aborted. `name` labels the connections in the metrics.
pub async fn accept(worker: Rc<Worker>, listener: Listener, name: String) {
    let result = match listener {
        Listener::Tcp(listener) => match TcpListener::from_std(listener) {
            Ok(listener) => accept_tcp(&worker, &listener, &name).await,
            Err(error) => Err(error),
        },
        Listener::Unix(listener) => match UnixListener::from_std(listener) {
            Ok(listener) => accept_unix(&worker, &listener, &name).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = result {
        tracing::error!(listener = name, %error, "a worker cannot accept connections");
    }
}

async fn accept_tcp(worker: &Rc<Worker>, listener: &TcpListener, name: &str) -> io::Result<()> {
    let port = listener.local_addr()?.port();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Answers leave at once; a socket that cannot do so still works.
                let _ = stream.set_nodelay(true);
                admit(worker, stream, canonical(peer), port, name);
            }
            Err(error) => pause(name, &error).await,
        }
    }
}

async fn accept_unix(worker: &Rc<Worker>, listener: &UnixListener, name: &str) -> io::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(worker, stream, LOCAL, LOCAL_PORT, name),
            Err(error) => pause(name, &error).await,
        }
    }
}

/// The peer address of a Unix socket.
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The port that a client of a Unix socket is said to have asked: the one that HTTP implies.
const LOCAL_PORT: u16 = 80;

fn canonical(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

/// Spawns the connection, or drops it when a cap is reached.
fn admit<S>(worker: &Rc<Worker>, stream: S, peer: IpAddr, port: u16, name: &str)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    let Some(place) = worker.enter(peer) else { return };
    let open = worker.open(name);
    let client = Rc::new(Client {
        local: worker.local.clone(),
        slot: place.slot().clone(),
        place: Box::new(place),
        peer,
        hop: Hop::new(peer, false, port),
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
