//! The handshake of a QUIC connection as the gateway sees it: who may connect, who has connected, and the streams that
//! HTTP/3 begins with.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use quinn_proto::crypto::rustls::HandshakeData;
use quinn_proto::{ConnectionError, Dir};
use rustls::pki_types::CertificateDer;

use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::registry::ConnectionTicket;
use crate::proxy::context::worker_context::{OpenGauge, WorkerContext};
use crate::proxy::context::{ClientConnection, ConnectionEnds, ListenerContext};
use crate::proxy::server::http3::error::{EXCESSIVE_LOAD, Fatal};
use crate::proxy::server::http3::frame;
use crate::proxy::server::http3::priority::CONTROL_PRIORITY;
use crate::proxy::server::http3::shared::Http3Connection;
use crate::proxy::server::http3::varint;
use crate::proxy::server::quic::endpoint::HandshakeSlot;
use crate::telemetry::metrics::{HandshakeCounters, HandshakeResult, Protocol};
use crate::tls::{ServerTls, TlsPeer};

/// Settings that the gateway announces (RFC 9114, section 7.2.4.1; RFC 9204, section 5).
const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
const QPACK_BLOCKED_STREAMS: u64 = 0x07;
/// The gateway accepts extended CONNECT (RFC 9220).
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
const CONTROL_STREAM: u64 = 0x00;

/// Alerts of TLS, as QUIC transmits them: 0x100 and the number.
const CRYPTO_ERRORS: std::ops::Range<u64> = 0x100..0x200;
const NO_APPLICATION_PROTOCOL: u64 = 0x178;
const CERTIFICATE_REQUIRED: u64 = 0x174;
const BAD_CERTIFICATES: std::ops::RangeInclusive<u64> = 0x12a..=0x131;

/// A handshake under way.
pub struct Handshake {
    pub ticket: ConnectionTicket,
    /// The address that began the handshake. Only its owner can complete it, and it stays that of the client for the life
    /// of the connection, wherever packets come from later.
    pub peer: SocketAddr,
    pub local_addr: SocketAddr,
    pub listener: Rc<ListenerContext>,
    pub counters: HandshakeCounters,
    pub slot: HandshakeSlot,
}

impl Handshake {
    /// Reports a handshake that has failed.
    pub fn fail(self, reason: &ConnectionError, worker: &WorkerContext) {
        let result = failure_result(reason);
        let error = io::Error::other(reason.to_string());
        self.report(result, Some(&error), worker);
    }

    /// Reports a handshake that took too long.
    pub fn time_out(self, worker: &WorkerContext) {
        self.report(HandshakeResult::Timeout, None, worker);
    }

    fn report(&self, result: HandshakeResult, error: Option<&io::Error>, worker: &WorkerContext) {
        self.counters.count_handshake(result);
        let failure_log = &worker.state.process.failure_log;
        failure_log.log_handshake_failure(result, &self.listener.name, self.peer.ip(), error);
    }
}

/// Begins HTTP/3 on a connection whose handshake has succeeded. From now on the address of the client is known to be its
/// own, so that it counts.
pub fn complete(shared: &Http3Connection, handshake: Handshake, worker: &WorkerContext) -> Result<OpenGauge, Fatal> {
    let Some(tls) = &handshake.listener.settings.tls else { return Err(Fatal::uncounted(EXCESSIVE_LOAD)) };
    let peer = read_peer(shared, tls);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if peer.has_expired(i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
        handshake.report(HandshakeResult::BadClientCertificate, None, worker);
        return Err(Fatal::uncounted(EXCESSIVE_LOAD));
    }
    handshake.counters.count_handshake(HandshakeResult::Full);
    let Handshake { mut ticket, peer: address, local_addr, listener, slot, .. } = handshake;
    drop(slot);
    if !worker.count_for_client(&mut ticket, address.ip(), &listener.name) {
        return Err(Fatal::uncounted(EXCESSIVE_LOAD));
    }
    let open = worker.count_open(&listener.name, Protocol::Http3);
    let ends = ConnectionEnds { peer: address, local_addr, tls: Some(Box::new(peer)) };
    let client = Rc::new(ClientConnection::new(worker.state.clone(), ticket, listener, ends));
    let (state, settings) = (client.connection(), &client.settings);
    state.enter_phase(Phase::Head, settings.header_timeout);
    state.set_multiplexed(settings.keepalive_timeout);
    state.enter_phase(Phase::Idle, settings.keepalive_timeout);
    let _ = shared.client.set(client);
    let control = shared.quic.borrow_mut().streams().open(Dir::Uni);
    shared.control.set(control);
    if let Some(control) = control {
        shared.set_send_priority(control, CONTROL_PRIORITY);
    }
    shared.write_control(&control_start(shared.max_header_bytes()));
    Ok(open)
}

/// Returns the first bytes of the control stream.
fn control_start(max_header_bytes: usize) -> Vec<u8> {
    let mut settings = Vec::new();
    for (id, value) in [
        (MAX_FIELD_SECTION_SIZE, max_header_bytes as u64),
        (QPACK_MAX_TABLE_CAPACITY, 0),
        (QPACK_BLOCKED_STREAMS, 0),
        (ENABLE_CONNECT_PROTOCOL, 1),
    ] {
        varint::write(id, &mut settings);
        varint::write(value, &mut settings);
    }
    let mut start = Vec::new();
    varint::write(CONTROL_STREAM, &mut start);
    frame::write_head(frame::SETTINGS, settings.len(), &mut start);
    start.extend_from_slice(&settings);
    start
}

/// Reads what the handshake has shown of the client.
fn read_peer(shared: &Http3Connection, tls: &ServerTls) -> TlsPeer {
    let quic = shared.quic.borrow();
    let session = quic.crypto_session();
    let data = session.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    let chain = session.peer_identity().and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    let certificate = chain.as_ref().and_then(|chain| chain.first());
    TlsPeer::over_quic(
        data.and_then(|data| data.server_name),
        certificate.map(|der| &der[..]),
        tls.certificates.current(),
    )
}

/// Returns how a failed handshake is counted.
fn failure_result(reason: &ConnectionError) -> HandshakeResult {
    match reason {
        ConnectionError::TransportError(error) => match u64::from(error.code) {
            NO_APPLICATION_PROTOCOL => HandshakeResult::Incompatible,
            CERTIFICATE_REQUIRED => HandshakeResult::NoClientCertificate,
            code if BAD_CERTIFICATES.contains(&code) => HandshakeResult::BadClientCertificate,
            _ => HandshakeResult::Invalid,
        },
        ConnectionError::ConnectionClosed(close) if CRYPTO_ERRORS.contains(&u64::from(close.error_code)) => {
            HandshakeResult::Alert
        }
        ConnectionError::TimedOut => HandshakeResult::Timeout,
        _ => HandshakeResult::Aborted,
    }
}
