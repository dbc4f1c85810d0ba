//! Node's clients: http2, https with an agent that keeps connections, and ws.

use super::site::Site;
use crate::support::app::run_script;

const TWO: &str = "limits = [\"two\"]\n[limit.two]\nrate = \"2/day\"\nkey = \"ip\"\n";

/// Runs a scenario of `node_clients.js`, which makes one connection; `rest` as in `Site::start`.
#[track_caller]
fn scenario(name: &str, rest: &str) {
    let site = Site::start(rest);
    run_script("node_clients.js", &[name, &site.url(""), &site.ca_file()]);
    site.gateway.assert_metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "full")], 1.0);
}

#[test]
fn many_streams_uploads_trailers_and_a_cancel_on_one_session() {
    scenario("http2", "request_trailers = true\n");
}

#[test]
fn events_come_one_by_one() {
    scenario("events", "");
}

#[test]
fn a_session_continues_after_a_refusal() {
    scenario("limited", TWO);
}

#[test]
fn an_agent_keeps_its_connection_through_refusals() {
    scenario("agent", TWO);
}

#[test]
fn a_websocket_talks_and_ends_with_its_code() {
    scenario("websocket", "");
}
