//! Every way in which a request can end, and what happens to its charge then: the table of docs/reference/charges.md,
//! row by row, over HTTP/1.1 and HTTP/2.

use std::time::Duration;

use super::costs::assert_costs;
use crate::support::client::{Client, get, post};
use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::limiting::{self, RedisServer};
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, accept};
use crate::support::wait_until;

/// Cost of each request, and the cost that the server reports.
const COST: i64 = 4;
const ACTUAL: i64 = 1;

/// Costs of a request at limits with `charge_on = [401, 502, 504]`, `refund_on = ["4xx", "5xx"]`, `["client_abort"]`
/// and `["connect_error"]`, and with `settle`.
type Costs = [i64; 5];

/// The client sent something to a server and then ended the exchange.
const ABORTED: Costs = [COST, COST, 0, COST, COST];
/// A server responded with 200.
const ANSWERED: Costs = [0, COST, COST, COST, ACTUAL];

const NAMES: [&str; 5] = ["charge", "refund", "abort", "connect", "settle"];

struct Bench {
    upstream: Upstream,
    gateway: Gateway,
}

impl Bench {
    fn new(store: &str) -> Bench {
        let upstream = Upstream::start(|peer| {
            while let Some(head) = peer.head()? {
                let response =
                    |status: &str, rest: &str| format!("HTTP/1.1 {status}\r\nx-actual-cost: {ACTUAL}\r\n{rest}");
                match head.target() {
                    "/200" => peer.send(response("200 OK", "content-length: 0\r\n\r\n"))?,
                    "/401" => peer.send(response("401 No", "content-length: 0\r\n\r\n"))?,
                    "/cut" => return peer.send(response("200 OK", "content-length: 9\r\n\r\npart")),
                    "/long" => {
                        peer.send(response("200 OK", "content-length: 9\r\n\r\npart"))?;
                        return peer.wait_for_end();
                    }
                    "/continue" => {
                        peer.send("HTTP/1.1 100 Continue\r\n\r\n")?;
                        return peer.wait_for_end();
                    }
                    "/tunnel" => {
                        let key = accept(&head);
                        let rest =
                            format!("connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {key}\r\n\r\n");
                        peer.send(response("101 Switching", &rest))?;
                        return peer.wait_for_end();
                    }
                    "/break" => return Ok(()),
                    _ => return peer.wait_for_end(),
                }
            }
            Ok(())
        });
        let limits = "limits = [\"charge\", \"refund\", \"abort\", \"connect\", \"settle\"]";
        let limit = |name: &str, more: &str| {
            format!(
                "[limit.{name}]\nalgorithm = \"fixed_window\"\nrate = \"1000000/10h\"\nkey = \"all\"\ncost = {COST}\n{more}\n"
            )
        };
        let config = format!(
            "{store}\n\
             [[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"app\"\nupgrades = [\"websocket\"]\nmax_body = \"1KiB\"\n\
             {limits}\n\
             [[route]]\nname = \"late\"\npath = \"/late\"\nupstream = \"app\"\nresponse_timeout = \"300ms\"\n{limits}\n\
             [[route]]\nname = \"stall\"\npath = \"/stall\"\nupstream = \"app\"\nbody_timeout = \"300ms\"\n{limits}\n\
             [[route]]\nname = \"none\"\npath = \"/nobody\"\nupstream = \"http://{}\"\n{limits}\n\
             [[route]]\nname = \"full\"\npath = \"/full\"\nupstream = \"full\"\n{limits}\n\
             [[route]]\nname = \"own\"\npath = \"/own\"\nrespond = {{ status = 401, body = \"\" }}\n{limits}\n\
             [[route]]\nname = \"turns\"\npath = \"/turns\"\nupstream = \"app\"\n\
             limits = [\"turns\", \"charge\", \"refund\", \"abort\", \"connect\", \"settle\"]\n\
             [upstream.app]\nservers = [\"{url}\"]\n\
             [upstream.full]\nservers = [\"{url}\"]\nmax_in_flight = 1\nmax_waiting = 1\nwaiting_timeout = \"500ms\"\n\
             [limit.turns]\nalgorithm = \"leaky_bucket\"\nrate = \"1/h\"\nqueue = \"9h\"\nkey = \"all\"\n\
             {}{}{}{}{}",
            closed_addr(),
            limit("charge", "charge_on = [401, 502, 504]"),
            limit("refund", "refund_on = [\"4xx\", \"5xx\"]"),
            limit("abort", "refund_on = [\"client_abort\"]"),
            limit("connect", "refund_on = [\"connect_error\"]"),
            limit("settle", "settle = \"header:x-actual-cost\""),
            url = upstream.url(),
        );
        let gateway = Gateway::with("half_close_timeout = \"200ms\"", &config);
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        Bench { upstream, gateway }
    }

    /// Runs `exchange`, which ends when it returns or soon after.
    #[track_caller]
    fn costs<T>(&self, name: &str, expected: Costs, exchange: impl FnOnce(&Bench) -> T) -> T {
        self.upstream.requests();
        assert_costs(&self.gateway, NAMES, name, expected, || exchange(self))
    }

    /// Waits until a server has received the request.
    fn arrived(&self) {
        self.upstream.request();
    }

    fn h1(&self, head: impl AsRef<[u8]>) -> Client {
        let mut client = self.gateway.client();
        client.send(head);
        client
    }

    /// A request over HTTP/2 whose body is to follow.
    fn h2(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Wire {
        let mut wire = Wire::connect(self.gateway.addr, &[]);
        wire.send(headers(1, END_HEADERS, &[&request(method, path)[..], fields].concat()));
        wire
    }

    fn h2_get(&self, path: &str) -> Wire {
        let mut wire = Wire::connect(self.gateway.addr, &[]);
        wire.get(1, path);
        wire
    }
}

/// Ways to leave over HTTP/1.1 after the server has received the head of the request.
fn leaving_http1(bench: &Bench) {
    let chunked_to = |path: &str, rest: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n");
        let mut client = bench.h1(head + "1\r\nx\r\n");
        bench.arrived();
        client.send(rest);
        client.read_response("POST").status()
    };
    let chunked = |rest: &str| chunked_to("/hang", rest);
    bench.costs("leaves while the server works", ABORTED, |bench| {
        let client = bench.h1(get("/hang", ""));
        bench.arrived();
        drop(client);
    });
    bench.costs("leaves with its body whole", ABORTED, |bench| {
        let client = bench.h1(post("/hang", 2, "") + "xy");
        bench.arrived();
        drop(client);
    });
    bench.costs("leaves with its body one byte short", ABORTED, |bench| {
        let client = bench.h1(post("/hang", 2, "") + "x");
        bench.arrived();
        drop(client);
    });
    bench.costs("shuts down its side with its body one byte short", ABORTED, |bench| {
        let mut client = bench.h1(post("/hang", 2, "") + "x");
        bench.arrived();
        client.finish();
        client
    });
    bench.costs("leaves before 100 Continue", ABORTED, |bench| {
        let client = bench.h1(post("/hang", 2, "expect: 100-continue\r\n"));
        bench.arrived();
        drop(client);
    });
    bench.costs("leaves after 100 Continue", ABORTED, |bench| {
        let mut client = bench.h1(post("/continue", 2, "expect: 100-continue\r\n"));
        bench.arrived();
        assert!(client.try_read_head().unwrap().head.contains(" 100 "));
        client.send("x");
        drop(client);
    });
    bench.costs("sends no chunk", ABORTED, |_| assert_eq!(chunked("zz\r\n"), 400));
    bench.costs("sends a chunk beyond max_body", ABORTED, |_| {
        assert_eq!(chunked(&format!("800\r\n{}", "x".repeat(2048))), 413);
    });
    bench.costs("sends broken trailers", ABORTED, |_| assert_eq!(chunked("0\r\nno colon\r\n\r\n"), 400));
    bench.costs("stalls its body", ABORTED, |_| assert_eq!(chunked_to("/stall", ""), 408));
    bench.costs("resets the connection within its body", ABORTED, |bench| {
        let client = bench.h1(post("/hang", 2, "") + "x");
        bench.arrived();
        let socket = socket2::Socket::from(client.into_stream());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        drop(socket);
    });
    bench.costs("leaves and has asked for two", [2 * COST, COST, COST, 2 * COST, COST + ACTUAL], |bench| {
        let mut client = bench.h1([get("/401", ""), get("/hang", "")].concat());
        assert_eq!(client.read_response("GET").status(), 401);
        bench.arrived();
        bench.arrived();
        drop(client);
    });
}

/// Ways to leave over HTTP/2.
fn leaving_http2(bench: &Bench) {
    let ends = |name: &str, fields: &[(&str, &str)], sent: Vec<u8>| {
        bench.costs(name, ABORTED, |bench| {
            let mut wire = bench.h2("POST", "/hang", fields);
            wire.send(frame(DATA, 0, 1, b"x"));
            bench.arrived();
            wire.send(sent);
            wire
        });
    };
    let length = [("content-length", "2")];
    bench.costs("resets a stream while the server works", ABORTED, |bench| {
        let mut wire = bench.h2_get("/hang");
        bench.arrived();
        wire.send(reset(1, CANCEL));
        wire
    });
    ends("resets a stream within its body", &length, reset(1, CANCEL));
    ends("sends more than it announced", &length, frame(DATA, END_STREAM, 1, b"yz"));
    ends("sends less than it announced", &length, frame(DATA, END_STREAM, 1, b""));
    ends("sends more than max_body", &[], frame(DATA, END_STREAM, 1, &[0; 2048]));
    bench.costs("stalls its body", ABORTED, |bench| {
        let mut wire = bench.h2("POST", "/stall", &length);
        bench.arrived();
        wire.read_response(1);
        wire
    });
    let trailers = |fields| headers(1, END_HEADERS | END_STREAM, fields);
    ends("sends a trailer in capitals", &[], trailers(&[("X-Sum", "1")]));
    ends("sends a trailer with spaces around it", &[], trailers(&[("x-sum", " 1 ")]));
    ends("breaks the protocol", &length, frame(DATA, 0, 0, b"x"));
    for (name, end) in [("leaves while the server works", END_STREAM), ("leaves within its body", 0)] {
        bench.costs(name, ABORTED, |bench| {
            let mut wire = bench.h2("POST", "/hang", &[]);
            wire.send(frame(DATA, end, 1, b"x"));
            bench.arrived();
            drop(wire);
        });
    }
    bench.costs("leaves before 100 Continue", ABORTED, |bench| {
        let wire = bench.h2("POST", "/hang", &[("expect", "100-continue"), ("content-length", "2")]);
        bench.arrived();
        drop(wire);
    });
}

/// Ends that the client does not cause, and those that reach no server.
fn other_ends(bench: &Bench) {
    let fetch = |path: &str| bench.gateway.get(path).status();
    bench.costs("200", ANSWERED, |_| assert_eq!(fetch("/200"), 200));
    bench.costs("401", [COST, 0, COST, COST, ACTUAL], |_| assert_eq!(fetch("/401"), 401));
    bench.costs("200 over HTTP/2", ANSWERED, |bench| bench.h2_get("/200").read_response(1));
    bench.costs("401 over HTTP/2", [COST, 0, COST, COST, ACTUAL], |bench| bench.h2_get("/401").read_response(1));
    bench.costs("the server breaks off its response", ANSWERED, |bench| {
        bench.h1(get("/cut", "")).try_read_response("GET").unwrap_err();
    });
    bench.costs("the client leaves within the response", ANSWERED, |bench| {
        bench.h1(get("/long", "")).try_read_head().unwrap();
    });
    bench.costs("the client resets within the response", ANSWERED, |bench| {
        let mut wire = bench.h2_get("/long");
        wire.read_until("the response", |frame| frame.kind == HEADERS);
        wire.send(reset(1, CANCEL));
        wire
    });
    bench.costs("a response before the body is whole", [COST, 0, COST, COST, ACTUAL], |bench| {
        assert_eq!(bench.h1(post("/401", 9, "") + "x").try_read_head().unwrap().status(), 401);
    });
    bench.costs("a tunnel", ANSWERED, |bench| {
        let fields = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                      sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        assert_eq!(bench.h1(get("/tunnel", fields)).try_read_head().unwrap().status(), 101);
    });
    bench.costs("a tunnel over HTTP/2", ANSWERED, |bench| {
        let mut wire = Wire::connect(bench.gateway.addr, &[]);
        wire.send(connect(1, "/tunnel", "websocket"));
        wire.read_until("the response", |frame| frame.kind == HEADERS);
    });
    bench.costs("a response of 200 to a request for a tunnel over HTTP/2", ANSWERED, |bench| {
        let mut wire = Wire::connect(bench.gateway.addr, &[]);
        wire.send(connect(1, "/200", "websocket"));
        assert_eq!(wire.read_response(1).problem_status(), 502);
    });
    bench.costs("the server closes without a response", [COST, 0, COST, COST, COST], |_| {
        assert_eq!(fetch("/break"), 502);
    });
    bench.costs("no response in time", [COST, 0, COST, COST, COST], |_| assert_eq!(fetch("/late"), 504));
    bench.costs("no server accepts", [COST, 0, COST, 0, COST], |_| assert_eq!(fetch("/nobody"), 502));
    bench.costs("an announced body beyond max_body, unread", [0, 0, COST, COST, COST], |bench| {
        assert_eq!(bench.h1(post("/hang", 4096, "")).read_response("POST").status(), 413);
        assert_eq!(bench.upstream.requests().len(), 0);
    });
    bench.costs("an announced body beyond max_body, unread, over HTTP/2", [0, 0, COST, COST, COST], |bench| {
        let mut wire = bench.h2("POST", "/hang", &[("content-length", "4096")]);
        assert_eq!(wire.read_response(1).problem_status(), 413);
        assert_eq!(bench.upstream.requests().len(), 0);
    });
    bench.costs("a response of the gateway", [COST, 0, COST, COST, COST], |_| assert_eq!(fetch("/own"), 401));
}

/// Requests that wait in the gateway: for a server with capacity, and for their turn.
fn waiting(bench: &Bench) {
    let full = bench.costs("keeps the only place", [0; 5].map(|_| COST), |bench| {
        let client = bench.h1(get("/full", ""));
        bench.arrived();
        client
    });
    bench.costs("no capacity in time", [0, 0, COST, 0, COST], |bench| {
        assert_eq!(bench.gateway.get("/full").status(), 503);
    });
    bench.costs("leaves while it waits for capacity", ABORTED, |bench| {
        let client = bench.h1(get("/full", ""));
        std::thread::sleep(Duration::from_millis(100));
        drop(client);
    });
    bench.costs("resets while it waits for capacity", ABORTED, |bench| {
        let mut wire = bench.h2_get("/full");
        std::thread::sleep(Duration::from_millis(100));
        wire.send(reset(1, CANCEL));
        wire
    });
    bench.costs("leaves the only place", [0, 0, -COST, 0, 0], |_| drop(full));
    let first = bench.h1(get("/turns", ""));
    bench.arrived();
    bench.costs("leaves while it waits for its turn", ABORTED, |bench| {
        let delayed = || bench.gateway.metric("limit_decisions_total", &DELAYED).unwrap_or(0.0);
        let before = delayed();
        let client = bench.h1(get("/turns", ""));
        wait_until("it waits", || delayed() > before);
        drop(client);
    });
    drop(first);
}

const DELAYED: [(&str, &str); 3] = [("route", "turns"), ("limit", "turns"), ("decision", "delayed")];

fn on_both_stores(test: impl Fn(&Bench) + Sync) {
    limiting::on_both_stores(|server| {
        test(&Bench::new(&server.map_or_else(String::new, RedisServer::store)));
    });
}

#[test]
fn a_client_that_ends_a_request_which_a_server_has_got_has_aborted_it_over_http1() {
    on_both_stores(leaving_http1);
}

#[test]
fn a_client_that_ends_a_request_which_a_server_has_got_has_aborted_it_over_http2() {
    leaving_http2(&Bench::new(""));
}

#[test]
fn other_ends_cost_by_their_status() {
    on_both_stores(other_ends);
}

#[test]
fn leaving_a_queue_of_the_gateway_aborts_the_request() {
    waiting(&Bench::new(""));
}
