//! The built program as a process of its own: it listens on ports that the system gives it, which its
//! log names; it is looked at through its admin listener and ended with the value. Its log is printed
//! when the test fails.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use super::client::{self, Client};
use super::http::Message;
use super::{put, until};

pub struct Gateway {
    /// The first listener that has a port; 0.0.0.0:0 where none has.
    pub addr: SocketAddr,
    pub admin: SocketAddr,
    /// Holds the config as `sluicegate.toml`, unless it was laid out otherwise.
    pub dir: TempDir,
    child: Child,
    log: PathBuf,
}

/// `[server]` up to further lines of its own, and `[admin]`: any ports.
const LISTEN: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n";
const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// A config of one worker; `server` are further lines of `[server]`, `rest` all but that and `[admin]`.
pub fn config(server: &str, rest: &str) -> String {
    let workers = if server.contains("workers") { "" } else { "workers = 1\n" };
    format!("{LISTEN}{workers}{server}\n\n{ADMIN}\n{rest}\n")
}

/// The program under test, with nothing of the tester's own settings.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.env_remove("SLUICEGATE_CONFIG").env_remove("SLUICEGATE_LOG").stdin(Stdio::null());
    command
}

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
    pub fn within(env: &[(&str, &str)], server: &str, rest: &str) -> Gateway {
        Gateway::launch(env, |dir| laid_out(dir, &config(server, rest)))
    }

    /// With this text as its whole config.
    pub fn whole(config: &str) -> Gateway {
        Gateway::launch(&[], |dir| laid_out(dir, config))
    }

    /// Runs `sluicegate proxy` with `arguments`.
    pub fn proxy(arguments: &[&str]) -> Gateway {
        let own = ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        Gateway::launch(&[], |_| own.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect())
    }

    /// `arguments` lays out an empty directory and returns the command line.
    pub fn launch(env: &[(&str, &str)], arguments: impl FnOnce(&Path) -> Vec<String>) -> Gateway {
        let dir = tempfile::tempdir().unwrap();
        let mut command = program();
        command.args(arguments(dir.path())).envs(env.iter().copied());
        Gateway::spawn(command, dir)
    }

    /// Runs `command`, which is the program or becomes it.
    pub fn spawn(mut command: Command, dir: TempDir) -> Gateway {
        let log = dir.path().join("stderr.log");
        let child = command
            .stdout(fs::File::create(dir.path().join("stdout.log")).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gateway = Gateway { addr: nowhere, admin: nowhere, dir, child, log };
        until("the gateway is ready", || {
            let ended = gateway.child.try_wait().unwrap();
            assert!(ended.is_none(), "the gateway ended at its start: {ended:?}");
            gateway.find_addresses()
        });
        gateway
    }

    /// Reads them from the line that says that it is ready; false while there is none.
    fn find_addresses(&mut self) -> bool {
        let log = self.log();
        let Some((_, ready)) = log.split_once(" ready listen=\"").filter(|(_, ready)| ready.contains('\n')) else {
            return false;
        };
        let (listen, rest) = ready.split_once('"').unwrap();
        let (admin, _) = rest.trim_start_matches(" admin=\"").split_once('"').unwrap();
        self.addr = listen.split(", ").find_map(|addr| addr.parse().ok()).unwrap_or(self.addr);
        self.admin = admin.parse().unwrap_or(self.admin);
        true
    }

    /// Where all listeners are, in the order of the config; those without a port are left out.
    pub fn listeners(&self) -> Vec<SocketAddr> {
        let log = self.log();
        let (_, ready) = log.split_once(" ready listen=\"").unwrap();
        let (listen, _) = ready.split_once('"').unwrap();
        listen.split(", ").filter_map(|addr| addr.parse().ok()).collect()
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
        client::ask(self.addr, head)
    }

    /// `GET target` on a connection of its own.
    #[track_caller]
    pub fn get(&self, target: &str) -> Message {
        self.ask(&client::get(target, ""))
    }

    /// `GET path` of the admin listener.
    #[track_caller]
    pub fn admin(&self, path: &str) -> Message {
        self.admin_ask("GET", path, "", "")
    }

    /// A call of the admin listener, with further field lines, each ended by CRLF.
    #[track_caller]
    pub fn admin_ask(&self, method: &str, path: &str, fields: &str, body: impl AsRef<[u8]>) -> Message {
        Client::connect(self.admin).ask(&client::call(method, path, fields, body.as_ref().len()), body)
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
        let mut found = None;
        until(&format!("{name} {labels:?} is {value}"), || {
            let is = self.metric(name, labels);
            if is != found {
                eprintln!("{name} {labels:?} is {is:?}");
            }
            found = is;
            is == Some(value)
        });
    }

    /// Waits until every worker has reached its store; until then limits are decided without it.
    #[track_caller]
    pub fn until_connected(&self) {
        until("the store has been reached", || self.metric("store_gateways", &[]) >= Some(1.0));
        until("every worker has reached it", || self.metric("store_up", &[]) == Some(1.0));
    }

    /// The file `sluicegate.toml`.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("sluicegate.toml")
    }

    /// Puts another text in place of the config's, at once: the watcher may be first, and must not see a
    /// part.
    pub fn write_config(&self, text: &str) {
        put(&self.config(), text);
    }

    /// The same, and has it read. Returns the answer.
    #[track_caller]
    pub fn reload(&self, text: &str) -> Message {
        self.write_config(text);
        let answer = self.admin_ask("POST", "/-/reload", "", "");
        assert_eq!(answer.status(), 200, "{}", answer.text());
        answer
    }

    /// Has the config read with `to` in place of `from`, which must be there.
    #[track_caller]
    pub fn reload_with(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        self.reload(&super::manual::changed(&text, from, to));
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

    /// How many lines of the log hold all of `words`.
    pub fn log_lines(&self, words: &[&str]) -> usize {
        self.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// What it has written to standard output.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.dir.path().join("stdout.log")).unwrap()
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

/// Writes the config, and returns the command that runs with it.
pub fn laid_out(dir: &Path, config: &str) -> Vec<String> {
    let path = dir.join("sluicegate.toml");
    fs::write(&path, config).unwrap();
    vec!["run".to_owned(), "--config".to_owned(), path.display().to_string()]
}
