//! The command line of the real program: exit codes, what goes to which stream, signals.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

fn sluicegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(args).env_remove("SLUICEGATE_CONFIG").env_remove("SLUICEGATE_LOG").stdin(Stdio::null());
    command
}

/// Exit code and streams of a command that ends by itself.
fn output(args: &[&str]) -> (i32, String, String) {
    let child = sluicegate(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Running(child);
    child.end();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    let status = child.end();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn config(dir: &Path, listen: &str, admin: &str, server: &str) -> PathBuf {
    let file = dir.join("sluicegate.toml");
    let text = format!(
        "[server]\nlisten = [\"{listen}\"]\n{server}\n[admin]\nlisten = \"{admin}\"\n\n\
         [[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"per-ip\"]\n\n\
         [limit.per-ip]\nrate = \"10/s\"\nburst = 20\nkey = \"ip\"\n"
    );
    fs::write(&file, text).unwrap();
    file
}

/// A child that ends with the value.
struct Running(Child);

impl Running {
    /// Starts and waits for the line that says it is ready.
    fn start(command: &mut Command) -> Running {
        let mut child = Running(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut log = BufReader::new(child.0.stderr.take().unwrap());
        let (mut all, mut line) = (String::new(), String::new());
        while !line.contains("ready") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "ended before it was ready: {all}");
            all.push_str(&line);
        }
        // Read on, or the child would wait for a full pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        child
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "still running after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let (code, stdout, _) = output(&["--help"]);
    assert_eq!(code, 0);
    for word in ["run", "check", "proxy", "demo", "replay", "healthcheck", "Examples:", "Exit codes:"] {
        assert!(stdout.contains(word), "{word} is missing:\n{stdout}");
    }
    let (code, stdout, _) = output(&["--version"]);
    assert_eq!((code, stdout.trim()), (0, concat!("sluicegate ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn bad_usage_is_code_2() {
    for args in [&["nonsense"][..], &[], &["run", "--nonsense"], &["proxy"], &["healthcheck", "--url", "ftp://x"]] {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(stdout.is_empty() && !stderr.is_empty(), "{args:?}: {stdout} {stderr}");
    }
    assert_eq!(output(&["--log", "a=b=c", "check"]).0, 2);
}

#[test]
fn check_says_what_a_good_config_holds() {
    let tmp = tempfile::tempdir().unwrap();
    let file = config(tmp.path(), "127.0.0.1:1", "127.0.0.1:2", "");
    let (code, stdout, stderr) = output(&["check", "-c", file.to_str().unwrap()]);
    assert_eq!((code, stdout.as_str()), (0, "ok: 1 routes, 1 limits, 0 upstreams\n"), "{stderr}");
    let (code, stdout, _) = output(&["check", "-c", file.to_str().unwrap(), "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["ok"], &json["routes"]), (0, &true.into(), &1.into()));
    let by_environment = sluicegate(&["check"]).env("SLUICEGATE_CONFIG", &file).output().unwrap();
    assert!(by_environment.status.success());
}

#[test]
fn a_bad_or_missing_config_is_code_2_with_the_place() {
    let tmp = tempfile::tempdir().unwrap();
    let file = tmp.path().join("bad.toml");
    fs::write(&file, "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimit = [\"x\"]\n").unwrap();
    let file = file.to_str().unwrap();
    for command in ["check", "run"] {
        let (code, stdout, stderr) = output(&[command, "-c", file]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{command}");
        assert!(stderr.contains("bad.toml:4") && stderr.contains('^'), "{command}: {stderr}");
    }
    let (code, stdout, _) = output(&["check", "-c", file, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["ok"]), (2, &false.into()));
    assert!(!json["diagnostics"].as_array().unwrap().is_empty());
    let missing = tmp.path().join("missing.toml");
    for command in ["check", "run"] {
        let (code, _, stderr) = output(&[command, "-c", missing.to_str().unwrap()]);
        assert!(code == 2 && stderr.contains("missing.toml"), "{command}: {code} {stderr}");
    }
}

#[test]
fn an_address_in_use_is_code_1_and_names_it() {
    let tmp = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let file = config(tmp.path(), &addr, &format!("127.0.0.1:{}", free_port()), "");
    let (code, _, stderr) = output(&["run", "-c", file.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(stderr.contains(&format!("cannot listen on {addr}")) && stderr.contains("choose another"), "{stderr}");
}

#[test]
fn healthcheck_follows_readiness_through_the_drain() {
    let tmp = tempfile::tempdir().unwrap();
    let (port, admin) = (free_port(), free_port());
    let listen = format!("127.0.0.1:{port}");
    let file = config(tmp.path(), &listen, &format!("0.0.0.0:{admin}"), "shutdown_delay = \"1s\"");
    let file = file.to_str().unwrap();
    let url = format!("http://127.0.0.1:{admin}/readyz");
    let ask = |args: &[&str]| output(&[&["healthcheck"], args].concat());
    assert_eq!(ask(&["-c", file]).0, 1, "nothing runs yet");

    let mut gateway = Running::start(&mut sluicegate(&["run", "-c", file]));
    assert_eq!(ask(&["-c", file]), (0, String::new(), String::new()));
    assert_eq!(ask(&["--url", &url]).0, 0);
    gateway.signal("TERM");
    let until = Instant::now() + PATIENCE;
    while !get(admin, "/readyz").unwrap().contains("503") {
        assert!(Instant::now() < until);
    }
    assert!(get(admin, "/readyz").unwrap().contains("draining"));
    assert!(get(admin, "/livez").unwrap().starts_with("HTTP/1.1 200"));
    assert!(get(port, "/").unwrap().starts_with("HTTP/1.1 200"), "served while balancers look away");
    let (code, _, stderr) = ask(&["--url", &url]);
    assert!(code == 1 && stderr.contains("503"), "{code} {stderr}");
    assert_eq!(gateway.end().code(), Some(0));
    assert_eq!(ask(&["--url", &url]).0, 1);
}

/// The gateway runs on with the config it has.
#[test]
fn healthcheck_asks_a_gateway_whose_file_has_become_bad() {
    let tmp = tempfile::tempdir().unwrap();
    let file = config(tmp.path(), &format!("127.0.0.1:{}", free_port()), &format!("127.0.0.1:{}", free_port()), "");
    let (good, file) = (std::fs::read_to_string(&file).unwrap(), file.to_str().unwrap().to_owned());
    let mut gateway = Running::start(&mut sluicegate(&["run", "-c", &file]));
    for bad in
        ["[limit.x]\nrate = \"often\"\n", "nonsense = 1\n", "[limit.x\n", "key = \u{201c}ip\u{201d}\n", "[admin]\n"]
    {
        std::fs::write(&file, format!("{good}\n{bad}")).unwrap();
        assert_eq!(output(&["check", "-c", &file]).0, 2, "{bad}");
        assert_eq!(output(&["healthcheck", "-c", &file]), (0, String::new(), String::new()), "{bad}");
    }
    std::fs::remove_file(&file).unwrap();
    let (_, _, stderr) = output(&["healthcheck", "-c", &file]);
    assert!(stderr.contains("asking 127.0.0.1:9900"), "{stderr}");
    gateway.signal("INT");
    assert_eq!(gateway.end().code(), Some(0));
}

#[test]
fn healthcheck_gives_up_on_a_silent_server() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let started = Instant::now();
    let url = format!("http://{}/readyz", silent.local_addr().unwrap());
    assert_eq!(output(&["healthcheck", "--url", &url]).0, 1);
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[test]
fn healthcheck_reaches_a_unix_socket() {
    let tmp = tempfile::tempdir().unwrap();
    let socket = tmp.path().join("admin.sock");
    let admin = format!("unix:{}", socket.display());
    let file = config(tmp.path(), &format!("127.0.0.1:{}", free_port()), &admin, "");
    let file = file.to_str().unwrap();
    let mut gateway = Running::start(&mut sluicegate(&["run", "-c", file]));
    assert_eq!(output(&["healthcheck", "-c", file]).0, 0);
    gateway.signal("INT");
    assert_eq!(gateway.end().code(), Some(0));
    assert!(!socket.exists(), "the socket file remains");
}

#[test]
fn a_second_signal_ends_the_drain_with_code_1() {
    let tmp = tempfile::tempdir().unwrap();
    let (port, admin) = (free_port(), free_port());
    let (listen, admin_addr) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{admin}"));
    let file = config(tmp.path(), &listen, &admin_addr, "shutdown_delay = \"60s\"");
    let mut gateway = Running::start(&mut sluicegate(&["run", "-c", file.to_str().unwrap()]));
    gateway.signal("TERM");
    let until = Instant::now() + PATIENCE;
    while !get(admin, "/readyz").unwrap().contains("503") {
        assert!(Instant::now() < until);
    }
    gateway.signal("INT");
    assert_eq!(gateway.end().code(), Some(1));
}

#[test]
fn proxy_needs_no_file() {
    let (port, admin) = (free_port(), free_port());
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}", upstream.local_addr().unwrap());
    let (listen, admin) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{admin}"));
    let args = ["proxy", "--to", &to, "--listen", &listen, "--admin", &admin, "--limit", "1/day burst 2 by ip"];
    let mut gateway = Running::start(&mut sluicegate(&args));
    std::thread::spawn(move || {
        for stream in upstream.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi");
        }
    });
    let statuses: Vec<String> = (0..3).map(|_| get(port, "/").unwrap()[9..12].to_owned()).collect();
    assert_eq!(statuses, ["200", "200", "429"]);
    gateway.signal("TERM");
    assert_eq!(gateway.end().code(), Some(0));
}

#[test]
fn proxy_refuses_a_limit_it_cannot_read() {
    let (code, _, stderr) = output(&["proxy", "--to", "http://127.0.0.1:1", "--limit", "many"]);
    assert!(code == 2 && stderr.contains("many"), "{code} {stderr}");
}

#[test]
fn the_demo_config_is_valid() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/demo.toml");
    assert_eq!(output(&["check", "-c", demo]).0, 0);
}
