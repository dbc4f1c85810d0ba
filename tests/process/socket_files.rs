//! Unix socket files, and processes at their other end: the gateway never replaces or removes anything but sockets, and
//! no peer can block the control thread or hand it false sockets.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::support::gateway::{Gateway, program};
use crate::support::wait_until;

#[track_caller]
fn until_said(gateway: &Gateway, words: &str) {
    wait_until(words, || gateway.log().contains(words));
}

/// Creates a file at the path of a socket. It must be left unchanged.
fn occupy(path: &Path, kind: &str) {
    match kind {
        "a regular file" => std::fs::write(path, "precious").unwrap(),
        "a directory" => std::fs::create_dir(path).unwrap(),
        "a symbolic link" => {
            std::fs::write(path.with_extension("target"), "precious").unwrap();
            std::os::unix::fs::symlink(path.with_extension("target"), path).unwrap();
        }
        _ => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
    }
}

#[test]
fn a_file_that_is_no_socket_is_never_replaced() {
    for kind in ["a regular file", "a directory", "a symbolic link", "a named pipe"] {
        for (place, server, admin) in [
            ("x", "listen = [\"unix:DIR/x\"]", "127.0.0.1:0"),
            ("x", "listen = [\"127.0.0.1:0\"]", "unix:DIR/x"),
            ("x", "listen = [\"127.0.0.1:0\"]\nhandover = \"DIR/x\"", "127.0.0.1:0"),
            ("x.next", "listen = [\"127.0.0.1:0\"]\nhandover = \"DIR/x\"", "127.0.0.1:0"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(place);
            occupy(&path, kind);
            let before = std::fs::symlink_metadata(&path).unwrap().ino();
            let text = format!(
                "[server]\nworkers = 1\n{server}\n[admin]\nlisten = \"{admin}\"\n[[route]]\nrespond = {{ body = \"in\" }}\n"
            );
            let config = dir.path().join("sluicegate.toml");
            std::fs::write(&config, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
            let mut command = Command::new("timeout");
            let output =
                command.arg("20").arg(env!("CARGO_BIN_EXE_sluicegate")).arg("run").arg(config).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{place} {kind}: {stderr}");
            assert!(stderr.contains(&format!("{kind} is there, not a socket")), "{stderr}");
            assert_eq!(std::fs::symlink_metadata(&path).unwrap().ino(), before, "{place} {kind}");
        }
    }
}

#[test]
fn a_reload_leaves_a_file_alone_and_removes_only_its_own_sockets() {
    let gateway = Gateway::start("[[route]]\nrespond = { body = \"in\" }\n");
    let [file, own] = ["file", "own"].map(|name| gateway.dir.path().join(name));
    std::fs::write(&file, "precious").unwrap();
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    let listening = |paths: &[&Path]| {
        let addrs: String = paths.iter().map(|path| format!(", \"unix:{}\"", path.display())).collect();
        text.replacen("\"127.0.0.1:0\"]", &format!("\"127.0.0.1:0\"{addrs}]"), 1)
    };
    gateway.write_config(&listening(&[&own, &file]));
    until_said(&gateway, "a regular file is there, not a socket");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(!own.exists(), "a refused reload leaves no socket behind");
    gateway.write_config(&listening(&[&own]));
    wait_until("the socket is served", || UnixStream::connect(&own).is_ok());
    // Another program puts a file there, and then the address is removed from the config.
    std::fs::remove_file(&own).unwrap();
    std::fs::write(&own, "precious").unwrap();
    gateway.write_config(&text);
    until_said(&gateway, "cannot remove the socket file");
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "precious");
}

/// A listener whose queue is full and whose owner never accepts: a blocking connect to it waits forever.
fn full(path: &Path) -> (socket2::Socket, Vec<socket2::Socket>) {
    let addr = socket2::SockAddr::unix(path).unwrap();
    let new = || socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    let listener = new();
    listener.bind(&addr).unwrap();
    listener.listen(0).unwrap();
    let clients = std::iter::from_fn(|| {
        let client = new();
        client.set_nonblocking(true).unwrap();
        client.connect(&addr).ok().map(|()| client)
    });
    let clients = clients.collect();
    (listener, clients)
}

#[test]
fn a_foreign_socket_that_is_full_stops_nothing() {
    let mut gateway = Gateway::start("[[route]]\nrespond = { body = \"in\" }\n");
    let path = gateway.dir.path().join("full.sock");
    let _foreign = full(&path);
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.write_config(&text.replacen(
        "\"127.0.0.1:0\"]",
        &format!("\"127.0.0.1:0\", \"unix:{}\"]", path.display()),
        1,
    ));
    until_said(&gateway, "cannot listen on unix:");
    assert_eq!(gateway.admin("/livez").status(), 200);
    assert!(path.exists());
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(0));
}

/// A config with a `handover` socket in `dir`.
fn with_handover(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("sluicegate.toml");
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\nhandover = \"{}/way.sock\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[route]]\nrespond = {{ body = \"in\" }}\n",
        dir.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Starts a gateway while the test acts as the old process, which runs `serve` on the connection of the new one.
fn after(serve: impl FnOnce(UnixStream) + Send + 'static) -> Gateway {
    let dir = tempfile::tempdir().unwrap();
    let config = with_handover(dir.path());
    let old = UnixListener::bind(dir.path().join("way.sock")).unwrap();
    let thread = std::thread::spawn(move || serve(old.accept().unwrap().0));
    let mut command = program();
    command.arg("run").arg(config);
    let gateway = Gateway::spawn(command, dir);
    thread.join().unwrap();
    gateway
}

fn pass(stream: &UnixStream, names: &str, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    sendmsg(stream, &[IoSlice::new(names.as_bytes())], &mut control, SendFlags::NOSIGNAL).unwrap();
}

#[test]
fn handed_over_sockets_with_a_wrong_identity_are_refused() {
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = |what: &str, says: &str, name: String, fds: Vec<std::os::fd::OwnedFd>| {
        let gateway = after(move |stream| {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            pass(&stream, &format!("{name}\n\n"), &fds);
        });
        assert!(gateway.log().contains(says), "{what}: {}", gateway.log());
        assert_eq!(gateway.get("/").text(), "in", "{what}");
    };
    let own = listener();
    let other = listener().local_addr().unwrap();
    refused("another port", "is bound to", other.to_string(), vec![own.into()]);
    refused("another kind", "is bound to", "unix:/tmp/x.sock".to_owned(), vec![listener().into()]);
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    refused("datagrams", "not a listening socket", udp.local_addr().unwrap().to_string(), vec![udp.into()]);
    let server = listener();
    let stream = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
    refused("a connection", "not a listening socket", stream.local_addr().unwrap().to_string(), vec![stream.into()]);
    let file = std::fs::File::open("/dev/null").unwrap();
    refused("a file", "does not hand over", "127.0.0.1:0".to_owned(), vec![file.into()]);
    refused("no address", "is not an address", "nonsense".to_owned(), vec![listener().into()]);
}

#[test]
fn an_old_process_that_never_ends_its_names_is_left_within_bounds() {
    for pause in [Duration::ZERO, Duration::from_millis(300)] {
        let since = Instant::now();
        let gateway = after(move |mut stream| {
            let names = "127.0.0.1:1\n".repeat(if pause.is_zero() { 4096 } else { 1 });
            while stream.write_all(names.as_bytes()).is_ok() {
                std::thread::sleep(pause);
            }
        });
        // The gateway waits for at most five seconds.
        assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
        assert!(gateway.memory("VmHWM") < 200 << 20, "{} bytes", gateway.memory("VmHWM"));
        assert!(gateway.log().contains("does not hand over its sockets"), "{}", gateway.log());
        assert_eq!(gateway.get("/").text(), "in");
    }
}

/// A program that listens as another user, and sends each client any socket that the client requests.
const FOREIGN: &str = r#"
import os, socket, sys
os.setuid(65534)
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen()
print("ready", flush=True)
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen()
peer, _ = server.accept()
socket.send_fds(peer, [b"127.0.0.1:0\n\n"], [tcp.fileno()])
sys.stdin.read()
"#;

/// A mistaken path may be the socket of another program.
#[test]
fn the_live_socket_of_another_program_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let config = with_handover(dir.path());
    let path = dir.path().join("way.sock");
    let other = UnixListener::bind(&path).unwrap();
    other.set_nonblocking(true).unwrap();
    let before = std::fs::symlink_metadata(&path).unwrap().ino();
    let mut command = program();
    command.arg("run").arg(config);
    let mut gateway = Gateway::spawn(command, dir);
    until_said(&gateway, "its socket stays");
    let left = || std::fs::symlink_metadata(&path).unwrap().ino();
    assert_eq!(left(), before);
    // The other program still gets its clients.
    while other.accept().is_ok() {}
    let _client = UnixStream::connect(&path).unwrap();
    wait_until("it has a client", || other.accept().is_ok());
    gateway.signal("TERM");
    assert!(gateway.exit().success());
    assert_eq!(left(), before);
}

#[test]
fn an_old_process_of_another_user_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    if dir.path().metadata().unwrap().uid() != 0 {
        eprintln!("left out: only root can become another user");
        return;
    }
    let config = with_handover(dir.path());
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let mut foreign = Command::new("python3")
        .args(["-c", FOREIGN])
        .arg(dir.path().join("way.sock"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    foreign.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let mut command = program();
    command.arg("run").arg(config);
    let gateway = Gateway::spawn(command, dir);
    assert!(gateway.log().contains("user 65534 listens there"), "{}", gateway.log());
    assert_eq!(gateway.get("/").text(), "in");
    drop(foreign.stdin.take());
    foreign.wait().unwrap();
}

#[test]
fn a_second_signal_ends_a_process_whose_control_thread_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("sluicegate.toml");
    // Patterns that take the control thread far longer to compile than the test lasts.
    let routes = (0..5000).map(|i| format!("[[route]]\npath = '~ ^/{i}/[\\w\\d]{{1,200}}$'\nrespond = {{ }}\n"));
    std::fs::write(&config, routes.collect::<String>()).unwrap();
    let mut child = program().arg("run").arg(config).stderr(Stdio::null()).spawn().unwrap();
    let status = || std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    wait_until("it catches TERM", || {
        let caught = status().lines().find_map(|line| Some(line.strip_prefix("SigCgt:")?.trim().to_owned())).unwrap();
        u64::from_str_radix(&caught, 16).unwrap() >> 14 & 1 == 1
    });
    std::thread::sleep(Duration::from_millis(300));
    let since = Instant::now();
    // Two signals at the same time may count as one.
    for _ in 0..5 {
        let _ = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
}

#[test]
fn a_service_manager_that_does_not_read_stops_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let filler = std::os::unix::net::UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send_to(b"x", &path).is_ok() {}
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap())];
    let mut gateway = Gateway::with_env(&env, "", "[[route]]\nrespond = { body = \"in\" }\n");
    gateway.signal("HUP");
    assert_eq!(gateway.admin("/livez").status(), 200);
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(0));
    drop(manager);
}

/// Mode and group of a file.
fn access(path: &Path) -> (u32, u32) {
    let file = std::fs::symlink_metadata(path).unwrap();
    (file.permissions().mode() & 0o777, file.gid())
}

#[test]
fn the_config_says_who_may_connect_to_a_socket_and_a_reload_changes_it() {
    let gateway = Gateway::start("[[route]]\nrespond = { body = \"in\" }\n");
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    let [plain, own] = ["plain.sock", "own.sock"].map(|name| gateway.dir.path().join(name));
    let with = |more: &str| {
        let text = text.replacen("\"127.0.0.1:0\"]", &format!("\"127.0.0.1:0\", \"unix:{}\"]", plain.display()), 1);
        format!("{text}[[listener]]\naddress = \"unix:{}\"\n{more}", own.display())
    };
    let group = rustix::process::getegid().as_raw();
    gateway.write_config(&with("mode = \"0600\"\n"));
    wait_until("both sockets are served", || UnixStream::connect(&own).is_ok() && UnixStream::connect(&plain).is_ok());
    assert_eq!((access(&plain), access(&own)), ((0o666, group), (0o600, group)));
    // The socket stays, with another mode.
    let before = std::fs::symlink_metadata(&own).unwrap().ino();
    gateway.write_config(&with("mode = \"0660\"\n"));
    wait_until("the mode changes", || access(&own).0 == 0o660);
    assert_eq!(std::fs::symlink_metadata(&own).unwrap().ino(), before);
    if rustix::process::geteuid().is_root() {
        gateway.write_config(&with("mode = \"0620\"\nowner = \"nobody\"\ngroup = \"65534\"\n"));
        wait_until("owner and group change", || access(&own) == (0o620, 65534));
        assert_eq!(std::fs::symlink_metadata(&own).unwrap().uid(), 65534);
    }
    // A config that cannot be applied is not active, and the socket keeps all of its permissions.
    let before = access(&own);
    gateway.write_config(&with("mode = \"0600\"\ngroup = \"no-such-group\"\n"));
    until_said(&gateway, "there is no group `no-such-group`");
    wait_until("it is reported", || gateway.admin("/-/status").json()["last_reload"]["result"] == "failure");
    assert_eq!(access(&own), before);
    assert!(UnixStream::connect(&own).is_ok());
    // What fails once the config is active is a problem, not a success.
    std::fs::remove_file(&plain).unwrap();
    gateway.write_config(&(with("mode = \"0600\"\n") + "[limit.new]\nrate = \"1/s\"\n"));
    wait_until("the mode changes", || access(&own).0 == 0o600);
    let is_incomplete = || {
        let is_problem = gateway.admin("/-/status").json()["problems"][0]["kind"] == "reload_incomplete";
        assert_eq!(gateway.metric("config_unapplied", &[]) > Some(0.0), is_problem);
        is_problem
    };
    wait_until("it is a problem", is_incomplete);
    // It stays one, whatever else is loaded, until the fault is gone.
    let reload = || gateway.admin_request("POST", "/-/reload", "", "").json()["result"].clone();
    assert_eq!(reload(), "unchanged");
    assert!(is_incomplete(), "the socket still has no file");
    let active = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.write_config("no config");
    wait_until("it is rejected", || gateway.admin("/-/status").json()["last_reload"]["result"] == "failure");
    assert!(is_incomplete(), "the socket still has no file");
    gateway.write_config(&active.replacen(&format!(", \"unix:{}\"", plain.display()), "", 1));
    wait_until("the listener is gone", || !is_incomplete());
}

#[test]
fn a_socket_without_its_group_is_not_served_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (path, config) = (dir.path().join("own.sock"), dir.path().join("sluicegate.toml"));
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"unix:{}\"\ngroup = \"no-such-group\"\n[[route]]\nrespond = {{}}\n",
        path.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("timeout");
    let output = command.arg("20").arg(env!("CARGO_BIN_EXE_sluicegate")).arg("run").arg(config).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("there is no group `no-such-group`"), "{stderr}");
    assert!(!path.exists());
}
