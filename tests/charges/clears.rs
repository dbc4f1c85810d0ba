//! Responses that reset the key of a limit (`clear_on`), on both stores: what clears, what does not, and who tries.

use std::thread::sleep;
use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Five failures per account and hour; a success clears them.
const FAILURES: &str = "[limit.failures]\nalgorithm = \"sliding_log\"\nrate = \"5/h\"\nkey = \"header:x-user\"\n\
    charge_on = [401]\nclear_on = [200, \"3xx\"]\n";

/// Responds with the status that the target names.
fn scripted() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let response = match request.target().trim_start_matches('/').parse::<u16>() {
                Ok(status) => format!("HTTP/1.1 {status} Some\r\ncontent-length: 0\r\n\r\n"),
                Err(_) => ok("in"),
            };
            peer.send(response)?;
        }
        Ok(())
    })
}

fn start(store: &str, to: &str, limit: &str) -> Gateway {
    let down =
        format!("[[route]]\npath = \"/down\"\nupstream = \"http://{}\"\nlimits = [\"failures\"]\n", closed_addr());
    let gateway = Gateway::start(&format!(
        "{store}[[route]]\npath = \"/\"\nupstream = \"{to}\"\nlimits = [\"failures\"]\n{down}{limit}"
    ));
    if !store.is_empty() {
        gateway.wait_for_store();
    }
    gateway
}

fn log_in(gateway: &Gateway, user: &str, target: &str) -> u16 {
    gateway.fetch(&get(target, &format!("x-user: {user}\r\n"))).status()
}

#[track_caller]
fn assert_left(gateway: &Gateway, user: &str, expected: i64) {
    wait_until(&format!("{expected} left to {user}"), || {
        gateway.admin(&format!("/-/limits/failures/state?key={user}")).json()["remaining"].as_i64() == Some(expected)
    });
}

#[test]
fn a_success_clears_the_failures_of_its_own_key() {
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let app = scripted();
        let gateway = start(&store, &app.url(), FAILURES);
        for user in ["anna", "bert"] {
            (0..4).for_each(|_| assert_eq!(log_in(&gateway, user, "/401"), 401));
            assert_left(&gateway, user, 1);
        }
        assert_eq!(log_in(&gateway, "anna", "/200"), 200);
        assert_left(&gateway, "anna", 5);
        assert_left(&gateway, "bert", 1);
        // A class clears, too; another status is only refunded.
        assert_eq!(log_in(&gateway, "bert", "/500"), 500);
        assert_left(&gateway, "bert", 1);
        assert_eq!(log_in(&gateway, "bert", "/302"), 302);
        assert_left(&gateway, "bert", 5);
    });
}

/// The gateway's own responses say nothing about the account, whatever their status.
#[test]
fn only_a_server_clears() {
    let limit = FAILURES
        .replace("clear_on = [200, \"3xx\"]", "clear_on = [\"2xx\", \"5xx\"]")
        .replace("charge_on = [401]", "charge_on = [401, 502]");
    let app = scripted();
    let gateway = start("", &app.url(), &limit);
    assert_eq!(log_in(&gateway, "anna", "/401"), 401);
    assert_eq!(log_in(&gateway, "anna", "/down"), 502);
    assert_left(&gateway, "anna", 3);
    (0..3).for_each(|_| assert_eq!(log_in(&gateway, "anna", "/401"), 401));
    assert_eq!(log_in(&gateway, "anna", "/200"), 429, "exhausted: the server is not asked");
    assert_left(&gateway, "anna", 0);
}

/// An attacker with an account of his own clears what his address has failed at, but no ban.
#[test]
fn a_success_lifts_no_ban() {
    let ban = "ban = { after = 2, within = \"1m\", for = \"1h\" }\n";
    let slow = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/slow" {
                sleep(Duration::from_millis(500));
            }
            let status = if request.target() == "/401" { 401 } else { 200 };
            peer.send(format!("HTTP/1.1 {status} Some\r\ncontent-length: 0\r\n\r\n"))?;
        }
        Ok(())
    });
    let gateway = start("", &slow.url(), &format!("{FAILURES}{ban}"));
    std::thread::scope(|scope| {
        let success = scope.spawn(|| log_in(&gateway, "anna", "/slow"));
        sleep(Duration::from_millis(100));
        let guesses: Vec<u16> = (0..7).map(|_| log_in(&gateway, "anna", "/401")).collect();
        assert_eq!(guesses, [401, 401, 401, 401, 429, 429, 429]);
        assert_eq!(success.join().unwrap(), 200);
    });
    let state = || gateway.admin("/-/limits/failures/state?key=anna").json();
    wait_until("the failures are cleared", || state()["reset_ms"] == 0);
    assert_eq!((log_in(&gateway, "anna", "/200"), state()["reason"].as_str()), (429, Some("banned")));
}
