//! A new process takes over from a running one: no request is refused, reset or left without a response, and if the new
//! process fails, the old one continues.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config_arguments, program};
use crate::support::tls::Trust;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;
use crate::tls::listeners::{ECHO, config};

/// Starts the first process, with two workers, which waits for the next one at `handover.sock`.
fn first(upstream: &Upstream, server: &str) -> Gateway {
    Gateway::launch(&[], |dir| {
        let path = dir.join("sluicegate.toml");
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\", \"unix:{0}/app.sock\"]\nworkers = 2\nhandover = \
             \"{0}/handover.sock\"\n{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n[[route]]\nupstream = \"{1}\"\n",
            dir.display(),
            upstream.url()
        );
        std::fs::write(&path, text).unwrap();
        vec!["run".to_owned(), "--config".to_owned(), path.display().to_string()]
    })
}

fn with(config: &Path) -> Command {
    let mut command = program();
    command.args(["run", "--config"]).arg(config);
    command
}

/// Another process with the same config.
fn next(config: &Path) -> Gateway {
    Gateway::spawn(with(config), tempfile::tempdir().unwrap())
}

/// Clients that send requests without a pause, some on keep-alive connections, some on new ones.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(addr: SocketAddr, clients: usize) -> Load {
        let (stop, answered, failures) = <(Arc<AtomicBool>, Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>)>::default();
        let threads = (0..clients).map(|number| {
            let (stop, answered, failures) = (stop.clone(), answered.clone(), failures.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = visit(addr, number % 2 == 0, &stop, &answered) {
                        failures.lock().unwrap().push(error);
                    }
                }
            })
        });
        let threads = threads.collect();
        Load { stop, answered, failures, threads }
    }

    fn until_more(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        wait_until("the load goes on", || self.answered.load(Ordering::Relaxed) > before + 200);
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        let failures = self.failures.lock().unwrap();
        assert!(
            failures.is_empty(),
            "{} of {}: {:?}",
            failures.len(),
            self.answered.load(Ordering::Relaxed),
            &failures[..1]
        );
    }
}

/// Sends requests on one connection until it ends.
fn visit(addr: SocketAddr, keeps: bool, stop: &AtomicBool, answered: &AtomicUsize) -> Result<(), String> {
    let stream = TcpStream::connect(addr).map_err(|error| format!("connect: {error}"))?;
    let mut client = Client::of(stream);
    let fields = if keeps { "" } else { "connection: close\r\n" };
    for turn in 0.. {
        client.try_send(get("/", fields)).map_err(|error| format!("request {turn}: {error}"))?;
        let response = client.try_read_response("GET").map_err(|error| format!("response {turn}: {error}"))?;
        if response.text() != "in" {
            return Err(response.head);
        }
        answered.fetch_add(1, Ordering::Relaxed);
        if response.get("connection") == Some("close") || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

fn over_unix(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(get("/", "connection: close\r\n").as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn under_load_nobody_notices() {
    let upstream = Upstream::text("in");
    let mut old = first(&upstream, "shutdown_delay = \"60s\"");
    let (config, socket) = (old.config(), old.dir.path().join("app.sock"));
    let load = Load::start(old.addr, 6);
    load.until_more();
    // The config is in the directory of the first process.
    let mut processes = Vec::new();
    for _ in 0..3 {
        let new = next(&config);
        assert_eq!((new.addr, new.admin), (old.addr, old.admin));
        let status = old.exit();
        assert_eq!(status.code(), Some(0), "{}", old.log());
        assert!(old.log().contains("another process has taken over"));
        load.until_more();
        assert!(over_unix(&socket).ends_with("in"));
        processes.push(std::mem::replace(&mut old, new));
        assert_eq!(old.admin("/readyz").status(), 200);
    }
    load.end();
    let waits = std::fs::metadata(config.with_file_name("handover.sock")).unwrap();
    assert!(waits.file_type().is_socket() && waits.permissions().mode() & 0o777 == 0o600);
    old.signal("TERM");
    // Two signals that arrive together are one.
    wait_until("the log says draining", || old.log().contains("draining"));
    old.signal("TERM");
    wait_until("no process listens", || TcpStream::connect(old.addr).is_err());
}

#[test]
fn at_the_end_clients_in_steady_use_lose_no_request() {
    let upstream = Upstream::text("in");
    let mut gateway = first(&upstream, "");
    let (stop, answered) = <(AtomicBool, AtomicUsize)>::default();
    let addr = gateway.addr;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(|| visit(addr, true, &stop, &answered))).collect();
        wait_until("the requests are sent", || answered.load(Ordering::Relaxed) > 300);
        gateway.signal("TERM");
        for client in clients {
            assert_eq!(client.join().unwrap(), Ok(()));
        }
    });
    assert_eq!(gateway.exit().code(), Some(0));
}

#[test]
fn requests_under_way_end_where_they_began() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/held" {
                let _ = wait.lock().unwrap().recv();
            }
            peer.send(ok(request.target()))?;
        }
        Ok(())
    });
    let mut old = first(&upstream, "");
    let (mut busy, mut idle) = (old.client(), old.client());
    idle.fetch(&get("/idle", ""), "");
    busy.send(get("/held", ""));
    wait_until("it has arrived", || upstream.requests().iter().any(|request| request.target() == "/held"));
    let mut new = next(&old.config());
    assert_eq!(new.get("/new").text(), "/new");
    idle.assert_closed();
    release.send(()).unwrap();
    let response = busy.read_response("GET");
    assert_eq!((response.text().as_str(), response.get("connection")), ("/held", Some("close")));
    assert_eq!(old.exit().code(), Some(0));
    new.signal("TERM");
    assert_eq!(new.exit().code(), Some(0));
    let left: Vec<PathBuf> = ["handover.sock", "app.sock"].map(|name| old.dir.path().join(name)).into();
    assert!(left.iter().all(|path| !path.exists()), "{left:?}");
}

#[test]
fn an_old_process_that_ends_meanwhile_keeps_the_files_of_the_new_one() {
    let upstream = Upstream::text("in");
    let mut old = first(&upstream, "");
    let [way, app] = ["handover.sock", "app.sock"].map(|name| old.dir.path().join(name));
    // The new process has the sockets and its own handover socket, but has not reported yet that it serves.
    let mut new = UnixStream::connect(&way).unwrap();
    let (mut names, mut some) = (Vec::new(), [0; 1024]);
    while !names.ends_with(b"\n\n") {
        let read = new.read(&mut some).unwrap();
        names.extend_from_slice(&some[..read]);
    }
    let next = way.with_extension("next");
    let _waits = UnixListener::bind(&next).unwrap();
    std::fs::rename(&next, &way).unwrap();
    old.signal("TERM");
    assert_eq!(old.exit().code(), Some(0));
    assert!(way.exists() && app.exists());
}

#[test]
fn a_process_that_does_not_take_over_changes_nothing() {
    let upstream = Upstream::text("in");
    let gateway = first(&upstream, "");
    let config = gateway.config();
    let socket = config.with_file_name("handover.sock");
    let text = std::fs::read_to_string(&config).unwrap();
    // The new config does not load, or needs an address that is in use.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = gateway.dir.path().join("other.toml");
    for (from, to) in [
        ("[[route]]".to_owned(), "[[rout]]".to_owned()),
        ("listen = [".to_owned(), format!("listen = [\"{}\", ", taken.local_addr().unwrap())),
    ] {
        std::fs::write(&other, text.replacen(&from, &to, 1)).unwrap();
        let failed = with(&other).output().unwrap();
        assert!(!failed.status.success(), "{to}");
    }
    // The client takes the sockets and leaves, or sends something unexpected.
    for says in [&b""[..], b"nonsense\n"] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let mut names = [0; 1024];
        let read = stream.read(&mut names).unwrap();
        assert!(String::from_utf8_lossy(&names[..read]).starts_with("127.0.0.1:0\n"));
        let _ = stream.write_all(says);
        drop(stream);
        assert_eq!(gateway.get("/").text(), "in");
    }
    wait_until("the log says so", || gateway.log().matches("a new process has not taken over").count() >= 3);
    assert!(over_unix(&config.with_file_name("app.sock")).ends_with("in"));
    // The next process takes over.
    let mut gateway = gateway;
    let new = next(&config);
    assert_eq!(gateway.exit().code(), Some(0));
    assert_eq!(new.get("/").text(), "in");
}

/// A stopped process, like one with a signal, interrupts each read that has a timeout.
#[test]
fn a_new_process_that_is_interrupted_still_takes_over() {
    let upstream = Upstream::text("in");
    let mut old = first(&upstream, "");
    old.signal("STOP");
    let log = old.dir.path().join("new.log");
    let mut new = with(&old.config()).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([&format!("-{name}"), &new.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    for _ in 0..50 {
        signal("STOP");
        signal("CONT");
        std::thread::sleep(Duration::from_millis(10));
    }
    old.signal("CONT");
    assert_eq!(old.exit().code(), Some(0), "{}", std::fs::read_to_string(&log).unwrap());
    wait_until("it is ready", || std::fs::read_to_string(&log).unwrap().contains(" ready "));
    signal("TERM");
    assert_eq!(new.wait().unwrap().code(), Some(0));
}

#[test]
fn clients_resume_their_tls_sessions_with_the_new_process() {
    let ca = Ca::new("test");
    let mut old = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "0");
        config_arguments(dir, &config(1, "", &format!("handover = \"{}/handover.sock\"", dir.display()), ECHO))
    });
    let config = old.config();
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let trusts = versions.map(|version| Trust::with(&ca, None, &[version]));
    let resumed = |gateway: &Gateway| {
        trusts.each_ref().map(|trust| {
            let mut client = trust.connect(gateway.addr, "a.test");
            assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
            client.was_resumed()
        })
    };
    assert_eq!(resumed(&old), [false; 2]);
    let mut processes = Vec::new();
    for _ in 0..2 {
        let new = next(&config);
        assert_eq!(old.exit().code(), Some(0), "{}", old.log());
        assert_eq!(resumed(&new), [true; 2]);
        processes.push(std::mem::replace(&mut old, new));
    }
    // A process that did not take over has other secrets.
    old.signal("TERM");
    assert_eq!(old.exit().code(), Some(0));
    assert_eq!(resumed(&next(&config)), [false; 2]);
}

#[test]
fn a_new_process_starts_after_a_crash_of_the_old_one() {
    let upstream = Upstream::text("in");
    let mut gateway = first(&upstream, "");
    gateway.signal("KILL");
    gateway.exit();
    let new = next(&gateway.config());
    assert_eq!(new.get("/").text(), "in");
}
