//! The challenge dns-01, with the name server Knot, whose zone a program changes by dynamic updates (RFC 2136).

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::certificates::{Setting, orders, secure, serves, until_served};
use crate::support::pebble::Pebble;
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

/// A key that may change the zone.
const SECRET: &str = "c2x1aWNlZ2F0ZS1zbHVpY2VnYXRlLXNsdWljZWdhdGU=";

/// The server of the zone example.test, in which every host has the address of this machine.
struct Knot {
    dir: TempDir,
    port: ReservedPort,
    child: Child,
}

impl Knot {
    fn start() -> Knot {
        let (dir, port) = (tempfile::tempdir().unwrap(), ReservedPort::new());
        let path = dir.path().display();
        let zone =
            "$ORIGIN example.test.\n@ 60 SOA ns admin 1 60 60 60 1\n@ 60 NS ns\n@ 60 A 127.0.0.1\n* 60 A 127.0.0.1\n";
        fs::write(dir.path().join("zone"), zone).unwrap();
        fs::create_dir(dir.path().join("db")).unwrap();
        let config = format!(
            "server:\n  listen: 127.0.0.1@{}\n  rundir: {path}\n\
             database:\n  storage: {path}/db\n\
             log:\n  - target: stderr\n    any: info\n\
             key:\n  - id: acme\n    algorithm: hmac-sha256\n    secret: {SECRET}\n\
             acl:\n  - id: update\n    key: acme\n    action: update\n\
             zone:\n  - domain: example.test\n    storage: {path}\n    file: zone\n    acl: update\n",
            port.port()
        );
        fs::write(dir.path().join("knot.conf"), config).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("knotd")
            .arg("-c")
            .arg(dir.path().join("knot.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start knotd: {error}; apt-get install knot"));
        let addr = port.addr();
        wait_until("knot is up", || TcpStream::connect(addr).is_ok());
        Knot { dir, port, child }
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Writes a program that changes the zone, and records its arguments in `calls`.
    fn write_program(&self, last: &str) -> PathBuf {
        let (dir, port) = (self.dir.path().display(), self.port.port());
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> {dir}/calls\ncase \"$2\" in\n\
             present) change=\"add $3 60 TXT \\\"$4\\\"\" ;;\n\
             cleanup) change=\"delete $3 TXT \\\"$4\\\"\" ;;\nesac\n\
             printf 'server 127.0.0.1 {port}\\nzone example.test\\n%s\\nsend\\n' \"$change\" | knsupdate -y hmac-sha256:acme:{SECRET} && {last}\n"
        );
        let path = self.dir.path().join("acme-dns");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn calls(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }

    /// The TXT records of the challenge for a host.
    fn records(&self, host: &str) -> String {
        let (at, port) = ("@127.0.0.1", self.port.port().to_string());
        let name = format!("_acme-challenge.{host}");
        let output = Command::new("kdig").args([at, "-p", &port, "+short", "TXT", &name]).output();
        let output = output.unwrap_or_else(|error| panic!("cannot start kdig: {error}; apt-get install knot-dnsutils"));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Knot {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of knotd ---\n{}", fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
        }
    }
}

fn settings(program: &Path) -> String {
    format!("dns_program = [\"{}\", \"zone\"]\ndns_wait = \"0s\"", program.display())
}

#[test]
fn a_wildcard_is_proven_by_a_record_that_a_program_publishes() {
    let knot = Knot::start();
    let (pebble, state) = (Pebble::with_name_server(knot.addr()), tempfile::tempdir().unwrap());
    let acme = settings(&knot.write_program("exit 0"));
    let names = ["example.test", "*.example.test"];
    let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
    let trust = pebble.trust();
    for name in ["example.test", "a.example.test", "b.example.test"] {
        until_served(&gateway, &trust, name);
    }
    assert!(!serves(&gateway, &trust, "b.a.example.test"), "a wildcard stands for one label");
    assert_eq!(orders(&gateway, "issued"), 2.0);
    // The program is called for each name, and the records are gone.
    wait_until("both records are removed", || knot.calls().len() == 4);
    for (call, action) in knot.calls().iter().zip(["present", "cleanup", "present", "cleanup"]) {
        assert_eq!(call[..3], ["zone", action, "_acme-challenge.example.test."]);
        assert_eq!(call[3].len(), 43, "a hash in base64url: {call:?}");
    }
    assert_eq!(knot.calls()[0][3], knot.calls()[1][3]);
    assert_eq!(knot.records("example.test"), "");
    // A gateway that starts later finds the certificate in the state directory.
    drop(gateway);
    let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
    until_served(&gateway, &trust, "c.example.test");
    assert_eq!((orders(&gateway, "issued"), knot.calls().len()), (0.0, 4));
    assert!(secure(&gateway).port() > 0);
}

/// Without its certificate, a name that the wildcard will have gets no other one.
#[test]
fn a_program_that_fails_is_named_in_the_log() {
    let knot = Knot::start();
    let (pebble, state) = (Pebble::with_name_server(knot.addr()), tempfile::tempdir().unwrap());
    let acme = settings(&knot.write_program("{ echo 'no such zone' >&2; exit 7; }"));
    let setting = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &["*.example.test"]) };
    let gateway = setting.start();
    wait_until("the failure is logged", || {
        gateway.log_lines(&["dns_program", "exit status: 7", "no such zone", "call the program by hand"]) > 0
    });
    assert!(orders(&gateway, "challenge_failed") >= 1.0);
    assert!(!serves(&gateway, &pebble.trust(), "a.example.test"));
    // A record that was published nevertheless is removed.
    assert!(knot.calls().iter().any(|call| call[1] == "cleanup"), "{:?}", knot.calls());
    drop(gateway);
    // The next gateway continues once the program works.
    fs::remove_dir_all(state.path()).unwrap();
    knot.write_program("exit 0");
    let gateway = setting.start();
    until_served(&gateway, &pebble.trust(), "a.example.test");
}
