//! Settings of QUIC: bounds of connections, and their TLS.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::hmac;
use quinn_proto::crypto::HandshakeTokenKey;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};

use crate::proxy::connection::settings::ConnectionSettings;
use crate::proxy::server::quic::cid::{CidKey, WorkerCids};
use crate::tls::ServerTls;

/// Bytes of one request body, and of all bodies of a connection, that a client may send before the upstream servers
/// have accepted them; as for HTTP/2.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of responses that are sent and not acknowledged, or wait to be sent, for all streams of a connection.
pub const SEND_WINDOW: u64 = 1024 * 1024;
/// The same on a path that takes little.
const SEND_WINDOW_MIN: u64 = 128 * 1024;
/// Streams in one direction that a client may have open at once. It needs three (RFC 9114, section 6.2).
const UNI_STREAMS: u32 = 8;
/// Bytes of handshake messages that arrive out of order.
const CRYPTO_BUFFER: usize = 16 * 1024;
/// Bytes of datagrams that wait for one new connection to be accepted, and for all of a worker.
const INCOMING: u64 = 16 * 1024;
const INCOMING_TOTAL: u64 = 4 * 1024 * 1024;
/// New connections of a worker that wait to be accepted.
const INCOMING_MAX: usize = 1024;
/// How long a client may take to come back with the token of a Retry packet.
const RETRY_LIFETIME: Duration = Duration::from_secs(10);
/// A silent client is noticed this much later than an idle one, so that an idle connection ends with GOAWAY.
const SILENCE_MARGIN: Duration = Duration::from_secs(2);
/// The version that is spoken.
const VERSION_1: u32 = 1;

/// Makes the settings of one worker's endpoint.
pub fn endpoint_config(key: &CidKey, worker: usize) -> EndpointConfig {
    // Only the owner of an ID can reset its connection, so that each worker has a secret of its own.
    let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 64]>());
    let mut config = EndpointConfig::new(Arc::new(reset_key));
    let key = key.clone();
    config.cid_generator(move || Box::new(WorkerCids { key: key.clone(), worker }));
    config.supported_versions(vec![VERSION_1]);
    config
}

/// Makes the key of the tokens in Retry packets. All workers need the same: a client may come back to another one.
pub fn token_key() -> Arc<dyn HandshakeTokenKey> {
    let secret = rand::random::<[u8; 32]>();
    Arc::new(Salt::new(HKDF_SHA256, &[]).extract(&secret))
}

/// Returns how long a client may be silent.
fn silence(settings: &ConnectionSettings) -> Duration {
    settings.keepalive_timeout + SILENCE_MARGIN
}

/// Returns how often to send something while a request is under way, so that neither side takes the other for gone.
pub fn ping_interval(settings: &ConnectionSettings) -> Duration {
    silence(settings) / 3
}

/// Returns how many bytes of responses may be unacknowledged or wait to be sent with this congestion window: two
/// windows, of which one waits. More bytes would delay responses that are more urgent, and use memory.
pub fn send_window(congestion_window: u64) -> u64 {
    congestion_window.saturating_mul(2).clamp(SEND_WINDOW_MIN, SEND_WINDOW)
}

/// Makes the settings of new connections. `None`: the TLS of the listener cannot be used for QUIC.
pub fn server_config(
    tls: &ServerTls,
    settings: &ConnectionSettings,
    token_key: Arc<dyn HandshakeTokenKey>,
) -> Option<Arc<ServerConfig>> {
    let crypto = QuicServerConfig::try_from(tls.quic_config()).ok()?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(settings.max_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(UNI_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(SEND_WINDOW)
        .crypto_buffer_size(CRYPTO_BUFFER)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(IdleTimeout::try_from(silence(settings)).ok())
        .keep_alive_interval(None);
    let mut config = ServerConfig::new(Arc::new(crypto), token_key);
    config
        .transport_config(Arc::new(transport))
        .retry_token_lifetime(RETRY_LIFETIME)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING)
        .incoming_buffer_size_total(INCOMING_TOTAL);
    Some(Arc::new(config))
}
