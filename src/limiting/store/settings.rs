//! The compiled `[store]` section: where limit state is kept.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::RedisConnectionInfo;

pub use crate::limiting::gateways::GATEWAYS_MAX;
use crate::limiting::limit::OnError;
use crate::limiting::store::address::Address;
use crate::limiting::store::redis_tls::RedisTls;

/// Settings of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSettings {
    pub kind: StoreKind,
    /// Login that is not in the URL.
    pub login: StoreLogin,
    pub prefix: String,
    /// Longest time that a request waits for the store.
    pub deadline: Duration,
    pub on_error: OnError,
    /// Maximum number of keys in memory.
    pub max_keys: usize,
    /// Minimum number of gateways that share the store; budgets are divided by it while the store is unavailable.
    pub gateways: i64,
    /// File with the state that a gateway needs if it starts while the store is unavailable.
    pub state: Option<PathBuf>,
    /// TLS for connections to Redis.
    pub tls: RedisTls,
}

impl StoreSettings {
    /// Returns whether other gateways may share the state.
    pub fn is_shared(&self) -> bool {
        self.kind != StoreKind::Memory
    }

    /// Returns whether a handle opened with `self` also serves `other`, after its TLS settings are updated.
    pub fn is_same_but_tls(&self, other: &StoreSettings) -> bool {
        let StoreSettings { max_keys, gateways, state, tls, .. } = other.clone();
        StoreSettings { max_keys, gateways, state, tls, ..self.clone() } == *other
    }

    /// Returns a name of the shared state: servers, database and prefix, without logins. Returns `None` for the
    /// in-memory store.
    pub fn location(&self) -> Option<String> {
        let StoreKind::Redis(url) = &self.kind else { return None };
        Some(format!("{} {}", Address::parse(&url.0).ok()?.location(), self.prefix))
    }
}

/// Kind of store.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreKind {
    Memory,
    Redis(RedisUrl),
}

/// User and password for the servers that store the state, beside those of the URL. A sentinel does not get them. The
/// `Debug` output is only a short hash.
#[derive(Clone, Default, PartialEq)]
pub struct StoreLogin {
    pub username: Option<String>,
    pub password: Option<String>,
}

impl StoreLogin {
    /// Returns the login of a URL with this one added.
    pub fn add_to(&self, mut login: RedisConnectionInfo) -> RedisConnectionInfo {
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        login
    }
}

impl fmt::Debug for StoreLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sha = sha1_smol::Sha1::new();
        for text in [&self.username, &self.password] {
            sha.update(text.as_deref().unwrap_or_default().as_bytes());
            sha.update(&[0]);
        }
        write!(f, "StoreLogin({})", &sha.digest().to_string()[..8])
    }
}

/// A URL for [`Address`]. It may contain a password, so its `Debug` output is only a short hash.
#[derive(Clone, PartialEq)]
pub struct RedisUrl(pub String);

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = sha1_smol::Sha1::from(&self.0).digest().to_string();
        write!(f, "RedisUrl({})", &digest[..8])
    }
}
