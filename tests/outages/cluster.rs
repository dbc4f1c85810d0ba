//! Redis Cluster with real nodes: decisions find the node of their slot, several slots are charged all or none, and
//! neither a failover nor a migration admits too much or blocks.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::clock::now_ms;
use sluicegate::limiting::decision::{Check, Decision, ErrorKind, Op};
use sluicegate::limiting::limit::{Limit, Mode};
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};
use sluicegate::limiting::store::redis::slot::{SLOTS, key_slot};
use sluicegate::telemetry::metrics::Metrics;
use tokio::task::JoinSet;

use crate::support::limiting::rules::{bucket, window};
use crate::support::limiting::topology::{
    Load, RedisCluster, cluster_node, failures, is_master, is_up, longest, run_command,
};
use crate::support::limiting::{
    DEADLINE, SLACK, SLOT_KEYS, check, connect_store, kind, limit, run_on_worker, wait_for_recovery, wait_until,
};
use crate::support::machine::Stopwatch;

const PATIENT: Duration = Duration::from_secs(5);

#[test]
fn a_cluster_decides_like_the_memory_store() {
    let cluster = RedisCluster::start(0);
    the_script_decides_alike(&cluster);
    run_on_worker(async {
        several_slots_decide_alike(&cluster).await;
        several_slots_under_contention(&cluster).await;
        every_node_learns_the_script(&cluster).await;
    });
}

/// Does the random walk of the single server, with each decision at the node of its slot.
fn the_script_decides_alike(cluster: &RedisCluster) {
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    let mut clients: HashMap<usize, redis::Connection> = (0..4)
        .map(|i| key_slot(&format!("{{ip=10.0.0.{i}}}")))
        .map(|slot| (slot, cluster.owner(slot).client()))
        .collect();
    for _ in 0..5 {
        for master in cluster.masters() {
            let () = run_command(&mut master.client(), &["FLUSHALL"]);
        }
        let memory = MemoryStore::new(1_000_000);
        let (mut now, mut receipt) = (1_795_000_000_000, 0);
        let limits: Vec<Arc<Limit>> = (0..4)
            .map(|i| {
                let mode = if i == 0 { Mode::Shadow } else { Mode::Enforce };
                limit(&format!("limit-{i}"), small_rule(rng, 100), mode)
            })
            .collect();
        for _ in 0..100 {
            now += rng.random_range(0..10_000);
            for (op, checks) in crate::support::limiting::random_decisions(&limits, 8, receipt, rng) {
                let expected = memory.run(op, &checks, now);
                receipt = expected.answers[0].receipt;
                let client = clients.get_mut(&key_slot(&checks[0].key)).unwrap();
                let reply = ScriptCall::new(&[(op, checks.as_slice())], now).eval_command().query(client).unwrap();
                let found = decode_reply(reply, std::iter::once((op, checks.as_slice())));
                assert_eq!(found, Some(vec![Ok(expected)]), "at {now}: {op:?} {checks:?}");
            }
        }
    }
}

fn small_rule(rng: &mut impl Rng, most: i64) -> Rule {
    let most = rng.random_range(1..most);
    if rng.random_bool(0.5) { bucket(1, most) } else { window(most) }
}

/// Decisions over several slots through the handle: what each limit says and what is left.
async fn several_slots_decide_alike(cluster: &RedisCluster) {
    let redis = connect_store(&cluster.url(), &Metrics::new().unwrap(), PATIENT).await;
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    for round in 0..10 {
        let memory = MemoryStore::new(1_000_000);
        let limits: Vec<Arc<Limit>> = (0..5)
            .map(|i| {
                let (name, rule) = (format!("r{round}-{i}"), small_rule(rng, 30));
                match i {
                    4 => limit(&name, rule, Mode::Shadow),
                    3 => crate::support::limiting::forwarding(&name, rule),
                    _ => limit(&name, rule, Mode::Enforce),
                }
            })
            .collect();
        for _ in 0..60 {
            let mut checks: Vec<Check> = limits
                .iter()
                .map(|limit| check(limit, SLOT_KEYS[rng.random_range(0..SLOT_KEYS.len())], rng.random_range(0..4)))
                .collect();
            checks.truncate(rng.random_range(1..=limits.len()));
            if checks.len() > 1 && rng.random_bool(0.3) {
                checks[0].role.base = true;
                checks[1].role.after = Some(0);
            }
            let op = if rng.random_bool(0.2) { Op::Peek } else { Op::Take };
            let expected = memory.run(op, &checks, now_ms());
            let found = redis.run(op, &checks.clone().into()).await.unwrap();
            assert_eq!(left(&found), left(&expected), "{op:?} {checks:?}");
        }
    }
}

fn left(decision: &Decision) -> (bool, Vec<(bool, i64)>) {
    (decision.admitted, decision.answers.iter().map(|answer| (answer.admitted, answer.remaining)).collect())
}

async fn several_slots_under_contention(cluster: &RedisCluster) {
    let limits = [
        limit("wide", window(5000), Mode::Enforce),
        limit("narrow", window(300), Mode::Enforce),
        limit("middle", bucket(1, 400), Mode::Enforce),
    ];
    let mut running = JoinSet::new();
    for _ in 0..2 {
        let redis = Rc::new(connect_store(&cluster.url(), &Metrics::new().unwrap(), PATIENT).await);
        for _ in 0..40 {
            let (redis, limits) = (redis.clone(), limits.clone());
            running.spawn_local(async move {
                let mut admitted = 0;
                for _ in 0..20 {
                    let checks: Vec<_> =
                        limits.iter().zip(SLOT_KEYS).map(|(limit, who)| check(limit, who, 1)).collect();
                    admitted += i64::from(redis.run(Op::Take, &checks.into()).await.unwrap().admitted);
                }
                admitted
            });
        }
    }
    assert_eq!(running.join_all().await.into_iter().sum::<i64>(), 300);
    // The reservations for refused requests were refunded.
    for (limit, who) in limits.iter().zip(SLOT_KEYS) {
        let key = check(limit, who, 1).key;
        let text: String = run_command(&mut cluster.owner(key_slot(&key)).client(), &["GET", &key]);
        let charged: i64 = text.split(' ').next().unwrap().parse().unwrap();
        match &*limit.rule {
            Rule::TokenBucket(rule) => assert_eq!((charged + rule.per_ms - 1) / rule.per_ms, 300, "{}", limit.name),
            _ => assert_eq!(charged, 300, "{}", limit.name),
        }
    }
}

async fn every_node_learns_the_script(cluster: &RedisCluster) {
    let redis = connect_store(&cluster.url(), &Metrics::new().unwrap(), PATIENT).await;
    let one = limit("taught", window(10), Mode::Enforce);
    for left in [9, 8] {
        for master in cluster.masters() {
            let () = run_command(&mut master.client(), &["SCRIPT", "FLUSH"]);
        }
        for who in SLOT_KEYS {
            let decision = redis.run(Op::Take, &vec![check(&one, who, 1)].into()).await.unwrap();
            assert_eq!(decision.answers[0].remaining, left, "{who}");
        }
    }
}

/// Replication is asynchronous: charges that a killed master has not replicated are lost. So the limit may be exceeded
/// by the units admitted in the moment before the kill, and by no more: the promoted replica has all other charges and
/// continues from there.
#[test]
fn a_killed_master_costs_what_replication_lost_and_two_seconds() {
    const LIMIT: usize = 2000;
    let mut cluster = RedisCluster::start(1);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&cluster.url(), &metrics, DEADLINE).await);
        let one = limit("one", window(LIMIT as i64), Mode::Enforce);
        let key = key_slot(&check(&one, "a", 1).key);
        let load = Load::start(&redis, &one, &["a"]);
        wait_until("half is admitted", || load.admitted() >= LIMIT / 2).await;

        let victim = cluster.owner_index(key);
        cluster.nodes[victim].kill();
        let killed = Instant::now();
        let replicas: Vec<usize> = (0..6).filter(|i| *i != victim && !is_master(&cluster.nodes[*i])).collect();
        wait_until("a replica is promoted", || replicas.iter().any(|i| is_master(&cluster.nodes[*i]))).await;
        let (promoted, watch) = (Instant::now(), Stopwatch::start());
        wait_until("a decision succeeds", || load.count(|seen| seen.at > killed && seen.outcome.is_ok()) > 0).await;
        let back = watch.elapsed_without_delay();
        wait_until("the limit is exhausted", || load.count(|seen| seen.at > promoted && seen.outcome == Ok(false)) > 0)
            .await;
        let seen = load.stop().await;

        assert!(longest(&seen) < DEADLINE + SLACK, "a decision waited {:?}", longest(&seen));
        assert!(back < Duration::from_secs(2), "back after {back:?}");
        let admitted = seen.iter().filter(|seen| seen.outcome == Ok(true)).count();
        let moment = killed - Duration::from_millis(100)..killed;
        let lost = seen.iter().filter(|seen| moment.contains(&seen.at) && seen.outcome == Ok(true)).count();
        assert!(admitted <= LIMIT + lost, "{admitted} admitted, {lost} of them just before the kill");
        let unknown =
            [ErrorKind::Timeout, ErrorKind::Disconnected, ErrorKind::Lost, ErrorKind::BreakerOpen, ErrorKind::Readonly];
        assert!(failures(&seen).iter().all(|kind| unknown.contains(kind)), "{:?}", failures(&seen));
        let waited = seen.iter().filter(|seen| seen.outcome == Err(ErrorKind::Timeout)).count();
        assert!(waited < 100, "{waited} decisions waited and then failed");
        // The dead master no longer counts as one of the servers.
        wait_until("the store is up", || metrics.store.up.get() == 1).await;
    });
}

#[test]
fn the_gateways_of_a_cluster_are_counted_wherever_their_slot_is() {
    let mut cluster = RedisCluster::start(1);
    run_on_worker(async {
        let all = [(); 3].map(|()| Metrics::new().unwrap());
        let counted = async |handles: &[RedisStore]| {
            let count = handles.len() as i64;
            wait_until("all are counted", || handles.iter().all(|redis| redis.gateways.peak_count() == count)).await;
        };
        let mut handles = Vec::new();
        for metrics in &all[..2] {
            handles.push(connect_store(&cluster.url(), metrics, DEADLINE).await);
        }
        counted(&handles).await;

        let slot = key_slot("sg:gateways");
        let owner = cluster.owner_index(slot);
        cluster.nodes[owner].kill();
        wait_until("a replica is promoted", || cluster.owner_index(slot) != owner).await;
        counted(&handles).await;
        // All others count a gateway that is started later.
        handles.push(connect_store(&cluster.url(), &all[2], DEADLINE).await);
        counted(&handles).await;

        // The slot migrates. Keys that are not at the old node yet are decided at the next one, and all keys after the
        // migration, although the map of the handles is outdated.
        let from = cluster.owner_index(slot);
        let next = cluster.masters().into_iter().find(|node| node.port != cluster.nodes[from].port).unwrap().port;
        let to = cluster.nodes.iter().position(|node| node.port == next).unwrap();
        let [mut source, mut target] = [from, to].map(|node| cluster.nodes[node].client());
        let ids: [String; 2] =
            [run_command(&mut source, &["CLUSTER", "MYID"]), run_command(&mut target, &["CLUSTER", "MYID"])];
        let () = run_command(&mut target, &["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &ids[0]]);
        let () = run_command(&mut source, &["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &ids[1]]);
        let mut size = redis::cmd("STRLEN");
        size.arg("{sg:gateways}:other");
        let sent = async || handles[0].send("{sg:gateways}:other", &size).await;
        assert_eq!(sent().await.unwrap(), redis::Value::Int(0));
        migrate(&cluster, slot, from, to).await;
        assert_eq!(sent().await.unwrap(), redis::Value::Int(0));
        let () = run_command(&mut target, &["DEL", "sg:gateways"]);
        let reports = || run_command::<i64>(&mut cluster.owner(slot).client(), &["ZCOUNT", "sg:gateways", "0", "+inf"]);
        wait_until("three are counted", || reports() == 3).await;
    });
}

#[test]
fn slots_migrate_under_traffic_and_nothing_is_lost() {
    const LIMIT: i64 = 1500;
    // Long enough that no decision fails because the machine is busy.
    const DEADLINE: Duration = Duration::from_secs(1);
    let cluster = RedisCluster::start(0);
    run_on_worker(async {
        let redis = Rc::new(connect_store(&cluster.url(), &Metrics::new().unwrap(), DEADLINE).await);
        let one = limit("one", window(LIMIT), Mode::Enforce);
        let load = Load::start(&redis, &one, &SLOT_KEYS);
        for round in 0..6 {
            wait_until("some are admitted", || load.admitted() >= 500 * (round + 1)).await;
            for who in SLOT_KEYS {
                let slot = key_slot(&check(&one, who, 1).key);
                let from = cluster.owner_index(slot);
                migrate(&cluster, slot, from, (from + 1) % 3).await;
            }
        }
        wait_until("all limits are exhausted", || {
            load.admitted() + load.count(|seen| seen.outcome.is_err()) >= SLOT_KEYS.len() * LIMIT as usize
                && load.count(|seen| seen.outcome == Ok(false)) > 1000
        })
        .await;
        let seen = load.stop().await;
        assert!(longest(&seen) < DEADLINE + SLACK, "a decision waited {:?}", longest(&seen));
        let failed = seen.iter().filter(|seen| seen.outcome.is_err()).count();
        assert!(failed < 50, "{failed} failed: {:?}", failures(&seen));
        let admitted = seen.iter().filter(|seen| seen.outcome == Ok(true)).count() as i64;
        let most = LIMIT * SLOT_KEYS.len() as i64;
        // A decision with an unknown result may have been charged.
        assert!((most - failed as i64..=most).contains(&admitted), "{admitted} of {most}, {failed} failed");
    });
}

/// Migrates a slot as an operator's tool does, with time for traffic at each step.
async fn migrate(cluster: &RedisCluster, slot: usize, from: usize, to: usize) {
    let (mut source, mut target) = (cluster.nodes[from].client(), cluster.nodes[to].client());
    let (source_id, target_id): (String, String) =
        (run_command(&mut source, &["CLUSTER", "MYID"]), run_command(&mut target, &["CLUSTER", "MYID"]));
    let (text, port) = (slot.to_string(), cluster.nodes[to].port.to_string());
    let pause = || tokio::time::sleep(Duration::from_millis(8));
    let () = run_command(&mut target, &["CLUSTER", "SETSLOT", &text, "IMPORTING", &source_id]);
    let () = run_command(&mut source, &["CLUSTER", "SETSLOT", &text, "MIGRATING", &target_id]);
    pause().await;
    loop {
        let keys: Vec<String> = run_command(&mut source, &["CLUSTER", "GETKEYSINSLOT", &text, "1"]);
        let Some(key) = keys.first() else { break };
        let () = run_command(&mut source, &["MIGRATE", "127.0.0.1", &port, key, "0", "1000"]);
        pause().await;
    }
    for client in [&mut target, &mut source] {
        let () = run_command(client, &["CLUSTER", "SETSLOT", &text, "NODE", &target_id]);
    }
    let ends = [from, to].map(|i| cluster.nodes[i].port);
    let other = cluster.masters().into_iter().find(|node| !ends.contains(&node.port)).unwrap();
    let () = run_command(&mut other.client(), &["CLUSTER", "SETSLOT", &text, "NODE", &target_id]);
}

#[test]
fn keys_on_their_way_are_charged_where_they_are() {
    let cluster = RedisCluster::start(0);
    run_on_worker(async {
        let redis = connect_store(&cluster.url(), &Metrics::new().unwrap(), Duration::from_secs(1)).await;
        let limits = [limit("one", window(10), Mode::Enforce), limit("two", window(5), Mode::Enforce)];
        let all = || limits.iter().map(|limit| check(limit, "a", 1)).collect::<Vec<_>>();
        assert!(redis.run(Op::Take, &all().into()).await.unwrap().admitted);

        let slot = key_slot(&all()[0].key);
        let from = cluster.owner_index(slot);
        let to = (from + 1) % 3;
        let (mut source, mut target) = (cluster.nodes[from].client(), cluster.nodes[to].client());
        let ids: [String; 2] =
            [run_command(&mut source, &["CLUSTER", "MYID"]), run_command(&mut target, &["CLUSTER", "MYID"])];
        let () = run_command(&mut target, &["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &ids[0]]);
        let () = run_command(&mut source, &["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &ids[1]]);
        let port = cluster.nodes[to].port.to_string();
        let () = run_command(&mut source, &["MIGRATE", "127.0.0.1", &port, &all()[0].key, "0", "1000"]);
        // One key is at each node and stays there, so neither node can decide alone.
        for left in [3, 2, 1, 0] {
            let decision = redis.run(Op::Take, &all().into()).await.unwrap();
            assert_eq!((decision.admitted, decision.answers[1].remaining), (true, left));
        }
        let refused = redis.run(Op::Take, &all().into()).await.unwrap();
        assert!(!refused.admitted && !refused.answers[1].admitted);
        let first = redis.run(Op::Peek, &all()[..1].to_vec().into()).await.unwrap();
        assert_eq!(first.answers[0].remaining, 4, "a refused request is not charged (peeked for one more)");
    });
}

#[test]
fn charges_before_a_failure_are_refunded() {
    let cluster = RedisCluster::start(0);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&cluster.url(), &metrics, DEADLINE).await);
        let limits = [limit("one", window(10), Mode::Enforce), limit("two", window(10), Mode::Enforce)];
        let key = |who: &str| check(&limits[0], who, 1).key;
        // Two keys of different masters. The lower slot is charged first.
        let (here, there) = SLOT_KEYS
            .iter()
            .flat_map(|here| SLOT_KEYS.map(|there| (*here, there)))
            .find(|(here, there)| {
                key_slot(&key(here)) < key_slot(&key(there))
                    && cluster.owner_index(key_slot(&key(here))) != cluster.owner_index(key_slot(&key(there)))
            })
            .unwrap();
        let both = || vec![check(&limits[0], here, 1), check(&limits[1], there, 1)];
        let left = async || redis.run(Op::Peek, &both()[..1].to_vec().into()).await.unwrap().answers[0].remaining;
        let hanging = cluster.owner(key_slot(&key(there)));

        hanging.signal("STOP");
        let started = Instant::now();
        assert_eq!(redis.run(Op::Take, &both().into()).await.unwrap_err(), ErrorKind::Timeout);
        assert!(started.elapsed() < DEADLINE + SLACK, "waited {:?}", started.elapsed());
        let wait_for_refund = async || {
            let since = Instant::now();
            while left().await != 9 {
                assert!(since.elapsed() < PATIENT, "still charged");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // The other master continues without any trace of the decision.
        wait_for_refund().await;
        hanging.signal("CONT");

        // A client that leaves midway.
        let deadline = Instant::now() + PATIENT;
        while redis.run(Op::Peek, &both().into()).await.is_err() {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let () = run_command(&mut hanging.client(), &["CLIENT", "PAUSE", "50", "ALL"]);
        let leaving = tokio::time::timeout(Duration::from_millis(20), redis.run(Op::Take, &both().into())).await;
        assert!(leaving.is_err());
        wait_for_refund().await;
    });
}

#[test]
fn a_release_reaches_every_node_that_is_there() {
    let cluster = RedisCluster::start(0);
    run_on_worker(async {
        let redis = connect_store(&cluster.url(), &Metrics::new().unwrap(), Duration::from_millis(500)).await;
        let slots = limit("slots", crate::support::limiting::rules::leases(10, 3_600_000), Mode::Enforce);
        let mut held: Vec<Check> = SLOT_KEYS.iter().map(|who| check(&slots, who, 1)).collect();
        held.sort_by_key(|held| key_slot(&held.key));
        for held in &mut held {
            let decision = redis.run(Op::Take, &vec![held.clone()].into()).await.unwrap();
            held.tag = decision.answers[0].receipt;
        }
        let away = cluster.owner_index(key_slot(&held[0].key));
        let elsewhere = held.iter().filter(|held| cluster.owner_index(key_slot(&held.key)) != away);
        let elsewhere: Vec<_> =
            elsewhere.map(|held| (cluster.owner(key_slot(&held.key)).client(), held.key.clone())).collect();
        assert!(elsewhere.len() > 1);
        cluster.nodes[away].signal("STOP");
        let back: Vec<_> = held.iter().map(|held| Check { cost: -1, ..held.clone() }).collect();
        assert!(redis.run(Op::Adjust, &back.into()).await.is_err());
        for (mut client, key) in elsewhere {
            assert_eq!(run_command::<i64>(&mut client, &["ZCARD", &key]), 0, "{key}");
        }
        cluster.nodes[away].signal("CONT");
    });
}

#[test]
fn a_cluster_that_is_down_is_reported() {
    let node = cluster_node(&[]);
    let mut client = node.client();
    let () = run_command(&mut client, &["CLUSTER", "ADDSLOTSRANGE", "0", &(SLOTS - 1).to_string()]);
    crate::support::wait_until("the cluster is up", || is_up(&node));
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let url = node.url().replace("redis:", "redis+cluster:");
        let redis = connect_store(&url, &metrics, DEADLINE).await;
        let one = limit("one", window(1_000_000), Mode::Enforce);
        assert!(kind(&redis, &one).await.unwrap().admitted);
        let lost = (key_slot(&check(&one, "all", 1).key) + 1) % SLOTS;
        let () = run_command(&mut client, &["CLUSTER", "DELSLOTS", &lost.to_string()]);
        wait_until("the cluster is down", || !is_up(&node)).await;
        for _ in 0..20 {
            assert_eq!(kind(&redis, &one).await, Err(ErrorKind::Readonly));
        }
        let () = run_command(&mut client, &["CLUSTER", "ADDSLOTS", &lost.to_string()]);
        assert!(wait_for_recovery(&redis).await < Duration::from_secs(2));
        drop(redis);
        // A dropped handle leaves no connection open.
        let clients = || run_command::<String>(&mut node.client(), &["CLIENT", "LIST"]).lines().count();
        wait_until("two are connected", || clients() == 2).await;
    });
}

#[test]
fn a_cluster_asks_for_a_login_and_for_nodes() {
    let node = cluster_node(&["--requirepass", "right"]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let url = node.url().replace("redis://", "redis+cluster://:wrong@");
        let redis =
            RedisStore::connect(&crate::support::limiting::settings(DEADLINE), &url, &metrics, &Default::default());
        let one = limit("one", window(9), Mode::Enforce);
        let deadline = Instant::now() + PATIENT;
        while kind(&redis, &one).await != Err(ErrorKind::Denied) {
            assert!(Instant::now() < deadline, "never denied");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(metrics.store.up.get(), 0);
    });
}
