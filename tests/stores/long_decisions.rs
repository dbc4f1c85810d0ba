//! No decision takes long: the largest cost that a client can state does not block the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

/// Concurrent requests of many users with the largest cost, while other requests use an exhausted limit. That limit has
/// refunds, so each of its decisions reaches the store.
#[test]
fn the_largest_cost_does_not_block_the_store_for_others() {
    let server = RedisServer::start(&[]);
    let wide = |name: &str, lines: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nrespond = {{ body = \"in\" }}\nlimits = [\"{name}\"]\n\
             [limit.{name}]\nkey = \"header:x-user\"\ncost = \"header:x-cost\"\n{lines}\n"
        )
    };
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"200ms\"\n\
         [[route]]\nname = \"spent\"\npath = \"/spent\"\nrespond = {{ body = \"in\" }}\nlimits = [\"spent\"]\n\
         [limit.spent]\nalgorithm = \"fixed_window\"\nrate = \"5/h\"\nkey = \"all\"\nrefund_on = [599]\n{}{}{}",
        server.url(),
        wide("list", "algorithm = \"sliding_log\"\nrate = \"100000/h\""),
        wide("set", "algorithm = \"sliding_log\"\nrate = \"100000/h\"\nstate = \"sorted_set\""),
        wide("leases", "algorithm = \"concurrency\"\nin_flight = 100000"),
    ));
    gateway.wait_for_store();
    let mut client = gateway.client();
    let mut fetch = || client.fetch(&get("/spent", ""), "").status();
    assert_eq!([(); 6].map(|()| fetch()), [200, 200, 200, 200, 200, 429]);

    for name in ["list", "set", "leases"] {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let attacks = [(); 60].map(|()| gateway.client());
                let attack = |(i, mut client): (usize, crate::support::client::Client)| {
                    client.send(get(&format!("/{name}"), &format!("x-user: {i}\r\nx-cost: 100000\r\n")));
                    client
                };
                let clients: Vec<_> = attacks.into_iter().enumerate().map(attack).collect();
                for mut client in clients {
                    assert_eq!(client.read_response("GET").status(), 200, "{name}");
                }
                std::thread::sleep(Duration::from_millis(100));
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                assert_eq!(fetch(), 429, "{name}: the exhausted limit admits");
            }
        });
    }
    for decision in ["local_allow", "local_deny"] {
        let labels = [("route", "spent"), ("limit", "spent"), ("decision", decision)];
        assert_eq!(gateway.metric("limit_decisions_total", &labels).unwrap_or(0.0), 0.0, "{decision}");
    }
    assert_eq!(gateway.metric("store_errors_total", &[("kind", "timeout")]).unwrap_or(0.0), 0.0);
}
