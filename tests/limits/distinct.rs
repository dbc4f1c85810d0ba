//! Limits that count different values: which are admitted, what refuses them, and what takes them back.

use std::collections::HashSet;

use rand::Rng;
use sluicegate::config;
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;
use sluicegate::limiting::algorithm::sliding_log::SlidingLog;
use sluicegate::limiting::algorithm::{Rule, State};

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::rules::{distinct, random_tag};
use crate::support::limiting::topology::RedisCluster;
use crate::support::limiting::{RedisServer, on_both_stores, seeded};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const SERVER: &str = "trusted_proxies = [\"127.0.0.0/8\"]";
const SHARED: &str = "[[route]]\nname = \"app\"\nrespond = { body = \"in\" }\nlimits = [\"shared\", \"all\"]\n\
    [limit.shared]\nalgorithm = \"fixed_window\"\nrate = \"2/h\"\nkey = \"header:x-api-key\"\ndistinct = \"ip\"\n\
    [limit.all]\nalgorithm = \"fixed_window\"\nrate = \"20/h\"\nkey = \"header:x-account\"\nmissing = \"skip\"\n";

fn store_section(url: Option<String>) -> String {
    url.map_or_else(String::new, |url| format!("[store]\nurl = \"{url}\"\ndeadline = \"10s\"\n"))
}

fn start(redis: Option<&RedisServer>, config: &str) -> Gateway {
    let gateway = Gateway::with(SERVER, &format!("{}{config}", store_section(redis.map(RedisServer::url))));
    if redis.is_some() {
        gateway.wait_for_store();
    }
    gateway
}

fn status(gateway: &Gateway, key: &str, address: &str, more: &str) -> u16 {
    gateway.fetch(&get("/", &format!("x-api-key: {key}\r\nx-forwarded-for: {address}\r\n{more}"))).status()
}

fn statuses<const N: usize>(gateway: &Gateway, key: &str, hosts: [u8; N]) -> [u16; N] {
    hosts.map(|host| status(gateway, key, &format!("192.0.2.{host}"), ""))
}

#[test]
fn a_value_that_counts_passes_and_a_new_one_is_refused() {
    on_both_stores(|redis| {
        let gateway = start(redis, SHARED);
        assert_eq!(statuses(&gateway, "k", [1, 2, 1, 1, 3, 2, 4, 1, 3]), [200, 200, 200, 200, 429, 200, 429, 200, 429]);
        assert_eq!(statuses(&gateway, "other", [3, 4, 5]), [200, 200, 429]);
        let refused = gateway.fetch(&get("/", "x-api-key: k\r\nx-forwarded-for: 192.0.2.9\r\n"));
        let wait: u64 = refused.get("retry-after").unwrap().parse().unwrap();
        assert!((3500..=3600).contains(&wait), "{wait}");
        // An IPv6 client is its /64, and requests without the key share one budget.
        let v6 = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "2001:db8:0:2::1"];
        assert_eq!(v6.map(|address| status(&gateway, "six", address, "")), [200, 200, 200, 429]);

        let state = gateway.admin("/-/limits/shared/state?key=k").json();
        assert_eq!((&state["remaining"], &state["admitted"]), (&0.into(), &false.into()), "{state}");
        let url = format!("http://{}", gateway.admin);
        let explain = |address: &str| {
            let arguments =
                ["explain", "GET", "http://a.test/", "-H", "x-api-key: k", "--from", address, "--admin", &url];
            let output = program().args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let (known, new) = (explain("192.0.2.1"), explain("192.0.2.8"));
        assert!(known.contains("2 different values per 1 h") && !known.contains("429"), "{known}");
        assert!(new.contains("429") && new.contains(",ip=192.0.2.8"), "{new}");

        let lift = gateway.admin_request("DELETE", "/-/limits/shared/state?key=k", "", "").status();
        assert_eq!((lift, statuses(&gateway, "k", [8, 9, 1])), (200, [200, 200, 429]));
    });
}

/// A request that another limit refuses adds no value.
#[test]
fn all_limits_are_charged_or_none() {
    on_both_stores(|redis| {
        let gateway = start(redis, &SHARED.replace("20/h", "1/h"));
        let of = |address, account: &str| status(&gateway, "k", address, &format!("x-account: {account}\r\n"));
        assert_eq!([of("192.0.2.1", "a"), of("192.0.2.2", "a"), of("192.0.2.3", "a")], [200, 429, 429]);
        assert_eq!([of("192.0.2.4", "b"), of("192.0.2.5", "c")], [200, 429], "192.0.2.2 does not count");
        // What is refused for its value charges no other limit.
        assert_eq!([of("192.0.2.1", "c"), of("192.0.2.1", "c")], [200, 429]);
    });
}

/// Gateways share the values; a remembered refusal refuses only its own value; a restart changes nothing.
#[test]
fn gateways_count_the_same_values() {
    let server = RedisServer::start(&[]);
    let config = SHARED.replace(", \"all\"", "");
    let gateways = [start(Some(&server), &config), start(Some(&server), &config)];
    let mut passed = HashSet::new();
    for host in 0..30_u8 {
        if statuses(&gateways[usize::from(host % 2)], "k", [host]) == [200] {
            passed.insert(host);
        }
    }
    assert_eq!(passed, HashSet::from([0, 1]));
    for gateway in &gateways {
        assert_eq!(statuses(gateway, "k", [7, 0, 7, 1, 7, 0]), [429, 200, 429, 200, 429, 200]);
    }
    drop(gateways);
    assert_eq!(statuses(&start(Some(&server), &config), "k", [1, 2]), [200, 429]);
}

/// Only failures count, and a success takes back the value that it added, but none that another request uses.
#[test]
fn a_refund_takes_back_what_no_other_request_uses() {
    on_both_stores(|redis| {
        let upstream = Upstream::start(|peer| {
            while let Some(request) = peer.request()? {
                let outcome = request.target().rsplit('=').next().unwrap().to_owned();
                peer.send(format!("HTTP/1.1 {outcome} Done\r\ncontent-length: 0\r\n\r\n"))?;
            }
            Ok(())
        });
        let config = format!(
            "[[route]]\nupstream = \"{}\"\nlimits = [\"guesses\"]\n[limit.guesses]\nrate = \"2/h\"\nkey = \"ip\"\n\
             distinct = {{ source = \"query:user\", normalize = [\"lowercase\"] }}\ncharge_on = [401]\n",
            upstream.url()
        );
        let gateway = start(redis, &config);
        let login = |user: &str, outcome: u16| gateway.get(&format!("/login?user={user}&outcome={outcome}")).status();
        let left = || gateway.admin("/-/limits/guesses/state?key=127.0.0.1").json()["remaining"].as_i64().unwrap();
        let logins =
            [("a", 200, 2), ("b", 200, 2), ("c", 200, 2), ("a", 401, 1), ("A", 401, 1), ("b", 401, 0), ("a", 200, 0)];
        for (user, outcome, expected) in logins {
            assert_eq!(login(user, outcome), outcome, "{user}");
            wait_until(&format!("{expected} are left after {user} {outcome}"), || left() == expected);
        }
        // The success of `a` came after its failure, which still counts.
        assert_eq!([login("c", 200), login("a", 401), login("B", 200)], [429, 401, 200]);
    });
}

#[test]
fn a_value_in_the_body_counts() {
    let gateway = Gateway::start(
        "[[route]]\nrespond = { status = 200 }\nlimits = [\"stuffing\"]\n[limit.stuffing]\nrate = \"2/h\"\nkey = \"ip\"\n\
         distinct = { source = \"form:email\", normalize = [\"lowercase\", \"trim\"] }\n",
    );
    let post = |body: &str| {
        let head = format!(
            "POST / HTTP/1.1\r\nhost: a.test\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        gateway.fetch(&(head + body)).status()
    };
    let bodies = ["email=a%40x.de", "email=A%40x.de+", "other=1", "email=b%40x.de", "email=a%40x.de", "other=2"];
    assert_eq!(bodies.map(post), [200, 200, 200, 429, 200, 200], "requests without the field are one value");
}

/// On a cluster, limits in several slots are charged one after the other, and a refusal takes the value back.
#[test]
fn a_cluster_adds_all_values_or_none() {
    let cluster = RedisCluster::start(0);
    let config = SHARED.replace("20/h", "1/h");
    let gateway = Gateway::with(SERVER, &format!("{}{config}", store_section(Some(cluster.url()))));
    gateway.wait_for_store();
    for key in 0..12 {
        let of = |host: u8, account: &str| {
            let account = format!("x-account: {key}-{account}\r\n");
            status(&gateway, &format!("k{key}"), &format!("192.0.2.{host}"), &account)
        };
        assert_eq!([of(1, "a"), of(2, "a"), of(3, "a"), of(4, "b"), of(5, "c")], [200, 429, 429, 200, 429], "{key}");
        assert_eq!([of(1, "c"), of(1, "c"), of(4, "d")], [200, 429, 200], "{key}");
    }
}

/// No interval has more values than the count, whatever the order; and a value that counts is never refused.
#[test]
fn no_interval_has_more_values_than_the_count() {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for round in 0..200 {
        let (limit, window_ms) = (rng.random_range(1..6), rng.random_range(10..2000));
        let (is_sliding, clock) = (round % 2 == 0, round % 4 == 1);
        let rule = distinct(match is_sliding {
            true => Rule::SlidingLog(SlidingLog { limit, window_ms, sorted_set: false }),
            false => Rule::FixedWindow(FixedWindow { limit, window_ms, clock }),
        });
        let (mut now, mut state, mut uses) = (1_795_000_000_000, None::<State>, Vec::<(i64, i64)>::new());
        for _ in 0..400 {
            now += rng.random_range(0..=window_ms / 4);
            let value = random_tag(&rule, rng);
            let step = rule.decide(state.as_ref(), now, 1, value);
            let is_recent = |(at, used): &(i64, i64)| *used == value && now - at <= window_ms;
            assert!(step.answer.admitted || !is_sliding || !uses.iter().any(is_recent), "{rule:?}");
            if step.answer.admitted {
                uses.push((now, value));
            }
            state = step.next.map(|(state, _)| state).or(state);
            let since = if clock { now - now % window_ms } else { now - window_ms };
            let recent: HashSet<i64> = uses.iter().filter(|(at, _)| *at >= since).map(|(_, value)| *value).collect();
            let most = if is_sliding || clock { limit } else { 2 * limit };
            assert!(recent.len() <= usize::try_from(most).unwrap(), "{rule:?}: {recent:?}");
        }
    }
}

/// Rate limit requests of Envoy must have the value.
#[test]
fn a_descriptor_without_the_value_is_a_mistake() {
    let check = |descriptor: &str| {
        let text = format!(
            "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n[[rls]]\ndomain = \"d\"\n\
             descriptor = {{ {descriptor} }}\nlimits = [\"l\"]\n[limit.l]\nrate = \"3/h\"\nkey = \"descriptor:user\"\n\
             distinct = \"ip\"\n"
        );
        config::load_text("c", &text).map(|_| ()).map_err(|report| report.render(false))
    };
    assert_eq!(check("user = \"*\", remote_address = \"*\""), Ok(()));
    let mistake = check("user = \"*\"").unwrap_err();
    assert!(mistake.contains("ip, which this descriptor does not have"), "{mistake}");
}
