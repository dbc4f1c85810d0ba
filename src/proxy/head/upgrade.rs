//! The protocol that a client offers to switch to (`Upgrade`), and the check that a server's response accepts it.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Version};

use crate::proxy::words::known_headers::{HeaderSet, KnownHeader, list_elements};
use crate::received_headers::HTTP_PROTOCOLS;
use crate::route::Upgrades;

/// The protocol that a client offers, as a value of `Upgrade`: the first of its list that is not HTTP, in one spelling.
/// Conditions of routes, limits and the server all see this one. If a route does not allow it, no other takes its
/// place, because a limit that reads `Upgrade` could miss that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeOffer {
    protocol: HeaderValue,
    /// The client sent an extended CONNECT.
    is_connect: bool,
}

static WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

impl UpgradeOffer {
    /// Returns the protocol that a received head offers. Returns `None` if there is none, or if the offer is not
    /// well-formed. The request is then an ordinary one.
    pub fn from_headers(headers: &HeaderMap, fields: HeaderSet, version: Version) -> Option<UpgradeOffer> {
        if !fields.has(KnownHeader::Upgrade) || !fields.has(KnownHeader::Connection) {
            return None;
        }
        let is_upgrade = |token: &[u8]| token.eq_ignore_ascii_case(b"upgrade");
        // On a stream, such a request is a translated extended CONNECT.
        let has_upgrades = matches!(version, Version::HTTP_11 | Version::HTTP_2 | Version::HTTP_3);
        if !has_upgrades || !list_elements(headers, &CONNECTION).any(is_upgrade) {
            return None;
        }
        let mut protocols = list_elements(headers, &UPGRADE).filter_map(|protocol| str::from_utf8(protocol).ok());
        let first = protocols.find(|protocol| {
            let is_http = HTTP_PROTOCOLS.iter().any(|http| protocol_name(protocol).eq_ignore_ascii_case(http));
            is_protocol(protocol) && !is_http
        })?;
        let protocol = match first.eq_ignore_ascii_case("websocket") {
            true => WEBSOCKET.clone(),
            false => HeaderValue::from_str(first).ok()?,
        };
        Some(UpgradeOffer { protocol, is_connect: version != Version::HTTP_11 })
    }

    /// Returns whether `allowed` has the protocol.
    pub fn is_allowed_by(&self, allowed: &Upgrades) -> bool {
        self.protocol.to_str().is_ok_and(|protocol| allowed.has(protocol_name(protocol)))
    }

    /// Returns the protocol, as a value of `Upgrade`.
    pub fn header_value(&self) -> &HeaderValue {
        &self.protocol
    }

    /// Returns whether the request means nothing without its tunnel: an extended CONNECT, or the handshake of a
    /// WebSocket, which is a GET without a body. A server may serve every other request and ignore the offer.
    pub fn needs_tunnel(&self, method: &Method, has_body: bool) -> bool {
        self.is_connect || self.protocol == WEBSOCKET && method == Method::GET && !has_body
    }

    /// Returns true if a 101 response with these headers switches to the protocol that was offered, and to nothing
    /// else.
    pub fn is_accepted_by(&self, answer: &HeaderMap) -> bool {
        let mut protocols = list_elements(answer, &UPGRADE).peekable();
        protocols.peek().is_some() && protocols.all(|protocol| self.protocol.as_bytes().eq_ignore_ascii_case(protocol))
    }
}

/// Returns the name of a protocol, without its version.
fn protocol_name(protocol: &str) -> &str {
    protocol.split_once('/').map_or(protocol, |(name, _)| name)
}

/// Returns true for `name` or `name/version`.
fn is_protocol(text: &str) -> bool {
    let (name, version) = text.split_once('/').unwrap_or((text, "1"));
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    is_token(name) && is_token(version)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn offer(fields: &[(&str, &str)], version: Version, allowed: &Upgrades) -> Option<String> {
        let mut request = Request::builder().version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let headers = request.body(()).unwrap().into_parts().0.headers;
        let offer = UpgradeOffer::from_headers(&headers, HeaderSet::from_headers(&headers), version)?;
        offer.is_allowed_by(allowed).then(|| offer.header_value().to_str().unwrap().to_owned())
    }

    #[test]
    fn an_offer_names_protocols_and_connection_names_the_offer() {
        for (fields, offered) in [
            (&[("connection", "Upgrade"), ("upgrade", "websocket")][..], Some("websocket")),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "WebSocket")], Some("websocket")),
            (
                &[("connection", "keep-alive"), ("connection", "Upgrade"), ("upgrade", "a/1"), ("upgrade", "b")],
                Some("a/1"),
            ),
            (&[("connection", "upgrade"), ("upgrade", "SPDY/3.1")], Some("SPDY/3.1")),
            (&[("connection", "keep-alive"), ("upgrade", "websocket")], None),
            (&[("upgrade", "websocket")], None),
            (&[("connection", "upgrade")], None),
            (&[("connection", "upgrade"), ("upgrade", "")], None),
            (&[("connection", "upgrade"), ("upgrade", "web socket, a/b/c, (x)")], None),
            (&[("connection", "upgrade"), ("upgrade", "h2c")], None),
            (&[("connection", "upgrade"), ("upgrade", "H2C, HTTP/2.0, TLS/1.3, websocket")], Some("websocket")),
            (&[("connection", "upgrade"), ("upgrade", ", websocket,, WEBSOCKET, foo")], Some("websocket")),
        ] {
            assert_eq!(offer(fields, Version::HTTP_11, &Upgrades::Any).as_deref(), offered, "{fields:?}");
            assert_eq!(offer(fields, Version::HTTP_10, &Upgrades::Any), None, "{fields:?}");
        }
    }

    #[test]
    fn a_route_allows_some_protocols_or_none() {
        let fields = [("connection", "upgrade"), ("upgrade", "Websocket, tcp/1")];
        let only = |names: &[&str]| Upgrades::Only(names.iter().map(|name| (*name).to_owned()).collect());
        for (allowed, offered) in
            [(only(&["WebSocket", "other"]), Some("websocket")), (only(&["tcp"]), None), (only(&[]), None)]
        {
            assert_eq!(offer(&fields, Version::HTTP_11, &allowed).as_deref(), offered, "{allowed:?}");
        }
    }

    #[test]
    fn a_handshake_or_a_connect_is_nothing_without_its_tunnel() {
        for (protocol, version, method, has_body, expected) in [
            ("websocket", Version::HTTP_11, Method::GET, false, true),
            ("WebSocket", Version::HTTP_11, Method::GET, false, true),
            ("websocket", Version::HTTP_11, Method::POST, false, false),
            ("websocket", Version::HTTP_11, Method::GET, true, false),
            ("x", Version::HTTP_11, Method::GET, false, false),
            ("x", Version::HTTP_2, Method::GET, false, true),
        ] {
            let headers = HeaderMap::from_iter([
                (CONNECTION, HeaderValue::from_static("upgrade")),
                (UPGRADE, HeaderValue::from_static(protocol)),
            ]);
            let offer = UpgradeOffer::from_headers(&headers, HeaderSet::from_headers(&headers), version).unwrap();
            assert_eq!(offer.needs_tunnel(&method, has_body), expected, "{protocol} {version:?} {method} {has_body}");
        }
    }

    #[test]
    fn an_answer_may_select_only_the_offered_protocol() {
        let offer = UpgradeOffer { protocol: HeaderValue::from_static("foo/2"), is_connect: false };
        for (upgrade, taken) in [
            (&["foo/2"][..], true),
            (&["FOO/2"], true),
            (&["websocket"], false),
            (&["foo/2, websocket"], false),
            (&["foo"], false),
            (&["foo/1"], false),
            (&["foo/2", "h2c"], false),
            (&[""], false),
            (&[], false),
        ] {
            let answer: HeaderMap = upgrade.iter().fold(HeaderMap::new(), |mut answer, value| {
                answer.append(UPGRADE, HeaderValue::from_str(value).unwrap());
                answer
            });
            assert_eq!(offer.is_accepted_by(&answer), taken, "{upgrade:?}");
        }
    }
}
