//! Warnings about forwarding headers that are ignored and about connections beyond a limit.

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::wait_until;

const PER_CLIENT: &str = "[[route]]\nupstream = \"echo:\"\nlimits = [\"per-ip\"]\n\n[limit.per-ip]\nrate = \"1/day\"\n";

/// The config line in the warning fixes the cause of the warning.
#[test]
fn an_untrusted_proxy_is_reported_once_with_the_config_line_to_add() {
    let gateway = Gateway::with("workers = 2\ntrusted_proxies = [\"10.0.0.0/8\"]", PER_CLIENT);
    let listener = "127.0.0.1:0";
    let of = |client: u8| format!("x-forwarded-proto: https\r\nX-Forwarded-For: 192.0.2.{client}\r\n");
    let fetch = |client| gateway.fetch(&get("/", &of(client))).status();
    assert_eq!([1, 2, 3].map(fetch), [200, 429, 429], "all clients share one key");
    let remedy = "trusted_proxies = [\"10.0.0.0/8\", \"127.0.0.1\"]";
    wait_until("the log has the line", || gateway.log_lines(&["WARN", "trusted_proxies", listener, "127.0.0.1"]) == 1);
    assert_eq!(gateway.log_lines(&[remedy]), 1, "{}", gateway.log());
    gateway.assert_metric("forwarding_ignored_total", &[("listener", listener)], 3.0);
    // A request id says nothing about the client.
    gateway.fetch(&get("/", "x-request-id: 1\r\n"));
    gateway.assert_metric("forwarding_ignored_total", &[("listener", listener)], 3.0);

    gateway.reload_with("trusted_proxies = [\"10.0.0.0/8\"]", remedy);
    assert_eq!([4, 5, 4].map(fetch), [200, 200, 429], "each client has its own key");
    gateway.assert_metric("forwarding_ignored_total", &[("listener", listener)], 3.0);
    assert_eq!(gateway.log_lines(&["ignoring forwarding headers"]), 1, "{}", gateway.log());
}

#[test]
fn connections_above_a_cap_are_in_the_log() {
    for (option, reason) in
        [("max_connections = 1", "max_connections"), ("max_connections_per_ip = 1", "max_connections_per_ip")]
    {
        let gateway = Gateway::with(option, PER_CLIENT);
        let mut first = gateway.client();
        assert_eq!(first.fetch(&get("/", ""), "").status(), 200);
        // An idle connection would close for the next one.
        first.send("GET");
        for _ in 0..5 {
            gateway.client().assert_closed();
        }
        gateway.assert_metric("http_rejected_total", &[("reason", reason)], 5.0);
        assert_eq!(gateway.log_lines(&["WARN", option, "is reached"]), 1, "{}", gateway.log());
    }
}
