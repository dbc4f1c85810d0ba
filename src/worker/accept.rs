//! Accepts connections, in one loop per listener and worker. All workers share the socket, so that any free worker
//! accepts the next connection, and no connection is reset when one worker closes its handle.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::oneshot;

use crate::config::ListenerSettings;
use crate::descriptors;
use crate::proxy::connection::proxy_protocol::ProxyHeaderResult;
use crate::proxy::connection::registry::ConnectionTicket;
use crate::proxy::connection::stream::Stream;
use crate::proxy::connection::tls::{CompletedHandshake, FailedHandshake};
use crate::proxy::connection::worker_context::WorkerContext;
use crate::proxy::connection::{proxy_protocol, serve, tls};
use crate::proxy::context::ClientConnection;
use crate::proxy::inbound::hop::Hop;
use crate::proxy::inbound::untrusted_headers::UntrustedForwarding;
use crate::proxy::inbound::validate::LastHost;
use crate::telemetry::metrics::{Cutoff, HandshakeCounters, HandshakeResult, Protocol};
use crate::tls::{Alpn, TlsPeer};
use crate::worker::listener::{Accepted, Acceptor, Listener, to_canonical};

/// Pause after an accept has failed because file descriptors or memory are exhausted.
const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// Interval of checks whether there is a file descriptor for another client.
const DESCRIPTOR_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Local ports of connections on Unix sockets, which have none: the default ports of the schemes.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A listener with what its connections share.
struct ListenerState {
    /// The address, as logs and metrics name it.
    name: Rc<str>,
    untrusted: Rc<UntrustedForwarding>,
    /// The settings in force, or the last ones until the listener is closed.
    settings: Arc<ListenerSettings>,
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
    fn new(
        name: Rc<str>,
        untrusted: Rc<UntrustedForwarding>,
        settings: Arc<ListenerSettings>,
        worker: &WorkerContext,
    ) -> ListenerState {
        let handshakes = settings.tls.is_some().then(|| worker.local.common.metrics.tls.handshake_counters(&name));
        let has_handshake = settings.tls.is_some() || settings.proxy_protocol;
        for protocol in Protocol::ALL.iter().filter(|protocol| **protocol != Protocol::Handshake || has_handshake) {
            // The series exists before the first connection.
            drop(worker.connections_gauge(&name, *protocol));
        }
        ListenerState { name, untrusted, settings, handshakes }
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
    let acceptor = match listener.into_acceptor() {
        Ok(acceptor) => acceptor,
        Err(error) => return tracing::error!(listener = &*name, %error, "a worker cannot accept connections"),
    };
    let common = &worker.local.common;
    let untrusted = Rc::new(UntrustedForwarding::new(&name, &common.failure_log, &common.metrics));
    let mut door = Rc::new(ListenerState::new(name, untrusted, settings, &worker));
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
                apply_settings(&mut door, &acceptor, worker.listener_settings(&addr), &worker);
                spawn_connection(&worker, accepted, &door);
            }
            Err(error) => pause_after_error(&worker, &door.name, &error).await,
        }
    }
    let is_room = || descriptors::can_accept_client(worker.connections.count_of_all_workers());
    acceptor.accept_rest(is_room, |accepted| spawn_connection(&worker, accepted, &door));
}

/// Applies changed settings, for the next connection and later ones.
fn apply_settings(
    door: &mut Rc<ListenerState>,
    acceptor: &Acceptor,
    now: Option<Arc<ListenerSettings>>,
    worker: &WorkerContext,
) {
    if let Some(settings) = now.filter(|now| !Arc::ptr_eq(now, &door.settings)) {
        if settings.max_unsent != door.settings.max_unsent {
            acceptor.set_max_unsent(settings.max_unsent);
        }
        *door = Rc::new(ListenerState::new(door.name.clone(), door.untrusted.clone(), settings, worker));
    }
}

/// Spawns the task of a connection, or closes the connection if a cap is reached.
fn spawn_connection(
    worker: &Rc<WorkerContext>,
    Accepted { stream, peer, local_addr: asked }: Accepted,
    door: &Rc<ListenerState>,
) {
    let Some(ticket) = worker.register_connection(peer.ip(), &door.name) else { return };
    let entered = RegisteredConnection { ticket, peer, local_addr: asked };
    let (worker, door) = (worker.clone(), door.clone());
    if door.settings.proxy_protocol {
        tokio::task::spawn_local(async move { serve_behind_proxy(stream, entered, &worker, &door).await });
        return;
    }
    match &door.settings.tls {
        None => {
            drop(tokio::task::spawn_local(
                async move { serve_http(stream, entered, &worker, &door, (None, None)).await },
            ))
        }
        Some(_) => drop(tokio::task::spawn_local(async move { serve_tls(stream, entered, &worker, &door).await })),
    }
}

/// Serves a connection that begins with a PROXY header.
async fn serve_behind_proxy(
    mut stream: Stream,
    mut entered: RegisteredConnection,
    worker: &Rc<WorkerContext>,
    door: &ListenerState,
) {
    let open = worker.count_open(&door.name, Protocol::Handshake);
    let introduction = proxy_protocol::read_header(&mut stream, entered.ticket.connection(), worker).await;
    drop(open);
    match introduction {
        ProxyHeaderResult::Client(named) if worker.is_trusted_proxy(entered.peer.ip()) => {
            let client = to_canonical(named.source);
            if !worker.count_for_client(&mut entered.ticket, client.ip(), &door.name) {
                return;
            }
            (entered.peer, entered.local_addr) = (client, Some(to_canonical(named.destination)));
        }
        ProxyHeaderResult::Client(_) | ProxyHeaderResult::Itself => {}
        ProxyHeaderResult::Missing if worker.is_draining() => return,
        ProxyHeaderResult::Missing => return worker.local.common.metrics.rejected_counter(Cutoff::ProxyHeader).inc(),
    }
    match &door.settings.tls {
        None => Box::pin(serve_http(stream, entered, worker, door, (None, None))).await,
        Some(_) => Box::pin(serve_tls(stream, entered, worker, door)).await,
    }
}

/// Serves a connection over TLS.
async fn serve_tls(stream: Stream, entered: RegisteredConnection, worker: &Rc<WorkerContext>, door: &ListenerState) {
    let Some(tls) = &door.settings.tls else { return };
    let open = worker.count_open(&door.name, Protocol::Handshake);
    let handshake = Box::pin(tls::perform_handshake(stream, tls, entered.ticket.connection(), worker));
    let result = handshake.await;
    drop(open);
    let (listener, peer) = (&*door.name, entered.peer.ip());
    match result {
        Ok(CompletedHandshake { stream, result, peer: tls }) => {
            door.count_handshake(result);
            let agreed = match Alpn::from_negotiated(stream.get_ref().1.alpn_protocol()) {
                Alpn::Http2 => Protocol::Http2,
                Alpn::Http11 => Protocol::Http11,
            };
            serve_http(Stream::Tls(Box::new(stream)), entered, worker, door, (Some(agreed), Some(tls))).await;
        }
        Err(FailedHandshake { result, error }) => {
            door.count_handshake(result);
            worker.local.common.failure_log.log_handshake_failure(result, listener, peer, error.as_ref());
        }
    }
}

/// Serves HTTP on a connection. A handshake may have negotiated the protocol (`agreed`) and identified the client
/// (`tls`).
async fn serve_http(
    stream: Stream,
    entered: RegisteredConnection,
    worker: &Rc<WorkerContext>,
    door: &ListenerState,
    (agreed, tls): (Option<Protocol>, Option<Box<TlsPeer>>),
) {
    let RegisteredConnection { ticket, peer, local_addr: asked } = entered;
    let implied = if tls.is_some() { HTTPS_PORT } else { HTTP_PORT };
    let asked = asked.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), implied));
    let client = Rc::new(ClientConnection {
        local: worker.local.clone(),
        ticket,
        listener: door.name.clone(),
        untrusted: door.untrusted.clone(),
        untrusted_reported: Cell::default(),
        peer: peer.ip(),
        port: peer.port(),
        local_addr: asked,
        hop: Hop::new(peer.ip(), tls.is_some(), asked.port()),
        tls,
        service: door.settings.service,
        redirect_port: door.settings.redirect_port,
        // A copy of its own: a value that workers share would make them share a reference count.
        hsts: door.settings.hsts.as_ref().and_then(|hsts| HeaderValue::from_bytes(hsts.as_bytes()).ok()),
        last_host: LastHost::default(),
        inspector: worker.new_inspector(),
        interim: RefCell::default(),
        tunnel: Cell::default(),
        tls_version: stream.tls_version(),
    });
    serve::serve_connection(stream, agreed, client, worker).await;
}

/// Waits until there is a file descriptor for another client, and closes idle connections meanwhile. New clients wait
/// in the kernel's queue.
async fn wait_for_descriptor(worker: &WorkerContext) {
    while !descriptors::can_accept_client(worker.connections.count_of_all_workers()) {
        worker.local.common.failure_log.log_descriptor_shortage("new clients wait until others leave");
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
        worker.local.common.failure_log.log_descriptor_shortage("new clients wait");
        worker.connections.close_one_resting();
    } else {
        tracing::warn!(listener = name, %error, "cannot accept a connection; trying again shortly");
    }
    tokio::time::sleep(ERROR_PAUSE).await;
}
