//! Key exchanges that clients offer, and the long ClientHello of the post-quantum one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, SECP256R1MLKEM768, SECP384R1, X25519, X25519MLKEM768};
use rustls::{ClientConnection, HandshakeKind, NamedGroup};

use super::listeners::{ECHO, config, gateway, handshakes};
use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::tls::Trust;
use crate::support::{WAIT_MAX, wait_until};

#[test]
fn clients_get_the_first_key_exchange_that_both_sides_know() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let cases: [(&[&'static dyn SupportedKxGroup], NamedGroup); 6] = [
        (&[X25519], NamedGroup::X25519),
        // As browsers offer them.
        (&[X25519MLKEM768, X25519, SECP256R1, SECP384R1], NamedGroup::X25519MLKEM768),
        (&[X25519MLKEM768], NamedGroup::X25519MLKEM768),
        // The client's order decides, and its key share is used.
        (&[X25519, X25519MLKEM768], NamedGroup::X25519),
        (&[SECP256R1], NamedGroup::secp256r1),
        (&[SECP384R1], NamedGroup::secp384r1),
    ];
    for (offered, expected) in cases {
        let trust = Trust::exchanging(&ca, offered);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut client = trust.connect(gateway.addr, "a.test");
            assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
            let session = &client.stream().conn;
            let group = session.negotiated_key_exchange_group().unwrap().name();
            assert_eq!((group, session.handshake_kind()), (expected, Some(kind)), "{offered:?}");
        }
    }
    // A client without the key share for a common group gets a second chance.
    let mut client = Trust::exchanging(&ca, &[SECP256R1MLKEM768, X25519]).connect(gateway.addr, "a.test");
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    assert_eq!(client.stream().conn.handshake_kind(), Some(HandshakeKind::FullWithHelloRetryRequest));
    // TLS 1.2 has no post-quantum key exchange.
    let mut old = Trust::with(&ca, None, &[&rustls::version::TLS12]).connect(gateway.addr, "a.test");
    assert_eq!(old.fetch(&get("/", ""), "").status(), 200);
    assert_eq!(old.stream().conn.negotiated_key_exchange_group().unwrap().name(), NamedGroup::X25519);
    assert!(Trust::exchanging(&ca, &[SECP256R1MLKEM768]).try_connect(gateway.addr, "a.test").is_err());
    wait_until("it is counted", || handshakes(&gateway, "incompatible") == 1.0);
}

/// Completes the handshake after the client has sent its ClientHello, and returns the start of a response.
fn finish(mut session: ClientConnection, mut stream: TcpStream) -> String {
    while session.is_handshaking() {
        session.complete_io(&mut stream).unwrap();
    }
    let mut stream = rustls::StreamOwned::new(session, stream);
    stream.write_all(get("/", "").as_bytes()).unwrap();
    let mut start = [0; 15];
    stream.read_exact(&mut start).unwrap();
    String::from_utf8(start.to_vec()).unwrap()
}

#[test]
fn a_long_hello_may_come_in_several_segments_and_records() {
    let ca = Ca::new("test");
    let plain = gateway(&ca, &["a.test"], "", "", ECHO);
    let proxied = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "0");
        let server = "trusted_proxies = [\"127.0.0.1\"]";
        let text = config(1, "", server, ECHO);
        config_arguments(dir, &text.replace("[[listener]]\n", "[[listener]]\nproxy_protocol = true\n"))
    });
    let header = "PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n";
    for (gateway, prefix) in [(&plain, ""), (&proxied, header)] {
        // Positions in the hello: within the record's header, within the name, and behind the first segment of a path
        // with an MTU of 1280 or 1500 bytes.
        for cut in [1, 3, 5, 6, 80, 1220, 1448] {
            for in_records in [false, true] {
                let mut session = Trust::in_ca(&ca).session("a.test");
                let mut hello = Vec::new();
                session.write_tls(&mut hello).unwrap();
                assert!(hello.len() > 1448, "{}", hello.len());
                let (mut first, mut second) = (hello[..cut].to_vec(), hello[cut..].to_vec());
                if in_records && cut > 5 {
                    let record = |part: &[u8]| {
                        [&[22, 3, 1], &u16::try_from(part.len()).unwrap().to_be_bytes()[..], part].concat()
                    };
                    (first, second) = (record(&hello[5..cut]), record(&hello[cut..]));
                }
                let mut stream = TcpStream::connect(gateway.addr).unwrap();
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
                stream.write_all(&[prefix.as_bytes(), &first].concat()).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                stream.write_all(&second).unwrap();
                assert_eq!(finish(session, stream), "HTTP/1.1 200 OK", "{cut} {in_records} {prefix}");
            }
        }
    }
    assert_eq!(handshakes(&plain, "full"), 14.0);
}
