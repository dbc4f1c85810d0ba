//! Connections that switch protocols: which ones do, what a tunnel transfers and occupies, and how it ends.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::{Peer, Upstream, ok};
use crate::support::{WAIT_MAX, wait_until};

const UPGRADE: &str = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: y\r\n\r\n";

/// Switches, then runs `script`.
fn switching(script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.get("upgrade").is_some() {
                peer.send(SWITCH)?;
                return script(peer);
            }
            peer.send(ok("plain"))?;
        }
        Ok(())
    })
}

/// Sends back what it gets, to the end.
fn echoing() -> Upstream {
    switching(|peer| {
        while let Ok(byte) = peer.exactly(1) {
            peer.send(byte)?;
        }
        peer.finish()
    })
}

fn in_front_of(upstream: &Upstream, server: &str, route: &str) -> Gateway {
    Gateway::with(
        server,
        &format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{route}\n", upstream.url()),
    )
}

/// A client whose connection has switched.
#[track_caller]
fn open(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    client.send(get("/chat", UPGRADE));
    let head = client.try_read_head().unwrap();
    assert_eq!(head.status(), 101, "{}", head.head);
    client
}

#[track_caller]
fn assert_echo(client: &mut Client) {
    client.send("ping");
    assert_eq!(client.bytes(4), b"ping");
}

fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = (0..251).collect::<Vec<u8>>().repeat(length / 251 + 1);
    bytes.truncate(length);
    bytes
}

#[test]
fn both_sides_read_the_upgrade_and_its_handshake_headers() {
    let upstream = echoing();
    let gateway = in_front_of(&upstream, "", "");
    let mut client = gateway.client();
    client.send(get("/chat?room=1", &format!("{UPGRADE}sec-websocket-protocol: a, b\r\nkeep-alive: 5\r\n")));
    let head = client.try_read_head().unwrap();
    assert_eq!(
        (head.status(), head.get("upgrade"), head.get("sec-websocket-accept")),
        (101, Some("websocket"), Some("y"))
    );
    assert_eq!(
        (head.get("connection"), head.get("content-length"), head.get("transfer-encoding")),
        (Some("upgrade"), None, None)
    );
    let seen = upstream.request();
    assert_eq!(
        (seen.target(), seen.get("host"), seen.get("x-forwarded-for")),
        ("/chat?room=1", Some("a.test"), Some("127.0.0.1"))
    );
    assert_eq!((seen.get("connection"), seen.get("upgrade")), (Some("upgrade"), Some("websocket")));
    assert_eq!((seen.get("sec-websocket-protocol"), seen.get("keep-alive")), (Some("a, b"), None));
    assert_echo(&mut client);
}

#[test]
fn much_arrives_whole_at_a_side_that_reads_late_and_little_of_it_waits_here() {
    const MUCH: usize = 24 * 1024 * 1024;
    let upstream = switching(|peer| {
        peer.send(pattern(MUCH))?;
        std::thread::sleep(Duration::from_millis(300));
        let whole = peer.exactly(MUCH as u64)? == pattern(MUCH);
        peer.note(if whole { "whole" } else { "broken" });
        Ok(())
    });
    let gateway = in_front_of(&upstream, "", "");
    assert_eq!(gateway.get("/").text(), "plain");
    upstream.request();
    let memory = gateway.watch_memory();
    let mut client = open(&gateway);
    upstream.request();
    // Both sides write, and neither reads for a while.
    let mut sending = client.stream().try_clone().unwrap();
    let sender = std::thread::spawn(move || sending.write_all(&pattern(MUCH)).unwrap());
    std::thread::sleep(Duration::from_millis(300));
    let grown = memory.peak();
    eprintln!("{} KiB more for a tunnel whose client does not read", grown >> 10);
    assert!(grown < 2 << 20, "{grown} bytes more");
    assert!(client.bytes(MUCH) == pattern(MUCH));
    sender.join().unwrap();
    assert_eq!(upstream.request().head, "whole");
}

#[test]
fn bytes_behind_both_heads_are_not_lost() {
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send(format!("{SWITCH}first"))?;
        let early = peer.exactly(5)?;
        peer.send(early)?;
        peer.wait_for_end()
    });
    let gateway = in_front_of(&upstream, "", "");
    let mut client = gateway.client();
    client.send(format!("{}early", get("/", UPGRADE)));
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    assert_eq!(client.bytes(10), b"firstearly");

    // Data of the tunnel may look like a request with a broken body.
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send(SWITCH)?;
        let early = peer.exactly(90)?;
        peer.send(early)?;
        peer.wait_for_end()
    });
    let second = in_front_of(&upstream, "", "");
    let early = format!("{:.<90}", "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\nx\r\n0\r\n\n");
    for split in [0, 20, 48, 53, 90] {
        let mut client = second.client();
        client.send(format!("{}{}", get("/", UPGRADE), &early[..split]));
        if split < 48 {
            assert_eq!(client.try_read_head().unwrap().status(), 101);
        }
        client.send(&early[split..]);
        if split >= 48 {
            assert_eq!(client.try_read_head().unwrap().status(), 101);
        }
        assert_eq!(String::from_utf8_lossy(&client.bytes(90)), early, "{split}");
    }

    // Byte by byte.
    let mut client = gateway.client();
    for byte in format!("{}early", get("/", UPGRADE)).as_bytes() {
        client.send([*byte]);
    }
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    assert_eq!(client.bytes(10), b"firstearly");
}

#[test]
fn bytes_behind_a_request_that_switches_nothing_are_the_next_request() {
    // A client that offers an upgrade must wait for the response, and a server that ignores the offer continues with
    // HTTP (RFC 9931, 4 and 5). CONNECT is different.
    let upstream = Upstream::text("plain");
    let gateway = in_front_of(&upstream, "", "");
    let mut client = gateway.client();
    client.send(format!("{}{}", get("/one", UPGRADE), get("/two", "")));
    assert_eq!(
        (client.read_response("GET").text(), client.read_response("GET").text()),
        ("plain".to_owned(), "plain".to_owned())
    );
    assert_eq!((upstream.request().target(), upstream.request().target()), ("/one", "/two"));
    assert_eq!(upstream.connections(), 1);
    gateway.assert_metric("tunnels", &[], 0.0);
}

#[test]
fn a_half_close_is_forwarded_and_the_other_direction_continues() {
    let upstream = switching(|peer| {
        let all = peer.rest()?;
        peer.send([b"got ", &all[..]].concat())?;
        peer.finish()
    });
    let gateway = in_front_of(&upstream, "", "");
    let mut client = open(&gateway);
    client.send("hello");
    client.finish();
    assert_eq!(client.rest().unwrap(), b"got hello");

    let upstream = switching(|peer| {
        peer.send("bye")?;
        peer.finish()?;
        let rest = peer.rest()?;
        peer.note(&String::from_utf8_lossy(&rest));
        Ok(())
    });
    let gateway = in_front_of(&upstream, "", "");
    let mut client = open(&gateway);
    upstream.request();
    assert_eq!(client.rest().unwrap(), b"bye");
    client.send("and you");
    client.finish();
    assert_eq!(upstream.request().head, "and you");
    gateway.assert_metric("tunnels", &[], 0.0);
}

#[test]
fn one_side_that_closes_ends_the_other() {
    let upstream = switching(|peer| {
        peer.wait_for_end()?;
        peer.note("ended");
        Ok(())
    });
    let gateway = in_front_of(&upstream, "", "");
    drop(open(&gateway));
    upstream.request();
    assert_eq!(upstream.request().head, "ended");
    gateway.assert_metric("tunnels", &[], 0.0);

    let upstream = switching(|_| Ok(()));
    let gateway = in_front_of(&upstream, "", "");
    open(&gateway).assert_closed();
    gateway.assert_metric("tunnels", &[], 0.0);
}

#[test]
fn an_unrequested_101_is_502() {
    for (fetch, response) in [
        ("", SWITCH),
        ("upgrade: websocket\r\n", SWITCH),
        ("connection: upgrade\r\n", SWITCH),
        ("connection: upgrade\r\nupgrade: h2c\r\n", "HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"),
        (UPGRADE, "HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: tcp\r\n\r\n"),
        (UPGRADE, "HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: websocket, h2c\r\n\r\n"),
        (UPGRADE, "HTTP/1.1 101 S\r\nconnection: upgrade\r\n\r\n"),
        (UPGRADE, "HTTP/1.1 101 S\r\n\r\n"),
    ] {
        let upstream = Upstream::start(move |peer| {
            peer.request()?;
            peer.send(response)?;
            peer.wait_for_end()?;
            peer.note("ended");
            Ok(())
        });
        let gateway = in_front_of(&upstream, "", "");
        let mut client = gateway.client();
        assert_eq!(client.fetch(&get("/", fetch), "").status(), 502, "{fetch}{response}");
        upstream.request();
        assert_eq!(upstream.request().head, "ended", "{fetch}{response}");
        gateway.assert_metric("tunnels", &[], 0.0);
    }
}

#[test]
fn upgrades_without_a_tunnel_continue_as_plain_requests() {
    let upstream = echoing();
    let gateway = in_front_of(&upstream, "", "");
    let only = in_front_of(&upstream, "", "upgrades = [\"tcp\"]");
    let none = in_front_of(&upstream, "", "upgrades = []");
    let old = |fields: &str| format!("GET / HTTP/1.0\r\nhost: a.test\r\n{fields}\r\n");
    for (gateway, head) in [
        (&gateway, get("/", "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n")),
        (&gateway, get("/", "connection: upgrade\r\nupgrade: HTTP/2.0, TLS/1.2\r\n")),
        (&gateway, get("/", "connection: keep-alive\r\nupgrade: websocket\r\n")),
        (&gateway, old(UPGRADE)),
        (&only, get("/", UPGRADE)),
        // No other protocol takes the place of the first one.
        (&only, get("/", "connection: upgrade\r\nupgrade: foo, tcp\r\n")),
        (&none, get("/", UPGRADE)),
    ] {
        assert_eq!(gateway.fetch(&head).text(), "plain", "{head}");
        let seen = upstream.request();
        assert_eq!(
            (seen.get("upgrade"), seen.get("connection"), seen.get("http2-settings")),
            (None, None, None),
            "{head}"
        );
    }
    let mut client = only.client();
    client.send(get("/", "connection: upgrade\r\nupgrade: h2c, TCP, websocket\r\n"));
    client.try_read_head().unwrap();
    assert_eq!(upstream.request().get("upgrade"), Some("TCP"));
}

/// A list of protocols shows a route, and with it its limits, no other protocol than the server.
#[test]
fn a_list_of_protocols_evades_no_route() {
    let upstream = echoing();
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"ws\"\npath = \"/\"\nheader = {{ upgrade = \"websocket\" }}\nupstream = \"{0}\"\nlimits = [\"one\"]\n\
         [[route]]\npath = \"/\"\nupgrades = [\"websocket\"]\nupstream = \"{0}\"\n\
         [limit.one]\nrate = \"1/day\"\nkey = \"all\"\n",
        upstream.url()
    ));
    for (offered, status) in [
        ("websocket", 101),
        ("websocket", 429),
        ("h2c, WebSocket", 429),
        ("websocket, foo", 429),
        ("foo, websocket", 200),
        ("foo/1, h2c, websocket", 200),
    ] {
        let mut client = gateway.client();
        client.send(get("/", &format!("connection: upgrade\r\nupgrade: {offered}\r\n")));
        assert_eq!(client.try_read_head().unwrap().status(), status, "{offered}");
    }
}

#[test]
fn a_request_with_a_body_switches_once_all_of_it_has_been_sent() {
    let upstream = Upstream::start(|peer| {
        let head = peer.head()?.unwrap();
        // A server that does not wait for the end.
        peer.send("HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: tcp\r\n\r\n")?;
        let length: u64 = head.get("content-length").unwrap().parse().unwrap();
        let body = peer.exactly(length)?;
        let rest = peer.rest()?;
        peer.note(&String::from_utf8([body, rest].concat()).unwrap());
        Ok(())
    });
    let gateway = in_front_of(&upstream, "", "");
    let mut client = gateway.client();
    client.send(post("/exec", 8, "connection: upgrade\r\nupgrade: tcp\r\n"));
    upstream.request();
    client.send("bo");
    std::thread::sleep(Duration::from_millis(50));
    client.send("dy[end");
    std::thread::sleep(Duration::from_millis(50));
    client.send("].then");
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    client.send(" more");
    client.finish();
    assert_eq!(upstream.request().head, "body[end].then more");
}

#[test]
fn a_tunnel_is_charged_once_and_holds_its_slots_to_its_end() {
    let upstream = echoing();
    let gateway = in_front_of(
        &upstream,
        "",
        "limits = [\"spent\", \"slots\"]\nmax_in_flight = 2\n\n[limit.spent]\nrate = \"3/h\"\nkey = \"all\"\n\n\
         [limit.slots]\nalgorithm = \"concurrency\"\nin_flight = 1\nkey = \"ip\"\nlease = \"1s\"",
    );
    let mut tunnel = open(&gateway);
    // Longer than a lease lasts without renewal.
    std::thread::sleep(Duration::from_millis(1500));
    assert_echo(&mut tunnel);
    let refused = gateway.fetch(&get("/", UPGRADE));
    assert_eq!((refused.status(), refused.json()["violated-policies"][0].as_str()), (429, Some("slots")));
    assert_eq!(gateway.get("/").status(), 429);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 1.0);
    gateway.assert_metric("tunnels", &[], 1.0);
    drop(tunnel);
    gateway.assert_metric("tunnels", &[], 0.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    wait_until("the slot is free", || gateway.get("/").status() == 200);
    // The tunnel and the last request were charged. Bytes in the tunnel and refused requests cost nothing.
    assert_eq!((gateway.get("/").status(), gateway.get("/").status()), (200, 429));
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "101")], 1.0);
}

#[test]
fn max_in_flight_and_max_tunnels_count_tunnels_and_refuse_unasked() {
    let upstream = echoing();
    let gateway = in_front_of(&upstream, "", "max_in_flight = 1");
    let tunnel = open(&gateway);
    assert_eq!(gateway.get("/").status(), 503);
    drop(tunnel);
    wait_until("the route has room", || gateway.get("/").status() == 200);

    let limited = "limits = [\"spent\"]\n[limit.spent]\nrate = \"3/h\"\nkey = \"all\"";
    let gateway = in_front_of(&upstream, "max_tunnels = 2", limited);
    let (first, _second) = (open(&gateway), open(&gateway));
    let refused = gateway.fetch(&get("/", UPGRADE));
    assert_eq!(refused.status(), 503, "{}", refused.text());
    assert!(refused.text().contains("too many upgraded connections"), "{}", refused.text());
    gateway.assert_metric("http_rejected_total", &[("reason", "max_tunnels")], 1.0);
    drop(first);
    // The refused request was not charged: one unit is left.
    let mut third = None;
    wait_until("there is room for another", || {
        let mut client = gateway.client();
        client.send(get("/", UPGRADE));
        let status = client.try_read_head().unwrap().status();
        third = Some(client);
        status != 503
    });
    assert_echo(&mut third.unwrap());
    assert_eq!(gateway.get("/").status(), 429);

    let gateway = in_front_of(&upstream, "max_tunnels = 0", "");
    assert_eq!((gateway.fetch(&get("/", UPGRADE)).status(), gateway.get("/").status()), (503, 200));
}

#[test]
fn a_silent_tunnel_is_closed_and_one_that_speaks_is_not() {
    let upstream = echoing();
    let gateway = in_front_of(&upstream, "tunnel_timeout = \"1h\"", "tunnel_timeout = \"600ms\"");
    let (mut silent, mut speaking) = (open(&gateway), open(&gateway));
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        assert_echo(&mut speaking);
        std::thread::sleep(Duration::from_millis(100));
    }
    silent.assert_closed();
    assert_echo(&mut speaking);
    gateway.assert_metric("http_rejected_total", &[("reason", "tunnel_timeout")], 1.0);

    // Once one side has ended, the other has less time.
    let gateway = in_front_of(&upstream, "stream_timeout = \"300ms\"", "");
    let open_still = open(&gateway);
    let upstream = switching(|peer| {
        peer.rest()?;
        // Longer than the client waits.
        std::thread::sleep(2 * WAIT_MAX);
        Ok(())
    });
    let half_open = in_front_of(&upstream, "stream_timeout = \"300ms\"", "");
    let mut client = open(&half_open);
    client.finish();
    client.assert_closed();
    gateway.assert_metric("tunnels", &[], 1.0);
    drop(open_still);
}

#[test]
fn reloads_leave_tunnels_alone() {
    let upstream = echoing();
    let gateway = in_front_of(&upstream, "", "");
    let mut tunnel = open(&gateway);
    let plain = "[[route]]\nname = \"other\"\npath = \"/\"\nrespond = { body = \"new\" }\n";
    gateway.reload(&crate::support::gateway::config("max_tunnels = 0", plain));
    wait_until("the reload is active", || gateway.get("/").text() == "new");
    for _ in 0..3 {
        assert_echo(&mut tunnel);
    }
    gateway.assert_metric("tunnels", &[], 1.0);
}

#[test]
fn at_the_end_tunnels_live_on_until_requests_must_have_ended_and_are_no_failure() {
    let upstream = echoing();
    let mut gateway = in_front_of(&upstream, "shutdown_timeout = \"1s\"", "");
    let mut tunnel = open(&gateway);
    gateway.signal("TERM");
    wait_until("the listener is closed", || std::net::TcpStream::connect(gateway.addr).is_err());
    assert_echo(&mut tunnel);
    tunnel.assert_closed();
    assert_eq!(gateway.exit().code(), Some(0));

    // The gateway does not wait longer for a tunnel that has ended.
    let mut gateway = in_front_of(&upstream, "shutdown_timeout = \"1h\"", "");
    let tunnel = open(&gateway);
    gateway.signal("TERM");
    wait_until("the listener is closed", || std::net::TcpStream::connect(gateway.addr).is_err());
    drop(tunnel);
    assert_eq!(gateway.exit().code(), Some(0));
}
