//! The challenge dns-01, with the name server Knot, whose zone the gateway or a program changes by dynamic updates (RFC
//! 2136).

use std::fs;
use std::io::{Read, Write};
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

/// A record that the zone has from the start, as if another gateway proved the same name.
const OTHER: &str = "of-another-gateway";

/// The server of the zone example.test, in which every host has the address of this machine. It also has the zone
/// closed.test, which no key may change.
struct Knot {
    dir: TempDir,
    port: ReservedPort,
    child: Child,
}

impl Knot {
    fn start() -> Knot {
        let (dir, port) = (tempfile::tempdir().unwrap(), ReservedPort::new());
        let path = dir.path().display();
        let zone = "@ 60 SOA ns admin 1 60 60 60 1\n@ 60 NS ns\n@ 60 A 127.0.0.1\n* 60 A 127.0.0.1\n";
        let other = format!("_acme-challenge.shared 60 TXT {OTHER}\nshared 60 A 127.0.0.1\n");
        fs::write(dir.path().join("zone"), format!("$ORIGIN example.test.\n{zone}{other}")).unwrap();
        fs::write(dir.path().join("closed"), format!("$ORIGIN closed.test.\n{zone}")).unwrap();
        fs::create_dir(dir.path().join("db")).unwrap();
        let config = format!(
            "server:\n  listen: 127.0.0.1@{}\n  rundir: {path}\n\
             database:\n  storage: {path}/db\n\
             log:\n  - target: stderr\n    any: info\n\
             key:\n  - id: acme\n    algorithm: hmac-sha256\n    secret: {SECRET}\n\
             acl:\n  - id: update\n    key: acme\n    action: update\n\
             zone:\n  - domain: example.test\n    storage: {path}\n    file: zone\n    acl: update\n  - domain: closed.test\n    storage: {path}\n    file: closed\n",
            port.port()
        );
        fs::write(dir.path().join("knot.conf"), config).unwrap();
        let child = Knot::spawn(dir.path(), port.addr());
        Knot { dir, port, child }
    }

    fn spawn(dir: &Path, addr: SocketAddr) -> Child {
        let log = fs::File::create(dir.join("log")).unwrap();
        let child = Command::new("knotd")
            .arg("-c")
            .arg(dir.join("knot.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start knotd: {error}; apt-get install knot"));
        wait_until("knot is up", || TcpStream::connect(addr).is_ok());
        child
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn restart(&mut self) {
        self.child = Knot::spawn(self.dir.path(), self.port.addr());
    }

    /// The options with which the gateway changes the zone itself. `more`: further options of `dns`.
    fn updates(&self, key: &str, secret: &str, more: &str) -> String {
        let addr = self.addr();
        format!("dns_wait = \"0s\"\ndns = {{ server = \"{addr}\", key = \"{key}\", secret = \"{secret}\"{more} }}")
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
        self.stop();
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

#[test]
fn a_wildcard_is_proven_by_signed_updates() {
    let knot = Knot::start();
    let (pebble, state) = (Pebble::with_name_server(knot.addr()), tempfile::tempdir().unwrap());
    let acme = knot.updates("acme.", SECRET, "");
    let names = ["shared.example.test", "*.shared.example.test", "*.example.test"];
    let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
    let trust = pebble.trust();
    for name in ["shared.example.test", "a.shared.example.test", "a.example.test"] {
        until_served(&gateway, &trust, name);
    }
    assert_eq!(orders(&gateway, "issued"), 3.0);
    // Only what the gateway added is gone.
    assert_eq!(knot.records("shared.example.test"), format!("\"{OTHER}\"\n"));
    assert_eq!(knot.records("example.test"), "");
    let log = fs::read_to_string(knot.dir.path().join("log")).unwrap();
    assert!(log.contains("DDNS"), "the zone was changed by updates: {log}");
}

/// Other algorithms need a longer key; the zone is named in place of being asked for.
#[test]
fn the_key_may_have_other_algorithms() {
    let knot = Knot::start();
    let config = knot.dir.path().join("knot.conf");
    let text = fs::read_to_string(&config).unwrap();
    let (pebble, names) = (Pebble::with_name_server(knot.addr()), ["*.example.test"]);
    let mut knot = knot;
    for algorithm in ["hmac-sha384", "hmac-sha512"] {
        knot.stop();
        fs::write(&config, text.replace("hmac-sha256", algorithm)).unwrap();
        knot.restart();
        let state = tempfile::tempdir().unwrap();
        let more = format!(", algorithm = \"{algorithm}\", zone = \"Example.test\"");
        let acme = knot.updates("ACME", SECRET, &more);
        let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
        until_served(&gateway, &pebble.trust(), "a.example.test");
        assert_eq!(knot.records("example.test"), "");
    }
}

/// Each mistake is named in the log with its remedy, and nothing remains in the zone.
#[test]
fn a_rejected_update_is_explained() {
    let knot = Knot::start();
    let pebble = Pebble::with_name_server(knot.addr());
    let other_secret = "b3RoZXItb3RoZXItb3RoZXItb3RoZXItb3RoZXI=";
    for (name, acme, words) in [
        ("*.example.test", knot.updates("acme", other_secret, ""), ["BADSIG", "copy `secret`"]),
        (
            "*.example.test",
            knot.updates("other", SECRET, ""),
            ["does not accept the key other. with hmac-sha256", "compare `key` and `algorithm`"],
        ),
        (
            "*.example.test",
            knot.updates("acme", SECRET, ", algorithm = \"hmac-sha512\""),
            ["the key acme. with hmac-sha512", "compare `key` and `algorithm`"],
        ),
        (
            "*.closed.test",
            knot.updates("acme", SECRET, ""),
            ["the key acme. with hmac-sha256 for the zone closed.test.", "let the key change the zone"],
        ),
        ("*.elsewhere.test", knot.updates("acme", SECRET, ""), ["does not state the zone", "primary name server"]),
        (
            "*.example.test",
            knot.updates("acme", SECRET, ", zone = \"test\""),
            ["not the primary server of the zone test.", "write the primary"],
        ),
    ] {
        let state = tempfile::tempdir().unwrap();
        let names = [name];
        let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
        wait_until(words[0], || gateway.log_lines(&["`dns` of [acme]", words[0], words[1], "to try at once"]) > 0);
        assert!(orders(&gateway, "challenge_failed") >= 1.0);
        assert_eq!(gateway.log_lines(&[SECRET]) + gateway.log_lines(&[other_secret]), 0);
    }
    assert_eq!(knot.records("example.test"), "");
}

#[test]
fn a_name_server_that_is_away_at_first_is_tried_again() {
    let mut knot = Knot::start();
    knot.stop();
    let (pebble, state) = (Pebble::with_name_server(knot.addr()), tempfile::tempdir().unwrap());
    let acme = knot.updates("acme", SECRET, "");
    let names = ["*.example.test"];
    let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
    wait_until("the failure is logged", || {
        gateway.log_lines(&["the name server", "cannot be reached", "open for TCP", "to try at once"]) > 0
    });
    knot.restart();
    until_served(&gateway, &pebble.trust(), "a.example.test");
}

/// Something that claims success without the key proves nothing: a relay, or another server at this address.
#[test]
fn a_success_without_a_signature_is_none() {
    let knot = Knot::start();
    let liar = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = liar.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in liar.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 2];
            let Ok(()) = stream.read_exact(&mut length) else { continue };
            let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
            let Ok(()) = stream.read_exact(&mut message) else { continue };
            // The header of a success with the same id and operation, and no records.
            let header = [&message[..2], &[message[2] | 0x80, 0], &[0; 8]].concat();
            let _ = stream.write_all(&[&12_u16.to_be_bytes()[..], &header].concat());
        }
    });
    let (pebble, state) = (Pebble::with_name_server(knot.addr()), tempfile::tempdir().unwrap());
    let acme = format!(
        "dns_wait = \"0s\"\ndns = {{ server = \"{addr}\", key = \"acme\", zone = \"example.test\", secret = \"{SECRET}\" }}"
    );
    let names = ["*.example.test"];
    let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
    wait_until("the failure is logged", || {
        gateway.log_lines(&["no valid signature of the key acme.", "the name server itself"]) > 0
    });
}
