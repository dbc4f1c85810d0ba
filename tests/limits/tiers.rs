//! Limits with the key part `ip6tiers`: IPv6 clients that change their address, their neighbours, and IPv4 clients.

use std::fs;

use rand::Rng;
use redis::Commands;
use serde_json::{Value, json};
use sluicegate::config;
use sluicegate::contract::clauses::ClauseKind;
use sluicegate::contract::report::Contract;
use sluicegate::limiting::limit::Limit;
use sluicegate::reload::diff::Diff;

use crate::support::gateway::{Gateway, program};
use crate::support::http::Message;
use crate::support::limiting::topology::RedisCluster;
use crate::support::limiting::{RedisServer, on_both_stores, seeded};
use crate::support::scenario::{Scenario, scenario};
use crate::support::wait_until;

/// A trusted proxy states the address of the client.
const SERVER: &str = "trusted_proxies = [\"127.0.0.0/8\"]";
const ROUTE: &str = "[[route]]\nname = \"app\"\npath = \"/\"\nrespond = { body = \"in\" }\nlimits = [\"per-ip\"]\n";

fn gateway(redis: Option<&RedisServer>, limit: &str) -> Gateway {
    start(redis, scenario().limit_of("per-ip", limit))
}

fn start(redis: Option<&RedisServer>, scenario: Scenario) -> Gateway {
    scenario.store(redis).server(SERVER).start()
}

fn fetch(gateway: &Gateway, ip: &str) -> Message {
    gateway.fetch(&crate::support::client::get("/", &format!("x-forwarded-for: {ip}\r\n")))
}

fn statuses<const N: usize>(gateway: &Gateway, ips: [&str; N]) -> [u16; N] {
    ips.map(|ip| fetch(gateway, ip).status())
}

fn left(gateway: &Gateway, limit: &str, ip: &str) -> Value {
    gateway.admin(&format!("/-/limits/{limit}/state?key={ip}")).json()["remaining"].clone()
}

const HOURLY: &str = "algorithm = \"fixed_window\"\nrate = \"2/h\"\nkey = \"ip6tiers/64/56x2/48x3\"\n";

#[test]
fn all_networks_of_a_client_are_charged_or_none() {
    on_both_stores(|redis| {
        let gateway = gateway(redis, HOURLY);
        let ips = ["2001:db8:1:1::1", "2001:db8:1:1::2", "2001:db8:1:1::3"];
        assert_eq!(statuses(&gateway, ips), [200, 200, 429], "the /64");
        let ips = ["2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:1:4::1"];
        assert_eq!(statuses(&gateway, ips), [200, 200, 429], "the /56");
        assert_eq!(left(&gateway, "per-ip", "2001:db8:1:4::9"), 2, "the refused request is not charged");
        let ips = ["2001:db8:1:100::1", "2001:db8:1:200::1", "2001:db8:1:300::1"];
        assert_eq!(statuses(&gateway, ips), [200, 200, 429], "the /48");
        assert_eq!(left(&gateway, "per-ip.56", "2001:db8:1:300::1"), 4);
        assert_eq!(statuses(&gateway, ["2001:db8:2::1"]), [200], "a neighbour in another /48");
        // IPv4 clients have one budget, also as mapped addresses.
        assert_eq!(
            statuses(&gateway, ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"]),
            [200, 200, 429, 200]
        );
        // One of the first two is the IPv4 client.
        for (limit, refused) in [("per-ip", 2.0), ("per-ip.56", 1.0), ("per-ip.48", 1.0)] {
            let labels = [("route", "app"), ("limit", limit), ("decision", "deny")];
            gateway.assert_metric("limit_decisions_total", &labels, refused);
        }
        // Each tier has its own usage: a reset of one leaves the others.
        let reset = |limit: &str| {
            gateway.admin_request("DELETE", &format!("/-/limits/{limit}/state?key=2001:db8:1:4::1"), "", "").status()
        };
        assert_eq!((reset("per-ip.56"), statuses(&gateway, ["2001:db8:1:4::1"])), (200, [429]));
        assert_eq!((reset("per-ip.48"), statuses(&gateway, ["2001:db8:1:4::1"])), (200, [200]));
        let of_ipv4 = gateway.admin("/-/limits/per-ip.48/state?key=192.0.2.1");
        assert!(of_ipv4.status() == 422 && of_ipv4.text().contains("that of `per-ip`"), "{}", of_ipv4.text());
        let top = gateway.admin("/-/top?limit=per-ip.48&by=refused").json();
        assert_eq!(top["keys"][0]["count_min"], 2, "{top}");
    });
}

/// Clients see the tier with the least remaining units; of two that refuse, the one with the longer wait.
#[test]
fn headers_show_the_tightest_tier() {
    let gateway = gateway(None, HOURLY);
    let shown = |ip: &str| {
        let response = fetch(&gateway, ip);
        let field = |name| response.get(name).unwrap_or_default().to_owned();
        (response.status(), field("ratelimit").split(";t").next().unwrap().to_owned(), field("ratelimit-policy"))
    };
    let of = |status, state: &str, policy: &str| (status, state.to_owned(), policy.to_owned());
    assert_eq!(shown("2001:db8:1:1::1"), of(200, "\"per-ip\";r=1", "\"per-ip\";q=2;w=3600"));
    assert_eq!(shown("2001:db8:1:2::1"), of(200, "\"per-ip\";r=1", "\"per-ip\";q=2;w=3600"));
    assert_eq!(shown("2001:db8:1:3::1"), of(200, "\"per-ip\";r=1", "\"per-ip\";q=2;w=3600"));
    assert_eq!(shown("2001:db8:1:4::1"), of(200, "\"per-ip.56\";r=0", "\"per-ip.56\";q=4;w=3600"));
    assert_eq!(shown("2001:db8:1:5::1"), of(429, "\"per-ip.56\";r=0", "\"per-ip.56\";q=4;w=3600"));
    assert_eq!(shown("192.0.2.1"), of(200, "\"per-ip\";r=1", "\"per-ip\";q=2;w=3600"));
}

#[test]
fn overrides_belong_to_the_network_that_they_name() {
    let more = "overrides = [{ key = [\"2001:db8:1::/56\"], rate = \"9/h\" }, { key = [\"2001:db8:2::/48\"], rate = 0 },\n\
                { key = [\"2001:db8:1:1::\"], rate = \"unlimited\" }, { key = [\"192.0.2.9\"], rate = \"1/h\" }]\n";
    let gateway = gateway(None, &format!("{HOURLY}{more}"));
    assert_eq!(
        statuses(&gateway, ["2001:db8:1:1::1"; 7]),
        [200, 200, 200, 200, 200, 200, 429],
        "the /48 is charged as well"
    );
    assert_eq!(left(&gateway, "per-ip.56", "2001:db8:1:1::1"), 3);
    assert_eq!(statuses(&gateway, ["2001:db8:2:7::1", "192.0.2.9", "192.0.2.9"]), [429, 200, 429]);
}

/// A live override names a network like one of the config, in the hash of its size.
#[test]
fn live_overrides_name_networks() {
    let redis = RedisServer::start(&[]);
    let mut hashes = redis.client();
    let mut set = |limit: &str, net: &str, rate: &str| {
        let _: () = hashes.hset(format!("sg:overrides:{limit}"), net, format!("rate={rate}/h")).unwrap();
    };
    set("per-ip", "2001:db8:1:1::/64", "3");
    set("per-ip.56", "2001:db8:1::/56", "5");
    set("per-ip.48", "2001:db8:1::", "7");
    let gateway = gateway(Some(&redis), HOURLY);
    wait_until("they are active", || gateway.log().matches("overrides in Redis are active").count() == 3);
    let ips = ["2001:db8:1:1::1", "2001:db8:1:1::2", "2001:db8:1:1::3", "2001:db8:1:1::4"];
    assert_eq!(statuses(&gateway, ips), [200, 200, 200, 429]);
    assert_eq!(statuses(&gateway, ["2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:1:4::1"]), [200, 200, 429]);
    assert_eq!(statuses(&gateway, ["2001:db8:1:100::1", "2001:db8:1:200::1", "2001:db8:1:300::1"]), [200, 200, 429]);
    assert_eq!(left(&gateway, "per-ip.56", "2001:db8:1::/56"), 0);
    set("per-ip", "2001:db8:2::/56", "9");
    let mistake = "`2001:db8:2::/56` is not a network of this key: they are /32 and for IPv6 /64";
    wait_until("the mistake is logged", || gateway.log().contains(mistake));
}

#[test]
fn a_limit_that_refuses_nothing_charges_all_its_networks_or_none() {
    on_both_stores(|redis| {
        let gateway = gateway(redis, &format!("{HOURLY}mode = \"shadow\"\n"));
        for ip in ["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:1:4::1", "2001:db8:1:5::1"] {
            assert_eq!(fetch(&gateway, ip).status(), 200);
        }
        assert_eq!(left(&gateway, "per-ip", "2001:db8:1:5::1"), 2, "its /56 would refuse");
        assert_eq!(
            [left(&gateway, "per-ip.56", "2001:db8:1:5::1"), left(&gateway, "per-ip.48", "2001:db8:1:5::1")],
            [0, 2]
        );
    });
}

/// An override blocks one network of a client. A limit that refuses nothing then charges none of the others, as if it were
/// enforced.
#[test]
fn a_limit_that_refuses_nothing_charges_no_network_beside_a_blocked_one() {
    let blocked =
        "overrides = [{ key = [\"2001:db8:2::/48\"], rate = 0 }, { key = [\"2001:db8:1:1::/64\"], rate = 0 }]\n";
    let plain = "[limit.per-ip]\nrate = \"99/h\"\n[limit.tiers]\ncandidate_of = \"per-ip\"\n";
    for (name, section) in [
        ("per-ip", "[limit.per-ip]\n"),
        ("per-ip", "[limit.per-ip]\nmode = \"shadow\"\n"),
        ("per-ip", "[limit.per-ip]\nover = \"annotate\"\n"),
        ("tiers", plain),
    ] {
        on_both_stores(|redis| {
            let plain = format!("{ROUTE}{section}{HOURLY}{blocked}");
            let gateway =
                start(redis, scenario().lines(&plain.replace("respond = { body = \"in\" }", "upstream = \"echo:\"")));
            let left = |ip| ["", ".56", ".48"].map(|tier| left(&gateway, &format!("{name}{tier}"), ip));
            let ips = ["2001:db8:2:7::1", "2001:db8:1:1::1", "2001:db8:1:2::1"];
            let refuses = section == "[limit.per-ip]\n";
            assert_eq!(statuses(&gateway, ips), if refuses { [429, 429, 200] } else { [200; 3] }, "{section}");
            assert_eq!(left("2001:db8:2:7::1")[..2], [json!(2), json!(4)], "{section}");
            assert_eq!(left("2001:db8:1:2::1"), [json!(1), json!(3), json!(5)], "{section}");
            let allowed = [("route", "app"), ("limit", name), ("decision", "allow")];
            gateway.assert_metric("limit_decisions_total", &allowed, 1.0);
        });
    }
}

/// The limits of a chain refer to each other, also if checks before them are left out.
#[test]
fn a_blocked_network_leaves_chains_as_they_are() {
    let blocked = "overrides = [{ key = [\"2001:db8:2::/48\"], rate = 0 }]\n";
    on_both_stores(|redis| {
        let limit = format!("mode = \"shadow\"\n{HOURLY}{blocked}");
        let chain = scenario()
            .limit_of("per-ip", &limit)
            .limit("free", "1/h")
            .limit_of("paid", "rate = \"2/h\"\nafter = \"free\"");
        let gateway = start(redis, chain);
        assert_eq!(statuses(&gateway, ["2001:db8:2:7::1"; 4]), [200, 200, 200, 429]);
        let asked =
            json!({ "operation": "peek", "decisions": [{ "limits": ["per-ip"], "key": { "ip": "2001:db8:2:7::1" } }] })
                .to_string();
        let answer = gateway.admin_request("POST", "/-/decide", "content-type: application/json\r\n", asked).json();
        let limits = &answer["decisions"][0]["limits"];
        assert_eq!([&limits[0]["reason"], &limits[1]["reason"]], ["refused_before"; 2], "{answer}");
        assert_eq!([&limits[2]["asked"], &limits[2]["admitted"]], [true, false], "{answer}");
    });
}

#[test]
fn a_candidate_may_have_tiers() {
    let gateway = Gateway::with(
        SERVER,
        &format!("{ROUTE}[limit.per-ip]\nrate = \"2/h\"\n[limit.tiers]\n{HOURLY}candidate_of = \"per-ip\"\n"),
    );
    for part in 1..=6 {
        assert_eq!(fetch(&gateway, &format!("2001:db8:1:{part}::1")).status(), 200);
    }
    // The /56 has four.
    for (effect, count) in [("agree", 4.0), ("would_refuse", 2.0)] {
        let labels = [("route", "app"), ("limit", "tiers"), ("effect", effect)];
        gateway.assert_metric("candidate_decisions_total", &labels, count);
    }
    assert_eq!(left(&gateway, "tiers.48", "2001:db8:1:6::1"), 2, "not charged for what it would refuse");
    assert!(!gateway.metrics().contains("candidate_decisions_total{effect=\"agree\",limit=\"tiers.56\""));
}

/// The keys of the tiers are in different hash slots.
#[test]
fn a_cluster_decides_all_tiers() {
    let cluster = RedisCluster::start(0);
    let gateway = scenario().redis(&cluster.url()).server(SERVER).limit_of("per-ip", HOURLY).start();
    let ips = [
        "2001:db8:1:1::1",
        "2001:db8:1:1::2",
        "2001:db8:1:1::3",
        "2001:db8:1:2::1",
        "2001:db8:1:3::1",
        "2001:db8:1:4::1",
    ];
    assert_eq!(statuses(&gateway, ips), [200, 200, 429, 200, 200, 429]);
    assert_eq!(left(&gateway, "per-ip", "2001:db8:1:4::1"), 2);
    assert_eq!(left(&gateway, "per-ip.48", "2001:db8:1:4::1"), 2);
}

/// Random clients of two /48 try to get more than the sentences of `contract` say, over the admin listener.
#[test]
fn no_addresses_get_more_than_the_contract_states() {
    let limit = "rate = \"1/day\"\nburst = 3\nkey = \"ip6tiers\"\n";
    let gateway = gateway(None, limit);
    let loaded = config::load_text("test", &format!("{ROUTE}[limit.per-ip]\n{limit}")).unwrap();
    let contract = Contract::new(&loaded, Some(1), |_| true);
    let at_once =
        |limit: &str, kind| contract.clauses_of(limit).iter().find(|clause| clause.kind == kind).unwrap().most[0].units;
    assert_eq!(at_once("per-ip", ClauseKind::Tiers), 48);
    assert_eq!(["per-ip", "per-ip.56", "per-ip.48"].map(|limit| at_once(limit, ClauseKind::Window)), [3, 12, 48]);
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    let mut admitted = std::collections::BTreeMap::<u64, i64>::new();
    // The first attack is on one /64 of each provider alone, the second on one /56, the others on all.
    for (parts, subnets) in [(1, 1), (1, 12), (8, 12), (8, 12)] {
        let mut net = || {
            let provider = 0x2001_0db8_0000 + rng.random_range(0..2);
            provider << 16 | rng.random_range(0..parts) << 8 | rng.random_range(0..subnets)
        };
        let nets: Vec<u64> = (0..1000).map(|_| net()).collect();
        let decisions: Vec<Value> = nets
            .iter()
            .map(|net| {
                let ip = std::net::Ipv6Addr::from(u128::from(*net) << 64 | u128::from(rng.random::<u64>()));
                json!({ "limits": ["per-ip"], "key": { "ip": ip.to_string() } })
            })
            .collect();
        let body = json!({ "operation": "take", "decisions": decisions }).to_string();
        let response = gateway.admin_request("POST", "/-/decide", "content-type: application/json\r\n", body).json();
        for (net, decided) in nets.iter().zip(response["decisions"].as_array().unwrap()) {
            assert_eq!(decided["limits"].as_array().unwrap().len(), 3, "{decided}");
            *admitted.entry(*net).or_default() += i64::from(decided["admitted"] == true);
        }
    }
    let most = |bits: u32| {
        let mut sums = std::collections::BTreeMap::<u64, i64>::new();
        admitted.iter().for_each(|(net, count)| *sums.entry(net >> bits).or_default() += count);
        sums.into_values().max().unwrap()
    };
    assert_eq!([most(0), most(8), most(16)], [3, 12, 48], "each bound is reached and none exceeded");
}

/// The wider networks are those of IPv6 clients, also for decisions over the admin listener.
#[test]
fn decisions_for_ipv4_clients_leave_the_wider_networks_alone() {
    on_both_stores(|redis| {
        let more = "overrides = [{ key = [\"192.0.2.9\"], rate = \"9/h\" }, { key = [\"192.0.2.8\"], rate = \"unlimited\" }]\n";
        let gateway = gateway(redis, &format!("{HOURLY}{more}"));
        let take = |limits: Value, ip: &str| {
            let body = json!({ "operation": "take", "decisions": [{ "limits": limits, "key": { "ip": ip } }] });
            let response =
                gateway.admin_request("POST", "/-/decide", "content-type: application/json\r\n", body.to_string());
            assert_eq!(response.status(), 200, "{}", response.text());
            response.json()["decisions"][0].clone()
        };
        let admitted =
            |ip: &str, times: usize| (0..times).filter(|_| take(json!(["per-ip"]), ip)["admitted"] == true).count();
        assert_eq!([admitted("192.0.2.9", 12), admitted("192.0.2.8", 12), admitted("192.0.2.7", 12)], [9, 12, 2]);
        assert_eq!(admitted("::ffff:192.0.2.6", 12), 2);
        assert_eq!(statuses(&gateway, ["192.0.2.6", "192.0.2.9", "192.0.2.8"]), [429, 429, 200]);
        for ip in ["192.0.2.9", "192.0.2.8", "192.0.2.7", "192.0.2.6"] {
            let state = gateway.admin(&format!("/-/limits/per-ip.56/state?key={ip}"));
            assert_eq!(state.status(), 422, "{ip}: {}", state.text());
        }
        if let Some(redis) = redis {
            let wider: Vec<String> = redis.client().keys("sg:*:per-ip.*").unwrap();
            assert!(wider.is_empty(), "{wider:?}");
        }
        let wider = take(json!(["per-ip.56"]), "192.0.2.9");
        let not_asked = json!([{ "limit": "per-ip.56", "asked": false, "reason": "ipv6_only" }]);
        assert_eq!((&wider["admitted"], &wider["limits"]), (&json!(true), &not_asked));
        assert_eq!(take(json!(["per-ip"]), "192.0.2.5")["limits"][2]["reason"], "ipv6_only");
        assert_eq!(take(json!(["per-ip"]), "2001:db8::1")["limits"][2]["remaining"], 5);
    });
}

#[test]
fn the_commands_know_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("sluicegate.toml", &format!("{ROUTE}[limit.per-ip]\n{HOURLY}"));
    write("plain.toml", &format!("{ROUTE}[limit.per-ip]\n{}", HOURLY.replace("ip6tiers/64/56x2/48x3", "ip")));
    let run = |arguments: &[&str]| {
        let out = program().current_dir(dir.path()).args(arguments).output().unwrap();
        String::from_utf8(out.stdout).unwrap() + &String::from_utf8_lossy(&out.stderr)
    };
    let text = run(&["explain", "GET", "http://a/", "--from", "2001:db8::1"]);
    assert!(text.contains("per-ip.56  admits") && text.contains("tier of per-ip"), "{text}");
    let text = run(&["explain", "GET", "http://a/", "--from", "192.0.2.1"]);
    assert!(text.contains("per-ip.56  skipped"), "{text}");
    let text = run(&["contract"]);
    assert!(text.contains("must fit per-ip.56 and per-ip.48 as well"), "{text}");
    let text = run(&["diff", "sluicegate.toml", "plain.toml"]);
    assert!(text.contains("weaker"), "{text}");
    assert_eq!(run(&["check", "--deny-warnings"]).lines().count(), 1, "no tier is reported as unused");
}

#[test]
fn diff_marks_networks_that_get_more() {
    let load = |key: &str, rate: &str| {
        let text = format!("{ROUTE}[limit.per-ip]\nkey = \"{key}\"\nrate = \"{rate}\"\n");
        config::load_text("test", &text).unwrap_or_else(|report| panic!("{report}"))
    };
    let before = load("ip6tiers/64/56x4/48x16", "100/h");
    for (key, rate, is_weaker) in [
        ("ip6tiers/64/56x4/48x17", "100/h", true),
        ("ip6tiers/64/56x5/48x16", "100/h", true),
        ("ip6tiers/64/48x16", "100/h", true),
        ("ip6tiers/64/56x4", "100/h", true),
        ("ip6tiers/128/56x4/48x16", "100/h", true),
        ("ip", "100/h", true),
        ("ip6tiers/64/56x4/48x15", "100/h", false),
        ("ip6tiers/64/52x4/48x16", "100/h", false),
        ("ip6tiers/64/56x4/48x16/32x99", "100/h", false),
        ("ip6tiers/60/56x4/48x16", "100/h", false),
        ("ip6tiers/64/56x8/48x32", "50/h", false),
    ] {
        let lines: Vec<String> = Diff::compare(&before, &load(key, rate)).lines().collect();
        let line = lines.iter().find(|line| line.contains(": key ")).unwrap_or_else(|| panic!("{key}: {lines:?}"));
        assert_eq!(line.contains("[weaker]"), is_weaker, "{line}");
    }
}

#[test]
fn diff_describes_all_tiers_as_one_limit() {
    let load = |more: &str| {
        let text = format!("{ROUTE}[limit.per-ip]\nkey = \"ip6tiers\"\nrate = \"100/h\"\n{more}\n");
        config::load_text("test", &text).unwrap_or_else(|report| panic!("{report}"))
    };
    let before = load("");
    for (more, change) in [
        ("burst = 50", "limit per-ip: burst default → 50"),
        (
            "overrides = [{ key = \"2001:db8::/48\", rate = 0 }]",
            "limit per-ip: overrides: added { key = \"2001:db8::/48\", rate = 0 }",
        ),
    ] {
        let lines: Vec<String> = Diff::compare(&before, &load(more)).lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with(change), "{lines:?}");
    }
}

#[test]
fn multiples_are_those_of_all_numbers() {
    let load = |limit: &str| {
        let config = config::load_text("test", &format!("{ROUTE}[limit.per-ip]\nkey = \"ip6tiers\"\n{limit}"))
            .unwrap_or_else(|report| panic!("{report}"));
        config.limits.iter().map(|limit: &std::sync::Arc<Limit>| limit.rule.describe()).collect::<Vec<_>>()
    };
    for (limit, texts) in [
        ("rate = \"10/s\"\nburst = 20\ndebt = 5", ["80 per 2 s", "320 per 2 s", "20 per 2 s"]),
        ("algorithm = \"concurrency\"\nin_flight = 5", ["20 in flight", "80 in flight", "5 in flight"]),
        ("algorithm = \"calendar\"\nrate = \"10/day\"", ["40 per day", "160 per day", "10 per day"]),
    ] {
        assert_eq!(load(limit), texts, "{limit}");
    }
}
