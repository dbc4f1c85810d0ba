//! Config changes during an order, disks that hang, and gateways that end: certificates in use stay in use, and no
//! request waits.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::process::Command;

use super::certificates::{Issued, Setting, file, orders, serves, until_served};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::pebble::Pebble;
use crate::support::wait_until;

#[test]
fn certificates_in_use_stay_until_another_server_has_issued_its_own() {
    let Issued { pebble: one, gateway, trust, state: _state } = Issued::start(&["www.test"]);
    let mut other = Pebble::down();
    let text = fs::read_to_string(gateway.config()).unwrap();
    // The other server is unreachable at first.
    gateway.reload(&text.replace(&one.directory(), &other.directory()));
    wait_until("the other server received a request", || orders(&gateway, "unreachable") >= 1.0);
    assert!(serves(&gateway, &trust, "www.test"));
    other.run(&[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_VA_ALWAYS_VALID", "1")], 0);
    let now = text.replace(&one.directory(), &other.directory()).replace(&one.ca_file(), &other.ca_file());
    gateway.reload(&now);
    until_served(&gateway, &other.trust(), "www.test");
    assert!(gateway.log().contains("renewing a certificate"));
    assert_eq!(orders(&gateway, "issued"), 2.0);
}

#[test]
fn a_disk_that_hangs_stops_neither_reloads_nor_what_is_in_use() {
    let Issued { pebble, state, gateway, trust } = Issued::start(&["a.test"]);
    // Opening a FIFO for reading blocks until a writer opens it.
    let hangs = file(state.path(), "/a.test.pem").with_file_name("b.test.pem");
    assert!(Command::new("mkfifo").arg(&hangs).status().unwrap().success());
    gateway.reload(&Setting::new(&pebble, state.path(), &["a.test", "b.test"]).config());
    assert!(gateway.log().contains("`state` of [acme] does not respond"), "{}", gateway.log());
    assert!(serves(&gateway, &trust, "a.test") && !serves(&gateway, &trust, "b.test"));
    // The disk still hangs, but certificates in memory need no disk.
    gateway.reload(&Setting::new(&pebble, state.path(), &["b.test", "a.test"]).config());
    assert!(serves(&gateway, &trust, "a.test"));
    // Ends the wait of all readers with an empty file.
    std::thread::spawn(move || {
        while hangs.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
            drop(fs::OpenOptions::new().write(true).open(&hangs));
        }
    });
    until_served(&gateway, &trust, "b.test");
}

#[test]
fn orders_end_when_the_gateway_drains() {
    let (mut pebble, state) = (Pebble::down(), tempfile::tempdir().unwrap());
    // Pebble validates the challenge only after a delay.
    pebble.run(&[("PEBBLE_VA_SLEEPTIME", "10")], 0);
    let config = Setting::new(&pebble, state.path(), &["www.test"]).config();
    let config = config.replace("workers = 1", "workers = 1\nshutdown_delay = \"1m\"");
    fs::write(pebble.ca_file(), pebble.own_ca()).unwrap();
    let gateway = Gateway::launch(&[], |dir| config_arguments(dir, &config));
    wait_until("an order is in progress", || pebble.count("Added order") == 1);
    let lock = fs::File::open(file(state.path(), "/lock")).unwrap();
    assert!(lock.try_lock().is_err());
    gateway.signal("TERM");
    wait_until("another gateway can order", || lock.try_lock().is_ok());
    assert_eq!(pebble.count("Issued certificate serial"), 0);
    assert!(gateway.log().contains("draining"));
}
