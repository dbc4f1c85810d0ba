//! Headers of responses from HTTP/2 servers, as clients receive them.

use bytes::Bytes;
use http::{HeaderMap, Response};

use super::http2::in_front_of;
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
