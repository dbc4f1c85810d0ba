//! TLS: certificates, settings of handshakes with clients, what a handshake shows of the client, and which servers the
//! gateway trusts.
//!
//! Input: PEM texts and options, which the config reads from files, and certificates that an ACME server or the local
//! CA issues. Output: a `rustls::ServerConfig` per listener, which workers use for handshakes, and a `TlsPeer` per
//! connection.
//!
//! - `pem.rs`: reads certificates and keys.
//! - `server.rs`: makes the settings of a listener's handshakes.
//! - `certs.rs`: selects a certificate by server name.
//! - `alpn.rs`: negotiates the protocol.
//! - `internal.rs`: options of development certificates, and the names that they may have.
//! - `challenge.rs`: responds to challenges of ACME servers.
//! - `provider.rs`: the cryptography of all TLS connections.
//! - `tickets.rs`: session tickets, and their secrets, which survive a hand-over.
//! - `peer.rs`: what the handshake has shown of the client.
//! - `trust.rs`: which servers are trusted where the gateway is the client.
//!
//! To add an option, add it to `ServerFiles`, apply it in `ServerTls::new`, and compile it in `config::compile`.

mod alpn;
mod certs;
mod challenge;
pub mod internal;
mod peer;
pub mod pem;
mod provider;
mod server;
mod tickets;
pub mod trust;

pub use crate::tls::alpn::Alpn;
pub use crate::tls::certs::{CertificateValidity, NamedKey};
pub use crate::tls::challenge::{ChallengeKind, ChallengeStore, OpenChallenges, certificate_from_pem, is_challenge};
pub use crate::tls::internal::InternalTls;
pub use crate::tls::peer::{ClientCertificate, TlsPeer};
pub use crate::tls::provider::crypto_provider;
pub use crate::tls::server::{
    ClientAuth, IssuedCertificates, ListedCertificate, MinVersion, PemPair, ServerFiles, ServerTls, ServerTlsMistake,
};
pub use crate::tls::tickets::TicketSecrets;
