//! Requests to the admin listener with an ambiguous host or framing are refused with the reason on every page.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::gateway::Gateway;

fn fetch(gateway: &Gateway, request: &str) -> String {
    let mut stream = TcpStream::connect(gateway.admin).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn requests_to_the_admin_listener_have_one_host_and_one_length() {
    let gateway = Gateway::start("[[route]]\nrespond = { body = \"in\" }\n");
    let body = r#"{"operation":"peek","decisions":[]}"#;
    let length = body.len();
    for (request, status, says) in [
        ("GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 200, "ok"),
        ("GET /livez HTTP/1.1\r\nhost: GW:80\r\n\r\n", 200, "ok"),
        ("GET http://gw/livez HTTP/1.1\r\nhost: GW:80\r\n\r\n", 200, "ok"),
        ("GET /livez HTTP/1.0\r\n\r\n", 200, "ok"),
        ("GET /livez HTTP/1.0\r\nhost: a\r\n\r\n", 200, "ok"),
        ("GET /livez HTTP/1.1\r\nhost:\r\n\r\n", 200, "ok"),
        ("GET /livez HTTP/1.1\r\n\r\n", 400, "no Host header"),
        ("GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: 127.0.0.1\r\n\r\n", 400, "two Host headers"),
        ("GET /livez HTTP/1.0\r\nhost: 127.0.0.1\r\nHost: evil\r\n\r\n", 400, "two Host headers"),
        ("GET http://evil/livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 400, "names another host"),
        ("GET http://127.0.0.1:81/livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 400, "names another host"),
        ("GET http://u@127.0.0.1/livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 400, "names another host"),
        ("GET http://evil/-/status HTTP/1.0\r\n\r\n", 400, "no Host header"),
        ("GET /livez HTTP/1.1\r\nhost: a/b\r\n\r\n", 400, "not a host"),
        ("GET /livez HTTP/1.1\r\nhost: u@127.0.0.1\r\n\r\n", 400, "not a host"),
        (
            "GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
            400,
            "Content-Length",
        ),
        (
            "GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
            400,
            "Transfer-Encoding",
        ),
        ("GET /livez HTTP/1.1\nhost: 127.0.0.1\n\n", 400, "line"),
        (
            &format!(
                "POST /-/decide HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            ),
            403,
            "IP address",
        ),
        (
            &format!(
                "POST /-/decide HTTP/1.1\r\nhost: [::1]:9\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\n{body}\r\n0\r\n\r\n"
            ),
            400,
            "is cut off",
        ),
        (
            &format!(
                "POST /-/decide HTTP/1.1\r\nhost: [::1]:9\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
            ),
            422,
            "decisions",
        ),
    ] {
        let response = fetch(&gateway, request);
        assert!(
            response.starts_with(&format!("HTTP/1.{} {status}", if response.starts_with("HTTP/1.0") { 0 } else { 1 })),
            "{request}: {response}"
        );
        assert!(response.contains(says), "{request}: {response}");
        if status == 400 {
            assert!(response.contains("application/problem+json"), "{request}: {response}");
        }
    }
}
