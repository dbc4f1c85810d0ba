//! A key with alternatives, such as `form:user | json:/user`, has one budget per name, wherever the client writes it.

use serde_json::{Value, json};

use super::repeated_keys::route;
use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::limiting::RedisServer;

const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";
const JSON: &str = "content-type: application/json\r\n";

fn config() -> String {
    let either = "key = \"form:user | json:/user\"";
    let sent = "key = \"query:user | cookie:user | header:x-user\"\nmissing = \"skip\"";
    [
        route("login", "/login", &format!("{either}\noverrides = [{{ key = \"admin\", rate = 0 }}]")),
        route("skip", "/skip", &format!("{either}\nmissing = \"skip\"")),
        route("required", "/required", &format!("{either}\nmissing = \"refuse\"")),
        route("sent", "/sent", sent),
        route("first", "/first", &format!("{sent}\nrepeated = \"first\"")),
        route("last", "/last", &format!("{sent}\nrepeated = \"last\"")),
        route("two", "/two", "key = [\"query:user | form:user\", \"header:x-tenant\"]"),
        route("shared", "/shared", "key = [\"form:user\", \"json:/user\"]"),
    ]
    .concat()
}

fn send(gateway: &Gateway, target: &str, fields: &str, body: &str) -> Message {
    gateway.client().fetch(&post(target, body.len() as u64, fields), body)
}

#[test]
fn an_account_has_one_budget_in_both_kinds_of_body() {
    let redis = RedisServer::start(&[]);
    let store = redis.store();
    // Two gateways, used alternately.
    let gateways = [0, 1].map(|_| Gateway::start(&format!("{store}{}", config())));
    gateways.iter().for_each(Gateway::wait_for_store);
    for target in ["/login", "/skip", "/required"] {
        let requests = [
            (FORM, "user=anna"),
            (JSON, "{\"user\":\"anna\"}"),
            (FORM, "us%65r=ann%61"),
            (JSON, "{\"user\":\"\\u0061nna\"}"),
        ];
        let statuses = [0, 1, 2, 3].map(|n| send(&gateways[n % 2], target, requests[n].0, requests[n].1).status());
        assert_eq!(statuses, [200, 200, 429, 429], "{target}");
    }
    let gateway = &gateways[0];
    // A number and its digits are the same name.
    let digits = [(JSON, "{\"user\":7.0}"), (FORM, "user=7"), (JSON, "{\"user\":\"7\"}")];
    assert_eq!(digits.map(|(kind, body)| send(gateway, "/login", kind, body).status()), [200, 200, 429]);
    // An override for the name applies to both kinds of bodies.
    assert_eq!(
        [(FORM, "user=admin"), (JSON, "{\"user\":\"admin\"}")]
            .map(|(kind, body)| send(gateway, "/login", kind, body).status()),
        [429; 2]
    );
    for (fields, body, status) in [
        (FORM, "user=bert&user=carl", 400),
        (JSON, "{\"user\":\"bert\",\"user\":\"carl\"}", 400),
        (JSON, "{\"user\":[\"bert\"]}", 400),
        ("content-type: text/plain\r\n", "user=bert", 415),
        ("", "user=bert", 415),
    ] {
        assert_eq!(send(gateway, "/skip", fields, body).status(), status, "{fields}{body}");
    }
    let missing = send(gateway, "/required", FORM, "name=x");
    assert_eq!(
        (missing.status(), &missing.json()["title"]),
        (403, &"the request lacks form:user or json:/user, the key of its limit".into())
    );
    assert_eq!([0; 3].map(|_| send(gateway, "/skip", FORM, "name=x").status()), [200; 3], "none of them is there");
    // Two parts stay two budgets.
    let kinds = [(FORM, "user=anna"), (JSON, "{\"user\":\"anna\"}")];
    assert_eq!(
        kinds.map(|(kind, body)| [0; 3].map(|_| send(gateway, "/shared", kind, body).status())),
        [[200, 200, 429]; 2]
    );
}

#[test]
fn a_second_place_for_the_name_is_no_second_budget() {
    let gateway = Gateway::start(&config());
    let fetch = |target: &str, fields: &str| gateway.fetch(&get(target, fields)).status();
    for (target, fields) in [
        ("/sent?user=junk", "x-user: anna\r\n"),
        ("/sent?user=anna", "x-user: junk\r\n"),
        ("/sent?user=anna", "cookie: user=junk\r\n"),
        ("/sent?user=", "x-user: anna\r\n"),
        ("/sent?user=junk", "cookie: user=junk\r\nx-user: anna\r\n"),
        ("/sent", "cookie: user=junk\r\nx-user: anna\r\n"),
        ("/sent?User=anna", "x-user: anna\r\n"),
    ] {
        assert_eq!(fetch(target, fields), 400, "{target} {fields}");
    }
    let rejected = [("route", "sent"), ("limit", "sent"), ("reason", "repeated_key")];
    gateway.assert_metric("rejections_total", &rejected, 7.0);
    // In any place, and repeated in several places, the same name has one budget.
    assert_eq!(fetch("/sent?user=anna", "cookie: user=anna\r\nx-user: anna\r\n"), 200);
    assert_eq!(fetch("/sent", "x-user: anna\r\n"), 200);
    assert_eq!([fetch("/sent?user=anna", ""), fetch("/sent", "cookie: user=\"anna\"\r\n")], [429; 2]);
    // All names are decoded like cookies, so that each name has one form.
    assert_eq!(fetch("/sent", "cookie: user=a+b\r\n"), 200);
    assert_eq!(["/sent?user=a%2Bb", "/sent?user=a+b"].map(|target| fetch(target, "")), [200, 429]);
    // The limit reads only one of the two values; which one is its setting.
    let both = |target: &str, n: usize| fetch(&format!("{target}?user=a{n}"), "x-user: b\r\n");
    assert_eq!([0, 1, 2].map(|n| both("/last", n)), [200, 200, 429]);
    assert_eq!([0, 0, 0].map(|n| both("/first", n)), [200, 200, 429]);
    assert_eq!(both("/first", 1), 200);
    assert_eq!(send(&gateway, "/two?user=anna", FORM, "user=bert").status(), 400);
    let twos = ["/two?user=anna", "/two", "/two"];
    assert_eq!(twos.map(|target| send(&gateway, target, FORM, "user=anna").status()), [200, 200, 429]);
}

#[test]
fn the_admin_listener_names_one_value_for_all_alternatives() {
    let gateway = Gateway::start(&config());
    assert_eq!(send(&gateway, "/login", FORM, "user=anna").status(), 200);
    let remaining =
        |key: &str| -> Value { gateway.admin(&format!("/-/limits/login/state?key={key}")).json()["remaining"].clone() };
    assert_eq!((remaining("anna"), remaining("bert")), (json!(1), json!(2)));
    let listed = gateway.admin("/-/limits/login").json();
    assert_eq!(listed["key"], json!(["form:user | json:/user"]));
    let take = |key: Value| {
        let order = json!({ "operation": "take", "decisions": [{ "limits": ["login"], "key": key }] }).to_string();
        let fields = "content-type: application/json\r\n";
        let response = gateway.admin_request("POST", "/-/decide", fields, order);
        (response.status(), response.json()["decisions"][0]["admitted"].clone())
    };
    assert_eq!(take(json!({ "json:/user": "anna" })), (200, json!(true)));
    assert_eq!(take(json!({ "form:user | json:/user": "anna" })), (200, json!(false)));
    assert_eq!(take(json!({ "form:user": "anna", "json:/user": "anna" })), (200, json!(false)));
    // Two different names select no budget.
    assert_ne!(take(json!({ "form:user": "x", "json:/user": "y" })), (200, json!(true)));
    assert_eq!(take(json!({ "form:user": "x", "form:user | json:/user": "y" })).0, 422);
    assert_eq!(take(json!({ "query:user": "x" })).0, 422);
}

/// Bodies that one server reads as a form and another one as JSON, each with a name of its own.
#[test]
fn a_body_with_two_readings_is_refused() {
    let json_alone = route("json", "/json", "key = \"json:/login/user\"");
    let gateway = Gateway::start(&format!("{}{json_alone}", config()));
    let fetch = |target: &str, kind: &str, body: &str| send(&gateway, target, kind, body).status();
    let other = "content-type: application/x-www-form-urlencoded+json\r\n";
    for (target, kind, body) in [
        ("/login", FORM, "{\"user\":\"anna\",\"x\":\"&user=1&\"}"),
        ("/login", FORM, "\r\n {\"user\":\"anna\"}&user=2"),
        ("/login", FORM, "\u{feff}[1]&user=3"),
        ("/login", JSON, "{\"user\":\"4\",\"x\":\"&user=anna&password=wrong&y=\"}"),
        ("/login", JSON, "{\"x\":\"&us%65r=anna&\",\"user\":\"5\"}"),
        ("/json", JSON, "{\"login\":{\"user\":\"6\"},\"x\":\";user=anna;\"}"),
        ("/required", JSON, "{\"user\":\"7\",\"x\":\"&user=anna&\"}"),
    ] {
        assert_eq!(fetch(target, kind, body), 400, "{target} {kind}{body}");
    }
    assert_eq!(fetch("/login", other, "{\"user\":\"anna\"}"), 415);
    // In other parameters, or escaped, such texts are ordinary values.
    assert_eq!(fetch("/login", JSON, "{\"user\":\"bert\",\"next\":\"/?a=1&b=2\"}"), 200);
    assert_eq!(fetch("/login", FORM, "x=%7B%22user%22:1%7D&user=bert"), 200);
}

/// `URLSearchParams` in JavaScript drops a question mark before the first name.
#[test]
fn a_name_behind_a_question_mark_or_byte_order_mark_is_unclear() {
    let level = "when = { query = { level = \">8\" } }\nkey = \"ip\"";
    let gateway = Gateway::start(&format!("{}{}", config(), route("level", "/level", level)));
    let fetch = |target: &str| gateway.get(target).status();
    assert_eq!(["/sent??user=anna&user=x", "/sent??user=anna", "/sent???us%65r=x"].map(fetch), [400; 3]);
    assert_eq!(["/level??level=9", "/level?x=1&?level=9"].map(fetch), [400, 200]);
    assert_eq!(send(&gateway, "/login", FORM, "?user=anna&user=x").status(), 400);
    assert_eq!(send(&gateway, "/login", FORM, "\u{feff}user=anna").status(), 400);
    // Elsewhere, the question mark is a part of the name for every server.
    assert_eq!(fetch("/sent?a=1&?user=anna&user=x"), 200);
}
