//! The built program as a process of its own: started on free ports, looked at through its admin
//! listener, ended with the value. Its log is printed when the test fails.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::client::{Client, ask};
use super::http::Message;
use super::{PATIENCE, until};

pub struct Gateway {
    pub addr: SocketAddr,
    pub admin: SocketAddr,
    /// Holds the config as `sluicegate.toml`.
    pub dir: TempDir,
    child: Child,
    log: PathBuf,
}

/// Another process may take a free port before the gateway binds it.
const ATTEMPTS: usize = 5;

impl Gateway {
    /// One worker; `config` is all but `[server]` and `[admin]`.
    pub fn start(config: &str) -> Gateway {
        Gateway::with("", config)
    }

    /// `server` are further lines of `[server]`.
    pub fn with(server: &str, config: &str) -> Gateway {
        Gateway::within(&[], server, config)
    }

    /// With further variables in its environment.
    pub fn within(env: &[(&str, &str)], server: &str, config: &str) -> Gateway {
        let workers = if server.contains("workers") { "" } else { "workers = 1" };
        Gateway::launch_within(env, |dir, addr, admin| {
            let text = format!(
                "[server]\nlisten = [\"{addr}\"]\n{workers}\n{server}\n\n[admin]\nlisten = \"{admin}\"\n\n{config}\n"
            );
            let path = dir.join("sluicegate.toml");
            fs::write(&path, text).unwrap();
            vec!["run".to_owned(), "--config".to_owned(), path.display().to_string()]
        })
    }

    /// Runs `sluicegate proxy` with `arguments`.
    pub fn proxy(arguments: &[&str]) -> Gateway {
        Gateway::launch(|_, addr, admin| {
            let own = ["proxy", "--listen", &addr.to_string(), "--admin", &admin.to_string()].map(str::to_owned);
            own.into_iter().chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
        })
    }

    /// `arguments` makes the command line for an empty directory, a listener and an admin address.
    pub fn launch(arguments: impl Fn(&Path, SocketAddr, SocketAddr) -> Vec<String>) -> Gateway {
        Gateway::launch_within(&[], arguments)
    }

    fn launch_within(
        env: &[(&str, &str)],
        arguments: impl Fn(&Path, SocketAddr, SocketAddr) -> Vec<String>,
    ) -> Gateway {
        let mut log = String::new();
        for _ in 0..ATTEMPTS {
            let dir = tempfile::tempdir().unwrap();
            let [addr, admin] = free_addresses();
            let path = dir.path().join("stderr.log");
            let child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
                .args(arguments(dir.path(), addr, admin))
                .envs(env.iter().copied())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(&path).unwrap())
                .spawn()
                .unwrap();
            let mut gateway = Gateway { addr, admin, dir, child, log: path };
            if gateway.becomes_ready() {
                return gateway;
            }
            log = fs::read_to_string(&gateway.log).unwrap();
            assert!(log.contains("in use"), "the gateway ended at its start:\n{log}");
        }
        panic!("the gateway found no free port in {ATTEMPTS} attempts:\n{log}");
    }

    /// False when the process ended instead.
    fn becomes_ready(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            // What listens there may be another gateway, which took the address first.
            let is_own = self.log().contains(" ready listen=");
            if is_own && self.admin("/readyz").status() == 200 {
                return true;
            }
            assert!(Instant::now() < end, "the gateway is not ready after {PATIENCE:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    pub fn client_from(&self, source: [u8; 4]) -> Client {
        Client::from(Ipv4Addr::from(source), self.addr)
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn ask(&self, head: &str) -> Message {
        ask(self.addr, head)
    }

    /// `GET target` on a connection of its own.
    #[track_caller]
    pub fn get(&self, target: &str) -> Message {
        self.ask(&super::client::get(target, ""))
    }

    pub fn admin(&self, path: &str) -> Message {
        ask(self.admin, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    }

    pub fn metrics(&self) -> String {
        let page = self.admin("/metrics");
        assert_eq!(page.status(), 200);
        page.text()
    }

    /// The value of one series, by its name without the prefix and all its labels.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut labels = labels.to_vec();
        labels.sort_unstable();
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let series = match labels.is_empty() {
            true => format!("sluicegate_{name} "),
            false => format!("sluicegate_{name}{{{}}} ", labels.join(",")),
        };
        let metrics = self.metrics();
        metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    }

    /// Waits until a series has a value: some are counted just after the answer was sent.
    #[track_caller]
    pub fn assert_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let end = Instant::now() + PATIENCE / 5;
        loop {
            let found = self.metric(name, labels);
            if found == Some(value) {
                return;
            }
            assert!(Instant::now() < end, "{name} {labels:?} is {found:?}, not {value}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        until("the gateway has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A value of /proc/PID/status in bytes, such as `VmRSS`.
    pub fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        kib.unwrap_or_else(|| panic!("no {field} in\n{status}")) * 1024
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the gateway ---\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// Two addresses that were free a moment ago.
fn free_addresses() -> [SocketAddr; 2] {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}
