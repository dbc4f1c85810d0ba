//! No decision takes long: the largest cost that a client can state does not block the store.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use sluicegate::limiting::store::redis::slot::key_slot;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::topology::RedisCluster;
use crate::support::limiting::{RedisServer, store_section};
use crate::support::wait_until;

/// Concurrent requests of many users with the largest cost, while other requests use an exhausted limit. That limit has
/// refunds, so each of its decisions reaches the store.
#[test]
fn the_largest_cost_does_not_block_the_store_for_others() {
    let server = RedisServer::start(&[]);
    let wide = |name: &str, lines: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nrespond = {{ body = \"in\" }}\nlimits = [\"{name}\"]\n\
             [limit.{name}]\nkey = \"header:x-user\"\ncost = \"header:x-cost\"\n{lines}\n"
        )
    };
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"200ms\"\n\
         [[route]]\nname = \"spent\"\npath = \"/spent\"\nrespond = {{ body = \"in\" }}\nlimits = [\"spent\"]\n\
         [limit.spent]\nalgorithm = \"fixed_window\"\nrate = \"5/h\"\nkey = \"all\"\nrefund_on = [599]\n{}{}{}",
        server.url(),
        wide("list", "algorithm = \"sliding_log\"\nrate = \"100000/h\""),
        wide("set", "algorithm = \"sliding_log\"\nrate = \"100000/h\"\nstate = \"sorted_set\""),
        wide("leases", "algorithm = \"concurrency\"\nin_flight = 100000"),
    ));
    gateway.wait_for_store();
    let mut client = gateway.client();
    let mut fetch = || client.fetch(&get("/spent", ""), "").status();
    assert_eq!([(); 6].map(|()| fetch()), [200, 200, 200, 200, 200, 429]);

    for name in ["list", "set", "leases"] {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let attacks = [(); 60].map(|()| gateway.client());
                let attack = |(i, mut client): (usize, crate::support::client::Client)| {
                    client.send(get(&format!("/{name}"), &format!("x-user: {i}\r\nx-cost: 100000\r\n")));
                    client
                };
                let clients: Vec<_> = attacks.into_iter().enumerate().map(attack).collect();
                for mut client in clients {
                    assert_eq!(client.read_response("GET").status(), 200, "{name}");
                }
                std::thread::sleep(Duration::from_millis(100));
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                assert_eq!(fetch(), 429, "{name}: the exhausted limit admits");
            }
        });
    }
    for decision in ["local_allow", "local_deny"] {
        let labels = [("route", "spent"), ("limit", "spent"), ("decision", decision)];
        assert_eq!(gateway.metric("limit_decisions_total", &labels).unwrap_or(0.0), 0.0, "{decision}");
    }
    assert_eq!(gateway.metric("store_errors_total", &[("kind", "timeout")]).unwrap_or(0.0), 0.0);
}

/// The largest decision, of 16 limits with four tiers each, over all nodes of a cluster. One node stops in the middle. A
/// decision that fails is refunded on the other nodes; on that one, each may leave one charge that nobody got.
#[test]
fn a_decision_of_64_checks_is_exact_while_a_node_of_the_cluster_stops() {
    const LIMITS: usize = 16;
    let cluster = RedisCluster::start(0);
    let limits: String = (0..LIMITS)
        .map(|limit| {
            let key = format!("[\"ip6tiers/64/56x2/48x3/32x4\", \"header:x-{limit}\"]");
            format!("[limit.l{limit}]\nalgorithm = \"fixed_window\"\nrate = \"1000/h\"\nkey = {key}\non_error = \"closed\"\n")
        })
        .collect();
    let store = store_section(&cluster.url());
    let gateway = Gateway::start(&format!("{store}[[route]]\npath = \"/\"\nrespond = {{ }}\n{limits}"));
    let names: Vec<String> = (0..LIMITS).map(|limit| format!("l{limit}")).collect();
    let mut key = json!({ "ip": "2001:db8:1:1::1" });
    (0..LIMITS).for_each(|limit| key[format!("header:x-{limit}")] = "a".into());
    let body = json!({ "operation": "take", "decisions": [{ "limits": names, "key": key }] }).to_string();
    let is_admitted = || {
        let taken = gateway.admin_request("POST", "/-/decide", "content-type: application/json\r\n", &body).json();
        assert_eq!(taken["decisions"][0]["limits"].as_array().unwrap().len(), 4 * LIMITS, "{taken}");
        taken["decisions"][0]["admitted"].as_bool().unwrap()
    };
    wait_until("the cluster is reached", is_admitted);
    let reset = |limit: &str| {
        let query = format!("/-/limits/{limit}/state?key=2001:db8:1:1::1&key=a");
        assert_eq!(gateway.admin_request("DELETE", &query, "", "").status(), 200);
    };
    let tiers = |limit: &String| ["", ".56", ".48", ".32"].map(|tier| format!("{limit}{tier}"));
    let all: Vec<String> = names.iter().flat_map(tiers).collect();
    all.iter().for_each(|limit| reset(limit));

    let (admitted, failed, ended) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let counter = if is_admitted() { &admitted } else { &failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("decisions are under way", || admitted.load(Ordering::Relaxed) > 5);
        cluster.nodes[1].signal("STOP");
        wait_until("decisions fail", || failed.load(Ordering::Relaxed) > 3);
        cluster.nodes[1].signal("CONT");
        let before = admitted.load(Ordering::Relaxed);
        wait_until("decisions succeed again", || admitted.load(Ordering::Relaxed) > before + 5);
        ended.store(true, Ordering::Relaxed);
    });
    let (admitted, failed) = (admitted.into_inner(), failed.into_inner());
    for limit in &all {
        let state = gateway.admin(&format!("/-/limits/{limit}/state?key=2001:db8:1:1::1&key=a")).json();
        let quota = state["policy"]["quota"].as_u64().unwrap();
        let used = usize::try_from(quota - state["remaining"].as_u64().unwrap()).unwrap();
        let slot = key_slot(state["state_key"].as_str().unwrap());
        let unsure = if cluster.owner_index(slot) == 1 { failed } else { 0 };
        let range = admitted..=admitted + unsure;
        assert!(range.contains(&used), "{limit}: {used} used of {admitted} admitted, {failed} failed: {state}");
    }
}

/// Another program writes texts and other types into keys of limits. Each counts as no state, and delays no decision.
#[test]
fn foreign_values_in_keys_count_as_no_state_and_take_no_time() {
    let server = RedisServer::start(&[]);
    let forms = [
        ("window", "fixed_window", "rate = \"2/h\""),
        ("bucket", "token_bucket", "rate = \"2/h\"\nrefund_on = [599]"),
        ("log", "sliding_log", "rate = \"2/h\""),
        ("counters", "sliding_window", "rate = \"2/h\""),
        ("slots", "concurrency", "in_flight = 2"),
    ];
    let parts: String = forms
        .iter()
        .map(|(name, algorithm, lines)| {
            format!(
                "[[route]]\npath = \"/{name}\"\nrespond = {{ }}\nlimits = [\"{name}\"]\n\
                 [limit.{name}]\nalgorithm = \"{algorithm}\"\nkey = \"header:x-k\"\non_error = \"closed\"\n{lines}\n"
            )
        })
        .collect();
    let gateway = Gateway::start(&format!("[store]\nurl = \"{}\"\ndeadline = \"5s\"\n{parts}", server.url()));
    gateway.wait_for_store();
    let mut redis = server.client();
    let digits = "9".repeat(4 << 20);
    for (name, algorithm, _) in forms {
        let writes: [(&str, Vec<&str>); 5] = [
            ("SET", vec![&digits]),
            ("RPUSH", vec![&digits]),
            ("ZADD", vec!["-1", &digits]),
            ("HSET", vec!["a", &digits]),
            ("SADD", vec!["a"]),
        ];
        for (command, values) in writes {
            let key = format!("sg:{{header:x-k={command}}}:{name}:{algorithm}");
            let () = redis::cmd(command).arg(&key).arg(values).query(&mut redis).unwrap();
            let fetch = || gateway.fetch(&get(&format!("/{name}"), &format!("x-k: {command}\r\n"))).status();
            assert_eq!(fetch(), 200, "{command} for {algorithm}: {}", gateway.log());
            let reset = format!("/-/limits/{name}/state?key={command}");
            assert_eq!(gateway.admin_request("DELETE", &reset, "", "").status(), 200, "{command} for {algorithm}");
            assert_eq!(fetch(), 200, "{command} for {algorithm}");
        }
    }
    assert_eq!(gateway.metric("store_errors_total", &[("kind", "reply")]).unwrap_or(0.0), 0.0, "{}", gateway.log());
}
