//! HTTP/2 to upstream servers.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::tls::{gateway, secured, server_config};
use crate::support::ca::Ca;
use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post as stream_post};
use crate::support::h2_server::{Http2Server, IncomingRequest, send_all};
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

pub fn route(url: &str, more: &str) -> String {
    format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"app\"\n{more}\n[upstream.app]\nservers = [\"{url}\"]\n"
    )
}

pub fn in_front_of(server: &Http2Server, more: &str) -> Gateway {
    Gateway::start(&route(&format!("h2c://{}", server.addr), more))
}

fn echoing() -> Http2Server {
    Http2Server::start(|mut incoming| async move {
        let (body, _) = incoming.body().await?;
        incoming.send_response(body).await
    })
}

/// Sends a request from each of many clients at once. Returns the statuses.
fn at_once(gateway: &Gateway, count: usize, target: &str) -> Vec<u16> {
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..count).map(|_| scope.spawn(|| gateway.get(target).status())).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn requests_share_a_connection_and_bodies_go_both_ways() {
    let server = echoing();
    let gateway = in_front_of(&server, "");
    let mut client = gateway.client();
    let response = client.fetch(&get("/x?y=1", "te: trailers\r\nx-a: 1\r\nconnection: x-hop\r\nx-hop: 1\r\n"), "");
    assert_eq!((response.status(), response.text().as_str()), (200, ""));
    let request = server.request();
    assert_eq!(request.uri, "http://a.test/x?y=1");
    assert!(request.headers["te"] == "trailers" && request.headers["x-a"] == "1");
    assert!(
        ["connection", "x-hop", "host", "transfer-encoding"].iter().all(|name| !request.headers.contains_key(*name))
    );
    assert_eq!(request.headers.get("x-forwarded-for").unwrap(), "127.0.0.1");
    let body = "0123456789abcdef".repeat(128 * 1024);
    for length in [0, 1, 100_000, body.len()] {
        let response = client.fetch(&post("/", length as u64, ""), &body[..length]);
        assert_eq!((response.status(), response.text() == body[..length]), (200, true), "{length}");
    }
    client.send(
        "POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
    );
    assert_eq!(client.read_response("POST").text(), "abcdefg");
    assert_eq!(at_once(&gateway, 20, "/"), [200; 20]);
    assert_eq!(server.connections(), 1);
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "ok")], 26.0);
}

#[test]
fn bodies_are_sent_when_the_server_asks_and_hints_are_passed_on() {
    let interim = |status: u16| http::Response::builder().status(status).header("link", "</x>").body(()).unwrap();
    let server = Http2Server::start(move |mut incoming| async move {
        if incoming.request.uri().path() == "/refused" {
            incoming.head(interim(417), true)?;
            return Ok(());
        }
        incoming.respond.send_informational(interim(103))?;
        incoming.respond.send_informational(interim(100))?;
        let (body, _) = incoming.body().await?;
        incoming.send_response(body).await
    });
    let gateway = in_front_of(&server, "");
    let mut client = gateway.client();
    for _ in 0..2 {
        client.send(post("/", 5, "expect: 100-continue\r\nsec-fetch-mode: cors\r\n"));
        let heads = [client.try_read_head().unwrap(), client.try_read_head().unwrap()];
        let mut heads: Vec<&str> = heads.iter().map(|head| head.head.as_str()).collect();
        heads.sort_unstable();
        assert_eq!(heads, ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"]);
        assert_eq!(server.request().headers["expect"], "100-continue");
        client.send("12345");
        assert_eq!(client.read_response("POST").text(), "12345");
    }
    let response = client.fetch(&post("/refused", 5, "expect: 100-continue\r\n"), "");
    assert_eq!((response.status(), response.get("connection")), (417, Some("close")));
    client.assert_closed();
    // HTTP/2 clients get no 100 Continue, and the server gets no `expect`.
    let mut streams = H2Client::connect(gateway.addr);
    server.count();
    let mut request = stream_post("/");
    request.headers_mut().insert("expect", "100-continue".parse().unwrap());
    assert_eq!(streams.fetch(request, Sent { body: b"12345", trailers: None }).text(), "12345");
    assert!(!server.request().headers.contains_key("expect"));
}

#[test]
fn trailers_go_both_ways() {
    let server = Http2Server::start(|mut incoming| async move {
        let (_, trailers) = incoming.body().await?;
        let sum = trailers.and_then(|trailers| trailers.get("x-sum").cloned()).unwrap();
        let mut stream = incoming.head(Response::builder().header("trailer", "x-sum").body(()).unwrap(), false)?;
        stream.send_data(Bytes::from("body"), false)?;
        stream.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), sum)]))
    });
    let gateway = in_front_of(&server, "request_trailers = true");
    let mut client = gateway.client();
    client.send(
        "POST / HTTP/1.1\r\nhost: a.test\r\nte: trailers\r\nconnection: te\r\ntrailer: x-sum\r\n\
         transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-sum: 42\r\n\r\n",
    );
    let mut response = Vec::new();
    let mut piece = [0; 1024];
    while !response.ends_with(b"x-sum: 42\r\n\r\n") {
        let count = client.stream().read(&mut piece).unwrap();
        assert!(count > 0, "{:?}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&piece[..count]);
    }
    assert!(String::from_utf8_lossy(&response).contains("trailer: x-sum\r\n"));
}

#[test]
fn the_server_chooses_the_protocol_over_tls_unless_configured() {
    let ca = Ca::new("one");
    let pair = ca.issue(&["127.0.0.1"], "server");
    let echo = |mut incoming: IncomingRequest| async move { incoming.send_response("two").await };
    let two = Http2Server::with(Some(server_config(&pair, None, &["h2", "http/1.1"])), |_| {}, echo);
    let response = |peer: &mut crate::support::upstream::Peer| {
        while peer.request()?.is_some() {
            peer.send(ok("one"))?;
        }
        Ok(())
    };
    let one = secured(server_config(&pair, None, &["http/1.1"]), true, response);
    let silent = secured(server_config(&pair, None, &[]), true, response);
    let url = |addr| format!("https://{addr}");
    let tls = "tls = { ca = \"ca.pem\" }";
    let http2 = format!("{tls}\nprotocol = \"http2\"");
    let upstreams = [
        ("two", url(two.addr), tls),
        ("one", url(one.addr), tls),
        ("silent", url(silent.addr), tls),
        ("never", url(silent.addr), http2.as_str()),
    ];
    let gateway =
        gateway(&[], &[("ca.pem", &ca.pem())], &upstreams.each_ref().map(|(name, url, rest)| (*name, &**url, *rest)));
    for _ in 0..3 {
        let texts = ["/two", "/one", "/silent"].map(|target| gateway.get(target).text());
        assert_eq!(texts, ["two", "one", "one"]);
    }
    assert_eq!(two.request().uri, "https://a.test/two");
    assert_eq!([two.connections(), one.connections(), silent.connections()], [1, 1, 1]);
    let never = gateway.get("/never");
    assert_eq!((never.status(), &never.json()["detail"]), (502, &"the upstream server does not speak HTTP/2".into()));
}

#[test]
fn a_connection_takes_no_more_than_its_server_allows() {
    let server = Http2Server::with(
        None,
        |builder| {
            builder.max_concurrent_streams(2);
        },
        |mut incoming| async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            incoming.send_response("ok").await
        },
    );
    let gateway = in_front_of(&server, "");
    assert_eq!(at_once(&gateway, 10, "/"), [200; 10]);
    let connections = server.connections();
    assert!((2..=10).contains(&connections), "{connections}");
    gateway.assert_metric("upstream_retries_total", &[("upstream", "app"), ("reason", "refused")], 0.0);
}

#[test]
fn requests_that_a_server_did_not_process_are_resent() {
    let server = Http2Server::start(|mut incoming| async move {
        if incoming.number == 0 {
            incoming.respond.send_reset(Reason::REFUSED_STREAM);
            return Ok(());
        }
        let (body, _) = incoming.body().await?;
        incoming.send_response(body).await
    });
    let gateway = in_front_of(&server, "");
    let response = gateway.client().fetch(&post("/", 5, ""), "hello");
    assert_eq!((response.status(), response.text().as_str()), (200, "hello"));
    assert_eq!(server.count(), 2);
    gateway.assert_metric("upstream_retries_total", &[("upstream", "app"), ("reason", "refused")], 1.0);
}

#[test]
fn a_server_that_always_refuses_streams_is_tried_twice() {
    let server = Http2Server::start(|mut incoming| async move {
        incoming.respond.send_reset(Reason::REFUSED_STREAM);
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    assert_eq!(gateway.get("/").status(), 502);
    assert_eq!(server.count(), 2);
}

#[test]
fn a_server_that_leaves_gracefully_costs_no_request() {
    let server = Http2Server::start(|mut incoming| async move {
        let (body, _) = incoming.body().await?;
        if incoming.number % 3 == 2 {
            incoming.leave.set(true);
        }
        incoming.send_response(body).await
    });
    let gateway = in_front_of(&server, "");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.client();
                for _ in 0..25 {
                    assert_eq!(client.fetch(&post("/", 5, ""), "hello").text(), "hello");
                }
            });
        }
    });
    assert!(server.connections() > 3);
}

#[test]
fn resets_are_distinguished_and_affect_no_other_request() {
    let server = Http2Server::start(|mut incoming| async move {
        match incoming.request.uri().path() {
            "/reset" => incoming.respond.send_reset(Reason::INTERNAL_ERROR),
            "/half" => {
                let mut stream = incoming.head(Response::new(()), false)?;
                stream.send_data(Bytes::from("half"), false)?;
                tokio::time::sleep(Duration::from_millis(50)).await;
                stream.send_reset(Reason::INTERNAL_ERROR);
            }
            _ => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                incoming.send_response("slow").await?;
            }
        }
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| gateway.get("/slow").text());
        let mut client = gateway.client();
        for _ in 0..100 {
            let response = client.fetch(&get("/reset", ""), "");
            let detail = "the upstream server closed the connection or sent an invalid response";
            assert_eq!((response.status(), &response.json()["detail"]), (502, &detail.into()));
        }
        let mut client = gateway.client();
        client.send(get("/half", ""));
        assert!(client.try_read_response("GET").is_err());
        assert_eq!(slow.join().unwrap(), "slow");
    });
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_client_that_leaves_ends_its_stream() {
    let server = Http2Server::start(|mut incoming| async move {
        let reason = std::future::poll_fn(|cx| incoming.respond.poll_reset(cx)).await?;
        incoming.note(if reason == Reason::CANCEL { "/cancelled" } else { "/other" });
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    for request in [get("/", ""), post("/", 100, "") + "part"] {
        let mut client = gateway.client();
        client.send(request);
        assert_eq!(server.request().uri.path(), "/");
        drop(client);
        assert_eq!(server.request().uri.path(), "/cancelled");
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn servers_that_are_none_of_http2_are_502_in_time() {
    let (silent, plain) = (Upstream::silent(), Upstream::text("HTTP/1.1"));
    for (upstream, detail) in [
        (&silent, "no upstream server accepted a connection in time"),
        (&plain, "the upstream server does not speak HTTP/2"),
    ] {
        let gateway = Gateway::start(&route(&format!("h2c://{}", upstream.addr), "connect_timeout = \"500ms\""));
        let watch = Stopwatch::start();
        let first = gateway.get("/");
        watch.assert_ms(if upstream.addr == silent.addr { 480..2000 } else { 0..2000 });
        for response in [first, gateway.get("/")] {
            assert_eq!((response.status(), &response.json()["detail"]), (502, &detail.into()));
        }
    }
}

#[test]
fn endless_heads_are_refused() {
    let server = Http2Server::start(|mut incoming| async move {
        match incoming.request.uri().path() {
            "/large" => {
                let value = HeaderValue::from_bytes(&[b'x'; 8000]).unwrap();
                let mut response = Response::new(());
                for number in 0..20 {
                    response
                        .headers_mut()
                        .insert(http::HeaderName::try_from(format!("x-{number}")).unwrap(), value.clone());
                }
                incoming.head(response, true).map(drop)
            }
            "/many" => {
                let mut response = Response::new(());
                for _ in 0..150 {
                    response.headers_mut().append("x", HeaderValue::from_static("1"));
                }
                incoming.head(response, true).map(drop)
            }
            "/lengths" => {
                let response = Response::builder().header("content-length", "1").header("content-length", "2");
                incoming.head(response.body(()).unwrap(), false).map(drop)
            }
            "/interims" => {
                for _ in 0..1000 {
                    let early = Response::builder().status(StatusCode::PROCESSING).body(()).unwrap();
                    incoming.respond.send_informational(early)?;
                    tokio::task::yield_now().await;
                }
                incoming.send_response("late").await
            }
            _ => incoming.send_response("fine").await,
        }
    });
    let gateway = in_front_of(&server, "");
    for target in ["/many", "/large", "/lengths", "/interims"] {
        assert_eq!(gateway.get(target).status(), 502, "{target}");
        assert_eq!(gateway.get("/").text(), "fine");
    }
    let line = format!(
        "server=\"{}\" kind=\"broken\" error=the response head exceeds `max_header_bytes` or `max_headers` of the upstream",
        server.addr
    );
    assert!(gateway.log().contains(&line), "{}", gateway.log());
    // The header bomb may cost its connection.
    assert!(server.connections() <= 2, "{}", server.connections());
}

#[test]
fn a_server_that_takes_no_body_is_504_and_one_that_answers_early_is_heard() {
    let server = Http2Server::start(|mut incoming| async move {
        if incoming.request.uri().path() != "/" {
            incoming.send_response("no need").await?;
        }
        if incoming.request.uri().path() == "/done" {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    let gateway = in_front_of(&server, "response_timeout = \"300ms\"\n");
    let body = vec![b'x'; 1 << 20];
    assert_eq!(gateway.client().fetch(&post("/", body.len() as u64, ""), &body).status(), 504);
    for target in ["/early", "/done"] {
        let mut client = gateway.client();
        client.send(post(target, body.len() as u64, ""));
        assert_eq!(client.read_response("POST").text(), "no need", "{target}");
    }
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "timeout")], 1.0);
}

#[test]
fn slow_readers_do_not_delay_others() {
    let server = Http2Server::start(|mut incoming| async move {
        if incoming.request.uri().path() != "/large" {
            return incoming.send_response("small").await;
        }
        let mut stream = incoming.head(Response::new(()), false)?;
        send_all(&mut stream, Bytes::from(vec![b'x'; 64 << 20])).await
    });
    let gateway = in_front_of(&server, "");
    assert_eq!(gateway.get("/").text(), "small");
    let memory = gateway.watch_memory();
    let mut slow: Vec<_> = (0..8).map(|_| gateway.client()).collect();
    for client in &mut slow {
        client.send(get("/large", ""));
        assert_eq!(client.try_read_head().unwrap().status(), 200);
    }
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..20 {
        assert_eq!(gateway.get("/").text(), "small");
    }
    assert_eq!(server.connections(), 1);
    let grown = memory.peak();
    eprintln!("{} KiB more for 8 responses that are not read", grown >> 10);
    assert!(grown < 8 << 20, "{grown} bytes more for responses that are not read");
}

#[test]
fn a_dead_connection_is_not_used_again() {
    // The server reads nothing after the request and acknowledges no PING.
    let server = Http2Server::start(|incoming| async move {
        let _held = incoming;
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let gateway = in_front_of(&server, "response_timeout = \"200ms\"\nconnect_timeout = \"1s\"\n");
    assert_eq!(gateway.get("/").status(), 504);
    // The next request is not sent on that connection, and the server accepts no other.
    assert_eq!(gateway.get("/").json()["detail"], "no upstream server accepted a connection in time");
}

#[test]
fn grpc_has_its_trailers_its_deadline_and_its_statuses() {
    let server = Http2Server::start(|mut incoming| async move {
        let (body, _) = incoming.body().await?;
        if incoming.request.uri().path() == "/silent" {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let head = Response::builder().header("content-type", "application/grpc").header("trailer", "grpc-status");
        let mut stream = incoming.head(head.body(()).unwrap(), false)?;
        stream.send_data(Bytes::from(body), false)?;
        stream.send_trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]))
    });
    let gateway = in_front_of(&server, "");
    let fields = "te: trailers\r\nconnection: te\r\ncontent-type: application/grpc\r\n";
    let mut client = gateway.client();
    let reply = client.fetch(&post("/echo", 5, fields), "\0\0\0\0\0");
    assert_eq!((reply.status(), reply.get("content-type"), reply.body.len()), (200, Some("application/grpc"), 5));
    let request = server.request();
    assert!(request.method == "POST" && request.headers["te"] == "trailers");
    let reply = client.fetch(&post("/silent", 5, &format!("{fields}grpc-timeout: 200m\r\n")), "\0\0\0\0\0");
    assert_eq!((reply.status(), reply.get("grpc-status")), (200, Some("4")));
    assert_eq!(server.request().headers.get("grpc-timeout").unwrap(), "200m");
    let nobody = Gateway::start(&route(&format!("h2c://{}", crate::support::ports::closed_addr()), ""));
    let response = nobody.client().fetch(&post("/", 5, fields), "\0\0\0\0\0");
    assert_eq!((response.status(), response.get("grpc-status")), (200, Some("14")));
}

#[test]
fn answers_that_have_no_body_are_whole_with_their_head() {
    let server = Http2Server::start(|mut incoming| async move {
        let status = if incoming.request.uri().path() == "/304" { 304 } else { 204 };
        let head = Response::builder().status(status).body(()).unwrap();
        let mut stream = incoming.head(head, false)?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The stream may have been reset already, because the rest was not needed.
        let _ = stream.send_data(Bytes::new(), true);
        Ok(())
    });
    let gateway = Gateway::with("access_log = { to = \"access.log\" }", &route(&format!("h2c://{}", server.addr), ""));
    let mut client = gateway.client();
    for target in ["/204", "/304"] {
        assert_eq!(client.fetch(&get(target, ""), "").status().to_string(), target[1..]);
    }
    let log = || std::fs::read_to_string(gateway.dir.path().join("access.log")).unwrap_or_default();
    wait_until("both are logged", || log().lines().count() == 2);
    assert!(!log().contains("client_left"), "{}", log());
}

#[test]
fn checks_over_tls_say_so() {
    let ca = Ca::new("one");
    let tls = server_config(&ca.issue(&["127.0.0.1"], "server"), None, &["h2"]);
    let server = Http2Server::with(Some(tls), |_| {}, |mut request| async move { request.send_response("fine").await });
    let url = format!("https://{}", server.addr);
    for (kind, path) in [("http", "/"), ("grpc", "/grpc.health.v1.Health/Check")] {
        let health = format!(
            "tls = {{ verify = false }}\nhealth = {{ type = \"{kind}\", every = \"100ms\", timeout = \"100ms\" }}"
        );
        let _gateway = Gateway::start(&(route(&url, "") + &health));
        wait_until(kind, || server.request().uri == format!("{url}{path}").as_str());
    }
}
