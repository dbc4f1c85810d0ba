//! Auth servers that are slow, dead or lying, with `on_error` closed and open.

use std::io;
use std::time::{Duration, Instant};

use super::pair::{COPIED, Pair, admitting};
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::ports::ReservedPort;
use crate::support::upstream::{Peer, Upstream};
use crate::support::wait_until;

type Script = fn(&mut Peer) -> io::Result<()>;

/// Responses that do not decide the request.
const FAULTS: &[(&str, Script)] = &[
    ("hangs", |peer| peer.wait_for_end()),
    ("resets", |_| Ok(())),
    ("speaks something else", |peer| peer.send("SSH-2.0-OpenSSH_9.2\r\n\r\n")),
    ("switches protocols", |peer| {
        peer.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    }),
    ("floods with interim responses", |peer| {
        loop {
            peer.send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(64))?;
        }
    }),
    ("sends interim responses slowly", |peer| {
        loop {
            peer.send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }),
    ("sends a head without end", |peer| {
        peer.send("HTTP/1.1 200 OK\r\n")?;
        loop {
            peer.send(format!("x-filler: {}\r\n", "x".repeat(4096)))?;
        }
    }),
    ("drips its head", |peer| {
        peer.send("HTTP/1.1 200 OK\r\nremote-user: mal")?;
        loop {
            peer.send("l")?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }),
    ("has ambiguous framing", |peer| {
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
    }),
    ("has an invalid header", |peer| peer.send("HTTP/1.1 200 OK\r\nremote user: a\r\ncontent-length: 0\r\n\r\n")),
    ("splits a header", |peer| {
        peer.send("HTTP/1.1 200 OK\r\nremote-user: a\rx-role: admin\r\ncontent-length: 0\r\n\r\n")
    }),
    ("has a control character in a header", |peer| {
        peer.send("HTTP/1.1 200 OK\r\nremote-user: a\0b\r\ncontent-length: 0\r\n\r\n")
    }),
];

fn failing(script: Script) -> Upstream {
    Upstream::start(move |peer| {
        peer.request()?;
        script(peer)
    })
}

#[test]
fn an_auth_server_that_fails_lets_nothing_pass_unless_it_may() {
    for (fault, script) in FAULTS {
        for (on_error, status) in [("closed", 503), ("open", 200)] {
            let options = format!("{COPIED}, timeout = \"500ms\", on_error = \"{on_error}\"");
            let pair = Pair::with("", &options, "", failing(*script), Upstream::text("the application"));
            let begun = Instant::now();
            let response = pair.gateway.fetch(&get("/", "remote-user: mallory\r\nx-role: mallory\r\n"));
            assert_eq!(response.status(), status, "{fault}: {}", response.text());
            assert!(begun.elapsed() < Duration::from_secs(5), "{fault}: {:?}", begun.elapsed());
            pair.auth.wait_for_close();
            if status == 200 {
                assert!(!pair.app.request().head.contains("mallory"), "{fault}");
            } else {
                assert!(pair.app.requests().is_empty(), "{fault}: the application got the request");
                let reason = [("limit", "_none"), ("reason", "auth_server"), ("route", "app")];
                pair.gateway.assert_metric("rejections_total", &reason, 1.0);
                let logged = "\"reason\":\"auth_server\",\"setting\":\"on_error\"";
                wait_until("the failure is logged", || pair.gateway.stdout().contains(logged));
            }
            let outcome = if status == 200 { "error_open" } else { "error_closed" };
            pair.gateway.assert_metric("forward_auth_total", &[("outcome", outcome), ("route", "app")], 1.0);
        }
    }
}

#[test]
fn a_server_error_of_the_auth_server_is_a_failure() {
    for (on_error, status, outcome) in [("closed", 500, "error_closed"), ("open", 200, "error_open")] {
        let options = format!("{COPIED}, on_error = \"{on_error}\"");
        let pair = Pair::start(&options, |_| {
            "HTTP/1.1 500 Oops\r\nremote-user: mallory\r\nset-cookie: a=b\r\ncontent-length: 4\r\n\r\noops".to_owned()
        });
        let response = pair.gateway.get("/");
        assert_eq!((response.status(), response.text() == "oops"), (status, status == 500));
        pair.gateway.assert_metric("forward_auth_total", &[("outcome", outcome), ("route", "app")], 1.0);
        if status == 200 {
            assert_eq!(pair.app.request().get("remote-user"), None);
            assert_eq!(response.get("set-cookie"), None);
        }
    }
}

#[test]
fn a_dead_auth_server_is_a_refusal_at_once() {
    let (dead, app) = (ReservedPort::new(), Upstream::text("the application"));
    let config = |on_error: &str| {
        format!(
            "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nauth = {{ forward = \"http://{}/\", on_error = \"{on_error}\" }}\n",
            app.url(),
            dead.addr()
        )
    };
    let gateway = Gateway::start(&config("closed"));
    let begun = Instant::now();
    let response = gateway.get("/");
    assert_eq!((response.status(), response.get("content-type")), (503, Some("application/problem+json")));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    gateway.reload_with("closed", "open");
    assert_eq!(gateway.get("/").status(), 200);
}

#[test]
fn the_timeout_bounds_all_attempts_together() {
    let (one, other, app) = (Upstream::silent(), Upstream::silent(), Upstream::text("the application"));
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nauth = {{ forward = \"auth/\", timeout = \"1s\" }}\n\
         [upstream.auth]\nservers = [\"{}\", \"{}\"]\nretry = {{ attempts = 5, on = [\"timeout\"], budget = 1 }}\n",
        app.url(),
        one.url(),
        other.url()
    ));
    let begun = Instant::now();
    assert_eq!(gateway.get("/").status(), 503);
    let took = begun.elapsed();
    gateway.assert_metric("upstream_requests_total", &[("outcome", "timeout"), ("upstream", "auth")], 1.0);
    gateway.assert_metric("upstream_requests_total", &[("outcome", "client_left"), ("upstream", "auth")], 0.0);
    assert!((Duration::from_secs(1)..Duration::from_millis(1900)).contains(&took), "{took:?}");
}

#[test]
fn a_refusal_without_end_streams_and_ends_with_its_client() {
    let auth = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 401 Unauthorized\r\ntransfer-encoding: chunked\r\n\r\n")?;
        loop {
            peer.send(format!("10000\r\n{}\r\n", "x".repeat(0x10000)))?;
        }
    });
    let pair = Pair::with("", "", "", auth, Upstream::text("the application"));
    let mut client = pair.gateway.client();
    client.send(get("/", ""));
    assert_eq!(client.try_read_head().unwrap().status(), 401);
    assert!(client.bytes(10 << 20).contains(&b'x'));
    let before = pair.gateway.memory("VmRSS");
    std::thread::sleep(Duration::from_millis(500));
    assert!(pair.gateway.memory("VmRSS") < before + (16 << 20), "the gateway reads ahead of its client");
    drop(client);
    pair.auth.wait_for_close();
    // HEAD gets no body, and the gateway does not read it forever.
    assert_eq!(pair.gateway.fetch("HEAD / HTTP/1.1\r\nhost: a.test\r\n\r\n").status(), 401);
    pair.auth.wait_for_close();
}

#[test]
fn the_body_of_a_permission_is_dropped() {
    let auth = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.get("x-forwarded-uri") {
                Some("/endless") => loop {
                    peer.send("x".repeat(65536))?;
                },
                Some("/stalls") => {
                    peer.send("HTTP/1.1 200 OK\r\nremote-user: alice\r\ncontent-length: 100\r\n\r\nbegun")?;
                    return peer.wait_for_end();
                }
                Some("/endless-after-its-head") => {
                    peer.send("HTTP/1.1 200 OK\r\nremote-user: alice\r\ntransfer-encoding: chunked\r\n\r\n")?;
                    loop {
                        peer.send(format!("1000\r\n{}\r\n", "x".repeat(0x1000)))?;
                    }
                }
                _ => {
                    let body = "x".repeat(20_000);
                    peer.send(format!(
                        "HTTP/1.1 200 OK\r\nremote-user: alice\r\ncontent-encoding: gzip\r\ncontent-length: 20000\r\n\r\n{body}"
                    ))?;
                }
            }
        }
        Ok(())
    });
    let pair = Pair::with("", &format!("{COPIED}, timeout = \"1s\""), "", auth, Upstream::text("the application"));
    let mut client: Client = pair.gateway.client();
    for path in ["/", "/stalls", "/endless-after-its-head", "/"] {
        let response = client.fetch(&get(path, ""), "");
        assert_eq!((response.status(), response.text().as_str()), (200, "the application"), "{path}");
        assert_eq!((response.get("content-encoding"), pair.app.request().get("remote-user")), (None, Some("alice")));
    }
    assert_eq!(client.fetch(&get("/endless", ""), "").status(), 503);
    wait_until("the connections of endless bodies are closed", || pair.auth.ended() >= 3);
    let opened = pair.auth.connections();
    for _ in 0..5 {
        assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(pair.auth.connections() <= opened + 1, "a connection whose body is read is used again");
}

#[test]
fn an_auth_server_behind_the_same_route_is_a_loop() {
    let port = ReservedPort::new();
    let app = Upstream::text("the application");
    let gateway = Gateway::with_config(&format!(
        "[server]\nlisten = [\"{addr}\"]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[route]]\npath = \"/\"\nupstream = \"{}\"\n\
         auth = {{ forward = \"http://{addr}/verify\" }}\n",
        app.url(),
        addr = port.addr()
    ));
    assert_eq!(gateway.get("/").status(), 508);
    assert!(app.requests().is_empty());
    gateway.assert_metric("http_rejected_total", &[("reason", "loop")], 1.0);
}

#[test]
fn a_name_that_is_not_a_user_is_a_failure_of_the_auth_server() {
    for name in [" ", &"x".repeat(300), "a\u{85}b"] {
        let name = name.to_owned();
        let pair = Pair::start(&format!("{COPIED}, on_error = \"open\""), move |_| {
            format!("HTTP/1.1 200 OK\r\nremote-user: {name}\r\ncontent-length: 0\r\n\r\n")
        });
        // An empty name is none.
        let response = pair.gateway.get("/").status();
        assert!(
            response == 503 || (response == 200 && pair.app.request().get("remote-user") == Some("")),
            "{response}"
        );
    }
    for second in ["bob", "alice", ""] {
        let pair = Pair::start(&format!("{COPIED}, on_error = \"open\""), move |_| {
            format!("HTTP/1.1 200 OK\r\nremote-user: alice\r\nremote-user: {second}\r\ncontent-length: 0\r\n\r\n")
        });
        assert_eq!((pair.gateway.get("/").status(), pair.app.requests().len()), (503, 0), "{second}");
    }
    drop(admitting());
}
