//! Failures of certificate orders: servers, validation, disks, files, and gateways that die. No order is repeated
//! because of them, no server gets a burst of requests, and no certificate is lost.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::certificates::{Issued, Setting, file, orders, secure, serves, until_served};
use crate::support::ca::Ca;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::pebble::Pebble;
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

/// A gateway that has been killed.
pub fn kill(gateway: Gateway) {
    gateway.signal("KILL");
    drop(gateway);
}

#[track_caller]
pub fn until_logged(gateway: &Gateway, words: &str) {
    wait_until(&format!("the log says {words:?}"), || gateway.log().contains(words));
}

#[test]
fn pauses_after_failures_outlive_the_gateway() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    // Nothing listens where Pebble validates the challenge.
    let elsewhere = [ReservedPort::new(), ReservedPort::new()];
    let setting = Setting {
        tls: elsewhere[0].port(),
        http: elsewhere[1].port(),
        acme: "backoff = \"1h\"",
        ..Setting::new(&pebble, state.path(), &["www.test"])
    };
    let gateway = setting.start();
    wait_until("the order failed", || orders(&gateway, "challenge_failed") == 1.0);
    let log = gateway.log();
    for words in ["by tls-alpn-01: ", "by http-01: ", "port 80 of www.test must reach", "next attempt in "] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert_eq!(pebble.count("Added order"), 2, "one order for each challenge");
    let attempt = file(state.path(), "www.test.json");
    let known: serde_json::Value = serde_json::from_str(&fs::read_to_string(&attempt).unwrap()).unwrap();
    assert_eq!(known["failures"], 1);
    kill(gateway);

    let gateway = setting.start();
    until_logged(&gateway, "waiting before the next order, after 1 failures; last: the ACME server could not validate");
    assert_eq!(pebble.count("Added order"), 2);
    // A damaged record of the last attempt does not allow another order at once.
    fs::write(&attempt, "{\"failures\":").unwrap();
    until_logged(&gateway, "is damaged and will be replaced");
    wait_until("the next order failed", || orders(&gateway, "challenge_failed") == 1.0);
    let known: serde_json::Value = serde_json::from_str(&fs::read_to_string(&attempt).unwrap()).unwrap();
    assert_eq!((known["failures"].clone(), pebble.count("Added order")), (2.into(), 3));
}

#[test]
fn an_order_that_a_kill_interrupts_is_repeated() {
    let (mut pebble, state) = (Pebble::down(), tempfile::tempdir().unwrap());
    // Pebble validates the challenge only after a delay.
    pebble.run(&[("PEBBLE_VA_SLEEPTIME", "4")], 0);
    let setting = Setting::new(&pebble, state.path(), &["www.test"]);
    let gateway = setting.start();
    let challenges = state.path().join(state_name(&pebble)).join("challenges");
    let open = |ending: &str| {
        fs::read_dir(&challenges)
            .is_ok_and(|files| files.flatten().any(|path| path.file_name().to_string_lossy().ends_with(ending)))
    };
    wait_until("a challenge is open", || open("_www.test"));
    kill(gateway);
    assert!(open("_www.test"));
    fs::write(file(state.path(), "lock").with_file_name(".new-0000"), "cut").unwrap();
    pebble.stop();
    pebble.run(&[("PEBBLE_VA_NOSLEEP", "1")], 0);
    let gateway = Setting::new(&pebble, state.path(), &["www.test"]).start();
    until_served(&gateway, &pebble.trust(), "www.test");
    assert_eq!(orders(&gateway, "issued"), 1.0);
    assert!(!open("_www.test") && !file(state.path(), "lock").with_file_name(".new-0000").exists());
}

/// The directory of the server within the state directory.
fn state_name(pebble: &Pebble) -> String {
    pebble.directory().trim_start_matches("https://").replace([':', '/'], "-")
}

#[test]
fn damaged_files_are_reported_and_replaced_and_the_account_stays() {
    let Issued { pebble, state, gateway, trust } = Issued::start(&["www.test"]);
    let certificate = file(state.path(), "/www.test.pem");
    let whole = fs::read_to_string(&certificate).unwrap();
    // A running gateway restores the file from memory.
    fs::write(&certificate, &whole[..whole.len() / 3]).unwrap();
    wait_until("the file is restored", || fs::read_to_string(&certificate).unwrap() == whole);
    until_logged(&gateway, "writing it again");
    assert!(serves(&gateway, &trust, "www.test"));
    assert_eq!(orders(&gateway, "issued"), 1.0);
    kill(gateway);

    // After a restart, another order on the same account replaces it.
    fs::write(&certificate, "").unwrap();
    let account = file(state.path(), "account.pem");
    let key = fs::read_to_string(&account).unwrap();
    fs::write(&account, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    let gateway = Setting::new(&pebble, state.path(), &["www.test"]).start();
    until_logged(&gateway, "it contains no PEM certificate: another will be ordered in its place");
    until_served(&gateway, &trust, "www.test");
    assert!(gateway.log().contains("the account continues with the other copy of its key"), "{}", gateway.log());
    assert_eq!(fs::read_to_string(&account).unwrap(), key);
    assert_eq!(pebble.count("There are now 1 accounts"), 1);
    assert_eq!(pebble.count("There are now 2 accounts"), 0);

    // A removed certificate is ordered again; the old one is served until then.
    let before = fs::read_to_string(&certificate).unwrap();
    fs::remove_file(&certificate).unwrap();
    assert!(serves(&gateway, &trust, "www.test"));
    wait_until("there is another certificate", || fs::read_to_string(&certificate).is_ok_and(|text| text != before));
}

#[test]
fn a_directory_that_cannot_be_written_to_orders_nothing() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    let path = state.path().join("taken");
    fs::write(&path, "").unwrap();
    let gateway = Setting::new(&pebble, &path, &["www.test"]).start();
    until_logged(
        &gateway,
        "no certificates are ordered, because they could not be stored: cannot make the directory `",
    );
    assert_eq!(pebble.count("Added order"), 0);
    fs::remove_file(&path).unwrap();
    until_served(&gateway, &pebble.trust(), "www.test");
    assert!(gateway.log().contains("the state directory can be used again"));
}

#[test]
fn a_certificate_that_cannot_be_saved_is_used_and_saved_later() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    // A directory that is not empty cannot be replaced by a file.
    let place = state.path().join(state_name(&pebble)).join("certificates/www.test.pem/full");
    fs::create_dir_all(&place).unwrap();
    let gateway = Setting::new(&pebble, state.path(), &["www.test"]).start();
    let trust = pebble.trust();
    until_served(&gateway, &trust, "www.test");
    until_logged(&gateway, "its content is kept in memory until then");
    // A changed pause in the config does not lose it either.
    let brief = Setting { acme: "backoff = \"2s\"", ..Setting::new(&pebble, state.path(), &["www.test"]) };
    gateway.reload(&brief.config());
    assert!(serves(&gateway, &trust, "www.test"));
    let certificate = place.parent().unwrap();
    fs::remove_dir_all(certificate).unwrap();
    wait_until("the certificate is saved", || certificate.is_file());
    assert!(serves(&gateway, &trust, "www.test"));
    assert_eq!((orders(&gateway, "issued"), pebble.count("Issued certificate serial")), (1.0, 1));
}

#[test]
fn a_file_that_cannot_be_read_now_is_left_alone() {
    let Issued { pebble, state, gateway, trust } = Issued::start(&["www.test"]);
    // Nobody can read this file, because the first page of a process is not mapped.
    let certificate = file(state.path(), "/www.test.pem");
    let (whole, odd) = (fs::read_to_string(&certificate).unwrap(), certificate.with_file_name("odd"));
    symlink("/proc/self/mem", &odd).unwrap();
    fs::rename(&odd, &certificate).unwrap();
    until_logged(&gateway, "until it can be read, nothing is ordered or overwritten");
    assert!(certificate.is_symlink() && serves(&gateway, &trust, "www.test"));
    // A gateway that has never read the file does not replace it either, whatever the cause.
    kill(gateway);
    fs::remove_file(&certificate).unwrap();
    symlink("www.test.pem", &certificate).unwrap();
    let gateway = Setting::new(&pebble, state.path(), &["www.test"]).start();
    until_logged(&gateway, "until it can be read, nothing is ordered or overwritten");
    fs::write(&odd, whole).unwrap();
    fs::rename(&odd, &certificate).unwrap();
    until_served(&gateway, &trust, "www.test");
    assert_eq!((gateway.log_lines(&["cannot read"]), pebble.count("Added order")), (1, 1));
}

#[test]
fn a_server_in_trouble_is_left_alone_for_as_long_as_it_asks() {
    let (pebble, state, ca) = (Pebble::start(), tempfile::tempdir().unwrap(), Ca::new("troubled"));
    // A gateway in place of the ACME server.
    let troubled = Gateway::launch(&[], |dir| {
        ca.issue(&["127.0.0.1"], "").save(dir, "troubled");
        fs::write(pebble.ca_file(), ca.pem()).unwrap();
        config_arguments(
            dir,
            "[server]\nlisten = []\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\ntls = { \
             certificates = [{ cert = \"troubled.pem\", key = \"troubled.key\" }] }\n[[route]]\nname = \"dir\"\nrespond \
             = { status = 503, body = \"<h1>busy</h1>\" }\nresponse_headers = { set = { retry-after = \"7200\" } }\n"
                .replace("listen = []\n", "workers = 1\n")
                .as_str(),
        )
    });
    let setting = Setting::new(&pebble, state.path(), &["www.test"]);
    let config = setting.config().replace(&pebble.directory(), &format!("https://{}/dir", troubled.addr));
    let gateway = Gateway::launch(&[], |dir| config_arguments(dir, &config));
    wait_until("the server received a request", || orders(&gateway, "unreachable") == 1.0);
    assert!(gateway.log().contains("it answered 503 Service Unavailable"), "{}", gateway.log());
    let attempt = fs::read_to_string(file(state.path(), "www.test.json")).unwrap();
    let next_s = serde_json::from_str::<serde_json::Value>(&attempt).unwrap()["next_s"].as_u64().unwrap();
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((7_000..=7_200).contains(&(next_s - now_s)), "{next_s} at {now_s}");
    let requests = troubled.metric("requests_total", &[("code", "503"), ("method", "GET"), ("route", "dir")]);
    assert_eq!(requests, Some(1.0));
    // Another server is not affected by the pause of the first one.
    let ca_file = Path::new(&pebble.ca_file()).with_file_name("both.pem");
    fs::write(&ca_file, pebble.own_ca() + &ca.pem()).unwrap();
    gateway.reload(&setting.config().replace(&pebble.ca_file(), &ca_file.display().to_string()));
    until_served(&gateway, &pebble.trust(), "www.test");
    assert!(secure(&gateway).port() == pebble.tls.port());
}
