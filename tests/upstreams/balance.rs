//! Who is asked next, seen from outside.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::fleet::{Changing, app};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::ports::BlackHole;
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

const HASH: &str = "balance = \"consistent_hash\"\nhash_on = [\"header:x-user\"]";

/// Who serves each of so many users.
fn places(gateway: &Gateway, users: usize) -> HashMap<usize, String> {
    let mut client = gateway.client();
    let mut ask = |user: usize| client.ask(&get("/", &format!("x-user: u{user}\r\n")), "").text();
    (0..users).map(|user| (user, ask(user))).collect()
}

#[test]
fn a_key_keeps_its_server_whatever_worker_asks_and_moves_only_with_it() {
    let servers = ["a", "b", "c", "d"].map(Changing::start);
    let urls: Vec<String> = servers.iter().map(Changing::url).collect();
    let gateway = Gateway::with("workers = 3", &app(&urls, HASH));
    let before = places(&gateway, 40);
    assert_eq!(before.values().collect::<HashSet<_>>().len(), 4);
    for _ in 0..6 {
        assert_eq!(places(&gateway, 40), before, "on another connection");
    }
    let other = Gateway::start(&app(&urls, HASH));
    assert_eq!(places(&other, 40), before, "by another gateway");
    gateway.reload(&config("workers = 3", &app(&urls[..3], HASH)));
    for (user, place) in places(&gateway, 40) {
        assert!(before[&user] == "d" || before[&user] == place, "{user} moved from {} to {place}", before[&user]);
    }
}

#[test]
fn requests_without_the_key_are_spread() {
    let servers = ["a", "b", "c"].map(Changing::start);
    let gateway = Gateway::start(&app(&servers.each_ref().map(Changing::url), HASH));
    let mut client = gateway.client();
    (0..60).for_each(|_| assert_eq!(client.ask(&get("/", ""), "").status(), 200));
    assert!(servers.iter().all(|server| server.asked() > 3));
}

/// Servers that answer once they are told, and tell who has been asked.
fn held(name: &'static str) -> (Upstream, std::sync::mpsc::Sender<()>) {
    let (more, wait) = channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/slow" {
                let _ = wait.lock().unwrap().recv();
            }
            peer.send(ok(name))?;
        }
        Ok(())
    });
    (upstream, more)
}

#[test]
fn least_requests_sees_what_other_workers_sent() {
    let (slow, more) = held("slow");
    let (quick, _) = held("quick");
    let urls = [slow.url(), quick.url()];
    let gateway = Gateway::with("workers = 3", &app(&urls[..1], "balance = \"least_requests\""));
    let mut waiting: Vec<_> = (0..4).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/slow", "")));
    (0..4).for_each(|_| drop(slow.request()));
    gateway.reload(&config("workers = 3", &app(&urls, "balance = \"least_requests\"")));
    for _ in 0..30 {
        assert_eq!(gateway.get("/").text(), "quick");
    }
    (0..4).for_each(|_| more.send(()).unwrap());
    waiting.iter_mut().for_each(|client| assert_eq!(client.answer("GET").text(), "slow"));
    until("both are asked again", || gateway.get("/").text() == "slow");
}

#[test]
fn a_new_server_starts_slowly_and_those_of_the_start_do_not() {
    let (old, new) = (Changing::start("old"), Changing::start("new"));
    let urls = [old.url(), new.url()];
    let ask = |gateway: &Gateway| {
        let mut client = gateway.client();
        (0..200).for_each(|_| assert_eq!(client.ask(&get("/", ""), "").status(), 200));
    };
    for balance in ["round_robin", "p2c"] {
        let settings = format!("balance = \"{balance}\"\nslow_start = \"1h\"");
        let both = app(&urls, &settings);
        let before = new.asked();
        ask(&Gateway::start(&both));
        let at_the_start = new.asked() - before;
        assert!((60..140).contains(&at_the_start), "{balance}: {at_the_start}");
        let gateway = Gateway::start(&app(&urls[..1], &settings));
        gateway.reload(&config("", &both));
        let before = new.asked();
        ask(&gateway);
        let later = new.asked() - before;
        assert!((1..40).contains(&later), "{balance}: {later} of 200");
    }
}

#[test]
fn a_server_that_answers_no_connect_draws_no_more_than_its_share() {
    for balance in ["p2c", "least_requests"] {
        let (silent, hole) = (Upstream::silent(), BlackHole::new());
        let upstream = app(&[silent.url(), hole.url()], &format!("balance = \"{balance}\""));
        let patient = "upstream = \"app\"\nconnect_timeout = \"30s\"";
        let gateway = Gateway::start(&upstream.replace("upstream = \"app\"", patient));
        let mut waiting: Vec<_> = (0..20).map(|_| gateway.client()).collect();
        waiting.iter_mut().for_each(|client| client.send(get("/", "")));
        (0..10).for_each(|_| drop(silent.request()));
        gateway.assert_metric("requests_in_flight", &[("route", "app")], 20.0);
        assert_eq!(silent.requests().len(), 0, "{balance}");
    }
}
