//! Requests that several gateways admit together while Redis is unavailable: when they lose it one after another, when
//! they start without it, and after restarts with a state file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::machine::Stopwatch;
use crate::support::relay::Relay;
use crate::support::wait_until;

const LIMIT: usize = 60;

/// A limit of 60 an hour for each user; `store` are further lines of `[store]`.
fn gateway(url: &str, store: &str) -> Gateway {
    Gateway::start(&config(url, store))
}

fn config(url: &str, store: &str) -> String {
    format!(
        "[store]\nurl = \"{url}\"\ndeadline = \"1s\"\n{store}\n\n[[route]]\nname = \"app\"\n\
         respond = {{ body = \"in\" }}\nlimits = [\"hourly\"]\n\n[limit.hourly]\nalgorithm = \"fixed_window\"\n\
         rate = \"{LIMIT}/h\"\nkey = \"header:user\"\n"
    )
}

fn state_line(path: &Path) -> String {
    format!("state = \"{}\"", path.display())
}

/// Admitted of 70 requests of one user.
fn admitted(gateway: &Gateway) -> usize {
    admitted_of(gateway, "u")
}

fn admitted_of(gateway: &Gateway, user: &str) -> usize {
    admitted_first(gateway, user, LIMIT + 10)
}

/// Admitted of `count` requests. A refusal of Redis would be remembered.
fn admitted_first(gateway: &Gateway, user: &str, count: usize) -> usize {
    let mut client = gateway.client();
    let statuses = (0..count).map(|_| client.fetch(&get("/", &format!("user: {user}\r\n")), "").status());
    statuses.filter(|status| *status == 200).count()
}

fn until_counted(gateway: &Gateway, count: f64) {
    wait_until("all gateways are counted", || gateway.metric("store_gateways", &[]) == Some(count));
    wait_until("every worker has reached the store", || gateway.metric("store_up", &[]) == Some(1.0));
}

fn until_unavailable(gateway: &Gateway) {
    wait_until("the store is unavailable", || gateway.metric("store_up", &[]) == Some(0.0));
}

/// Waits until the content of the file meets `condition`, and returns it.
fn saved(path: &Path, condition: impl Fn(&Value) -> bool) -> Value {
    let mut found = Value::Null;
    wait_until("the state file is written", || {
        found = fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        condition(&found)
    });
    found
}

#[test]
fn gateways_that_lose_redis_one_after_another_keep_their_shares() {
    let server = RedisServer::start(&[]);
    let relays = [(); 2].map(|()| Relay::start(server.port));
    let [stays, goes] = relays.each_ref().map(|relay| gateway(&relay.redis_url(), ""));
    [&stays, &goes].iter().for_each(|gateway| until_counted(gateway, 2.0));
    assert_eq!([&stays, &goes].map(|gateway| admitted_first(gateway, "u", LIMIT / 2)), [30, 30]);

    relays[1].interrupt();
    until_unavailable(&goes);
    assert_eq!(admitted(&goes), LIMIT / 2);
    // The other gateway no longer reports, but still serves clients.
    until_counted(&stays, 1.0);
    stays.assert_metric("store_local_divisor", &[], 2.0);
    relays[0].interrupt();
    until_unavailable(&stays);
    assert_eq!(admitted(&stays), LIMIT / 2);

    // A gateway that is started later reads the count from the store, even if few gateways report there.
    let third = gateway(&server.url(), "");
    until_counted(&third, 1.0);
    third.assert_metric("store_local_divisor", &[], 2.0);
}

#[test]
fn a_gateway_that_stops_is_no_longer_counted_at_once() {
    let server = RedisServer::start(&[]);
    let (stays, mut leaves) = (gateway(&server.url(), ""), gateway(&server.url(), ""));
    [&stays, &leaves].iter().for_each(|gateway| until_counted(gateway, 2.0));
    // A gateway uses a lower count only when all others have had time to report.
    std::thread::sleep(Duration::from_secs(5));
    leaves.signal("TERM");
    assert!(leaves.exit().success());
    let left = Stopwatch::start();
    wait_until("one is counted", || stays.metric("store_gateways", &[]) == Some(1.0));
    assert!(
        left.elapsed_without_delay() < Duration::from_secs(3),
        "a report counts for five seconds: {:?}",
        left.elapsed_without_delay()
    );
    // So a deployment that replaces gateways one by one never counts too few.
    let replaces = gateway(&server.url(), "");
    until_counted(&stays, 2.0);
    [&stays, &replaces].iter().for_each(|gateway| gateway.assert_metric("store_local_divisor", &[], 2.0));
}

/// The file does not show yet that there is an outage.
#[test]
fn a_restart_at_the_start_of_an_outage_counts() {
    let server = RedisServer::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state.json");
    let mut first = gateway(&server.url(), &state_line(&state));
    until_counted(&first, 1.0);
    drop(saved(&state, |saved| saved["gateways"] == 1));
    server.signal("STOP");
    first.signal("KILL");
    first.exit();
    let second = gateway(&server.url(), &state_line(&state));
    assert_eq!(admitted(&second), LIMIT / 2);
    server.signal("CONT");
}

#[test]
fn restarts_in_an_outage_admit_half_as_much_each_time() {
    let server = RedisServer::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let states = [0, 1, 2, 3].map(|i| dir.path().join(format!("{i}.json")));
    let start = || states.each_ref().map(|path| gateway(&server.url(), &state_line(path)));
    let mut gateways = start();
    gateways.iter().for_each(|gateway| until_counted(gateway, 4.0));
    assert_eq!(gateways.each_ref().map(|gateway| admitted_first(gateway, "u", LIMIT / 4)), [15; 4]);
    states.iter().for_each(|path| drop(saved(path, |saved| saved["gateways"] == 4)));

    server.signal("STOP");
    gateways.iter().for_each(until_unavailable);
    assert_eq!(gateways.each_ref().map(admitted), [15; 4]);
    states.iter().for_each(|path| drop(saved(path, |saved| saved["outage"]["restarts"] == serde_json::json!([]))));
    for share in [7, 3, 1, 1] {
        // Concurrently, because each waits for the store at its start.
        std::thread::scope(|scope| {
            for (gateway, state) in gateways.iter_mut().zip(&states) {
                let url = server.url();
                scope.spawn(move || {
                    gateway.signal("KILL");
                    gateway.exit();
                    *gateway = self::gateway(&url, &state_line(state));
                    assert_eq!(admitted(gateway), share);
                });
            }
        });
    }
    // After the outage, the processes that ended during it no longer count.
    server.signal("CONT");
    gateways.iter().for_each(|gateway| until_counted(gateway, 4.0));
    states.iter().for_each(|path| drop(saved(path, |saved| saved["outage"].is_null())));
    server.signal("STOP");
    gateways.iter().for_each(until_unavailable);
    assert_eq!(admitted_of(&gateways[0], "other"), 15);
    server.signal("CONT");
}

/// A limit forgets what an earlier process admitted when its period has ended.
#[test]
fn a_restart_longer_ago_than_the_period_takes_nothing() {
    let mut server = RedisServer::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.json");
    server.kill();
    let place = format!("127.0.0.1:{}/0 sg", server.port);
    let now = jiff::Timestamp::now().as_second();
    let saved = |gateways: i64, restarts: Vec<i64>| {
        let outage = serde_json::json!({ "restarts": restarts });
        let saved = serde_json::json!({
            "version": 1, "store": place, "name": "", "gateways": gateways, "outage": outage, "overrides": {},
        });
        fs::write(&path, saved.to_string()).unwrap();
    };
    // Each start adds itself. Impossible values are bounded.
    for (gateways, restarts, share) in [
        (1, vec![], 30),
        (1, vec![now - 3700, now - 10_000], 30),
        (1, vec![now - 10], 15),
        (1, vec![i64::MIN, i64::MAX, now + 1_000_000], 7),
        (i64::MAX, vec![], 1),
        (i64::MIN, vec![], 30),
    ] {
        saved(gateways, restarts.clone());
        let gateway = gateway(&server.url(), &state_line(&path));
        assert_eq!(admitted(&gateway), share, "{gateways} gateways, restarts {restarts:?}");
    }
}

#[test]
fn the_config_sets_the_minimum_number_of_gateways() {
    let mut server = RedisServer::start(&[]);
    server.kill();
    let gateway = gateway(&server.url(), "gateways = 4");
    assert_eq!(admitted(&gateway), LIMIT / 4);
    gateway.reload_with("gateways = 4", "gateways = 2");
    assert_eq!(admitted_of(&gateway, "other"), LIMIT / 2);
    gateway.assert_metric("store_local_divisor", &[], 2.0);
}

#[test]
fn live_overrides_are_in_force_on_a_gateway_that_starts_in_an_outage() {
    let server = RedisServer::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.json");
    let mut client = server.client();
    let set = |client: &mut redis::Connection, key: &[u8], value: &str| {
        let () = redis::cmd("HSET").arg("sg:overrides:hourly").arg(key).arg(value).query(client).unwrap();
    };
    set(&mut client, b"evil", "rate=0");
    set(&mut client, b"\xff%", "rate=3/h");
    let first = gateway(&server.url(), &state_line(&path));
    saved(&path, |saved| saved["overrides"]["hourly"]["evil"] == "rate=0");
    set(&mut client, b"late", "rate=2/h");
    saved(&path, |saved| saved["overrides"]["hourly"]["late"] == "rate=2/h");
    drop(first);

    server.signal("STOP");
    let second = gateway(&server.url(), &state_line(&path));
    assert_eq!(["evil", "late", "%other"].map(|user| admitted_of(&second, user)), [0, 1, LIMIT / 2]);
    // A config that is loaded later uses the overrides as well.
    second.reload_with("deadline = \"1s\"", "deadline = \"900ms\"");
    assert_eq!(admitted_of(&second, "evil"), 0);
    assert_eq!(second.log_lines(&["live overrides from the state file apply", "entries=3"]), 1);
    server.signal("CONT");
    let () = redis::cmd("DEL").arg("sg:overrides:hourly").query(&mut client).unwrap();
    saved(&path, |saved| saved["overrides"] == serde_json::json!({}));
    assert_ne!(admitted_of(&second, "evil"), 0, "the state of Redis applies");

    // From an edited file, only overrides that Redis could contain are used.
    server.signal("STOP");
    let mut text: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    text["overrides"] = serde_json::json!({ "hourly": { "evil": "rate=nonsense" }, "unknown": { "x": "rate=0" } });
    fs::write(&path, text.to_string()).unwrap();
    let third = gateway(&server.url(), &state_line(&path));
    assert_eq!(third.log_lines(&["WARN", "hourly", "live overrides left out", "evil: "]), 1);
    assert_eq!(third.get("/").status(), 200);
    server.signal("CONT");
    drop(third);

    // Another store has other overrides.
    let other = RedisServer::start(&[]);
    let text = fs::read_to_string(&path).unwrap();
    let third = gateway(&other.url(), &state_line(&path));
    assert_eq!(third.log_lines(&["ignored: it is about another store or prefix"]), 1, "{text}");
}

/// Replaces the state file with something else.
type Spoiling = fn(&Path);

#[test]
fn a_state_file_that_cannot_be_used_keeps_no_gateway_from_starting() {
    let server = RedisServer::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.json");
    let fifo = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let random = |path: &Path| {
        fs::write(path, (0..100_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect::<Vec<u8>>()).unwrap()
    };
    let looped = |path: &Path| symlink(path, path).unwrap();
    let cases: [(Spoiling, &str); 4] = [
        (random, "expected value"),
        (|path| fs::write(path, "{\"version\":1,\"store\":").unwrap(), "EOF"),
        (fifo, "not a regular file"),
        (looped, "symbolic links"),
    ];
    for (make, why) in cases {
        let _ = fs::remove_file(&path);
        make(&path);
        let gateway = gateway(&server.url(), &state_line(&path));
        assert_eq!(gateway.log_lines(&["WARN", "state file", "ignored", why]), 1, "{why}: {}", gateway.log());
        // It is replaced by one that is right.
        saved(&path, |saved| saved["version"] == 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    // The directory does not exist at first.
    let missing = dir.path().join("missing");
    let gateway = gateway(&server.url(), &state_line(&missing.join("store.json")));
    wait_until("it is logged", || gateway.log_lines(&["cannot write the state file"]) == 1);
    assert_eq!(gateway.get("/").status(), 200);
    fs::create_dir(&missing).unwrap();
    saved(&missing.join("store.json"), |saved| saved["version"] == 1);
    wait_until("it is logged", || gateway.log_lines(&["is written again"]) == 1);
    assert_eq!(gateway.log_lines(&["cannot write the state file"]), 1);
}

/// Invalid entries in the set by which gateways are counted do not change the count.
#[test]
fn junk_among_the_reports_is_no_gateway() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    let mut add = redis::cmd("ZADD");
    add.arg("sg:gateways");
    for (score, member) in [
        ("-inf", "=nan"),
        ("inf", "future"),
        ("99999999999999", "later"),
        ("-99999999999999", "=7"),
        ("-99999999999999", "=x"),
        ("5", "past"),
        ("-5", "=900"),
    ] {
        add.arg(score).arg(member);
    }
    let () = add.query(&mut client).unwrap();
    let gateway = gateway(&server.url(), "");
    until_counted(&gateway, 1.0);
    gateway.assert_metric("store_local_divisor", &[], 7.0);
    let () = redis::cmd("ZADD").arg("sg:gateways").arg("-99999999999999").arg("=1e300").query(&mut client).unwrap();
    gateway.assert_metric("store_local_divisor", &[], 1000.0);
    let ttl: i64 = redis::cmd("PTTL").arg("sg:gateways").query(&mut client).unwrap();
    assert!((1..=3_600_000).contains(&ttl), "{ttl}");
    // A value of another type does not stop the gateway.
    let () = redis::cmd("SET").arg("sg:gateways").arg("x").query(&mut client).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(gateway.get("/").status(), 200);
    let () = redis::cmd("DEL").arg("sg:gateways").query(&mut client).unwrap();
    wait_until("it is counted again", || redis::cmd("EXISTS").arg("sg:gateways").query(&mut client) == Ok(1));
}
