//! Messages that go to HTTP/2 servers and come from them: headers as clients receive them, and uploads that wait for
//! each other.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request, Response};
use tokio::sync::Notify;

use super::http2::{in_front_of, route};
use crate::support::client::{call, get};
use crate::support::frames::{CANCEL, DATA, END_HEADERS, END_STREAM, StreamEnd, Wire, frame, headers, request, reset};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent};
use crate::support::h2_server::{Http2Server, IncomingRequest};

/// Over HTTP/1.1 spaces around a value are no part of it, and clients see the same value over HTTP/2.
#[test]
fn spaces_around_values_of_a_response_are_removed() {
    let server = Http2Server::start(|mut incoming| async move {
        let head = Response::builder().header("x-pad", " \ta b\t ").header("x-none", " ").header("x-plain", "c d");
        let mut stream = incoming.head(head.body(()).unwrap(), false)?;
        stream.send_data(Bytes::from("body"), false)?;
        stream.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), "42 ".parse().unwrap())]))
    });
    let gateway = in_front_of(&server, "");
    let response = H2Client::connect(gateway.addr).get("/");
    let value = |name: &str| response.head.headers()[name].to_str().unwrap();
    assert_eq!([value("x-pad"), value("x-none"), value("x-plain")], ["a b", "", "c d"]);
    assert_eq!(response.trailers["x-sum"], "42");
}

/// Two requests end and two uploads begin before the gateway can tell the server of the former, which allows two streams.
/// So both uploads wait for a stream.
#[test]
fn uploads_that_begin_while_streams_are_reset_are_sent_whole() {
    let server = Http2Server::with(
        None,
        |builder| {
            builder.max_concurrent_streams(2);
        },
        |mut incoming| async move {
            if incoming.request.uri().path() == "/never" {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            let (body, _) = incoming.body().await?;
            incoming.send_response(body).await
        },
    );
    let gateway = Gateway::with(
        "workers = 1",
        &format!(
            "[[route]]\npath = \"/\"\nupstream = \"app\"\n[upstream.app]\nservers = [\"h2c://{}\"]\n",
            server.addr
        ),
    );
    let mut client = Wire::connect(gateway.addr, &[]);
    for round in 0..5 {
        let first = 1 + 8 * round;
        for stream in [first, first + 2] {
            client.get(stream, "/never");
            server.request();
        }
        let upload = |stream, body: &[u8]| {
            [headers(stream, END_HEADERS, &request("POST", "/")), frame(DATA, END_STREAM, stream, body)].concat()
        };
        client.send(
            [
                reset(first, CANCEL),
                reset(first + 2, CANCEL),
                upload(first + 4, b"the first upload"),
                upload(first + 6, b"the second upload"),
            ]
            .concat(),
        );
        let responses = client.read_responses(&[first + 4, first + 6]);
        for (response, body) in responses.iter().zip(["the first upload", "the second upload"]) {
            assert_eq!((&*response.body, response.ended), (body.as_bytes(), StreamEnd::Complete), "round {round}");
        }
        server.request();
        server.request();
    }
}

/// Sends a response that is complete for its client, but does not end the stream: its status is the path, and 200 has
/// four bytes of content.
fn answer_without_end(incoming: &mut IncomingRequest) -> Result<h2::SendStream<Bytes>, h2::Error> {
    let status = incoming.request.uri().path()[1..4].parse::<u16>().unwrap();
    let mut response = Response::builder().status(status);
    if status == 200 {
        response = response.header("content-length", 4);
    }
    let mut stream = incoming.head(response.body(()).unwrap(), false)?;
    if status == 200 && incoming.request.method() != "HEAD" {
        stream.send_data(Bytes::from("body"), false)?;
    }
    Ok(stream)
}

/// Many servers end the stream with a frame of its own. Clients do not wait for it, and the gateway does not reset the
/// stream, which servers count as an attack.
#[test]
fn streams_that_servers_end_late_are_not_reset() {
    let end = Arc::new(Notify::new());
    let server = Http2Server::start(move |mut incoming| {
        let end = end.clone();
        async move {
            if incoming.request.uri().path() == "/end" {
                end.notify_waiters();
                incoming.head(Response::new(()), true)?;
                return Ok(());
            }
            let mut stream = answer_without_end(&mut incoming)?;
            tokio::select! {
                reset = poll_fn(|cx| stream.poll_reset(cx)) => {
                    incoming.note(if reset? == Reason::CANCEL { "/cancelled" } else { "/reset" });
                    return Ok(());
                }
                () = end.notified() => {}
            }
            incoming.note("/ended");
            match incoming.request.uri().query() {
                Some(_) => {
                    stream.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), "4".parse().unwrap())]))
                }
                None => stream.send_data(Bytes::new(), true),
            }
        }
    });
    let gateway = in_front_of(&server, "");
    for target in ["/204", "/304", "/200", "/204?trailers", "/200?trailers"] {
        let mut client = gateway.client();
        for method in ["GET", "HEAD"] {
            client.send(call(method, target, "", 0));
            let response = client.read_response(method);
            let body = if target.starts_with("/200") && method == "GET" { "body" } else { "" };
            assert_eq!((response.status().to_string().as_str(), response.text().as_str()), (&target[1..4], body));
            server.request();
            // Longer than the gateway takes to reset a stream.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(client.fetch(&get("/end", ""), "").status(), 200);
            server.request();
            assert_eq!(server.request().uri.path(), "/ended", "{method} {target}");
        }
    }
    // The response to an upload, and a client over HTTP/2.
    let mut client = H2Client::connect(gateway.addr);
    for (method, body) in [("POST", &b"123"[..]), ("HEAD", b"")] {
        let request = Request::builder().method(method).uri("http://a.test/204").body(()).unwrap();
        assert_eq!(client.fetch(request, Sent { body, trailers: None }).status(), 204);
        server.request();
        client.wait(Duration::from_millis(50));
        client.get("/end");
        server.request();
        assert_eq!(server.request().uri.path(), "/ended", "{method}");
    }
    assert_eq!(server.connections(), 1);
}

/// Content of a response that must not have any never reaches a client, and the server learns of its error.
#[test]
fn content_after_a_complete_response_is_an_error_of_the_server() {
    let server = Http2Server::start(|mut incoming| async move {
        let mut stream = answer_without_end(&mut incoming)?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.send_data(Bytes::from("more"), false)?;
        let reset = poll_fn(|cx| stream.poll_reset(cx)).await?;
        incoming.note(if reset == Reason::PROTOCOL_ERROR { "/error" } else { "/reset" });
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    let mut client = gateway.client();
    let mut streams = H2Client::connect(gateway.addr);
    for (method, target, body) in
        [("GET", "/204", ""), ("GET", "/304", ""), ("HEAD", "/200", ""), ("GET", "/200", "body")]
    {
        client.send(call(method, target, "", 0));
        assert_eq!(client.read_response(method).text(), body, "{method} {target}");
        server.request();
        assert_eq!(server.request().uri.path(), "/error", "{method} {target}");
        if body.is_empty() {
            let request = Request::builder().method(method).uri(format!("http://a.test{target}")).body(()).unwrap();
            assert_eq!(streams.fetch(request, Sent::default()).body, b"", "{method} {target}");
            server.request();
            assert_eq!(server.request().uri.path(), "/error", "{method} {target} over HTTP/2");
        }
    }
    assert!(gateway.log().contains("the response is complete, but the server sent more"));
    assert_eq!(server.connections(), 1);
}

/// The wait for the end of a stream is bounded in number and time.
#[test]
fn streams_that_servers_never_end_are_reset() {
    let server = Http2Server::start(|mut incoming| async move {
        let mut stream = answer_without_end(&mut incoming)?;
        poll_fn(|cx| stream.poll_reset(cx)).await?;
        incoming.note("/reset");
        Ok(())
    });
    let gateway = Gateway::with("workers = 1", &route(&format!("h2c://{}", server.addr), ""));
    let mut client = gateway.client();
    for _ in 0..53 {
        assert_eq!(client.fetch(&get("/204", ""), "").status(), 204);
    }
    // The requests, and the resets of those beyond 50.
    let mut resets = 0;
    for _ in 0..56 {
        resets += usize::from(server.request().uri.path() == "/reset");
    }
    assert_eq!(resets, 3);
    for _ in 0..50 {
        assert_eq!(server.request().uri.path(), "/reset");
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn an_offer_that_the_route_does_not_allow_is_left_out() {
    let server = Http2Server::start(|mut incoming| async move { incoming.send_response("plain").await });
    let gateway = in_front_of(&server, "upgrades = []");
    let offer = "connection: upgrade, x-mine\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nx-mine: 1\r\n";
    let mut client = gateway.client();
    for _ in 0..2 {
        // The connection stays usable for HTTP.
        assert_eq!(client.fetch(&get("/chat", offer), "").text(), "plain");
        let request = server.request();
        assert_eq!((request.method.as_str(), request.uri.path()), ("GET", "/chat"));
        let left: Vec<_> = ["connection", "upgrade", "x-mine"].map(|name| request.headers.get(name)).to_vec();
        assert_eq!(left, [None; 3]);
    }
    gateway.assert_metric("tunnels", &[], 0.0);
}
