//! Readers of taps that do not read, leave, or are too many; and the events that end a tap.

use std::time::{Duration, Instant};

use super::requests::LIMITS;
use super::stream::Tap;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::wait_until;

#[test]
fn a_reader_that_does_not_read_costs_events_and_no_time() {
    let gateway = Gateway::start(LIMITS);
    let slow = Tap::open(&gateway, "?rate=1000");
    let mut client = gateway.client();
    // Each event has the path; the buffers of the sockets take some megabytes.
    let head = get(&format!("/health?{}", "x".repeat(6000)), "");
    let memory = gateway.watch_memory();
    let (end, mut sent) = (Instant::now() + Duration::from_secs(15), 0);
    while gateway.metric("tap_events_total", &[("result", "lost")]) == Some(0.0) {
        assert!(Instant::now() < end, "{sent} requests and none was lost");
        (0..200).for_each(|_| assert_eq!(client.fetch(&head, "").status(), 200));
        sent += 200;
    }
    assert!(memory.peak() < 48 * 1024 * 1024, "{}", memory.peak());
    drop(slow);
    let mut tap = Tap::open(&gateway, "");
    assert_eq!(gateway.get("/health").status(), 200);
    assert_eq!(tap.next()["status"], 200);
}

/// The config with the tokens `one` and `two`.
fn with_tokens() -> String {
    let token = |name: &str| {
        format!("[[admin.tokens]]\nname = \"{name}\"\nrole = \"keys\"\ntoken = \"{name}-0123456789abcdef\"\n")
    };
    config("", &format!("{}{}{LIMITS}", token("one"), token("two")))
}

fn bearer(name: &str) -> String {
    format!("authorization: Bearer {name}-0123456789abcdef\r\n")
}

#[track_caller]
fn assert_full(gateway: &Gateway, name: &str, why: &str) {
    let (status, response) = Tap::request(gateway, "", &bearer(name));
    let response = response.rest();
    assert!(status == 503 && response.contains(why), "{status} {response}");
}

#[test]
fn there_are_eight_taps_half_of_them_for_one_token() {
    let gateway = Gateway::with_config(&with_tokens());
    let open = |name: &str| {
        let (status, tap) = Tap::request(&gateway, "", &bearer(name));
        assert_eq!(status, 200);
        tap
    };
    let mut taps: Vec<Tap> = (0..4).map(|_| open("one")).collect();
    assert_full(&gateway, "one", "has 4 taps open already");
    taps.extend((0..4).map(|_| open("two")));
    assert_full(&gateway, "two", "has 4 taps open already");
    assert_eq!(gateway.admin("/readyz").status(), 200, "probes are still served");
    drop(taps);
    wait_until("the taps of those who left are free", || Tap::request(&gateway, "", &bearer("one")).0 == 200);
}

#[test]
fn a_slow_reader_keeps_no_tap_after_its_token_is_gone() {
    let gateway = Gateway::with_config(&with_tokens());
    let mut slow: Vec<Tap> = (0..4).map(|_| Tap::request(&gateway, "?rate=1000", &bearer("one")).1).collect();
    let mut client = gateway.client();
    let head = get(&format!("/health?{}", "x".repeat(6000)), "");
    let end = Instant::now() + Duration::from_secs(15);
    while gateway.metric("tap_events_total", &[("result", "lost")]) == Some(0.0) {
        assert!(Instant::now() < end, "none was lost");
        (0..200).for_each(|_| assert_eq!(client.fetch(&head, "").status(), 200));
    }
    assert_full(&gateway, "one", "has 4 taps open already");
    // The owner of the token stays the same; only a config with another generation is in force.
    gateway.write_config(&format!("{}# changed\n", with_tokens()));
    wait_until("the taps have ended", || {
        slow.iter_mut().for_each(Tap::trickle);
        Tap::request(&gateway, "", &bearer("one")).0 == 200
    });
}

#[test]
fn reloads_and_stops_end_taps_with_a_reason() {
    let mut gateway = Gateway::with("shutdown_delay = \"2s\"\n", LIMITS);
    let mut tap = Tap::open(&gateway, "");
    gateway.reload(&config("", &format!("{LIMITS}\n# changed\n")));
    assert_eq!(tap.end(), "reload");
    gateway.reload(&config("shutdown_delay = \"2s\"\n", LIMITS));
    let mut tap = Tap::open(&gateway, "");
    gateway.signal("TERM");
    assert_eq!(tap.end(), "draining");
    assert!(gateway.exit().success());
}

#[test]
fn a_tap_needs_the_token_and_no_other_site_opens_one() {
    let text = config("", LIMITS).replace("[admin]\n", "[admin]\ntoken = \"t0ken\"\n");
    let gateway = Gateway::with_config(&text);
    assert_eq!(Tap::request(&gateway, "", "").0, 401);
    assert_eq!(Tap::request(&gateway, "", "authorization: Bearer wrong\r\n").0, 401);
    let token = "authorization: Bearer t0ken\r\n";
    assert_eq!(Tap::request(&gateway, "", &format!("{token}origin: http://evil.test\r\n")).0, 403);
    let (status, mut tap) = Tap::request(&gateway, "", token);
    assert_eq!(status, 200);
    // A token that is withdrawn ends the tap.
    gateway.write_config(&text.replace("t0ken", "0ther"));
    assert_eq!(tap.end(), "reload");
}
