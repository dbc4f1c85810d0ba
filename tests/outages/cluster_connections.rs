//! The connections to the nodes of a Redis Cluster: each fails alone, and updates of the slot map leave them alone.

use std::rc::Rc;
use std::time::Duration;

use sluicegate::limiting::decision::Op;
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::redis::slot::key_slot;
use sluicegate::telemetry::metrics::Metrics;

use crate::support::limiting::rules::{leases, window};
use crate::support::limiting::topology::{ClusterNode, RedisCluster, run_command};
use crate::support::limiting::{SLOT_KEYS, check, connect_store, limit, run_on_worker, wait_until};

const PATIENT: Duration = Duration::from_secs(10);

/// Failed renewals are recorded per node, so that a dead node does not make other leases renew again and again.
#[test]
fn leases_are_renewed_node_by_node() {
    let mut cluster = RedisCluster::start(0);
    run_on_worker(async {
        let redis = connect_store(&cluster.url(), &Metrics::new().unwrap(), PATIENT).await;
        let slots = limit("slots", leases(5, 60_000), Mode::Enforce);
        let held = Rc::new(SLOT_KEYS.map(|who| check(&slots, who, 2)).to_vec());
        assert!(redis.run(Op::Take, &held).await.unwrap().admitted);
        let renewed = redis.adjust_each(&held).await;
        assert!(renewed.iter().all(|outcome| outcome.as_ref().is_ok_and(|response| response.admitted)), "{renewed:?}");
        let owners: Vec<usize> = held.iter().map(|check| cluster.owner_index(key_slot(&check.key))).collect();
        cluster.nodes[owners[0]].kill();
        let failed: Vec<bool> = redis.adjust_each(&held).await.iter().map(Result::is_err).collect();
        assert_eq!(failed, owners.iter().map(|owner| *owner == owners[0]).collect::<Vec<bool>>());
    });
}

/// The slot map is read again and again. A connection to a node that stays in it stays as it is.
#[test]
fn a_call_under_way_outlasts_updates_of_the_slot_map() {
    let cluster = RedisCluster::start(0);
    run_on_worker(async {
        let redis = Rc::new(connect_store(&cluster.url(), &Metrics::new().unwrap(), PATIENT).await);
        let one = limit("one", window(10), Mode::Enforce);
        let slow = cluster.owner(key_slot(&check(&one, "a", 1).key));
        let maps = || cluster.nodes.iter().map(maps_sent).sum::<u64>();
        // Only calls that write wait, so that this node sends maps as well.
        let () = run_command(&mut slow.client(), &["CLIENT", "PAUSE", "60000", "WRITE"]);
        let call = tokio::task::spawn_local({
            let redis = redis.clone();
            async move { redis.run(Op::Take, &vec![check(&one, "a", 1)].into()).await }
        });
        let before = maps();
        wait_until("the map is updated twice", || maps() >= before + 2).await;
        assert!(!call.is_finished());
        let () = run_command(&mut slow.client(), &["CLIENT", "UNPAUSE"]);
        assert!(call.await.unwrap().unwrap().admitted);
    });
}

/// How many times a node has sent its slot map.
fn maps_sent(node: &ClusterNode) -> u64 {
    let stats: String = run_command(&mut node.client(), &["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}
