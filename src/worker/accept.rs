//! Accepts connections, in one loop per listener and worker. All workers share the socket, so that any free worker
//! accepts the next connection, and no connection is reset when one worker closes its handle.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::oneshot;

use crate::config::ListenerSettings;
use crate::descriptors;
use crate::ends::End;
use crate::net::ListenAddr;
use crate::proxy::connection::registry::ConnectionTicket;
use crate::proxy::connection::stream::Stream;
use crate::proxy::context::worker_context::WorkerContext;
use crate::proxy::context::{ClientConnection, ConnectionEnds, ListenerContext};
use crate::proxy::head::untrusted_headers::UntrustedForwarding;
use crate::proxy::server::proxy_protocol;
use crate::proxy::server::proxy_protocol::ProxyHeaderResult;
use crate::proxy::server::serve;
use crate::proxy::server::tls;
use crate::proxy::server::tls::{CompletedHandshake, FailedHandshake};
use crate::telemetry::metrics::{HandshakeCounters, HandshakeResult, Protocol};
use crate::tls::{Alpn, ServerTls, TlsPeer};
use crate::worker::listener::{Accepted, Acceptor, Listener, to_canonical};

/// Pause after an accept has failed because file descriptors or memory are exhausted.
const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// Interval of checks whether there is a file descriptor for another client.
const DESCRIPTOR_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Local ports of connections on Unix sockets, which have none: the default ports of the schemes.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A listener with what its connections share.
pub(super) struct ListenerState {
    pub(super) shared: Rc<ListenerContext>,
    handshakes: Option<HandshakeCounters>,
}

/// A connection that has been registered.
struct RegisteredConnection {
    ticket: ConnectionTicket,
    peer: SocketAddr,
    /// The address that the client has connected to. `None` on a Unix socket.
    local_addr: Option<SocketAddr>,
}

impl ListenerState {
    /// `port`: the port that is bound, which Unix sockets have not.
    pub(super) fn new(
        name: Rc<str>,
        untrusted: Rc<UntrustedForwarding>,
        settings: Arc<ListenerSettings>,
        port: Option<u16>,
        worker: &WorkerContext,
    ) -> ListenerState {
        let handshakes = settings.tls.is_some().then(|| worker.state.process.metrics.tls.handshake_counters(&name));
        let has_handshake = settings.tls.is_some() || settings.proxy_protocol;
        let is_possible = |protocol: &&Protocol| match protocol {
            Protocol::Handshake => has_handshake,
            Protocol::Http3 => settings.http3.is_some(),
            Protocol::Http11 | Protocol::Http2 => true,
        };
        for protocol in Protocol::ALL.iter().filter(is_possible) {
            // The series exists before the first connection.
            drop(worker.connections_gauge(&name, *protocol));
        }
        let hsts = settings.hsts.as_ref().and_then(|hsts| HeaderValue::from_bytes(hsts.as_bytes()).ok());
        let alt_svc = settings.http3.as_ref().and_then(|http3| {
            let port = http3.advertise.or(port)?;
            HeaderValue::try_from(format!("h3=\":{port}\"; ma={}", http3.max_age.as_secs())).ok()
        });
        ListenerState { shared: Rc::new(ListenerContext { name, settings, untrusted, hsts, alt_svc }), handshakes }
    }

    pub(super) fn name(&self) -> &str {
        &self.shared.name
    }

    pub(super) fn settings(&self) -> &ListenerSettings {
        &self.shared.settings
    }

    fn count_handshake(&self, result: HandshakeResult) {
        if let Some(handshakes) = &self.handshakes {
            handshakes.count_handshake(result);
        }
    }
}

/// Accepts connections until it is `stopped`, and then those that wait in the kernel: for their clients they are open.
pub async fn run_accept_loop(worker: Rc<WorkerContext>, listener: Listener, mut stopped: oneshot::Receiver<()>) {
    let addr = listener.addr().clone();
    let name: Rc<str> = addr.to_string().into();
    let Some(settings) = worker.listener_settings(&addr) else { return };
    let port = if let ListenAddr::Tcp(bound) = listener.bound_addr() { Some(bound.port()) } else { None };
    let acceptor = match listener.into_acceptor() {
        Ok(acceptor) => acceptor,
        Err(error) => return tracing::error!(listener = &*name, %error, "a worker cannot accept connections"),
    };
    let process = &worker.state.process;
    let forwarding = Rc::new(UntrustedForwarding::new(&name, &process.failure_log, &process.metrics));
    let mut listener_state = Rc::new(ListenerState::new(name, forwarding, settings, port, &worker));
    loop {
        let next = tokio::select! {
            biased;
            _ = &mut stopped => break,
            next = async {
                wait_for_descriptor(&worker).await;
                acceptor.accept_next().await
            } => next,
        };
        match next {
            Ok(accepted) => {
                apply_settings(&mut listener_state, &acceptor, (worker.listener_settings(&addr), port), &worker);
                spawn_connection(&worker, accepted, &listener_state);
            }
            Err(error) => pause_after_error(&worker, listener_state.name(), &error).await,
        }
    }
    let is_room = || descriptors::can_accept_client(worker.connections.count_of_all_workers());
    acceptor.accept_rest(is_room, |accepted| spawn_connection(&worker, accepted, &listener_state));
}

/// Applies changed settings, for the next connection and later ones.
fn apply_settings(
    listener_state: &mut Rc<ListenerState>,
    acceptor: &Acceptor,
    (now, port): (Option<Arc<ListenerSettings>>, Option<u16>),
    worker: &WorkerContext,
) {
    let ListenerContext { name, settings: before, untrusted, .. } = &*listener_state.shared;
    if let Some(settings) = now.filter(|now| !Arc::ptr_eq(now, before)) {
        if settings.max_unsent != before.max_unsent {
            acceptor.set_max_unsent(settings.max_unsent);
        }
        *listener_state = Rc::new(ListenerState::new(name.clone(), untrusted.clone(), settings, port, worker));
    }
}

/// Spawns the task of a connection, or closes the connection if a cap is reached.
fn spawn_connection(
    worker: &Rc<WorkerContext>,
    Accepted { stream, peer, local_addr }: Accepted,
    listener_state: &Rc<ListenerState>,
) {
    let peer = worker.client_address(peer);
    let Some(ticket) = worker.register_connection(peer.ip(), listener_state.name()) else { return };
    let connection = RegisteredConnection { ticket, peer, local_addr };
    let worker = worker.clone();
    if !listener_state.settings().proxy_protocol && listener_state.settings().tls.is_none() {
        let client = connection.into_client(None, &worker, listener_state);
        drop(tokio::task::spawn_local(serve::serve_connection(stream, None, client, worker)));
        return;
    }
    // Boxed, so that the task does not keep their memory when they are over.
    let handshakes = Box::pin(perform_handshakes(stream, connection, worker.clone(), listener_state.clone()));
    drop(tokio::task::spawn_local(async move {
        if let Some((stream, agreed, client)) = handshakes.await {
            serve::serve_connection(stream, agreed, client, worker).await;
        }
    }));
}

/// A connection whose handshakes have succeeded: its stream, the protocol that TLS has negotiated, and its client.
type OpenConnection = (Stream, Option<Protocol>, Rc<ClientConnection>);

/// Reads the PROXY header and performs the TLS handshake, as the listener is configured. `None`: the connection ends.
async fn perform_handshakes(
    mut stream: Stream,
    mut connection: RegisteredConnection,
    worker: Rc<WorkerContext>,
    listener_state: Rc<ListenerState>,
) -> Option<OpenConnection> {
    if listener_state.settings().proxy_protocol {
        read_proxy_header(&mut stream, &mut connection, &worker, &listener_state).await?;
    }
    match &listener_state.settings().tls {
        None => {
            let client = connection.into_client(None, &worker, &listener_state);
            Some((stream, None, client))
        }
        Some(tls) => perform_tls_handshake(stream, tls, connection, &worker, &listener_state).await,
    }
}

/// Reads the PROXY header that a connection begins with, and applies it if the peer is trusted. `None`: the connection
/// ends.
async fn read_proxy_header(
    stream: &mut Stream,
    connection: &mut RegisteredConnection,
    worker: &WorkerContext,
    listener_state: &ListenerState,
) -> Option<()> {
    let open = worker.count_open(listener_state.name(), Protocol::Handshake);
    let introduction = proxy_protocol::read_header(stream, connection.ticket.connection(), worker).await;
    drop(open);
    match introduction {
        ProxyHeaderResult::Client(header) if worker.is_trusted_proxy(connection.peer.ip()) => {
            let client = worker.client_address(header.source);
            if !worker.count_for_client(&mut connection.ticket, client.ip(), listener_state.name()) {
                return None;
            }
            (connection.peer, connection.local_addr) = (client, Some(to_canonical(header.destination)));
        }
        ProxyHeaderResult::Client(_) | ProxyHeaderResult::Itself => {}
        ProxyHeaderResult::Missing => {
            if !worker.is_draining() {
                worker.state.process.metrics.rejected_counter(End::ProxyHeader).inc();
            }
            return None;
        }
    }
    Some(())
}

/// Performs the TLS handshake, and counts and logs its result. `None`: the connection ends.
async fn perform_tls_handshake(
    stream: Stream,
    tls: &ServerTls,
    connection: RegisteredConnection,
    worker: &WorkerContext,
    listener_state: &ListenerState,
) -> Option<OpenConnection> {
    let open = worker.count_open(listener_state.name(), Protocol::Handshake);
    let result = tls::perform_handshake(stream, tls, connection.ticket.connection(), worker).await;
    drop(open);
    match result {
        Ok(CompletedHandshake { stream, result, peer }) => {
            listener_state.count_handshake(result);
            let protocol = match Alpn::from_negotiated(stream.get_ref().1.alpn_protocol()) {
                Alpn::Http2 => Protocol::Http2,
                Alpn::Http11 => Protocol::Http11,
            };
            let client = connection.into_client(Some(peer), worker, listener_state);
            Some((Stream::Tls(Box::new(stream)), Some(protocol), client))
        }
        Err(FailedHandshake { result, error }) => {
            listener_state.count_handshake(result);
            let (name, peer) = (listener_state.name(), connection.peer.ip());
            worker.state.process.failure_log.log_handshake_failure(result, name, peer, error.as_ref());
            None
        }
    }
}

impl RegisteredConnection {
    /// Makes the state of the connection. `tls`: what the handshake has shown of the client.
    fn into_client(
        self,
        tls: Option<Box<TlsPeer>>,
        worker: &WorkerContext,
        listener_state: &ListenerState,
    ) -> Rc<ClientConnection> {
        let port = if tls.is_some() { HTTPS_PORT } else { HTTP_PORT };
        let local_addr = self.local_addr.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let ends = ConnectionEnds { peer: self.peer, local_addr, tls };
        Rc::new(ClientConnection::new(worker.state.clone(), self.ticket, listener_state.shared.clone(), ends))
    }
}

/// Waits until there is a file descriptor for another client, and closes idle connections in the meantime. New clients
/// wait in the kernel's queue.
async fn wait_for_descriptor(worker: &WorkerContext) {
    while !descriptors::can_accept_client(worker.connections.count_of_all_workers()) {
        worker.state.process.failure_log.log_descriptor_shortage("new clients wait until others leave");
        worker.connections.close_one_resting();
        tokio::time::sleep(DESCRIPTOR_CHECK_INTERVAL).await;
    }
}

/// Logs that an accept has failed, and pauses. An error of the connection itself is the client's and ignored.
async fn pause_after_error(worker: &WorkerContext, name: &str, error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    if descriptors::is_shortage(error) {
        worker.state.process.failure_log.log_descriptor_shortage("new clients wait");
        worker.connections.close_one_resting();
    } else {
        tracing::warn!(listener = name, %error, "cannot accept a connection; trying again shortly");
    }
    tokio::time::sleep(ERROR_PAUSE).await;
}
