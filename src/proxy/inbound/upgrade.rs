//! The protocols that a client offers to switch to (`Upgrade`), and the check that a server's response accepts one of
//! them.

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};

use crate::proxy::known_headers::{HeaderSet, KnownHeader};
use crate::route::Upgrades;

/// The offered protocols: at least one, in the client's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeOffer(HeaderValue);

/// HTTP itself, which is never tunnelled: the gateway does not read tunnels, so requests in them would bypass all
/// limits.
const HTTP_PROTOCOLS: [&str; 6] = ["h2c", "h2", "h3", "http", "https", "tls"];

impl UpgradeOffer {
    /// Returns the offered protocols that the route allows. Returns `None` if there are none, or if the offer is not
    /// well-formed. The request is then an ordinary one.
    pub fn from_request(parts: &Parts, fields: HeaderSet, allowed: &Upgrades) -> Option<UpgradeOffer> {
        if !fields.has(KnownHeader::Upgrade) || !fields.has(KnownHeader::Connection) {
            return None;
        }
        let named = |token: &str| token.eq_ignore_ascii_case("upgrade");
        // Over HTTP/2, such a request is a translated extended CONNECT.
        if !matches!(parts.version, Version::HTTP_11 | Version::HTTP_2)
            || !list_elements(&parts.headers, &CONNECTION).any(named)
        {
            return None;
        }
        let offered = list_elements(&parts.headers, &UPGRADE).filter(|protocol| {
            let name = protocol.split_once('/').map_or(*protocol, |(name, _)| name);
            let is_http = HTTP_PROTOCOLS.iter().any(|http| name.eq_ignore_ascii_case(http));
            is_protocol(protocol) && !is_http && allowed.has(name)
        });
        let offered: Vec<&str> = offered.collect();
        let field = HeaderValue::try_from(offered.join(", ")).ok()?;
        (!offered.is_empty()).then_some(UpgradeOffer(field))
    }

    /// Returns whether the request offers to switch to a protocol, and the route refuses such requests.
    pub fn is_refused(parts: &Parts, fields: HeaderSet, allowed: &Upgrades) -> bool {
        *allowed == Upgrades::Refused && UpgradeOffer::from_request(parts, fields, &Upgrades::Any).is_some()
    }

    /// Returns the offer as a value of `Upgrade`.
    pub fn header_value(&self) -> &HeaderValue {
        &self.0
    }

    /// Returns true if a 101 response with these headers switches to protocols that were offered, and to nothing else.
    pub fn is_accepted_by(&self, answer: &HeaderMap) -> bool {
        let mut taken = list_elements(answer, &UPGRADE).peekable();
        taken.peek().is_some()
            && taken.all(|protocol| list_tokens(&self.0).any(|offered| offered.eq_ignore_ascii_case(protocol)))
    }
}

/// Returns the list elements of all lines of a header.
fn list_elements<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().flat_map(list_tokens)
}

fn list_tokens(line: &HeaderValue) -> impl Iterator<Item = &str> {
    line.to_str().unwrap_or_default().split(',').map(str::trim_ascii).filter(|token| !token.is_empty())
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
        let parts = request.body(()).unwrap().into_parts().0;
        let offer = UpgradeOffer::from_request(&parts, HeaderSet::from_headers(&parts.headers), allowed)?;
        Some(offer.header_value().to_str().unwrap().to_owned())
    }

    #[test]
    fn an_offer_names_protocols_and_connection_names_the_offer() {
        for (fields, offered) in [
            (&[("connection", "Upgrade"), ("upgrade", "websocket")][..], Some("websocket")),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "WebSocket")], Some("WebSocket")),
            (
                &[("connection", "keep-alive"), ("connection", "Upgrade"), ("upgrade", "a/1"), ("upgrade", "b")],
                Some("a/1, b"),
            ),
            (&[("connection", "upgrade"), ("upgrade", "SPDY/3.1")], Some("SPDY/3.1")),
            (&[("connection", "keep-alive"), ("upgrade", "websocket")], None),
            (&[("upgrade", "websocket")], None),
            (&[("connection", "upgrade")], None),
            (&[("connection", "upgrade"), ("upgrade", "")], None),
            (&[("connection", "upgrade"), ("upgrade", "web socket, a/b/c, (x)")], None),
            (&[("connection", "upgrade"), ("upgrade", "h2c")], None),
            (&[("connection", "upgrade"), ("upgrade", "H2C, HTTP/2.0, TLS/1.3, websocket")], Some("websocket")),
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
            [(only(&["websocket"]), Some("Websocket")), (only(&["TCP", "other"]), Some("tcp/1")), (only(&[]), None)]
        {
            assert_eq!(offer(&fields, Version::HTTP_11, &allowed).as_deref(), offered, "{allowed:?}");
        }
    }

    #[test]
    fn a_websocket_answer_may_select_only_offered_protocols() {
        let offer = UpgradeOffer(HeaderValue::from_static("websocket, foo/2"));
        for (upgrade, taken) in [
            (&["websocket"][..], true),
            (&["WebSocket"], true),
            (&["foo/2"], true),
            (&["foo/2, websocket"], true),
            (&["foo"], false),
            (&["foo/1"], false),
            (&["websocket", "h2c"], false),
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
