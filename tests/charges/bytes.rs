//! Bytes of bodies as a cost (`settle = "response_bytes"`, `"request_bytes"`), and elements of arrays (`count`).

use socket2::SockRef;

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const QUOTA: i64 = 100_000_000;

/// Responds as the target says: `/length/N` and `/chunked/N` with a body of N bytes, `/cut/N` with N bytes of a longer
/// body, `/500/N` with an error. Reads the body of the request before.
fn start_sized() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let target = request.target().to_owned();
            let mut parts = target.trim_start_matches('/').split('/');
            let (kind, size) =
                (parts.next().unwrap_or_default().to_owned(), parts.next().unwrap_or("0").parse().unwrap());
            let body = "x".repeat(size);
            match &*kind {
                "chunked" => peer.send(format!(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/plain\r\n\r\n{size:x}\r\n{body}\r\n0\r\n\r\n"
                ))?,
                "cut" => {
                    peer.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", size + 1000))?;
                    return Ok(());
                }
                "500" => peer.send(format!("HTTP/1.1 500 No\r\ncontent-length: {size}\r\n\r\n{body}"))?,
                "hang" => return peer.wait_for_end(),
                _ => peer.send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {size}\r\n\r\n{body}"
                ))?,
            }
        }
        Ok(())
    })
}

fn start_gateway(store: &str, upstream: &str, route: &str, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "{store}[[route]]\nupstream = \"{upstream}\"\nlimits = [\"bytes\"]\n{route}\n[limit.bytes]\n\
         algorithm = \"fixed_window\"\nrate = \"{QUOTA}/h\"\nkey = \"all\"\n{limit}\n"
    ))
}

fn used(gateway: &Gateway) -> i64 {
    let state = gateway.admin("/-/limits/bytes/state").json();
    QUOTA - state["remaining"].as_i64().unwrap_or_else(|| panic!("{state}"))
}

#[track_caller]
fn assert_used(gateway: &Gateway, expected: i64, what: &str) {
    wait_until(&format!("{expected} bytes after {what}, not {}", used(gateway)), || used(gateway) == expected);
}

#[test]
fn bytes_of_responses_count_however_they_are_framed() {
    on_both_stores(|redis| {
        let upstream = start_sized();
        let store = redis.map_or_else(String::new, RedisServer::store);
        let gateway =
            start_gateway(&store, &upstream.url(), "compress = true", "settle = \"response_bytes\"\nrefund_on = [500]");
        let mut total = 0;
        for (target, bytes) in [("/length/2000", 2000), ("/chunked/3000", 3000), ("/500/700", 0), ("/length/0", 0)] {
            let response = gateway.get(target);
            assert!(response.body.len() as i64 >= bytes, "{target}");
            total += bytes;
            assert_used(&gateway, total, target);
        }
        // A cut response costs what passed.
        let mut client = gateway.client();
        client.send(get("/cut/1500", ""));
        let _ = client.rest();
        total += 1500;
        assert_used(&gateway, total, "a cut response");
        // What the client gets counts, not what the server sent.
        let compressed = gateway.fetch(&get("/length/50000", "accept-encoding: gzip\r\n"));
        let length = compressed.body.len() as i64;
        assert!(length < 5000, "{length}");
        assert_eq!(gateway.fetch("HEAD /length/900 HTTP/1.1\r\nhost: a\r\n\r\n").status(), 200);
        wait_until("the compressed response is counted", || used(&gateway) > total);
        let counted = used(&gateway) - total;
        assert!((1..5000).contains(&counted), "{counted}");
    });
}

#[test]
fn bytes_of_requests_count_even_if_the_client_leaves() {
    let upstream = start_sized();
    let gateway = start_gateway("", &upstream.url(), "", "settle = [\"request_bytes\"]");
    assert_eq!(gateway.fetch(&(post("/length/9", 6, "") + "abcdef")).status(), 200);
    assert_used(&gateway, 6, "a body with a length");
    let chunked = "POST /length/9 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n4;x=y\r\nabcd\r\n0\r\n\r\n";
    assert_eq!(gateway.fetch(chunked).status(), 200);
    assert_used(&gateway, 15, "a chunked body");
    // The client leaves in its body, before a response.
    let mut client = gateway.client();
    client.send(post("/hang", 5000, "") + &"x".repeat(1234));
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(client);
    assert_used(&gateway, 15 + 1234, "a body that broke off");
}

#[test]
fn a_long_response_is_charged_while_it_passes() {
    let upstream = start_sized();
    let gateway = start_gateway("", &upstream.url(), "", "settle = \"response_bytes\"\ncost = 0");
    let mut client = gateway.client();
    // What the buffers of the sockets hold has passed the gateway. Unbounded, they may hold all of it.
    SockRef::from(&*client.stream()).set_recv_buffer_size(1 << 20).unwrap();
    client.send(get("/length/80000000", ""));
    client.bytes(30_000_000);
    wait_until("a part is charged", || (16_000_000..80_000_000).contains(&used(&gateway)));
    client.bytes(50_000_000);
    assert_used(&gateway, 80_000_000, "a long response");
}

#[test]
fn elements_of_an_array_are_units() {
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let gateway = start_gateway(&store, "echo:", "max_cost_body = 200", "cost = { count = \"json:/items\" }");
        let send = |kind: &str, body: &str| {
            let head = post("/", body.len() as u64, &format!("content-type: {kind}\r\n"));
            gateway.fetch(&(head + body)).status()
        };
        let json = |body: &str| send("application/json", body);
        for (body, status, cost) in [
            (r#"{"items":[1,2,3]}"#, 200, 3),
            (r#"{"items":[[1,2],{"items":[1,2,3]}]}"#, 200, 2),
            (r#"{"items":[]}"#, 200, 0),
            (r#"{"items":{"0":1}}"#, 400, 0),
            (r#"{"items":"[1,2]"}"#, 400, 0),
            (r#"{"items":null}"#, 400, 0),
            (r#"{"other":[1]}"#, 400, 0),
            (r#"{"items":[1],"items":[1,2,3]}"#, 400, 0),
            (r#"{"items":[1,2"#, 400, 0),
        ] {
            let before = used(&gateway);
            assert_eq!((json(body), used(&gateway) - before), (status, cost), "{body}");
        }
        assert_eq!(json(&format!("{{\"items\":[{}]}}", vec!["1"; 200].join(","))), 413);
        assert_eq!(send("text/plain", r#"{"items":[1]}"#), 415);
        assert_eq!(send("application/x-www-form-urlencoded", "items=1"), 415);
        assert_eq!(gateway.get("/").status(), 400);
        assert_eq!(used(&gateway), 5);
    });
}
