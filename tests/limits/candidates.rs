//! Candidates (`candidate_of`): which requests the replacement of a limit would affect, what a candidate is charged
//! for, and which states and responses a candidate never changes.

use std::fs;

use serde_json::{Value, json};
use sluicegate::limiting::store::redis::slot::key_slot;

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::topology::RedisCluster;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const LIMITS: &str = "[limit.now]\nrate = \"3/h\"\nkey = \"header:x-key\"\n\
    [limit.tight]\nrate = \"1/h\"\nkey = \"header:x-key\"\ncandidate_of = \"now\"\n\
    [limit.wide]\nrate = \"5/h\"\nkey = \"header:x-key\"\ncandidate_of = \"now\"\n";

fn gateway(redis: Option<&RedisServer>, config: &str) -> Gateway {
    scenario().store(redis).server("access_log = { to = \"access.log\" }").lines(config).start()
}

fn fetch(gateway: &Gateway, key: &str) -> u16 {
    gateway.fetch(&get("/", &format!("x-key: {key}\r\n"))).status()
}

/// Returns the comparisons of a candidate by effect: agree, would refuse, would admit.
fn effects(gateway: &Gateway, limit: &str) -> [f64; 3] {
    ["agree", "would_refuse", "would_admit"].map(|effect| {
        let labels = [("route", "app"), ("limit", limit), ("effect", effect)];
        gateway.metric("candidate_decisions_total", &labels).unwrap()
    })
}

/// Waits for these comparisons: on a busy machine, the metrics of a page may be some requests old.
#[track_caller]
fn assert_effects(gateway: &Gateway, limit: &str, expected: [f64; 3]) {
    wait_until(&format!("{limit} has the effects {expected:?}"), || effects(gateway, limit) == expected);
}

fn left(gateway: &Gateway, limit: &str, key: &str) -> i64 {
    let query = if key.is_empty() { String::new() } else { format!("?key={key}") };
    gateway.admin(&format!("/-/limits/{limit}/state{query}")).json()["remaining"].as_i64().unwrap()
}

/// Returns the first key of a list: its text and count.
fn top(gateway: &Gateway, limit: &str, by: &str) -> (String, u64) {
    let list = gateway.admin(&format!("/-/top?limit={limit}&by={by}")).json();
    let key = &list["keys"][0];
    (key["key"].as_str().unwrap_or_default().to_owned(), key["count_min"].as_u64().unwrap_or(0))
}

#[test]
fn a_candidate_reports_affected_clients_and_changes_nothing() {
    on_both_stores(|redis| {
        let config = format!(
            "{LIMITS}[[route]]\nname = \"app\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\nlimits = [\"now\"]\n\
             [admin.keys]\ndefault = \"plain\"\n"
        );
        let gateway = gateway(redis, &config);
        assert_eq!(effects(&gateway, "wide"), [0.0; 3], "the series exist from the start");
        let first = gateway.fetch(&get("/", "x-key: a\r\n"));
        assert_eq!(first.get("ratelimit"), Some("\"now\";r=2;t=2400"), "no candidate is shown to clients");
        assert_eq!([0; 5].map(|_| fetch(&gateway, "a")), [200, 200, 429, 429, 429]);
        assert_eq!(fetch(&gateway, "b"), 200);
        assert_effects(&gateway, "tight", [5.0, 2.0, 0.0]);
        assert_effects(&gateway, "wide", [5.0, 0.0, 2.0]);
        let a = |count| ("header:x-key=a".to_owned(), count);
        assert_eq!(top(&gateway, "tight", "would_refuse"), a(2), "requests that both refuse are not charged");
        assert_eq!(top(&gateway, "wide", "would_admit"), a(2));
        assert_eq!(top(&gateway, "now", "refused"), a(3));
        // A candidate is charged for the requests that it would admit.
        assert_eq!([left(&gateway, "tight", "a"), left(&gateway, "wide", "a"), left(&gateway, "wide", "b")], [0, 0, 4]);
        let log = || fs::read_to_string(gateway.config().with_file_name("access.log")).unwrap_or_default();
        wait_until("all requests are logged", || log().lines().count() == 7);
        let count = |text: &str| log().matches(text).count();
        assert_eq!(count("\"candidates\":\"tight=would_refuse\""), 2, "{}", log());
        assert_eq!((count("\"candidates\":\"wide=would_admit\""), count("\"candidates\":null")), (2, 3));
        let listed = gateway.admin("/-/limits/wide").json();
        assert_eq!((&listed["candidate_of"], &listed["mode"]), (&json!("now"), &json!("shadow")));
        assert_eq!(listed["routes"], json!(["app"]));
    });
}

/// Requests that another limit refuses are refused in any case, so the candidate affects none of them and is not
/// charged for them. Those that its incumbent refuses are charged.
#[test]
fn a_candidate_is_charged_as_in_place_of_its_incumbent() {
    on_both_stores(|redis| {
        let config = format!(
            "{LIMITS}[limit.hard]\nrate = \"2/h\"\nkey = \"all\"\n\
             [[route]]\nname = \"app\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\nlimits = [\"now\", \"hard\"]\n"
        );
        let gateway = gateway(redis, &config);
        assert_eq!([0; 4].map(|_| fetch(&gateway, "a")), [200, 200, 429, 429]);
        assert_eq!([left(&gateway, "now", "a"), left(&gateway, "wide", "a"), left(&gateway, "hard", "")], [1, 3, 0]);
        assert_effects(&gateway, "wide", [2.0, 0.0, 0.0]);
        assert_effects(&gateway, "tight", [1.0, 1.0, 0.0]);
        assert_eq!(gateway.admin_request("DELETE", "/-/limits/hard/state", "", "").status(), 200);
        assert_eq!([0; 3].map(|_| fetch(&gateway, "a")), [200, 429, 429]);
        assert_eq!(left(&gateway, "wide", "a"), 0, "charged for three admissions and two refusals of the incumbent");
        assert_eq!(left(&gateway, "hard", ""), 1, "no other limit is charged for what the incumbent refuses");
        assert_effects(&gateway, "wide", [3.0, 0.0, 2.0]);
    });
}

/// An incumbent refuses a blocked key and a missing part without reading its state. Some requests concern only one of
/// both limits.
#[test]
fn overrides_conditions_and_missing_parts_are_compared_too() {
    let gateway = gateway(
        None,
        "[limit.now]\nrate = \"1/h\"\nkey = \"header:x-key\"\nmissing = \"refuse\"\n\
         overrides = [{ key = [\"bad\"], rate = 0 }, { key = [\"free\"], rate = \"unlimited\" }]\n\
         [limit.open]\nrate = \"2/h\"\nkey = \"header:x-key\"\nmissing = \"skip\"\ncandidate_of = \"now\"\n\
         [limit.posts]\nrate = \"1/h\"\nkey = \"header:x-key\"\nwhen = { method = \"POST\" }\ncandidate_of = \"now\"\n\
         overrides = [{ key = [\"free\"], rate = 0 }]\n\
         [[route]]\nname = \"app\"\npath = \"/\"\nrespond = {}\nlimits = [\"now\"]\n[admin.keys]\ndefault = \"plain\"\n",
    );
    assert_eq!([0; 3].map(|_| fetch(&gateway, "bad")), [429; 3]);
    // It is charged, and exhausted at the third.
    assert_effects(&gateway, "open", [1.0, 0.0, 2.0]);
    // It does not apply.
    assert_effects(&gateway, "posts", [0.0, 0.0, 3.0]);
    assert_eq!(top(&gateway, "open", "would_admit"), ("header:x-key=bad".to_owned(), 2));
    assert_eq!(top(&gateway, "posts", "would_admit"), ("header:x-key=bad".to_owned(), 3), "the key of the incumbent");
    assert_eq!(gateway.get("/").status(), 403);
    // Without the header, it would not apply.
    assert_effects(&gateway, "open", [1.0, 0.0, 3.0]);
    let free = || gateway.fetch("POST / HTTP/1.1\r\nhost: a\r\nx-key: free\r\ncontent-length: 0\r\n\r\n").status();
    assert_eq!([free(), free(), free()], [200; 3]);
    assert_effects(&gateway, "open", [3.0, 1.0, 3.0]);
    assert_effects(&gateway, "posts", [0.0, 3.0, 4.0]);
    assert_eq!(top(&gateway, "posts", "would_refuse"), ("header:x-key=free".to_owned(), 3));
}

/// A slot that a candidate takes for a request that its incumbent refuses is released like any other.
#[test]
fn slots_of_candidates_are_released() {
    on_both_stores(|redis| {
        let app = Upstream::silent();
        let gateway = gateway(
            redis,
            &format!(
                "[limit.now]\nalgorithm = \"concurrency\"\nin_flight = 1\nkey = \"all\"\nlinger = \"0s\"\n\
                 [limit.wide]\nalgorithm = \"concurrency\"\nin_flight = 2\nkey = \"all\"\nlinger = \"0s\"\ncandidate_of = \"now\"\n\
                 [[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"now\"]\n",
                app.url()
            ),
        );
        let mut held = gateway.client();
        held.send(get("/", ""));
        wait_until("the slots are taken", || left(&gateway, "now", "") == 0);
        for _ in 0..3 {
            // The slot is released after the response.
            wait_until("only the running request has a slot", || left(&gateway, "wide", "") == 1);
            assert_eq!(gateway.get("/").status(), 429);
        }
        // Each had a slot of the candidate in turn.
        assert_effects(&gateway, "wide", [1.0, 0.0, 3.0]);
        drop(held);
        wait_until("all slots are free", || left(&gateway, "wide", "") == 2 && left(&gateway, "now", "") == 1);
    });
}

/// On a cluster, the keys of the incumbent, the candidate and other limits are in different slots.
#[test]
fn a_cluster_charges_candidates_alike() {
    let cluster = RedisCluster::start(0);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"10s\"\n[[route]]\nname = \"app\"\npath = \"/\"\nrespond = {{}}\n\
         limits = [\"now\", \"hard\"]\n[limit.now]\nrate = \"1/h\"\nkey = \"header:x-a\"\n\
         [limit.wide]\nrate = \"5/h\"\nkey = \"header:x-b\"\ncandidate_of = \"now\"\n\
         [limit.hard]\nrate = \"3/h\"\nkey = \"header:x-c\"\n",
        cluster.url()
    ));
    gateway.wait_for_store();
    let at = |part: &str| cluster.owner_index(key_slot(&format!("{{header:x-{part}}}")));
    let b = (0..).map(|number| format!("b{number}")).find(|b| at(&format!("b={b}")) != at("a=a")).unwrap();
    let fetch = |a: &str, c: &str| gateway.fetch(&get("/", &format!("x-a: {a}\r\nx-b: {b}\r\nx-c: {c}\r\n"))).status();
    // The incumbent refuses the second; the other limit refuses the last two, for different keys of the incumbent.
    let statuses =
        [fetch("a", "c"), fetch("a", "c"), fetch("a1", "c"), fetch("a2", "c"), fetch("a3", "c"), fetch("a4", "c")];
    assert_eq!(statuses, [200, 429, 200, 200, 429, 429]);
    wait_until("charges of refused requests are refunded", || left(&gateway, "wide", &b) == 1);
    assert_eq!((left(&gateway, "hard", "c"), left(&gateway, "now", "a4")), (0, 1));
    assert_effects(&gateway, "wide", [3.0, 0.0, 1.0]);
}

/// The slot of the candidate is charged, then that of the incumbent does not respond, and the gateway decides by
/// itself.
#[test]
fn a_cluster_that_fails_halfway_keeps_no_charge_of_a_candidate() {
    let cluster = RedisCluster::start(0);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"1s\"\n[[route]]\nname = \"app\"\npath = \"/\"\nrespond = {{}}\n\
         limits = [\"now\", \"seen\"]\n[limit.now]\nrate = \"9/h\"\nkey = \"header:x-a\"\n\
         [limit.new]\nrate = \"9/h\"\nkey = \"header:x-b\"\ncandidate_of = \"now\"\n\
         [limit.seen]\nrate = \"9/h\"\nkey = \"header:x-c\"\nmode = \"shadow\"\n",
        cluster.url()
    ));
    gateway.wait_for_store();
    // Slots are charged in their order.
    let slot = |part: &str, value: &str| key_slot(&format!("{{header:x-{part}={value}}}"));
    let last = slot("a", "a");
    let before = |part: &str| {
        let is_before = |value: &String| {
            let slot = slot(part, value);
            slot < last && cluster.owner_index(slot) != cluster.owner_index(last)
        };
        (0..).map(|number| format!("{part}{number}")).find(is_before).unwrap()
    };
    let (b, c) = (before("b"), before("c"));
    let fetch = || gateway.fetch(&get("/", &format!("x-a: a\r\nx-b: {b}\r\nx-c: {c}\r\n"))).status();
    assert_eq!(fetch(), 200);
    let lefts = || [left(&gateway, "new", &b), left(&gateway, "seen", &c)];
    let known = lefts();
    cluster.owner(last).signal("STOP");
    assert_eq!(fetch(), 200, "by this gateway's share");
    cluster.owner(last).signal("CONT");
    let labels = [("route", "app"), ("limit", "now"), ("decision", "local_allow")];
    wait_until("the request was decided locally", || gateway.metric("limit_decisions_total", &labels) >= Some(1.0));
    assert_eq!(lefts(), known, "the request was counted locally");
}

#[test]
fn a_candidate_replaces_its_incumbent_with_its_usage() {
    let route = "[[route]]\nname = \"app\"\npath = \"/\"\nrespond = {}\nlimits = [\"now\"]\n";
    let gateway = gateway(None, &format!("{LIMITS}{route}"));
    assert_eq!([0; 2].map(|_| fetch(&gateway, "a")), [200; 2]);
    let text = fs::read_to_string(gateway.config()).unwrap();
    let swapped = text.replace("\ncandidate_of = \"now\"", "").replace("limits = [\"now\"]", "limits = [\"wide\"]");
    assert_eq!(gateway.reload(&swapped).status(), 200);
    assert_eq!([0; 4].map(|_| fetch(&gateway, "a")), [200, 200, 200, 429], "two of five were used");
    wait_until("the series go with the option", || {
        !gateway.metrics().contains("sluicegate_candidate_decisions_total{")
    });
}

#[test]
fn explain_replay_diff_and_contract_know_candidates() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let limits = "[limit.now]\nrate = \"2/h\"\n[limit.wide]\nrate = \"3/h\"\ncandidate_of = \"now\"\n\
        [limit.login]\nrate = \"1/h\"\nwhen = { header = { x-a = \"1\" } }\ncandidate_of = \"now\"\n";
    let route = "[[route]]\npath = \"/\"\nrespond = {}\nlimits = [\"now\"]\n";
    write("sluicegate.toml", &format!("{route}{limits}"));
    write(
        "cases.toml",
        "[[case]]\nrequest = \"GET http://a/\"\nrepeat = 2\nexpect = { decision = \"admit\" }\n\
         [[case]]\nrequest = \"GET http://a/\"\nexpect = { decision = \"refuse\", limit = \"now\", status = 429 }\n",
    );
    let line = |second: u32| {
        format!("127.0.0.1 - - [01/Jan/2026:00:00:0{second} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n")
    };
    write("access.log", &(0..4).map(line).collect::<String>());
    let run = |arguments: &[&str]| {
        let out = program().current_dir(dir.path()).args(arguments).output().unwrap();
        String::from_utf8(out.stdout).unwrap() + &String::from_utf8_lossy(&out.stderr)
    };
    assert!(run(&["test", "cases.toml"]).starts_with("ok: 2 cases passed"));
    let report = run(&["replay", "access.log"]);
    assert!(report.contains("in place of now: 3 requests treated alike, 0 more refused, 1 more admitted"), "{report}");
    let report: serde_json::Value = serde_json::from_str(&run(&["replay", "--format", "json", "access.log"])).unwrap();
    let limits = report["limits"].as_array().unwrap();
    let compared = |name: &str| &limits.iter().find(|limit| limit["name"] == name).unwrap()["compared"];
    assert_eq!(compared("wide"), &json!({ "agree": 3, "would_refuse": 0, "would_admit": 1 }));
    assert_eq!(
        compared("login"),
        &json!({ "agree": 0, "would_refuse": 0, "would_admit": 0 }),
        "the log lacks a header"
    );
    assert_eq!(compared("now"), &json!(null));
    let text = run(&["explain", "GET", "http://a/"]);
    assert!(text.contains("candidate of now, agrees"), "{text}");
    let text = run(&["contract"]);
    assert!(text.contains("It is a candidate of now and refuses nothing"), "{text}");
    let enforced = fs::read_to_string(dir.path().join("sluicegate.toml")).unwrap();
    write(
        "enforced.toml",
        &enforced.replacen("candidate_of = \"now\"\n", "", 1).replace("[\"now\"]", "[\"now\", \"wide\"]"),
    );
    let text = run(&["diff", "enforced.toml", "sluicegate.toml"]);
    assert!(text.contains("candidate_of") && text.contains("weaker"), "{text}");
}

/// A closed incumbent refuses without the store, and a local candidate is decided all the same.
#[test]
fn an_outage_compares_candidates_that_decide_locally() {
    let config = |more: &str| {
        format!(
            "[store]\nurl = \"redis://{}\"\n{}[[route]]\nname = \"app\"\npath = \"/\"\n\
             respond = {{ body = \"in\" }}\nlimits = [\"now\"{more}]\n\
             [limit.other]\nrate = \"9/h\"\non_error = \"closed\"\n",
            crate::support::ports::closed_addr(),
            LIMITS
                .replacen("rate = \"3/h\"\n", "rate = \"3/h\"\non_error = \"closed\"\n", 1)
                .replacen("rate = \"1/h\"\n", "rate = \"1/h\"\non_error = \"local\"\n", 1)
                .replacen("rate = \"5/h\"\n", "rate = \"5/h\"\non_error = \"closed\"\n", 1)
        )
    };
    let alone = gateway(None, &config(""));
    assert_eq!([fetch(&alone, "a"), fetch(&alone, "a"), fetch(&alone, "a")], [503; 3]);
    assert_eq!(effects(&alone, "tight"), [2.0, 0.0, 1.0], "it would admit one");
    assert_eq!(effects(&alone, "wide"), [3.0, 0.0, 0.0], "it is closed as well");
    // Another limit refuses in any case.
    let beside = gateway(None, &config(", \"other\""));
    assert_eq!([fetch(&beside, "a"), fetch(&beside, "a")], [503; 2]);
    assert_eq!(effects(&beside, "tight"), [0.0; 3]);
}

/// The admin API decides the limits in the order of a route, in which a candidate follows its incumbent, however the
/// request lists them.
#[test]
fn the_order_in_a_request_does_not_charge_a_candidate() {
    let window = |name: &str, count: u32| {
        format!("[limit.{name}]\nalgorithm = \"fixed_window\"\nrate = \"{count}/day\"\nkey = \"all\"\n")
    };
    let gateway = Gateway::start(&format!(
        "[[route]]\nrespond = {{ body = \"in\" }}\nlimits = [\"now\", \"other\"]\n{}{}candidate_of = \"now\"\n{}",
        window("now", 10),
        window("next", 2),
        window("other", 1)
    ));
    let decide = |limits: Value| {
        let body = json!({ "operation": "take", "decisions": [{ "limits": limits, "key": {} }] }).to_string();
        gateway.admin_request("POST", "/-/decide", "content-type: application/json\r\n", body).json()
    };
    decide(json!(["other"]));
    for order in [json!(["now", "next", "other"]), json!(["next", "now", "other"]), json!(["other", "next", "now"])] {
        let answer = decide(order.clone());
        assert_eq!(answer["decisions"][0]["admitted"], false, "{answer}");
        assert_eq!(gateway.admin("/-/limits/next/state").json()["remaining"], 2, "{order}");
    }
}
