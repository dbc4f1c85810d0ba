//! The order in which servers are selected, seen from outside.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::fleet::{ControlledServer, app};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::ports::BlackHole;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const HASH: &str = "balance = \"consistent_hash\"\nhash_on = [\"header:x-user\"]";

/// Returns the server of each of `users` users.
fn places(gateway: &Gateway, users: usize) -> HashMap<usize, String> {
    let mut client = gateway.client();
    let mut fetch = |user: usize| client.fetch(&get("/", &format!("x-user: u{user}\r\n")), "").text();
    (0..users).map(|user| (user, fetch(user))).collect()
}

#[test]
fn a_key_has_the_same_server_on_every_worker_and_moves_only_with_it() {
    let servers = ["a", "b", "c", "d"].map(ControlledServer::start);
    let urls: Vec<String> = servers.iter().map(ControlledServer::url).collect();
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
    let servers = ["a", "b", "c"].map(ControlledServer::start);
    let gateway = Gateway::start(&app(&servers.each_ref().map(ControlledServer::url), HASH));
    let mut client = gateway.client();
    (0..60).for_each(|_| assert_eq!(client.fetch(&get("/", ""), "").status(), 200));
    assert!(servers.iter().all(|server| server.request_count() > 3));
}

/// A server whose body is its name. It holds each response to `/slow` until the test releases it.
fn held(name: &'static str) -> (Upstream, std::sync::mpsc::Sender<()>) {
    let (more, wait) = channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
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
    waiting.iter_mut().for_each(|client| assert_eq!(client.read_response("GET").text(), "slow"));
    wait_until("both get requests again", || gateway.get("/").text() == "slow");
}

#[test]
fn a_new_server_starts_slowly_and_those_of_the_start_do_not() {
    let (old, new) = (ControlledServer::start("old"), ControlledServer::start("new"));
    let urls = [old.url(), new.url()];
    let fetch = |gateway: &Gateway| {
        let mut client = gateway.client();
        (0..200).for_each(|_| assert_eq!(client.fetch(&get("/", ""), "").status(), 200));
    };
    for balance in ["round_robin", "p2c"] {
        let settings = format!("balance = \"{balance}\"\nslow_start = \"1h\"");
        let both = app(&urls, &settings);
        let before = new.request_count();
        fetch(&Gateway::start(&both));
        let at_the_start = new.request_count() - before;
        assert!((60..140).contains(&at_the_start), "{balance}: {at_the_start}");
        let gateway = Gateway::start(&app(&urls[..1], &settings));
        gateway.reload(&config("", &both));
        let before = new.request_count();
        fetch(&gateway);
        let later = new.request_count() - before;
        assert!((1..40).contains(&later), "{balance}: {later} of 200");
    }
}

/// Returns how many of `count` requests each of `names` received. `clients` clients send each request after the
/// response to their last one.
fn counts(gateway: &Gateway, names: &[&str], clients: usize, count: usize) -> Vec<usize> {
    let sent = AtomicUsize::new(0);
    let fetch = || {
        let (mut client, mut responses) = (gateway.client(), Vec::new());
        while sent.fetch_add(1, Ordering::SeqCst) < count {
            responses.push(client.fetch(&get("/", ""), "").text());
        }
        responses
    };
    let responses: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(fetch)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    names.iter().map(|name| responses.iter().filter(|response| response == name).count()).collect()
}

/// A server that responds after `ms` milliseconds.
fn slow(name: &'static str, ms: u64) -> Upstream {
    Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(ms));
            peer.send(ok(name))?;
        }
        Ok(())
    })
}

/// The config of an upstream whose servers have these weights.
fn weighted(servers: &[Upstream], weights: &[usize], more: &str) -> String {
    let server = |(server, weight): (&Upstream, &usize)| format!("{{ url = \"{}\", weight = {weight} }}", server.url());
    let servers: Vec<String> = servers.iter().zip(weights).map(server).collect();
    let servers = servers.join(", ");
    format!("[[route]]\nname = \"app\"\nupstream = \"app\"\n[upstream.app]\nservers = [{servers}]\n{more}\n")
}

#[test]
fn shares_follow_the_weights_however_few_clients_there_are() {
    const REQUESTS: usize = 200;
    let servers = ["a", "b", "c"].map(|name| slow(name, 3));
    let all: [&[usize]; 3] = [&[9, 1], &[95, 5], &[5, 3, 2]];
    for weights in all {
        let total: usize = weights.iter().sum();
        for balance in ["p2c", "least_requests", "round_robin"] {
            let config = weighted(&servers, weights, &format!("balance = \"{balance}\""));
            let gateway = Gateway::with("workers = 2", &config);
            for clients in [1, 4, 10] {
                let counts = counts(&gateway, &["a", "b", "c"], clients, REQUESTS);
                for (count, weight) in counts.iter().zip(weights) {
                    let off = count.abs_diff(REQUESTS * weight / total);
                    assert!(off <= 6, "{balance} {weights:?}, {clients} clients: {counts:?} of {REQUESTS}");
                }
            }
        }
    }
}

#[test]
fn a_slow_server_is_avoided_with_any_weight() {
    let servers = [slow("quick", 2), slow("slow", 150)];
    for balance in ["p2c", "least_requests"] {
        // By weight alone the server would get 240 or 360.
        for (weights, most) in [([1, 1], 96), ([1, 3], 168)] {
            let config = weighted(&servers, &weights, &format!("balance = \"{balance}\""));
            let counts = counts(&Gateway::with("workers = 1", &config), &["quick", "slow"], 16, 480);
            assert!((1..most).contains(&counts[1]), "{balance} {weights:?}: {counts:?}");
        }
    }
}

#[test]
fn full_servers_hand_over_to_those_with_capacity_and_the_weights_decide_before() {
    let servers = [slow("a", 10), slow("b", 10)];
    for balance in ["p2c", "least_requests", "round_robin"] {
        for cap in ["max_in_flight", "max_connections"] {
            let config = weighted(&servers, &[9, 1], &format!("balance = \"{balance}\"\n{cap} = 4"));
            let gateway = Gateway::with("workers = 2", &config);
            let few = counts(&gateway, &["a", "b"], 2, 100);
            assert!(few[1].abs_diff(10) <= 4, "{balance} {cap}: {few:?}");
            let many = counts(&gateway, &["a", "b"], 16, 320);
            assert!(many.iter().sum::<usize>() == 320 && many[1] > 110, "{balance} {cap}: {many:?}");
        }
    }
}

/// The share of a server that joins another one, for each second of a `slow_start` of 4 s.
#[test]
fn a_server_that_joins_gets_the_documented_share_in_each_second() {
    let servers = [slow("old", 4), slow("new", 4)];
    for (balance, weights) in
        [("p2c", [1, 1]), ("p2c", [10, 9]), ("least_requests", [100, 99]), ("round_robin", [3, 2])]
    {
        let settings = format!("balance = \"{balance}\"\nslow_start = \"4s\"");
        let gateway = Gateway::with("workers = 2", &weighted(&servers[..1], &weights, &settings));
        gateway.reload(&config("workers = 2", &weighted(&servers, &weights, &settings)));
        let start = Instant::now();
        let seen = Mutex::new([[0; 2]; 4]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut client = gateway.client();
                    loop {
                        let second = start.elapsed().as_secs() as usize;
                        let new = client.fetch(&get("/", ""), "").text() == "new";
                        match seen.lock().unwrap().get_mut(second) {
                            Some(counts) => counts[usize::from(new)] += 1,
                            None => return,
                        }
                    }
                });
            }
        });
        for (second, [old, new]) in seen.into_inner().unwrap().into_iter().enumerate() {
            let ramp = (second as f64 + 0.5) / 4.0;
            let due = ramp * weights[1] as f64 / (ramp * weights[1] as f64 + weights[0] as f64);
            let got = f64::from(new) / f64::from(old + new);
            assert!((got - due).abs() < 0.08, "{balance} {weights:?} second {second}: {new} of {}", old + new);
        }
    }
}

#[test]
fn parallel_requests_of_one_user_stay_on_one_server_until_it_is_loaded() {
    let servers = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"].map(|name| slow(name, 150));
    let urls: Vec<String> = servers.iter().map(Upstream::url).collect();
    let gateway = Gateway::with("workers = 2", &app(&urls, HASH));
    let places = |parallel: usize| {
        std::thread::scope(|scope| {
            let fetch = || gateway.client().fetch(&get("/", "x-user: ann\r\n"), "").text();
            let threads: Vec<_> = (0..parallel).map(|_| scope.spawn(fetch)).collect();
            let responses = threads.into_iter().map(|thread| thread.join().unwrap());
            responses.fold(HashMap::<String, usize>::new(), |mut counts, name| {
                *counts.entry(name).or_default() += 1;
                counts
            })
        })
    };
    for parallel in [1, 2, 6, 16] {
        assert_eq!(places(parallel).len(), 1, "{parallel} at once");
    }
    let crowd = places(60);
    assert!(crowd.len() >= 3 && crowd.values().all(|count| *count <= 20), "60 at once: {crowd:?}");
}

#[test]
fn a_server_that_accepts_no_connect_draws_no_more_than_its_share() {
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
