//! Keys of limits in the access log and in spans: secrets appear as hashes, never as they are, and nobody can forge a
//! field or a part of a key.

use std::fs;

use serde_json::{Value, json};

use super::logs::{assert_entry, entries, logged};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::token::{SECRET as TOKEN_SECRET, hs256};
use crate::support::upstream::{Upstream, ok};

const SECRET: &str = "2f0c7b1a9d8e6f5a4b3c2d1e0f9a8b7c";

const LIMITS: &str = r#"
[[route]]
name = "keyed"
path = "/keyed"
respond = { body = "in" }
limits = ["per-ip", "per-key"]

[[route]]
name = "both"
path = "/both"
respond = { body = "in" }
limits = ["pair"]

[[route]]
name = "open"
path = "/open"
respond = { body = "in" }

[limit.per-ip]
rate = "1000/day"
key = "ip"

[limit.per-key]
algorithm = "fixed_window"
rate = "2/day"
key = "header:x-api-key"
missing = "skip"

[limit.pair]
rate = "1000/day"
key = ["header:x-plan", "cookie:sid", "query:q", "path"]
"#;

/// Returns the part `NAME#HASH` of the only key in an entry.
#[track_caller]
fn hash_of(entry: &Value, field: &str, name: &str) -> String {
    let text = entry[field].as_str().unwrap_or_else(|| panic!("{entry}"));
    let part = text.split(',').find(|part| part.starts_with(&format!("{name}#")));
    let digits = part.unwrap_or_else(|| panic!("{name} in {text}")).rsplit('#').next().unwrap();
    assert!(digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{text}");
    digits.to_owned()
}

#[test]
fn the_key_of_the_limit_that_decided_is_logged_and_secrets_are_not() {
    let gateway = logged("", "", LIMITS);
    for (secret, status) in [("swordfish", 200), ("swordfish", 200), ("swordfish", 429), ("sword fish", 200)] {
        assert_eq!(gateway.fetch(&get("/keyed", &format!("x-api-key: {secret}\r\n"))).status(), status);
    }
    assert_eq!(gateway.get("/keyed").status(), 200);
    assert_eq!(gateway.get("/open").status(), 200);
    let found = entries(&gateway, 6);
    let first = hash_of(&found[0], "key", "header:x-api-key");
    assert_entry(&found[2], json!({ "refused_by": "per-key", "key": format!("header:x-api-key#{first}") }));
    assert_ne!(hash_of(&found[3], "key", "header:x-api-key"), first);
    // The other limit decided alone; addresses are plain.
    assert_entry(&found[4], json!({ "limit": "per-ip", "key": "ip=127.0.0.1" }));
    assert_entry(&found[5], json!({ "limit": null, "key": null, "keys": null }));
    let log = fs::read_to_string(gateway.dir.path().join("access.log")).unwrap() + &gateway.log();
    assert!(!log.contains("swordfish") && !log.contains("sword%20fish"), "{log}");
}

#[test]
fn each_part_is_shown_as_the_config_says_and_cannot_be_forged() {
    let keys = "keys = { default = \"plain\", cookie = \"hashed\", \"query:q\" = \"hidden\" }\n";
    let gateway = logged("", "", &format!("{keys}{LIMITS}"));
    let forged = "a,ip=9.9.9.9\"}#0123456789abcdef=x!";
    for plan in [forged, &"long".repeat(2000)] {
        let fields = format!("x-plan: {plan}\r\ncookie: sid=s1\r\n");
        assert_eq!(gateway.fetch(&get("/both?q=find", &fields)).status(), 200);
    }
    assert_eq!(gateway.get("/both").status(), 200);
    let found = entries(&gateway, 3);
    let sid = hash_of(&found[0], "key", "cookie:sid");
    let plan = "a%2Cip=9.9.9.9\"}#0123456789abcdef=x!";
    assert_entry(&found[0], json!({ "key": format!("header:x-plan={plan},cookie:sid#{sid},query:q=***,path=/both") }));
    // A long value is shown as a hash, even if it may be shown, so that a line stays short.
    assert!(found[1]["key"].as_str().unwrap().len() < 200, "{}", found[1]);
    assert_eq!(hash_of(&found[1], "key", "cookie:sid"), sid);
    hash_of(&found[1], "key", "header:x-plan");
    assert_entry(&found[2], json!({ "key": "header:x-plan!,cookie:sid!,query:q!,path=/both" }));
}

#[test]
fn one_secret_gives_the_same_hashes_everywhere_and_is_not_shown() {
    let hashes = [format!("keys_secret = \"{SECRET}\"\n"), format!("keys_secret = \"{SECRET}\"\n"), String::new()].map(
        |secret| {
            let gateway = logged("", "", &format!("{secret}{LIMITS}"));
            assert_eq!(gateway.fetch(&get("/keyed", "x-api-key: acme\r\n")).status(), 200);
            let shown = ["/-/status", "/-/limits", "/metrics"].map(|page| gateway.admin(page).text());
            assert!(!shown.concat().contains(SECRET) && !gateway.log().contains(SECRET));
            hash_of(&entries(&gateway, 1)[0], "key", "header:x-api-key")
        },
    );
    // HMAC-SHA-256 of `header:x-api-key=acme`, as openssl computes it.
    assert_eq!(hashes[0], "ba6543db19e33d3b");
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2], "a process without a secret uses a random one");
}

#[test]
fn a_reload_changes_how_keys_are_shown() {
    let gateway = logged("", "", LIMITS);
    let send = || assert_eq!(gateway.fetch(&get("/both", "x-plan: gold\r\n")).status(), 200);
    send();
    gateway.reload_with("[admin]\n", "[admin]\nkeys = { \"header:x-plan\" = \"plain\", header = \"hidden\" }\n");
    send();
    let found = entries(&gateway, 2);
    hash_of(&found[0], "key", "header:x-plan");
    assert!(found[1]["key"].as_str().unwrap().starts_with("header:x-plan=gold,"), "{}", found[1]);
}

#[test]
fn a_log_may_have_the_keys_of_all_limits_and_a_format_may_have_none() {
    let limits = LIMITS.replace("[\"per-ip\", \"per-key\"]", "[\"per-ip\", \"per-key\", \"user\", \"account\"]")
        + &format!(
            "[limit.user]\nrate = \"9/s\"\nkey = \"jwt:sub\"\n[limit.account]\nrate = \"9/s\"\nkey = [\"form:user\", \"ip\"]\n\
             [jwt]\nkey = \"{TOKEN_SECRET}\"\nalgorithms = [\"HS256\"]\n"
        );
    let gateway = logged("", ", all_keys = true", &limits);
    let token = hs256(TOKEN_SECRET, "{\"sub\":\"anna\",\"exp\":4102444800}");
    let form = "user=anna&password=x";
    let head = format!(
        "POST /keyed HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {}\r\n\r\n",
        form.len()
    );
    assert_eq!(gateway.client().fetch(&head, form).status(), 200);
    let entry = &entries(&gateway, 1)[0];
    let (sub, user) = (hash_of(entry, "keys", "jwt:sub"), hash_of(entry, "keys", "form:user"));
    assert_ne!(sub, user, "the same value in another place has another hash");
    assert_entry(entry, json!({ "keys": format!("ip=127.0.0.1,header:x-api-key!,jwt:sub#{sub},form:user#{user}") }));

    let gateway = logged("", ", format = \"{limit} {key} {keys}\"", LIMITS);
    assert_eq!(gateway.fetch(&get("/keyed", "x-api-key: a\r\n")).status(), 200);
    let path = gateway.dir.path().join("access.log");
    crate::support::wait_until("the line is written", || {
        fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))
    });
    let line = fs::read_to_string(&path).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words.len(), 3, "{line}");
    assert!(words[1].starts_with("header:x-api-key#") && words[2] == format!("ip=127.0.0.1,{}", words[1]), "{line}");
}

#[test]
fn a_span_has_the_key_too() {
    let collector = Upstream::fixed(ok(""));
    let server = format!("spans = {{ to = \"{}\" }}\n", collector.url());
    let gateway = Gateway::with(&server, &format!("keys_secret = \"{SECRET}\"\n{LIMITS}"));
    assert_eq!(gateway.fetch(&get("/keyed", "x-api-key: acme\r\n")).status(), 200);
    let body = collector.request().body;
    let has = |text: &str| body.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(
        has("sluicegate.key") && has("header:x-api-key#ba6543db19e33d3b") && !has("acme"),
        "{}",
        String::from_utf8_lossy(&body)
    );
}
