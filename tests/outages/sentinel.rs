//! Redis Sentinel with real processes: the gateway finds and follows the master, never charges a replica, and a
//! failover admits no more than replication lost.

use std::rc::Rc;
use std::time::{Duration, Instant};

use sluicegate::limiting::decision::ErrorKind;
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::telemetry::metrics::Metrics;

use crate::support::limiting::rules::window;
use crate::support::limiting::topology::{
    Load, PASSWORD, SENTINEL_PASSWORD, Sentinel, SentinelSetup, failures, longest, run_command,
};
use crate::support::limiting::{
    DEADLINE, RedisServer, SLACK, check, connect_store, kind, limit, run_on_worker, settings, wait_for_recovery,
    wait_until,
};
use crate::support::machine::Stopwatch;

/// A failover loses only the charges that the dead master had not yet replicated, as in a cluster.
#[test]
fn a_killed_master_costs_what_replication_lost_and_two_seconds() {
    const LIMIT: usize = 2000;
    let mut watched = SentinelSetup::start();
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&watched.url(), &metrics, DEADLINE).await);
        let one = limit("one", window(LIMIT as i64), Mode::Enforce);
        let load = Load::start(&redis, &one, &["a"]);
        wait_until("half is admitted", || load.admitted() >= LIMIT / 2).await;

        watched.servers[0].kill();
        let killed = Instant::now();
        wait_until("the replica is promoted", || watched.info(1).contains("role:master")).await;
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
        let unknown = [ErrorKind::Timeout, ErrorKind::Disconnected, ErrorKind::Lost, ErrorKind::BreakerOpen];
        assert!(failures(&seen).iter().all(|kind| unknown.contains(kind)), "{:?}", failures(&seen));
        assert_eq!((metrics.store.up.get(), metrics.store.breaker_state.get()), (1, 0));
    });
}

#[test]
fn a_hanging_master_is_replaced_and_stays_replaced() {
    let watched = SentinelSetup::start();
    run_on_worker(async {
        let redis = Rc::new(connect_store(&watched.url(), &Metrics::new().unwrap(), DEADLINE).await);
        let one = limit("one", window(1_000_000), Mode::Enforce);
        let load = Load::start(&redis, &one, &["a"]);
        wait_until("the load runs", || load.admitted() > 100).await;
        watched.servers[0].signal("STOP");
        wait_until("the replica is promoted", || watched.info(1).contains("role:master")).await;
        let (promoted, watch) = (Instant::now(), Stopwatch::start());
        wait_until("the new master responds", || load.count(|seen| seen.at > promoted && seen.outcome.is_ok()) > 0)
            .await;
        let back = watch.elapsed_without_delay();
        assert!(back < Duration::from_secs(2), "back after {back:?}");
        watched.servers[0].signal("CONT");
        // The old master keeps its role until the sentinels change it.
        let back = Instant::now();
        let key = check(&one, "a", 1).key;
        let charged: String = run_command(&mut watched.client(0), &["GET", &key]);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(run_command::<String>(&mut watched.client(0), &["GET", &key]), charged);
        let seen = load.stop().await;
        assert!(longest(&seen) < DEADLINE + SLACK, "a decision waited {:?}", longest(&seen));
        assert!(seen.iter().filter(|seen| seen.at > back).all(|seen| seen.outcome == Ok(true)));
    });
}

#[test]
fn an_ordered_failover_is_followed() {
    let mut watched = SentinelSetup::start();
    run_on_worker(async {
        let redis = Rc::new(connect_store(&watched.url(), &Metrics::new().unwrap(), DEADLINE).await);
        let one = limit("one", window(1_000_000), Mode::Enforce);
        let load = Load::start(&redis, &one, &["a"]);
        wait_until("the load runs", || load.admitted() > 100).await;
        // Refused until the sentinel has heard enough from the replica.
        wait_until("a failover begins", || watched.order_failover()).await;
        // The old master responds as before until the sentinels change its role, much later.
        wait_until("the failover is decided", || watched.reported_master_port() == watched.servers[1].port).await;
        let decided = Stopwatch::start();
        let key = check(&one, "a", 1).key;
        let count = || run_command::<String>(&mut watched.client(1), &["GET", &key]);
        let before = count();
        wait_until("the new master receives commands", || count() != before).await;
        let followed = decided.elapsed_without_delay();
        assert!(followed < Duration::from_secs(1), "after {followed:?}");
        // Without sentinels the connection is kept.
        watched.stop_sentinels();
        let alone = Instant::now();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let seen = load.stop().await;
        assert!(longest(&seen) < DEADLINE + SLACK, "a decision waited {:?}", longest(&seen));
        assert!(seen.iter().filter(|seen| seen.at > alone).all(|seen| seen.outcome == Ok(true)));
        assert!(wait_for_recovery(&redis).await < Duration::from_secs(1));
    });
}

#[test]
fn wrong_names_and_passwords_find_no_master() {
    let watched = SentinelSetup::start();
    run_on_worker(async {
        let url = watched.url();
        for (right, wrong, expected) in [
            ("/mine/", "/other/", ErrorKind::Disconnected),
            (PASSWORD, "wrong", ErrorKind::Denied),
            (SENTINEL_PASSWORD, "wrong", ErrorKind::Denied),
        ] {
            let metrics = Metrics::new().unwrap();
            let redis =
                RedisStore::connect(&settings(DEADLINE), &url.replace(right, wrong), &metrics, &Default::default());
            let one = limit("one", window(9), Mode::Enforce);
            let since = Instant::now();
            while kind(&redis, &one).await != Err(expected) {
                assert!(since.elapsed() < Duration::from_secs(5), "{wrong} for {right}: not {expected:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!((kind(&redis, &one).await, metrics.store.up.get()), (Err(expected), 0));
        }
        connect_store(&url, &Metrics::new().unwrap(), DEADLINE).await;
    });
}

/// A sentinel that reports a given master, and carries out no failover.
struct Guide {
    sentinel: Sentinel,
    masters: [RedisServer; 2],
}

impl Guide {
    /// Starts the sentinel, which reports the first master. That master hangs.
    fn start() -> Guide {
        let masters = [RedisServer::start(&[]), RedisServer::start(&[])];
        let monitor = format!("sentinel monitor mine 127.0.0.1 {} 1\n", masters[0].port);
        let sentinel = Sentinel::start(|port| format!("port {port}\n{monitor}"));
        masters[0].signal("STOP");
        Guide { sentinel, masters }
    }

    /// Lets the sentinel report the second master from now on.
    fn turn(&self) {
        let url = format!("redis://127.0.0.1:{}", self.sentinel.port);
        let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
        let () = run_command(&mut client, &["SENTINEL", "REMOVE", "mine"]);
        let port = self.masters[1].port.to_string();
        let () = run_command(&mut client, &["SENTINEL", "MONITOR", "mine", "127.0.0.1", &port, "1"]);
    }

    fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/mine/0", self.sentinel.port)
    }
}

#[test]
fn a_master_that_hangs_is_left_as_soon_as_the_sentinels_name_another() {
    let guide = Guide::start();
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = RedisStore::connect(&settings(DEADLINE), &guide.url(), &metrics, &Default::default());
        // The connection attempt waits for the hanging server for a second.
        tokio::time::sleep(Duration::from_millis(200)).await;
        guide.turn();
        let took = wait_for_recovery(&redis).await;
        assert!(took < Duration::from_millis(600), "back after {took:?}");
    });
}

#[test]
fn an_old_master_that_wakes_up_gets_no_commands() {
    let guide = Guide::start();
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(RedisStore::connect(&settings(DEADLINE), &guide.url(), &metrics, &Default::default()));
        let one = limit("one", window(1_000_000), Mode::Enforce);
        let load = Load::start(&redis, &one, &["a"]);
        tokio::time::sleep(Duration::from_millis(200)).await;
        guide.turn();
        // The old master still has its role, and executes the decisions that it received before.
        guide.masters[0].signal("CONT");
        wait_until("the new master responds", || load.admitted() > 100).await;
        load.stop().await;
        let charged: i64 = run_command(&mut guide.masters[0].client(), &["DBSIZE"]);
        assert_eq!(charged, 0, "the old master was charged");
    });
}
