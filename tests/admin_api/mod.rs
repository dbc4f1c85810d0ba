//! Access to the admin API: tokens with roles, wrong tokens, the audit log, sessions, and the API's description.

mod audit;
mod described;
mod openapi;
mod privacy;
mod roles;
mod sessions;

use serde_json::Value;

use crate::support::gateway::Gateway;
use crate::support::http::Message;

/// A token for each role, as `[[admin.tokens]]`. The token of a role is `ROLE-token-0123456789`.
fn tokens() -> String {
    let token = |role: &&str| {
        format!("[[admin.tokens]]\nname = \"{role}er\"\nrole = \"{role}\"\ntoken = \"{}\"\n", secret(role))
    };
    ROLES.iter().map(token).collect()
}

const ROLES: [&str; 5] = ["metrics", "read", "keys", "limits", "edit"];

const LIMITS: &str = r#"
[limit.per-ip]
rate = "1/h"
burst = 5
key = "ip"

[limit.user]
rate = "1/h"
burst = 5
key = "header:x-user"

[[route]]
name = "api"
path = "/"
upstream = "echo:"
limits = ["per-ip"]
"#;

fn secret(role: &str) -> String {
    format!("{role}-token-0123456789")
}

/// Starts a gateway with a token for each role, and an audit log in `audit.jsonl`.
fn start() -> Gateway {
    Gateway::start(&format!("metrics_need_token = true\nedit = true\naudit = \"audit.jsonl\"\n{}{LIMITS}", tokens()))
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

/// Sends a request with the token of a role.
fn fetch_as(gateway: &Gateway, role: &str, method: &str, path: &str, body: &str) -> Message {
    gateway.admin_request(method, path, &bearer(&secret(role)), body)
}

#[track_caller]
fn problem(response: &Message) -> Value {
    assert_eq!(response.get("content-type"), Some("application/problem+json"), "{}", response.text());
    response.json()
}
