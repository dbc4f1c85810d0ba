//! Receipts: corrections of charges when the response is known, at most once, by nobody but the asking proxy.

use super::{fetch, gateway, gateway_with};
use crate::support::client::{call, post};
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::limiting::RedisServer;

const LIMITS: &str = "[limit.logins]\nrate = \"10/day\"\nkey = \"ip\"\ncharge_on = [401]\n\
                      [limit.tokens]\nrate = \"100/day\"\nburst = 100\nkey = \"ip\"\ncost = \"header:x-cost\"\nsettle = \"header:x-actual-cost\"\n\
                      [limit.all]\nrate = \"50/day\"\nkey = \"ip\"\n\
                      [decide.login]\nlimits = [\"logins\", \"all\"]\n\
                      [decide.llm]\nlimits = [\"tokens\", \"all\"]\n\
                      [decide.both]\nlimits = [\"logins\", \"tokens\"]\n\
                      [decide.plain]\nlimits = [\"all\"]\n";

#[track_caller]
fn settle(gateway: &Gateway, name: &str, receipt: &str, end: &str) -> Message {
    gateway.fetch(&post(&format!("/settle/{name}"), 0, &format!("x-limit-receipt: {receipt}\r\n{end}\r\n")))
}

fn remaining(gateway: &Gateway, limit: &str) -> i64 {
    gateway.admin(&format!("/-/limits/{limit}/state?key=192.0.2.1")).json()["remaining"].as_i64().unwrap()
}

#[track_caller]
fn receipt(response: &Message) -> String {
    assert_eq!(response.status(), 200, "{}", response.text());
    response.get("x-limit-receipt").expect("a receipt").to_owned()
}

fn settle_by_rules(gateway: &Gateway) {
    let login = receipt(&fetch(gateway, "login", "/", ""));
    assert_eq!((remaining(gateway, "logins"), remaining(gateway, "all")), (9, 49));
    let settled = settle(gateway, "login", &login, "x-limit-status: 200");
    assert_eq!((settled.status(), settled.text().as_str()), (200, "{\"settled\":{\"logins\":-1}}"));
    assert_eq!((remaining(gateway, "logins"), remaining(gateway, "all")), (10, 49), "only limits with rules change");
    let failed = receipt(&fetch(gateway, "login", "/", ""));
    assert_eq!(settle(gateway, "login", &failed, "x-limit-status: 401").text(), "{\"settled\":{}}");
    assert_eq!(remaining(gateway, "logins"), 9);
    assert_eq!(settle(gateway, "login", &failed, "x-limit-status: 200").status(), 409, "the receipt was used");
    // The true cost, more and less than reserved.
    let more = receipt(&fetch(gateway, "llm", "/", "x-cost: 10\r\n"));
    let settled = settle(gateway, "llm", &more, "x-limit-status: 200\r\nx-actual-cost: 35");
    assert_eq!(settled.json()["settled"]["tokens"], 25);
    let less = receipt(&fetch(gateway, "llm", "/", "x-cost: 10\r\n"));
    assert_eq!(settle(gateway, "llm", &less, "x-limit-cost: 4").json()["settled"]["tokens"], -6);
    assert_eq!(remaining(gateway, "tokens"), 100 - 35 - 4);
    let both = receipt(&fetch(gateway, "both", "/", "x-cost: 10\r\n"));
    let settled = settle(gateway, "both", &both, "x-limit-cost: 0").json();
    assert_eq!((&settled["settled"]["tokens"], &settled["settled"]["logins"]), (&(-10).into(), &(-1).into()));
    assert_eq!(fetch(gateway, "plain", "/", "").get("x-limit-receipt"), None);
}

#[test]
fn a_receipt_settles_by_the_rules_of_its_limits_or_by_the_true_cost() {
    settle_by_rules(&gateway(LIMITS));
}

/// A list may set the cost of a limit. Its receipt settles by that cost, and by no other table of the limit.
#[test]
fn a_receipt_settles_by_the_cost_that_the_list_sets() {
    let gateway = gateway(
        "[limit.priced]\nrate = \"100/day\"\nkey = \"ip\"\nburst = 100\n\
         [limit.own]\nrate = \"100/day\"\nkey = \"ip\"\nburst = 100\n\
         cost = { status = { \"2xx\" = 1, default = 4 } }\ncharge_on = [\"2xx\"]\n\
         [decide.list]\nlimits = [{ name = \"priced\", cost = { status = { \"2xx\" = 1, default = 4 } } }]\n\
         [decide.fixed]\nlimits = [{ name = \"own\", cost = 6 }]\n\
         [decide.plain]\nlimits = [\"own\"]\n",
    );
    for (name, limit, status, settled, left) in [
        ("list", "priced", 200, "{\"priced\":-3}", 99),
        ("list", "priced", 500, "{}", 95),
        ("fixed", "own", 200, "{}", 94),
        ("fixed", "own", 500, "{\"own\":-6}", 94),
        ("plain", "own", 200, "{\"own\":-3}", 93),
    ] {
        let charged = receipt(&fetch(&gateway, name, "/", ""));
        let answer = settle(&gateway, name, &charged, &format!("x-limit-status: {status}"));
        assert_eq!(answer.text(), format!("{{\"settled\":{settled}}}"), "{name} {status}");
        assert_eq!(remaining(&gateway, limit), left, "{name} {status}");
    }
}

#[test]
fn receipts_hold_for_all_gateways_with_one_secret_and_store() {
    let redis = RedisServer::start(&[]);
    let config = |secret: &str| {
        let config = format!("{}{LIMITS}", redis.store());
        let gateway = Gateway::with_config(&format!(
            "[server]\ntrusted_proxies = [\"127.0.0.1\"]\nworkers = 1\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"decide\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\nkeys_secret = \"{secret}\"\n{config}"
        ));
        gateway.wait_for_store();
        gateway
    };
    let secret = "0123456789abcdef0123456789abcdef";
    let [one, other, untrusted] = [secret, secret, "another secret of 32 bytes......"].map(config);
    settle_by_rules(&one);
    let login = receipt(&fetch(&one, "login", "/", ""));
    assert_eq!(settle(&untrusted, "login", &login, "x-limit-cost: 0").status(), 400, "another secret");
    let before = remaining(&one, "logins");
    assert_eq!(settle(&other, "login", &login, "x-limit-cost: 0").status(), 200);
    assert_eq!(
        settle(&one, "login", &login, "x-limit-cost: 0").status(),
        409,
        "the receipt was used at the other gateway"
    );
    assert_eq!(remaining(&one, "logins"), before + 1);
}

#[test]
fn nobody_gets_anything_for_a_receipt_that_is_not_theirs_or_not_whole() {
    let gateway = gateway_with("workers = 2", LIMITS);
    let token = receipt(&fetch(&gateway, "login", "/", ""));
    let mut changed = token.clone().into_bytes();
    changed[60] = if changed[60] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).unwrap();
    for (name, token, end, status) in [
        ("llm", token.as_str(), "x-limit-cost: 0", 400),
        ("login", &token[1..], "x-limit-cost: 0", 400),
        ("login", &changed, "x-limit-cost: 0", 400),
        ("login", "", "x-limit-cost: 0", 400),
        ("login", &token, "x-none: 0", 400),
        ("login", &token, "x-limit-cost: -1", 400),
        ("login", &token, "x-limit-cost: x", 400),
        ("login", &token, "x-limit-cost: 0\r\nx-limit-cost: 0", 400),
        ("login", &token, "x-limit-cost: 0\r\nx-limit-status: 200", 400),
        ("login", &token, "x-limit-status: 20", 400),
        ("login", &token, "x-limit-status: 999", 400),
        ("none", &token, "x-limit-cost: 0", 404),
    ] {
        assert_eq!(settle(&gateway, name, token, end).status(), status, "{name} {end}");
    }
    let fields = format!("x-limit-receipt: {token}\r\nx-limit-cost: 0\r\n");
    assert_eq!(gateway.fetch(&call("GET", "/settle/login", &fields, 0)).status(), 400);
    let twice = format!("{fields}x-limit-receipt: {token}\r\n");
    assert_eq!(gateway.fetch(&post("/settle/login", 0, &twice)).status(), 400);
    let untrusted = gateway.client_from([127, 0, 0, 66]).fetch(&post("/settle/login", 0, &fields), "");
    assert_eq!(untrusted.status(), 403);
    assert_eq!(remaining(&gateway, "logins"), 9);
    // Only one of several concurrent settlements counts.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..6).map(|_| scope.spawn(|| settle(&gateway, "login", &token, "x-limit-cost: 0").status())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(remaining(&gateway, "logins"), 10);
    // A huge cost is clamped, and spends the limit instead of overflowing it.
    let llm = receipt(&fetch(&gateway, "llm", "/", "x-cost: 1\r\n"));
    assert_eq!(settle(&gateway, "llm", &llm, "x-limit-cost: 99999999999999999999999").status(), 200);
    assert_eq!(fetch(&gateway, "llm", "/", "x-cost: 1\r\n").status(), 429);
    gateway.assert_metric("decide_requests_total", &[("result", "settled")], 2.0);
    assert!(gateway.metric("decide_requests_total", &[("result", "not_settled")]).unwrap() >= 9.0);
}

/// A limit in shadow mode charges all networks of a client or none. A receipt refunds nothing that was not charged.
#[test]
fn a_receipt_has_only_what_was_charged() {
    let tiers = "algorithm = \"fixed_window\"\nrate = \"1/day\"\nkey = \"ip6tiers/64/56x4/48x8\"\ncharge_on = [401]\n";
    let gateway = gateway(&format!(
        "[limit.tiers]\n{tiers}mode = \"shadow\"\n[limit.now]\nrate = \"100/day\"\n\
         [limit.next]\n{tiers}candidate_of = \"now\"\n[decide.a]\nlimits = [\"tiers\", \"now\"]\n"
    ));
    let fetch = |client: &str| {
        let fields = super::forwarded("GET", "/", "").replace("192.0.2.1", client);
        gateway.fetch(&crate::support::client::get("/decide/a", &fields))
    };
    let first = receipt(&fetch("2001:db8::1"));
    let over = fetch("2001:db8::2");
    assert_eq!((over.status(), over.get("x-limit-receipt")), (200, None), "the /64 exceeds its limit");
    let left = |limit: &str| {
        gateway.admin(&format!("/-/limits/{limit}/state?key=2001:db8::1")).json()["remaining"].as_i64().unwrap()
    };
    let all = || ["tiers", "tiers.56", "tiers.48", "next.56"].map(left);
    assert_eq!(all(), [0, 3, 7, 3]);
    let settled = settle(&gateway, "a", &first, "x-limit-cost: 0").json();
    assert_eq!((settled["settled"].as_object().unwrap().len(), all()), (6, [1, 4, 8, 4]));
    // The same over the admin API, which gives a receipt for each charge.
    let body =
        "{\"operation\": \"take\", \"decisions\": [{\"limits\": [\"tiers\"], \"key\": {\"ip\": \"2001:db8::1\"}}]}";
    let receipts = || {
        let fields = "content-type: application/json\r\n";
        let response = gateway.admin_request("POST", "/-/decide", fields, body).json();
        let limits = response["decisions"][0]["limits"].as_array().unwrap_or_else(|| panic!("{response}")).clone();
        limits.iter().filter(|limit| limit["receipt"].is_string()).count()
    };
    assert_eq!([receipts(), receipts()], [3, 0]);
}

/// A receipt that would be too long with the charges of candidates goes without them.
#[test]
fn a_candidate_costs_no_receipt() {
    let gateway = gateway(
        "[limit.logins]\nrate = \"10/day\"\nkey = \"ip\"\ncharge_on = [401]\n\
         [limit.next]\nrate = \"10/day\"\nkey = \"header:x-key\"\ncharge_on = [401]\ncandidate_of = \"logins\"\n\
         [decide.a]\nlimits = [\"logins\"]\n",
    );
    for (length, settled) in [(3, "{\"logins\":-1,\"next\":-1}"), (2500, "{\"logins\":-1}")] {
        let token = receipt(&fetch(&gateway, "a", "/", &format!("x-key: {}\r\n", "k".repeat(length))));
        assert!(token.len() <= 3072, "{}", token.len());
        let response = settle(&gateway, "a", &token, "x-limit-cost: 0");
        assert_eq!((response.status(), response.text()), (200, format!("{{\"settled\":{settled}}}")));
    }
    assert_eq!(remaining(&gateway, "logins"), 10);
    gateway.assert_metric("decide_requests_total", &[("result", "no_receipt")], 0.0);
}

#[test]
fn a_receipt_expires_with_its_charge() {
    let gateway = gateway(
        "[limit.short]\nrate = \"10/s\"\nburst = 1\nkey = \"ip\"\ncharge_on = [401]\n[decide.a]\nlimits = [\"short\"]\n",
    );
    let token = receipt(&fetch(&gateway, "a", "/", ""));
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(settle(&gateway, "a", &token, "x-limit-cost: 0").status(), 410);
    // A receipt that is too long for the buffers of proxies is left out.
    let key = "k".repeat(4000);
    let long = super::gateway(
        "[limit.l]\nrate = \"10/day\"\nkey = \"header:x-key\"\ncharge_on = [401]\n[decide.a]\nlimits = [\"l\"]\n",
    );
    let response = fetch(&long, "a", "/", &format!("x-key: {key}\r\n"));
    assert!(response.status() == 200 && response.get("x-limit-receipt").is_none_or(|token| token.len() <= 3072));
}
