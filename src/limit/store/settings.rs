//! Where limit state lives, as configured.

use std::fmt;
use std::time::Duration;

use super::redis::tls::Tls;
use crate::limit::limits::OnError;

#[derive(Clone, Debug, PartialEq)]
pub struct StoreSettings {
    pub kind: StoreKind,
    pub prefix: String,
    /// Longest wait of a request for the store.
    pub deadline: Duration,
    pub on_error: OnError,
    /// Bound of the memory store, keys.
    pub max_keys: usize,
    /// For connections over TLS.
    pub tls: Tls,
}

impl StoreSettings {
    /// Whether other gateways use the same state.
    pub fn is_shared(&self) -> bool {
        self.kind != StoreKind::Memory
    }

    /// Whether a handle made for `self` serves `other` too, once it has the other's TLS.
    pub fn same_but_tls(&self, other: &StoreSettings) -> bool {
        StoreSettings { tls: other.tls.clone(), max_keys: other.max_keys, ..self.clone() } == *other
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum StoreKind {
    Memory,
    Redis(RedisUrl),
}

/// A URL that [`Address`](super::redis::address::Address) reads. May hold a password,
/// so nothing shows more of it than whether it changed.
#[derive(Clone, PartialEq)]
pub struct RedisUrl(pub String);

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = sha1_smol::Sha1::from(&self.0).digest().to_string();
        write!(f, "RedisUrl({})", &digest[..8])
    }
}
