//! Facts about this hop for the next one: the client connection (`X-Forwarded-*`) and the gateway's own name (`Via`).
//! `Via` also detects loops.

use std::cell::RefCell;
use std::net::IpAddr;

use http::header::VIA;
use http::{HeaderMap, HeaderValue, Version};

use crate::config::ForwardedHeaders;
use crate::proxy::words::known_headers::list_elements;

/// The facts of a client connection as header values. Created once per connection, so that a request only clones
/// references.
#[derive(Clone, Debug)]
pub struct Hop {
    pub(crate) peer: IpAddr,
    pub(crate) peer_text: HeaderValue,
    pub(crate) proto: HeaderValue,
    /// The header lines of the last request, which are the same for all requests that name the same port.
    pub(crate) cached_lines: RefCell<Option<ForwardingLines>>,
}

impl Hop {
    pub fn new(peer: IpAddr, tls: bool) -> Hop {
        let peer = peer.to_canonical();
        Hop {
            peer,
            peer_text: address_value(peer),
            proto: HeaderValue::from_static(if tls { "https" } else { "http" }),
            cached_lines: RefCell::default(),
        }
    }
}

/// Forwarding headers, written as lines of a head.
#[derive(Clone, Debug)]
pub(crate) struct ForwardingLines {
    /// The headers that were configured when the lines were written.
    pub(crate) fields: ForwardedHeaders,
    /// The port that the client used, as the lines have it.
    pub(crate) port: Box<[u8]>,
    pub(crate) lines: Box<[u8]>,
}

/// The name of this process in `Via`. Each process has its own, so that two gateways in a row are not mistaken for a
/// loop.
#[derive(Clone, Debug)]
pub struct Via {
    pseudonym: String,
    field: HeaderValue,
    field_h2: HeaderValue,
    field_h3: HeaderValue,
}

impl Via {
    pub fn new(instance: u32) -> Via {
        let pseudonym = format!("sluicegate-{instance:08x}");
        // The text is always ASCII, so the fallback is never used.
        let [field, field_h2, field_h3] = ["1.1", "2.0", "3.0"].map(|received| {
            let field = HeaderValue::try_from(format!("{received} {pseudonym}"));
            field.unwrap_or(HeaderValue::from_static("1.1 sluicegate"))
        });
        Via { pseudonym, field, field_h2, field_h3 }
    }

    /// Returns the `Via` element for a message that was received over `version`.
    pub fn header_value(&self, version: Version) -> &HeaderValue {
        match version {
            Version::HTTP_2 => &self.field_h2,
            Version::HTTP_3 => &self.field_h3,
            _ => &self.field,
        }
    }

    /// Returns true if the request has already passed this process.
    pub fn is_listed_in(&self, headers: &HeaderMap) -> bool {
        list_elements(headers, &VIA).any(|element| {
            let mut words = element.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
            words.nth(1).is_some_and(|received_by| received_by.eq_ignore_ascii_case(self.pseudonym.as_bytes()))
        })
    }
}

pub(crate) fn address_value(ip: IpAddr) -> HeaderValue {
    // An address is always ASCII, so the fallback is never used.
    HeaderValue::try_from(ip.to_string()).unwrap_or(HeaderValue::from_static("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_name_as_receiver_is_a_loop() {
        for (line, looped) in [
            ("1.1 sluicegate-000000ab", true),
            ("1.1 edge,1.1  Sluicegate-000000AB (x)", true),
            ("1.1 sluicegate-000000abc", false),
            ("1.1 edge (sluicegate-000000ab)", false),
            ("sluicegate-000000ab", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(VIA, HeaderValue::from_static("1.0 first"));
            headers.append(VIA, HeaderValue::from_static(line));
            assert_eq!(Via::new(0xab).is_listed_in(&headers), looped, "{line}");
        }
    }
}
