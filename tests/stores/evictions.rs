//! A flood of new keys does not make the memory store forget the usage of others.

use std::fs;

use crate::support::client::get;
use crate::support::gateway::Gateway;

const LOGINS: &str = "[[route]]\nname = \"logins\"\npath = \"/login\"\nrespond = { }\nlimits = [\"logins\"]\n\n\
     [limit.logins]\nrate = \"5/h\"\nalgorithm = \"sliding_log\"\nkey = \"header:x-user\"\n\n";
const VOTES: &str = "[[route]]\nname = \"votes\"\npath = \"/vote\"\nrespond = { }\nlimits = [\"votes\"]\n\n\
     [limit.votes]\nrate = \"1/3650d\"\nalgorithm = \"fixed_window\"\nkey = \"header:x-user\"\n\n";

fn user(path: &str, name: &str) -> String {
    get(path, &format!("x-user: {name}\r\n"))
}

/// Sends one request of each of `count` users, many at a time.
fn flood(gateway: &Gateway, path: &str, prefix: &str, count: usize) {
    let mut client = gateway.client();
    for from in (0..count).step_by(100) {
        let to = (from + 100).min(count);
        client.send((from..to).map(|i| user(path, &format!("{prefix}{i}"))).collect::<String>());
        (from..to).for_each(|_| drop(client.read_response("GET")));
    }
}

fn admitted(gateway: &Gateway, path: &str, name: &str, count: usize) -> usize {
    (0..count).filter(|_| gateway.fetch(&user(path, name)).status() == 200).count()
}

fn evictions(gateway: &Gateway, limit: &str) -> f64 {
    gateway.metric("store_evictions_total", &[("limit", limit)]).unwrap_or_else(|| panic!("{limit} has no series"))
}

#[test]
fn the_keys_of_one_limit_push_out_no_other() {
    let gateway = Gateway::start(&format!("{LOGINS}{VOTES}[store]\nmax_keys = 6400\n"));
    assert_eq!((evictions(&gateway, "logins"), evictions(&gateway, "votes")), (0.0, 0.0));
    assert_eq!(admitted(&gateway, "/login", "alice", 6), 5);
    // Their keys live for ten years, and those of the logins for an hour.
    flood(&gateway, "/vote", "v", 12_000);
    assert_eq!(admitted(&gateway, "/login", "alice", 6), 0);
    assert_eq!(evictions(&gateway, "logins"), 0.0);
    assert!(evictions(&gateway, "votes") > 5000.0);
    let log = gateway.log();
    assert!(
        log.contains("limit votes: a key in use was evicted") && log.contains("raise `max_keys` of [store]"),
        "{log}"
    );
    assert_eq!(log.matches("was evicted").count(), 1, "{log}");
}

/// A limit with few keys keeps its exhausted keys, as long as an eighth of its keys are not exhausted.
#[test]
fn a_small_share_keeps_exhausted_keys_like_a_large_one() {
    for share in [64, 1024] {
        let limit = LOGINS.replace("key =", &format!("max_keys = {share}\nkey ="));
        let gateway = Gateway::start(&limit);
        let spent = share * 3 / 4;
        let every: Vec<usize> = (0..5).flat_map(|_| 0..spent).collect();
        let mut client = gateway.client();
        for part in every.chunks(100) {
            client.send(part.iter().map(|i| user("/login", &format!("spent{i}"))).collect::<String>());
            part.iter().for_each(|_| assert_eq!(client.read_response("GET").status(), 200));
        }
        flood(&gateway, "/login", "u", 5 * share);
        let kept = (0..spent).filter(|i| gateway.fetch(&user("/login", &format!("spent{i}"))).status() == 429).count();
        assert_eq!(kept, spent, "of a share of {share}");
        assert_eq!(evictions(&gateway, "logins"), (5 * share + spent - share) as f64);
    }
}

/// Keys of the same limit do not evict a key that is used more either.
#[test]
fn exhausted_keys_outlive_keys_that_were_used_once() {
    let limit = LOGINS.replace("key =", "max_keys = 3200\nkey =");
    let gateway = Gateway::start(&format!("{limit}{VOTES}[store]\nmax_keys = 6400\n"));
    assert_eq!(admitted(&gateway, "/login", "alice", 6), 5);
    assert_eq!(admitted(&gateway, "/login", "bob", 4), 4);
    flood(&gateway, "/login", "u", 12_000);
    assert!(evictions(&gateway, "logins") > 8000.0);
    assert_eq!(admitted(&gateway, "/login", "alice", 6), 0, "exhausted keys stay exhausted");
    assert_eq!(admitted(&gateway, "/login", "bob", 6), 1, "a key with one unit left still has it");
}

#[test]
fn shares_follow_the_config_and_a_limit_that_returns_keeps_its_keys() {
    let gateway = Gateway::start(&format!("{LOGINS}{VOTES}[store]\nmax_keys = 6400\n"));
    let file = gateway.dir.path().join("sluicegate.toml");
    let reload = |change: &dyn Fn(String) -> String| {
        fs::write(&file, change(fs::read_to_string(&file).unwrap())).unwrap();
        let head = "POST /-/reload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
        let answer = crate::support::client::fetch(gateway.admin, head);
        assert_eq!(answer.status(), 200, "{}", answer.text());
    };
    assert_eq!(admitted(&gateway, "/login", "alice", 6), 5);
    flood(&gateway, "/vote", "v", 1000);
    assert_eq!(evictions(&gateway, "votes"), 0.0);
    reload(&|text| {
        text.replace(LOGINS, "").replace("key = \"header:x-user\"", "key = \"header:x-user\"\nmax_keys = 640")
    });
    assert_eq!(gateway.metric("store_evictions_total", &[("limit", "logins")]), None);
    flood(&gateway, "/vote", "w", 2000);
    assert!(evictions(&gateway, "votes") > 2000.0, "there is less memory now");
    reload(&|text| text + LOGINS);
    assert_eq!(admitted(&gateway, "/login", "alice", 6), 0);
    assert_eq!(evictions(&gateway, "logins"), 0.0);
}
