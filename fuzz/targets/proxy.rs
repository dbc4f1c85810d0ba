//! Whatever a connection begins with where a PROXY header is due: as much is read as the header has, whatever
//! follows, and whom it names is what its bytes say, read by hand.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sluicegate::fuzzing::{ProxyHeaderResult, parse_header, read_bytes};

/// Version 1, line end included; version 2 with 2 KiB behind its first 16 bytes.
const LONGEST: usize = 16 + 2048;
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes are all there: what waits for more has its end.
fn read(mut bytes: &[u8]) -> Option<Vec<u8>> {
    match pin!(read_bytes(&mut bytes)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(found) => found.ok(),
        Poll::Pending => panic!("bytes that are there are waited for"),
    }
}

/// Whom a line speaks for: `PROXY TCP4 192.0.2.1 192.0.2.2 4711 443`.
fn by_line(header: &[u8]) -> Option<SocketAddr> {
    let line = std::str::from_utf8(header).unwrap().strip_suffix("\r\n").unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[0], "PROXY");
    if words[1] == "UNKNOWN" {
        return None;
    }
    let (ip, port): (IpAddr, u16) = (words[2].parse().unwrap(), words[4].parse().unwrap());
    assert_eq!((words.len(), words[1]), (6, if ip.is_ipv4() { "TCP4" } else { "TCP6" }));
    assert_eq!(words[3].parse::<IpAddr>().unwrap().is_ipv4(), ip.is_ipv4());
    Some(SocketAddr::new(ip, port))
}

/// The same in version 2: of which only streams of IP name anybody.
fn by_bytes(header: &[u8]) -> Option<SocketAddr> {
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    match (header[12], header[13]) {
        (0x21, 0x11) => {
            let ip = <[u8; 4]>::try_from(&header[16..20]).unwrap();
            Some(SocketAddr::from((ip, port(24))))
        }
        (0x21, 0x21) => {
            let ip = <[u8; 16]>::try_from(&header[16..32]).unwrap();
            Some(SocketAddr::from((ip, port(48))))
        }
        (version, _) => {
            assert_eq!(version & 0xf0, 0x20);
            None
        }
    }
}

pub type Input<'a> = (&'a [u8], &'a [u8], u8);

pub fn run(input: Input<'_>) {
    let (bytes, after, kind) = input;
    // Few guess the signature.
    let begin: &[u8] = match kind % 4 {
        0 => b"",
        1 => b"PROXY TCP",
        2 => SIGNATURE,
        _ => b"\r\n\r\n\0\r\nQUIT\n\x21",
    };
    let bytes = [begin, bytes].concat();
    let Some(found) = read(&bytes) else { return };
    assert!(found.len() <= LONGEST && bytes.starts_with(&found));
    assert_eq!(read(&[&found, after].concat()), Some(found.clone()), "what follows counts");
    let text = found.starts_with(b"PROXY ");
    if text {
        assert!(found.len() <= 107 && found.ends_with(b"\n"));
    } else {
        assert!(found.starts_with(SIGNATURE));
        assert_eq!(found.len(), 16 + usize::from(u16::from_be_bytes([found[14], found[15]])));
    }
    match parse_header(&found) {
        Some(ProxyHeaderResult::Client(client)) => {
            let said = if text { by_line(&found) } else { by_bytes(&found) };
            assert_eq!(said, Some(client.source));
        }
        Some(ProxyHeaderResult::Itself) if text => assert!(found.starts_with(b"PROXY UNKNOWN")),
        // LOCAL, or addresses that are none of IP.
        Some(ProxyHeaderResult::Itself) => assert!(found[12] == 0x20 || found[13] >> 4 == 0 || found[13] & 0xf == 0),
        Some(ProxyHeaderResult::Missing) | None => {}
    }
}
