//! A redis-server for one test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::ports::ReservedPort;
use crate::support::wait_until;

const LOG: &str = "redis.log";
/// File with the seconds by which the clock of the server is off.
const CLOCK: &str = "clock";

/// A redis-server that keeps its port while it is down. Dropping it kills the process.
pub struct RedisServer {
    child: Option<Child>,
    pub port: u16,
    _port: ReservedPort,
    args: Vec<String>,
    env: Vec<(&'static str, PathBuf)>,
    dir: tempfile::TempDir,
}

impl RedisServer {
    pub fn start(args: &[&str]) -> RedisServer {
        RedisServer::start_within(args, Vec::new(), tempfile::tempdir().unwrap())
    }

    /// Starts a server whose clock can be set; see [`RedisServer::set_clock`].
    pub fn with_clock() -> RedisServer {
        let dir = tempfile::tempdir().unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/limiting/offset_clock.c");
        let library = dir.path().join("offset_clock.so");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
        let built = built.expect("there is no C compiler; install it: apt-get install gcc libc6-dev");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let env = vec![("LD_PRELOAD", library), ("CLOCK_OFFSET_FILE", dir.path().join(CLOCK))];
        RedisServer::start_within(&[], env, dir)
    }

    /// Sets the clock to the right time and so many seconds.
    pub fn set_clock(&self, seconds: i64) {
        // A reader must not see half of it.
        let new = self.dir.path().join("clock.new");
        std::fs::write(&new, seconds.to_string()).unwrap();
        std::fs::rename(&new, self.dir.path().join(CLOCK)).unwrap();
    }

    fn start_within(args: &[&str], env: Vec<(&'static str, PathBuf)>, dir: tempfile::TempDir) -> RedisServer {
        let reserved = ReservedPort::new();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut server = RedisServer { child: None, port: reserved.port(), _port: reserved, args, env, dir };
        server.restart();
        server.becomes_ready();
        server
    }

    fn becomes_ready(&mut self) {
        let log = self.dir.path().join(LOG);
        let log = || std::fs::read_to_string(&log).unwrap_or_default();
        wait_until("redis-server is ready", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "redis-server ended at its start: {ended:?}\n{}", log());
            log().contains("Ready to accept connections")
        });
    }

    pub fn restart(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .args(["--logfile", LOG])
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server does not start; install it: apt-get install redis-server");
        self.child = Some(child);
    }

    pub fn restart_with(&mut self, args: &[&str]) {
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.restart();
    }

    /// Kills the server, like a crash.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Sends `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The `[store]` of a gateway that decides in this server.
    pub fn store(&self) -> String {
        store_section(&self.url())
    }

    /// A connection for the test itself.
    pub fn client(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_connection_with_timeout(Duration::from_secs(5)).unwrap()
    }
}

/// The `[store]` of a gateway that decides in this Redis, which is waited for: a slow machine causes no outage.
pub fn store_section(url: &str) -> String {
    format!("[store]\nurl = \"{url}\"\ndeadline = \"10s\"\n")
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
