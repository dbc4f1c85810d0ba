//! Prices: lists of limits set the cost of a shared budget, by method or by the status of the response too.

use std::process::Command;
use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const LISTS: &str = "
[[route]]
path = \"/light\"
upstream = \"echo:\"
limits = [\"credits\"]
[[route]]
path = \"/bulk\"
upstream = \"echo:\"
limits = [{ name = \"credits\", cost = 5 }]
[[route]]
path = \"/free\"
upstream = \"echo:\"
limits = [{ name = \"credits\", cost = 0 }]
[[route]]
path = \"/method\"
upstream = \"echo:\"
limits = [{ name = \"credits\", cost = { method = { GET = 1, POST = 4 } } }]
[[route]]
path = \"/stated\"
upstream = \"echo:\"
limits = [{ name = \"credits\", cost = \"header:x-cost\" }]
[[rls]]
domain = \"edge\"
descriptor = { path = \"/bulk\", remote_address = \"*\" }
limits = [{ name = \"credits\", cost = 5 }]
[[rls]]
domain = \"edge\"
descriptor = { path = \"/light\", remote_address = \"*\" }
limits = [\"credits\"]
[decide.bulk]
limits = [{ name = \"credits\", cost = 5 }]
[limit.credits]
algorithm = \"fixed_window\"
rate = \"10/h\"
cost = 2
";

fn remaining(gateway: &Gateway) -> i64 {
    let state = gateway.admin("/-/limits/credits/state?key=127.0.0.1").json();
    state["remaining"].as_i64().unwrap_or_else(|| panic!("{state}"))
}

#[test]
fn routes_set_the_price_of_a_shared_budget() {
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let cases = [
            (&[("GET", "/bulk"), ("GET", "/light"), ("GET", "/light")][..], 1),
            (&[("GET", "/bulk"), ("GET", "/bulk"), ("GET", "/free")], 0),
            (&[("GET", "/method"), ("POST", "/method"), ("PUT", "/method")], 1),
            (&[("GET", "/stated"), ("GET", "/bulk")], 4),
        ];
        for (index, (requests, left)) in cases.into_iter().enumerate() {
            // Each case has budgets of its own.
            let section = if redis.is_some() { "" } else { "[store]\n" };
            let prefix = format!("{section}prefix = \"case{index}\"\n");
            let gateway = Gateway::start(&format!("{store}{prefix}{LISTS}"));
            for (method, path) in requests {
                let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
                assert_eq!(gateway.fetch(&head).status(), 200, "{method} {path}");
            }
            assert_eq!(remaining(&gateway), left, "{requests:?}");
            // What costs more than is left is refused, and what costs less is not.
            assert_eq!(gateway.get("/bulk").status(), 429);
            let cheap = gateway.fetch(&get("/stated", "x-cost: 0\r\n"));
            assert_eq!((cheap.status(), remaining(&gateway)), (200, left));
        }
    });
}

/// Responds with the status that is the target.
fn start_scripted() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let status = request.target().trim_start_matches('/').to_owned();
            peer.send(format!("HTTP/1.1 {status} Some\r\ncontent-length: 0\r\n\r\n"))?;
        }
        Ok(())
    })
}

/// A response decides its price: what others cost is charged before, and corrected once the status is known.
#[test]
fn the_status_sets_the_price_after_the_response() {
    on_both_stores(|redis| {
        let upstream = start_scripted();
        let store = redis.map_or_else(String::new, RedisServer::store);
        let gateway = Gateway::start(&format!(
            "{store}[[route]]\nupstream = \"{}\"\nlimits = [{{ name = \"credits\", cost = {{ status = {{ 404 = 5, \"4xx\" = 3, \
             \"5xx\" = 0, default = 1 }} }} }}]\n[limit.credits]\nalgorithm = \"fixed_window\"\nrate = \"20/h\"\n",
            upstream.url()
        ));
        let mut left = 20;
        for (status, cost) in [(200, 1), (404, 5), (401, 3), (500, 0), (304, 1), (404, 5), (404, 5)] {
            assert_eq!(gateway.get(&format!("/{status}")).status(), status);
            left -= cost;
            wait_until(&format!("{left} left after {status}"), || remaining(&gateway) == left);
        }
        assert_eq!(gateway.get("/200").status(), 429);
    });
}

/// A list whose price depends on the response refunds units early, so no other list of the limit may refuse from memory.
#[test]
fn a_refund_by_one_list_ends_the_refusals_of_another() {
    let redis = RedisServer::start(&[]);
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(300));
            peer.send("HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"10s\"\n[[route]]\npath = \"/plain\"\nupstream = \"echo:\"\nlimits = [\"credits\"]\n\
         [[route]]\npath = \"/priced\"\nupstream = \"{}\"\nlimits = [{{ name = \"credits\", cost = {{ status = {{ 404 = 0, default = 1 \
         }} }} }}]\n[limit.credits]\nalgorithm = \"fixed_window\"\nrate = \"1/h\"\n",
        redis.url(),
        upstream.url()
    ));
    gateway.wait_for_store();
    std::thread::scope(|scope| {
        let priced = scope.spawn(|| gateway.get("/priced").status());
        wait_until("the unit is used", || remaining(&gateway) == 0);
        assert_eq!(gateway.get("/plain").status(), 429);
        assert_eq!(priced.join().unwrap(), 404);
    });
    wait_until("the unit is refunded", || remaining(&gateway) == 1);
    assert_eq!(gateway.get("/plain").status(), 200);
}

fn explain(config: &str, arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("sluicegate.toml"), config).unwrap();
    let mut command: Command = program();
    let output = command.current_dir(dir.path()).arg("explain").args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_door_has_the_price_of_its_list() {
    for (arguments, cost) in [
        (&["GET", "http://a/bulk"][..], "cost 5"),
        (&["GET", "http://a/light"], "cost 2"),
        (&["POST", "http://a/method"], "cost 4"),
        (&["--rls", "edge", "path=/bulk", "remote_address=192.0.2.1"], "cost 5"),
        (&["--rls", "edge", "path=/light", "remote_address=192.0.2.1"], "cost 2"),
        (&["--ext-authz", "bulk", "GET", "http://a/"], "cost 5"),
    ] {
        let text = explain(LISTS, arguments);
        assert!(text.contains(cost), "{arguments:?}\n{text}");
    }
    // Descriptors with one budget are charged the sum of their prices.
    let both =
        ["--rls", "edge", "path=/bulk", "remote_address=192.0.2.1", "+", "path=/light", "remote_address=192.0.2.1"];
    let text = explain(LISTS, &both);
    assert!(text.contains("cost 7"), "{text}");
}

#[test]
fn tiers_and_candidates_have_the_price_of_their_limit() {
    let config = "[[route]]\nupstream = \"echo:\"\nlimits = [{ name = \"a\", cost = 3 }]\n\
                  [limit.a]\nrate = \"10/h\"\nkey = \"ip6tiers\"\n[limit.b]\nrate = \"9/h\"\ncandidate_of = \"a\"\n";
    let text = explain(config, &["GET", "http://a/", "--from", "2001:db8::1"]);
    assert!(text.matches("cost 3").count() >= 3, "{text}");
}
