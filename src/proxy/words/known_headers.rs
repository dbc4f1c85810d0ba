//! The set of well-known headers that a head contains, found in one pass over its names. Looking up each of them in the
//! header map would cost one hash computation per absent header. Also reads those of them that are lists.

use http::{HeaderMap, HeaderName};

pub use crate::names::{is_ambiguous_name, names_client};

/// A header with a meaning for the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownHeader {
    Connection,
    KeepAlive,
    ProxyConnection,
    ProxyAuthenticate,
    ProxyAuthorization,
    Http2Settings,
    Upgrade,
    TransferEncoding,
    Te,
    Trailer,
    Via,
    Host,
    ContentLength,
    ContentType,
    Expect,
    Forwarded,
    SecFetchMode,
    /// `Upload-Complete` or `Upload-Draft-Interop-Version`: the client knows resumable uploads.
    ResumableUpload,
}

/// The set of well-known headers in a head.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderSet {
    /// One bit per [`KnownHeader`].
    known: u32,
    /// The head has headers that name the client: `X-Forwarded-*`, `X-Real-IP` or `X-Request-ID`.
    pub has_client_headers: bool,
    /// A body without `Content-Length` follows on an HTTP/2 stream.
    pub has_streamed_body: bool,
    /// A header name contains other characters than letters, digits and `-`.
    pub has_ambiguous_names: bool,
}

impl KnownHeader {
    /// Returns the header with this name, in lower case. `None` if the gateway gives it no meaning.
    pub fn from_name(name: &str) -> Option<KnownHeader> {
        Some(match name {
            "connection" => KnownHeader::Connection,
            "keep-alive" => KnownHeader::KeepAlive,
            "proxy-connection" => KnownHeader::ProxyConnection,
            "proxy-authenticate" => KnownHeader::ProxyAuthenticate,
            "proxy-authorization" => KnownHeader::ProxyAuthorization,
            "http2-settings" => KnownHeader::Http2Settings,
            "upgrade" => KnownHeader::Upgrade,
            "transfer-encoding" => KnownHeader::TransferEncoding,
            "te" => KnownHeader::Te,
            "trailer" => KnownHeader::Trailer,
            "via" => KnownHeader::Via,
            "host" => KnownHeader::Host,
            "content-length" => KnownHeader::ContentLength,
            "content-type" => KnownHeader::ContentType,
            "expect" => KnownHeader::Expect,
            "forwarded" => KnownHeader::Forwarded,
            "sec-fetch-mode" => KnownHeader::SecFetchMode,
            "upload-complete" | "upload-draft-interop-version" => KnownHeader::ResumableUpload,
            _ => return None,
        })
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl HeaderSet {
    /// Returns the well-known headers in the head of a response. Its other names are not checked.
    pub fn from_response(headers: &HeaderMap) -> HeaderSet {
        let known = headers.keys().filter_map(|name| KnownHeader::from_name(name.as_str()));
        HeaderSet { known: known.fold(0, |bits, known| bits | known.bit()), ..HeaderSet::default() }
    }

    /// Returns the well-known headers in the head of a request.
    pub fn from_headers(headers: &HeaderMap) -> HeaderSet {
        let mut fields = HeaderSet::default();
        for name in headers.keys() {
            let name = name.as_str();
            match KnownHeader::from_name(name) {
                Some(known) => fields.known |= known.bit(),
                None => {
                    fields.has_client_headers |= names_client(name);
                    fields.has_ambiguous_names |= is_ambiguous_name(name);
                }
            }
        }
        fields
    }

    pub fn has(self, known: KnownHeader) -> bool {
        self.known & known.bit() != 0
    }

    /// Returns true if the head has any of `known`.
    pub fn has_any(self, known: &[KnownHeader]) -> bool {
        let bits = known.iter().fold(0, |bits, known| bits | known.bit());
        self.known & bits != 0
    }
}

/// Returns the list elements of all lines of a header.
pub fn list_elements<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let elements = headers.get_all(name).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}
