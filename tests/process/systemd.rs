//! The program under systemd, which it notifies of its state, and which may pass it sockets.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::{Gateway, config, program};
use crate::support::{WAIT_MAX, wait_until};

const ROUTE: &str = "[[route]]\nupstream = \"echo:\"\n";

/// Returns the lines of the next message.
fn read_states(systemd: &UnixDatagram) -> Vec<String> {
    let mut message = [0; 1024];
    let length = systemd.recv(&mut message).expect("systemd receives a message");
    String::from_utf8(message[..length].to_vec()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn systemd_is_notified_of_start_reloads_and_stop() {
    let tmp = tempfile::tempdir().unwrap();
    let socket = tmp.path().join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    systemd.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut gateway = Gateway::with_env(&[("NOTIFY_SOCKET", socket.to_str().unwrap())], "", ROUTE);
    assert_eq!(read_states(&systemd), ["READY=1", "STATUS=serving"]);

    gateway.signal("HUP");
    let reloading = read_states(&systemd);
    assert_eq!(reloading[0], "RELOADING=1");
    let since: u64 = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
    assert!(since > 0);
    assert_eq!(
        read_states(&systemd),
        ["READY=1", "STATUS=serving generation 1 of the config"],
        "the config had not changed"
    );

    gateway.write_config("[[route]");
    gateway.signal("HUP");
    // The watcher may notice the file as well, before or after.
    loop {
        let news = read_states(&systemd);
        assert!(["RELOADING=1", "READY=1"].contains(&news[0].as_str()), "{news:?}");
        if news[1].contains("does not load: generation 1 stays active") {
            break;
        }
    }
    gateway.signal("TERM");
    while read_states(&systemd) != ["STOPPING=1", "STATUS=draining"] {}
    assert_eq!(gateway.exit().code(), Some(0));
}

/// Opens the sockets, passes them as systemd does, and executes the program.
const HAND_OVER: &str = r#"
import os, socket, sys
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen()
unix = socket.socket(socket.AF_UNIX); unix.bind(sys.argv[1]); unix.listen()
other = socket.socket(); other.bind(("127.0.0.1", 0)); other.listen()
config = open(sys.argv[2]).read().replace("PORT", str(tcp.getsockname()[1]))
open(sys.argv[2], "w").write(config)
held = [os.dup(s.fileno()) for s in (tcp, unix, other)]
for number, fd in enumerate(held):
    os.dup2(fd, 3 + number)
os.environ.update(LISTEN_FDS="3", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[3], sys.argv[3:])
"#;

fn handed_over(dir: tempfile::TempDir) -> Gateway {
    let program = program();
    let mut command = Command::new("python3");
    command.args(["-c", HAND_OVER]).arg(dir.path().join("admin.sock")).arg(dir.path().join("sluicegate.toml"));
    command.arg(program.get_program()).args(["run", "-c"]).arg(dir.path().join("sluicegate.toml"));
    command.env_remove("SLUICEGATE_CONFIG").env_remove("SLUICEGATE_LOG").stdin(Stdio::null());
    Gateway::spawn(command, dir)
}

fn is_socket(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.file_type().is_socket())
}

/// An address that another process has bound cannot be bound again, so the gateway uses the passed sockets.
#[test]
fn sockets_that_are_handed_over_serve_the_addresses_they_have() {
    let dir = tempfile::tempdir().unwrap();
    let admin = dir.path().join("admin.sock");
    let text = config("", ROUTE).replacen("127.0.0.1:0\"]", "127.0.0.1:PORT\"]", 1);
    let text = text.replacen("127.0.0.1:0", &format!("unix:{}", admin.display()), 1);
    fs::write(dir.path().join("sluicegate.toml"), text).unwrap();
    let mut gateway = handed_over(dir);
    assert_eq!(gateway.get("/").status(), 200);
    let ready = program().args(["healthcheck", "-c"]).arg(gateway.config()).status().unwrap();
    assert!(ready.success());
    let log = gateway.log();
    assert_eq!(
        log.matches("a socket was handed over for an address that the config does not name").count(),
        1,
        "{log}"
    );

    // The address is removed from the config and added again.
    let text = fs::read_to_string(gateway.config()).unwrap();
    let port = gateway.addr.port().to_string();
    let reload = |text: &str| {
        let before = gateway.log_lines(&["config reloaded"]);
        gateway.write_config(text);
        gateway.signal("HUP");
        wait_until("the reload has ended", || gateway.log_lines(&["config reloaded"]) > before);
    };
    reload(&text.replace(&port, "0"));
    let mut waiting = gateway.client();
    // Workers apply the config one after the other.
    wait_until("an address that the config does not name is not served", || {
        waiting = gateway.client();
        waiting.send(get("/", ""));
        waiting.stream().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        waiting.try_read_head().is_err()
    });
    reload(&text);
    waiting.stream().set_read_timeout(Some(WAIT_MAX)).unwrap();
    assert_eq!(waiting.read_response("GET").status(), 200, "its clients waited in the queue");
    assert_eq!(gateway.get("/").status(), 200);
    // An address that includes it cannot be bound while systemd holds the socket, so the config is rejected.
    gateway.write_config(&text.replace(&format!("127.0.0.1:{port}"), &format!("0.0.0.0:{port}")));
    gateway.signal("HUP");
    wait_until("the log says so", || gateway.log().contains(&format!("cannot listen on 0.0.0.0:{port}")));
    assert_eq!(gateway.get("/").status(), 200);
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(0));
    assert!(is_socket(&admin), "whoever handed the socket over still listens there");
}
