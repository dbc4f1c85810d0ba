//! Hostile and broken TLS clients, with good requests at the same time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::listeners::{ECHO, config, gateway, handshakes};
use crate::support::ca::Ca;
use crate::support::client::{get, post};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::tls::Trust;
use crate::support::upstream::Upstream;
use crate::support::{WAIT_MAX, wait_until};

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

/// All that comes until the end, however the gateway ends it.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[track_caller]
fn until_counted(gateway: &Gateway, result: &str, count: f64) {
    wait_until(&format!("{count} handshakes are counted as {result}"), || handshakes(gateway, result) == count);
}

/// A ClientHello as a real client writes it, without the record around it.
fn hello(name: &str) -> Vec<u8> {
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = name.to_owned().try_into().unwrap();
    let mut bytes = Vec::new();
    rustls::ClientConnection::new(config.into(), name).unwrap().write_tls(&mut bytes).unwrap();
    bytes.split_off(5)
}

/// Records of a handshake, with so much of it in each.
fn records(message: &[u8], each: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1], &u16::try_from(part.len()).unwrap().to_be_bytes()[..], part].concat();
    message.chunks(each).flat_map(record).collect()
}

#[test]
fn slow_handshakes_are_closed_on_time() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "handshake_timeout = \"2s\"", ECHO);
    let whole = records(&hello("a.test"), 512);
    let silent = connect(gateway.addr);
    let sends = [&[][..], &[22], &whole[..40], &whole];
    let mut slow: Vec<TcpStream> = sends.iter().map(|_| connect(gateway.addr)).collect();
    for (stream, bytes) in slow.iter_mut().zip(sends) {
        stream.write_all(bytes).unwrap();
    }
    assert_eq!(Trust::in_ca(&ca).connect(gateway.addr, "a.test").fetch(&get("/", ""), "").status(), 200);
    for stream in slow.iter_mut().chain([&mut { silent }]) {
        // The last but one got as far as the server's part.
        rest(stream);
    }
    until_counted(&gateway, "timeout", 5.0);
    gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "handshake")], 0.0);
}

#[test]
fn connections_without_tls_are_closed_and_logged() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let mut plain = connect(gateway.addr);
    plain.write_all(get("/", "").as_bytes()).unwrap();
    let response = rest(&mut plain);
    assert!(!response.starts_with(b"HTTP/"), "{response:?}");
    until_counted(&gateway, "not_tls", 1.0);
    wait_until("it is logged", || gateway.log().contains("reason=\"not_tls\""));
}

#[test]
fn a_hello_without_end_takes_no_memory() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "handshake_timeout = \"60s\"", ECHO);
    assert_eq!(Trust::in_ca(&ca).connect(gateway.addr, "a.test").fetch(&get("/", ""), "").status(), 200);
    let memory = gateway.watch_memory();
    for each in [16_000, 100] {
        let mut stream = connect(gateway.addr);
        // A message that says that 16 MB follow, and they do.
        let mut message = vec![1, 0xf4, 0x24, 0x00];
        message.resize(16_000_000 / (16_000 / each), b'x');
        let _ = stream.write_all(&records(&message, each));
        rest(&mut stream);
    }
    until_counted(&gateway, "invalid", 2.0);
    let grown = memory.peak();
    assert!(grown < 8_000_000, "{grown} bytes more");
    // A hello in many small pieces is unusual, and good.
    let mut small = connect(gateway.addr);
    small.write_all(&records(&hello("a.test"), 7)).unwrap();
    let mut record = [0; 5];
    small.read_exact(&mut record).unwrap();
    assert_eq!(record[0], 22);
}

#[test]
fn odd_names_get_the_first_certificate_or_an_alert() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let good = hello("name-to-replace.test");
    let at = good.windows(20).position(|window| window == b"name-to-replace.test").unwrap();
    for odd in [
        &b"name\0to-replace.test"[..],
        b"../../etc/passwd....",
        b"\xff\xfe\xfd\xfc\xfbreplace.test...",
        b"....................",
        b"%00%0d%0aHost:%20a.b",
    ] {
        let mut bytes = good.clone();
        let length = odd.len().min(20);
        bytes[at..at + length].copy_from_slice(&odd[..length]);
        let mut stream = connect(gateway.addr);
        stream.write_all(&records(&bytes, 512)).unwrap();
        let mut record = [0; 5];
        stream.read_exact(&mut record).unwrap();
        assert!(matches!(record[0], 21 | 22), "{odd:?}: {record:?}");
    }
    assert_eq!(Trust::in_ca(&ca).connect(gateway.addr, "a.test").fetch(&get("/", ""), "").status(), 200);
}

#[test]
fn many_handshakes_do_not_starve_requests() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "handshake_timeout = \"60s\"", ECHO);
    let mut good = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    let hello = records(&hello("a.test"), 512);
    // How many handshakes still wait when the request is answered.
    let mut attempt = || {
        let mut flood: Vec<TcpStream> = (0..500).map(|_| connect(gateway.addr)).collect();
        gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "handshake")], 500.0);
        // All that comes meanwhile is there at once when it goes on, the request last.
        gateway.signal("STOP");
        for stream in &mut flood {
            stream.write_all(&hello).unwrap();
        }
        good.send(get("/", ""));
        gateway.signal("CONT");
        assert_eq!(good.try_read_response("GET").unwrap().status(), 200);
        let waiting = flood.iter().filter(|stream| {
            stream.set_nonblocking(true).unwrap();
            stream.peek(&mut [0]).is_err()
        });
        let waiting = waiting.count();
        for stream in &flood {
            stream.set_nonblocking(false).unwrap();
            let mut first = [0];
            assert_eq!(stream.peek(&mut first).unwrap(), 1);
            assert_eq!(first, [22], "the handshake continues");
        }
        waiting
    };
    // On a busy machine the response is read late, each time at another moment.
    let mut waiting = Vec::new();
    while waiting.last().is_none_or(|waiting| *waiting <= 200) {
        assert!(waiting.len() < 3, "the request waited for the handshakes: only {waiting:?} of 500 were left");
        waiting.push(attempt());
    }
}

#[test]
fn clients_that_leave_in_the_middle_are_counted_and_gone() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let whole = records(&hello("a.test"), 512);
    for sent in [0, 1, whole.len() / 2, whole.len()] {
        connect(gateway.addr).write_all(&whole[..sent]).unwrap();
    }
    until_counted(&gateway, "aborted", 4.0);
    gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "handshake")], 0.0);
}

#[test]
fn a_body_cut_without_close_notify_is_incomplete() {
    let (ca, upstream) = (Ca::new("test"), Upstream::silent());
    let route = format!("[[route]]\nupstream = \"{}\"\n", upstream.url());
    let gateway = gateway(&ca, &["a.test"], "", "", &route);
    // With and without close_notify, of known and unknown length.
    let chunked = "POST /cut HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    for (head, farewell) in [(post("/cut", 10, ""), false), (chunked.to_owned(), false), (chunked.to_owned(), true)] {
        let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
        client.send(head + "hello");
        if farewell {
            client.stream().conn.send_close_notify();
            let _ = client.stream().flush();
        }
        let _ = client.stream().sock.shutdown(Shutdown::Both);
    }
    let counted = |line: &str| {
        let counted = line.strip_prefix("sluicegate_requests_total{")?;
        counted.rsplit(' ').next()?.parse::<f64>().ok().filter(|_| counted.contains("route=\"/\""))
    };
    wait_until("all three connections have ended", || {
        gateway.metrics().lines().filter_map(counted).sum::<f64>() == 3.0
    });
    upstream.wait_for_close();
    assert!(upstream.requests().is_empty(), "the upstream got a whole request");
}

#[test]
fn a_half_closed_client_still_gets_its_response() {
    let (ca, upstream) = (
        Ca::new("test"),
        Upstream::start(|peer| {
            while peer.request()?.is_some() {
                std::thread::sleep(std::time::Duration::from_millis(200));
                peer.send(crate::support::upstream::ok("late"))?;
            }
            Ok(())
        }),
    );
    let route = format!("[[route]]\nupstream = \"{}\"\n", upstream.url());
    let gateway = gateway(&ca, &["a.test"], "", "", &route);
    let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    client.send(get("/", ""));
    client.stream().conn.send_close_notify();
    client.stream().flush().unwrap();
    client.stream().sock.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.try_read_response("GET").unwrap().text(), "late");
    client.assert_closed();
    // Without close_notify, the connection may have been cut: the request ends at once.
    let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    client.send(get("/", ""));
    client.stream().sock.shutdown(Shutdown::Write).unwrap();
    assert!(client.try_read_response("GET").is_err());
}

#[test]
fn a_drain_sends_a_goodbye_on_every_connection() {
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            let _ = wait.lock().unwrap().recv();
            peer.send(crate::support::upstream::ok("late"))?;
        }
        Ok(())
    });
    let ca = Ca::new("test");
    let route = format!("[[route]]\nupstream = \"{}\"\n", upstream.url());
    let mut gateway = gateway(&ca, &["a.test"], "", "", &route);
    let trust = Trust::in_ca(&ca);
    let (mut fresh, mut idle, mut busy) = (
        trust.connect(gateway.addr, "a.test"),
        trust.connect(gateway.addr, "a.test"),
        trust.connect(gateway.addr, "a.test"),
    );
    let mut handshaking = connect(gateway.addr);
    handshaking.write_all(&[22]).unwrap();
    release.send(()).unwrap();
    assert_eq!(idle.fetch(&get("/", ""), "").text(), "late");
    upstream.request();
    busy.send(get("/", ""));
    upstream.request();
    gateway.signal("TERM");
    rest(&mut handshaking);
    until_counted(&gateway, "draining", 1.0);
    release.send(()).unwrap();
    let response = busy.try_read_response("GET").unwrap();
    assert_eq!((response.text(), response.get("connection")), ("late".to_owned(), Some("close")));
    for client in [&mut fresh, &mut idle, &mut busy] {
        client.assert_closed();
    }
    assert!(gateway.exit().success());
}

#[test]
fn failed_handshakes_are_logged_with_reason_and_hint_and_sampled() {
    let ca = Ca::new("test");
    let gateway = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "0");
        config_arguments(dir, &config(1, "", "", ECHO))
    });
    let line = |reason: &str| {
        let reason = format!("reason=\"{reason}\"");
        gateway.log_lines(&["INFO", "TLS handshake failed", &reason, "listener=\"127.0.0.1:0\"", "client=127.0.0.1"])
    };
    let hello = records(&hello("a.test"), 512);
    for _ in 0..5 {
        // Of a CA that the client does not know; of no TLS; of no more than a hello.
        assert!(Trust::in_ca(&Ca::new("other")).try_connect(gateway.addr, "a.test").is_err());
        rest(&mut sent(gateway.addr, get("/", "").as_bytes()));
        drop(sent(gateway.addr, &hello));
        drop(Trust::in_ca(&ca).offering(&["spdy/1"]).try_connect(gateway.addr, "a.test"));
    }
    for reason in ["alert", "not_tls", "aborted", "incompatible"] {
        wait_until(&format!("{reason} is counted"), || handshakes(&gateway, reason) >= 5.0);
        assert_eq!(line(reason), 1, "{reason}: {}", gateway.log());
    }
    for hint in ["does not trust the certificate", "UnknownCA", "must use https://", "share no TLS version"] {
        assert!(gateway.log().contains(hint), "{hint}: {}", gateway.log());
    }
}

/// A connection on which these bytes were sent.
fn sent(addr: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(addr);
    stream.write_all(bytes).unwrap();
    stream
}

/// Handshakes of clients that have left are not computed, and do not count as connections any more.
#[test]
fn a_client_that_leaves_gives_up_its_place_in_the_queue() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "max_connections = 400", ECHO);
    let whole = records(&hello("a.test"), 512);
    gateway.signal("STOP");
    // The first of them may get a response.
    for _ in 0..300 {
        connect(gateway.addr).write_all(&whole).unwrap();
    }
    let mut good = connect(gateway.addr);
    good.write_all(&whole).unwrap();
    gateway.signal("CONT");
    let mut first = [0];
    assert_eq!(good.read(&mut first).unwrap(), 1);
    until_counted(&gateway, "aborted", 300.0);
    gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "handshake")], 1.0);
}

#[test]
fn http2_without_negotiation_is_refused_in_its_own_terms() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    assert_eq!(client.alpn(), None);
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let mut bytes = Vec::new();
    let _ = client.stream().read_to_end(&mut bytes);
    // Empty SETTINGS, then GOAWAY with HTTP_1_1_REQUIRED.
    assert_eq!(bytes[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0], "{bytes:?}");
    assert_eq!((bytes[12], &bytes[18..26]), (7, &[0, 0, 0, 0, 0, 0, 0, 13][..]), "{bytes:?}");
}
