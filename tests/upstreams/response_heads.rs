//! How large the heads of responses may be, over HTTP/1.1 and HTTP/2.

use http::{HeaderName, HeaderValue, Response};

use super::fleet::app;
use crate::support::gateway::Gateway;
use crate::support::h2_server::Http2Server;
use crate::support::upstream::Upstream;

/// Headers and bytes of the heads: `/COUNT/BYTES` has COUNT headers, with values of BYTES bytes together.
fn read_size(path: &str) -> (usize, usize) {
    let mut numbers = path.split('/').skip(1).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn list_fields(path: &str) -> Vec<(String, String)> {
    let (count, bytes) = read_size(path);
    (0..count).map(|place| (format!("x-{place}"), "v".repeat(bytes / count))).collect()
}

fn http1_server() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let fields = list_fields(request.target());
            let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            peer.send(
                format!("HTTP/1.1 200 OK\r\n{fields}\r\n").replace("\r\n\r\n", "\r\ncontent-length: 2\r\n\r\nok"),
            )?;
        }
        Ok(())
    })
}

fn http2_server() -> Http2Server {
    Http2Server::start(|mut incoming| async move {
        let mut response = Response::new(());
        for (name, value) in list_fields(incoming.request.uri().path()) {
            response.headers_mut().insert(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        }
        incoming.head(response, true).map(drop)
    })
}

#[test]
fn their_bounds_are_options_of_the_upstream_and_those_of_requests_raise_them() {
    let (http1, http2) = (http1_server(), http2_server());
    let servers = [(http1.url(), "http1"), (format!("h2c://{}", http2.addr), "http2")];
    for (url, name) in servers {
        for (server, upstream, large) in [
            ("", "", false),
            ("max_headers = 1000\nmax_header_bytes = \"1MiB\"", "", true),
            ("", "max_headers = 1000\nmax_header_bytes = \"1MiB\"", true),
            (
                "max_headers = 1000\nmax_header_bytes = \"1MiB\"",
                "max_headers = 100\nmax_header_bytes = \"64KiB\"",
                false,
            ),
            // Smaller requests mean nothing for responses.
            ("max_headers = 20\nmax_header_bytes = \"8KiB\"", "", false),
        ] {
            let gateway = Gateway::with(server, &app(std::slice::from_ref(&url), upstream));
            let status = |path: &str| gateway.get(path).status();
            let of_large = if large { 200 } else { 502 };
            let case = format!("{name}: {server} / {upstream}");
            assert_eq!((status("/90/40000"), status("/10/60000")), (200, 200), "{case}");
            assert_eq!((status("/150/1500"), status("/10/80000")), (of_large, of_large), "{case}");
            assert_eq!((status("/1100/11000"), status("/90/1200000")), (502, 502), "{case}");
        }
    }
}
