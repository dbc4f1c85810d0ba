//! Negotiation of the protocol in the TLS handshake (ALPN, RFC 7301).

use crate::labels::labels;

labels! {
    /// Protocols that clients may negotiate, in the order of preference, with their names in the handshake.
    Alpn:
    Http2 = "h2",
    Http11 = "http/1.1",
}

/// The name that old clients offer alone, such as `curl --http1.0`. They are served as clients of HTTP/1.1, whose
/// requests state their version.
const HTTP_10: &str = "http/1.0";

impl Alpn {
    /// Returns the protocols that a listener offers. `http2`: whether HTTP/2 is one of them.
    pub fn offered_names(http2: bool) -> Vec<Vec<u8>> {
        let protocols = Alpn::ALL.iter().filter(|protocol| http2 || **protocol != Alpn::Http2);
        protocols.map(|protocol| protocol.label()).chain([HTTP_10]).map(Into::into).collect()
    }

    /// Returns the negotiated protocol. A client without ALPN speaks HTTP/1.1 or HTTP/1.0.
    pub fn from_negotiated(name: Option<&[u8]>) -> Alpn {
        let protocol = Alpn::ALL.iter().find(|protocol| Some(protocol.label().as_bytes()) == name);
        protocol.copied().unwrap_or(Alpn::Http11)
    }
}
