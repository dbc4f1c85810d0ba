//! Metrics of limits over all routes, of the time in the gateway, and of the admin listener.

use std::time::Duration;

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const CONFIG: &str = r#"
[limit.per-ip]
rate = "1/h"
burst = 20
key = "ip"

[limit.monthly]
algorithm = "calendar"
rate = "100/month"
key = "all"
mode = "shadow"

[limit.unused]
rate = "5/s"
key = "ip"

[[route]]
path = "/a"
upstream = "echo:"
limits = ["per-ip", "monthly"]

[[route]]
path = "/b"
upstream = "echo:"
limits = ["per-ip"]
"#;

const LEFT: [&str; 6] = ["none", "10", "20", "25", "50", "all"];

#[test]
fn headroom_counts_the_units_that_decisions_left() {
    let redis = RedisServer::start(&[]);
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!("{store}{CONFIG}"));
        // On a busy machine, a page of metrics may be some requests old.
        let assert_headroom = |limit, expected: [Option<f64>; 6]| {
            let series = |left| gateway.metric("limit_headroom_total", &[("limit", limit), ("left", left)]);
            wait_until(&format!("{limit} left {expected:?}"), || LEFT.map(series) == expected);
        };
        for limit in ["per-ip", "monthly", "unused"] {
            assert_headroom(limit, [Some(0.0); 6]);
        }
        gateway.assert_metric("limit_quota", &[("limit", "per-ip")], 20.0);
        gateway.assert_metric("limit_window_seconds", &[("limit", "per-ip")], 72_000.0);
        gateway.assert_metric("limit_quota", &[("limit", "monthly")], 100.0);
        let month = gateway.metric("limit_window_seconds", &[("limit", "monthly")]).unwrap() / 86_400.0;
        assert!((28.0..=31.1).contains(&month), "{month}");
        gateway.assert_metric("limit_quota", &[("limit", "unused")], 5.0);
        gateway.assert_metric("limit_window_seconds", &[("limit", "unused")], 1.0);
        gateway.assert_metric("limit_keys_refused", &[("limit", "per-ip")], 0.0);

        let mut client = Client::connect(gateway.addr);
        for place in 0..23 {
            let status = client.fetch(&get(["/a", "/b"][place % 2], ""), "").status();
            assert_eq!(status, if place < 20 { 200 } else { 429 });
        }
        // 19 to 11 units left, 10 to 6, 5, 4 and 3, 2 and 1; then none left, and three refusals.
        assert_headroom("per-ip", [4.0, 2.0, 2.0, 1.0, 5.0, 9.0].map(Some));
        // The other route does not have this limit. It is in shadow mode, so refused requests charge it.
        assert_headroom("monthly", [0.0, 0.0, 0.0, 0.0, 0.0, 12.0].map(Some));
        wait_until("the refused keys are estimated", || {
            gateway.metric("limit_keys_refused", &[("limit", "per-ip")]) == Some(1.0)
        });

        gateway.reload_with("[limit.unused]\nrate = \"5/s\"\nkey = \"ip\"\n", "");
        gateway.reload_with("burst = 20", "burst = 40");
        wait_until("the metrics of the removed limit are gone", || !gateway.metrics().contains("limit=\"unused\""));
        gateway.assert_metric("limit_quota", &[("limit", "per-ip")], 40.0);
        assert_headroom("per-ip", [4.0, 2.0, 2.0, 1.0, 5.0, 9.0].map(Some));
        // Half of the new quota is left again.
        assert_eq!(client.fetch(&get("/b", ""), "").status(), 200);
        assert_headroom("per-ip", [4.0, 2.0, 2.0, 1.0, 6.0, 9.0].map(Some));
    }
}

#[test]
fn the_time_in_the_gateway_excludes_waiting() {
    let pause = Duration::from_millis(300);
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(pause);
            peer.send(ok("served"))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"queue\"]\n[limit.queue]\nalgorithm = \
         \"leaky_bucket\"\nrate = \"4/s\"\nqueue = \"10s\"\nkey = \"all\"\n",
        upstream.url()
    ));
    gateway.assert_metric("gateway_overhead_seconds_count", &[], 0.0);
    let started = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(gateway.get("/").status(), 200);
    }
    assert!(started.elapsed() >= 3 * pause);
    gateway.assert_metric("gateway_overhead_seconds_count", &[], 3.0);
    let sum = gateway.metric("gateway_overhead_seconds_sum", &[]).unwrap();
    assert!(sum > 0.0 && sum < 0.3, "{sum}");
    gateway.assert_metric("gateway_overhead_seconds_bucket", &[("le", "1")], 3.0);
}

#[test]
fn requests_to_the_admin_listener_are_counted_by_page() {
    let gateway = Gateway::start(CONFIG);
    let what_if = [("page", "/-/limits/NAME/what-if"), ("status", "200")];
    assert_eq!(gateway.metric("admin_requests_total", &what_if), Some(0.0));
    for place in 0..50 {
        gateway.admin(&format!("/-/limits/unknown-{place}"));
        gateway.admin(&format!("/unknown-{place}"));
    }
    gateway.admin("/-/status");
    for (page, status, requests) in [("/-/limits/NAME", "404", 50.0), ("_none", "404", 50.0), ("/-/status", "200", 1.0)]
    {
        gateway.assert_metric("admin_requests_total", &[("page", page), ("status", status)], requests);
    }
    assert!(!gateway.metrics().contains("unknown-"));
}
