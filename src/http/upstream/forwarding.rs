//! What this hop tells the upstream of the client and of itself: the forwarding fields, as far as
//! `[server] forwarded_headers` wants them. Called by `gateway` once the request's own are clean.

use std::cell::RefCell;
use std::fmt::Write;
use std::net::IpAddr;

use http::header::{FORWARDED, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::config::{ForwardedHeader, ForwardedHeaders};
use crate::http::downstream::hop::{Hop, Told, Via, address_value};
use crate::http::downstream::identity::Identity;
use crate::http::fields::speaks_of_client;
use crate::http::upstream::h1::request::write_field;
use crate::route::HeaderEdit;

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
    /// Of the request.
    pub version: Version,
    pub identity: &'a Identity,
    pub fields: ForwardedHeaders,
    /// As it is known already; else one is made where it is wanted.
    pub request_id: Option<&'a HeaderValue>,
}

/// The id of a request: that of a trusted peer, or a new one.
pub fn identify(headers: &HeaderMap, trusted_peer: bool) -> HeaderValue {
    let named = headers.get(X_REQUEST_ID).filter(|_| trusted_peer);
    named.cloned().unwrap_or_else(new_request_id)
}

/// Tells the client the id of its request.
pub fn answer_id(headers: &mut HeaderMap, id: &HeaderValue) {
    headers.insert(X_REQUEST_ID, id.clone());
}

/// Whether a route's own changes touch what is told, or may be.
pub fn is_edited(edit: &HeaderEdit) -> bool {
    let told = |name: &HeaderName| speaks_of_client(name.as_str()) || *name == VIA || *name == FORWARDED;
    edit.remove.iter().any(told) || edit.set.iter().any(|(name, _)| told(name))
}

impl Forwarding<'_> {
    /// Adds the wanted fields to a head whose foreign ones are gone. What a trusted peer said stays
    /// where it is about the client, and is continued where it is a chain.
    /// `authority`: what the request has asked, empty where it says none.
    pub fn tell(&self, headers: &mut HeaderMap, authority: &HeaderValue) {
        let Forwarding { hop, via, version, identity, fields, .. } = self;
        let client = if identity.ip == hop.peer { hop.peer_text.clone() } else { address_value(identity.ip) };
        let forwarded = fields.has(ForwardedHeader::Forwarded).then(|| self.element(headers, authority));
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
        if !authority.is_empty() {
            set(ForwardedHeader::XForwardedHost, X_FORWARDED_HOST, authority);
        }
        if fields.has(ForwardedHeader::Via) {
            headers.append(VIA, via.field(*version).clone());
        }
        let named = identity.trusted_peer && headers.contains_key(X_REQUEST_ID);
        if fields.has(ForwardedHeader::XRequestId) && !named {
            headers.insert(X_REQUEST_ID, self.request_id.cloned().unwrap_or_else(new_request_id));
        }
        if let Some(forwarded) = forwarded {
            headers.insert(FORWARDED, forwarded);
        }
    }

    /// Writes the same as lines of a head. Only for a peer that is not trusted, whose head says nothing of
    /// the client: what all its requests say alike is written once for the connection.
    pub fn write(&self, out: &mut Vec<u8>, authority: &HeaderValue) {
        let mut told = self.hop.told.borrow_mut();
        match &*told {
            Some(told) if told.fields == self.fields => out.extend_from_slice(&told.lines),
            _ => {
                let lines = self.lines_of_connection();
                out.extend_from_slice(&lines);
                *told = Some(Told { fields: self.fields, lines });
            }
        }
        if self.fields.has(ForwardedHeader::XForwardedHost) && !authority.is_empty() {
            write_field(out, &X_FORWARDED_HOST, authority);
        }
        if self.fields.has(ForwardedHeader::XRequestId) {
            out.extend_from_slice(b"x-request-id: ");
            match self.request_id {
                Some(id) => out.extend_from_slice(id.as_bytes()),
                None => out.extend_from_slice(&request_id()),
            }
            out.extend_from_slice(b"\r\n");
        }
        if self.fields.has(ForwardedHeader::Forwarded) {
            write_field(out, &FORWARDED, &self.element(&HeaderMap::new(), authority));
        }
    }

    fn lines_of_connection(&self) -> Box<[u8]> {
        let constant = [
            ForwardedHeader::XForwardedFor,
            ForwardedHeader::XRealIp,
            ForwardedHeader::XForwardedProto,
            ForwardedHeader::XForwardedPort,
            ForwardedHeader::Via,
        ];
        let fields = constant.into_iter().filter(|field| self.fields.has(*field)).collect();
        let (mut headers, mut lines) = (HeaderMap::new(), Vec::new());
        Forwarding { fields, ..*self }.tell(&mut headers, &HeaderValue::from_static(""));
        headers.iter().for_each(|(name, value)| write_field(&mut lines, name, value));
        lines.into()
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
    fn element(&self, headers: &HeaderMap, authority: &HeaderValue) -> HeaderValue {
        let Forwarding { hop, identity, .. } = self;
        let said = |name: HeaderName| headers.get(name).filter(|_| identity.trusted_peer);
        let mut text = String::with_capacity(64);
        write_node(&mut text, identity.ip);
        let host = said(X_FORWARDED_HOST).unwrap_or(authority);
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

fn new_request_id() -> HeaderValue {
    HeaderValue::from_bytes(&request_id()).unwrap_or(HeaderValue::from_static("-"))
}

thread_local! {
    /// For what is only to be unique: a generator for secrets would cost ten times as much.
    static UNIQUE: RefCell<SmallRng> = RefCell::new(SmallRng::from_os_rng());
}

/// 128 random bits in hexadecimal digits; unique, not secret.
fn request_id() -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut id = [0; 32];
    let bytes: [u8; 16] = UNIQUE.with_borrow_mut(|unique| unique.random());
    for (pair, byte) in id.as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::downstream::identity;
    use crate::net::{IpSet, parse_network};

    fn told(peer: &str, fields: ForwardedHeaders, came: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers: HeaderMap =
            came.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        let peer: IpAddr = peer.parse().unwrap();
        let trusted: IpSet = parse_network("10.0.0.0/8").into_iter().collect();
        let identity = identity::identify(peer, &headers, &trusted);
        let (hop, via) = (Hop::new(peer, false, 8080), Via::new(1));
        let forwarding = Forwarding {
            hop: &hop,
            via: &via,
            version: Version::HTTP_11,
            identity: &identity,
            fields,
            request_id: None,
        };
        let authority = HeaderValue::from_static("shop.example");
        forwarding.tell(&mut headers, &authority);
        if !identity.trusted_peer {
            for _ in 0..2 {
                let mut written = Vec::new();
                forwarding.write(&mut written, &authority);
                assert_eq!(lines(&written), lines_of(&headers));
            }
        }
        headers
    }

    /// Those of a head, in order, the random part of a request ID left out.
    fn lines(head: &[u8]) -> Vec<String> {
        let head = String::from_utf8(head.to_vec()).unwrap();
        let mut lines: Vec<String> = head.split_terminator("\r\n").map(|line| line.to_owned()).collect();
        lines.iter_mut().filter(|line| line.starts_with("x-request-id: ")).for_each(|line| line.truncate(14));
        lines.sort();
        lines
    }

    fn lines_of(headers: &HeaderMap) -> Vec<String> {
        let mut head = Vec::new();
        headers.iter().for_each(|(name, value)| write_field(&mut head, name, value));
        lines(&head)
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
        assert!(one.iter().all(u8::is_ascii_hexdigit));
        assert_ne!(one, other);
    }
}
