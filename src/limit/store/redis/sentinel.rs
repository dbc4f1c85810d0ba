//! Where a connection leads: to a fixed address, or to the master that the sentinels name now.
//! Called by `link.rs` before, during and after each attempt to connect, and while a connection serves.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Value, from_redis_value};
use tokio::time::{sleep, timeout};

use super::address::Addr;
use super::dial::{Dialer, send};

/// Longest wait for one sentinel; all are asked at once.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);

/// Pause between two questions to the sentinels, so that a master is left that does not know of its successor.
const LOOK: Duration = Duration::from_millis(250);

pub enum Target {
    Fixed(Addr),
    Master(Sentinels),
}

pub struct Sentinels {
    sentinels: Vec<Sentinel>,
    dialer: Dialer,
    master: String,
}

struct Sentinel {
    addr: Addr,
    /// Kept from one question to the next.
    pipe: Mutex<Option<MultiplexedConnection>>,
}

impl Target {
    pub async fn find(&self) -> RedisResult<Addr> {
        match self {
            Target::Fixed(addr) => Ok(addr.clone()),
            Target::Master(sentinels) => sentinels.master().await,
        }
    }

    /// A demoted master still accepts connections: it must not be taken for the master.
    pub async fn accept(&self, pipe: &mut MultiplexedConnection) -> RedisResult<()> {
        match self {
            Target::Fixed(_) => Ok(()),
            Target::Master(_) => match send(pipe, &redis::cmd("ROLE")).await? {
                Value::Array(role) if role.first().is_some_and(|role| is_text(role, b"master")) => Ok(()),
                _ => Err(failure("the server named by the sentinels is not a master yet")),
            },
        }
    }

    /// Whether a connection should lead somewhere else than `addr` by now.
    pub async fn has_left(&self, addr: &Addr) -> bool {
        match self {
            Target::Fixed(_) => false,
            Target::Master(sentinels) => sentinels.master().await.is_ok_and(|master| master != *addr),
        }
    }

    /// Waits until a connection should lead somewhere else than `addr`.
    pub async fn left(&self, addr: &Addr) {
        if let Target::Fixed(_) = self {
            return pending().await;
        }
        loop {
            sleep(LOOK).await;
            if self.has_left(addr).await {
                return;
            }
        }
    }

    /// Longest pause between two attempts to connect: a failover is soon over.
    pub fn backoff_max(&self) -> Duration {
        match self {
            Target::Fixed(_) => Duration::from_millis(500),
            Target::Master(_) => Duration::from_millis(250),
        }
    }
}

impl Sentinels {
    pub fn new(addrs: Vec<Addr>, dialer: Dialer, master: String) -> Sentinels {
        let sentinels = addrs.into_iter().map(|addr| Sentinel { addr, pipe: Mutex::default() }).collect();
        Sentinels { sentinels, dialer, master }
    }

    /// What the sentinel knows that took part in the last failover, as the others learn of it later
    /// or, while they are cut off, not at all.
    async fn master(&self) -> RedisResult<Addr> {
        let answers = join_all(self.sentinels.iter().map(|sentinel| async {
            timeout(ANSWER_TIMEOUT, sentinel.ask(&self.dialer, &self.master))
                .await
                .unwrap_or_else(|_| Err(failure("no sentinel answers")))
        }))
        .await;
        let (mut newest, mut error) = (None, failure("no sentinel answers"));
        for answer in answers {
            match answer {
                Ok((epoch, addr)) if newest.as_ref().is_none_or(|(known, _)| epoch > *known) => {
                    newest = Some((epoch, addr));
                }
                Ok(_) => {}
                Err(seen) => error = seen,
            }
        }
        newest.map(|(_, addr)| addr).ok_or(error)
    }
}

impl Sentinel {
    /// The master and the epoch of the failover that made it one.
    async fn ask(&self, dialer: &Dialer, master: &str) -> RedisResult<(u64, Addr)> {
        let kept = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut pipe = match kept {
            Some(pipe) => pipe,
            None => dialer.dial(&self.addr).await?,
        };
        let reply = send(&mut pipe, redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(master)).await?;
        if reply == Value::Nil {
            return Err(failure("the sentinels do not know the master's name"));
        }
        let (host, port): (String, u16) = from_redis_value(reply)?;
        let state = send(&mut pipe, redis::cmd("SENTINEL").arg("MASTER").arg(master)).await?;
        let state: HashMap<String, String> = from_redis_value(state)?;
        let epoch = state.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipe);
        Ok((epoch, Addr::Tcp(host, port)))
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
