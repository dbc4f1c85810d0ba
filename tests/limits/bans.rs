//! Bans in the running gateway: what clients see, what is counted and shown, and how an operator lifts a ban.

use std::time::Duration;

use redis::Commands;

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::topology::RedisCluster;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;

const LIMITS: &str = "[[route]]\nname = \"login\"\nrespond = { status = 200 }\nlimits = [\"login\", \"all\"]\n\
    [limit.login]\nalgorithm = \"fixed_window\"\nrate = \"1/100ms\"\n\
    ban = { after = 2, within = \"1m\", for = \"1h\", grow = 2, at_most = \"90m\" }\n\
    [limit.all]\nalgorithm = \"fixed_window\"\nrate = \"50/h\"\nkey = \"all\"\n";

fn statuses(gateway: &Gateway, count: usize) -> Vec<u16> {
    (0..count).map(|_| gateway.get("/").status()).collect()
}

#[test]
fn a_key_that_is_refused_often_is_banned_until_an_operator_lifts_it() {
    on_both_stores(|redis| {
        let gateway = scenario().store(redis).lines(LIMITS).start();
        let rejected = |reason| [("route", "login"), ("limit", "login"), ("reason", reason)];
        gateway.assert_metric("rejections_total", &rejected("banned"), 0.0);
        gateway.assert_metric("limit_bans_total", &[("limit", "login")], 0.0);
        // Whatever the machine does, the window cannot end between so many requests that no two are in one.
        let mut refused = Vec::new();
        while refused.len() < 2 {
            refused.extend(Some(gateway.get("/")).filter(|response| response.status() == 429));
        }
        let waits: Vec<&str> = refused.iter().map(|response| response.get("retry-after").unwrap()).collect();
        assert_eq!(waits, ["1", "3600"]);
        assert!(refused[1].text().contains("banned"), "{}", refused[1].text());
        std::thread::sleep(Duration::from_millis(150));
        let left = |name: &str| gateway.admin(&format!("/-/limits/{name}/state")).json()["remaining"].as_i64();
        let before = left("all");
        assert_eq!(statuses(&gateway, 20), [429; 20]);
        assert_eq!(left("all"), before, "a banned request charges no other limit");
        gateway.assert_metric("rejections_total", &rejected("banned"), 21.0);
        gateway.assert_metric("rejections_total", &rejected("exhausted"), 1.0);
        gateway.assert_metric("limit_bans_total", &[("limit", "login")], 1.0);

        let state = gateway.admin("/-/limits/login/state?key=127.0.0.1").json();
        assert_eq!((&state["admitted"], &state["reason"]), (&false.into(), &"banned".into()), "{state}");
        assert_eq!((&state["ban"]["banned"], &state["ban"]["bans"]), (&true.into(), &1.into()), "{state}");
        let left_ms = state["ban"]["left_ms"].as_i64().unwrap();
        assert!((3_500_000..=3_600_000).contains(&left_ms), "{state}");
        let listed = gateway.admin("/-/limits/login").json();
        let rule = "2 refusals within 1 min ban a key for 1 h, each time 2 times as long, at most 90 min";
        assert_eq!(listed["ban"], rule, "{listed}");
        let url = format!("http://{}", gateway.admin);
        let output = program()
            .args(["explain", "GET", "http://a.test/", "--from", "127.0.0.1", "--admin", &url])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("the key is banned until 2") && text.contains("; passes in 59 min"), "{text}");
        assert!(text.contains("ban a key for 1 h"), "{text}");
        assert!(text.contains("requests until then do not make the ban longer"), "{text}");

        let lift = || gateway.admin_request("DELETE", "/-/limits/login/state?key=127.0.0.1", "", "").status();
        assert_eq!(lift(), 200);
        assert_eq!(gateway.get("/").status(), 200);
        let state = gateway.admin("/-/limits/login/state?key=127.0.0.1").json();
        assert_eq!((&state["ban"]["banned"], &state["ban"]["bans"]), (&false.into(), &0.into()), "{state}");
    });
}

/// A banned client costs Redis nothing, the other gateway has the same ban, and it outlives a restart.
#[test]
fn gateways_share_a_ban() {
    let server = RedisServer::start(&[]);
    // With another limit that admits, each request would be a decision: that limit's wait might be longer.
    let limits = LIMITS.replace("[\"login\", \"all\"]", "[\"login\"]");
    let [one, other] = [(); 2].map(|()| scenario().store(Some(&server)).lines(&limits).start());
    while one.get("/").get("retry-after") != Some("3600") {}
    assert!(["3600", "3599"].contains(&other.get("/").get("retry-after").unwrap()));
    let executed = || {
        let text: String = redis::cmd("INFO").arg("commandstats").query(&mut server.client()).unwrap();
        let line = text.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default().to_owned();
        line.split([':', ',', '=']).nth(2).and_then(|calls| calls.parse::<i64>().ok()).unwrap_or_default()
    };
    let before = executed();
    assert_eq!(statuses(&one, 100), [429; 100]);
    // Each worker asks once, and again each second.
    assert!(executed() - before < 30, "{} calls", executed() - before);
    other.assert_metric("limit_bans_total", &[("limit", "login")], 0.0);
    let ttl: i64 = server.client().pttl("sg:{ip=127.0.0.1}:login:ban").unwrap();
    assert!((3_500_000 + 5_400_000..=3_600_000 + 5_400_000).contains(&ttl), "{ttl}");
}

/// In shadow mode, a ban is counted and refuses nobody. With `over`, the requests of a banned key are marked.
#[test]
fn a_ban_refuses_no_more_than_its_limit_may() {
    let app = Upstream::text("app");
    for (more, status) in [("mode = \"shadow\"", 200), ("over = \"annotate\"", 200), ("", 429)] {
        let config = LIMITS.replace("[limit.login]\n", &format!("[limit.login]\n{more}\n"));
        let config = config.replace("respond = { status = 200 }", &format!("upstream = \"{}\"", app.url()));
        let gateway = Gateway::start(&config);
        statuses(&gateway, 12);
        std::thread::sleep(Duration::from_millis(120));
        assert_eq!(gateway.get("/").status(), status, "{more}");
        gateway.assert_metric("limit_bans_total", &[("limit", "login")], 1.0);
        if status == 200 {
            assert_eq!(gateway.metric("rejections_total", &[("limit", "login"), ("reason", "banned")]), None);
        }
    }
}

/// A changed ban applies to later refusals, and one that is removed lets everybody in.
#[test]
fn a_reload_keeps_the_ban() {
    let gateway = Gateway::start(LIMITS);
    while gateway.get("/").get("retry-after") != Some("3600") {}
    gateway.reload_with("\"fixed_window\"\nrate = \"1/100ms\"", "\"gcra\"\nrate = \"10/s\"");
    assert_eq!(gateway.get("/").status(), 429, "another algorithm keeps the ban");
    gateway.reload_with("for = \"1h\", grow = 2, at_most = \"90m\"", "for = \"1m\", at_most = \"2m\"");
    assert_eq!(gateway.get("/").get("retry-after"), Some("120"));
    gateway.reload_with("ban = { after = 2, within = \"1m\", for = \"1m\", at_most = \"2m\" }\n", "");
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(gateway.get("/").status(), 200);
}

/// On a cluster, the limits of a request are in several slots, and the ban is in that of its limit.
#[test]
fn gateways_of_a_cluster_share_bans() {
    let cluster = RedisCluster::start(0);
    let config = "[[route]]\nname = \"login\"\nrespond = { status = 200 }\nlimits = [\"login\", \"all\"]\n\
        [limit.login]\nalgorithm = \"fixed_window\"\nrate = \"1/h\"\nkey = \"header:x-k\"\n\
        ban = { after = 2, within = \"1m\", for = \"2h\" }\n\
        [limit.all]\nalgorithm = \"fixed_window\"\nrate = \"500/h\"\nkey = \"all\"\n";
    let config = format!("[store]\nurl = \"{}\"\ndeadline = \"10s\"\n{config}", cluster.url());
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    gateways.iter().for_each(Gateway::wait_for_store);
    let fetch = |gateway: usize, key: u8| gateways[gateway].fetch(&get("/", &format!("x-k: {key}\r\n")));
    for key in 0..12 {
        assert_eq!([fetch(0, key), fetch(1, key)].map(|response| response.status()), [200, 429]);
        let begun = fetch(0, key);
        let wait: u64 = begun.get("retry-after").unwrap().parse().unwrap();
        assert!(begun.status() == 429 && (7190..=7200).contains(&wait), "{key}: {wait}");
        let state = gateways[1].admin(&format!("/-/limits/login/state?key={key}")).json();
        assert_eq!(state["ban"]["banned"], true, "{key}: {state}");
        assert!(fetch(1, key).text().contains("banned"), "{key}");
    }
    let left = gateways[0].admin("/-/limits/all/state").json()["remaining"].as_i64();
    assert_eq!(left, Some(500 - 12), "what is refused charges nothing");
    let lift = gateways[1].admin_request("DELETE", "/-/limits/login/state?key=3", "", "").status();
    assert_eq!((lift, fetch(0, 3).status(), fetch(0, 4).status()), (200, 200, 429));
}
