//! The loop of one worker that receives the packets of a listener, and passes them to their connections.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use quinn_proto::{EcnCodepoint, Incoming, ServerConfig};
use tokio::sync::{mpsc, oneshot};

use crate::config::ListenerSettings;
use crate::net::ListenAddr;
use crate::proxy::connection::settings::ConnectionSettings;
use crate::proxy::context::worker_context::WorkerContext;
use crate::proxy::head::untrusted_headers::UntrustedForwarding;
use crate::proxy::server::quic::endpoint::{Datagram, QuicEndpoint};
use crate::proxy::server::quic::settings;
use crate::proxy::server::quic::socket::QuicSocket;
use crate::worker::accept::ListenerState;
use crate::worker::quic::backoff::Backoff;
use crate::worker::quic::open::WorkerSocket;

/// Bytes that one call receives: many datagrams of one client.
const RECEIVE_SIZE: usize = 64 * 1024;
/// Calls before other tasks run.
const RECEIVES_MAX: usize = 8;
/// Clients that wait until the worker has computed the handshakes of others.
pub(super) const WAITING_MAX: usize = 256;

/// The loop of one worker for one listener.
pub(super) struct QuicListener {
    pub(super) worker: Rc<WorkerContext>,
    pub(super) endpoint: Rc<QuicEndpoint>,
    pub(super) state: Rc<ListenerState>,
    addr: ListenAddr,
    forwarding: Rc<UntrustedForwarding>,
    /// The settings of new connections, with what they were made of.
    config: Option<Arc<ServerConfig>>,
    made_of: (Arc<ListenerSettings>, Rc<ConnectionSettings>),
    relayed: mpsc::Receiver<Datagram>,
    backoff: Backoff,
    pub(super) waiting: VecDeque<Incoming>,
    buffer: Vec<u8>,
}

/// Serves HTTP/3 until the listener is `stopped` and its connections have ended.
pub async fn run_endpoint(worker: Rc<WorkerContext>, socket: WorkerSocket, mut stopped: oneshot::Receiver<()>) {
    let WorkerSocket { addr, socket, worker: number, group, relayed } = socket;
    let name: Rc<str> = addr.to_string().into();
    let Some(settings) = worker.listener_settings(&addr) else { return };
    let socket = match QuicSocket::new(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(listener = &*name, %error, "a worker cannot receive HTTP/3"),
    };
    let process = &worker.state.process;
    let forwarding = Rc::new(UntrustedForwarding::new(&name, &process.failure_log, &process.metrics));
    let state = Rc::new(ListenerState::new(
        name.clone(),
        forwarding.clone(),
        settings.clone(),
        Some(socket.local_addr().port()),
        &worker,
    ));
    let bounds = worker.state.view().connection_settings.clone();
    let mut listener = QuicListener {
        endpoint: QuicEndpoint::new(socket, group, number),
        state,
        addr,
        forwarding,
        config: None,
        made_of: (settings, bounds),
        relayed,
        backoff: Backoff::default(),
        waiting: VecDeque::new(),
        buffer: vec![0; RECEIVE_SIZE],
        worker: worker.clone(),
    };
    listener.make_config();
    worker.state.alt_services.open(&name);
    poll_fn(|cx| {
        if !listener.endpoint.is_stopping() && Pin::new(&mut stopped).poll(cx).is_ready() {
            worker.state.alt_services.close(&name, worker.connections.now_ms());
            listener.endpoint.stop();
        }
        listener.poll(cx)
    })
    .await;
}

impl QuicListener {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.endpoint.register(cx.waker());
        self.endpoint.socket.poll_unblock(cx);
        let mut is_pending = false;
        for _ in 0..RECEIVES_MAX {
            let relayed = self.relayed.poll_recv(cx);
            is_pending = relayed.is_pending();
            if let Poll::Ready(Some(datagram)) = relayed {
                self.receive(datagram);
            }
            match self.poll_receive(cx) {
                Poll::Ready(()) => is_pending = false,
                Poll::Pending if is_pending => break,
                Poll::Pending => {}
            }
        }
        // One handshake in a turn, so that a flood of them does not delay the connections that are open.
        while let Some(incoming) = self.waiting.pop_front() {
            if self.admit(incoming) {
                break;
            }
        }
        if self.endpoint.is_stopping() && !self.endpoint.has_connections() {
            self.waiting.drain(..).for_each(|incoming| self.endpoint.refuse(incoming));
            return Poll::Ready(());
        }
        if !is_pending || !self.waiting.is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Receives from the socket, unless it pauses after errors.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.backoff.poll_over(cx));
        match ready!(self.endpoint.socket.poll_receive(cx, &mut self.buffer)) {
            Ok(meta) => {
                self.backoff.reset();
                self.receive_all(meta.addr, meta.dst_ip, meta.ecn, meta.len, meta.stride);
            }
            Err(error) if self.backoff.add_error() => {
                tracing::warn!(listener = %self.addr, %error, "cannot receive packets of HTTP/3; trying again");
            }
            Err(_) => {}
        }
        Poll::Ready(())
    }

    /// Handles the datagrams in the buffer, which are of one client.
    fn receive_all(
        &mut self,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Option<quinn_udp::EcnCodepoint>,
        length: usize,
        stride: usize,
    ) {
        let ecn = ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        let length = length.min(RECEIVE_SIZE);
        for start in (0..length).step_by(stride.max(1)) {
            let bytes = BytesMut::from(&self.buffer[start..length.min(start + stride)]);
            self.receive(Datagram { remote, local_ip, ecn, bytes });
        }
    }

    fn receive(&mut self, datagram: Datagram) {
        let Some(incoming) = self.endpoint.receive(datagram) else { return };
        match self.waiting.len() < WAITING_MAX {
            true => self.waiting.push_back(incoming),
            false => self.endpoint.ignore(incoming),
        }
    }

    /// Returns the settings of the next connection, which are those of the active config. `None`: there is none.
    pub(super) fn current_config(&mut self) -> Option<Arc<ServerConfig>> {
        let settings = self.worker.listener_settings(&self.addr)?;
        settings.http3.as_ref()?;
        let bounds = self.worker.state.view().connection_settings.clone();
        let (of_settings, of_bounds) = &self.made_of;
        if !Arc::ptr_eq(&settings, of_settings) || !Rc::ptr_eq(&bounds, of_bounds) {
            let (name, forwarding) = (self.state.shared.name.clone(), self.forwarding.clone());
            let port = Some(self.endpoint.socket.local_addr().port());
            self.state = Rc::new(ListenerState::new(name, forwarding, settings.clone(), port, &self.worker));
            self.made_of = (settings, bounds);
            self.make_config();
        }
        self.config.clone()
    }

    fn make_config(&mut self) {
        let (settings, bounds) = &self.made_of;
        let tls = settings.tls.as_ref();
        self.config = tls.and_then(|tls| settings::server_config(tls, bounds, self.endpoint.group.token_key.clone()));
        self.endpoint.set_server_config(self.config.clone());
    }
}
