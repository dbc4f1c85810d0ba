//! The protocols that a client offers to switch its connection to (`Upgrade`), and whether a server's
//! answer takes one of them. Read by `gateway` from the head of a request, asked by the exchange with the
//! upstream.

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};

use crate::http::fields::{Fields, KnownField};
use crate::route::Upgrades;

/// Protocols, at least one, in the client's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer(HeaderValue);

/// In these, requests would pass behind this gateway's back, which reads none of what a tunnel carries.
const HTTP: [&str; 6] = ["h2c", "h2", "h3", "http", "https", "tls"];

impl Offer {
    /// What the head offers, of what the route allows. `None` where nothing is left of it, or where
    /// nothing is offered by the letter: then it is a request like any other.
    pub fn of(parts: &Parts, fields: Fields, allowed: &Upgrades) -> Option<Offer> {
        if !fields.has(KnownField::Upgrade) || !fields.has(KnownField::Connection) {
            return None;
        }
        let named = |token: &str| token.eq_ignore_ascii_case("upgrade");
        // Over HTTP/2 it is what an extended CONNECT has become.
        if !matches!(parts.version, Version::HTTP_11 | Version::HTTP_2)
            || !elements(&parts.headers, &CONNECTION).any(named)
        {
            return None;
        }
        let offered = elements(&parts.headers, &UPGRADE).filter(|protocol| {
            let name = protocol.split_once('/').map_or(*protocol, |(name, _)| name);
            let is_http = HTTP.iter().any(|http| name.eq_ignore_ascii_case(http));
            is_protocol(protocol) && !is_http && allowed.has(name)
        });
        let offered: Vec<&str> = offered.collect();
        let field = HeaderValue::try_from(offered.join(", ")).ok()?;
        (!offered.is_empty()).then_some(Offer(field))
    }

    /// As a value of `Upgrade`.
    pub fn field(&self) -> &HeaderValue {
        &self.0
    }

    /// Whether the answer with these fields, of status 101, switches to what was offered and to nothing else.
    pub fn is_taken_by(&self, answer: &HeaderMap) -> bool {
        let mut taken = elements(answer, &UPGRADE).peekable();
        taken.peek().is_some()
            && taken.all(|protocol| tokens(&self.0).any(|offered| offered.eq_ignore_ascii_case(protocol)))
    }
}

/// Of all lines of a field.
fn elements<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().flat_map(tokens)
}

fn tokens(line: &HeaderValue) -> impl Iterator<Item = &str> {
    line.to_str().unwrap_or_default().split(',').map(str::trim_ascii).filter(|token| !token.is_empty())
}

/// A name, or `name/version`.
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
        let offer = Offer::of(&parts, Fields::of(&parts.headers), allowed)?;
        Some(offer.field().to_str().unwrap().to_owned())
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
    fn an_answer_takes_what_was_offered_and_nothing_else() {
        let offer = Offer(HeaderValue::from_static("websocket, foo/2"));
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
            assert_eq!(offer.is_taken_by(&answer), taken, "{upgrade:?}");
        }
    }
}
