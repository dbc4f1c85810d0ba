//! A Redis that rejects the login: the gateway logs the server's own words.

use crate::support::gateway::{Gateway, program};
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

/// A password whose characters all mean something in URLs or TOML strings.
const PASSWORD: &str = r#"p@s:s/w?o#r%d%20&=+[ü] "\x"#;

#[test]
fn a_server_that_wants_a_password_does_not_respond() {
    let server = RedisServer::start(&["--requirepass", "right"]);
    for (url, words) in [(server.url(), "NOAUTH"), (with_password(&server, "wrong"), "WRONGPASS")] {
        let gateway = gateway(&url);
        wait_until("the log has the line", || gateway.log().contains("the limit store is unavailable"));
        // The first error may be that of an interrupted connection.
        wait_until("the log has the cause", || gateway.log().contains(words));
        let log = gateway.log();
        assert!(log.contains(words) && !log.contains("the limit store is available"), "{log}");
        assert!(!log.contains("wrong"), "no password: {log}");
        assert_eq!(gateway.metric("store_up", &[]), Some(0.0));
        assert_eq!(gateway.get("/").status(), 503);
        assert_eq!(gateway.admin("/readyz").status(), 200, "readiness does not depend on the store");
    }
}

/// The permissions that the manual lists suffice for all that a gateway does with Redis, and each is needed.
#[test]
fn the_documented_permissions_are_enough() {
    let manual = include_str!("../../docs/guides/several-gateways.md");
    let line = manual.lines().find(|line| line.contains("ACL SETUSER")).unwrap().trim();
    let rules: Vec<&str> = line.split(' ').skip(3).filter(|rule| *rule != ">PASSWORD").collect();
    // The gateway reads the policy, which needs a permission of its own.
    let server = RedisServer::start(&["--maxmemory-policy", "volatile-lru"]);
    let limits = [
        ("window", "algorithm = \"fixed_window\"\nrate = \"2/h\""),
        ("bucket", "rate = \"2/h\"\nrefund_on = [500]"),
        ("list", "algorithm = \"sliding_log\"\nrate = \"2/h\"\nrefund_on = [500]"),
        ("set", "algorithm = \"sliding_log\"\nrate = \"2/h\"\nstate = \"sorted_set\""),
        ("slots", "algorithm = \"concurrency\"\nin_flight = 2"),
        ("month", "algorithm = \"calendar\"\nrate = \"2/month\""),
        ("queue", "algorithm = \"leaky_bucket\"\nrate = \"2/h\""),
    ];
    let parts: String = limits
        .iter()
        .map(|(name, lines)| {
            format!(
                "[[route]]\npath = \"/{name}\"\nupstream = \"echo:\"\nlimits = [\"{name}\"]\n\
                 [limit.{name}]\non_error = \"closed\"\n{lines}\n"
            )
        })
        .collect();
    let start = |user: &str| {
        let login = format!("username = \"{user}\"\npassword = '{PASSWORD}'\n");
        Gateway::start(&format!("[store]\nurl = \"{}\"\n{login}deadline = \"5s\"\n{parts}", server.url()))
    };
    let set_user = |user: &str, rules: &[&str]| {
        let mut client = server.client();
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(user).arg(format!(">{PASSWORD}")).arg(rules);
        let () = command.query(&mut client).unwrap();
    };
    set_user("all", &rules);
    let gateway = start("all");
    gateway.wait_for_store();
    for (name, _) in limits {
        assert_eq!(gateway.get(&format!("/{name}")).status(), 200, "{name}: {}", gateway.log());
        let state = format!("/-/limits/{name}/state?key=127.0.0.1");
        assert_eq!(gateway.admin(&state).status(), 200, "{name}");
        assert_eq!(gateway.admin_request("DELETE", &state, "", "").status(), 200, "{name}");
        assert_eq!(gateway.get(&format!("/{name}")).status(), 200, "{name}");
    }
    gateway.assert_metric("store_gateways", &[], 1.0);
    wait_until("the policy was read", || gateway.log().contains("maxmemory-policy"));
    let log = gateway.log();
    assert!(!log.contains("NoPerm") && !log.contains("overrides"), "{log}");
    let mut client = server.client();
    let denied: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query(&mut client).unwrap();
    assert!(denied.is_empty(), "{denied:?}");
    let flushed = redis::cmd("ACL").arg(&["DRYRUN", "all", "FLUSHALL"]).query::<String>(&mut client).unwrap();
    assert!(flushed.contains("no permissions"), "{flushed}");
    for needed in ["+@read", "+@write", "+evalsha", "+time"].iter().filter(|rule| rules.contains(rule)) {
        let fewer: Vec<&str> = rules.iter().copied().filter(|rule| rule != needed).collect();
        let user = needed.trim_start_matches(['+', '@']);
        set_user(user, &fewer);
        let gateway = start(user);
        wait_until(&format!("limits are not decided without {needed}"), || gateway.get("/list").status() == 503);
    }
}

/// Managed Redis often is in cluster mode. Decisions with one key would succeed there and others fail, so that limits
/// were charged in part in Redis and in part in memory.
#[test]
fn a_server_in_cluster_mode_is_reported_and_not_used_in_part() {
    let server = RedisServer::start(&["--cluster-enabled", "yes"]);
    let mut client = server.client();
    let start = || {
        let rest = "[[route]]\nupstream = \"echo:\"\nlimits = [\"a\", \"b\"]\n[limit.a]\nrate = \"100/h\"\n\
             [limit.b]\nrate = \"100/h\"\nkey = \"header:x-k\"\n[[route]]\npath = \"/one\"\nupstream = \"echo:\"\n\
             limits = [\"c\"]\n[limit.c]\nrate = \"3/h\"\n";
        let gateway = Gateway::start(&format!("[store]\nurl = \"{}\"\ndeadline = \"5s\"\n{rest}", server.url()));
        wait_until("the log has the remedy", || gateway.log().contains("write `redis+cluster://` in `url` of [store]"));
        gateway
    };
    // No node serves the slots yet.
    assert!(start().log().contains("CLUSTERDOWN") || start().log().contains("ClusterDown"));
    let () = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16383).query(&mut client).unwrap();
    wait_until("the cluster serves", || {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut client).unwrap();
        info.contains("cluster_state:ok")
    });
    let gateway = start();
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status(), 200);
    }
    let admitted = (0..6).filter(|_| gateway.get("/one").status() == 200).count();
    assert_eq!(admitted, 3, "{}", gateway.log());
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

#[test]
fn a_password_beside_the_url_is_used_and_never_shown() {
    let server = RedisServer::start(&["--requirepass", PASSWORD, "--maxmemory-policy", "allkeys-lru"]);
    let store = |password: &str| {
        let url = server.url();
        format!("[store]\nurl = \"{url}\"\npassword = '{password}'\ndeadline = \"5s\"\n[[route]]\nrespond = {{}}\n")
    };
    let gateway = Gateway::start(&store(PASSWORD));
    gateway.wait_for_store();
    wait_until("the policy is reported", || gateway.metric("store_may_evict", &[]) == Some(1.0));
    let log = gateway.log();
    assert!(log.contains("noeviction") && log.contains("allkeys-lru"), "{log}");
    let shown = gateway.admin("/-/config").text();
    assert!(shown.contains("password") && !shown.contains("p@s:s"), "{shown}");
    // A changed password applies to a running gateway.
    assert_eq!(gateway.reload(&store("wrong-one")).status(), 200);
    wait_until("the log has the line", || gateway.log().contains("WRONGPASS"));
    assert!(!gateway.log().contains("wrong-one"), "{}", gateway.log());
}

/// Before a gateway is started: does its store work?
#[test]
fn check_asks_the_store() {
    let server = RedisServer::start(&["--requirepass", "right"]);
    let dir = tempfile::tempdir().unwrap();
    let check = |url: &str| {
        let rest = "[[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nrate = \"100/s\"\n";
        std::fs::write(dir.path().join("c.toml"), format!("[store]\nurl = \"{url}\"\ndeadline = \"5s\"\n{rest}"))
            .unwrap();
        let output = program().current_dir(dir.path()).args(["check", "--store", "--deny-warnings", "c.toml"]).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let right = with_password(&server, "right");
    let (code, text) = check(&right);
    assert!(code == Some(0) && !text.contains("warning"), "{code:?} {text}");
    let mut client = server.client();
    let () = redis::cmd("AUTH").arg("right").query(&mut client).unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*x:*").query(&mut client).unwrap();
    assert!(keys.is_empty(), "{keys:?}");
    let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory-policy", "allkeys-lru"]).query(&mut client).unwrap();
    let (code, text) = check(&right);
    assert!(code == Some(2) && text.contains("allkeys-lru"), "{code:?} {text}");
    let (code, text) = check(&with_password(&server, "wrong"));
    assert!(code == Some(1) && text.contains("WRONGPASS") && text.contains("correct `username`"), "{code:?} {text}");
    let (code, text) = check(&server.url());
    assert!(code == Some(1) && text.contains("NOAUTH") && text.contains("set `password`"), "{code:?} {text}");
    let (code, text) = check("redis://127.0.0.1:1");
    assert!(
        code == Some(1) && text.contains("Connection refused") && text.contains("see that Redis runs"),
        "{code:?} {text}"
    );
    let port = right.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    for (url, words) in [
        (format!("redis+cluster://:right@127.0.0.1:{port}"), "write `redis://`"),
        (format!("redis+sentinel://127.0.0.1:{port}/mine"), "name sentinels"),
        (
            format!("redis+sentinel://:right@127.0.0.1:{port}/mine?sentinel_password=wrong"),
            "a sentinel refuses the login or a command",
        ),
        (format!("redis+sentinel://:right@127.0.0.1:{port}/mine?sentinel_password=wrong"), "correct `sentinel_user`"),
        (format!("{right}99"), "correct the number of the database"),
        ("redis+unix:///nowhere/redis.sock".to_owned(), "the path of its socket"),
    ] {
        let (code, text) = check(&url);
        assert!(code == Some(1) && text.contains(words), "{url}: {code:?} {text}");
    }
    let () = redis::cmd("ACL").arg(&["SETUSER", "few", "on", ">pw", "~sg:*", "+time"]).query(&mut client).unwrap();
    let () = redis::cmd("ACL").arg(&["SETUSER", "other", "on", ">pw", "~other:*", "+@all"]).query(&mut client).unwrap();
    for (user, words) in [("few", "'eval"), ("other", "key")] {
        let (code, text) = check(&server.url().replace("redis://", &format!("redis://{user}:pw@")));
        let remedy = format!("ACL SETUSER {user} ");
        assert!(code == Some(1) && text.contains(words) && text.contains(&remedy), "{user}: {code:?} {text}");
        assert!(!text.contains("pw"), "{text}");
    }
    let node = RedisServer::start(&["--cluster-enabled", "yes"]);
    let () = redis::cmd("ACL")
        .arg(&[
            "SETUSER",
            "few",
            "on",
            ">pw",
            "~sg:*",
            "+@read",
            "+@write",
            "-@dangerous",
            "+eval",
            "+evalsha",
            "+time",
        ])
        .query(&mut node.client())
        .unwrap();
    let (code, text) = check(&node.url().replace("redis://", "redis+cluster://few:pw@"));
    let remedy = "+info +cluster|slots +asking";
    assert!(code == Some(1) && text.contains("'cluster|slots'") && text.contains(remedy), "{code:?} {text}");
    // The server says why before it closes the connection.
    let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).query(&mut client).unwrap();
    let (code, text) = check(&right);
    assert!(code == Some(1) && text.contains("max number of clients") && text.contains("raise `maxclients`"), "{text}");
}
