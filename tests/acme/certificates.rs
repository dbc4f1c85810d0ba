//! Certificates that an ACME server issues, with Pebble: both ways to prove a name, kept over restarts,
//! renewed, shared by gateways, and names that come and go.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::pebble::Pebble;
use crate::support::ports::ReservedPort;
use crate::support::tls::Trust;
use crate::support::wait_until;

/// Settings of a gateway that differ between tests; the others are fixed.
pub struct Setting<'a> {
    pub pebble: &'a Pebble,
    pub state: &'a Path,
    /// Ports of the listeners with TLS and without.
    pub tls: u16,
    pub http: u16,
    pub names: &'a [&'a str],
    /// Further lines of [acme], and options of `tls`.
    pub acme: &'a str,
    pub options: &'a str,
}

impl<'a> Setting<'a> {
    /// Pebble validates its challenges at the listeners.
    pub fn new(pebble: &'a Pebble, state: &'a Path, names: &'a [&'a str]) -> Setting<'a> {
        let (tls, http) = (pebble.tls.port(), pebble.http.port());
        Setting { pebble, state, tls, http, names, acme: "", options: "" }
    }

    pub fn config(&self) -> String {
        let Setting { pebble, state, tls, http, names, acme, options } = self;
        let (directory, ca, state) = (pebble.directory(), pebble.ca_file(), state.display());
        format!(
            "[server]\nworkers = 1\nredirect_http = \"127.0.0.1:{http}\"\n\n[admin]\nlisten = \"127.0.0.1:0\"\n\n\
             [acme]\ndirectory = \"{directory}\"\nca = \"{ca}\"\nstate = \"{state}\"\nterms_agreed = true\n\
             contact = [\"mailto:admin@example.com\"]\n{backoff}{acme}\n\n\
             [[listener]]\naddress = \"127.0.0.1:{tls}\"\ntls = {{ acme = {names:?}{options} }}\n\n\
             [[route]]\nupstream = \"echo:\"\n",
            backoff = if acme.contains("backoff") { "" } else { "backoff = \"1s\"\n" },
        )
    }

    pub fn start(&self) -> Gateway {
        self.start_within(&[])
    }

    /// Starts the gateway with further environment variables.
    pub fn start_within(&self, env: &[(&str, &str)]) -> Gateway {
        Gateway::launch(env, |dir| {
            // A Pebble that has not started has not written the CA of its own certificate yet.
            if !Path::new(&self.pebble.ca_file()).exists() {
                fs::write(self.pebble.ca_file(), Ca::new("nobody").pem()).unwrap();
            }
            config_arguments(dir, &self.config())
        })
    }
}

/// A gateway that has the first certificates for its names from Pebble, which it trusts.
pub struct Issued {
    pub pebble: Pebble,
    pub state: TempDir,
    pub gateway: Gateway,
    pub trust: Trust,
}

impl Issued {
    #[track_caller]
    pub fn start(names: &[&str]) -> Issued {
        Issued::by(Pebble::start(), names)
    }

    /// Orders certificates from a Pebble that is already running.
    #[track_caller]
    pub fn by(pebble: Pebble, names: &[&str]) -> Issued {
        let state = tempfile::tempdir().unwrap();
        let gateway = Setting::new(&pebble, state.path(), names).start();
        let trust = pebble.trust();
        names.iter().for_each(|name| until_served(&gateway, &trust, name));
        Issued { pebble, state, gateway, trust }
    }
}

/// Returns the number of orders with this result.
pub fn orders(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("acme_orders_total", &[("result", result)]).unwrap_or_default()
}

/// The TLS listener of a gateway.
pub fn secure(gateway: &Gateway) -> std::net::SocketAddr {
    gateway.listeners()[1]
}

pub fn serves(gateway: &Gateway, trust: &Trust, name: &str) -> bool {
    let Ok(mut client) = trust.try_connect(secure(gateway), name) else { return false };
    client
        .try_fetch(&format!("GET / HTTP/1.1\r\nhost: {name}\r\n\r\n"), "")
        .is_ok_and(|response| response.status() == 200)
}

#[track_caller]
pub fn until_served(gateway: &Gateway, trust: &Trust, name: &str) {
    wait_until(&format!("{name} is served"), || serves(gateway, trust, name));
}

/// The files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns a file with this ending below the state directory. Its path also contains a name for the ACME server.
#[track_caller]
pub fn file(state: &Path, ending: &str) -> PathBuf {
    let found = files(state).into_iter().find(|path| path.to_str().unwrap().ends_with(ending));
    found.unwrap_or_else(|| panic!("no {ending} in {:?}", files(state)))
}

#[test]
fn a_gateway_starts_without_certificates_gets_them_and_keeps_them() {
    let (mut pebble, state) = (Pebble::down(), tempfile::tempdir().unwrap());
    let dir = state.path().join("made/on/the/way");
    let setting = Setting::new(&pebble, &dir, &["www.test"]);
    let gateway = setting.start();
    let config = setting.config();
    let refused = Trust::in_ca(&Ca::new("any")).try_connect(secure(&gateway), "www.test").err().unwrap();
    assert!(refused.to_string().contains("AccessDenied"), "{refused}");
    let listener = format!("127.0.0.1:{}", pebble.tls.port());
    let handshakes = |result| [("listener", &*listener), ("result", result)].map(|(a, b)| (a, b.to_owned()));
    let count = |gateway: &Gateway, result| {
        let labels = handshakes(result);
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
        gateway.metric("tls_handshakes_total", &labels).unwrap_or_default()
    };
    wait_until("the handshake is counted", || count(&gateway, "no_certificate") == 1.0);
    wait_until("the ACME server is unreachable", || orders(&gateway, "unreachable") >= 1.0);
    let log = gateway.log();
    assert!(log.contains("until it is there, TLS handshakes for that name fail"), "{log}");
    assert!(log.contains("the ACME server cannot be reached") && log.contains("check `directory`"), "{log}");

    pebble.run(&[("PEBBLE_VA_NOSLEEP", "1")], 0);
    // From now on the gateway also trusts the CA of Pebble's own certificate.
    gateway.reload(&format!("{config}\n# changed\n"));
    let trust = pebble.trust();
    // Removing the state makes the gateway try at once, as the log says.
    fs::remove_file(file(state.path(), "www.test.json")).unwrap();
    until_served(&gateway, &trust, "www.test");
    assert_eq!((orders(&gateway, "issued"), count(&gateway, "acme_challenge") >= 1.0), (1.0, true));
    let expiry = [("listener", &*listener), ("name", "www.test")];
    wait_until("the log says when it expires", || {
        gateway.metric("tls_cert_not_after_timestamp_seconds", &expiry) > Some(1.8e9)
    });
    for path in files(state.path()) {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
    }
    let owners = file(state.path(), "www.test.pem").parent().unwrap().metadata().unwrap();
    assert_eq!(owners.permissions().mode() & 0o777, 0o700);

    pebble.stop();
    gateway.signal("KILL");
    drop(gateway);
    let gateway = Gateway::launch(&[], |dir| config_arguments(dir, &config));
    assert!(serves(&gateway, &trust, "www.test"), "it uses the saved certificate");
    assert_eq!(orders(&gateway, "unreachable"), 0.0);
}

#[test]
fn names_are_proved_over_plain_http_where_all_else_is_redirected() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    // Nothing listens where Pebble validates the other challenge, so that it is tried first and fails.
    let elsewhere = ReservedPort::new();
    let setting = Setting { tls: elsewhere.port(), ..Setting::new(&pebble, state.path(), &["www.test"]) };
    let gateway = setting.start();
    let trust = pebble.trust();
    until_served(&gateway, &trust, "www.test");
    assert_eq!((orders(&gateway, "issued"), orders(&gateway, "challenge_failed")), (1.0, 0.0));
    assert!(gateway.log().contains("could not validate the challenge by tls-alpn-01"), "{}", gateway.log());
    for target in ["/", "/.well-known/acme-challenge/unknown", "/.well-known/acme-challenge/../../etc/passwd"] {
        assert_eq!(Client::connect(gateway.listeners()[0]).fetch(&get(target, ""), "").status(), 308, "{target}");
    }
}

#[test]
fn certificates_of_clients_are_no_hindrance_and_a_proof_is_no_connection() {
    let (pebble, state, clients) = (Pebble::start(), tempfile::tempdir().unwrap(), Ca::new("clients"));
    let ca = state.path().join("clients.pem");
    fs::write(&ca, clients.pem()).unwrap();
    let options = format!(", client_ca = \"{}\", client_auth = \"required\"", ca.display());
    let acme = "challenges = [\"tls-alpn-01\"]";
    let gateway = Setting { acme, options: &options, ..Setting::new(&pebble, state.path(), &["www.test"]) }.start();
    wait_until("the certificate is there", || orders(&gateway, "issued") == 1.0);
    let trust = pebble.trust();
    assert!(!serves(&gateway, &trust, "www.test"), "the client presents its certificate");
    // No challenge is open, so the gateway offers no validation certificate.
    let proof = trust.offering(&["acme-tls/1"]).try_connect(secure(&gateway), "www.test");
    assert!(proof.is_err());
}

#[test]
fn gateways_on_one_directory_order_once_and_answer_for_each_other() {
    let (pebble, state, other) =
        (Pebble::start(), tempfile::tempdir().unwrap(), [ReservedPort::new(), ReservedPort::new()]);
    let first = Setting::new(&pebble, state.path(), &["a.test", "b.test"]);
    let second = Setting {
        tls: other[0].port(),
        http: other[1].port(),
        ..Setting::new(&pebble, state.path(), &["a.test", "b.test", "c.test"])
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| second.start());
        (first.start(), second.join().unwrap())
    });
    let trust = pebble.trust();
    for name in ["a.test", "b.test"] {
        until_served(&first, &trust, name);
        until_served(&second, &trust, name);
    }
    // Only the second gateway wants the certificate, but the server validates the challenge at the first.
    until_served(&second, &trust, "c.test");
    assert!(!serves(&first, &trust, "c.test"));
    let sum = |result| orders(&first, result) + orders(&second, result);
    assert_eq!((sum("issued"), sum("challenge_failed")), (3.0, 0.0));
    for gateway in [&first, &second] {
        assert!(!gateway.log().contains("did not get its proof"), "{}", gateway.log());
    }
    assert_eq!(pebble.count("Issued certificate serial"), 3);
}

#[test]
fn certificates_are_renewed_in_time() {
    let mut pebble = Pebble::down();
    pebble.run(&[("PEBBLE_VA_NOSLEEP", "1")], 6);
    let Issued { gateway, trust, pebble: _pebble, state: _state } = Issued::by(pebble, &["www.test"]);
    let mut open = trust.connect(secure(&gateway), "www.test");
    wait_until("the certificate was renewed", || orders(&gateway, "issued") >= 2.0);
    until_served(&gateway, &trust, "www.test");
    assert_eq!(open.fetch("GET / HTTP/1.1\r\nhost: www.test\r\n\r\n", "").status(), 200);
    assert!(gateway.log().contains("renewing a certificate"));
}

#[test]
fn names_come_and_go_with_the_config() {
    let mut pebble = Pebble::down();
    // Pebble rejects the nonce of every third request, which must be sent again with another nonce.
    pebble.run(&[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_WFE_NONCEREJECT", "30")], 0);
    let Issued { pebble, state, gateway, trust } = Issued::by(pebble, &["a.test"]);
    let both = Setting::new(&pebble, state.path(), &["a.test", "b.test"]);
    gateway.reload(&both.config());
    assert!(serves(&gateway, &trust, "a.test"), "the certificate in use stays");
    until_served(&gateway, &trust, "b.test");
    gateway.reload(&Setting { names: &["b.test"], ..both }.config());
    assert!(serves(&gateway, &trust, "b.test") && !serves(&gateway, &trust, "a.test"));
    // The certificate is kept until a config names it again.
    gateway.reload(&Setting { names: &["a.test"], ..Setting::new(&pebble, state.path(), &[]) }.config());
    assert!(serves(&gateway, &trust, "a.test"));
    assert_eq!(orders(&gateway, "issued"), 2.0);
}

/// Clients that use an address send no server name (RFC 8738 for the challenges).
#[test]
fn an_address_gets_a_certificate_by_either_challenge() {
    let pebble = Pebble::start();
    for challenge in ["tls-alpn-01", "http-01"] {
        let state = tempfile::tempdir().unwrap();
        let acme = format!("challenges = [\"{challenge}\"]\n");
        let names = ["www.test", "127.0.0.1"];
        let gateway = Setting { acme: &acme, ..Setting::new(&pebble, state.path(), &names) }.start();
        let trust = pebble.trust();
        names.iter().for_each(|name| until_served(&gateway, &trust, name));
        // The order of the names does not matter.
        assert!(serves(&gateway, &trust, "127.0.0.1") && serves(&gateway, &trust, "www.test"), "{challenge}");
        assert_eq!(orders(&gateway, "issued"), 2.0);
    }
}

#[test]
fn a_profile_that_the_server_lacks_is_an_error_that_says_so() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    let acme = "profile = \"shortlived\"\nbackoff = \"1h\"\n";
    let gateway = Setting { acme, ..Setting::new(&pebble, state.path(), &["www.test"]) }.start();
    wait_until("the order is refused", || orders(&gateway, "refused") == 1.0);
    assert_eq!(gateway.log_lines(&["it has no profiles: remove `profile`"]), 1);
}
