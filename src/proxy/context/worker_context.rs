//! The part of a worker that its connections use: the active settings, the registry of connections, the drain stage
//! and metrics. Connections do not know the worker itself.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::Semaphore;

use crate::config::{ListenerSettings, ServerSettings};
use crate::ends::End;
use crate::heap::HeapTrimmer;
use crate::net::ListenAddr;
use crate::proxy::connection::connection_count::{ConnectionBounds, ConnectionCount};
use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::registry::{ConnectionRegistry, ConnectionTicket};
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::context::{ProcessState, WorkerState};
use crate::telemetry::metrics::Protocol;

/// The part of a worker that its connections use.
pub struct WorkerContext {
    pub state: Rc<WorkerState>,
    pub connections: Rc<ConnectionRegistry>,
    /// The permit to compute a TLS handshake: one at a time.
    pub handshake_permit: Semaphore,
    pub heap_trimmer: HeapTrimmer,
    stage: Cell<DrainStage>,
    /// Gauges of open connections, by listener and protocol, so that no connection looks them up in the registry that
    /// all workers share.
    gauges: RefCell<HashMap<(String, &'static str), IntGauge>>,
}

/// How far a worker has drained. The variants are in the order of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainStage {
    /// The worker serves.
    Open,
    /// The worker still accepts connections, but every HTTP/1.1 response closes its connection.
    Leaving,
    /// The worker accepts no connections, and HTTP/2 clients get GOAWAY.
    Draining,
    /// The worker closes connections without a request.
    Closing,
}

impl WorkerContext {
    /// Makes the context of a worker. `count_all` counts the connections of all workers.
    pub fn new(process: ProcessState, count_all: Arc<ConnectionCount>) -> Rc<WorkerContext> {
        Rc::new(WorkerContext {
            state: Rc::new(WorkerState::new(process)),
            connections: ConnectionRegistry::new(count_all),
            handshake_permit: Semaphore::new(1),
            heap_trimmer: HeapTrimmer::default(),
            stage: Cell::new(DrainStage::Open),
            gauges: RefCell::default(),
        })
    }

    /// Registers a new connection, for which an idle one may close. `None` if `max_connections` or
    /// `max_connections_per_ip` is reached, which is counted and logged.
    pub fn register_connection(&self, peer: IpAddr, listener: &str) -> Option<ConnectionTicket> {
        let view = self.state.view();
        let server = &view.snapshot.config.server;
        let result = self.connections.register(peer, ConnectionBounds::of(server, peer));
        let (ticket, makes_room) = result.map_err(|end| self.report_rejected(end, listener, peer, server)).ok()?;
        if makes_room {
            let max_connections = server.max_connections;
            self.state.process.failure_log.log_rejected_client(
                End::MaxConnections,
                listener,
                peer,
                format_args!(
                    "max_connections = {max_connections} is reached: closing idle connections for new ones; raise it \
                     under [server] or lower keepalive_timeout"
                ),
            );
        }
        Some(ticket)
    }

    /// Counts and logs a connection that a cap has rejected.
    fn report_rejected(&self, end: End, listener: &str, peer: IpAddr, server: &ServerSettings) {
        let ServerSettings { max_connections, max_connections_per_ip, .. } = server;
        let failure_log = &self.state.process.failure_log;
        self.state.process.metrics.rejected_counter(end).inc();
        match end {
            End::MaxConnectionsPerIp => failure_log.log_rejected_client(
                end,
                listener,
                peer,
                format_args!(
                    "max_connections_per_ip = {max_connections_per_ip} is reached: closing further connections of this \
                     client"
                ),
            ),
            _ => failure_log.log_rejected_client(
                end,
                listener,
                peer,
                format_args!(
                    "max_connections = {max_connections} is reached, or the part of it that one client may have, and no \
                     connection is idle: closing new ones; raise it under [server], or list a proxy of many clients in \
                     trusted_proxies"
                ),
            ),
        }
    }

    /// Returns whether `peer` is one of the `trusted_proxies`, so that the client address it states counts.
    pub fn is_trusted_proxy(&self, peer: IpAddr) -> bool {
        self.state.view().snapshot.config.server.client_address.trusted.contains(peer)
    }

    /// Returns the address under which a peer counts: an IPv4 client behind a translator (NAT64) has its own.
    pub fn client_address(&self, peer: SocketAddr) -> SocketAddr {
        let ip = peer.ip();
        if ip.is_ipv4() {
            return peer;
        }
        let view = self.state.view();
        SocketAddr::new(view.snapshot.config.server.client_address.nat64.client_of(ip), peer.port())
    }

    /// Counts a connection for `client` instead of its peer. Returns false if the client has too many already.
    pub fn count_for_client(&self, ticket: &mut ConnectionTicket, client: IpAddr, listener: &str) -> bool {
        let view = self.state.view();
        let server = &view.snapshot.config.server;
        let result = ticket.recount_for(client, ConnectionBounds::of(server, client));
        result.map_err(|end| self.report_rejected(end, listener, client, server)).is_ok()
    }

    /// Counts an open connection in the metrics, until the result is dropped.
    pub fn count_open(&self, listener: &str, protocol: Protocol) -> OpenGauge {
        let gauge = self.connections_gauge(listener, protocol);
        gauge.inc();
        OpenGauge(gauge)
    }

    /// Returns the settings of the listener at `addr` in the active config. `None` if it is not in the
    /// config.
    pub fn listener_settings(&self, addr: &ListenAddr) -> Option<Arc<ListenerSettings>> {
        self.state.view().snapshot.config.listener(addr).cloned()
    }

    /// Returns the gauge of open connections of `listener`.
    pub fn connections_gauge(&self, listener: &str, protocol: Protocol) -> IntGauge {
        let new = || self.state.process.metrics.connection_gauge(listener, protocol);
        self.gauges.borrow_mut().entry((listener.to_owned(), protocol.label())).or_insert_with(new).clone()
    }

    /// Counts a connection that the gateway has ended, if there is a reason to count.
    pub fn count_end(&self, reason: Option<End>) {
        if let Some(reason) = reason {
            self.state.process.metrics.rejected_counter(reason).inc();
        }
    }

    /// Returns whether an HTTP/1.1 connection ends because it was cut or a timer has expired. Counts the reason. A
    /// request that has reacted to its own timer, with an error response, does not end the connection.
    pub fn has_ended(&self, connection: &ConnectionState) -> bool {
        if connection.is_cut() || connection.is_half_close_over() {
            return true;
        }
        let end = connection.expired_phase().map(Phase::end);
        let end = end.or_else(|| connection.expired_request_wait().map(RequestWait::end));
        let end = end.or_else(|| connection.slow_reader_end().map(Some));
        end.inspect(|reason| self.count_end(*reason)).is_some()
    }

    /// Enters `stage`, and wakes every connection to act on it.
    pub fn enter_stage(&self, stage: DrainStage) {
        self.stage.set(stage);
        self.state.is_draining.set(self.is_leaving());
        if self.is_closing() {
            self.state.discards.close();
        }
        self.connections.wake_all();
    }

    /// Returns whether HTTP/1.1 responses close their connections.
    pub fn is_leaving(&self) -> bool {
        self.stage.get() >= DrainStage::Leaving
    }

    /// Returns whether the worker accepts no connections, and its connections end with their requests.
    pub fn is_draining(&self) -> bool {
        self.stage.get() >= DrainStage::Draining
    }

    /// Returns whether connections without a request close.
    pub fn is_closing(&self) -> bool {
        self.stage.get() >= DrainStage::Closing
    }
}

/// Counts an open connection in the metrics, until it is dropped.
pub struct OpenGauge(IntGauge);

impl Drop for OpenGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}
