//! The PROXY header at the start of a connection to a server, which names the client. Written for the pools and the
//! health checks.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use proxy_header::{ProxiedAddress, ProxyHeader};

use crate::labels::labels;

labels! {
    /// The version of the PROXY protocol.
    ProxyVersion:
    /// A text line.
    V1 = "v1",
    /// Binary.
    V2 = "v2",
}

impl ProxyVersion {
    /// Returns the header for a client at `source` that connected to `destination`. Connections with equal headers are
    /// interchangeable.
    pub fn client_header(self, source: SocketAddr, destination: SocketAddr) -> Rc<[u8]> {
        let (source, destination) = unify_families(source, destination);
        self.encode(&ProxyHeader::with_address(ProxiedAddress::stream(source, destination))).into()
    }

    /// Returns the header for a connection of the gateway itself: `LOCAL`, which is `UNKNOWN` in version 1.
    pub fn local_header(self) -> Vec<u8> {
        self.encode(&ProxyHeader::with_local())
    }

    fn encode(self, header: &ProxyHeader<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Encoding fails only for mixed address families and for extensions.
        let _ = match self {
            ProxyVersion::V1 => header.encode_v1(&mut bytes),
            ProxyVersion::V2 => header.encode_v2(&mut bytes),
        };
        bytes
    }
}

/// Returns both addresses in one family, as the header requires: IPv6 if either is IPv6.
fn unify_families(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let widened = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    };
    if source.is_ipv4() == destination.is_ipv4() {
        return (source, destination);
    }
    (widened(source), widened(destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_are_of_one_family() {
        let header = |version: ProxyVersion, source: &str, destination: &str| {
            version.client_header(source.parse().unwrap(), destination.parse().unwrap())
        };
        for (source, destination, line) in [
            ("192.0.2.7:4711", "198.51.100.1:443", "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n"),
            ("[2001:db8::7]:0", "[2001:db8::1]:80", "PROXY TCP6 2001:db8::7 2001:db8::1 0 80\r\n"),
            ("[2001:db8::7]:1", "198.51.100.1:80", "PROXY TCP6 2001:db8::7 ::ffff:198.51.100.1 1 80\r\n"),
            ("192.0.2.7:1", "[2001:db8::1]:80", "PROXY TCP6 ::ffff:192.0.2.7 2001:db8::1 1 80\r\n"),
        ] {
            assert_eq!(*header(ProxyVersion::V1, source, destination), *line.as_bytes());
            let binary = header(ProxyVersion::V2, source, destination);
            let (parsed, length) = ProxyHeader::parse(&binary, Default::default()).unwrap();
            let (source, destination) = unify_families(source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(
                (length, parsed.proxied_address()),
                (binary.len(), Some(&ProxiedAddress::stream(source, destination)))
            );
        }
        assert_eq!(ProxyVersion::V1.local_header(), b"PROXY UNKNOWN\r\n");
        assert_eq!(ProxyVersion::V2.local_header(), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    }
}
