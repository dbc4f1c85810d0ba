//! Keeps one connection to Redis. It connects, checks and reconnects in a task of its own, so no
//! request ever waits for that. `mod.rs` takes the connection for each call and says when it broke.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bb8::{ManageConnection, Pool};
use bb8_redis::RedisConnectionManager;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::health::Health;
use super::wire;
use crate::limit::store::ErrorKind;

/// Connect, log in and answer a PING: a stopped server accepts, and then says nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two looks at a connection, so that a loss is noticed without traffic.
const HEARTBEAT: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Far above any deadline: the caller has its own timer.
const NO_TIMEOUT: Duration = Duration::from_secs(3600);

pub struct Link {
    pool: Pool<Manager>,
    manager: Manager,
    health: Rc<Health>,
    broke: Notify,
}

/// A clone shares the connection.
#[derive(Clone)]
pub struct Connection {
    pipe: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

impl Connection {
    pub async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self.pipe.send_packed_command(cmd).await? {
            Value::ServerError(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }
}

impl Link {
    /// Starts connecting to `url`; the task ends with [`JoinHandle::abort`].
    pub fn open(url: &str, health: Rc<Health>) -> RedisResult<(Rc<Link>, JoinHandle<()>)> {
        let manager = Manager(RedisConnectionManager::new(url)?);
        let pool = Pool::builder()
            .max_size(1)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build_unchecked(manager.clone());
        let link = Rc::new(Link { pool, manager, health, broke: Notify::new() });
        let keeper = tokio::task::spawn_local(link.clone().keep());
        Ok((link, keeper))
    }

    /// The live connection, or `None` at once.
    pub async fn connection(&self) -> Option<Connection> {
        if self.health.down().is_some() {
            return None;
        }
        // The pooled connection is lent for this line only, so the pool never makes anyone wait.
        let pooled = timeout(Duration::ZERO, self.pool.get()).await.ok()?.ok()?;
        Some(pooled.clone())
    }

    /// Gives `connection` up; the next one is made in the background.
    pub fn lost(&self, connection: &Connection, kind: ErrorKind, why: &str) {
        if !connection.broken.swap(true, Ordering::Relaxed) {
            self.health.set_down(kind, why);
            self.broke.notify_one();
        }
    }

    async fn keep(self: Rc<Self>) {
        let mut pause = Duration::ZERO;
        loop {
            match timeout(CONNECT_TIMEOUT, self.manager.connect()).await {
                Ok(Ok(connection)) => {
                    let since = Instant::now();
                    self.serve(connection).await;
                    if since.elapsed() > BACKOFF_MAX {
                        pause = Duration::ZERO;
                    }
                }
                Ok(Err(error)) => self.health.set_down(wire::error_kind(&error), &error.to_string()),
                Err(_) => self.health.set_down(ErrorKind::Disconnected, "no answer to a connect"),
            }
            // Gateways that lost the same server do not come back in step.
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        }
    }

    /// Offers `connection` until it breaks.
    async fn serve(&self, mut connection: Connection) {
        if self.pool.add(connection.clone()).is_err() {
            return;
        }
        self.health.set_up();
        while !connection.broken.load(Ordering::Relaxed) {
            if timeout(HEARTBEAT, self.broke.notified()).await.is_ok() {
                continue;
            }
            match timeout(CONNECT_TIMEOUT, self.manager.is_valid(&mut connection)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.lost(&connection, ErrorKind::Disconnected, &error.to_string()),
                Err(_) => self.lost(&connection, ErrorKind::Disconnected, "no answer to a PING"),
            }
        }
        // Taken from the pool and given back broken, which drops it there.
        drop(timeout(Duration::ZERO, self.pool.get()).await);
    }
}

#[derive(Clone, Debug)]
struct Manager(RedisConnectionManager);

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> RedisResult<Connection> {
        let mut pipe = self.0.connect().await?;
        pipe.set_response_timeout(NO_TIMEOUT);
        let mut connection = Connection { pipe, broken: Arc::default() };
        self.is_valid(&mut connection).await?;
        Ok(connection)
    }

    /// Any reply will do, an error too: whether the server decides limits, the limits will say.
    async fn is_valid(&self, connection: &mut Connection) -> RedisResult<()> {
        match connection.send(&redis::cmd("PING")).await {
            Err(error) if error.code().is_none() => Err(error),
            _ => Ok(()),
        }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.broken.load(Ordering::Relaxed)
    }
}
