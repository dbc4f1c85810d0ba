//! The PROXY header with which a connection to a server begins: whose client it is for. Written for the
//! pools and the checks.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use proxy_header::{ProxiedAddress, ProxyHeader};

use crate::labels::labels;

labels! {
    /// In which form.
    ProxyVersion:
    /// A line of text.
    V1 = "v1",
    /// Binary.
    V2 = "v2",
}

impl ProxyVersion {
    /// Of a client at `source` that asked `destination`. Connections that begin alike serve alike.
    pub fn header(self, source: SocketAddr, destination: SocketAddr) -> Rc<[u8]> {
        let (source, destination) = alike(source, destination);
        self.encode(&ProxyHeader::with_address(ProxiedAddress::stream(source, destination))).into()
    }

    /// Of a connection that this gateway makes for itself: `LOCAL`, for which version 1 has `UNKNOWN`.
    pub fn own(self) -> Vec<u8> {
        self.encode(&ProxyHeader::with_local())
    }

    fn encode(self, header: &ProxyHeader<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        // It refuses nothing but addresses of two families, and extensions.
        let _ = match self {
            ProxyVersion::V1 => header.encode_v1(&mut bytes),
            ProxyVersion::V2 => header.encode_v2(&mut bytes),
        };
        bytes
    }
}

/// Of one family, as a header has them: that of IPv6 if one is of that.
fn alike(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
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
            version.header(source.parse().unwrap(), destination.parse().unwrap())
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
            let (source, destination) = alike(source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(
                (length, parsed.proxied_address()),
                (binary.len(), Some(&ProxiedAddress::stream(source, destination)))
            );
        }
        assert_eq!(ProxyVersion::V1.own(), b"PROXY UNKNOWN\r\n");
        assert_eq!(ProxyVersion::V2.own(), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    }
}
