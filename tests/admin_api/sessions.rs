//! Sessions: a code for one use, and the token that it is traded for.

use serde_json::{Value, json};

use super::{LIMITS, ask_as, bearer, problem, secret, start, tokens};
use crate::support::gateway::Gateway;
use crate::support::until;

/// Trades a code for a session.
fn redeem(gateway: &Gateway, code: &Value) -> Value {
    let answer = gateway.admin_ask("POST", "/-/session", "", json!({ "code": code }).to_string());
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

fn status(gateway: &Gateway, session: &Value, method: &str, path: &str) -> u16 {
    gateway.admin_ask(method, path, &bearer(session["token"].as_str().unwrap()), "").status()
}

#[test]
fn a_session_has_at_most_the_role_of_its_token() {
    let gateway = start();
    let code = ask_as(&gateway, "edit", "POST", "/-/session", r#"{"role":"keys"}"#).json();
    assert_eq!(code["expires_in_seconds"], 60);
    let session = redeem(&gateway, &code["code"]);
    assert_eq!(session["role"], "keys");
    assert!(session["expires_at"].as_str().unwrap().ends_with('Z'));
    let again = gateway.admin_ask("POST", "/-/session", "", json!({ "code": code["code"] }).to_string());
    assert_eq!((again.status(), &problem(&again)["type"]), (401, &json!("urn:sluicegate:problem:code-unknown")));
    assert_eq!(status(&gateway, &session, "GET", "/-/limits/per-ip/state?key=::1"), 200);
    assert_eq!(status(&gateway, &session, "DELETE", "/-/limits/per-ip/state?key=::1"), 403);
    let own = redeem(&gateway, &ask_as(&gateway, "limits", "POST", "/-/session", "").json()["code"]);
    assert_eq!(own["role"], "limits");
    let higher = ask_as(&gateway, "limits", "POST", "/-/session", r#"{"role":"edit"}"#);
    assert_eq!((higher.status(), &problem(&higher)["type"]), (403, &json!("urn:sluicegate:problem:role-too-low")));
    for (body, expected) in [
        (r#"{"role":"king"}"#, 422),
        (r#"{"rule":"edit"}"#, 422),
        ("[", 400),
        ("[]", 422),
        (" [null]", 422),
        ("null", 422),
        (r#"{"role":"read","code":"x"}"#, 400),
    ] {
        assert_eq!(ask_as(&gateway, "edit", "POST", "/-/session", body).status(), expected, "{body}");
    }
    assert_eq!(status(&gateway, &session, "POST", "/-/session"), 403, "a session does not prolong itself");
    assert_eq!(gateway.admin_ask("POST", "/-/session", "", "").status(), 401);
    let audit = ask_as(&gateway, "edit", "GET", "/-/audit", "").json();
    let opened = audit["entries"].as_array().unwrap().iter().find(|entry| entry["change"] == "session of role keys");
    let opened = opened.unwrap();
    assert_eq!(
        (&opened["token"], &opened["role"], &opened["session"]),
        (&json!("editer"), &json!("keys"), &json!(true))
    );
    assert!(!audit.to_string().contains("sgs_") && !audit.to_string().contains("sgc_"));
}

#[test]
fn a_session_ends_when_its_token_is_removed() {
    let gateway = start();
    let session = redeem(&gateway, &ask_as(&gateway, "edit", "POST", "/-/session", "{}").json()["code"]);
    assert_eq!(status(&gateway, &session, "GET", "/-/audit"), 200);
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.write_config(&config.replace(&secret("edit"), "another-token-for-editing"));
    until("the token does not work", || ask_as(&gateway, "edit", "GET", "/-/audit", "").status() != 200);
    let answer = gateway.admin_ask("GET", "/-/audit", &bearer(session["token"].as_str().unwrap()), "");
    assert_eq!((answer.status(), &problem(&answer)["type"]), (401, &json!("urn:sluicegate:problem:session-ended")));
}

#[test]
fn without_tokens_this_machine_opens_sessions() {
    let gateway = Gateway::start(LIMITS);
    let code = gateway.admin_ask("POST", "/-/session", "", r#"{"role":"read"}"#).json()["code"].clone();
    let session = redeem(&gateway, &code);
    assert_eq!(status(&gateway, &session, "GET", "/-/status"), 200);
    assert_eq!(status(&gateway, &session, "POST", "/-/reload"), 403, "a session has its role here too");
    for fields in ["origin: http://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
        assert_eq!(gateway.admin_ask("POST", "/-/session", fields, "").status(), 403, "{fields}");
        let code = json!({ "code": "x" }).to_string();
        assert_eq!(gateway.admin_ask("POST", "/-/session", fields, code).status(), 403, "{fields}");
    }
    let rebound = "POST /-/session HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(crate::support::client::Client::connect(gateway.admin).ask(rebound, "").status(), 403);
    // Once a token is set, sessions that were opened without one end.
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.write_config(&config.replace(LIMITS, &format!("{}{LIMITS}", tokens())));
    until("a token is needed", || gateway.admin_ask("GET", "/-/status", "", "").status() == 401);
    assert_eq!(status(&gateway, &session, "GET", "/-/status"), 401);
}
