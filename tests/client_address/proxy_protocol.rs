//! PROXY headers on client connections: which peers are trusted, which headers are read, and which are refused.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::tls::Trust;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Starts a gateway whose only listener expects PROXY headers and trusts those of `trusted`.
fn gateway(upstream: &Upstream, trusted: &str, server: &str, listener: &str, rest: &str) -> Gateway {
    let config = format!(
        "[server]\nworkers = 1\ntrusted_proxies = [\"{trusted}\"]\n{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = true\n{listener}\n\n[[route]]\nname = \"app\"\n\
         upstream = \"{}\"\n{rest}",
        upstream.url()
    );
    Gateway::launch(&[], |dir| config_arguments(dir, &config))
}

/// Builds a header of version 2 with this command and family, followed by `rest`.
fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[0x20 | command, family][..], &length, rest].concat()
}

fn addresses(from: &str, to: &str) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    [octets(from.ip()), octets(to.ip()), from.port().to_be_bytes().to_vec(), to.port().to_be_bytes().to_vec()].concat()
}

fn missing(gateway: &Gateway) -> f64 {
    gateway.metric("http_rejected_total", &[("reason", "proxy_header")]).unwrap_or_default()
}

#[test]
fn the_client_is_whom_a_trusted_proxy_names_in_either_version() {
    let upstream = Upstream::text("in");
    let gateway = gateway(&upstream, "127.0.0.1", "", "", "");
    let (v4, v6) =
        (addresses("192.0.2.7:4711", "198.51.100.1:443"), addresses("[2001:db8::7]:4711", "[2001:db8::1]:443"));
    // An extension of 40 bytes, and one with a false length.
    let extended = [&v4[..], &[0x20, 0, 40], &[7; 40], &[0x01, 0xff, 0xff]].concat();
    let mapped =
        addresses(&format!("[{}]:1", Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0207])), "[2001:db8::1]:443");
    for (header, client, port) in [
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n".to_vec(), "192.0.2.7", Some("443")),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n".to_vec(), "2001:db8::7", Some("443")),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1", None),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n".to_vec(), "127.0.0.1", None),
        (binary(1, 0x11, &v4), "192.0.2.7", Some("443")),
        (binary(1, 0x21, &v6), "2001:db8::7", Some("443")),
        (binary(1, 0x21, &mapped), "192.0.2.7", Some("443")),
        (binary(1, 0x11, &extended), "192.0.2.7", Some("443")),
        (binary(0, 0x00, &[]), "127.0.0.1", None),
        (binary(0, 0x11, &v4), "127.0.0.1", None),
        (binary(1, 0x31, &[0; 216]), "127.0.0.1", None),
    ] {
        for piece in [usize::MAX, 5] {
            let mut client_connection = gateway.client();
            let whole = [&header[..], get("/", "x-forwarded-for: 203.0.113.9\r\n").as_bytes()].concat();
            for bytes in whole.chunks(piece.min(whole.len())) {
                client_connection.send(bytes);
                std::thread::sleep(Duration::from_millis(u64::from(piece == 5)));
            }
            assert_eq!(client_connection.read_response("GET").status(), 200, "{header:?}");
            let seen = upstream.request();
            // If the PROXY header names no client, the trusted proxy itself is the client, and its forwarding headers
            // count.
            let expected = if port.is_some() { client.to_owned() } else { "203.0.113.9, 127.0.0.1".to_owned() };
            assert_eq!(seen.get("x-forwarded-for"), Some(&*expected), "{header:?}");
            // That of the scheme: the host names no port, and the PROXY header may name an inner one.
            assert_eq!(seen.get("x-forwarded-port"), Some("80"), "{header:?}");
            // The header counts for every request of the connection.
            assert_eq!(client_connection.fetch(&get("/", ""), "").status(), 200);
            upstream.request();
        }
    }
    assert_eq!(missing(&gateway), 0.0);
}

#[test]
fn connections_without_a_valid_header_are_closed_and_counted() {
    let upstream = Upstream::text("in");
    let gateway = gateway(&upstream, "127.0.0.1", "handshake_timeout = \"500ms\"", "", "");
    let v4 = addresses("192.0.2.7:1", "198.51.100.1:2");
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
    let mut expected = 0.0;
    for header in [
        get("/", "").into_bytes(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 2001:db8::1 1 2\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 65536\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1\r\n".to_vec(),
        b"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n".to_vec(),
        b"proxy TCP4 192.0.2.7 198.51.100.1 1 2\r\n".to_vec(),
        long.into_bytes(),
        binary(1, 0x12, &v4),
        binary(1, 0x11, &v4[..11]),
        binary(1, 0x41, &v4),
        binary(2, 0x11, &v4),
        binary(1, 0x11, &[0; 2049]),
        // Incomplete headers are closed in time.
        b"PROXY TCP4 192.0.2.7".to_vec(),
        binary(1, 0x11, &v4)[..20].to_vec(),
        Vec::new(),
    ] {
        let mut client = gateway.client();
        let _ = client.try_send([&header[..], b""].concat());
        client.assert_closed();
        expected += 1.0;
        wait_until(&format!("{header:?} is counted"), || missing(&gateway) == expected);
    }
    assert!(upstream.requests().is_empty());
}

#[test]
fn nobody_else_is_believed_and_a_client_cannot_add_a_header_of_its_own() {
    let upstream = Upstream::text("in");
    let spoof = "PROXY TCP4 192.0.2.66 198.51.100.1 1 2\r\n";
    let others = gateway(&upstream, "127.0.0.2", "", "", "");
    let mut client = others.client();
    assert_eq!(client.fetch(&format!("{spoof}{}", get("/", "x-forwarded-for: 192.0.2.66\r\n")), "").status(), 200);
    assert_eq!(upstream.request().get("x-forwarded-for"), Some("127.0.0.1"));

    let behind = gateway(
        &upstream,
        "127.0.0.1",
        "",
        "",
        "deny = [\"192.0.2.66\"]\nlimits = [\"one\"]\n[limit.one]\nrate = \"1/h\"\nkey = \"ip\"",
    );
    // A second PROXY header is not a request.
    let mut client = behind.client();
    client.send(format!("PROXY TCP4 192.0.2.1 198.51.100.1 1 2\r\n{spoof}{}", get("/", "")));
    assert_eq!(client.try_read_response("GET").map(|response| response.status()).unwrap_or(400), 400);
    let fetch = |from: &str, fields: &str| {
        let mut client = behind.client();
        client.send(format!("PROXY TCP4 {from} 198.51.100.1 1 2\r\n{}", get("/", fields)));
        client.read_response("GET").status()
    };
    assert_eq!((fetch("192.0.2.66", ""), fetch("192.0.2.66", "x-forwarded-for: 192.0.2.2\r\n")), (403, 403));
    assert_eq!(
        (fetch("192.0.2.3", ""), fetch("192.0.2.3", "forwarded: for=192.0.2.4\r\n"), fetch("192.0.2.4", "")),
        (200, 429, 200)
    );
}

#[test]
fn the_proxy_header_precedes_tls_and_clients_count_by_their_own_address() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send(ok("in"))?;
        }
        Ok(())
    });
    let ca = Ca::new("test");
    let config = format!(
        "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\nmax_connections_per_ip = 2\n[admin]\nlisten = \
         \"127.0.0.1:0\"\n\n[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = true\ntls = {{ certificates = \
         [{{ cert = \"0.pem\", key = \"0.key\" }}] }}\n\n[[route]]\nupstream = \"{}\"\n",
        upstream.url()
    );
    let gateway = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "0");
        config_arguments(dir, &config)
    });
    let connect = |from: &str| {
        let mut stream = std::net::TcpStream::connect(gateway.addr).unwrap();
        stream.write_all(format!("PROXY TCP4 {from} 198.51.100.1 1 443\r\n").as_bytes()).unwrap();
        stream
    };
    let mut client = Trust::in_ca(&ca).over(connect("192.0.2.7"), "a.test");
    assert_eq!(client.fetch(&get("/", ""), "").text(), "in");
    let seen = upstream.request();
    assert_eq!((seen.get("x-forwarded-for"), seen.get("x-forwarded-proto")), (Some("192.0.2.7"), Some("https")));
    let mut others: Vec<_> =
        (1..=3).map(|i| Trust::in_ca(&ca).over(connect(&format!("192.0.2.10{i}")), "a.test")).collect();
    assert!(others.iter_mut().all(|other| other.fetch(&get("/", ""), "").status() == 200));
    let _second = connect("192.0.2.7");
    gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "handshake")], 1.0);
    let mut third = Client::of(connect("192.0.2.7"));
    third.assert_closed();
    gateway.assert_metric("http_rejected_total", &[("reason", "max_connections_per_ip")], 1.0);
}
