//! What this hop tells the upstream of the client and of itself: the forwarding fields, as far as
//! `[server] forwarded_headers` wants them. Called by `headers` once the request's own are clean.

use std::fmt::Write;
use std::net::IpAddr;

use bytes::Bytes;
use http::header::{FORWARDED, VIA};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::{ForwardedHeader, ForwardedHeaders};
use crate::http::downstream::gate::Admitted;
use crate::http::downstream::hop::{Hop, Via, address_value};
use crate::http::downstream::identity::Identity;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Who speaks to the upstream, for whom, and in which fields.
pub struct Forwarding<'a> {
    pub hop: &'a Hop,
    pub via: &'a Via,
    pub identity: &'a Identity,
    pub fields: ForwardedHeaders,
}

/// Whether the field says something of the client, so that one which no trusted peer sent goes.
pub fn speaks_of_client(name: &str) -> bool {
    name.starts_with("x-forwarded-") || name == X_REAL_IP || name == X_REQUEST_ID
}

impl Forwarding<'_> {
    /// Adds the wanted fields to a head whose foreign ones are gone. What a trusted peer said stays
    /// where it is about the client, and is continued where it is a chain.
    pub fn tell(&self, headers: &mut HeaderMap, admitted: &Admitted) {
        let Forwarding { hop, via, identity, fields } = self;
        let client = if identity.ip == hop.peer { hop.peer_text.clone() } else { address_value(identity.ip) };
        let forwarded = fields.has(ForwardedHeader::Forwarded).then(|| self.element(headers, admitted));
        headers.remove(FORWARDED);
        if fields.has(ForwardedHeader::XForwardedFor) {
            let chain = match identity.trusted_peer {
                true => self.continued(headers, &client),
                false => hop.peer_text.clone(),
            };
            headers.insert(X_FORWARDED_FOR, chain);
        }
        if fields.has(ForwardedHeader::XRealIp) {
            headers.insert(X_REAL_IP, client);
        }
        let mut set = |wanted, name: HeaderName, value: &HeaderValue| {
            if fields.has(wanted) && !(identity.trusted_peer && headers.contains_key(&name)) {
                headers.insert(name, value.clone());
            }
        };
        set(ForwardedHeader::XForwardedProto, X_FORWARDED_PROTO, &hop.proto);
        set(ForwardedHeader::XForwardedPort, X_FORWARDED_PORT, &hop.port);
        if !admitted.authority().is_empty() {
            set(ForwardedHeader::XForwardedHost, X_FORWARDED_HOST, admitted.authority());
        }
        if fields.has(ForwardedHeader::Via) {
            headers.append(VIA, via.field().clone());
        }
        let named = identity.trusted_peer && headers.contains_key(X_REQUEST_ID);
        if fields.has(ForwardedHeader::XRequestId) && !named {
            headers.insert(X_REQUEST_ID, request_id());
        }
        if let Some(forwarded) = forwarded {
            headers.insert(FORWARDED, forwarded);
        }
    }

    /// The chain of a trusted peer with the peer added, on one line: many servers read only one.
    fn continued(&self, headers: &HeaderMap, client: &HeaderValue) -> HeaderValue {
        let Forwarding { hop, identity, .. } = self;
        let mut chain = Vec::new();
        for line in headers.get_all(X_FORWARDED_FOR) {
            chain.extend_from_slice(line.as_bytes());
            chain.extend_from_slice(b", ");
        }
        // The client was named by `Forwarded`, which does not go on as it came.
        if chain.is_empty() && identity.ip != hop.peer {
            chain.extend_from_slice(client.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(hop.peer_text.as_bytes());
        HeaderValue::try_from(chain).unwrap_or_else(|_| hop.peer_text.clone())
    }

    /// `Forwarded` (RFC 7239) of the one identity that the limits saw: the client, with the host and
    /// scheme it used, then the peer if that is another.
    fn element(&self, headers: &HeaderMap, admitted: &Admitted) -> HeaderValue {
        let Forwarding { hop, identity, .. } = self;
        let said = |name: HeaderName| headers.get(name).filter(|_| identity.trusted_peer);
        let mut text = String::with_capacity(64);
        write_node(&mut text, identity.ip);
        let host = said(X_FORWARDED_HOST).unwrap_or(admitted.authority());
        // A quoted string has no need of escapes for what is no quote and no backslash.
        if let Some(host) = host.to_str().ok().filter(|host| !host.is_empty() && !host.contains(['"', '\\'])) {
            let _ = write!(text, ";host=\"{host}\"");
        }
        let https = said(X_FORWARDED_PROTO).unwrap_or(&hop.proto) == "https";
        let _ = write!(text, ";proto={}", if https { "https" } else { "http" });
        if identity.ip != hop.peer {
            text.push_str(", ");
            write_node(&mut text, hop.peer);
        }
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("for=unknown"))
    }
}

fn write_node(text: &mut String, ip: IpAddr) {
    let _ = match ip {
        IpAddr::V4(ip) => write!(text, "for={ip}"),
        IpAddr::V6(ip) => write!(text, "for=\"[{ip}]\""),
    };
}

/// 128 random bits in hexadecimal digits; unique, not secret.
fn request_id() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let text: Vec<u8> = rand::random::<[u8; 16]>()
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
        .collect();
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or(HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::HOST;

    use super::*;
    use crate::config::Strictness;
    use crate::http::downstream::gate;
    use crate::http::downstream::identity;
    use crate::net::{IpSet, parse_network};

    fn told(peer: &str, fields: ForwardedHeaders, came: &[(&'static str, &str)]) -> HeaderMap {
        let mut parts = Request::new(()).into_parts().0;
        parts.headers.insert(HOST, HeaderValue::from_static("shop.example"));
        let admitted = gate::admit(&parts, Strictness::Strict).unwrap();
        let mut headers: HeaderMap =
            came.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        let peer: IpAddr = peer.parse().unwrap();
        let trusted: IpSet = parse_network("10.0.0.0/8").into_iter().collect();
        let identity = identity::identify(peer, &headers, &trusted);
        let (hop, via) = (Hop::new(peer, false, 8080), Via::new(1));
        Forwarding { hop: &hop, via: &via, identity: &identity, fields }.tell(&mut headers, &admitted);
        headers
    }

    #[test]
    fn only_the_wanted_fields_are_added() {
        let all = [
            (ForwardedHeader::XForwardedFor, "x-forwarded-for"),
            (ForwardedHeader::XRealIp, "x-real-ip"),
            (ForwardedHeader::XForwardedProto, "x-forwarded-proto"),
            (ForwardedHeader::XForwardedHost, "x-forwarded-host"),
            (ForwardedHeader::XForwardedPort, "x-forwarded-port"),
            (ForwardedHeader::Via, "via"),
            (ForwardedHeader::XRequestId, "x-request-id"),
            (ForwardedHeader::Forwarded, "forwarded"),
        ];
        for (wanted, name) in all {
            let headers = told("192.0.2.1", [wanted].into_iter().collect(), &[]);
            assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), [name]);
        }
        assert!(told("192.0.2.1", [].into_iter().collect(), &[("forwarded", "for=1.1.1.1")]).is_empty());
    }

    #[test]
    fn forwarded_names_the_client_that_the_limits_saw() {
        let told = |peer, came: &[_]| {
            told(peer, [ForwardedHeader::Forwarded].into_iter().collect(), came)["forwarded"]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(told("192.0.2.1", &[]), "for=192.0.2.1;host=\"shop.example\";proto=http");
        assert_eq!(told("2001:db8::1", &[]), "for=\"[2001:db8::1]\";host=\"shop.example\";proto=http");
        let came = [("x-forwarded-for", "6.6.6.6, 198.51.100.7"), ("x-forwarded-proto", "https")];
        assert_eq!(told("10.0.0.1", &came), "for=198.51.100.7;host=\"shop.example\";proto=https, for=10.0.0.1");
        let came = [("forwarded", "for=198.51.100.7"), ("x-forwarded-host", "a\"b")];
        assert_eq!(told("10.0.0.1", &came), "for=198.51.100.7;proto=http, for=10.0.0.1");
    }

    #[test]
    fn request_ids_are_32_digits_and_differ() {
        let (one, other) = (request_id(), request_id());
        assert!(one.len() == 32 && one.as_bytes().iter().all(u8::is_ascii_hexdigit));
        assert_ne!(one, other);
    }
}
