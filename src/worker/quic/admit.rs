//! Decides which connections are accepted. Anybody can send a first packet from any address, so an address counts for
//! nothing until its owner has answered: with the token of a Retry packet, or by completing the handshake.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;

use quinn_proto::Incoming;

use crate::ends::End;
use crate::proxy::connection::connection_count::ConnectionBounds;
use crate::proxy::connection::registry::ConnectionTicket;
use crate::proxy::server::http3::connection::serve_connection;
use crate::proxy::server::http3::handshake::Handshake;
use crate::proxy::server::quic::endpoint::HandshakeSlot;
use crate::worker::listener::to_canonical;
use crate::worker::quic::receive::{QuicListener, WAITING_MAX};

/// Clients must prove their address first while more than `max_connections` divided by this number are in the
/// handshake.
const PROVEN_PART: usize = 8;
/// No more are accepted while `max_connections` divided by this number are in the handshake.
const FULL_PART: usize = 2;
/// The address for which connections count until theirs is proven.
const UNPROVEN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl QuicListener {
    /// Accepts a connection, or has its client prove its address, or refuses it. Returns whether that has computed a
    /// handshake.
    pub(super) fn admit(&mut self, incoming: Incoming) -> bool {
        let drains = self.worker.is_draining() || self.endpoint.is_stopping();
        let config = self.current_config().filter(|_| !drains);
        let Some(config) = config else {
            self.endpoint.refuse(incoming);
            return false;
        };
        let view = self.worker.state.view();
        let server = &view.snapshot.config.server;
        let handshakes = self.endpoint.group.handshakes.load(Ordering::Relaxed);
        if handshakes >= (server.max_connections / FULL_PART).max(1) {
            self.worker.count_end(Some(End::MaxConnections));
            self.endpoint.ignore(incoming);
            return false;
        }
        let peer = self.worker.client_address(to_canonical(incoming.remote_address()));
        let is_proven = incoming.remote_address_validated();
        let connections = &self.worker.connections;
        if !is_proven {
            if connections.count_of(peer.ip()) >= server.max_connections_per_ip {
                self.worker.count_end(Some(End::MaxConnectionsPerIp));
                self.endpoint.refuse(incoming);
                return false;
            }
            // An idle connection of somebody else closes only for a client that is there.
            let is_full = connections.count_of_all_workers() >= server.max_connections;
            if is_full || handshakes > server.max_connections / PROVEN_PART || self.waiting.len() > WAITING_MAX / 2 {
                self.endpoint.request_proof(incoming);
                return false;
            }
        }
        let Some(ticket) = self.register(peer.ip(), is_proven, server.max_connections) else {
            self.endpoint.refuse(incoming);
            return false;
        };
        let local_ip = incoming.local_ip().unwrap_or(self.endpoint.socket.local_addr().ip());
        let local_addr = to_canonical(SocketAddr::new(local_ip, self.endpoint.socket.local_addr().port()));
        let handshake = Handshake {
            ticket,
            peer,
            local_addr,
            listener: self.state.shared.clone(),
            counters: self.worker.state.process.metrics.tls.handshake_counters(self.state.name()),
            slot: HandshakeSlot::take(&self.endpoint.group.handshakes),
        };
        match self.endpoint.accept(incoming, config) {
            Ok(accepted) => {
                let served = serve_connection(accepted, handshake, self.endpoint.clone(), self.worker.clone());
                drop(tokio::task::spawn_local(served));
            }
            Err(error) => handshake.fail(&error, &self.worker),
        }
        true
    }

    fn register(&self, peer: IpAddr, is_proven: bool, max: usize) -> Option<ConnectionTicket> {
        match is_proven {
            true => self.worker.register_connection(peer, self.state.name()),
            false => {
                let bounds = ConnectionBounds { max, max_per_ip: usize::MAX, is_proxy: false };
                self.worker.connections.register(UNPROVEN, bounds).ok().map(|(ticket, _)| ticket)
            }
        }
    }
}
