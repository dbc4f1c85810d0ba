//! Opens the UDP sockets of a listener. As long as another process has the port, such as the predecessor of this one,
//! or the sockets of an earlier config still serve their last requests, the opening is tried again: until then clients
//! use HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};

use crate::net::ListenAddr;
use crate::proxy::server::quic::cid::{CidKey, WORKERS_MAX};
use crate::proxy::server::quic::endpoint::{Datagram, QuicGroup};
use crate::proxy::server::quic::settings;

/// How often the sockets are tried to open.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Attempts after which the log says why there is no HTTP/3, and between two further ones.
const SILENT_ATTEMPTS: u32 = 20;
const REPORT_ATTEMPTS: u32 = 3000;
/// Size of the receive buffer that each socket requests. The default holds a few milliseconds of a fast upload.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// Size of the send buffer that each socket requests. The default has room for three bursts of one connection.
const SEND_BUFFER: usize = 1024 * 1024;
/// Packets that wait for a worker that has their connection.
const RELAYED_MAX: usize = 1024;

/// The socket and settings that one worker needs for a listener.
pub struct WorkerSocket {
    /// Address of the listener, as in the config.
    pub addr: ListenAddr,
    pub socket: std::net::UdpSocket,
    /// Number of the worker.
    pub worker: usize,
    pub group: Arc<QuicGroup>,
    /// Packets that other workers have received.
    pub relayed: mpsc::Receiver<Datagram>,
}

/// Opens sockets, until it is dropped.
pub struct QuicOpener {
    pub addr: ListenAddr,
    task: AbortHandle,
}

impl QuicOpener {
    /// Opens sockets for `workers`, at the port of the TCP socket that is bound at `bound`, and passes each to `send`
    /// with the number of its worker.
    pub fn start(
        addr: &ListenAddr,
        bound: SocketAddr,
        workers: usize,
        send: impl Fn(usize, WorkerSocket) + 'static,
    ) -> QuicOpener {
        let name = addr.clone();
        let task = spawn_local(async move {
            let mut attempts = 0;
            loop {
                let error = match open_group(&name, bound, workers.min(WORKERS_MAX)) {
                    Ok(sockets) => {
                        return sockets.into_iter().enumerate().for_each(|(worker, socket)| send(worker, socket));
                    }
                    Err(error) => error,
                };
                let is_in_use = error.kind() == io::ErrorKind::AddrInUse;
                if attempts == SILENT_ATTEMPTS
                    || attempts % REPORT_ATTEMPTS == REPORT_ATTEMPTS - 1
                    || (!is_in_use && attempts == 0)
                {
                    tracing::warn!(
                        listener = %name, %error,
                        "cannot open UDP port {}, so clients use HTTP/2 instead of HTTP/3; trying again until it is free",
                        bound.port()
                    );
                }
                attempts += 1;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        });
        QuicOpener { addr: addr.clone(), task: task.abort_handle() }
    }
}

impl Drop for QuicOpener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn open_group(addr: &ListenAddr, bound: SocketAddr, workers: usize) -> io::Result<Vec<WorkerSocket>> {
    // Sockets that share the port would share the packets of a process that has it already.
    drop(new_socket(bound, false)?);
    let sockets = (0..workers).map(|_| new_socket(bound, true)).collect::<io::Result<Vec<_>>>()?;
    let (relay, relayed): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(RELAYED_MAX)).unzip();
    let group = Arc::new(QuicGroup {
        cids: CidKey::new(workers),
        token_key: settings::token_key(),
        relay,
        handshakes: Arc::default(),
    });
    if let Some(Ok(buffer)) = sockets.first().map(Socket::recv_buffer_size) {
        // The kernel reports twice what it grants.
        tracing::info!(listener = %addr, sockets = workers, receive_buffer = buffer / 2, "HTTP/3 is open");
    }
    let all = sockets.into_iter().zip(relayed).enumerate();
    Ok(all
        .map(|(worker, (socket, relayed))| WorkerSocket {
            addr: addr.clone(),
            socket: socket.into(),
            worker,
            group: group.clone(),
            relayed,
        })
        .collect())
}

fn new_socket(bound: SocketAddr, shares_port: bool) -> io::Result<Socket> {
    let domain = if bound.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(shares_port)?;
    socket.set_nonblocking(true)?;
    // The system grants what `net.core.rmem_max` and `net.core.wmem_max` allow.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    let _ = socket.set_send_buffer_size(SEND_BUFFER);
    socket.bind(&bound.into())?;
    Ok(socket)
}
