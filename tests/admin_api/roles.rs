//! Tokens, their roles, and the requests that they do not allow.

use sha2::Digest;

use super::{LIMITS, ROLES, bearer, fetch_as, problem, secret, start, tokens};
use crate::support::gateway::Gateway;
use crate::support::wait_until;

/// Every operation of the API's description, with the role that it needs.
fn operations(gateway: &Gateway) -> Vec<(String, String, Option<String>)> {
    let document = fetch_as(gateway, "read", "GET", "/-/openapi.json", "").json();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let role = operation["x-role"].as_str().map(str::to_owned);
            found.push((method.to_ascii_uppercase(), path.replace("{name}", "per-ip"), role));
        }
    }
    found
}

#[test]
fn every_page_refuses_every_lower_role() {
    let gateway = start();
    let operations = operations(&gateway);
    let known: Vec<String> = operations.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let unknown = problem(&fetch_as(&gateway, "edit", "GET", "/nowhere", ""));
    let listed = unknown["detail"].as_str().unwrap().strip_prefix("there are ").unwrap().replace("NAME", "per-ip");
    let listed: Vec<&str> = listed.split(", ").collect();
    assert!(listed.len() >= 30 && listed.iter().all(|page| known.iter().any(|known| known == page)), "{listed:?}");
    for (method, path, needed) in &operations {
        let Some(needed) = needed else { continue };
        let place = ROLES.iter().position(|role| role == needed).unwrap();
        for (i, role) in ROLES.iter().enumerate() {
            // A stream of events would not end; a test of its page shows that it starts.
            if i >= place && matches!(path.as_str(), "/-/live" | "/-/tap") {
                continue;
            }
            let response = fetch_as(&gateway, role, method, path, "");
            if i >= place {
                assert!(!matches!(response.status(), 401 | 403), "{method} {path} {role}: {}", response.text());
                continue;
            }
            assert_eq!(response.status(), 403, "{method} {path} {role}: {}", response.text());
            let problem = problem(&response);
            assert_eq!(problem["type"], "urn:sluicegate:problem:role-too-low");
            assert_eq!((&problem["required_role"], &problem["token_role"]), (&needed.as_str().into(), &(*role).into()));
            let detail = format!("this needs the role `{needed}`; the token `{role}er` has the role `{role}`");
            assert_eq!(problem["detail"], detail);
        }
        for fields in ["", &bearer("edit-token-012345678"), "authorization: Basic ZWRpdDo=\r\n"] {
            let response = gateway.admin_request(method, path, fields, "");
            assert!(matches!(response.status(), 401 | 429), "{method} {path} {fields}: {}", response.status());
        }
    }
}

#[test]
fn every_page_needs_the_role_in_the_reference() {
    let text = std::fs::read_to_string("docs/reference/admin-api.md").unwrap();
    for (method, path, needed) in operations(&start()) {
        let page = format!("`{method} {}", path.replace("per-ip", "NAME"));
        let names_page = |line: &&str| [format!("{page}`"), format!("{page}?")].iter().any(|name| line.contains(name));
        let row = text.lines().filter(|line| line.starts_with("| `")).find(names_page);
        let row = row.unwrap_or_else(|| panic!("no row for {page}"));
        let role = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
        match needed {
            Some(needed) => assert!(role.starts_with(&format!("`{needed}`")), "{page} needs {needed}: {row}"),
            None => assert!(matches!(role, "none" | "any token"), "{page} needs no role: {row}"),
        }
    }
}

#[test]
fn tokens_are_rotated_while_both_work() {
    let gateway = start();
    let status = |token: &str| gateway.admin_request("POST", "/-/reload", &bearer(token), "").status();
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    assert_eq!(status("the-next-token-of-the-gateway"), 401);
    let digest = sha256("the-next-token-of-the-gateway");
    let both = format!("{config}\n[[admin.tokens]]\nname = \"next\"\nrole = \"edit\"\nsha256 = \"{digest}\"\n");
    gateway.write_config(&both);
    wait_until("the new token works", || status("the-next-token-of-the-gateway") == 200);
    assert_eq!(status(&secret("edit")), 200);
    let one = both.replace(&tokens(), "");
    gateway.write_config(&one);
    wait_until("the old token does not", || status(&secret("edit")) != 200);
    assert_eq!(status("the-next-token-of-the-gateway"), 200);
    // The digest itself is not accepted as a token.
    assert_ne!(status(&digest), 200);
}

fn sha256(text: &str) -> String {
    sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_expired_token_is_refused_with_its_reason() {
    let expired = format!(
        "[[admin.tokens]]\nname = \"gone\"\nrole = \"edit\"\ntoken = \"{}\"\nexpires = \"2020-01-31\"\n{LIMITS}",
        secret("gone")
    );
    let gateway = Gateway::start(&expired);
    assert!(gateway.log().contains("the token `gone` has expired"), "{}", gateway.log());
    let response = fetch_as(&gateway, "gone", "GET", "/-/status", "");
    assert_eq!((response.status(), response.get("www-authenticate")), (401, Some("Bearer")));
    let problem = problem(&response);
    assert_eq!(problem["type"], "urn:sluicegate:problem:token-expired");
    assert_eq!(problem["detail"], "the token `gone` expired at 2020-02-01T00:00:00Z; use another");
    // A list whose tokens have all expired does not open the gateway to everyone.
    assert_eq!(gateway.admin_request("POST", "/-/reload", "", "").status(), 401);
}

#[test]
fn wrong_tokens_are_bounded_and_right_ones_still_pass() {
    let gateway = start();
    // The last guesses look like tokens of sessions.
    let guess = |i: u32| if i < 10 { format!("guess-{i}") } else { format!("sgs_{i}") };
    let mut statuses = Vec::new();
    for i in 0..15 {
        let response = gateway.admin_request("GET", "/-/status", &bearer(&guess(i)), "");
        if response.status() == 429 {
            let wait: u64 = response.get("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&wait));
            assert_eq!(problem(&response)["type"], "urn:sluicegate:problem:too-many-attempts");
        }
        statuses.push(response.status());
    }
    assert_eq!(statuses, [[401; 10].as_slice(), &[429; 5]].concat());
    assert_eq!(fetch_as(&gateway, "read", "GET", "/-/status", "").status(), 200);
    // Without configured tokens there is nothing to guess.
    assert_eq!(gateway.admin_request("GET", "/-/status", "", "").status(), 401);
    let metrics = fetch_as(&gateway, "metrics", "GET", "/metrics", "").text();
    for (reason, count) in [("token_unknown", 10), ("too_many_attempts", 5), ("token_missing", 1), ("not_local", 0)] {
        let series = format!("sluicegate_admin_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&series), "{series} {metrics}");
    }
}

#[test]
fn a_body_needs_its_content_type() {
    let gateway = Gateway::start(LIMITS);
    let body = r#"{"operation":"peek","decisions":[{"limits":["per-ip"],"key":{"ip":"::1"}}]}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let response = gateway.admin_request("POST", "/-/decide", &format!("content-type: {kind}\r\n"), body);
        assert_eq!(response.status(), 415, "{kind}");
        assert_eq!(problem(&response)["type"], "urn:sluicegate:problem:wrong-content-type");
    }
    for kind in ["application/json", "application/json; charset=utf-8"] {
        let response = gateway.admin_request("POST", "/-/decide", &format!("content-type: {kind}\r\n"), body);
        assert_eq!(response.status(), 200, "{kind}");
    }
    assert_eq!(gateway.admin_request("POST", "/-/reload", "", "").status(), 200, "without a body, none is needed");
}

#[test]
fn secrets_appear_in_no_log_response_or_error() {
    let gateway = start();
    let shown = [
        fetch_as(&gateway, "edit", "GET", "/-/status", "").text(),
        fetch_as(&gateway, "edit", "GET", "/-/audit", "").text(),
        fetch_as(&gateway, "read", "POST", "/-/reload", "").text(),
        gateway.admin_request("POST", "/-/reload", &bearer(&format!("{}x", secret("edit"))), "").text(),
        gateway.log(),
        fetch_as(&gateway, "edit", "GET", "/-/audit", "").text(),
    ];
    for text in shown {
        assert!(!text.contains("0123456789"), "{text}");
    }
    let broken = std::fs::read_to_string(gateway.config()).unwrap().replace("\"edit-token", "\"edit token");
    let report = sluicegate::config::load_text("test", &broken).map(|_| ()).unwrap_err().to_string();
    assert!(report.contains("a header cannot contain"), "{report}");
}
