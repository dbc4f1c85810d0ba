//! Opens connections to Redis servers and sentinels, plain or TLS, logged in. Called by `link.rs`,
//! `sentinel.rs` and `nodes.rs`, never while a request waits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bb8::ManageConnection;
use bb8_redis::RedisConnectionManager;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use tokio::net::TcpStream;

use super::address::Addr;
use super::tls::Tls;

/// Far above any deadline: the caller has its own timer.
const NO_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Clone)]
pub struct Dialer {
    pub login: RedisConnectionInfo,
    /// Shared with the handle, which changes it when the files change. `None`: plain connections.
    pub tls: Option<Arc<Mutex<Tls>>>,
}

impl Dialer {
    pub async fn dial(&self, addr: &Addr) -> RedisResult<MultiplexedConnection> {
        match self.dial_as(addr, &self.login).await {
            Err(error) if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                Err(self.refusal(addr).await.unwrap_or(error))
            }
            outcome => outcome,
        }
    }

    /// What the server itself says to the login, which the library keeps to itself.
    async fn refusal(&self, addr: &Addr) -> Option<RedisError> {
        let mut pipe = self.dial_as(addr, &RedisConnectionInfo::default()).await.ok()?;
        let mut auth = redis::cmd("AUTH");
        auth.arg(self.login.username()).arg(self.login.password());
        send(&mut pipe, &auth).await.err()
    }

    async fn dial_as(&self, addr: &Addr, login: &RedisConnectionInfo) -> RedisResult<MultiplexedConnection> {
        let at = match (addr, &self.tls) {
            (Addr::Tcp(host, port), Some(tls)) => {
                let tls = tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
                return self.secure(host, *port, tls, login).await;
            }
            (Addr::Tcp(host, port), None) => ConnectionAddr::Tcp(host.clone(), *port),
            (Addr::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
        };
        // Or a call would wait until the server's machine has acknowledged the one before.
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = at.into_connection_info()?.set_redis_settings(login.clone()).set_tcp_settings(tcp);
        let mut pipe = RedisConnectionManager::new(info)?.connect().await?;
        pipe.set_response_timeout(NO_TIMEOUT);
        Ok(pipe)
    }

    async fn secure(
        &self,
        host: &str,
        port: u16,
        tls: Tls,
        login: &RedisConnectionInfo,
    ) -> RedisResult<MultiplexedConnection> {
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        let stream = tls.connect(host, tcp).await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(NO_TIMEOUT));
        let (pipe, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        // Ends with the last clone of the connection.
        tokio::spawn(driver);
        Ok(pipe)
    }
}

/// A reply that is an error becomes one.
pub async fn send(pipe: &mut MultiplexedConnection, cmd: &Cmd) -> RedisResult<Value> {
    pipe.send_packed_command(cmd).await?.extract_error()
}
