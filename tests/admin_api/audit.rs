//! The audit log: its lines, its bounds, rotation, and a full disk.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{LIMITS, bearer, fetch_as, secret, start};
use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::wait_until;

/// The lines of the file, at least `count` of them.
fn lines(gateway: &Gateway, file: &str, count: usize) -> Vec<Value> {
    let read = || fs::read_to_string(gateway.dir.path().join(file)).unwrap_or_default();
    wait_until("the lines are written", || read().lines().count() >= count);
    read().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn changes_and_refused_requests_have_a_line() {
    let gateway = start();
    let id = |response: &crate::support::http::Message| response.get("x-request-id").unwrap().to_owned();
    let reset = fetch_as(&gateway, "limits", "DELETE", "/-/limits/user/state?key=top-secret-user", "");
    assert_eq!(reset.status(), 200, "{}", reset.text());
    let body = r#"{"key":{"ip":"203.0.113.7"},"cost":2}"#;
    let refund = fetch_as(&gateway, "edit", "POST", "/-/limits/per-ip/refund", body);
    let refused = fetch_as(&gateway, "read", "POST", "/-/reload", "");
    let changed = fs::read_to_string(gateway.config()).unwrap().replace("burst = 5", "burst = 6");
    fs::write(gateway.config(), &changed).unwrap();
    let reload = fetch_as(&gateway, "edit", "POST", "/-/reload", "");
    let guess = gateway.admin_request("GET", "/-/status?token=secret", &bearer("guess"), "");
    // Requests that change nothing have no line.
    fetch_as(&gateway, "read", "GET", "/-/status", "");
    let take = r#"{"operation":"take","decisions":[{"limits":["per-ip"],"key":{"ip":"::1"}}]}"#;
    assert_eq!(fetch_as(&gateway, "limits", "POST", "/-/decide", take).status(), 200);
    let lines = lines(&gateway, "audit.jsonl", 5);
    let shown = fetch_as(&gateway, "edit", "GET", "/-/audit", "").json();
    let reversed: Vec<Value> = lines.iter().rev().cloned().collect();
    assert_eq!((&shown["entries"], &shown["lines_lost"]), (&json!(reversed), &json!(0)));
    let expect = |line: &Value, members: Value| {
        for (name, value) in members.as_object().unwrap() {
            assert_eq!(&line[name], value, "{name} of {line}");
        }
    };
    assert_eq!(lines.len(), 5, "{lines:#?}");
    expect(
        &lines[0],
        json!({ "token": "limitser", "role": "limits", "peer": "127.0.0.1", "method": "DELETE", "status": 200,
                "path": "/-/limits/user/state", "limit": "user", "generation_before": 1, "generation_after": 1,
                "change": "nothing to reset", "request_id": id(&reset) }),
    );
    assert!(lines[0]["key"].as_str().unwrap().starts_with("header:x-user#"), "{}", lines[0]);
    expect(
        &lines[1],
        json!({ "token": "editer", "limit": "per-ip", "key": "ip=203.0.113.7", "change": "nothing refunded",
                "request_id": id(&refund) }),
    );
    expect(
        &lines[2],
        json!({ "token": "reader", "role": "read", "status": 403, "problem": "role-too-low", "path": "/-/reload",
                "change": null, "request_id": id(&refused) }),
    );
    expect(&lines[3], json!({ "status": 200, "generation_before": 1, "request_id": id(&reload) }));
    assert!(lines[3]["change"].is_string(), "{}", lines[3]);
    expect(
        &lines[4],
        json!({ "token": null, "role": null, "status": 401, "problem": "token-unknown", "path": "/-/status",
                "request_id": id(&guess) }),
    );
    let text = fs::read_to_string(gateway.dir.path().join("audit.jsonl")).unwrap();
    assert!(!text.contains("secret") && !text.contains("0123456789"), "{text}");
}

#[test]
fn an_attacker_fills_neither_the_disk_nor_a_terminal() {
    let gateway = start();
    let path = format!("/-/limits/{}/state", "%1b[2J\"\\".replace('\\', "%5c").repeat(1000));
    for i in 0..50 {
        let response = gateway.admin_request("DELETE", &path, &bearer(&format!("guess-{i}")), "");
        assert!(matches!(response.status(), 400 | 401 | 429), "{}", response.status());
        gateway.admin_request("POST", "/-/session", "", "{\"code\":\"x\"}");
    }
    let lines = lines(&gateway, "audit.jsonl", 10);
    assert_eq!(lines.len(), 10);
    let text = fs::read_to_string(gateway.dir.path().join("audit.jsonl")).unwrap();
    assert!(text.lines().all(|line| line.len() < 4096 && line.bytes().all(|byte| (b' '..=b'~').contains(&byte))));
    // A later line, at the latest one at the end of the gateway, counts the lines that were left out.
    let mut gateway = gateway;
    gateway.signal("TERM");
    gateway.exit();
    let text = fs::read_to_string(gateway.dir.path().join("audit.jsonl")).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["peer"], &last["count"]), (&json!("127.0.0.1"), &json!(90)), "{last}");
}

#[test]
fn a_token_fills_neither_the_disk_nor_the_list() {
    let gateway = start();
    assert_eq!(fetch_as(&gateway, "edit", "POST", "/-/reload", "").status(), 200);
    for _ in 0..15 {
        assert_eq!(fetch_as(&gateway, "metrics", "POST", "/-/session", "").status(), 200);
        assert_eq!(fetch_as(&gateway, "limits", "POST", "/-/limits/gone/refund", "").status(), 404);
    }
    for _ in 0..110 {
        let reset = fetch_as(&gateway, "limits", "DELETE", "/-/limits/user/state?key=a", "");
        assert_eq!(reset.status(), 200);
    }
    let written = lines(&gateway, "audit.jsonl", 131);
    assert_eq!(written.len(), 131, "1 reload, 10 sessions, 10 failures, 110 changes");
    let shown = fetch_as(&gateway, "edit", "GET", "/-/audit", "").json();
    let entries = shown["entries"].as_array().unwrap();
    assert_eq!((entries.len(), &entries[70]["path"]), (71, &json!("/-/reload")), "the reload is still listed");
    let mut gateway = gateway;
    gateway.signal("TERM");
    gateway.exit();
    let sums: Vec<Value> = lines(&gateway, "audit.jsonl", 133).split_off(131);
    let sum = |token: &str| sums.iter().find(|line| line["token"] == token).map(|line| line["count"].clone());
    assert_eq!((sums.len(), sum("metricser"), sum("limitser")), (2, Some(json!(5)), Some(json!(5))), "{sums:?}");
}

#[test]
fn a_client_that_leaves_hides_no_change() {
    let gateway = start();
    // The body is incomplete, so the gateway waits for the rest.
    let mut client = Client::connect(gateway.admin);
    client.send(format!(
        "POST /-/limits/per-ip/refund HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100\r\n{}\r\n{{",
        bearer(&secret("limits"))
    ));
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(client);
    let line = lines(&gateway, "audit.jsonl", 1).remove(0);
    assert_eq!((&line["token"], &line["path"]), (&json!("limitser"), &json!("/-/limits/per-ip/refund")));
    assert!(line["status"] == 499 || line["status"] == 400, "{line}");
}

#[test]
fn the_file_is_rotated_and_created_again() {
    let gateway = start();
    let reset = || fetch_as(&gateway, "limits", "DELETE", "/-/limits/per-ip/state?key=::1", "").status();
    assert_eq!(reset(), 200);
    lines(&gateway, "audit.jsonl", 1);
    let file = |name: &str| gateway.dir.path().join(name);
    fs::rename(file("audit.jsonl"), file("audit.1")).unwrap();
    gateway.signal("USR1");
    wait_until("the file is there again", || file("audit.jsonl").exists());
    assert_eq!(reset(), 200);
    lines(&gateway, "audit.jsonl", 1);
    assert_eq!(lines(&gateway, "audit.1", 1).len(), 1);
}

#[test]
fn a_full_disk_stops_no_change_and_is_counted() {
    let gateway = Gateway::start(&format!("audit = \"/dev/full\"\n{LIMITS}"));
    let response = gateway.admin_request("DELETE", "/-/limits/per-ip/state?key=::1", "", "");
    assert_eq!(response.status(), 200);
    gateway.assert_metric("admin_audit_lines_lost_total", &[], 1.0);
    wait_until("the loss is logged", || gateway.log().contains("cannot write the audit log: lines are lost"));
    let shown = gateway.admin("/-/audit").json();
    assert_eq!((&shown["entries"][0]["change"], &shown["lines_lost"]), (&json!("nothing to reset"), &json!(1)));
    assert_eq!(shown["entries"][0]["token"], Value::Null);
    assert_eq!(shown["entries"][0]["role"], "edit", "a client on this machine without a token");
}

#[test]
fn a_request_cut_off_in_its_head_has_no_line() {
    let gateway = start();
    let mut stream = TcpStream::connect(gateway.admin).unwrap();
    stream.write_all(b"DELETE /-/limits/per-ip/state HTTP/1.1\r\nhost: a\r\n").unwrap();
    drop(stream);
    assert_eq!(fetch_as(&gateway, "edit", "GET", "/-/audit", "").json()["entries"], json!([]));
}
