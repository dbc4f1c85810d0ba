//! TLS towards clients: [`pem`] reads certificates and keys, [`certs`] chooses one by the name that a
//! client asked for, [`challenge`] proves names to an ACME server, [`server`] is what a listener needs for its handshakes, [`alpn`] what is spoken
//! then, [`peer`] what the handshake has told of the client. The config compiles it, the workers use it.

mod alpn;
mod certs;
mod challenge;
mod peer;
pub mod pem;
mod server;

pub use alpn::Alpn;
pub use certs::{CertificateTerm, NamedKey};
pub use challenge::{ChallengeBoard, ChallengeKind, OpenChallenges, asks_for_proof, proof_of_pem};
pub use peer::{ClientCertificate, TlsPeer};
pub use server::{ClientAuth, Issued, MinVersion, PemPair, ServerFiles, ServerTls, ServerTlsMistake};
