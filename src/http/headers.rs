//! Which header fields go on, in both directions, and what this hop says of itself and of the
//! client. Called by the request function before forwarding and before answering.

use std::net::IpAddr;

use http::header::{
    CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::client::Identity;
use super::gate::Admitted;
use super::reject::{Judge, Reject};
use crate::config::Strictness;
use crate::route::HeaderEdit;

/// What this hop writes into every request of a connection, made once so that a request only
/// clones references.
#[derive(Clone, Debug)]
pub struct Hop {
    peer: IpAddr,
    peer_text: HeaderValue,
    proto: HeaderValue,
    port: HeaderValue,
}

impl Hop {
    /// `port` is the one the client connected to.
    pub fn new(peer: IpAddr, tls: bool, port: u16) -> Hop {
        let peer = peer.to_canonical();
        Hop {
            peer,
            peer_text: address_value(peer),
            proto: HeaderValue::from_static(if tls { "https" } else { "http" }),
            port: HeaderValue::from(port),
        }
    }
}

/// The name under which this process stands in `Via`; instances differ, so that two gateways in a
/// row are no loop.
#[derive(Clone, Debug)]
pub struct Via {
    pseudonym: String,
    field: HeaderValue,
}

impl Via {
    pub fn new(instance: u32) -> Via {
        let pseudonym = format!("sluicegate-{instance:08x}");
        // Always plain text, so the stand-in is never used.
        let field = HeaderValue::try_from(format!("1.1 {pseudonym}"));
        Via { pseudonym, field: field.unwrap_or(HeaderValue::from_static("1.1 sluicegate")) }
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        let elements = headers.get_all(VIA).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        elements.into_iter().any(|element| {
            let mut words = element.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
            words.nth(1).is_some_and(|received_by| received_by.eq_ignore_ascii_case(self.pseudonym.as_bytes()))
        })
    }
}

/// Turns the fields of a request into those to forward:
/// 1. fields of this hop only go, and those that `Connection` names (`TE: trailers` stays, and
///    `Trailer` with a chunked body, as both announce trailers that are passed on);
/// 2. names with other characters than letters, digits and `-` go: servers that map names to
///    variables take `x_real_ip` for `x-real-ip`;
/// 3. what the request says of the client is replaced; from a trusted peer `X-Forwarded-For` is
///    continued and the other `X-Forwarded-*` stay. `Forwarded` goes always: one identity, the
///    one the limits saw, goes on;
/// 4. `Via`, `X-Request-Id` and the canonical `Host` are set. A request without a host gets none.
pub fn forward_request(
    headers: &mut HeaderMap,
    admitted: &Admitted,
    hop: &Hop,
    identity: &Identity,
    via: &Via,
    request_id: HeaderValue,
    strictness: Strictness,
) -> Result<(), Reject> {
    let mut seen = Seen::of(headers, !identity.trusted_peer, true);
    if seen.has(Known::Connection) {
        named_by_connection(headers, &mut seen.remove, &mut Judge::new(strictness))?;
    }
    if seen.has(Known::Via) && via.is_in(headers) {
        return Err(Reject::Loop);
    }
    seen.drop_hop_by_hop(headers);

    if admitted.host_changed() {
        headers.insert(HOST, admitted.authority().clone());
    }
    tell_client(headers, admitted, hop, identity);
    headers.append(VIA, via.field.clone());
    if !(identity.trusted_peer && headers.contains_key(X_REQUEST_ID)) {
        headers.insert(X_REQUEST_ID, request_id);
    }
    Ok(())
}

/// Turns the fields of an upstream's response into those to send on.
pub fn forward_response(headers: &mut HeaderMap, via: &Via) {
    let mut seen = Seen::of(headers, false, false);
    if seen.has(Known::Connection) {
        // A protected name is not followed; without strictness there is no refusal.
        let _ = named_by_connection(headers, &mut seen.remove, &mut Judge::new(Strictness::Defensive));
    }
    seen.drop_hop_by_hop(headers);
    headers.append(VIA, via.field.clone());
}

/// A route's own changes: removals first, so that a field can be replaced whatever it held.
pub fn edit(headers: &mut HeaderMap, edit: &HeaderEdit) {
    for name in &edit.remove {
        headers.remove(name);
    }
    for (name, value) in &edit.set {
        headers.insert(name, value.clone());
    }
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Fields with a meaning for this hop, in the order of [`HOP_BY_HOP`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
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
}

/// Removed when present. `Te` and `Trailer` need a second look; `Via` stays.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HTTP2_SETTINGS,
    UPGRADE,
    TRANSFER_ENCODING,
];

impl Known {
    fn of(name: &str) -> Option<Known> {
        Some(match name {
            "connection" => Known::Connection,
            "keep-alive" => Known::KeepAlive,
            "proxy-connection" => Known::ProxyConnection,
            "proxy-authenticate" => Known::ProxyAuthenticate,
            "proxy-authorization" => Known::ProxyAuthorization,
            "http2-settings" => Known::Http2Settings,
            "upgrade" => Known::Upgrade,
            "transfer-encoding" => Known::TransferEncoding,
            "te" => Known::Te,
            "trailer" => Known::Trailer,
            "via" => Known::Via,
            _ => return None,
        })
    }
}

/// The outcome of one pass over the names: looking for each absent name would hash each of them.
struct Seen {
    known: u16,
    /// Other names to remove; seldom any, and then the vector allocates nothing.
    remove: Vec<HeaderName>,
}

impl Seen {
    fn of(headers: &HeaderMap, foreign_forwarding: bool, request: bool) -> Seen {
        let mut seen = Seen { known: 0, remove: Vec::new() };
        for name in headers.keys() {
            let text = name.as_str();
            if let Some(known) = Known::of(text) {
                seen.known |= 1 << known as u16;
            } else if request
                && (is_alias(text) || text == "forwarded" || (foreign_forwarding && text.starts_with("x-forwarded-")))
            {
                seen.remove.push(name.clone());
            }
        }
        seen
    }

    fn has(&self, known: Known) -> bool {
        self.known & (1 << known as u16) != 0
    }

    fn drop_hop_by_hop(self, headers: &mut HeaderMap) {
        if self.has(Known::Trailer) && !self.has(Known::TransferEncoding) {
            headers.remove(TRAILER);
        }
        if self.has(Known::Te) {
            let trailers =
                headers.get_all(TE).iter().any(|line| tokens(line).any(|t| t.eq_ignore_ascii_case(b"trailers")));
            if trailers {
                headers.insert(TE, HeaderValue::from_static("trailers"));
            } else {
                headers.remove(TE);
            }
        }
        for (bit, name) in HOP_BY_HOP.iter().enumerate() {
            if self.known & (1 << bit) != 0 {
                headers.remove(name);
            }
        }
        for name in self.remove {
            headers.remove(name);
        }
    }
}

/// Adds the fields that `Connection` names to `remove`. Protected ones are a fault: a client could
/// so hide from the server what this gateway or a proxy before it has set.
fn named_by_connection(headers: &HeaderMap, remove: &mut Vec<HeaderName>, judge: &mut Judge) -> Result<(), Reject> {
    for token in headers.get_all(CONNECTION).iter().flat_map(tokens) {
        if token.eq_ignore_ascii_case(b"keep-alive") || token.eq_ignore_ascii_case(b"close") {
            continue;
        }
        let Ok(name) = HeaderName::from_bytes(token) else { continue };
        if is_protected(name.as_str()) {
            judge.fault(Reject::ConnectionField)?;
        } else if Known::of(name.as_str()).is_none() && headers.contains_key(&name) {
            remove.push(name);
        }
    }
    Ok(())
}

fn is_protected(name: &str) -> bool {
    matches!(name, "host" | "authorization" | "cookie" | "set-cookie" | "forwarded" | "x-real-ip")
        || name.starts_with("content-")
        || name.starts_with("x-forwarded-")
}

fn is_alias(name: &str) -> bool {
    !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn tokens(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

fn tell_client(headers: &mut HeaderMap, admitted: &Admitted, hop: &Hop, identity: &Identity) {
    let client = if identity.ip == hop.peer { hop.peer_text.clone() } else { address_value(identity.ip) };
    let chain = if identity.trusted_peer { continued(headers, &client, hop, identity) } else { hop.peer_text.clone() };
    headers.insert(X_FORWARDED_FOR, chain);
    headers.insert(X_REAL_IP, client);

    let mut set = |name: HeaderName, value: &HeaderValue| {
        if !(identity.trusted_peer && headers.contains_key(&name)) {
            headers.insert(name, value.clone());
        }
    };
    set(X_FORWARDED_PROTO, &hop.proto);
    set(X_FORWARDED_PORT, &hop.port);
    if !admitted.authority().is_empty() {
        set(X_FORWARDED_HOST, admitted.authority());
    }
}

/// The chain of a trusted peer with the peer added, on one line: many servers read only one.
fn continued(headers: &HeaderMap, client: &HeaderValue, hop: &Hop, identity: &Identity) -> HeaderValue {
    let mut chain = Vec::new();
    for line in headers.get_all(X_FORWARDED_FOR) {
        chain.extend_from_slice(line.as_bytes());
        chain.extend_from_slice(b", ");
    }
    // The client was named by `Forwarded`, which does not go on.
    if chain.is_empty() && identity.ip != hop.peer {
        chain.extend_from_slice(client.as_bytes());
        chain.extend_from_slice(b", ");
    }
    chain.extend_from_slice(hop.peer_text.as_bytes());
    HeaderValue::try_from(chain).unwrap_or_else(|_| hop.peer_text.clone())
}

fn address_value(ip: IpAddr) -> HeaderValue {
    // An address is always plain text, so the stand-in is never used.
    HeaderValue::try_from(ip.to_string()).unwrap_or(HeaderValue::from_static("unknown"))
}
