//! Renewal information (RFC 9773) and profiles of a real ACME server. Pebble has the first from version 2.6 on (Debian
//! 13), and profiles from 2.8 on; with an older one, these tests end early, and `unusual_servers` simulates both.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::certificates::{Setting, file, orders, until_served};
use super::failures::until_logged;
use crate::support::faketime;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::pebble::Pebble;
use crate::support::wait_until;

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_certificate_is_renewed_and_replaced_as_pebble_suggests() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    if pebble.directory_entry("/renewalInfo").is_none() {
        return eprintln!("this pebble has no renewal information");
    }
    let setting = Setting::new(&pebble, state.path(), &["www.test"]);
    let first = setting.start();
    until_served(&first, &pebble.trust(), "www.test");
    until_logged(&first, "the renewal moves, as the ACME server suggests");
    drop(first);
    let stored = fs::read_to_string(file(state.path(), "www.test.pem")).unwrap();
    let begin = stored.find("-----BEGIN CERTIFICATE").unwrap();
    let end =
        begin + stored[begin..].find("-----END CERTIFICATE-----\n").unwrap() + "-----END CERTIFICATE-----\n".len();
    pebble.suggest_renewal(&stored[begin..end], ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"));
    let clock = faketime::clock("+2d");
    let clock: Vec<(&str, &str)> = clock.iter().map(|(name, value)| (&**name, &**value)).collect();
    let gateway = Gateway::launch(&clock, |dir| config_arguments(dir, &setting.config()));
    wait_until("another certificate is issued", || orders(&gateway, "issued") == 1.0);
    assert_eq!(pebble.count("Issued certificate serial"), 2);
    assert_eq!(pebble.count("is a replacement of"), 1, "the order names the old certificate");
}

#[test]
fn a_profile_of_pebble_is_used() {
    let (pebble, state) = (Pebble::start(), tempfile::tempdir().unwrap());
    if pebble.directory_entry("/meta/profiles/shortlived").is_none() {
        return eprintln!("this pebble has no profiles");
    }
    let setting = Setting { acme: "profile = \"shortlived\"", ..Setting::new(&pebble, state.path(), &["www.test"]) };
    let gateway = setting.start();
    until_served(&gateway, &pebble.trust(), "www.test");
    let listener = format!("127.0.0.1:{}", pebble.tls.port());
    let labels = [("listener", &*listener), ("name", "www.test")];
    let expiry = gateway.metric("tls_cert_not_after_timestamp_seconds", &labels).unwrap();
    let left = expiry - SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((5.0..6.1).contains(&(left / DAY.as_secs_f64())), "{left} s");
    // A profile that the server does not have is refused with those that it has.
    let other = tempfile::tempdir().unwrap();
    let setting = Setting { acme: "profile = \"longlived\"", ..Setting::new(&pebble, other.path(), &["b.test"]) };
    drop(gateway);
    let gateway = setting.start();
    until_logged(&gateway, "it has no profile \"longlived\", but");
    assert!(gateway.log().contains("shortlived"), "{}", gateway.log());
}
