//! The list of all live overrides, blocks and bans: its pages, who set an entry, and the removal of any entry.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::gateway::{Gateway, config, program};
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

use super::api::fetch;

const LIMITS: &str = r#"
[limit.per-tenant]
rate = "60/min"
burst = 20
key = "header:x-tenant"
missing = "skip"

[limit.per-ip]
algorithm = "fixed_window"
rate = "1/h"
key = "ip"
ban = { after = 1, within = "1h", for = "1h" }

[limit.uploads]
algorithm = "concurrency"
in_flight = 5
key = ["header:x-tenant", "path"]
missing = "skip"

[[route]]
name = "app"
respond = { body = "in" }
limits = ["per-tenant", "uploads"]

[[route]]
path = "/login"
respond = { body = "in" }
limits = ["per-ip"]
"#;

fn list(gateway: &Gateway, query: &str) -> Value {
    let answer = fetch(gateway, "GET", &format!("/-/overrides{query}"), "");
    assert_eq!(answer.status(), 200, "{query}: {}", answer.text());
    answer.json()
}

#[track_caller]
fn put(gateway: &Gateway, path: &str, body: &str) {
    let answer = fetch(gateway, "PUT", path, body);
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

fn rows(list: &Value) -> &[Value] {
    list["overrides"].as_array().unwrap()
}

fn run(gateway: &Gateway, arguments: &[&str]) -> (i32, String, String) {
    let output = program().args(arguments).arg("-c").arg(gateway.config()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn an_entry_is_listed_as_it_was_written_with_its_author_and_its_end() {
    let tokens = ["keys", "limits"].map(|role| {
        format!("[[admin.tokens]]\nname = \"{role}-of-anna\"\ntoken = \"secret-of-{role}-0123\"\nrole = \"{role}\"\n")
    });
    let gateway = Gateway::with_config(&config("", &format!("{}{LIMITS}", tokens.concat())));
    let call = |role: &str, method: &str, path: &str, body: &str| {
        let content = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let fields = format!("authorization: Bearer secret-of-{role}-0123\r\n{content}");
        gateway.admin_request(method, path, &fields, body)
    };
    let set = |path: &str, body: &str| assert_eq!(call("limits", "PUT", path, body).status(), 200, "{body}");
    set("/-/limits/per-ip/override?key=203.0.113.66", r#"{"block": true, "for": "1h", "note": "ticket 17"}"#);
    set("/-/limits/per-tenant/override?key=acme", r#"{"rate": "3600/h"}"#);
    set("/-/limits/uploads/override?key=acme&key=/up", r#"{"in_flight": 9}"#);
    let answer = call("keys", "GET", "/-/overrides", "").json();
    assert_eq!((&answer["total"], &answer["next"]), (&json!(3), &Value::Null));
    let found: Vec<(&Value, &Value)> = rows(&answer).iter().map(|row| (&row["limit"], &row["text"])).collect();
    let until = rows(&answer)[0]["until"].as_str().unwrap();
    assert_eq!(
        found,
        [
            (&json!("per-ip"), &json!(format!("blocked until {until}"))),
            (&json!("per-tenant"), &json!("3600/h, burst 20")),
            (&json!("uploads"), &json!("9 at a time"))
        ]
    );
    let row = &rows(&answer)[0];
    assert_eq!((&row["key"], &row["note"]), (&json!("ip=203.0.113.66"), &json!("ticket 17")));
    assert_eq!(
        (&row["set_by"], &row["blocked"], &row["ended"]),
        (&json!("limits-of-anna"), &json!(true), &json!(false))
    );
    assert!(row["set_at"].as_str().unwrap() < until);
    // The key of another limit is shown as logs show it, and no part of the answer tells more.
    assert!(rows(&answer)[1]["key"].as_str().unwrap().starts_with("header:x-tenant#"), "{answer}");
    assert!(!answer.to_string().contains("acme"), "{answer}");
    // The same budget is shown with the key.
    let state = call("keys", "GET", "/-/limits/per-tenant/state?key=acme", "").json();
    assert_eq!(
        (&state["override"]["text"], &state["override"]["set_by"]),
        (&json!("3600/h, burst 20"), &json!("limits-of-anna"))
    );
    // A key that is shown as a hash is removed without its value, but only by a role that may change it.
    let path = format!("/-/overrides?id={}", rows(&answer)[1]["id"].as_str().unwrap());
    assert_eq!(call("keys", "DELETE", &path, "").status(), 403);
    let removed = call("limits", "DELETE", &path, "").json();
    assert_eq!(
        (&removed["existed"], &removed["key"], &removed["limit"]),
        (&json!(true), &rows(&answer)[1]["key"], &json!("per-tenant"))
    );
    assert_eq!(call("limits", "DELETE", &path, "").status(), 404);
    assert_eq!(call("keys", "GET", "/-/overrides", "").json()["total"], 2);
    // One that somebody has changed meanwhile is not removed.
    let path_of = |row: &Value| format!("/-/overrides?id={}", row["id"].as_str().unwrap());
    set("/-/limits/uploads/override?key=acme&key=/up", r#"{"in_flight": 0}"#);
    let conflict = call("limits", "DELETE", &path_of(&rows(&answer)[2]), "");
    assert!(conflict.status() == 409 && conflict.text().contains("get the list again"), "{}", conflict.text());
    let of_limit = call("keys", "GET", "/-/overrides?limit=uploads", "").json();
    assert_eq!(
        (&of_limit["total"], &of_limit["limits"]),
        (&json!(1), &json!([{ "limit": "uploads", "overrides": 1 }]))
    );
    for (query, status) in
        [("limit=uploadz", 404), ("n=0", 400), ("n=1001", 400), ("cursor=abc", 400), ("n=1&n=2", 400), ("page=2", 400)]
    {
        assert_eq!(call("keys", "GET", &format!("/-/overrides?{query}"), "").status(), status, "{query}");
    }
    for query in ["", "?id=", "?id=abc", &format!("?limit=uploads&id={}", path.len())] {
        assert_eq!(call("limits", "DELETE", &format!("/-/overrides{query}"), "").status(), 400, "{query}");
    }
    assert_eq!(call("limits", "DELETE", &path.replace("id=", "id=A"), "").status(), 400);
}

#[test]
fn many_entries_are_listed_page_by_page_while_some_are_removed() {
    let redis = RedisServer::start(&[]);
    let mut client = redis.client();
    let mut fill = redis::pipe();
    for i in 0..2_500 {
        fill.hset("sg:overrides:per-tenant", format!("t{i:05}"), "rate=1/s").ignore();
    }
    // One that has ended, one for any path, and one in another spelling.
    fill.hset("sg:overrides:per-tenant", "past", "rate=0;until=2020-01-01T00:00:00Z").ignore();
    fill.hset("sg:overrides:uploads", "acme,*", "in_flight=1").ignore();
    fill.hset("sg:overrides:uploads", "ac%4De,/a", "in_flight=2").ignore();
    let () = fill.query(&mut client).unwrap();
    let gateway = Gateway::with_config(
        &config("", &format!("{}{LIMITS}", redis.store()))
            .replace("[admin]\n", "[admin]\nkeys = { default = \"plain\" }\n"),
    );
    gateway.wait_for_store();
    assert_eq!(list(&gateway, "")["total"], 2_503);
    let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = list(&gateway, &format!("?n=1000{cursor}"));
        seen.extend(rows(&page).iter().map(|row| format!("{} {}", row["limit"], row["key"])));
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
        // What is removed on earlier pages moves nothing.
        for key in [format!("t{:05}", pages), "t00500".to_owned()] {
            fetch(&gateway, "DELETE", &format!("/-/limits/per-tenant/override?key={key}"), "");
        }
    }
    let unique: BTreeSet<&String> = seen.iter().collect();
    assert_eq!((seen.len(), unique.len(), pages), (2_503, 2_503, 3));
    assert!(seen.is_sorted(), "by limit and key");

    let ended: Vec<Value> =
        rows(&list(&gateway, "?limit=per-tenant&n=1")).iter().filter(|row| row["ended"] == true).cloned().collect();
    assert_eq!((ended.len(), &ended[0]["key"]), (1, &json!("header:x-tenant=past")));
    let uploads = list(&gateway, "?limit=uploads");
    let keys: Vec<&Value> = rows(&uploads).iter().map(|row| &row["key"]).collect();
    assert_eq!(keys, ["header:x-tenant=acMe,path=/a", "header:x-tenant=acme,path=*"]);
    for row in rows(&uploads) {
        let path = format!("/-/overrides?id={}", row["id"].as_str().unwrap());
        assert_eq!(fetch(&gateway, "DELETE", &path, "").json()["existed"], true, "{row}");
    }
    let left: Vec<String> = redis::cmd("HKEYS").arg("sg:overrides:uploads").query(&mut client).unwrap();
    assert!(left.is_empty(), "{left:?}");

    let (_, text, _) = run(&gateway, &["key", "list", "-n", "3"]);
    assert!(text.contains("the first 3 of ") && text.contains("1/s, burst 20"), "{text}");
    let (code, text, stderr) = run(&gateway, &["key", "list", "per-tenant", "-n", "5000", "--format", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let total = answer["overrides"]["total"].as_u64().unwrap();
    assert_eq!((code, rows(&answer["overrides"]).len() as u64), (0, total), "{stderr}");
}

#[test]
fn bans_of_all_gateways_are_listed_and_lifted() {
    let redis = RedisServer::start(&[]);
    let text = format!("{}{LIMITS}", redis.store());
    let (here, there) = (Gateway::start(&text), Gateway::start(&text));
    here.wait_for_store();
    there.wait_for_store();
    assert_eq!(fetch(&here, "GET", "/-/bans", "").json()["bans"], json!([]));
    let statuses: Vec<u16> = (0..3).map(|_| there.get("/login").status()).collect();
    assert_eq!(statuses, [200, 429, 429]);
    for gateway in [&there, &here] {
        let mut bans = Value::Null;
        wait_until("the ban is listed", || {
            bans = fetch(gateway, "GET", "/-/bans?limit=per-ip", "").json();
            bans["bans"].as_array().is_some_and(|bans| !bans.is_empty())
        });
        let ban = &bans["bans"][0];
        assert_eq!(
            (&ban["key"], &ban["banned"], &ban["limit"]),
            (&json!("ip=127.0.0.1"), &json!(true), &json!("per-ip"))
        );
        assert!((3_000_000..=3_600_000).contains(&ban["left_ms"].as_i64().unwrap()), "{ban}");
        assert!(bans["bans"].as_array().unwrap().len() == 1 && bans["store_fault"].is_null(), "{bans}");
    }
    let (code, text, _) = run(&here, &["key", "list"]);
    assert!(code == 0 && text.contains("no live overrides or blocks") && text.contains("ip=127.0.0.1"), "{text}");
    let (_, text, _) = run(&here, &["key", "reset", "per-ip", "127.0.0.1"]);
    assert!(text.contains("no ban holds"), "{text}");
    for gateway in [&there, &here] {
        assert_eq!(fetch(gateway, "GET", "/-/bans", "").json()["bans"], json!([]), "it is lifted everywhere");
    }
    assert_eq!(fetch(&here, "GET", "/-/bans?limit=per-ipp", "").status(), 404);
    assert_eq!(fetch(&here, "GET", "/-/bans?key=a", "").status(), 400);
    // The two have different names, and each is called the same everywhere.
    let name = |gateway: &Gateway| fetch(gateway, "GET", "/-/status", "").json()["host"].as_str().unwrap().to_owned();
    let names = [name(&here), name(&there)];
    assert!(names[0] != names[1] && names[0].ends_with(&format!(":{}", here.admin.port())), "{names:?}");
    let refused = fetch(&here, "GET", "/-/refusals", "").json();
    assert_eq!(refused["refusals"][0]["host"], names[1]);
    wait_until("the list of gateways has both names", || {
        let all = fetch(&here, "GET", "/-/gateways", "").json();
        let hosts: Vec<&Value> = all["gateways"].as_array().unwrap().iter().map(|one| &one["host"]).collect();
        names.iter().all(|name| hosts.contains(&&json!(name)))
    });
    let (_, text, _) = run(&here, &["status"]);
    assert!(text.starts_with(&format!("gateway   {}, ready, ", names[0])), "{text}");
    drop(redis);
    let answer = fetch(&there, "GET", "/-/bans", "").json();
    assert!(answer["bans"] == json!([]) && answer["store_fault"].is_string(), "{answer}");
}

#[test]
fn mistakes_about_the_list_are_named() {
    let gateway = Gateway::start(LIMITS);
    put(&gateway, "/-/limits/per-ip/override?key=192.0.2.1", r#"{"block": true}"#);
    for (arguments, words) in [
        (&["key", "list", "per-ipp"][..], "did you mean `per-ip`?"),
        (&["key", "list", "per-ip", "::1"], "`key list` has no key"),
        (&["key", "list", "--units", "3"], "--units"),
        (&["key", "show"], "name the limit"),
        (&["key", "show", "per-ip", "::1", "-n", "3"], "-n belongs to `key list`"),
    ] {
        let (code, _, stderr) = run(&gateway, arguments);
        assert!(code == 2 && stderr.contains(words), "{arguments:?}: {stderr}");
    }
    let (code, text, _) = run(&gateway, &["key", "list"]);
    assert!(code == 0 && text.contains("per-ip  ip=192.0.2.1  blocked") && !text.contains(" by "), "{text}");
}

#[test]
fn a_rollback_is_shown_before_it_is_made() {
    let gateway = Gateway::start(LIMITS);
    gateway.reload_with("60/min", "90/min");
    let generation = || fetch(&gateway, "GET", "/-/status", "").json()["generation"].clone();
    let (code, text, _) = run(&gateway, &["rollback", "--dry-run"]);
    assert!(code == 0 && text.contains("a rollback to generation 1 would change") && text.contains("60/min"), "{text}");
    let (_, text, _) = run(&gateway, &["rollback", "1", "--dry-run", "--format", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&answer["dry_run"], &answer["files"], &answer["pinned"]), (&json!(true), &json!([]), &Value::Null));
    assert_eq!(generation(), 2, "nothing has changed");
    let (code, _, stderr) = run(&gateway, &["rollback", "7", "--dry-run"]);
    assert!(code == 2 && stderr.contains("generation 7 is not in the history"), "{stderr}");
    // Without a terminal, nobody can be asked.
    let (code, text, _) = run(&gateway, &["rollback"]);
    assert!(code == 0 && text.contains("rolled back"), "{text}");
    assert_eq!(generation(), 3);
}
