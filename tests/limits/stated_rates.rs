//! Rates that requests state: by a claim of a token, or a header of an auth server.

use sluicegate::config::load_text;

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::token::{SECRET, hs256};

fn config(limit: &str) -> String {
    format!(
        "[jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n[[route]]\nname = \"app\"\nrespond = {{ body = \"in\" }}\nlimits = [\"q\"]\n\
         [limit.q]\nalgorithm = \"fixed_window\"\nkey = \"jwt:sub\"\n{limit}"
    )
}

/// Returns how many of six requests are admitted, before which there is no refusal.
fn admitted(gateway: &Gateway, claims: &str) -> usize {
    let token = hs256(SECRET, claims);
    let statuses = (0..6).map(|_| gateway.fetch(&get("/", &format!("authorization: Bearer {token}\r\n"))).status());
    let statuses: Vec<u16> = statuses.collect();
    let count = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses[..count].iter().all(|status| *status == 200), "{claims}: {statuses:?}");
    assert!(statuses[count..].iter().all(|status| *status == 429), "{claims}: {statuses:?}");
    count
}

#[test]
fn a_claim_states_the_rate_within_bounds() {
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let limit = "rate = \"jwt:rate\"\nrate_within = [\"2/h\", \"5/h\"]\n\
             overrides = [{ key = \"vip\", rate = \"unlimited\" }]\n";
        let gateway = Gateway::start(&format!("{store}{}", config(limit)));
        if redis.is_some() {
            gateway.wait_for_store();
        }
        for (name, claim, count) in [
            ("number", "\"rate\":4,", 4),
            ("text", "\"rate\":\"3\",", 3),
            ("period", "\"rate\":\"3/hour\",", 3),
            ("highest", "\"rate\":5,", 5),
            ("none", "", 2),
            ("above", "\"rate\":6,", 2),
            ("huge", "\"rate\":1e300,", 2),
            ("below", "\"rate\":1,", 2),
            ("negative", "\"rate\":-4,", 2),
            ("fraction", "\"rate\":4.5,", 2),
            ("word", "\"rate\":\"many\",", 2),
            ("other-period", "\"rate\":\"4/s\",", 2),
            ("null", "\"rate\":null,", 2),
            ("zero", "\"rate\":0,", 0),
            ("vip", "\"rate\":0,", 6),
        ] {
            assert_eq!(admitted(&gateway, &format!("{{{claim}\"sub\":\"{name}\"}}")), count, "{name}");
        }
        // A list is ambiguous, and the policy shows the rate of the key.
        let get_as =
            |claims: &str| gateway.fetch(&get("/", &format!("authorization: Bearer {}\r\n", hs256(SECRET, claims))));
        assert_eq!(get_as("{\"rate\":[4,5],\"sub\":\"list\"}").status(), 400);
        let policy = get_as("{\"rate\":4,\"sub\":\"new\"}").get("ratelimit-policy").unwrap().to_owned();
        assert!(policy.contains("q=4"), "{policy}");
        // A higher rate afterwards admits the difference, a lower one nothing.
        assert_eq!(admitted(&gateway, "{\"rate\":5,\"sub\":\"number\"}"), 1);
        assert_eq!(admitted(&gateway, "{\"rate\":3,\"sub\":\"number\"}"), 0);
        let state = gateway.admin("/-/limits/q/state?key=highest&rate=5").json();
        assert_eq!((&state["policy"]["quota"], &state["remaining"]), (&5.into(), &0.into()), "{state}");
        // Without a rate, no page judges the key by another one.
        let state = gateway.admin("/-/limits/q/state?key=highest").json();
        assert!(state["rate_not_known"] == true && state["admitted"].is_null(), "{state}");
        let top = gateway.admin("/-/top?limit=q").json();
        let keys = top["keys"].as_array().unwrap();
        assert!(keys.iter().all(|key| key["rate_not_known"] == true && key["override"].is_null()), "{top}");
        assert_eq!(keys.len(), 10);
    });
}

#[test]
fn plans_by_claim_and_refused_without_one() {
    let limit =
        "rate = \"jwt:plan\"\nrates = { free = \"1/h\", gold = \"4/h\", \"team a\" = \"unlimited\", off = 0 }\n";
    let gateway = Gateway::start(&config(limit));
    for (name, claim, count) in [
        ("free", "\"plan\":\"free\",", 1),
        ("gold", "\"plan\":\"gold\",", 4),
        ("team", "\"plan\":\"team a\",", 6),
        ("off", "\"plan\":\"off\",", 0),
        ("case", "\"plan\":\"Gold\",", 0),
        ("default", "\"plan\":\"default\",", 0),
        ("none", "", 0),
    ] {
        assert_eq!(admitted(&gateway, &format!("{{{claim}\"sub\":\"{name}\"}}")), count, "{name}");
    }
    gateway.assert_metric("rejections_total", &[("route", "app"), ("limit", "q"), ("reason", "blocked")], 24.0);
    let with_default = limit.replace("off = 0", "default = \"2/h\"");
    let gateway = Gateway::start(&config(&with_default));
    assert_eq!(admitted(&gateway, "{\"sub\":\"none\"}"), 2);
    assert_eq!(admitted(&gateway, "{\"sub\":\"odd\",\"plan\":\"platinum\"}"), 2);
}

#[test]
fn explain_contract_and_test_know_the_rate() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let limit = "rate = \"jwt:rate\"\nrate_within = [\"2/h\", \"5/h\"]\n";
    std::fs::write(&file, config(limit)).unwrap();
    let run = |arguments: &[&str]| {
        let output = program().args(arguments).arg("-c").arg(&file).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let token = format!("authorization: Bearer {}", hs256(SECRET, "{\"sub\":\"a\",\"rate\":4}"));
    let explained = run(&["explain", "GET", "http://a.test/", "-H", &token]);
    assert!(explained.contains("4 per 1 h"), "{explained}");
    let contract = run(&["contract"]);
    assert!(contract.contains('5'), "{contract}");
    // Not the bound of the plan with the fastest rate, which admits less in a day.
    for (plans, sentence) in [
        ("{ fast = \"5/h\", long = \"100/day\" }", "1 plan has different numbers: their keys get at most 100"),
        (
            "{ fast = \"5/h\", free = \"1/h\", all = \"unlimited\" }",
            "2 plans have different numbers: some keys are unlimited",
        ),
    ] {
        std::fs::write(&file, config(&format!("rate = \"jwt:plan\"\nrates = {plans}\n"))).unwrap();
        let contract = run(&["contract"]);
        assert!(contract.contains(sentence), "{contract}");
    }
}

#[test]
fn mistakes_say_what_is_missing() {
    for (limit, part) in [
        ("rate = \"jwt:rate\"", "it is not said which rates are possible"),
        ("rate = \"jwt:rate\"\nrate_within = [\"5/h\", \"2/h\"]", "not a higher one of the same period"),
        ("rate = \"jwt:rate\"\nrate_within = [\"2/h\", \"5/s\"]", "not a higher one of the same period"),
        ("rate = \"jwt:rate\"\nrate_within = [\"2/h\", \"5/fortnight\"]", "fortnight"),
        ("rate = \"jwt:rate\"\nrate_within = [\"2/h\", \"5/h\"]\nrates = { a = \"1/h\" }", "has `rate_within` as well"),
        ("rate = \"jwt:plan\"\nrates = { a = \"many\" }", "many"),
        ("rate = \"jwt:plan\"\nrates = { a = 0 }", "no plan has a rate"),
        ("rate = \"query:rate\"\nrate_within = [\"2/h\", \"5/h\"]", "query:rate"),
        ("rate = \"3/h\"\nrate_within = [\"2/h\", \"5/h\"]", "the rate of the limit names no source"),
    ] {
        let report = load_text("c", &config(limit)).unwrap_err().render(false);
        assert!(report.contains(part), "{limit}\n{report}");
    }
}
