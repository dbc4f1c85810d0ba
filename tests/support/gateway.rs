//! The gateway as a process. It listens on free ports, which the log reports. Tests inspect it through its admin
//! listener. Dropping the value ends the process. A failed test prints the log.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use super::client::{self, Client};
use super::http::Message;
use super::memory::{self, MemoryWatch};
use super::{wait_until, write_atomically};

pub struct Gateway {
    /// The first listener with a port; 0.0.0.0:0 if there is none.
    pub addr: SocketAddr,
    pub admin: SocketAddr,
    /// The working directory, with the config as `sluicegate.toml` unless the test wrote it elsewhere.
    pub dir: TempDir,
    child: Child,
    log: PathBuf,
}

/// The start of `[server]`, to which tests add lines, and `[admin]`, both on free ports.
const LISTEN: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n";
const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// A config with one worker. `server` adds lines to `[server]`; `rest` is everything else. If it has an `[admin]`, that
/// gets the free port.
pub fn config(server: &str, rest: &str) -> String {
    let workers = if server.contains("workers") { "" } else { "workers = 1\n" };
    let (own, rest) = match rest.contains("[admin]\n") {
        true => ("", rest.replace("[admin]\n", ADMIN)),
        false => (ADMIN, rest.to_owned()),
    };
    format!("{LISTEN}{workers}{server}\n\n{own}\n{rest}\n")
}

/// The gateway's command, without settings of the developer's environment. Huge pages are off: a byte in one counts as
/// 2 MiB in measured memory, and how many the kernel grants depends on the load of the machine.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.env_remove("SLUICEGATE_CONFIG").env_remove("SLUICEGATE_LOG").env("MIMALLOC_ALLOW_THP", "0");
    command.stdin(Stdio::null());
    command
}

impl Gateway {
    /// Starts a gateway with one worker. `config` is everything except `[server]` and `[admin]`.
    pub fn start(config: &str) -> Gateway {
        Gateway::with("", config)
    }

    /// Starts a gateway with further lines in `[server]`.
    pub fn with(server: &str, config: &str) -> Gateway {
        Gateway::with_env(&[], server, config)
    }

    /// Starts a gateway with additional environment variables.
    pub fn with_env(env: &[(&str, &str)], server: &str, rest: &str) -> Gateway {
        Gateway::launch(env, |dir| config_arguments(dir, &config(server, rest)))
    }

    /// Starts a gateway with this complete config.
    pub fn with_config(config: &str) -> Gateway {
        Gateway::launch(&[], |dir| config_arguments(dir, config))
    }

    /// Starts `sluicegate proxy` with `arguments`.
    pub fn proxy(arguments: &[&str]) -> Gateway {
        let own = ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        Gateway::launch(&[], |_| own.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect())
    }

    /// Starts a gateway in an empty directory, in which `arguments` writes files and returns the command line.
    pub fn launch(env: &[(&str, &str)], arguments: impl FnOnce(&Path) -> Vec<String>) -> Gateway {
        let dir = tempfile::tempdir().unwrap();
        let mut command = program();
        command.args(arguments(dir.path())).envs(env.iter().copied());
        Gateway::spawn(command, dir)
    }

    /// Starts `command`, which is the gateway or becomes it.
    pub fn spawn(mut command: Command, dir: TempDir) -> Gateway {
        let log = dir.path().join("stderr.log");
        let child = command
            .stdout(fs::File::create(dir.path().join("stdout.log")).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gateway = Gateway { addr: nowhere, admin: nowhere, dir, child, log };
        wait_until("the gateway is ready", || {
            let ended = gateway.child.try_wait().unwrap();
            assert!(ended.is_none(), "the gateway ended at its start: {ended:?}");
            gateway.find_addresses()
        });
        gateway
    }

    /// Reads the addresses from the log line of readiness. Returns false if it is not there yet.
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

    /// The addresses of all listeners with a port, in the order of the config.
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

    /// Sends one request on a new connection.
    #[track_caller]
    pub fn fetch(&self, head: &str) -> Message {
        client::fetch(self.addr, head)
    }

    /// Sends `GET target` on a new connection.
    #[track_caller]
    pub fn get(&self, target: &str) -> Message {
        self.fetch(&client::get(target, ""))
    }

    /// Sends a POST request on a new connection. Each line of `fields` ends with CRLF.
    #[track_caller]
    pub fn post(&self, target: &str, fields: &str, body: impl AsRef<[u8]>) -> Message {
        let body = body.as_ref();
        let mut client = self.client();
        client.send([client::post(target, body.len() as u64, fields).as_bytes(), body].concat());
        client.read_response("POST")
    }

    /// Sends `GET path` to the admin listener.
    #[track_caller]
    pub fn admin(&self, path: &str) -> Message {
        self.admin_request("GET", path, "", "")
    }

    /// Sends a request to the admin listener. Each line of `fields` ends with CRLF.
    #[track_caller]
    pub fn admin_request(&self, method: &str, path: &str, fields: &str, body: impl AsRef<[u8]>) -> Message {
        let own = if fields.contains("content-type") { "" } else { content_type(body.as_ref().len()) };
        let fields = format!("{fields}{own}");
        Client::connect(self.admin).fetch(&client::call(method, path, &fields, body.as_ref().len()), body)
    }

    pub fn metrics(&self) -> String {
        let page = self.admin("/metrics");
        assert_eq!(page.status(), 200);
        page.text()
    }

    /// The value of a series, by its name without the prefix and by all its labels.
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

    /// Waits until a series has a value: some are counted just after the response was sent.
    #[track_caller]
    pub fn assert_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mut found = None;
        wait_until(&format!("{name} {labels:?} is {value}"), || {
            let is = self.metric(name, labels);
            if is != found {
                eprintln!("{name} {labels:?} is {is:?}");
            }
            found = is;
            is == Some(value)
        });
    }

    /// Waits until every worker has connected to its store. Until then, workers decide without it.
    #[track_caller]
    pub fn wait_for_store(&self) {
        wait_until("the store has been reached", || self.metric("store_gateways", &[]) >= Some(1.0));
        wait_until("every worker has reached it", || self.metric("store_up", &[]) == Some(1.0));
    }

    /// The path of `sluicegate.toml`.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("sluicegate.toml")
    }

    /// Replaces the config atomically, because the file watcher may read it at any moment.
    pub fn write_config(&self, text: &str) {
        write_atomically(&self.config(), text);
    }

    /// Replaces the config and reloads it. Returns the response.
    #[track_caller]
    pub fn reload(&self, text: &str) -> Message {
        self.write_config(text);
        let response = self.admin_request("POST", "/-/reload", "", "");
        assert_eq!(response.status(), 200, "{}", response.text());
        response
    }

    /// Replaces a text of the config, which must be there, and reloads.
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

    /// Waits until the process ends.
    #[track_caller]
    pub fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the gateway has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Number of log lines that contain all of `words`.
    pub fn log_lines(&self, words: &[&str]) -> usize {
        self.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// The standard output so far.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.dir.path().join("stdout.log")).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A value of /proc/PID/status in bytes, such as `VmRSS`.
    pub fn memory(&self, field: &str) -> u64 {
        memory::field(self.child.id(), field)
    }

    /// Measures from now on by how much the gateway grows.
    pub fn watch_memory(&self) -> MemoryWatch {
        MemoryWatch::start(self.child.id())
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

/// Writes the config and returns the arguments to run with it.
pub fn config_arguments(dir: &Path, config: &str) -> Vec<String> {
    let path = dir.join("sluicegate.toml");
    fs::write(&path, config).unwrap();
    vec!["run".to_owned(), "--config".to_owned(), path.display().to_string()]
}

/// The header with the content type that the admin listener needs for a body of this length.
pub fn content_type(length: usize) -> &'static str {
    if length == 0 { "" } else { "content-type: application/json\r\n" }
}
