//! The set of well-known headers that a head contains, found in one pass over its names. Looking up each of them in the
//! header map would cost one hash computation per absent header. Also reads those of them that are lists.

use http::{HeaderMap, HeaderName, HeaderValue};

pub use crate::received_headers::KnownHeader;
use crate::received_headers::{is_ambiguous_name, names_client};

/// The set of well-known headers in a head.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderSet {
    /// One bit per [`KnownHeader`].
    known: u32,
    /// The head has headers that name the client: `X-Forwarded-*`, `X-Real-IP` or `X-Request-ID`.
    pub has_client_headers: bool,
    /// A body without `Content-Length` follows on a stream of HTTP/2 or HTTP/3.
    pub has_streamed_body: bool,
    /// A header name contains other characters than letters, digits and `-`.
    pub has_ambiguous_names: bool,
}

fn bit(known: KnownHeader) -> u32 {
    1 << known as u32
}

impl HeaderSet {
    /// Returns the well-known headers in the head of a response. Its other names are not checked.
    pub fn from_response(headers: &HeaderMap) -> HeaderSet {
        let fields = headers.keys().filter_map(|name| KnownHeader::from_name(name.as_str()));
        HeaderSet { known: fields.fold(0, |bits, field| bits | bit(field)), ..HeaderSet::default() }
    }

    /// Returns the well-known headers in the head of a request.
    pub fn from_headers(headers: &HeaderMap) -> HeaderSet {
        let mut fields = HeaderSet::default();
        for name in headers.keys() {
            let name = name.as_str();
            match KnownHeader::from_name(name) {
                Some(known) => fields.known |= bit(known),
                None => {
                    fields.has_client_headers |= names_client(name);
                    fields.has_ambiguous_names |= is_ambiguous_name(name);
                }
            }
        }
        fields
    }

    pub fn has(self, known: KnownHeader) -> bool {
        self.known & bit(known) != 0
    }

    /// Returns true if the head has any of `known`.
    pub fn has_any(self, known: &[KnownHeader]) -> bool {
        let bits = known.iter().fold(0, |bits, known| bits | bit(*known));
        self.known & bits != 0
    }
}

/// Returns the value of a header that has one line.
pub fn find_single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    first.filter(|_| lines.next().is_none())
}

/// Returns the list elements of all lines of a header.
pub fn list_elements<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let elements = headers.get_all(name).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}
