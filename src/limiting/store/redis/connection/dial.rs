//! Opens connections to Redis servers and sentinels, plain or TLS, and logs in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bb8::ManageConnection;
use bb8_redis::RedisConnectionManager;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::limiting::store::address::ServerAddr;
use crate::limiting::store::redis::codec::NOT_CONNECTED;
use crate::limiting::store::redis_tls::RedisTls;

/// Timeout of the library. Longer than any deadline, because callers use timers of their own.
const NO_TIMEOUT: Duration = Duration::from_secs(3600);

/// Time for the error with which a server greets, and its length.
const GREETING_TIMEOUT: Duration = Duration::from_millis(300);
const GREETING_MAX: usize = 1024;

/// Opens connections with one login.
#[derive(Clone)]
pub struct Dialer {
    pub login: RedisConnectionInfo,
    /// TLS settings, shared with the handle, which updates them when the files change. `None` means plain connections.
    pub tls: Option<Arc<Mutex<RedisTls>>>,
}

impl Dialer {
    /// Opens a connection to `addr` and logs in.
    pub async fn dial(&self, addr: &ServerAddr) -> RedisResult<MultiplexedConnection> {
        match self.dial_as(addr, &self.login).await {
            Err(error) if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                Err(self.login_error(addr).await.unwrap_or(error))
            }
            // The text that the server wrote before it closed is lost, because the server had not read a command that
            // it got.
            Err(error) if error.is_connection_dropped() => {
                let greeting = timeout(GREETING_TIMEOUT, self.read_greeting(addr)).await;
                Err(greeting.ok().flatten().unwrap_or(error))
            }
            outcome => outcome,
        }
    }

    /// Sends the login again to get the error message of the server, which the library does not return.
    async fn login_error(&self, addr: &ServerAddr) -> Option<RedisError> {
        let mut pipe = self.dial_as(addr, &RedisConnectionInfo::default()).await.ok()?;
        let mut auth = redis::cmd("AUTH");
        auth.arg(self.login.username()).arg(self.login.password());
        send_command(&mut pipe, &auth).await.err()
    }

    /// Connects without sending a command, and returns the error that the server sends first. Redis sends one in
    /// protected mode, and when it has too many clients.
    async fn read_greeting(&self, addr: &ServerAddr) -> Option<RedisError> {
        let tls = self.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let mut text = [0; GREETING_MAX];
        let length = match (addr, tls) {
            (ServerAddr::Tcp(host, port), None) => {
                TcpStream::connect((host.as_str(), *port)).await.ok()?.read(&mut text).await
            }
            (ServerAddr::Tcp(host, port), Some(tls)) => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await.ok()?;
                tls.connect(host, tcp).await.ok()?.read(&mut text).await
            }
            (ServerAddr::Unix(path), _) => UnixStream::connect(path).await.ok()?.read(&mut text).await,
        };
        let line = str::from_utf8(&text[..length.ok()?]).ok()?.strip_prefix('-')?.lines().next()?;
        // The text about protected mode continues with several ways out.
        let line = line.split(". ").next().unwrap_or(line).to_owned();
        let kind = if line.starts_with("DENIED") { redis::ErrorKind::AuthenticationFailed } else { NOT_CONNECTED };
        Some((kind, "the server refuses connections", line).into())
    }

    async fn dial_as(&self, addr: &ServerAddr, login: &RedisConnectionInfo) -> RedisResult<MultiplexedConnection> {
        let at = match (addr, &self.tls) {
            (ServerAddr::Tcp(host, port), Some(tls)) => {
                let tls = tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
                return self.dial_tls(host, *port, tls, login).await;
            }
            (ServerAddr::Tcp(host, port), None) => ConnectionAddr::Tcp(host.clone(), *port),
            (ServerAddr::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
        };
        // Otherwise a call would wait until the server has acknowledged the previous one.
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = at.into_connection_info()?.set_redis_settings(login.clone()).set_tcp_settings(tcp);
        let mut pipe = RedisConnectionManager::new(info)?.connect().await?;
        pipe.set_response_timeout(NO_TIMEOUT);
        Ok(pipe)
    }

    async fn dial_tls(
        &self,
        host: &str,
        port: u16,
        tls: RedisTls,
        login: &RedisConnectionInfo,
    ) -> RedisResult<MultiplexedConnection> {
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        let stream = tls.connect(host, tcp).await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(NO_TIMEOUT));
        let (pipe, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        // The task ends with the last clone of the connection.
        tokio::spawn(driver);
        Ok(pipe)
    }
}

/// Sends a command. An error reply is returned as an error.
pub async fn send_command(pipe: &mut MultiplexedConnection, cmd: &Cmd) -> RedisResult<Value> {
    pipe.send_packed_command(cmd).await?.extract_error()
}
