//! Keeps one connection to Redis. It connects, checks and reconnects in a task of its own, so no
//! request ever waits for that. `pump.rs` takes the connection for each call and says when it broke.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bb8::{ManageConnection, Pool};
use futures_util::future::join;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::select;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::address::Addr;
use super::dial::{self, Dialer};
use super::health::Health;
use super::sentinel::Target;
use super::wire::{self, Call};
use crate::limit::clock::now_ms;
use crate::limit::decision::ErrorKind;

/// Connect, log in, tell the time and learn the script: a stopped server accepts, and then says nothing.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Masters tried in one attempt to connect, so that sentinels which disagree cause no endless loop without a pause.
const TURNS_MAX: usize = 8;
/// Pause between two checks of a connection, so that a loss is noticed without traffic.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A connection that lived this long was a good one.
const STABLE: Duration = Duration::from_secs(1);

pub struct RedisLink {
    pool: Pool<Manager>,
    manager: Manager,
    health: Rc<Health>,
    broke: Notify,
    /// The pool has a connection.
    offered: Cell<bool>,
}

/// A clone shares the connection.
#[derive(Clone)]
pub struct RedisConnection {
    pipe: MultiplexedConnection,
    /// Where it leads.
    addr: Addr,
    /// How far the server's clock is ahead of this machine's, as last seen.
    ahead_ms: Arc<AtomicI64>,
    /// The server has the script, or will not have it but from a call.
    taught: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
}

impl RedisConnection {
    /// About the time of the server, for what is prepared here and decided there.
    pub fn clock_ms(&self) -> i64 {
        now_ms().saturating_add(self.ahead_ms.load(Ordering::Relaxed))
    }

    pub async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        dial::send(&mut self.pipe.clone(), cmd).await
    }

    /// Has the server know the script before a decision needs it: to learn it with one takes another round trip,
    /// which from afar is later than the deadline.
    async fn teach(&self) -> RedisResult<()> {
        if self.taught.load(Ordering::Relaxed) {
            return Ok(());
        }
        let settled = match self.send(&Call::load()).await {
            Err(error) if error.code().is_none() => return Err(error),
            // A login that may not, or a server that cannot: the first call teaches it. Any other may, later.
            Err(error) => matches!(wire::error_kind(&error), ErrorKind::Denied | ErrorKind::Reply),
            Ok(_) => true,
        };
        self.taught.store(settled, Ordering::Relaxed);
        Ok(())
    }

    /// Sends `cmd` right behind ASKING, which holds for one command only.
    pub async fn send_asking(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut both = redis::Pipeline::with_capacity(2);
        both.ignore_errors().cmd("ASKING").ignore().add_command(cmd.clone());
        let mut replies = self.pipe.clone().send_packed_commands(&both, 1, 1).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }
}

impl RedisLink {
    /// Connects once somebody runs [`RedisLink::keep`].
    pub fn new(target: Target, dialer: Dialer, health: Rc<Health>) -> RedisLink {
        let manager = Manager(Arc::new((target, dialer)));
        let pool = Pool::builder()
            .max_size(1)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build_unchecked(manager.clone());
        RedisLink { pool, manager, health, broke: Notify::new(), offered: Cell::new(false) }
    }

    /// The live connection, or `None` at once.
    pub async fn connection(&self) -> Option<RedisConnection> {
        if self.health.down().is_some() {
            return None;
        }
        // The pooled connection is lent for this line only, so the pool never makes anyone wait.
        let pooled = timeout(Duration::ZERO, self.pool.get()).await.ok()?.ok()?;
        Some(pooled.clone())
    }

    /// Gives `connection` up; the next one is made in the background.
    pub fn lost(&self, connection: &RedisConnection, kind: ErrorKind, why: &str) {
        if !connection.broken.swap(true, Ordering::Relaxed) {
            self.health.set_down(kind, why);
            self.broke.notify_one();
        }
    }

    /// Connects, and again whenever the connection breaks.
    pub async fn keep(self: Rc<Self>) {
        // What an earlier run of this task left behind, if it failed.
        if self.offered.get() {
            self.clear().await;
        }
        let mut pause = Duration::ZERO;
        loop {
            match self.manager.connect().await {
                Ok(connection) => {
                    let since = Instant::now();
                    self.serve(connection).await;
                    if since.elapsed() > STABLE {
                        pause = Duration::ZERO;
                    }
                }
                Err(error) => self.health.set_down(wire::error_kind(&error), &error.to_string()),
            }
            // Gateways that lost the same server do not come back in step.
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).clamp(BACKOFF_MIN, self.manager.target().backoff_max());
        }
    }

    /// Offers `connection` until it breaks or the sentinels name another master.
    async fn serve(&self, connection: RedisConnection) {
        if self.pool.add(connection.clone()).is_err() {
            return;
        }
        self.offered.set(true);
        self.health.set_up();
        select! {
            () = self.watch(&connection) => {}
            () = self.manager.target().left(&connection.addr) => {
                self.lost(&connection, ErrorKind::Disconnected, "another server is the master now");
            }
        }
        self.clear().await;
    }

    /// Checks `connection` until it breaks.
    async fn watch(&self, connection: &RedisConnection) {
        while !connection.broken.load(Ordering::Relaxed) {
            if timeout(HEARTBEAT, self.broke.notified()).await.is_ok() {
                continue;
            }
            let outcome = select! {
                outcome = timeout(CONNECT_TIMEOUT, self.manager.check(connection)) => outcome,
                () = self.broke.notified() => continue,
            };
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.lost(connection, wire::error_kind(&error), &error.to_string()),
                Err(_) => self.lost(connection, ErrorKind::Disconnected, "no answer to a look at its clock"),
            }
        }
    }

    /// Takes the connection from the pool and gives it back broken, which drops it there.
    async fn clear(&self) {
        if let Ok(Ok(connection)) = timeout(Duration::ZERO, self.pool.get()).await {
            connection.broken.store(true, Ordering::Relaxed);
        }
        self.offered.set(false);
    }
}

/// The error of an attempt to connect that took too long.
fn no_answer() -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, "no answer to a connect").into()
}

#[derive(Clone)]
struct Manager(Arc<(Target, Dialer)>);

impl Manager {
    fn target(&self) -> &Target {
        &self.0.0
    }

    /// A connection to the server at `addr`, if that is a master where one is wanted.
    async fn open(&self, addr: &Addr) -> RedisResult<RedisConnection> {
        let mut pipe = self.0.1.dial(addr).await?;
        self.target().accept(&mut pipe).await?;
        let (addr, ahead_ms) = (addr.clone(), Arc::default());
        let connection = RedisConnection { pipe, addr, ahead_ms, taught: Arc::default(), broken: Arc::default() };
        self.check(&connection).await?;
        Ok(connection)
    }

    /// Any reply will do, an error too: whether the server decides limits, the limits will say. Unless it wants
    /// another login: then it decides nothing, and nobody need ask to learn that.
    async fn check(&self, connection: &RedisConnection) -> RedisResult<()> {
        let time = redis::cmd("TIME");
        let (time, taught) = join(connection.send(&time), connection.teach()).await;
        match time {
            Err(error) if error.code().is_none() || wire::error_kind(&error) == ErrorKind::Denied => return Err(error),
            Ok(time) => {
                if let Ok((seconds, micros)) = redis::from_redis_value::<(i64, i64)>(time) {
                    let clock_ms = seconds.saturating_mul(1000).saturating_add(micros / 1000);
                    connection.ahead_ms.store(clock_ms.saturating_sub(now_ms()), Ordering::Relaxed);
                }
            }
            Err(_) => {}
        }
        taught
    }
}

impl ManageConnection for Manager {
    type Connection = RedisConnection;
    type Error = RedisError;

    /// Connects to each server within [`CONNECT_TIMEOUT`]. When the sentinels name another master meanwhile, it turns to that one
    /// at once: the first may hang, or have woken up without knowing that it was replaced.
    async fn connect(&self) -> RedisResult<RedisConnection> {
        for _ in 0..TURNS_MAX {
            let addr = self.target().find().await?;
            let connection = select! {
                opened = timeout(CONNECT_TIMEOUT, self.open(&addr)) => opened.map_err(|_| no_answer())??,
                () = self.target().left(&addr) => continue,
            };
            if !self.target().has_left(&addr).await {
                return Ok(connection);
            }
        }
        Err(io::Error::other("the sentinels name one master after another").into())
    }

    async fn is_valid(&self, connection: &mut RedisConnection) -> RedisResult<()> {
        self.check(connection).await
    }

    fn has_broken(&self, connection: &mut RedisConnection) -> bool {
        connection.broken.load(Ordering::Relaxed)
    }
}
