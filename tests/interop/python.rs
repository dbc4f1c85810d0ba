//! Clients from PyPI: httpx, aiohttp, websockets and h2.

use super::site::Site;
use crate::support::app::run_script;

/// Runs a scenario of `python_clients.py`; `rest` as in `Site::start`.
#[track_caller]
fn scenario(name: &str, rest: &str) -> Site {
    let site = Site::start(rest);
    run_script("python_clients.py", &[name, &site.url(""), &site.ca_file()]);
    site
}

fn handshakes(site: &Site, count: f64) {
    site.gateway.assert_metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "full")], count);
}

#[test]
fn httpx_speaks_both_protocols() {
    // One connection for each of them.
    handshakes(&scenario("httpx_client", ""), 2.0);
}

#[test]
fn httpx_has_many_streams_on_one_connection() {
    handshakes(&scenario("httpx_streams", ""), 1.0);
}

#[test]
fn httpx_reads_events_one_by_one() {
    scenario("httpx_events", "");
}

#[test]
fn httpx_gets_the_wait_of_a_refusal() {
    scenario("httpx_limit", "limits = [\"two\"]\n[limit.two]\nrate = \"2/day\"\nkey = \"ip\"\n");
}

#[test]
fn httpx_reads_the_refusal_of_an_upload() {
    let limit = "limits = [\"one\"]\nmax_body = \"1GiB\"\n[limit.one]\nrate = \"1/day\"\nkey = \"all\"\n";
    scenario("httpx_refused_upload", limit);
}

#[test]
fn aiohttp_streams_both_ways_and_opens_a_websocket() {
    scenario("aiohttp_client", "");
}

#[test]
fn websockets_exchanges_messages_compresses_and_gets_the_close_code() {
    let site = scenario("websockets_client", "limits = [\"one\"]\n[limit.one]\nrate = \"1/day\"\nkey = \"ip\"\n");
    site.gateway.assert_metric("tunnels", &[], 0.0);
}

#[test]
fn h2_sees_windows_trailers_and_resets_as_they_are() {
    handshakes(&scenario("h2_client", ""), 1.0);
}
