//! Requests that cost nothing until their response reports a cost (`cost = 0` with `settle`).

use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::upstream::Upstream;

/// A server whose responses report that they cost 40.
fn costly_server() -> Upstream {
    Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\nx-cost: 40\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    })
}

/// Every algorithm and kind of limit that settles, without `key` and `settle`.
const LIMITS: &[(&str, &str)] = &[
    ("bucket", "rate = \"100/day\"\ndebt = 1000\ncost = 0"),
    ("interval", "rate = \"100/day\"\ndebt = 1000\nrefill = \"interval\"\ncost = 0"),
    ("gcra", "algorithm = \"gcra\"\nrate = \"100/day\"\ncost = 0"),
    ("leaky", "algorithm = \"leaky_bucket\"\nrate = \"1/10min\"\nqueue = \"16h\"\nnodelay = true\ncost = 0"),
    ("fixed", "algorithm = \"fixed_window\"\nrate = \"100/day\"\ncost = 0"),
    ("calendar", "algorithm = \"calendar\"\nrate = \"100/month\"\ncost = 0"),
    ("log", "algorithm = \"sliding_log\"\nrate = \"100/day\"\ncost = 0"),
    ("window", "algorithm = \"sliding_window\"\nrate = \"100/day\"\ncost = 0"),
    ("strict", "algorithm = \"sliding_window\"\nrate = \"100/day\"\nprecision = 10\ncost = 0"),
    (
        "fair",
        "rate = \"100/day\"\nburst = 200\nfair = { key = \"header:x-tenant\", reserve = 100 }\nmissing = \"shared\"\ncost = 0",
    ),
    ("stated", "algorithm = \"fixed_window\"\nrate = \"100/day\"\ncost = \"header:x-estimate\""),
    ("reserved", "algorithm = \"fixed_window\"\nrate = \"100/day\"\ncost = { reserve = { default_add = 0 } }"),
    ("tiers", "algorithm = \"fixed_window\"\nrate = \"100/day\"\nkey = \"ip6tiers\"\ncost = 0"),
];

/// 40, 80, 120: then nothing is left, and the fourth request is refused until the budget has something again.
#[test]
fn a_request_that_costs_nothing_yet_needs_a_budget() {
    on_both_stores(|server| {
        let upstream = costly_server();
        let mut text = server.map_or_else(String::new, RedisServer::store);
        for (name, lines) in LIMITS {
            let key = if lines.contains("key = \"ip") { "" } else { "key = \"all\"\n" };
            text += &format!(
                "[[route]]\npath = \"/{name}\"\nupstream = \"{}\"\nlimits = [\"{name}\"]\n\
                 [limit.{name}]\n{key}{lines}\nsettle = \"header:x-cost\"\n",
                upstream.url()
            );
        }
        let gateway = Gateway::start(&text);
        if server.is_some() {
            gateway.wait_for_store();
        }
        std::thread::scope(|scope| {
            for (name, _) in LIMITS {
                let gateway = &gateway;
                scope.spawn(move || {
                    let ask = || {
                        let status = gateway.fetch(&get(&format!("/{name}"), "x-estimate: 0\r\n")).status();
                        // The correction follows the response.
                        std::thread::sleep(Duration::from_millis(100));
                        status
                    };
                    assert_eq!([ask(), ask(), ask(), ask(), ask()], [200, 200, 200, 429, 429], "{name}");
                });
            }
        });
    });
}
