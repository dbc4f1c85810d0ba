//! grpcio, gRPC's own library for Python, on both sides of the gateway: without TLS by prior knowledge, and over TLS. Over
//! HTTP/3, a script on aioquic is the client.

use super::site::{ca_file, route, secured, secured_with};
use crate::support::app::{App, run_script};
use crate::support::gateway::Gateway;
use crate::support::ports;

const SERVER: &str = "grpc_server.py";
const CLIENT: &str = "grpc_client.py";

fn in_front_of(app: &App, rest: &str) -> Gateway {
    Gateway::start(&route(&format!("h2c://{}", app.addr), rest))
}

#[track_caller]
fn scenario(name: &str, gateway: &Gateway) {
    run_script(CLIENT, &[name, &gateway.addr.to_string()]);
}

#[test]
fn every_kind_of_call_arrives_with_its_metadata_and_status() {
    let app = App::script(SERVER);
    let gateway = in_front_of(&app, "");
    scenario("calls", &gateway);
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "ok")], 49.0);
    let secured = secured(&route(&format!("h2c://{}", app.addr), ""));
    run_script(CLIENT, &["calls", &secured.addr.to_string(), &ca_file(&secured)]);
    secured.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "ok")], 49.0);
}

#[test]
fn calls_pass_over_http3() {
    let app = App::script(SERVER);
    let server = format!("h2c://{}", app.addr);
    let run = |scenarios: &[&str], rest: &str| {
        let (gateway, _) = secured_with("http3 = true\n", &route(&server, rest));
        for name in scenarios {
            run_script("grpc_http3_client.py", &[name, &gateway.addr.to_string(), &ca_file(&gateway)]);
        }
        gateway
    };
    let gateway = run(&["calls", "chat"], "");
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "ok")], 48.0);
    run(&["leave"], "");
    let gateway = run(&["limited"], "limits = [\"two\"]\n[limit.two]\nrate = \"2/day\"\nkey = \"ip\"\n");
    gateway.assert_metric("rejections_total", &[("route", "app"), ("limit", "two"), ("reason", "exhausted")], 2.0);
}

#[test]
fn a_message_is_answered_before_the_next_is_sent() {
    let app = App::script(SERVER);
    scenario("chat", &in_front_of(&app, ""));
}

#[test]
fn a_client_stream_may_pause_for_longer_than_a_body() {
    let app = App::script(SERVER);
    scenario("pauses", &in_front_of(&app, "body_timeout = \"300ms\"\nmin_body_rate = 1000\n"));
}

#[test]
fn a_call_that_ends_at_the_client_ends_at_the_server() {
    let app = App::script(SERVER);
    let gateway = in_front_of(&app, "");
    scenario("leave", &gateway);
    scenario("deadline", &gateway);
}

#[test]
fn refusals_are_statuses_that_the_library_knows() {
    let app = App::script(SERVER);
    let denied = "[[route]]\nname = \"denied\"\npath = \"/denied.App/\"\nupstream = \"app\"\ndeny = [\"127.0.0.1\"]\n";
    let limit = format!("limits = [\"two\"]\n{denied}[limit.two]\nrate = \"2/day\"\nkey = \"ip\"\n");
    let gateway = in_front_of(&app, &limit);
    scenario("limited", &gateway);
    gateway.assert_metric("rejections_total", &[("route", "app"), ("limit", "two"), ("reason", "exhausted")], 2.0);
    scenario("away", &Gateway::start(&route(&format!("h2c://{}", ports::closed_addr()), "")));
}
