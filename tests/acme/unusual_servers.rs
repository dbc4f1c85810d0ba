//! ACME servers with unusual behaviour: certificates that are due at once, senseless retry times, early results of
//! validation. A relay in front of Pebble simulates them.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::certificates::{Setting, file, orders, until_served};
use super::failures::until_logged;
use crate::support::ca::Ca;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::pebble::Pebble;
use crate::support::{faketime, wait_until};

/// Pebble behind a gateway that forwards its requests.
struct PebbleProxy {
    pebble: Pebble,
    ca: Ca,
    gateway: Gateway,
}

impl PebbleProxy {
    /// `options` of the route to Pebble.
    fn start(options: &str) -> PebbleProxy {
        let (pebble, ca) = (Pebble::start(), Ca::new("between"));
        let gateway = Gateway::launch(&[], |dir| {
            ca.issue(&["127.0.0.1"], "").save(dir, "between");
            config_arguments(dir, &config(&pebble, "", options))
        });
        PebbleProxy { pebble, ca, gateway }
    }

    /// Sets a route that takes precedence over the ACME server.
    fn set_route(&self, route: &str) {
        self.gateway.reload(&config(&self.pebble, route, ""));
    }

    /// Returns the config of a gateway that uses this server.
    fn config_with(&self, setting: &Setting) -> String {
        fs::write(self.pebble.ca_file(), self.ca.pem()).unwrap();
        let directory = format!("https://{}/dir", self.gateway.listeners()[0]);
        setting.config().replace(&self.pebble.directory(), &directory)
    }
}

fn config(pebble: &Pebble, route: &str, options: &str) -> String {
    let directory = pebble.directory();
    let (url, ca) = (directory.trim_end_matches("/dir"), pebble.own_ca());
    let path = std::path::Path::new(&pebble.ca_file()).with_file_name("own.pem");
    fs::write(&path, ca).unwrap();
    format!(
        "[server]\nworkers = 1\n\n[admin]\nlisten = \"127.0.0.1:0\"\n\n[[listener]]\naddress = \
         \"127.0.0.1:0\"\ntls = {{ certificates = [{{ cert = \"between.pem\", key = \"between.key\" }}] \
         }}\n\n[upstream.pebble]\nservers = [\"{url}\"]\ntls = {{ ca = \"{}\" }}\n\n{route}\n[[route]]\nname = \
         \"pebble\"\nupstream = \"pebble\"\n{options}\n",
        path.display()
    )
}

fn launch(config: &str) -> Gateway {
    Gateway::launch(&[], |dir| config_arguments(dir, config))
}

/// Returns the stored result of the last attempt for a name, and the seconds until the next attempt.
fn attempt(state: &std::path::Path, name: &str) -> (serde_json::Value, u64) {
    let text = fs::read_to_string(file(state, &format!("/{name}.json"))).unwrap();
    let known: serde_json::Value = serde_json::from_str(&text).unwrap();
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let next_s = known["next_s"].as_u64().unwrap();
    (known, next_s.saturating_sub(now_s))
}

#[test]
fn a_certificate_that_is_due_as_soon_as_it_is_issued_is_not_ordered_in_a_loop() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    let setting = Setting { acme: "backoff = \"1h\"", ..Setting::new(&pebble, state.path(), &["www.test"]) };
    // Four of the five years for which Pebble issues.
    let clock = faketime::clock("+1460d");
    let clock: Vec<(&str, &str)> = clock.iter().map(|(name, value)| (&**name, &**value)).collect();
    let gateway = setting.start_within(&clock);
    until_served(&gateway, &pebble.trust(), "www.test");
    until_logged(&gateway, "the certificate is due for renewal already");
    let (known, next_s) = attempt(state.path(), "www.test");
    assert_eq!(known["failures"], 1);
    assert!(next_s > 1460 * 86_400 + 1800, "{next_s}");
    assert_eq!((orders(&gateway, "issued"), pebble.count("Issued certificate serial")), (1.0, 1));
}

#[test]
fn retry_after_of_an_acme_server_applies_to_known_accounts() {
    let (between, state) = (PebbleProxy::start(""), tempfile::tempdir().unwrap());
    let setting = Setting::new(&between.pebble, state.path(), &["a.test"]);
    let gateway = launch(&between.config_with(&setting));
    wait_until("there is a certificate, and an account", || orders(&gateway, "issued") == 1.0);
    between.set_route(
        "[[route]]\nname = \"busy\"\npath = \"/order-plz\"\nrespond = { status = 503, body = \"busy\" \
         }\nresponse_headers = { set = { retry-after = \"7200\" } }\n",
    );
    gateway.reload(&between.config_with(&Setting { names: &["a.test", "b.test"], ..setting }));
    wait_until("the server received a request", || orders(&gateway, "unreachable") == 1.0);
    let (known, next_s) = attempt(state.path(), "b.test");
    assert!(known["reason"].as_str().unwrap().contains("it answered 503"), "{known}");
    assert!((7_000..=7_200).contains(&next_s), "{next_s}");
    assert_eq!(between.pebble.count("There are now 1 accounts"), 1);
}

/// A server may reject nonces at random, or lose them in a restart. That is no failure after which a gateway pauses.
#[test]
fn an_order_whose_nonces_are_rejected_is_repeated() {
    // The contacts of the account, a new order, its challenge, and its state.
    let paths = ["/my-account", "/order-plz", "/chalZ", "/my-order"];
    std::thread::scope(|scope| paths.iter().for_each(|path| drop(scope.spawn(|| assert_order_is_repeated(path)))));
}

/// Rejects the nonces of requests for `path` until the gateway repeats the order.
fn assert_order_is_repeated(path: &str) {
    let (between, state) = (PebbleProxy::start(""), tempfile::tempdir().unwrap());
    between.set_route(&format!(
        "[[route]]\nname = \"nonces\"\npath = \"{path}\"\nresponse_headers = {{ set = {{ replay-nonce = \"AAAA\" }} }}\n\
         [route.respond]\nstatus = 400\ncontent_type = \"application/problem+json\"\nbody = '{{\"type\": \
         \"urn:ietf:params:acme:error:badNonce\", \"detail\": \"unknown\", \"status\": 400}}'\n",
    ));
    let acme = "backoff = \"1h\"";
    let setting = Setting { acme, ..Setting::new(&between.pebble, state.path(), &["www.test"]) };
    let gateway = launch(&between.config_with(&setting));
    until_logged(&gateway, "rejected the nonces of a request: 400 badNonce: unknown; the order is repeated");
    between.set_route("");
    until_served(&gateway, &between.pebble.trust(), "www.test");
    assert_eq!((orders(&gateway, "issued"), orders(&gateway, "refused")), (1.0, 0.0));
}

#[test]
fn waits_without_end_that_a_server_asks_for_are_none() {
    let header = "response_headers = { set = { retry-after = \"18446744073709551615\" } }\n";
    let (between, state) = (PebbleProxy::start(header), tempfile::tempdir().unwrap());
    let gateway = launch(&between.config_with(&Setting::new(&between.pebble, state.path(), &["www.test"])));
    until_served(&gateway, &between.pebble.trust(), "www.test");
    assert_eq!(orders(&gateway, "issued"), 1.0);
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

#[test]
fn a_proof_that_fails_at_once_leaves_the_other_challenge() {
    let (between, state) = (PebbleProxy::start(""), tempfile::tempdir().unwrap());
    between.set_route(
        "[[route]]\nname = \"proof\"\npath = \"/chalZ/\"\n[route.respond]\nstatus = 200\nbody = '{\"type\": \"http-01\", \"url\": \
         \"https://127.0.0.1/\", \"token\": \"t\", \"status\": \"invalid\", \"error\": {\"type\": \
         \"urn:ietf:params:acme:error:connection\", \"detail\": \"nobody is there\"}}'\n",
    );
    let setting = Setting { acme: "backoff = \"1h\"", ..Setting::new(&between.pebble, state.path(), &["www.test"]) };
    let gateway = launch(&between.config_with(&setting));
    wait_until("the order failed", || orders(&gateway, "challenge_failed") + orders(&gateway, "refused") == 1.0);
    let log = gateway.log();
    for kind in ["tls-alpn-01", "http-01"] {
        assert!(
            log.contains(&format!("could not validate the challenge by {kind}: connection: nobody is there")),
            "{log}"
        );
    }
    assert_eq!((orders(&gateway, "refused"), between.pebble.count("Added order")), (0.0, 2));
}

/// Has the server offer renewal information, which is `document`.
fn offer_renewal_info(between: &PebbleProxy, document: &str) {
    let directory = format!("https://{}", between.gateway.listeners()[0]);
    let paths = [
        ("newNonce", "nonce-plz"),
        ("newAccount", "sign-me-up"),
        ("newOrder", "order-plz"),
        ("revokeCert", "revoke-cert"),
        ("keyChange", "rollover-account-key"),
        ("renewalInfo", "renewal-info"),
    ];
    let entries: Vec<String> = paths.iter().map(|(name, path)| format!("\"{name}\": \"{directory}/{path}\"")).collect();
    let json = "content_type = \"application/json\"";
    // As RFC 8555 allows, nobody gets an answer without a `User-Agent`.
    let header = "header = { user-agent = \"~ sluicegate/.*\" }\n";
    between.set_route(&format!(
        "[[route]]\npath = \"= /dir\"\n{header}[route.respond]\nstatus = 200\n{json}\nbody = '{{{}}}'\n\n\
         [[route]]\nname = \"info\"\npath = \"/renewal-info/\"\n{header}[route.respond]\nstatus = 200\n{json}\nbody = '{document}'\n",
        entries.join(", ")
    ));
}

fn window(start: &str, end: &str) -> String {
    format!("{{\"suggestedWindow\": {{\"start\": \"{start}\", \"end\": \"{end}\"}}}}")
}

/// Starts a gateway two days after its certificate was issued. Returns it with the log line of its renewal information.
#[track_caller]
fn start_two_days_later(between: &PebbleProxy, state: &std::path::Path, words: &str) -> Gateway {
    let setting = Setting::new(&between.pebble, state, &["www.test"]);
    let first = launch(&between.config_with(&setting));
    wait_until("there is a certificate", || orders(&first, "issued") == 1.0);
    drop(first);
    let clock = faketime::clock("+2d");
    let clock: Vec<(&str, &str)> = clock.iter().map(|(name, value)| (&**name, &**value)).collect();
    let config = between.config_with(&setting);
    let gateway = Gateway::launch(&clock, |dir| config_arguments(dir, &config));
    until_logged(&gateway, words);
    gateway
}

/// A server that is about to revoke a certificate suggests a window that has passed.
#[test]
fn a_certificate_is_renewed_when_its_server_suggests_it() {
    let (between, state) = (PebbleProxy::start(""), tempfile::tempdir().unwrap());
    offer_renewal_info(&between, &window("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z"));
    let gateway = start_two_days_later(&between, state.path(), "the renewal moves, as the ACME server suggests");
    wait_until("another certificate is issued", || orders(&gateway, "issued") == 1.0);
    assert_eq!(between.pebble.count("Issued certificate serial"), 2);
    // The server suggests the same for the new certificate, which does not cause one order after another.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert_eq!((orders(&gateway, "issued"), between.pebble.count("Issued certificate serial")), (1.0, 2));
}

#[test]
fn renewal_information_that_is_missing_or_senseless_leaves_the_lifetime() {
    let far = window("2999-01-01T00:00:00Z", "2999-01-02T00:00:00Z");
    for (document, words) in [
        ("[]", "no renewal information"),
        (&*window("2020-01-02T00:00:00Z", "soon"), "its window is not valid"),
        // At most until a tenth of the lifetime is left.
        (&*far, "the renewal moves, as the ACME server suggests"),
    ] {
        let (between, state) = (PebbleProxy::start(""), tempfile::tempdir().unwrap());
        offer_renewal_info(&between, document);
        let gateway = start_two_days_later(&between, state.path(), words);
        let log = gateway.log();
        assert!(!log.contains("2999") && !log.contains("panicked"), "{log}");
        assert_eq!((orders(&gateway, "issued"), between.pebble.count("Issued certificate serial")), (0.0, 1));
    }
}
