//! Which requests a limit applies to, and what they cost, in the running gateway: keys, conditions, sets, overrides,
//! dependent limits and reloads, on both stores.

use std::fs;

use redis::TypedCommands;

use super::matching_program::{Program, one};
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::token::{SECRET, hs256};
use crate::support::wait_until;

#[test]
fn an_upgraded_plan_unblocks_and_a_reload_does_not() {
    on_both_stores(|redis| {
        for algorithm in ["token_bucket", "fixed_window"] {
            let config = |count: u32, key: &str| {
                let limit = format!("rate = \"{count}/day\"\nkey = \"{key}\"");
                one(&limit).replace("fixed_window", algorithm)
            };
            let gateway = Program::start(redis, &config(3, "header:user"));
            let count = |of| gateway.admitted(of, "/", &format!("user: {algorithm}\r\n"));
            assert_eq!(count(10), 3, "{algorithm}");

            let log = gateway.reload(&format!("# a comment\n{}", config(3, "header:user")));
            assert!(!log.contains("anew"), "{log}");
            assert_eq!(count(5), 0, "{algorithm}: the reload reset a key");

            gateway.reload(&config(8, "header:user"));
            // A bucket that was empty at the change refills by its new rate.
            let more = count(10);
            assert_eq!(more, 5, "{algorithm}: refused requests were charged, or consumed ones forgotten");

            gateway.reload(&config(2, "header:user"));
            assert_eq!(count(3), 0, "{algorithm}: lowered");
            let log = gateway.reload(&config(8, "header:user"));
            assert!(log.contains("limit changed: x") && !log.contains("anew"), "{log}");

            let log = gateway.reload(&config(4, "ip"));
            assert!(log.contains("limit starting anew: x"), "{log}");
            assert_eq!(count(10), 4, "{algorithm}");
        }
    });
}

#[test]
fn another_algorithm_resets_the_usage_and_is_logged() {
    let gateway = Program::start(None, &one("rate = \"3/day\""));
    assert_eq!(gateway.admitted(5, "/", ""), 3);
    let log = gateway.reload(&one("rate = \"3/day\"").replace("fixed_window", "token_bucket"));
    assert!(log.contains("limit starting anew: x"), "{log}");
    assert_eq!(gateway.admitted(5, "/", ""), 3);
}

#[test]
fn every_key_part_has_budgets_of_its_own() {
    for (key, one_budget, another) in [
        (
            "cookie:sid",
            vec![("/", "cookie: a=1; sid=7\r\n"), ("/", "cookie: sid=\"7\"\r\n")],
            ("/", "cookie: sid=8\r\n"),
        ),
        ("query:uid", vec![("/?uid=a+b", ""), ("/?x=1&u%69d=a%20b&id=c", "")], ("/?uid=c", "")),
        (
            "ip/24/56",
            vec![("/", "x-forwarded-for: 10.1.2.3\r\n"), ("/", "x-forwarded-for: 10.1.2.99\r\n")],
            ("/", "x-forwarded-for: 10.1.3.3\r\n"),
        ),
        ("header:user", vec![("/", "user: a\r\n")], ("/", "")),
    ] {
        let gateway = Program::start(None, &one(&format!("rate = \"2/day\"\nkey = \"{key}\"")));
        let admitted: usize = one_budget.iter().map(|(target, fields)| gateway.admitted(3, target, fields)).sum();
        assert_eq!(admitted, 2, "{key}");
        assert_eq!(gateway.admitted(3, another.0, another.1), 2, "{key}");
    }
}

fn token(secret: &str, claims: &str) -> String {
    format!("authorization: Bearer {}\r\n", hs256(secret, claims))
}

#[test]
fn a_verified_token_names_its_bearer() {
    let limit = "rate = \"2/day\"\nkey = \"jwt:sub\"\nwhen = { jwt = { vip = \"!true\" } }";
    let config = format!("{}[jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n", one(limit));
    let gateway = Program::start(None, &config);
    let anna = token(SECRET, "{\"sub\":\"anna\"}");
    assert_eq!(gateway.admitted(3, "/", &anna), 2);
    assert_eq!(gateway.admitted(3, "/", &token(SECRET, "{\"sub\":\"anna\",\"x\":1}")), 0, "the same bearer");
    assert_eq!(gateway.admitted(3, "/", &token(SECRET, "{\"sub\":\"bert\"}")), 2);
    assert_eq!(gateway.admitted(5, "/", &token(SECRET, "{\"sub\":\"carl\",\"vip\":true}")), 5);

    // Clients without a valid token share one budget. They cannot use Anna's budget or be a VIP.
    let forged = token("another secret of thirty-two byte", "{\"sub\":\"dora\",\"vip\":true}");
    let expired = token(SECRET, "{\"sub\":\"emil\",\"exp\":1000}");
    let admitted: usize = [forged.as_str(), &expired, "", "authorization: Basic eA==\r\n"]
        .iter()
        .map(|f| gateway.admitted(2, "/", f))
        .sum();
    assert_eq!(admitted, 2);
    let log = gateway.reload(&config.replace(SECRET, "another secret of thirty-two byte"));
    assert!(log.contains("setting changed: jwt") && !log.contains("another secret"), "{log}");
    assert_eq!(gateway.admitted(2, "/", &anna), 0, "not valid any more, and the shared budget is used up");
}

#[test]
fn conditions_say_which_requests_are_limited() {
    for (when, limited, free) in [
        ("method = [\"POST\", \"GET\"]", vec![("/", "")], vec![]),
        ("method = \"!GET\"", vec![], vec![("/", "")]),
        ("path = \"/v1/*\"", vec![("/v1/x", ""), ("/a/../v1/x", "")], vec![("/v2", "")]),
        ("host = \"127.*\", route = \"/\"", vec![("/", "")], vec![]),
        ("host = \"!127.*\"", vec![], vec![("/", "")]),
        ("query = { act = \"1-9\" }", vec![("/?act=5", ""), ("/?act=09", "")], vec![("/?act=10", ""), ("/", "")]),
        ("query = { act = \"= 1-9\" }", vec![("/?act=1-9", "")], vec![("/?act=5", "")]),
        (
            "query = { act = \"add-comment\" }",
            vec![("/?act=add-comment", ""), ("/?a%63t=add-comment", "")],
            vec![("/?act=add", "")],
        ),
        ("query = { act = \"*\" }", vec![("/?act=x", "")], vec![("/?act=", ""), ("/", "")]),
        ("query = { act = \"!*\" }", vec![("/?act=", ""), ("/", "")], vec![("/?act=x", "")]),
        (
            "query = { n = \">=3\" }",
            vec![("/?n=3", ""), ("/?n=99999999999999999999", "")],
            vec![("/?n=2", ""), ("/?n=-3", "")],
        ),
        ("query = { n = 5 }", vec![("/?n=005", "")], vec![("/?n=6", "")]),
        (
            "header = { user-agent = \"~i bot|crawl\" }",
            vec![("/", "user-agent: GoogleBOT/2\r\n"), ("/", "user-agent: x CraWLer\r\n")],
            vec![("/", "user-agent: Mozilla\r\n"), ("/", "")],
        ),
        (
            "header = { user-agent = \"!~i bot\" }",
            vec![("/", "user-agent: Mozilla\r\n"), ("/", "")],
            vec![("/", "user-agent: a RoBot\r\n")],
        ),
        ("path = '~ ^/v\\d+/'", vec![("/v1/x", ""), ("/a/../v22/", "")], vec![("/V1/x", ""), ("/x/v1/", "")]),
        ("host = [\"~ ^127[.]\", \"~ x\"], method = \"~i ^g.T$\"", vec![("/", "")], vec![]),
        // Bytes that are no line end for the application do not hide a value from the limit.
        ("query = { q = \"~ ^a.*z$\" }", vec![("/?q=a%0Az", ""), ("/?q=a%FF%0Dz", "")], vec![("/?q=A%0Az", "")]),
        (
            "cookie = { sid = \"~ ^[0-9a-f]{8}$\" }",
            vec![("/", "cookie: sid=0123abcd\r\n")],
            vec![("/", "cookie: sid=0123ABCD\r\n"), ("/", "cookie: sid=0123abcd0\r\n"), ("/", "")],
        ),
        ("query = { w = \"set:words\" }", vec![("/?w=a+b", "")], vec![("/?w=c", ""), ("/", "")]),
        ("query = { w = \"!set:words\" }", vec![("/?w=c", ""), ("/", "")], vec![("/?w=a%20b", "")]),
        (
            "header = { x-plan = [\"!free\", \"!trial\"] }",
            vec![("/", "x-plan: paid\r\n"), ("/", "")],
            vec![("/", "x-plan: trial\r\n")],
        ),
        (
            "cookie = { sid = \"a*z\" }",
            vec![("/", "cookie: sid=abcz\r\n")],
            vec![("/", "cookie: sid=abc\r\n"), ("/", "")],
        ),
        (
            "client = [\"10.0.24.*\", \"10.1.0.1-10.1.0.5\", \"2001:db8::/32\"]",
            vec![
                ("/", "x-forwarded-for: 10.0.24.7\r\n"),
                ("/", "x-forwarded-for: 10.1.0.4\r\n"),
                ("/", "x-forwarded-for: 2001:db8::7\r\n"),
            ],
            vec![("/", "x-forwarded-for: 10.0.25.7\r\n"), ("/", "x-forwarded-for: 10.1.0.6\r\n")],
        ),
    ] {
        let words = "[set.words]\nvalues = [\"a b\", \"b\"]\n";
        let gateway =
            Program::start(None, &(one(&format!("rate = \"1/day\"\nkey = \"all\"\nwhen = {{ {when} }}")) + words));
        for (target, fields) in &free {
            assert_eq!(gateway.admitted(2, target, fields), 2, "{when}: {target} {fields} is limited");
        }
        let admitted: usize = limited.iter().map(|(target, fields)| gateway.admitted(2, target, fields)).sum();
        assert_eq!(admitted, limited.len().min(1), "{when}: some of {limited:?} is not limited");
    }
}

#[test]
fn a_set_exempts_its_clients_and_reloads_live() {
    let config =
        one("rate = \"1/day\"\nkey = \"all\"\nwhen = { client = \"!set:vip\" }") + "[set.vip]\nfile = \"vip.txt\"\n";
    let gateway = Program::start_with(None, &config, &[("vip.txt", "# ours\n10.0.0.0/8 # office\n")]);
    let (vip, other) = ("x-forwarded-for: 10.1.2.3\r\n", "x-forwarded-for: 192.0.2.1\r\n");
    assert_eq!((gateway.admitted(4, "/", vip), gateway.admitted(2, "/", other)), (4, 1));
    fs::write(gateway.dir.path().join("vip.txt"), "192.0.2.1\n").unwrap();
    wait_until("exempt", || gateway.fetch("/", other).status() == 200 && gateway.fetch("/", other).status() == 200);
    assert_eq!(gateway.admitted(2, "/", vip), 0, "the budget of all is used up");
}

#[test]
fn several_values_and_several_routes_have_one_budget() {
    on_both_stores(|redis| {
        let config = "[[route]]\npath = \"/a\"\nupstream = \"echo:\"\nlimits = [\"x\"]\n\
                      [[route]]\npath = \"/b\"\nupstream = \"echo:\"\nlimits = [\"x\"]\n\
                      [limit.x]\nrate = \"3/day\"\nkey = \"query:uid\"\nwhen = { query = { act = [\"post\", \"comment\"] } }\n";
        let gateway = Program::start(redis, config);
        let targets = ["/a?uid=1&act=post", "/a?uid=1&act=comment", "/b?act=post&uid=1", "/b?act=comment&uid=1"];
        let admitted: usize = targets.iter().map(|target| gateway.admitted(1, target, "")).sum();
        assert_eq!(admitted, 3);
        assert_eq!(gateway.admitted(4, "/a?uid=2&act=post", ""), 3);
        assert_eq!(gateway.admitted(4, "/a?uid=1&act=read", ""), 4);
    });
}

#[test]
fn single_keys_have_numbers_of_their_own() {
    on_both_stores(|redis| {
        let limit = "rate = \"2/day\"\nkey = [\"header:tenant\", \"path\"]\noverrides = [\n\
                     { key = [\"acme\", \"*\"], rate = \"4/day\" },\n{ key = [\"acme\", \"/export\"], rate = \"1/day\" },\n\
                     { key = [\"evil\", \"*\"], rate = 0 },\n{ key = [\"us\", \"*\"], rate = \"unlimited\" },\n]";
        let gateway = Program::start(redis, &one(limit));
        for (tenant, path, count) in
            [("acme", "/", 4), ("acme", "/export", 1), ("evil", "/", 0), ("us", "/", 6), ("else", "/", 2)]
        {
            assert_eq!(gateway.admitted(6, path, &format!("tenant: {tenant}\r\n")), count, "{tenant} {path}");
        }
        assert_eq!(gateway.admitted(6, "/", ""), 2, "no tenant");
        let blocked = gateway.fetch("/", "tenant: evil\r\n");
        assert_eq!((blocked.status(), blocked.get("retry-after")), (429, None), "{}", blocked.head);
        assert!(blocked.text().contains("\"violated-policies\":[\"x\"]"), "{}", blocked.text());
        let policy = gateway.fetch("/", "tenant: acme\r\n");
        assert_eq!(policy.get("ratelimit-policy"), Some("\"x\";q=4;w=86400"), "the key's own numbers are shown");
        assert_eq!(gateway.count("rejections_total", &[("limit", "x"), ("reason", "blocked"), ("route", "/")]), 7.0);
        assert_eq!(gateway.decisions("x", "bypass"), 6.0);
        let raised = limit.replace("4/day", "6/day");
        gateway.reload(&one(&raised));
        assert_eq!(gateway.admitted(6, "/", "tenant: acme\r\n"), 2, "consumption is kept");
    });
}

#[test]
fn overrides_in_redis_apply_live_and_survive_reloads() {
    let server = RedisServer::start(&[]);
    let config = |count| one(&format!("rate = \"{count}/day\"\nkey = \"header:tenant\""));
    let mut redis = server.client();
    redis.hset("sg:overrides:x", "early", "rate=5/day").unwrap();
    let gateway = Program::start(Some(&server), &config(2));
    assert_eq!(gateway.admitted(6, "/", "tenant: early\r\n"), 5, "known before the first request");

    let acme = "tenant: acme, inc\r\n";
    assert_eq!(gateway.admitted(4, "/", acme), 2);
    redis.hset("sg:overrides:x", "acme%2C%20inc", "rate=7/day").unwrap();
    wait_until("raised", || gateway.fetch("/", acme).status() == 200);
    assert_eq!(gateway.admitted(9, "/", acme), 4, "consumption is kept");

    // Overrides apply from the first request after a reload.
    for number in 3..6 {
        gateway.reload(&config(number));
        assert_eq!(gateway.fetch("/", acme).get("ratelimit-policy"), Some("\"x\";q=7;w=86400"));
    }

    // A key of another type does not remove the overrides in force.
    redis.rename("sg:overrides:x", "aside").unwrap();
    redis.set("sg:overrides:x", "text").unwrap();
    wait_until("logged", || gateway.log().contains("sg:overrides:x is not a hash"));
    assert_eq!(gateway.fetch("/", acme).get("ratelimit-policy"), Some("\"x\";q=7;w=86400"));
}

#[test]
fn an_override_in_redis_with_a_mistake_is_skipped() {
    let server = RedisServer::start(&[]);
    let acme = "tenant: acme, inc\r\n";
    let mut redis = server.client();
    redis.hset("sg:overrides:x", "acme%2C%20inc", "rate=7/day").unwrap();
    let gateway = Program::start(Some(&server), &one("rate = \"2/day\"\nkey = \"header:tenant\""));
    assert_eq!(gateway.admitted(9, "/", acme), 7);

    // An entry with a mistake is skipped and logged once; the others apply.
    redis.hset("sg:overrides:x", "bad", "rate=often").unwrap();
    redis.hset("sg:overrides:x", "acme%2C%20inc", "rate=unlimited").unwrap();
    let logged = || gateway.log().matches("bad: `rate` in the override").count();
    wait_until("logged", || logged() > 0);
    wait_until("unlimited", || gateway.fetch("/", acme).status() == 200);
    assert_eq!(gateway.admitted(4, "/", "tenant: bad\r\n"), 2, "the limit's own numbers apply");
    redis.hdel("sg:overrides:x", "bad").unwrap();
    assert_eq!(logged(), 1, "{}", gateway.log());
    assert_eq!(gateway.admitted(9, "/", acme), 9);

    redis.hset("sg:overrides:x", "*", "rate=0").unwrap();
    wait_until("blocked", || {
        gateway.fetch("/", "tenant: anybody\r\n").text().contains("the quota of this client is 0")
    });
    assert_eq!(gateway.admitted(2, "/", acme), 2);
    redis.del("sg:overrides:x").unwrap();
    wait_until("limited again", || gateway.fetch("/", acme).status() == 429);
    assert_eq!(gateway.admitted(2, "/", "tenant: nobody\r\n"), 2);
}

#[test]
fn a_limit_follows_another() {
    on_both_stores(|redis| {
        let config = "[[route]]\nupstream = \"echo:\"\nlimits = [\"hard\", \"soft\"]\n\
                      [limit.soft]\nrate = \"3/day\"\nburst = 3\nkey = \"header:user\"\nwhen = { header = { vip = \"!*\" } }\n\
                      overrides = [{ key = [\"evil\"], rate = 0 }]\n\
                      [limit.hard]\nalgorithm = \"fixed_window\"\nrate = \"2/min\"\nkey = \"header:user\"\nafter = \"soft\"\n\
                      overrides = [{ key = [\"free\"], rate = \"unlimited\" }]\n";
        let gateway = Program::start(redis, config);
        let anna = "user: anna\r\n";
        let seen: Vec<(u16, String)> = (0..6)
            .map(|_| {
                let response = gateway.fetch("/", anna);
                (
                    response.status(),
                    response.get("ratelimit").unwrap_or_default().split(";t=").next().unwrap().to_owned(),
                )
            })
            .collect();
        let expected = [
            (200, "\"soft\";r=2"),
            (200, "\"soft\";r=1"),
            (200, "\"soft\";r=0"),
            (200, "\"hard\";r=1"),
            (200, "\"hard\";r=0"),
            (429, "\"hard\";r=0"),
        ];
        assert_eq!(seen, expected.map(|(status, field)| (status, field.to_owned())));
        let refused = gateway.fetch("/", anna);
        assert!(refused.text().contains("\"violated-policies\":[\"hard\"]"), "{}", refused.text());
        let wait: u64 = refused.get("retry-after").unwrap().parse().unwrap();
        assert!((50..=60).contains(&wait), "{wait}: the wait of the active limit");
        assert_eq!((gateway.decisions("soft", "allow"), gateway.decisions("soft", "deny")), (3.0, 4.0));
        let hard = ["bypass", "allow", "deny"].map(|decision| gateway.decisions("hard", decision));
        assert_eq!(hard, [3.0, 2.0, 2.0]);
        assert_eq!(
            gateway.count("rejections_total", &[("limit", "soft"), ("reason", "exhausted"), ("route", "/")]),
            0.0
        );

        assert_eq!(gateway.admitted(9, "/", "user: free\r\n"), 9, "no end after the first");
        assert_eq!(gateway.admitted(9, "/", "user: evil\r\n"), 2, "the second from the start");
        assert_eq!(gateway.admitted(9, "/", "user: anna\r\nvip: 1\r\n"), 9, "neither without the first");
    });
}

#[test]
fn limits_come_after_others_without_the_store_too() {
    let mut server = RedisServer::start(&[]);
    let mut config = String::new();
    for (route, soft, hard) in
        [("ll", "local", "local"), ("ol", "open", "local"), ("lo", "local", "open"), ("lc", "local", "closed")]
    {
        config += &format!(
            "[[route]]\npath = \"/{route}\"\nupstream = \"echo:\"\nlimits = [\"free-{route}\", \"soft-{route}\", \"hard-{route}\"]\n\
             [limit.free-{route}]\nrate = \"1/s\"\non_error = \"open\"\n\
             [limit.soft-{route}]\nrate = \"3/day\"\non_error = \"{soft}\"\n\
             [limit.hard-{route}]\nrate = \"2/day\"\nafter = \"soft-{route}\"\non_error = \"{hard}\"\n"
        );
    }
    let gateway = Program::start(Some(&server), &config);
    server.kill();
    wait_until("the store is unavailable", || gateway.metric("store_up", &[]) == Some(0.0));
    assert_eq!(["/ll", "/ol", "/lo", "/lc"].map(|path| gateway.admitted(9, path, "")), [5, 9, 9, 3]);
}
