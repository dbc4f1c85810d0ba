//! Where limit state lives, as configured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::redis::address::Address;
use super::redis::tls::Tls;
use crate::limit::limits::OnError;
pub use crate::metrics::GATEWAYS_MAX;

#[derive(Clone, Debug, PartialEq)]
pub struct StoreSettings {
    pub kind: StoreKind,
    pub prefix: String,
    /// Longest wait of a request for the store.
    pub deadline: Duration,
    pub on_error: OnError,
    /// Bound of the memory store, keys.
    pub max_keys: usize,
    /// How many gateways share the store at least, for the shares of those that decide without it.
    pub gateways: i64,
    /// File with what a gateway must know that starts while the store is unavailable.
    pub state: Option<PathBuf>,
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
        let StoreSettings { max_keys, gateways, state, tls, .. } = other.clone();
        StoreSettings { max_keys, gateways, state, tls, ..self.clone() } == *other
    }

    /// Names the shared state: servers, database and prefix, without logins. `None` for a store of this process
    /// alone.
    pub fn place(&self) -> Option<String> {
        let StoreKind::Redis(url) = &self.kind else { return None };
        Some(format!("{} {}", Address::parse(&url.0).ok()?.place(), self.prefix))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum StoreKind {
    Memory,
    Redis(RedisUrl),
}

/// A URL that [`Address`] reads. May hold a password,
/// so nothing shows more of it than whether it changed.
#[derive(Clone, PartialEq)]
pub struct RedisUrl(pub String);

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = sha1_smol::Sha1::from(&self.0).digest().to_string();
        write!(f, "RedisUrl({})", &digest[..8])
    }
}
