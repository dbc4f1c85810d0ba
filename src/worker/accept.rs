//! Accepting: one loop per listener and worker on a socket that all workers share, so that a
//! worker that is free takes the next connection and closing one handle resets nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

use super::Worker;
use super::connection::{self, Client};
use crate::http::hop::Hop;
use crate::net::ListenAddr;

/// A bound socket, not yet accepted from.
#[derive(Debug)]
pub enum Listener {
    Tcp(std::net::TcpListener),
    Unix(StdUnixListener),
}

/// Connections that may wait in the kernel until a worker is free.
const BACKLOG: i32 = 4096;
/// Pause after an accept failed for want of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

impl Listener {
    /// Binds `addr`. A Unix socket left behind by a dead process is replaced.
    pub fn bind(addr: &ListenAddr) -> io::Result<Listener> {
        match addr {
            ListenAddr::Tcp(addr) => {
                let domain = if addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                socket.set_nonblocking(true)?;
                socket.bind(&(*addr).into())?;
                socket.listen(BACKLOG)?;
                Ok(Listener::Tcp(socket.into()))
            }
            ListenAddr::Unix(path) => {
                if std::os::unix::net::UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
                {
                    std::fs::remove_file(path)?;
                }
                let listener = StdUnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener))
            }
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Listener> {
        match self {
            Listener::Tcp(listener) => listener.try_clone().map(Listener::Tcp),
            Listener::Unix(listener) => listener.try_clone().map(Listener::Unix),
        }
    }
}

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
    let Some(ticket) = worker.enter(peer, name) else { return };
    let client = Rc::new(Client {
        worker: worker.clone(),
        slot: ticket.slot().clone(),
        peer,
        hop: Hop::new(peer, false, port),
        inspector: worker.inspector(),
    });
    tokio::task::spawn_local(async move {
        connection::serve(stream, client).await;
        drop(ticket);
    });
}

async fn pause(name: &str, error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    tracing::warn!(listener = name, %error, "cannot accept a connection, pausing");
    tokio::time::sleep(PAUSE).await;
}
