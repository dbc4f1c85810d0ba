//! Messages that go to HTTP/2 servers and come from them: headers as clients receive them, and uploads that wait for
//! each other.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};

use super::http2::in_front_of;
use crate::support::frames::{CANCEL, DATA, END_HEADERS, END_STREAM, StreamEnd, Wire, frame, headers, request, reset};
use crate::support::gateway::Gateway;
use crate::support::h2::H2Client;
use crate::support::h2_server::Http2Server;

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
