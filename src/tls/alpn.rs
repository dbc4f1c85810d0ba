//! What a client is offered to speak in the handshake (ALPN, RFC 7301).

use crate::labels::labels;

labels! {
    /// In the order of preference, by their names in the handshake.
    Alpn:
    Http2 = "h2",
    Http11 = "http/1.1",
}

impl Alpn {
    /// The list for the handshake.
    pub fn offered(http2: bool) -> Vec<Vec<u8>> {
        let offered = Alpn::ALL.iter().filter(|protocol| http2 || **protocol != Alpn::Http2);
        offered.map(|protocol| protocol.label().into()).collect()
    }

    /// What was agreed on; a client that asked for nothing speaks HTTP/1.1.
    pub fn agreed(name: Option<&[u8]>) -> Alpn {
        let agreed = Alpn::ALL.iter().find(|protocol| Some(protocol.label().as_bytes()) == name);
        agreed.copied().unwrap_or(Alpn::Http11)
    }
}
