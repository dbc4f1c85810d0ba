//! The Redis store while Redis fails: each kind of failure has a label, no decision exceeds its deadline, and recovery
//! needs no restart.
use std::time::{Duration, Instant};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::rules::window;
use crate::support::limiting::slow_link::DelayLine;
use crate::support::limiting::{
    DEADLINE, RedisServer, SLACK, connect_store, kind, limit, run_on_worker, settings, wait_for_recovery, wait_until,
};
use crate::support::machine::Lateness;
use sluicegate::limiting::decision::ErrorKind;
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::telemetry::metrics::Metrics;
use tokio::task::JoinSet;

/// Makes decisions for `span` in many tasks. Returns the longest wait, without the delays of the machine, and the
/// outcomes.
async fn under_load(redis: &std::rc::Rc<RedisStore>, span: Duration) -> (Duration, Vec<Result<(), ErrorKind>>) {
    let one = limit("load", window(1_000_000), Mode::Enforce);
    let lateness = Lateness::watch();
    let mut running = JoinSet::new();
    for i in 0..20 {
        let (redis, one) = (redis.clone(), one.clone());
        running.spawn_local(async move {
            let (deadline, mut longest, mut outcomes) = (Instant::now() + span, Duration::ZERO, Vec::new());
            tokio::time::sleep(Duration::from_millis(3 * i)).await;
            while Instant::now() < deadline {
                let started = Instant::now();
                outcomes.push(kind(&redis, &one).await.map(|_| ()));
                longest = longest.max(started.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            (longest, outcomes)
        });
    }
    let all = running.join_all().await;
    let longest = all.iter().map(|(longest, _)| *longest).max().unwrap();
    (longest.saturating_sub(lateness.allowance()), all.into_iter().flat_map(|(_, outcomes)| outcomes).collect())
}

fn kinds(outcomes: &[Result<(), ErrorKind>]) -> Vec<ErrorKind> {
    let mut kinds: Vec<ErrorKind> = outcomes.iter().filter_map(|outcome| outcome.err()).collect();
    kinds.sort_by_key(|kind| *kind as usize);
    kinds.dedup();
    kinds
}

#[test]
fn a_killed_server_is_noticed_at_once_and_found_again() {
    let mut server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connect_store(&server.url(), &metrics, DEADLINE).await);
        let before = metrics.store_error_counter(ErrorKind::Disconnected.label()).get();
        server.kill();
        let (longest, outcomes) = under_load(&redis, Duration::from_millis(300)).await;
        assert!(longest < Duration::from_millis(30), "a decision waited {longest:?}");
        // The first decisions were in progress when the connection broke.
        let labels: Vec<&str> = kinds(&outcomes).into_iter().map(ErrorKind::label).collect();
        assert!(labels.iter().all(|label| *label == "disconnected"), "{labels:?}");
        assert_eq!(outcomes.last(), Some(&Err(ErrorKind::Disconnected)));
        assert!(outcomes.iter().all(Result::is_err));
        assert_eq!(metrics.store.up.get(), 0);
        assert_eq!(metrics.store_error_counter(ErrorKind::Disconnected.label()).get(), before + outcomes.len() as u64);
        server.restart();
        let took = wait_for_recovery(&redis).await;
        assert!(took < Duration::from_secs(2), "recovery took {took:?}");
        assert_eq!((metrics.store.up.get(), metrics.store.breaker_state.get()), (1, 0));
    });
}

#[test]
fn a_stopped_server_delays_nobody_beyond_the_deadline() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connect_store(&server.url(), &metrics, DEADLINE).await);
        server.signal("STOP");
        let (longest, outcomes) = under_load(&redis, Duration::from_millis(1500)).await;
        assert!(longest < DEADLINE + SLACK, "a decision waited {longest:?}");
        assert_eq!(kinds(&outcomes)[0], ErrorKind::Timeout);
        assert!(outcomes.iter().all(Result::is_err));
        let timeouts = outcomes.iter().filter(|outcome| **outcome == Err(ErrorKind::Timeout)).count();
        assert!(timeouts < outcomes.len() / 10, "{timeouts} of {} waited and then failed", outcomes.len());
        // The connection was closed. Attempts to reconnect fail, and no decision waits for them.
        assert_eq!(kind(&redis, &limit("one", window(9), Mode::Enforce)).await, Err(ErrorKind::Disconnected));
        server.signal("CONT");
        let took = wait_for_recovery(&redis).await;
        assert!(took < Duration::from_millis(2500), "recovery took {took:?}");
        assert_eq!((metrics.store.up.get(), metrics.store.breaker_state.get()), (1, 0));
    });
}

#[test]
fn a_short_pause_times_out_and_passes() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connect_store(&server.url(), &metrics, DEADLINE).await);
        let () = redis::cmd("CLIENT").arg("PAUSE").arg(250).arg("ALL").query(&mut server.client()).unwrap();
        let (longest, outcomes) = under_load(&redis, Duration::from_millis(230)).await;
        assert!(longest < DEADLINE + SLACK, "a decision waited {longest:?}");
        assert_eq!(kinds(&outcomes)[0], ErrorKind::Timeout);
        let took = wait_for_recovery(&redis).await;
        assert!(took < Duration::from_secs(2), "recovery took {took:?}");
    });
}

/// Whoever reads the log learns which option decides that a distant Redis is too slow.
#[test]
fn the_log_names_the_deadline_that_redis_misses() {
    let server = RedisServer::start(&[]);
    let line = DelayLine::to(server.port, Duration::from_millis(30));
    let gateway = Gateway::with(
        "workers = 1",
        &format!(
            "[store]\nurl = \"{}\"\ndeadline = \"40ms\"\n[limit.all]\nrate = \"100/s\"\nkey = \"all\"\n\
             [[route]]\nrespond = {{}}\nlimits = [\"all\"]\n",
            line.redis_url()
        ),
    );
    crate::support::wait_until("the log names the option", || {
        gateway.fetch(&get("/", ""));
        gateway.log_lines(&["no reply within 40 ms, the `deadline` of [store]"]) > 0
    });
}

/// Asserts that the first outcome is `expected`, and that the breaker then opens, so that further decisions do not
/// wait.
async fn fails_with(redis: &RedisStore, expected: ErrorKind) {
    let one = limit("one", window(1_000_000), Mode::Enforce);
    for _ in 0..3 {
        assert_eq!(kind(redis, &one).await, Err(expected));
    }
    let next = kind(redis, &one).await;
    assert!(next == Err(ErrorKind::BreakerOpen) || next == Err(ErrorKind::Disconnected), "{next:?}");
}

#[test]
fn out_of_memory() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connect_store(&server.url(), &metrics, DEADLINE).await;
        let known = limit("known", window(10), Mode::Enforce);
        assert!(kind(&redis, &known).await.unwrap().admitted);
        let mut client = server.client();
        let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut client).unwrap();
        // A full server responds at once, and does not count as unavailable.
        let new = limit("new", window(10), Mode::Enforce);
        for left in (0..9).rev() {
            assert_eq!(kind(&redis, &new).await, Err(ErrorKind::OutOfMemory));
            let decision = kind(&redis, &known).await.unwrap();
            assert_eq!((decision.admitted, decision.answers[0].remaining), (true, left));
        }
        assert!(!kind(&redis, &known).await.unwrap().admitted);
        assert_eq!((metrics.store.up.get(), metrics.store.breaker_state.get()), (1, 0));
        assert_eq!(metrics.store_error_counter(ErrorKind::OutOfMemory.label()).get(), 9);
        let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).query(&mut client).unwrap();
        assert_eq!(kind(&redis, &new).await.unwrap().answers[0].remaining, 9);
    });
}

#[test]
fn blocked_by_a_script() {
    let server = RedisServer::start(&["--lua-time-limit", "5"]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connect_store(&server.url(), &metrics, Duration::from_secs(2)).await;
        let mut client = server.client();
        let blocker = std::thread::spawn(move || {
            redis::cmd("EVAL").arg("while true do end").arg(0).query::<redis::Value>(&mut client).unwrap_err()
        });
        let one = limit("one", window(1_000_000), Mode::Enforce);
        while kind(&redis, &one).await.is_ok() {}
        let next = kind(&redis, &one).await;
        assert_eq!(next, Err(ErrorKind::Busy));
        let mut client = server.client();
        let () = redis::cmd("SCRIPT").arg("KILL").query(&mut client).unwrap();
        blocker.join().unwrap();
        assert_eq!(metrics.store_error_counter(ErrorKind::Busy.label()).get(), 2);
        assert!(wait_for_recovery(&redis).await < Duration::from_secs(2));
    });
}

#[test]
fn a_replica_takes_no_charge() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connect_store(&server.url(), &metrics, DEADLINE).await;
        let mut client = server.client();
        let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut client).unwrap();
        fails_with(&redis, ErrorKind::Readonly).await;
        let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut client).unwrap();
        assert!(wait_for_recovery(&redis).await < Duration::from_secs(2));
    });
}

#[test]
fn a_replica_that_lost_its_master() {
    let server = RedisServer::start(&["--replica-serve-stale-data", "no"]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connect_store(&server.url(), &metrics, DEADLINE).await;
        let mut client = server.client();
        // REPLICAOF is one of the few commands that still work; others fail with MASTERDOWN.
        let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut client).unwrap();
        fails_with(&redis, ErrorKind::Readonly).await;
        let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut client).unwrap();
        assert!(wait_for_recovery(&redis).await < Duration::from_secs(2));
    });
}

#[test]
fn a_user_without_the_right_to_run_scripts() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let mut client = server.client();
        let set = |client: &mut redis::Connection, rights: &[&str]| {
            let () = redis::cmd("ACL").arg("SETUSER").arg("gateway").arg(rights).query(client).unwrap();
        };
        set(&mut client, &["on", ">p@ss/word", "~sg:*", "+@all"]);
        let metrics = Metrics::new().unwrap();
        let url = server.url().replace("//", "//gateway:p%40ss%2Fword@");
        let redis = connect_store(&url, &metrics, DEADLINE).await;
        set(&mut client, &["-evalsha"]);
        fails_with(&redis, ErrorKind::Denied).await;
        assert_eq!(metrics.store.up.get(), 0);
        set(&mut client, &["+evalsha"]);
        assert!(wait_for_recovery(&redis).await < Duration::from_secs(2));
        // The minimum permissions of a gateway.
        set(&mut client, &["reset"]);
        set(&mut client, &["on", ">p@ss/word", "~sg:*", "+eval", "+evalsha", "+time", "+mget", "+set"]);
        assert!(wait_for_recovery(&redis).await < Duration::from_secs(3));
        set(&mut client, &["resetkeys", "~other:*"]);
        let one = limit("one", window(9), Mode::Enforce);
        assert_eq!(kind(&redis, &one).await, Err(ErrorKind::Denied));
    });
}

#[test]
fn a_database_and_a_socket_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock").display().to_string();
    let server = RedisServer::start(&["--unixsocket", &path]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        for (url, db) in [(format!("{}3", server.url()), 3), (format!("redis+unix://{path}?db=5"), 5)] {
            let redis = connect_store(&url, &metrics, DEADLINE).await;
            assert!(kind(&redis, &limit("one", window(9), Mode::Enforce)).await.unwrap().admitted);
            let mut client = server.client();
            for other in [0, 3, 5] {
                let () = redis::cmd("SELECT").arg(other).query(&mut client).unwrap();
                let keys: Vec<String> = redis::cmd("KEYS").arg("*:one:*").query(&mut client).unwrap();
                assert_eq!(keys.len(), usize::from(other == db), "{url}: database {other}: {keys:?}");
            }
            let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        }
    });
}

#[test]
fn missing_and_wrong_passwords() {
    let server = RedisServer::start(&["--requirepass", "right"]);
    run_on_worker(async {
        let with = |login: &str| server.url().replace("//", &format!("//{login}"));
        for url in [server.url(), with(":wrong@"), with("nobody:right@")] {
            let metrics = Metrics::new().unwrap();
            let redis = RedisStore::connect(&settings(DEADLINE), &url, &metrics, &Default::default());
            let one = limit("one", window(9), Mode::Enforce);
            let deadline = Instant::now() + Duration::from_secs(5);
            while kind(&redis, &one).await != Err(ErrorKind::Denied) {
                assert!(Instant::now() < deadline, "never denied");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(metrics.store.up.get(), 0, "a gateway without permission has no store");
        }
        connect_store(&with(":right@"), &Metrics::new().unwrap(), DEADLINE).await;
    });
}

#[test]
fn loading_its_data() {
    let mut server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connect_store(&server.url(), &metrics, Duration::from_millis(500)).await;
        let mut client = server.client();
        let fill = "for i = 1, 20000 do redis.call('SET', 'filler:' .. i, i) end";
        let () = redis::cmd("EVAL").arg(fill).arg(0).query(&mut client).unwrap();
        let () = redis::cmd("SAVE").query(&mut client).unwrap();
        server.kill();
        server.restart_with(&["--key-load-delay", "100", "--loading-process-events-interval-bytes", "2048"]);
        let one = limit("one", window(9), Mode::Enforce);
        let deadline = Instant::now() + Duration::from_secs(10);
        while kind(&redis, &one).await != Err(ErrorKind::Loading) {
            assert!(Instant::now() < deadline, "never seen loading");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        wait_for_recovery(&redis).await;
    });
}

#[test]
fn an_address_that_cannot_be_read_or_reached() {
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        for url in ["no url", "redis://127.0.0.1:1/"] {
            let redis = RedisStore::connect(&settings(DEADLINE), url, &metrics, &Default::default());
            let one = limit("one", window(9), Mode::Enforce);
            assert_eq!(kind(&redis, &one).await, Err(ErrorKind::Disconnected));
            assert_eq!(metrics.store.up.get(), 0);
        }
    });
}

#[test]
fn a_loss_is_noticed_and_mended_without_traffic() {
    let mut server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connect_store(&server.url(), &metrics, 20 * DEADLINE).await;
        server.kill();
        wait_until("the loss is noticed", || metrics.store.up.get() == 0).await;
        server.restart();
        wait_until("the connection is restored", || metrics.store.up.get() == 1).await;
        assert!(kind(&redis, &limit("one", window(9), Mode::Enforce)).await.unwrap().admitted);
    });
}

#[test]
fn a_dropped_handle_leaves_nothing_behind() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let clients = |client: &mut redis::Connection| {
            let list: String = redis::cmd("CLIENT").arg("LIST").query(client).unwrap();
            list.lines().count()
        };
        let mut client = server.client();
        let kept = connect_store(&server.url(), &metrics, DEADLINE).await;
        let dropped = connect_store(&server.url(), &metrics, DEADLINE).await;
        assert_eq!(clients(&mut client), 3);
        drop(dropped);
        wait_until("one has left", || clients(&mut server.client()) == 3).await;
        assert_eq!(metrics.store.up.get(), 1);
        drop(kept);
        wait_until("the other has left", || clients(&mut server.client()) == 2).await;
    });
}

#[test]
fn the_gauges_show_the_worst_worker() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let _up = connect_store(&server.url(), &metrics, DEADLINE).await;
        assert_eq!(metrics.store.up.get(), 1);
        let down = RedisStore::connect(&settings(DEADLINE), "redis://127.0.0.1:1/", &metrics, &Default::default());
        assert_eq!(metrics.store.up.get(), 0);
        drop(down);
        wait_until("the store is up", || metrics.store.up.get() == 1).await;
    });
}

#[test]
fn a_timed_out_decision_is_charged_at_most_once() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let redis = connect_store(&server.url(), &Metrics::new().unwrap(), 5 * DEADLINE).await;
        let one = limit("one", window(100), Mode::Enforce);
        let () = redis::cmd("CLIENT").arg("PAUSE").arg(750).arg("ALL").query(&mut server.client()).unwrap();
        assert_eq!(kind(&redis, &one).await, Err(ErrorKind::Timeout));
        // The script reached the server, which executed it late.
        assert_eq!(kind(&redis, &one).await.unwrap().answers[0].remaining, 98);
    });
}
