//! Keeps one connection to a Redis server. A task connects, checks the connection every second and reconnects, so
//! requests never wait for that. Each call takes a clone of the connection and reports when it breaks.
//!
//! The bb8 pool holds one connection, because calls are pipelined on it. Nobody waits for the pool: a call borrows the
//! connection, clones it and returns it in one step, and only while the pool is known to hold one. Therefore the pool
//! never connects by itself; [`RedisLink::run_connection`] does, with its own backoff and deadlines.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bb8::{ManageConnection, Pool, PooledConnection};
use futures_util::FutureExt;
use futures_util::future::join;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::select;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::limiting::clock::now_ms;
use crate::limiting::decision::ErrorKind;
use crate::limiting::store::address::ServerAddr;
use crate::limiting::store::redis::codec;
use crate::limiting::store::redis::codec::ScriptCall;
use crate::limiting::store::redis::connection::await_reply::{TimelyReply, await_reply};
use crate::limiting::store::redis::connection::dial;
use crate::limiting::store::redis::connection::dial::Dialer;
use crate::limiting::store::redis::connection::health::ServerHealth;
use crate::limiting::store::redis::connection::sentinel::ConnectionTarget;

/// Longest time to connect, log in, read the clock and load the script. A server that hangs accepts connections, but
/// does not respond.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// First pause before another attempt to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Maximum number of masters tried in one attempt to connect. The bound prevents a busy loop if sentinels disagree.
const MASTERS_MAX: usize = 8;
/// Time between two checks of a connection, so that a loss is noticed without traffic.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After a connection that lasted this long, the next attempt starts without a pause.
const STABLE: Duration = Duration::from_secs(1);

/// Keeps the connection of one worker to one server.
pub struct RedisLink {
    connector: Connector,
    /// Holds the connection in use.
    pool: Pool<Connector>,
    /// True if the pool holds a connection. Without one, borrowing would make the pool connect.
    is_offered: Cell<bool>,
    health: Rc<ServerHealth>,
    /// Notified when the connection in use breaks.
    broke: Notify,
}

/// A connection to a server. Clones share it.
#[derive(Clone)]
pub struct RedisConnection {
    pipe: MultiplexedConnection,
    /// Address of the server.
    addr: ServerAddr,
    /// How far the clock of the server was ahead of this machine's at the last check.
    ahead_ms: Arc<AtomicI64>,
    /// The server has the script, or accepts it only as part of a call (EVAL).
    script_loaded: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
}

impl RedisConnection {
    /// Returns the approximate time of the server, to choose the calendar windows that a call carries.
    pub fn clock_ms(&self) -> i64 {
        now_ms().saturating_add(self.ahead_ms.load(Ordering::Relaxed))
    }

    /// Sends a command.
    pub async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        dial::send_command(&mut self.pipe.clone(), cmd).await
    }

    /// Loads the script before a decision needs it. Loading it with a decision takes another round trip, which a
    /// distant server may not manage within the deadline.
    async fn load_script(&self) -> RedisResult<()> {
        if self.script_loaded.load(Ordering::Relaxed) {
            return Ok(());
        }
        let is_settled = match self.send(&ScriptCall::load_command()).await {
            Err(error) if error.code().is_none() => return Err(error),
            // The server does not allow SCRIPT LOAD, perhaps for this login, so the first call loads the script. After
            // other errors, the next check tries again.
            Err(error) => matches!(codec::error_kind(&error), ErrorKind::Denied | ErrorKind::Reply),
            Ok(_) => true,
        };
        self.script_loaded.store(is_settled, Ordering::Relaxed);
        Ok(())
    }

    /// Sends `cmd` directly after ASKING, which applies to one command only.
    pub async fn send_asking(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut both = redis::Pipeline::with_capacity(2);
        both.ignore_errors().cmd("ASKING").ignore().add_command(cmd.clone());
        let mut replies = self.pipe.clone().send_packed_commands(&both, 1, 1).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }
}

impl RedisLink {
    /// Creates a link. It connects when [`RedisLink::run_connection`] runs.
    ///
    /// A server that answers `single_test` as a node of a cluster is not used. `None`: it is one.
    pub fn new(
        target: ConnectionTarget,
        dialer: Dialer,
        single_test: Option<Cmd>,
        health: Rc<ServerHealth>,
    ) -> RedisLink {
        let connector = Connector(Arc::new(ConnectorSettings { target, dialer, single_test }));
        let pool = Pool::builder()
            .max_size(1)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build_unchecked(connector.clone());
        RedisLink { connector, pool, is_offered: Cell::new(false), health, broke: Notify::new() }
    }

    /// Returns the connection in use, or `None` if there is none. Never waits.
    pub fn connection(&self) -> Option<RedisConnection> {
        match self.health.down_reason() {
            Some(_) => None,
            None => self.borrow_pooled().map(|pooled| pooled.clone()),
        }
    }

    /// Abandons `connection`, which has broken. The next one is opened in the background.
    pub fn drop_connection(&self, connection: &RedisConnection, kind: ErrorKind, why: &str) {
        if !connection.broken.swap(true, Ordering::Relaxed) {
            self.health.set_down(kind, why);
            self.broke.notify_one();
        }
    }

    /// Connects, and reconnects whenever the connection breaks. Never returns.
    pub async fn run_connection(self: Rc<Self>) {
        // An earlier run of this task may have panicked and left its connection.
        self.clear_connection();
        let mut pause = Duration::ZERO;
        loop {
            match self.connector.connect().await {
                Ok(connection) => {
                    let since = Instant::now();
                    self.offer_connection(connection).await;
                    if since.elapsed() > STABLE {
                        pause = Duration::ZERO;
                    }
                }
                Err(error) => {
                    let is_node = self.connector.0.single_test.is_none();
                    self.health.set_down(codec::error_kind(&error), &codec::describe_error(&error, is_node));
                }
            }
            // The jitter keeps gateways that lost the same server from reconnecting in step.
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).clamp(BACKOFF_MIN, self.connector.target().backoff_max());
        }
    }

    /// Makes `connection` available until it breaks or the sentinels name another master.
    async fn offer_connection(&self, connection: RedisConnection) {
        if self.pool.add(connection.clone()).is_err() {
            return;
        }
        self.is_offered.set(true);
        self.health.set_up();
        select! {
            () = self.watch_connection(&connection) => {}
            () = self.connector.target().wait_moved(&connection.addr) => {
                self.drop_connection(&connection, ErrorKind::Disconnected, "another server is the master now");
            }
        }
        self.clear_connection();
    }

    /// Checks `connection` until it breaks.
    async fn watch_connection(&self, connection: &RedisConnection) {
        while !connection.broken.load(Ordering::Relaxed) {
            if timeout(HEARTBEAT, self.broke.notified()).await.is_ok() {
                continue;
            }
            let outcome = select! {
                outcome = await_reply(CONNECT_TIMEOUT, self.connector.check(connection)) => outcome,
                () = self.broke.notified() => continue,
            };
            match outcome {
                Some(TimelyReply { value: Ok(()), .. }) => {}
                Some(TimelyReply { value: Err(error), .. }) => {
                    self.drop_connection(connection, codec::error_kind(&error), &error.to_string());
                }
                None => self.drop_connection(connection, ErrorKind::Disconnected, "no reply to TIME"),
            }
        }
    }

    /// Drops the connection in use. Calls that still have a clone of it finish on that.
    fn clear_connection(&self) {
        if let Some(pooled) = self.borrow_pooled() {
            // The pool drops a broken connection when it is returned.
            pooled.broken.store(true, Ordering::Relaxed);
        }
        self.is_offered.set(false);
    }

    /// Borrows the connection of the pool, which returns it when dropped. `None` if there is none.
    fn borrow_pooled(&self) -> Option<PooledConnection<'_, Connector>> {
        // A single poll is enough: the pool immediately lends a connection that it holds.
        if self.is_offered.get() { self.pool.get().now_or_never()?.ok() } else { None }
    }
}

/// Creates the error of an attempt to connect that took too long.
fn connect_timed_out() -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, "timed out while connecting").into()
}

/// Opens and checks connections to one target.
#[derive(Clone)]
struct Connector(Arc<ConnectorSettings>);

struct ConnectorSettings {
    target: ConnectionTarget,
    dialer: Dialer,
    /// See [`RedisLink::new`].
    single_test: Option<Cmd>,
}

impl Connector {
    fn target(&self) -> &ConnectionTarget {
        &self.0.target
    }

    /// Opens a connection to the server at `addr`. Behind Sentinel, the server must be a master.
    async fn open(&self, addr: &ServerAddr) -> RedisResult<RedisConnection> {
        let mut pipe = self.0.dialer.dial(addr).await?;
        self.target().check_role(&mut pipe).await?;
        let (addr, ahead_ms) = (addr.clone(), Arc::default());
        let connection =
            RedisConnection { pipe, addr, ahead_ms, script_loaded: Arc::default(), broken: Arc::default() };
        let (checked, tested) = join(self.check(&connection), self.test_single(&connection)).await;
        checked.and(tested)?;
        Ok(connection)
    }

    /// Returns the error of a server that turns out to be a node of a cluster. Such a server would decide only some
    /// requests. Limits would then be charged partly in Redis and partly in the memory of the gateway.
    async fn test_single(&self, connection: &RedisConnection) -> RedisResult<()> {
        let Some(test) = &self.0.single_test else { return Ok(()) };
        match connection.send(test).await {
            Err(error) if codec::is_of_cluster(&error) => Err(error),
            // Perhaps the login may not run the command.
            _ => Ok(()),
        }
    }

    /// Checks that the server responds, and reads its clock. An error reply is a response, too: the next decisions show
    /// whether the server can decide. Only a rejected login is an error, because then no decision can succeed.
    async fn check(&self, connection: &RedisConnection) -> RedisResult<()> {
        // Before the script: without the password, a server closes the connection that sends so much, and its reply is lost.
        match connection.send(&redis::cmd("TIME")).await {
            Err(error) if error.code().is_none() || codec::error_kind(&error) == ErrorKind::Denied => {
                return Err(error);
            }
            Ok(time) => {
                if let Some(clock_ms) = codec::decode_time(time) {
                    connection.ahead_ms.store(clock_ms.saturating_sub(now_ms()), Ordering::Relaxed);
                }
            }
            Err(_) => {}
        }
        connection.load_script().await
    }
}

impl ManageConnection for Connector {
    type Connection = RedisConnection;
    type Error = RedisError;

    /// Connects to the server within [`CONNECT_TIMEOUT`]. If the sentinels name another master in the meantime, it
    /// switches to that one at once: the old master may hang, or may have restarted without knowing that it was
    /// replaced.
    async fn connect(&self) -> RedisResult<RedisConnection> {
        for _ in 0..MASTERS_MAX {
            let addr = self.target().find_addr().await?;
            let connection = select! {
                opened = await_reply(CONNECT_TIMEOUT, self.open(&addr)) => opened.ok_or_else(connect_timed_out)?.value?,
                () = self.target().wait_moved(&addr) => continue,
            };
            if !self.target().has_moved(&addr).await {
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
