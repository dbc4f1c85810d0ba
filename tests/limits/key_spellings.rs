//! A key part with `normalize` has one budget per account, however the account is spelled: for requests, overrides of the
//! config and live ones, the admin API and `explain`, with both stores.

use serde_json::json;

use super::repeated_keys::route;
use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";
const JSON: &str = "content-type: application/json\r\n";

fn config() -> String {
    let email = "{ source = \"form:email | json:/email\", normalize = [\"lowercase\", \"trim\", \"nfkc\", \"email\"] }";
    let user = "{ source = \"header:x-user\", normalize = [\"lowercase\"] }";
    [
        route("login", "/login", &format!("key = {email}\noverrides = [{{ key = \"EVE+x@Example.com\", rate = 0 }}]")),
        route("user", "/user", &format!("key = [{user}, \"path\"]")),
    ]
    .concat()
}

fn send(gateway: &Gateway, fields: &str, body: &str) -> u16 {
    gateway.client().fetch(&post("/login", body.len() as u64, fields), body).status()
}

#[test]
fn every_spelling_has_one_budget() {
    let redis = RedisServer::start(&[]);
    let store = redis.store();
    let shared = Gateway::start(&format!("{store}{}", config()));
    shared.wait_for_store();
    for gateway in [&shared, &Gateway::start(&config())] {
        // The limit has two requests.
        let spellings = [
            (FORM, "email=anna%40example.com"),
            (JSON, "{\"email\":\" ANNA@example.com.\"}"),
            (FORM, "email=%EF%BC%A1nna%EF%BC%A0EXAMPLE.com+"),
            (FORM, "email=anna%2Bnews%40example.com"),
            (JSON, "{\"email\":\"\\ud835\\udc00NNA@example.com\"}"),
        ];
        assert_eq!(spellings.map(|(kind, body)| send(gateway, kind, body)), [200, 200, 429, 429, 429]);
        // An override in another spelling.
        assert_eq!(send(gateway, FORM, "email=eve%40EXAMPLE.com"), 429);
        // Another account.
        assert_eq!(send(gateway, FORM, "email=bert%40example.com"), 200);
        // The admin API accepts any spelling, shows the normalized one, and resets the budget.
        let target = "/-/limits/login/state?key=Anna%2Bx%40Example.com";
        let state = gateway.admin(target).json();
        assert_eq!((&state["admitted"], &state["remaining"]), (&json!(false), &json!(0)), "{state}");
        let key = state["state_key"].as_str().unwrap();
        assert!(key.contains("form:email|json:/email~lowercase~trim~nfkc~email=anna@example.com"), "{key}");
        assert_eq!(gateway.admin_request("DELETE", target, "", "").status(), 200);
        assert_eq!(send(gateway, FORM, "email=aNNa%40example.com"), 200);
    }
    // A header may have bytes that are no UTF-8: the text around them is normalized.
    let user = |value: &str| shared.fetch(&get("/user", &format!("x-user: {value}\r\n"))).status();
    assert_eq!(["Ann", "aNN", "ann"].map(user), [200, 200, 429]);
}

#[test]
fn live_overrides_and_decisions_have_any_spelling() {
    let redis = RedisServer::start(&[]);
    let entry = ["sg:overrides:login", "MALLORY@Example.com", "rate=0"];
    redis::cmd("HSET").arg(&entry).exec(&mut redis.client()).unwrap();
    let store = redis.store();
    let gateway = Gateway::start(&format!("{store}{}", config()));
    gateway.wait_for_store();
    assert_eq!(send(&gateway, FORM, "email=mallory%2B1%40example.COM"), 429);
    let decide = |name: &str| {
        let key = json!({ "form:email": name });
        let body = json!({ "operation": "take", "decisions": [{ "limits": ["login"], "key": key }] }).to_string();
        let response = gateway.admin_request("POST", "/-/decide", JSON, body);
        response.json()["decisions"][0]["admitted"].as_bool().unwrap_or_else(|| panic!("{}", response.text()))
    };
    assert_eq!(["Carl@example.com", " carl@EXAMPLE.com", "carl+x@example.com"].map(decide), [true, true, false]);
    assert_eq!(send(&gateway, FORM, "email=CARL%40example.com"), 429);
}
