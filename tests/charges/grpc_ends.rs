//! Charges that depend on the gRPC status in the trailers: from HTTP/2 and HTTP/1.1 servers, for clients of both.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::costs::assert_costs;
use crate::support::client::post as h1_post;
use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post};
use crate::support::h2_server::Http2Server;
use crate::support::ports::closed_addr;
use crate::support::upstream::Upstream;

const COST: i64 = 4;

/// The limits and their settings.
const LIMITS: [(&str, &str); 5] = [
    ("refund", "refund_on = [\"grpc:INVALID_ARGUMENT\", \"grpc:14\"]"),
    ("charge", "charge_on = [\"grpc:UNAUTHENTICATED\"]"),
    ("unknown", "refund_on = [\"grpc:2\"]"),
    ("abort", "refund_on = [\"client_abort\", \"grpc:OK\"]"),
    ("settle", "settle = \"trailer:x-actual-cost\""),
];

type Costs = [i64; 5];

const OK: Costs = [COST, 0, COST, 0, 1];
const INVALID: Costs = [0, 0, COST, COST, 1];
const UNAUTHENTICATED: Costs = [COST, COST, COST, COST, 1];
const UNAVAILABLE: Costs = [0, 0, COST, COST, COST];
const UNKNOWN: Costs = [COST, 0, 0, COST, COST];
const ABORTED: Costs = [COST, COST, COST, 0, COST];
/// Costs if only the status shows the outcome, and no limit lists it.
const PLAIN: Costs = [COST, 0, COST, COST, COST];

fn fields(all: &[(&'static str, &'static str)]) -> HeaderMap {
    all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

fn server() -> Http2Server {
    Http2Server::start(|mut incoming| async move {
        let mut head = Response::new(());
        head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        let path = incoming.request.uri().path().to_owned();
        let code = match path.rsplit('/').next().unwrap() {
            "3" => "3",
            "16" => "16",
            _ => "0",
        };
        let trailers = fields(&[("grpc-status", code), ("x-actual-cost", "1")]);
        if path == "/never" {
            std::future::poll_fn(|cx| incoming.respond.poll_reset(cx)).await?;
            return Ok(());
        }
        if path.starts_with("/only/") {
            head.headers_mut().extend(trailers);
            return incoming.head(head, true).map(drop);
        }
        if path == "/plain" {
            head.headers_mut().remove("content-type");
        }
        let is_sized = path.starts_with("/sized/");
        if is_sized {
            head.headers_mut().insert("content-length", HeaderValue::from_static("6"));
        }
        let mut stream = incoming.head(head, false)?;
        stream.send_data(Bytes::from_static(b"\0\0\0\0\x01x"), path == "/bare")?;
        match path.as_str() {
            "/bare" => Ok(()),
            "/cut" => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                stream.send_reset(Reason::INTERNAL_ERROR);
                Ok(())
            }
            "/stalls" => std::future::poll_fn(|cx| stream.poll_reset(cx)).await.map(drop),
            "/plain" => stream.send_data(Bytes::new(), true),
            _ if is_sized => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                stream.send_trailers(trailers)
            }
            _ => stream.send_trailers(trailers),
        }
    })
}

/// The same over HTTP/1.1, as far as it goes.
fn http1_server() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let code = request.target().rsplit('/').next().unwrap().to_owned();
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n";
            let trailers = format!("0\r\ngrpc-status: {code}\r\nx-actual-cost: 1\r\n\r\n");
            match code.as_str() {
                "cut" => return peer.send(head),
                "bare" => peer.send(format!("{head}0\r\n\r\n"))?,
                _ => peer.send(format!("{head}{trailers}"))?,
            }
        }
        Ok(())
    })
}

struct Bench {
    server: Http2Server,
    _http1: Upstream,
    gateway: Gateway,
}

impl Bench {
    fn new() -> Bench {
        let (server, http1) = (server(), http1_server());
        let limits: Vec<&str> = LIMITS.iter().map(|(name, _)| *name).collect();
        let route = |path: &str, to: &str| {
            format!(
                "[[route]]\nname = \"{path}\"\npath = \"{path}\"\nupstream = \"{to}\"\nstream_timeout = \"400ms\"\n\
                 max_body = \"1KiB\"\nlimits = {limits:?}\n"
            )
        };
        let mut config = route("/", &format!("h2c://{}", server.addr));
        config += &route("/h1", &http1.url());
        config += &route("/nobody", &format!("http://{}", closed_addr()));
        for (name, says) in LIMITS {
            config += &format!(
                "[limit.{name}]\nalgorithm = \"fixed_window\"\nrate = \"1000000/10h\"\nkey = \"all\"\ncost = {COST}\n{says}\n"
            );
        }
        let gateway = Gateway::with("half_close_timeout = \"0s\"", &config);
        Bench { server, _http1: http1, gateway }
    }

    #[track_caller]
    fn costs<T>(&self, name: &str, expected: Costs, exchange: impl FnOnce(&Bench) -> T) {
        assert_costs(&self.gateway, LIMITS.map(|(name, _)| name), name, expected, || exchange(self));
    }

    /// A call whose messages are all sent.
    fn call(&self, path: &str, more: &[(&'static str, &'static str)]) -> Result<(), h2::Error> {
        let mut request = post(path);
        request.headers_mut().extend(fields(&[("content-type", "application/grpc"), ("te", "trailers")]));
        request.headers_mut().extend(fields(more));
        let sent = Sent { body: b"\0\0\0\0\0", trailers: None };
        H2Client::connect(self.gateway.addr).try_fetch(request, sent).map(drop)
    }

    /// A call of which one message is sent.
    fn open(&self, path: &str) -> Wire {
        let mut wire = Wire::connect(self.gateway.addr, &[]);
        let more = [("content-type", "application/grpc"), ("te", "trailers")];
        wire.send(headers(1, END_HEADERS, &[&request("POST", path)[..], &more].concat()));
        wire.send(frame(DATA, 0, 1, b"\0\0\0\0\0"));
        wire
    }
}

fn every_end(bench: &Bench) {
    for (path, costs) in [
        ("/0", OK),
        ("/3", INVALID),
        ("/16", UNAUTHENTICATED),
        ("/only/0", OK),
        ("/only/3", INVALID),
        ("/only/16", UNAUTHENTICATED),
        ("/bare", UNKNOWN),
        ("/plain", PLAIN),
        ("/nobody", UNAVAILABLE),
        ("/h1/0", OK),
        ("/h1/3", INVALID),
        ("/h1/16", UNAUTHENTICATED),
        ("/h1/99", [COST, 0, 0, COST, 1]),
        ("/h1/bare", UNKNOWN),
    ] {
        bench.costs(path, costs, |bench| bench.call(path, &[]).unwrap());
    }
    for path in ["/cut", "/h1/cut"] {
        bench.costs(path, UNAVAILABLE, |bench| bench.call(path, &[]).unwrap_err());
    }
    bench.costs("a server without a further message in time", UNAVAILABLE, |bench| bench.call("/stalls", &[]));
    bench.costs("the client's own deadline", ABORTED, |bench| bench.call("/never", &[("grpc-timeout", "100m")]));
    for (name, sent) in [
        ("leaves", reset(1, CANCEL)),
        ("breaks the protocol", frame(DATA, 0, 0, b"x")),
        ("sends more than max_body", frame(DATA, 0, 1, &[0; 2048])),
        // The server has nothing to say to a client that says nothing.
        ("says nothing more", Vec::new()),
    ] {
        bench.costs(name, ABORTED, |bench| {
            let mut wire = bench.open("/stalls");
            wire.read_until("the head of the response", |frame| frame.kind == HEADERS);
            wire.send(sent);
            wire
        });
    }
    bench.costs("leaves before the response", ABORTED, |bench| {
        bench.server.count();
        let wire = bench.open("/never");
        bench.server.request();
        drop(wire);
    });
    // A server may end a call before the client has sent all messages.
    bench.costs("an early end", INVALID, |bench| {
        let mut wire = bench.open("/3");
        wire.read_response(1);
        wire
    });
    // The body of a stated length is whole before its trailers come.
    bench.costs("a stated length", INVALID, |bench| bench.call("/sized/3", &[]).unwrap());
    for (path, costs) in [("/h1/3", INVALID), ("/h1/0", OK), ("/sized/3", INVALID), ("/sized/16", UNAUTHENTICATED)] {
        bench.costs("over HTTP/1.1", costs, |bench| {
            let mut client = bench.gateway.client();
            client.send(h1_post(path, 5, "content-type: application/grpc\r\nte: trailers\r\n") + "\0\0\0\0\0");
            client.read_response("POST")
        });
    }
}

#[test]
fn the_status_of_a_call_settles_what_it_was_charged() {
    every_end(&Bench::new());
}
