//! A Redis that rejects the login: the gateway logs the server's own words.

use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

fn gateway(url: &str) -> Gateway {
    let rest =
        "[[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nrate = \"100/s\"\non_error = \"closed\"\n";
    Gateway::start(&format!("[store]\nurl = \"{url}\"\ndeadline = \"5s\"\n{rest}"))
}

fn with_password(server: &RedisServer, password: &str) -> String {
    server.url().replace("redis://", &format!("redis://:{password}@"))
}

#[test]
fn a_server_that_wants_a_password_does_not_respond() {
    let server = RedisServer::start(&["--requirepass", "right"]);
    for (url, words) in [(server.url(), "NOAUTH"), (with_password(&server, "wrong"), "WRONGPASS")] {
        let gateway = gateway(&url);
        wait_until("the log has the line", || gateway.log().contains("the limit store is unavailable"));
        let log = gateway.log();
        assert!(log.contains(words) && !log.contains("the limit store is available"), "{log}");
        assert!(!log.contains("wrong"), "no password: {log}");
        assert_eq!(gateway.metric("store_up", &[]), Some(0.0));
        assert_eq!(gateway.get("/").status(), 503);
        assert_eq!(gateway.admin("/readyz").status(), 200, "readiness does not depend on the store");
    }
}

#[test]
fn a_changed_password_is_reported_even_after_the_connection_broke() {
    let server = RedisServer::start(&["--requirepass", "right"]);
    let gateway = gateway(&with_password(&server, "right"));
    gateway.wait_for_store();
    assert_eq!(gateway.get("/").status(), 200);
    let mut admin = redis::Client::open(with_password(&server, "right")).unwrap().get_connection().unwrap();
    let mut tell = |args: &[&str]| redis::cmd(args[0]).arg(&args[1..]).query::<redis::Value>(&mut admin).unwrap();
    tell(&["CONFIG", "SET", "requirepass", "changed"]);
    tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    wait_until("the log contains the message of the server", || gateway.log().contains("WRONGPASS"));
    tell(&["CONFIG", "SET", "requirepass", "right"]);
    let responses = || gateway.log().matches("the limit store is available").count();
    wait_until("the store responds again", || responses() == 2);
    wait_until("limits are decided again", || gateway.get("/").status() == 200);
}
