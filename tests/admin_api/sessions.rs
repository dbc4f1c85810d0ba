//! Sessions: a code for one use, and the token that it is traded for.

use serde_json::{Value, json};

use super::{LIMITS, bearer, fetch_as, problem, secret, start, tokens};
use crate::support::gateway::Gateway;
use crate::support::wait_until;

/// Trades a code for a session.
fn redeem(gateway: &Gateway, code: &Value) -> Value {
    let response = gateway.admin_request("POST", "/-/session", "", json!({ "code": code }).to_string());
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()
}

fn status(gateway: &Gateway, session: &Value, method: &str, path: &str) -> u16 {
    gateway.admin_request(method, path, &bearer(session["token"].as_str().unwrap()), "").status()
}

#[test]
fn a_session_has_at_most_the_role_of_its_token() {
    let gateway = start();
    let code = fetch_as(&gateway, "edit", "POST", "/-/session", r#"{"role":"keys"}"#).json();
    assert_eq!(code["expires_in_seconds"], 60);
    let session = redeem(&gateway, &code["code"]);
    assert_eq!(session["role"], "keys");
    assert!(session["expires_at"].as_str().unwrap().ends_with('Z'));
    let again = gateway.admin_request("POST", "/-/session", "", json!({ "code": code["code"] }).to_string());
    assert_eq!((again.status(), &problem(&again)["type"]), (401, &json!("urn:sluicegate:problem:code-unknown")));
    assert_eq!(status(&gateway, &session, "GET", "/-/limits/per-ip/state?key=::1"), 200);
    assert_eq!(status(&gateway, &session, "DELETE", "/-/limits/per-ip/state?key=::1"), 403);
    let own = redeem(&gateway, &fetch_as(&gateway, "limits", "POST", "/-/session", "").json()["code"]);
    assert_eq!(own["role"], "limits");
    let higher = fetch_as(&gateway, "limits", "POST", "/-/session", r#"{"role":"edit"}"#);
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
        assert_eq!(fetch_as(&gateway, "edit", "POST", "/-/session", body).status(), expected, "{body}");
    }
    assert_eq!(status(&gateway, &session, "POST", "/-/session"), 403, "a session does not prolong itself");
    assert_eq!(gateway.admin_request("POST", "/-/session", "", "").status(), 401);
    let audit = fetch_as(&gateway, "edit", "GET", "/-/audit", "").json();
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
    let session = redeem(&gateway, &fetch_as(&gateway, "edit", "POST", "/-/session", "{}").json()["code"]);
    assert_eq!(status(&gateway, &session, "GET", "/-/audit"), 200);
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.write_config(&config.replace(&secret("edit"), "another-token-for-editing"));
    wait_until("the token does not work", || fetch_as(&gateway, "edit", "GET", "/-/audit", "").status() != 200);
    let response = gateway.admin_request("GET", "/-/audit", &bearer(session["token"].as_str().unwrap()), "");
    assert_eq!((response.status(), &problem(&response)["type"]), (401, &json!("urn:sluicegate:problem:session-ended")));
}

#[test]
fn without_tokens_this_machine_opens_sessions() {
    let gateway = Gateway::start(LIMITS);
    let code = gateway.admin_request("POST", "/-/session", "", r#"{"role":"read"}"#).json()["code"].clone();
    let session = redeem(&gateway, &code);
    assert_eq!(status(&gateway, &session, "GET", "/-/status"), 200);
    assert_eq!(status(&gateway, &session, "POST", "/-/reload"), 403, "a session has its role here too");
    for fields in ["origin: http://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
        assert_eq!(gateway.admin_request("POST", "/-/session", fields, "").status(), 403, "{fields}");
        let code = json!({ "code": "x" }).to_string();
        assert_eq!(gateway.admin_request("POST", "/-/session", fields, code).status(), 403, "{fields}");
    }
    let rebound = "POST /-/session HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(crate::support::client::Client::connect(gateway.admin).fetch(rebound, "").status(), 403);
    // Once a token is set, sessions that were opened without one end.
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.write_config(&config.replace(LIMITS, &format!("{}{LIMITS}", tokens())));
    wait_until("a token is needed", || gateway.admin_request("GET", "/-/status", "", "").status() == 401);
    assert_eq!(status(&gateway, &session, "GET", "/-/status"), 401);
}
