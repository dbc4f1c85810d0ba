//! Tokens of an issuer that publishes its keys: discovery, rotation, an issuer that is down, and what it may not say.

use std::fs;
use std::time::Instant;

use serde_json::{Value, json};

use super::issuer::{Issuer, SigningKey};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config, config_arguments};
use crate::support::upstream::ok;
use crate::support::{wait_until, write_atomically};

/// A gateway whose directory has the CA of the issuer.
fn start(issuer: &Issuer, rest: &str) -> Gateway {
    start_with(issuer, "", rest)
}

/// The same with options of `[server]`.
fn start_with(issuer: &Issuer, server: &str, rest: &str) -> Gateway {
    let ca = issuer.ca();
    Gateway::launch(&[], move |dir| {
        fs::write(dir.join("issuer.pem"), ca).unwrap();
        config_arguments(dir, &config(server, rest))
    })
}

/// A route whose tokens the issuer signs.
fn route_of(issuer: &Issuer) -> String {
    format!(
        "[[route]]\nupstream = \"echo:\"\nauth = {{ jwt = \"id\" }}\n\
         [jwt.id]\nissuer = \"{}\"\nca = \"issuer.pem\"\n",
        issuer.url("id")
    )
}

fn claims(issuer: &Issuer) -> Value {
    json!({ "iss": issuer.url("id"), "sub": "anna" })
}

fn status(gateway: &Gateway, fields: &str) -> u16 {
    gateway.fetch(&get("/", fields)).status()
}

fn key_status(gateway: &Gateway) -> Value {
    let status: Value = serde_json::from_str(&gateway.admin("/-/status").text()).unwrap();
    status["token_keys"].clone()
}

#[test]
fn an_issuer_rotates_its_keys_while_clients_try_unknown_ones() {
    let [first, second, unknown] = ["a", "b", "c"].map(SigningKey::new);
    let issuer = Issuer::start(&[&first]);
    let gateway = start(&issuer, &route_of(&issuer));
    let [old, new, forged] = [&first, &second, &unknown].map(|key| key.bearer(&claims(&issuer)));
    // The request waits for the keys that the start fetches.
    assert_eq!(status(&gateway, &old), 200);
    assert_eq!(issuer.fetches(), 1);
    let other = json!({ "iss": issuer.url("other"), "sub": "anna" });
    assert_eq!(status(&gateway, &first.bearer(&other)), 401, "a token of another issuer");
    gateway.assert_metric("jwt_keys", &[("section", "jwt.id")], 1.0);

    issuer.rotate(&[&second]);
    let begin = Instant::now();
    wait_until("the new key is known", || status(&gateway, &new) == 200);
    assert_eq!(status(&gateway, &old), 401, "the issuer has withdrawn the key");
    for number in 0..50 {
        let random = SigningKey::new(&format!("random-{number}")).bearer(&claims(&issuer));
        assert_eq!([status(&gateway, &random), status(&gateway, &forged)], [401; 2]);
    }
    let most = 2 + begin.elapsed().as_secs() as usize / 5;
    assert!(issuer.fetches() <= most, "{} fetches, at most {most}", issuer.fetches());
    assert_eq!(key_status(&gateway)[0]["usable"], true);
}

/// Nothing but a header or the log reads the token, so these have to notice that its key is new.
#[test]
fn headers_and_the_log_have_claims_after_the_keys_have_rotated() {
    let [first, second] = ["a", "b"].map(SigningKey::new);
    for is_header in [true, false] {
        let issuer = Issuer::start(&[&first]);
        let headers = if is_header { "request_headers.set = { x-sub = \"{jwt:sub}\" }\n" } else { "" };
        let rest = format!(
            "[[route]]\nupstream = \"echo:\"\n{headers}[jwt]\nissuer = \"{}\"\nca = \"issuer.pem\"\n",
            issuer.url("id")
        );
        let server = if is_header { "" } else { "access_log = { format = \"sub={jwt:sub}\" }" };
        let gateway = start_with(&issuer, server, &rest);
        let has_claim = |key: &SigningKey, name: &str| {
            let token = key.bearer(&json!({ "iss": issuer.url("id"), "sub": name }));
            let body = gateway.fetch(&get("/", &token)).text();
            if is_header {
                body.contains(&format!("x-sub: {name}"))
            } else {
                gateway.stdout().contains(&format!("sub={name}"))
            }
        };
        wait_until("the first key is known", || has_claim(&first, "anna"));
        issuer.rotate(&[&second]);
        wait_until("the second key is known", || has_claim(&second, "bert"));
        assert!(issuer.fetches() <= 8, "{} fetches", issuer.fetches());
    }
}

#[test]
fn keys_outlive_a_reload_and_an_issuer_that_is_down() {
    let key = SigningKey::new("a");
    let issuer = Issuer::start(&[&key]);
    let token = key.bearer(&claims(&issuer));
    issuer.set_down(true);
    let gateway = start(&issuer, &route_of(&issuer));
    // Nobody can say whether the token is valid. Without a token, that does not matter.
    let refused = gateway.fetch(&get("/", &token));
    assert_eq!((refused.status(), refused.text().contains("no keys of the issuer")), (503, true), "{}", refused.text());
    let wait: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((1..=10).contains(&wait), "{wait}");
    assert_eq!(status(&gateway, ""), 401);
    let ready = gateway.admin("/readyz");
    assert_eq!((ready.status(), ready.text().as_str()), (200, "ready\n[jwt.id] has no keys: its tokens are refused\n"));
    let known = key_status(&gateway);
    assert!(known[0]["fault"].as_str().unwrap().contains("responds 500"), "{known}");
    assert_eq!(gateway.log_lines(&["jwt.id: the keys of", "cannot be fetched, there are none yet"]), 1);

    issuer.set_down(false);
    wait_until("the issuer is asked again", || status(&gateway, &token) == 200);
    assert_eq!(gateway.admin("/readyz").text(), "ready\n");
    issuer.set_down(true);
    gateway.reload_with("auth =", "allow = [\"192.0.2.1\"]\nauth =");
    assert_eq!(status(&gateway, &token), 200, "the keys are those from before the reload");
    assert_eq!(status(&gateway, &SigningKey::new("a").bearer(&claims(&issuer))), 401);
    // The same with other algorithms, and under another name.
    gateway.reload_with("[jwt.id]\n", "[jwt.id]\nalgorithms = [\"ES256\", \"EdDSA\"]\n");
    assert_eq!(status(&gateway, &token), 200, "the key fits the new algorithms");
    let text = fs::read_to_string(gateway.config()).unwrap();
    gateway.reload(&text.replace("[jwt.id]", "[jwt.people]").replace("jwt = \"id\"", "jwt = \"people\""));
    assert_eq!(status(&gateway, &token), 200, "the section has another name");
    assert_eq!(status(&gateway, &SigningKey::new("a").bearer(&claims(&issuer))), 401);
    // A key serves no algorithm that the config does not accept.
    gateway.reload_with("\"ES256\", \"EdDSA\"", "\"ES256\"");
    assert_ne!(status(&gateway, &token), 200);
}

#[test]
fn what_an_issuer_may_not_say_gives_no_keys() {
    let key = SigningKey::new("a");
    let issuer = Issuer::start(&[&key]);
    let document = |issuer: &str, jwks: &str| ok(&json!({ "issuer": issuer, "jwks_uri": jwks }).to_string());
    let jwks = issuer.url("id/jwks");
    let cases = [
        ("other", document(&issuer.url("id"), &jwks), "is about the issuer"),
        ("slash", document(&format!("{}/", issuer.url("slash")), &jwks), "must be exactly that of the tokens"),
        ("plain", document(&issuer.url("plain"), "http://127.0.0.1:9/jwks"), "which is not an https URL"),
        ("moved", format!("HTTP/1.1 302 Found\r\nlocation: {jwks}\r\ncontent-length: 0\r\n\r\n"), "is not followed"),
        ("big", ok(&" ".repeat(600_000)), "length limit exceeded"),
        ("text", ok("<html>"), "is not a discovery document"),
        ("empty", document(&issuer.url("empty"), &issuer.url("empty/none")), "the set has no keys"),
    ];
    issuer.respond("/empty/none", ok("{\"keys\":[]}"));
    let mut rest = String::new();
    for (name, response, _) in &cases {
        issuer.respond(&format!("/{name}/.well-known/openid-configuration"), response);
        let section = format!("[jwt.{name}]\nissuer = \"{}\"\nca = \"issuer.pem\"\n", issuer.url(name));
        rest +=
            &format!("[[route]]\npath = \"/{name}\"\nupstream = \"echo:\"\nauth = {{ jwt = \"{name}\" }}\n{section}");
    }
    // The system does not trust the CA of the issuer.
    rest += &format!("[jwt.untrusted]\nissuer = \"{}\"\n", issuer.url("id"));
    let gateway = start(&issuer, &rest);
    for (name, _, fault) in &cases {
        let token = key.bearer(&json!({ "iss": issuer.url(name), "sub": "anna" }));
        assert_eq!(gateway.fetch(&get(&format!("/{name}"), &token)).status(), 503, "{name}");
        let known = key_status(&gateway);
        let of = known.as_array().unwrap().iter().find(|of| of["section"] == format!("jwt.{name}")).unwrap();
        assert!(of["fault"].as_str().unwrap().contains(fault), "{name}: {of}");
    }
    wait_until("the certificate is refused", || gateway.log_lines(&["jwt.untrusted", "UnknownIssuer"]) > 0);
    assert_eq!(gateway.metric("jwt_keys", &[("section", "jwt.untrusted")]), Some(0.0));
}

#[test]
fn a_file_of_keys_is_read_again_when_it_changes() {
    let [first, second] = ["a", "b"].map(SigningKey::new);
    let set = |key: &SigningKey| json!({ "keys": [key.jwk()] }).to_string();
    let text = set(&first);
    let rest = "[[route]]\nupstream = \"echo:\"\nauth = { jwt = true }\n[jwt]\njwks = \"keys.json\"\n";
    let gateway = Gateway::launch(&[], move |dir| {
        fs::write(dir.join("keys.json"), text).unwrap();
        config_arguments(dir, &config("", rest))
    });
    let [old, new] = [&first, &second].map(|key| key.bearer(&json!({ "sub": "anna" })));
    assert_eq!([status(&gateway, &old), status(&gateway, &new)], [200, 401]);
    write_atomically(&gateway.dir.path().join("keys.json"), &set(&second));
    wait_until("the new file is active", || status(&gateway, &new) == 200);
    assert_eq!(status(&gateway, &old), 401);
}

#[test]
fn claims_may_be_nested_and_arrays() {
    let key = SigningKey::new("a");
    let set = json!({ "keys": [key.jwk()] }).to_string();
    let rest = "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"admins\", \"rest\"]\nauth = { jwt = true, user_claim = \"/user/id\" }\n\
                request_headers = { set = { x-roles = \"{jwt:/realm_access/roles}\" } }\n\
                [[route]]\npath = \"/teams\"\nupstream = \"echo:\"\nlimits = [\"by-team\"]\nauth = { jwt = true, user_claim = \"/user/id\" }\n\
                [jwt]\njwks = \"keys.json\"\n\
                [limit.admins]\nrate = \"1/h\"\nkey = \"jwt:/user/id\"\nwhen = { jwt = { \"/realm_access/roles\" = \"admin\" } }\n\
                [limit.rest]\nrate = \"2/h\"\nkey = \"user\"\nwhen = { jwt = { \"/realm_access/roles\" = \"!admin\" } }\n\
                [limit.by-team]\nrate = \"1/h\"\nkey = \"jwt:teams\"\n";
    let gateway = Gateway::launch(&[], move |dir| {
        fs::write(dir.join("keys.json"), set).unwrap();
        config_arguments(dir, &config("", rest))
    });
    let token = |user: &str, roles: Value| {
        key.bearer(&json!({ "user": { "id": user }, "realm_access": { "roles": roles }, "teams": ["x", "y"] }))
    };
    let admin = token("anna", json!(["user", "admin", "a,b"]));
    let echoed = gateway.fetch(&get("/", &admin));
    assert!(echoed.text().contains("x-roles: user,admin,a%2Cb\n"), "{}", echoed.text());
    assert_eq!(status(&gateway, &admin), 429, "the condition holds for one of the roles");
    let user = token("bert", json!(["user"]));
    assert_eq!([status(&gateway, &user), status(&gateway, &user), status(&gateway, &user)], [200, 200, 429]);
    // One budget for an array would be another one for each order of its elements.
    let refused = gateway.fetch(&get("/teams", &user));
    assert!(refused.status() == 400 && refused.text().contains("\"setting\":\"repeated\""), "{}", refused.text());
}
