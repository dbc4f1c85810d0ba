//! Charges that depend on the outcome of the request, on both stores.

use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Responds as the target says: `/401` with that status, `/cost/7` with that true cost, `/hang`
/// never.
fn scripted() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let target = request.target().to_owned();
            if target == "/hang" {
                return peer.wait_for_end();
            }
            let response = match target.strip_prefix("/cost/") {
                Some(cost) => format!("HTTP/1.1 200 OK\r\nx-actual-cost: {cost}\r\ncontent-length: 0\r\n\r\n"),
                None => match target.trim_start_matches('/').parse::<u16>() {
                    Ok(status) => format!("HTTP/1.1 {status} Some\r\ncontent-length: 0\r\n\r\n"),
                    Err(_) => ok("in"),
                },
            };
            peer.send(response)?;
        }
        Ok(())
    })
}

/// 10 tokens that are refilled within hours; requests state their cost.
fn limited(store: &str, to: &str, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "{store}\n[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{to}\"\nlimits = [\"ten\"]\n\n\
         [limit.ten]\nrate = \"10/10h\"\nkey = \"all\"\ncost = \"header:x-cost\"\n{limit}\n"
    ))
}

/// Returns the remaining units without a charge. The request is neither refused nor counted.
fn left(gateway: &Gateway) -> i64 {
    let response = gateway.fetch(&get("/probe", "x-cost: 0\r\n"));
    let field = response.get("ratelimit").unwrap_or_else(|| panic!("no quota:\n{}", response.head)).to_owned();
    let rest = field.split(";r=").nth(1).unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

#[track_caller]
fn assert_left(gateway: &Gateway, expected: i64) {
    wait_until(&format!("{expected} left"), || left(gateway) == expected);
}

/// Runs `test` with the `[store]` section of each store.
fn on_both_stores(test: impl Fn(&str)) {
    test("");
    let server = RedisServer::start(&[]);
    test(&server.store());
}

#[test]
fn only_failed_logins_count() {
    let upstream = scripted();
    on_both_stores(|store| {
        let gateway = limited(store, &upstream.url(), "charge_on = [401, 403]");
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        let fetch = |target: &str, cost: i64| gateway.fetch(&get(target, &format!("x-cost: {cost}\r\n"))).status();
        for _ in 0..12 {
            assert_eq!(fetch("/200", 2), 200);
        }
        assert_left(&gateway, 10);
        assert_eq!((fetch("/401", 4), fetch("/403", 5), fetch("/500", 1)), (401, 403, 500));
        assert_left(&gateway, 1);
        // A client that does not wait for the response hides no attempt.
        let mut client = gateway.client();
        client.send(get("/hang", "x-cost: 1\r\n"));
        wait_until("the attempt is made", || upstream.requests().iter().any(|request| request.target() == "/hang"));
        drop(client);
        gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
        assert_eq!(left(&gateway), 0);
        assert_eq!(fetch("/200", 1), 429);
    });
}

#[test]
fn configured_outcomes_are_refunded() {
    let upstream = scripted();
    on_both_stores(|store| {
        let gateway =
            limited(store, &upstream.url(), "refund_on = [\"5xx\", \"connect_error\", \"client_abort\", 404]");
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        let fetch = |target: &str| gateway.fetch(&get(target, "x-cost: 3\r\n")).status();
        for target in ["/404", "/500", "/503", "/404", "/599"] {
            fetch(target);
            assert_left(&gateway, 10);
        }
        assert_eq!((fetch("/200"), fetch("/403")), (200, 403));
        assert_left(&gateway, 4);

        let mut client = gateway.client();
        client.send(get("/hang", "x-cost: 3\r\n"));
        wait_until("the charge", || left(&gateway) == 1);
        drop(client);
        assert_left(&gateway, 4);
    });
}

#[test]
fn an_upstream_that_nobody_reaches_costs_nothing() {
    on_both_stores(|store| {
        let gateway = limited(store, &format!("http://{}", closed_addr()), "refund_on = [\"connect_error\"]");
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        for _ in 0..8 {
            assert_eq!(gateway.fetch(&get("/", "x-cost: 9\r\n")).status(), 502);
            assert_left(&gateway, 10);
        }
    });
}

#[test]
fn responses_of_the_gateway_itself_count_likewise() {
    let gateway = Gateway::start(
        r#"
        [[route]]
        path = "/"
        respond = { status = 404, body = "gone" }
        limits = ["two"]

        [[route]]
        path = "/echo"
        upstream = "echo:"
        limits = ["two"]

        [limit.two]
        rate = "2/h"
        key = "all"
        refund_on = [404]
        "#,
    );
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status(), 404);
    }
    assert_eq!([0; 3].map(|_| gateway.get("/echo").status()), [200, 200, 429]);
}

#[test]
fn the_true_cost_is_settled() {
    let upstream = scripted();
    on_both_stores(|store| {
        let gateway = limited(store, &upstream.url(), "settle = \"header:x-actual-cost\"\ndebt = 20");
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        let fetch = |target: &str, cost: i64| gateway.fetch(&get(target, &format!("x-cost: {cost}\r\n")));
        let response = fetch("/cost/7", 2);
        assert_eq!((response.status(), response.get("x-actual-cost")), (200, Some("7")));
        assert_left(&gateway, 3);
        fetch("/cost/1", 3);
        assert_left(&gateway, 2);
        fetch("/cost/nonsense", 1);
        assert_left(&gateway, 1);
        // Settled into the largest debt, which takes hours to be repaid.
        fetch("/cost/1000000", 1);
        wait_until("the debt", || fetch("/200", 1).status() == 429);
        let wait: i64 = fetch("/200", 1).get("retry-after").unwrap().parse().unwrap();
        assert!((20 * 3600 - 60..=21 * 3600).contains(&wait), "{wait} s");
    });
}

#[test]
fn a_local_charge_is_refunded_locally() {
    let upstream = scripted();
    let mut server = RedisServer::start(&[]);
    let gateway = limited(&server.store(), &upstream.url(), "refund_on = [\"5xx\"]");
    gateway.wait_for_store();
    server.kill();
    wait_until("the store is unavailable", || gateway.metric("store_up", &[]) == Some(0.0));
    for _ in 0..4 {
        assert_eq!(gateway.fetch(&get("/500", "x-cost: 6\r\n")).status(), 500);
    }
    assert_left(&gateway, 10);
    assert_eq!(gateway.fetch(&get("/200", "x-cost: 6\r\n")).status(), 200);
    assert_eq!(gateway.fetch(&get("/200", "x-cost: 6\r\n")).status(), 429);
    let local = [("route", "app"), ("limit", "ten"), ("decision", "local_deny")];
    gateway.assert_metric("limit_decisions_total", &local, 1.0);
}

#[test]
fn impossible_refunds_are_not_retried() {
    let upstream = scripted();
    let server = RedisServer::start(&[]);
    let gateway = limited(&server.store().replace("10s", "500ms"), &upstream.url(), "refund_on = [\"client_abort\"]");
    gateway.wait_for_store();
    let mut client = gateway.client();
    client.send(get("/hang", "x-cost: 3\r\n"));
    wait_until("the charge", || left(&gateway) == 7);
    server.signal("STOP");
    drop(client);
    gateway.assert_metric("store_errors_total", &[("kind", "timeout")], 1.0);
    server.signal("CONT");
    wait_until("the store responds", || gateway.metric("store_up", &[]) == Some(1.0));
    std::thread::sleep(Duration::from_millis(200));
    // The call may have been executed once.
    let after = left(&gateway);
    assert!(after == 7 || after == 10, "{after} left");
}

#[test]
fn a_gateway_that_ends_settles_its_last_requests() {
    let upstream = scripted();
    let server = RedisServer::start(&[]);
    let config = |gateway: &str| format!("{}\n{gateway}", server.store());
    let limit = "refund_on = [\"5xx\"]";
    let mut ending = limited(&config(""), &upstream.url(), limit);
    ending.wait_for_store();
    let mut client = ending.client();
    assert_eq!(client.fetch(&get("/500", "x-cost: 3\r\n"), "").status(), 500);
    ending.signal("TERM");
    assert!(ending.exit().success());
    let next = limited(&config(""), &upstream.url(), limit);
    next.wait_for_store();
    assert_left(&next, 10);
}

#[test]
fn a_gateway_that_cuts_requests_ends_all_the_same() {
    let upstream = scripted();
    let server = RedisServer::start(&[]);
    let mut gateway = Gateway::with(
        "shutdown_timeout = \"200ms\"",
        &format!(
            "{}\n[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"ten\"]\n\n\
             [limit.ten]\nrate = \"10/h\"\nkey = \"all\"\nrefund_on = [\"client_abort\"]\n",
            server.store(),
            upstream.url()
        ),
    );
    gateway.wait_for_store();
    let mut client = gateway.client();
    client.send(get("/hang", ""));
    upstream.request();
    gateway.signal("TERM");
    let status = gateway.exit();
    assert!(status.code().is_some(), "{status}");
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}
