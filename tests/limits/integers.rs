//! Spellings of integers that some servers accept: they neither lower a cost nor bypass a condition.

use super::repeated_keys::route;
use crate::support::client::{get, post};
use crate::support::gateway::Gateway;

/// Values that some server reads as 1009 or more, in a query. No server reads the last ones as a number.
const ODD: [&str; 22] = [
    "%2B1000",
    "+1000",
    "%201000",
    "1000%20",
    "1000%09",
    "%0A1000",
    "1000.0",
    "1000.",
    "1e3",
    "1E3",
    "1_000",
    "1,000",
    "0x3e8",
    "0b1111101000",
    "0o1750",
    "%D9%A1%D9%A0%D9%A0%D9%A0",
    "%EF%BC%91%EF%BC%90",
    "1000n",
    "--1000",
    "",
    "abc",
    "1000abc",
];

fn config() -> String {
    let cost = "rate = \"5/h\"\nkey = \"all\"\ncost = \"query:n\"";
    let level = "key = \"all\"\nwhen = { query = { level = \">8\" } }";
    [
        route("cost", "/cost", "").replace("rate = \"2/h\"\n", &format!("{cost}\n")),
        route("header", "/header", "key = \"all\"\ncost = \"header:x-cost\""),
        route("level", "/level", level),
        route("listed", "/listed", "key = \"all\"\nwhen = { query = { level = [\"1-9\", \"none\"] } }"),
        route("negated", "/negated", "key = \"all\"\nwhen = { query = { level = \"!1-9\" } }"),
        route("both", "/both", "key = \"all\"\nwhen = { query = { act = \"post\", level = \"<3\" } }"),
        route(
            "header-level",
            "/header-level",
            "key = \"all\"\nwhen = { header = { x-level = 9 }, cookie = { l = \"1-9\" } }",
        ),
        route("shadow", "/shadow", "key = \"all\"\nmode = \"shadow\"\nwhen = { query = { level = \">8\" } }"),
        route("ignore", "/ignore", &format!("{level}\nnot_integer = \"ignore\"")),
        route("ignore-cost", "/ignore-cost", "key = \"all\"\ncost = \"query:n\"\nnot_integer = \"ignore\""),
        route("first", "/first", &format!("{level}\nrepeated = \"first\"")),
    ]
    .concat()
}

#[test]
fn odd_numbers_are_refused_and_charge_nothing() {
    let gateway = Gateway::start(&config());
    let status = |target: &str, fields: &str| gateway.fetch(&get(target, fields)).status();
    for number in ODD {
        for target in ["/cost?n=", "/level?level=", "/listed?level=", "/negated?level=", "/first?level="] {
            assert_eq!(status(&format!("{target}{number}"), ""), 400, "{target}{number}");
        }
        // Another condition is checked first: it excludes the limit, or not.
        assert_eq!(status(&format!("/both?act=read&level={number}"), ""), 200, "{number}");
        assert_eq!(status(&format!("/both?act=post&level={number}"), ""), 400, "{number}");
    }
    for fields in
        ["x-cost: +2\r\n", "x-cost: 1e1\r\n", "x-cost: 2.0\r\n", "x-cost:\r\n", "x-cost: -2\r\n", "x-cost: 2;\r\n"]
    {
        assert_eq!(status("/header", fields), 400, "{fields}");
    }
    for fields in ["x-level: +9\r\ncookie: l=1\r\n", "x-level: 9\r\ncookie: l=+1\r\n", "x-level: 9\r\ncookie: l=x\r\n"]
    {
        assert_eq!(status("/header-level", fields), 400, "{fields}");
    }
    assert_eq!(status("/cost?n=-1", ""), 400);
    let rejected = [("route", "cost"), ("limit", "cost"), ("reason", "not_integer")];
    gateway.assert_metric("rejections_total", &rejected, ODD.len() as f64 + 1.0);
    // No unit was charged.
    assert_eq!(["5", "1"].map(|n| status(&format!("/cost?n={n}"), "")), [200, 429]);
    assert_eq!([0; 3].map(|_| status("/level?level=9", "")), [200, 200, 429]);
    assert_eq!(["none", "9", "007"].map(|level| status(&format!("/listed?level={level}"), "")), [200, 200, 429]);
}

/// A limit that does not apply, because its key is absent, refuses nothing, whatever its cost is.
#[test]
fn a_limit_whose_key_is_absent_refuses_no_cost() {
    let limits = [
        "cost = \"query:n\"",
        "cost = { count = \"json:/items\" }",
        "costs = { a = 1, default = 1 }",
        "when = { query = { n = \">8\" } }",
    ];
    for limit in limits {
        let gateway =
            Gateway::start(&route("l", "/l", &format!("key = \"header:x-key\"\nmissing = \"skip\"\n{limit}")));
        let status = |fields: &str| {
            let body = "not JSON";
            let head = post("/l?n=x", body.len() as u64, &format!("content-type: text/plain\r\n{fields}"));
            gateway.client().fetch(&head, body).status()
        };
        assert_eq!(status(""), 200, "{limit}");
        assert!([400, 415].contains(&status("x-key: a\r\n")), "{limit}");
    }
}

#[test]
fn plain_integers_count_by_their_value() {
    let gateway = Gateway::start(&config());
    let status = |target: &str| gateway.fetch(&get(target, "")).status();
    assert_eq!(["09", "99999999999999999999", "9"].map(|n| status(&format!("/level?level={n}"))), [200, 200, 429]);
    assert_eq!(["8", "-9", "-99999999999999999999", "0"].map(|n| status(&format!("/level?level={n}"))), [200; 4]);
    // A cost that never fits is refused as such, and an absent one costs 1.
    assert_eq!(["/cost?n=99999999999999999999", "/cost?n=004", "/cost", "/cost"].map(status), [429, 200, 200, 429]);
}

#[test]
fn a_limit_may_ignore_what_is_no_integer_and_a_shadow_refuses_nothing() {
    let gateway = Gateway::start(&config());
    let status = |target: &str| gateway.fetch(&get(target, "")).status();
    for number in ODD {
        assert_eq!(["/ignore?level=", "/shadow?level="].map(|target| status(&format!("{target}{number}"))), [200; 2]);
    }
    let denied = [("route", "shadow"), ("limit", "shadow"), ("decision", "shadow_deny")];
    gateway.assert_metric("limit_decisions_total", &denied, ODD.len() as f64);
    assert_eq!([0; 3].map(|_| status("/ignore?level=9")), [200, 200, 429]);
    assert_eq!([0; 3].map(|_| status("/ignore-cost?n=1e3")), [200, 200, 429]);
}

#[test]
fn the_refusal_names_the_value_and_the_setting() {
    let gateway = Gateway::with("access_log = true", &config());
    let response = gateway.fetch(&get("/level?level=1e3", ""));
    assert_eq!((response.status(), response.get("content-type")), (400, Some("application/problem+json")));
    let problem = response.json();
    assert_eq!(problem["title"], "query:level must be an integer (digits only)");
    assert_eq!((&problem["setting"], &problem["violated-policies"][0]), (&"not_integer".into(), &"level".into()));
    assert!(response.get("retry-after").is_none());
    let grpc = gateway.fetch(&get("/level?level=1e3", "content-type: application/grpc\r\n"));
    assert_eq!((grpc.status(), grpc.get("grpc-status")), (200, Some("3")));
    crate::support::wait_until("both lines are written", || {
        gateway.stdout().matches("\"reason\":\"not_integer\",\"setting\":\"not_integer\"").count() == 2
    });
}
