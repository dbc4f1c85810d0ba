//! The manual is correct: its configs load, its commands print what is shown, and its numbers are those of the running
//! program.

mod algorithm_sections;
mod attackers;
mod behind_proxy;
mod book;
mod examples;
mod koala;
mod limit_pages;
mod pages;
mod recipes;
mod reference;
mod rollout;
mod routing;
mod tls;
mod under_attack;

use serde_json::Value;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::manual::Page;

/// The page on all algorithms, with the configs of the page on `concurrency`.
fn algorithms() -> Page {
    let mut page = Page::read("docs/reference/algorithms.md");
    page.parts.extend(Page::read("docs/reference/concurrency.md").parts);
    page
}

/// Returns how many of `count` equal requests are admitted.
fn admitted(gateway: &Gateway, count: usize, target: &str, fields: &str) -> usize {
    let mut client = gateway.client();
    let statuses = (0..count).map(|_| client.fetch(&get(target, fields), "").status());
    statuses.filter(|status| *status == 200).count()
}

/// A call of the admin listener.
fn post(gateway: &Gateway, path: &str, body: &Value) -> Message {
    gateway.admin_request("POST", path, "", if body.is_null() { String::new() } else { body.to_string() })
}

/// A limit's count and the milliseconds for it.
fn policy(gateway: &Gateway, limit: &str) -> [i64; 2] {
    let policy = &gateway.admin(&format!("/-/limits/{limit}")).json()["policy"];
    ["quota", "window_ms"].map(|number| policy[number].as_i64().unwrap())
}

/// The state of a key.
fn state(gateway: &Gateway, limit: &str, query: &str) -> Value {
    gateway.admin(&format!("/-/limits/{limit}/state?{query}")).json()
}
