//! The target of a connection: a fixed address, or the current master according to the sentinels.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Value, from_redis_value};
use tokio::time::{sleep, timeout};

use crate::limiting::decision::ErrorKind;
use crate::limiting::store::address::ServerAddr;
use crate::limiting::store::redis::codec::error_kind;
use crate::limiting::store::redis::connection::dial::{Dialer, send_command};

/// Longest wait for the sentinels, which are queried at once.
const QUERY_TIMEOUT: Duration = Duration::from_millis(400);

/// Pause between two queries of the sentinels. They detect a master that was replaced and does not know it.
const QUERY_INTERVAL: Duration = Duration::from_millis(250);

/// Says that a sentinel, and not the master, refuses the login or a command.
pub const REFUSED_LOGIN: &str = "a sentinel refuses the login or a command";

/// Target of a connection.
pub enum ConnectionTarget {
    Fixed(ServerAddr),
    Master(Sentinels),
}

/// The sentinels of one master.
pub struct Sentinels {
    sentinels: Vec<Sentinel>,
    dialer: Dialer,
    master: String,
}

struct Sentinel {
    addr: ServerAddr,
    /// Connection, kept between queries.
    pipe: Mutex<Option<MultiplexedConnection>>,
}

impl ConnectionTarget {
    /// Returns the address to connect to.
    pub async fn find_addr(&self) -> RedisResult<ServerAddr> {
        match self {
            ConnectionTarget::Fixed(addr) => Ok(addr.clone()),
            ConnectionTarget::Master(sentinels) => sentinels.query_master().await,
        }
    }

    /// Checks that the server is a master, if one is needed. A demoted master still accepts connections.
    pub async fn check_role(&self, pipe: &mut MultiplexedConnection) -> RedisResult<()> {
        match self {
            ConnectionTarget::Fixed(_) => Ok(()),
            ConnectionTarget::Master(_) => match send_command(pipe, &redis::cmd("ROLE")).await? {
                Value::Array(role) if role.first().is_some_and(|role| is_text(role, b"master")) => Ok(()),
                _ => Err(failure("the server named by the sentinels is not a master yet")),
            },
        }
    }

    /// Returns whether the target is no longer at `addr`.
    pub async fn has_moved(&self, addr: &ServerAddr) -> bool {
        match self {
            ConnectionTarget::Fixed(_) => false,
            ConnectionTarget::Master(sentinels) => sentinels.query_master().await.is_ok_and(|master| master != *addr),
        }
    }

    /// Waits until the target is no longer at `addr`.
    pub async fn wait_moved(&self, addr: &ServerAddr) {
        if let ConnectionTarget::Fixed(_) = self {
            return pending().await;
        }
        loop {
            sleep(QUERY_INTERVAL).await;
            if self.has_moved(addr).await {
                return;
            }
        }
    }

    /// Returns the longest pause between two attempts to connect. It is shorter with Sentinel, as a failover is quick.
    pub fn backoff_max(&self) -> Duration {
        match self {
            ConnectionTarget::Fixed(_) => Duration::from_millis(500),
            ConnectionTarget::Master(_) => Duration::from_millis(250),
        }
    }
}

impl Sentinels {
    pub fn new(addrs: Vec<ServerAddr>, dialer: Dialer, master: String) -> Sentinels {
        let sentinels = addrs.into_iter().map(|addr| Sentinel { addr, pipe: Mutex::default() }).collect();
        Sentinels { sentinels, dialer, master }
    }

    /// Returns the master with the highest configuration epoch. A sentinel that took part in the last failover knows
    /// it; others learn of it later or, while they are cut off, not at all.
    async fn query_master(&self) -> RedisResult<ServerAddr> {
        let answers = join_all(self.sentinels.iter().map(|sentinel| async {
            timeout(QUERY_TIMEOUT, sentinel.query_master(&self.dialer, &self.master))
                .await
                .unwrap_or_else(|_| Err(failure("no sentinel responds")))
        }))
        .await;
        let (mut newest, mut error) = (None, failure("no sentinel responds"));
        for answer in answers {
            match answer {
                Ok((epoch, addr)) if newest.as_ref().is_none_or(|(known, _)| epoch > *known) => {
                    newest = Some((epoch, addr));
                }
                Ok(_) => {}
                // Its login differs from the login of the master.
                Err(denied) if error_kind(&denied) == ErrorKind::Denied => {
                    error = (redis::ErrorKind::AuthenticationFailed, REFUSED_LOGIN, denied.to_string()).into();
                }
                Err(seen) => error = seen,
            }
        }
        newest.map(|(_, addr)| addr).ok_or(error)
    }
}

impl Sentinel {
    /// Queries the sentinel for the master, and the epoch of the failover that promoted it.
    async fn query_master(&self, dialer: &Dialer, master: &str) -> RedisResult<(u64, ServerAddr)> {
        let kept_pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut pipe = match kept_pipe {
            Some(pipe) => pipe,
            None => dialer.dial(&self.addr).await?,
        };
        let reply = send_command(&mut pipe, redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(master)).await?;
        if reply == Value::Nil {
            return Err(failure("the sentinels do not know the master's name"));
        }
        let (host, port): (String, u16) = from_redis_value(reply)?;
        let state = send_command(&mut pipe, redis::cmd("SENTINEL").arg("MASTER").arg(master)).await?;
        let state: HashMap<String, String> = from_redis_value(state)?;
        let epoch = state.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipe);
        Ok((epoch, ServerAddr::Tcp(host, port)))
    }
}

fn is_text(value: &Value, text: &[u8]) -> bool {
    match value {
        Value::BulkString(bytes) => bytes == text,
        Value::SimpleString(string) => string.as_bytes() == text,
        _ => false,
    }
}

fn failure(why: &'static str) -> RedisError {
    RedisError::from((redis::ErrorKind::Client, why))
}
