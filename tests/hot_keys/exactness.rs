//! However many workers and gateways share a hot key, they admit what the limit admits, and no more.

use std::time::Duration;

use crate::support::gateway::Gateway;
use crate::support::limiting::topology::RedisCluster;

use super::*;

/// Admits exactly `limit` in one window, and returns the gateways.
#[track_caller]
fn assert_exact(url: &str, limit: usize, lines: &str) -> Vec<Gateway> {
    let gateways = gateways(2, &config(url, &format!("{lines}\n{LEASE}")));
    let admitted = send(&gateways, limit / 5).len();
    assert!(admitted <= limit, "{admitted} of {limit} at high load");
    let more = send(&gateways, limit / 5).len();
    let rest = drain(&gateways[0]) + drain(&gateways[1]);
    // No unit was lost either: leased units that were not spent went back.
    assert_eq!(admitted + more + rest, limit, "{admitted} and {more} at high load, then {rest}");
    for gateway in &gateways {
        assert!(units(gateway, "spent") > 0.0 && unspent(gateway) == 0.0, "{}", gateway.metrics());
        assert_eq!(units(gateway, "expired"), 0.0, "a window gets all units back");
    }
    gateways
}

#[test]
fn a_window_admits_exactly_its_limit_with_fewer_calls() {
    let server = server();
    let gateways = assert_exact(&server.url(), 1200, "algorithm = \"fixed_window\"\nrate = \"1200/min\"");
    let decisions: f64 =
        gateways.iter().filter_map(|gateway| gateway.metric("lease_decisions_total", &[("limit", "all")])).sum();
    let calls = script_calls(&mut server.client());
    assert!(decisions > 300.0, "{decisions} of 1200 requests were decided from a lease");
    assert!(calls < 1100, "{calls} calls for 1200 admissions");
}

#[test]
fn a_calendar_window_admits_exactly_its_limit_on_a_cluster() {
    let cluster = RedisCluster::start(0);
    // An hour may end during the test: then the limit applies to each of two hours.
    let lines = "algorithm = \"calendar\"\nrate = \"90000/hour\"\nzone = \"UTC\"";
    let gateways = gateways(2, &config(&cluster.url(), &format!("{lines}\n{LEASE}")));
    let admitted = send(&gateways, 120).len();
    assert_eq!(admitted, 480, "far below the limit, all are admitted");
    std::thread::sleep(HORIZON + Duration::from_millis(300));
    let state = gateways[0].admin("/-/limits/all/state").json();
    assert!(gateways.iter().any(|gateway| units(gateway, "spent") > 0.0));
    let left = state["remaining"].as_i64().unwrap();
    assert!(left == 90_000 - 480 || left > 90_000 - 240, "{state}");
}

/// A bucket with leases admits at most its burst and refill in any interval.
#[test]
fn a_bucket_never_admits_more_than_its_burst_and_refill() {
    for algorithm in ["token_bucket", "gcra"] {
        let server = server();
        let lines = format!("algorithm = \"{algorithm}\"\nrate = \"600/s\"\nburst = 200");
        let lease = "lease = { horizon = \"100ms\", hot_after = \"50/s\" }";
        let gateways = gateways(2, &config(&server.url(), &format!("{lines}\n{lease}")));
        let mut admissions = Vec::new();
        let has_spent = || gateways.iter().any(|gateway| units(gateway, "spent") > 0.0);
        // On a busy machine, a key may not be hot in the first rounds.
        for (round, pause) in [0, 60, 120, 400].into_iter().cycle().take(40).enumerate() {
            if round >= 4 && has_spent() {
                break;
            }
            std::thread::sleep(Duration::from_millis(pause));
            let deadline = Instant::now() + Duration::from_millis(400);
            // First a few requests, so that leases are granted, then as many as possible.
            admissions.extend(send(&gateways, 10));
            std::thread::sleep(Duration::from_millis(pause / 3));
            admissions.extend(send_while(&gateways, |_| Instant::now() < deadline));
        }
        admissions.sort_by_key(|(_, answered)| *answered);
        for (first, (from, _)) in admissions.iter().enumerate() {
            let mut within = 0.0;
            for (sent, deadline) in admissions[first.saturating_sub(8)..].iter().filter(|(sent, _)| sent >= from) {
                within += 1.0;
                // The clock of Redis has milliseconds.
                let most = 200.0 + 600.0 * (*deadline - *from.min(sent)).as_secs_f64() + 2.0;
                assert!(within <= most, "{within} within {:?}", *deadline - *from);
            }
        }
        assert!(has_spent(), "{algorithm}");
    }
}

/// Leases of a limit are spent together with a limit that is decided by the store. If that refuses, nothing is spent.
#[test]
fn units_go_back_if_another_limit_refuses() {
    let server = server();
    let two = config(&server.url(), &format!("algorithm = \"fixed_window\"\nrate = \"1200/min\"\n{LEASE}"))
        .replace("[\"all\"]", "[\"few\", \"all\"]");
    let few = "[limit.few]\nkey = \"header:x-who\"\nalgorithm = \"fixed_window\"\nrate = \"150/min\"\n";
    let gateways = gateways(1, &(two + few));
    assert_eq!(send(&gateways, 200).len(), 150);
    assert!(units(&gateways[0], "spent") > 0.0);
    std::thread::sleep(HORIZON + Duration::from_millis(200));
    let state = gateways[0].admin("/-/limits/all/state").json();
    assert_eq!(state["remaining"], 1200 - 150, "{state}");
}
