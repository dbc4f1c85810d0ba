//! The headers that describe the client and this gateway to servers: `X-Forwarded-*`, `Forwarded`, `Via` and
//! `X-Request-Id`, as far as `[server] forwarded_headers` enables them. Called by `dispatch` after the headers of the
//! request were cleaned.

use std::fmt::Write;
use std::net::IpAddr;

use http::header::{FORWARDED, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::config::{ForwardedHeader, ForwardedHeaders};
use crate::proxy::head::hop::{ForwardingLines, Hop, Via, address_value};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::request_id;
use crate::proxy::head::request_id::X_REQUEST_ID;
use crate::proxy::outbound::http1::request::write_header;
use crate::received_headers::names_client;
use crate::route::HeaderEdit;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The input of the headers.
pub struct ForwardedHeadersWriter<'a> {
    pub hop: &'a Hop,
    pub via: &'a Via,
    /// HTTP version of the request.
    pub version: Version,
    pub identity: &'a ClientAddress,
    pub fields: ForwardedHeaders,
    /// The id of the request, if it has one already. Otherwise one is generated if the header is enabled.
    pub request_id: Option<&'a HeaderValue>,
}

/// Returns whether the header edits of a route touch any of these headers.
pub fn has_edits(edit: &HeaderEdit) -> bool {
    let describes_client = |name: &HeaderName| names_client(name.as_str()) || *name == VIA || *name == FORWARDED;
    edit.names().any(describes_client)
}

impl ForwardedHeadersWriter<'_> {
    /// Adds the enabled headers. Those of untrusted peers were removed before. Those of a trusted peer stay if they
    /// describe the client, and are continued if they are a list. `authority`: the host of the request; empty if it has
    /// none.
    pub fn add_to_headers(&self, headers: &mut HeaderMap, authority: &HeaderValue) {
        let ForwardedHeadersWriter { hop, via, version, identity, fields, .. } = self;
        let client = if identity.ip == hop.peer { hop.peer_text.clone() } else { address_value(identity.ip) };
        let element = fields.has(ForwardedHeader::Forwarded).then(|| self.forwarded_element(headers, authority));
        headers.remove(FORWARDED);
        if fields.has(ForwardedHeader::XForwardedFor) {
            let chain = match identity.trusted_peer {
                true => self.continue_forwarded_for(headers, &client),
                false => hop.peer_text.clone(),
            };
            headers.insert(X_FORWARDED_FOR, chain);
        }
        if fields.has(ForwardedHeader::XRealIp) {
            headers.insert(X_REAL_IP, client);
        }
        let has_port = fields.has(ForwardedHeader::XForwardedPort);
        let port = has_port.then(|| HeaderValue::from_bytes(self.client_port(headers, authority)).ok()).flatten();
        let mut set = |wanted, name: HeaderName, value: &HeaderValue| {
            if fields.has(wanted) && !(identity.trusted_peer && headers.contains_key(&name)) {
                headers.insert(name, value.clone());
            }
        };
        set(ForwardedHeader::XForwardedProto, X_FORWARDED_PROTO, &hop.proto);
        if let Some(port) = &port {
            set(ForwardedHeader::XForwardedPort, X_FORWARDED_PORT, port);
        }
        if !authority.is_empty() {
            set(ForwardedHeader::XForwardedHost, X_FORWARDED_HOST, authority);
        }
        if fields.has(ForwardedHeader::Via) {
            headers.append(VIA, via.header_value(*version).clone());
        }
        let has_id = identity.trusted_peer && headers.contains_key(X_REQUEST_ID);
        if fields.has(ForwardedHeader::XRequestId) && !has_id {
            headers.insert(X_REQUEST_ID, self.request_id.cloned().unwrap_or_else(request_id::new_id));
        }
        if let Some(element) = element {
            headers.insert(FORWARDED, element);
        }
    }

    /// Writes the same headers as lines of a head. Only for untrusted peers, whose requests have none of these headers.
    /// The lines that are equal for all requests of a connection to one port are written once and cached.
    pub fn write_lines(&self, out: &mut Vec<u8>, authority: &HeaderValue) {
        let none = HeaderMap::new();
        let port = self.client_port(&none, authority);
        let mut cache = self.hop.cached_lines.borrow_mut();
        match &*cache {
            Some(cache) if cache.fields == self.fields && *cache.port == *port => {
                out.extend_from_slice(&cache.lines);
            }
            _ => {
                let lines = self.connection_lines(authority);
                out.extend_from_slice(&lines);
                *cache = Some(ForwardingLines { fields: self.fields, port: port.into(), lines });
            }
        }
        if self.fields.has(ForwardedHeader::XForwardedHost) && !authority.is_empty() {
            write_header(out, &X_FORWARDED_HOST, authority);
        }
        if self.fields.has(ForwardedHeader::XRequestId) {
            out.extend_from_slice(b"x-request-id: ");
            match self.request_id {
                Some(id) => out.extend_from_slice(id.as_bytes()),
                None => out.extend_from_slice(&request_id::new_id_bytes()),
            }
            out.extend_from_slice(b"\r\n");
        }
        if self.fields.has(ForwardedHeader::Forwarded) {
            write_header(out, &FORWARDED, &self.forwarded_element(&HeaderMap::new(), authority));
        }
    }

    /// Returns the lines that are equal for all requests of a connection that name the same port.
    fn connection_lines(&self, authority: &HeaderValue) -> Box<[u8]> {
        let constant = [
            ForwardedHeader::XForwardedFor,
            ForwardedHeader::XRealIp,
            ForwardedHeader::XForwardedProto,
            ForwardedHeader::XForwardedPort,
            ForwardedHeader::Via,
        ];
        let fields = constant.into_iter().filter(|field| self.fields.has(*field)).collect();
        let (mut headers, mut lines) = (HeaderMap::new(), Vec::new());
        ForwardedHeadersWriter { fields, ..*self }.add_to_headers(&mut headers, authority);
        headers.iter().for_each(|(name, value)| write_header(&mut lines, name, value));
        lines.into()
    }

    /// Returns the port that the client used: the one in the host, else that of the scheme. The port of the listener
    /// may be another one, behind a published port of a container or a load balancer.
    fn client_port<'h>(&self, headers: &'h HeaderMap, authority: &'h HeaderValue) -> &'h [u8] {
        let said = |name: HeaderName| headers.get(name).filter(|_| self.identity.trusted_peer);
        if let Some(port) = find_port(said(X_FORWARDED_HOST).unwrap_or(authority).as_bytes()) {
            return port;
        }
        match said(X_FORWARDED_PROTO).unwrap_or(&self.hop.proto).as_bytes() {
            b"https" | b"wss" => b"443",
            _ => b"80",
        }
    }

    /// Returns the list of a trusted peer with the peer added, on one line, because many servers read only one.
    fn continue_forwarded_for(&self, headers: &HeaderMap, client: &HeaderValue) -> HeaderValue {
        let ForwardedHeadersWriter { hop, identity, .. } = self;
        let mut chain = Vec::new();
        for line in headers.get_all(X_FORWARDED_FOR) {
            chain.extend_from_slice(line.as_bytes());
            chain.extend_from_slice(b", ");
        }
        // Another header names the client.
        if chain.is_empty() && identity.ip != hop.peer {
            chain.extend_from_slice(client.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(hop.peer_text.as_bytes());
        HeaderValue::try_from(chain).unwrap_or_else(|_| hop.peer_text.clone())
    }

    /// Returns the value of `Forwarded` (RFC 7239) for the client that the limits saw, with the host and scheme that it
    /// used, and for the peer if that is another.
    fn forwarded_element(&self, headers: &HeaderMap, authority: &HeaderValue) -> HeaderValue {
        let ForwardedHeadersWriter { hop, identity, .. } = self;
        let said = |name: HeaderName| headers.get(name).filter(|_| identity.trusted_peer);
        let mut text = String::with_capacity(64);
        write_forwarded_node(&mut text, identity.ip);
        let host = said(X_FORWARDED_HOST).unwrap_or(authority);
        // Only quotes and backslashes would need escapes in a quoted string.
        if let Some(host) = host.to_str().ok().filter(|host| !host.is_empty() && !host.contains(['"', '\\'])) {
            let _ = write!(text, ";host=\"{host}\"");
        }
        let https = said(X_FORWARDED_PROTO).unwrap_or(&hop.proto) == "https";
        let _ = write!(text, ";proto={}", if https { "https" } else { "http" });
        if identity.ip != hop.peer {
            text.push_str(", ");
            write_forwarded_node(&mut text, hop.peer);
        }
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("for=unknown"))
    }
}

/// Returns the port at the end of a host, if there is one.
fn find_port(host: &[u8]) -> Option<&[u8]> {
    let colon = memchr::memrchr(b':', host)?;
    let (name, port) = (&host[..colon], &host[colon + 1..]);
    // An IPv6 address has colons, too.
    let is_whole = name.ends_with(b"]") || !name.contains(&b':');
    let is_port = (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit);
    (is_whole && is_port).then_some(port)
}

fn write_forwarded_node(text: &mut String, ip: IpAddr) {
    let _ = match ip {
        IpAddr::V4(ip) => write!(text, "for={ip}"),
        IpAddr::V6(ip) => write!(text, "for=\"[{ip}]\""),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::client_address::ClientAddressRules;
    use crate::net::parse_network;
    use crate::proxy::head::identity;

    fn rules() -> ClientAddressRules {
        ClientAddressRules {
            trusted: parse_network("10.0.0.0/8").into_iter().collect(),
            ..ClientAddressRules::default()
        }
    }

    fn sent_headers(peer: &str, fields: ForwardedHeaders, came: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers: HeaderMap =
            came.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        let peer: IpAddr = peer.parse().unwrap();
        let identity = identity::identify(peer, &headers, &rules());
        let (hop, via) = (Hop::new(peer, false), Via::new(1));
        let forwarding = ForwardedHeadersWriter {
            hop: &hop,
            via: &via,
            version: Version::HTTP_11,
            identity: &identity,
            fields,
            request_id: None,
        };
        let authority = HeaderValue::from_static("shop.example");
        forwarding.add_to_headers(&mut headers, &authority);
        if !identity.trusted_peer {
            for _ in 0..2 {
                let mut written = Vec::new();
                forwarding.write_lines(&mut written, &authority);
                assert_eq!(lines(&written), lines_of(&headers));
            }
        }
        headers
    }

    /// Returns the lines of a head in order, without the random part of the request id.
    fn lines(head: &[u8]) -> Vec<String> {
        let head = String::from_utf8(head.to_vec()).unwrap();
        let mut lines: Vec<String> = head.split_terminator("\r\n").map(|line| line.to_owned()).collect();
        lines.iter_mut().filter(|line| line.starts_with("x-request-id: ")).for_each(|line| line.truncate(14));
        lines.sort();
        lines
    }

    fn lines_of(headers: &HeaderMap) -> Vec<String> {
        let mut head = Vec::new();
        headers.iter().for_each(|(name, value)| write_header(&mut head, name, value));
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
            let headers = sent_headers("192.0.2.1", [wanted].into_iter().collect(), &[]);
            assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), [name]);
        }
        assert!(sent_headers("192.0.2.1", [].into_iter().collect(), &[("forwarded", "for=1.1.1.1")]).is_empty());
    }

    #[test]
    fn forwarded_names_the_client_that_the_limits_saw() {
        let forwarded = |peer, came: &[_]| {
            sent_headers(peer, [ForwardedHeader::Forwarded].into_iter().collect(), came)["forwarded"]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(forwarded("192.0.2.1", &[]), "for=192.0.2.1;host=\"shop.example\";proto=http");
        assert_eq!(forwarded("2001:db8::1", &[]), "for=\"[2001:db8::1]\";host=\"shop.example\";proto=http");
        let came = [("x-forwarded-for", "6.6.6.6, 198.51.100.7"), ("x-forwarded-proto", "https")];
        assert_eq!(forwarded("10.0.0.1", &came), "for=198.51.100.7;host=\"shop.example\";proto=https, for=10.0.0.1");
        let came = [("forwarded", "for=198.51.100.7"), ("x-forwarded-host", "a\"b")];
        assert_eq!(forwarded("10.0.0.1", &came), "for=198.51.100.7;proto=http, for=10.0.0.1");
    }

    #[test]
    fn the_port_is_the_one_that_the_client_used() {
        let port = |peer: &str, tls: bool, authority: &'static str, came: &[(&'static str, &'static str)]| {
            let mut headers: HeaderMap = came
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            let peer: IpAddr = peer.parse().unwrap();
            let identity = identity::identify(peer, &headers, &rules());
            let (hop, via) = (Hop::new(peer, tls), Via::new(1));
            let fields = [ForwardedHeader::XForwardedPort].into_iter().collect();
            let (version, identity, request_id) = (Version::HTTP_11, &identity, None);
            let writer = ForwardedHeadersWriter { hop: &hop, via: &via, version, identity, fields, request_id };
            writer.add_to_headers(&mut headers, &HeaderValue::from_static(authority));
            headers["x-forwarded-port"].to_str().unwrap().to_owned()
        };
        let client = "192.0.2.1";
        for (tls, authority, expected) in [
            (false, "a.example", "80"),
            (true, "a.example", "443"),
            (true, "a.example:8443", "8443"),
            (false, "[2001:db8::1]", "80"),
            (false, "[2001:db8::1]:81", "81"),
            (true, "", "443"),
        ] {
            assert_eq!(port(client, tls, authority, &[]), expected, "{authority}");
        }
        let proxy = "10.0.0.1";
        for (came, expected) in [
            (&[][..], "80"),
            (&[("x-forwarded-proto", "https")], "443"),
            (&[("x-forwarded-proto", "https"), ("x-forwarded-host", "shop.example:444")], "444"),
            (&[("x-forwarded-proto", "https"), ("x-forwarded-host", "2001:db8::1")], "443"),
            (&[("x-forwarded-port", "9")], "9"),
        ] {
            assert_eq!(port(proxy, false, "a.example", came), expected, "{came:?}");
        }
    }

    #[test]
    fn cached_lines_have_the_port_of_each_request() {
        let peer: IpAddr = "192.0.2.1".parse().unwrap();
        let identity = identity::identify(peer, &HeaderMap::new(), &ClientAddressRules::default());
        let (hop, via) = (Hop::new(peer, false), Via::new(1));
        let fields = [ForwardedHeader::XForwardedPort].into_iter().collect();
        let writer = ForwardedHeadersWriter {
            hop: &hop,
            via: &via,
            version: Version::HTTP_11,
            identity: &identity,
            fields,
            request_id: None,
        };
        for (authority, port) in [("a:81", "81"), ("a", "80"), ("a", "80"), ("b:82", "82")] {
            let mut written = Vec::new();
            writer.write_lines(&mut written, &HeaderValue::from_static(authority));
            assert_eq!(String::from_utf8(written).unwrap(), format!("x-forwarded-port: {port}\r\n"));
        }
    }
}
