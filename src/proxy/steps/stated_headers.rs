//! Values of the placeholders that say who the client is: in headers (`request_headers.set`) and in the access log.
//! `dispatch` and explanations call it for headers, after authentication and limits; `arrival` and `live` for the log.

use std::fmt::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use crate::limiting::source::inputs::Repeated;
use crate::limiting::source::{Facts, Source};
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::steps::door::{ConnectionFacts, Door};
use crate::proxy::steps::limits::request_facts;
use crate::route::client_facts::{CertificateForm, ClientFact, ConnectionFact, HeadFact, StatedHeader};
use crate::text::push_percent_encoded;

/// Returns the value of each header that the route states, in order; `None` for one that is to be removed, because the
/// request does not have a value for one of its placeholders. `request_id`: the id, if a header contains it.
pub fn find_values<'a, D: Door<'a>>(
    door: &D,
    routed: RoutedRequest<'_>,
    request_id: Option<&HeaderValue>,
) -> Vec<(HeaderName, Option<HeaderValue>)> {
    let headers = &routed.route.request_headers.stated;
    let facts = request_facts(door, routed, routed.route.request_headers.states_claims());
    let values = FactValues { facts: &facts, connection: door.connection(), request_id, push_value };
    headers.iter().map(|header| (header.0.clone(), values.render(header))).collect()
}

/// Returns the value of a fact for the access log, which escapes it; `None` if the request does not have it.
pub fn find_logged_value(fact: &ClientFact, facts: &Facts<'_>) -> Option<String> {
    let mut value = String::new();
    let push_value = |out: &mut String, value: &[u8]| out.push_str(&String::from_utf8_lossy(value));
    let values = FactValues { facts, connection: ConnectionFacts::default(), request_id: None, push_value };
    values.push_fact(&mut value, fact).map(|()| value)
}

/// The facts about one request, with the encoding of values that others have chosen.
struct FactValues<'f> {
    facts: &'f Facts<'f>,
    connection: ConnectionFacts<'f>,
    /// The id, if a header contains it.
    request_id: Option<&'f HeaderValue>,
    push_value: fn(&mut String, &[u8]),
}

impl FactValues<'_> {
    fn render(&self, (_, text): &StatedHeader) -> Option<HeaderValue> {
        let mut is_complete = true;
        let value = text.render(|fact, out| is_complete &= self.push_fact(out, fact).is_some());
        // All that a template and its values can contain is allowed in a header.
        HeaderValue::try_from(value).ok().filter(|_| is_complete)
    }

    /// Appends the value of a placeholder. `None` if the request does not have it.
    fn push_fact(&self, out: &mut String, fact: &ClientFact) -> Option<()> {
        match fact {
            ClientFact::ClientIp => drop(write!(out, "{}", self.facts.client)),
            ClientFact::RequestId => (self.push_value)(out, self.request_id?.as_bytes()),
            ClientFact::Head(fact) => self.push_head_fact(out, *fact)?,
            ClientFact::Connection(fact) => (self.push_value)(out, self.connection_fact(*fact)?.as_bytes()),
            ClientFact::Certificate(form) => push_certificate(out, self.facts.certificate?.der.as_deref()?, *form),
            ClientFact::Source(source) => self.push_source(out, source)?,
        }
        Some(())
    }

    fn push_head_fact(&self, out: &mut String, fact: HeadFact) -> Option<()> {
        let facts = self.facts;
        match fact {
            HeadFact::Method => push_url(out, facts.method),
            HeadFact::Host => push_url(out, facts.host),
            HeadFact::Path => push_url(out, facts.path),
            HeadFact::Query => push_url(out, facts.query?),
            HeadFact::Target => {
                push_url(out, facts.path);
                if let Some(query) = facts.query {
                    out.push('?');
                    push_url(out, query);
                }
            }
            HeadFact::Route => (self.push_value)(out, facts.route.as_bytes()),
        }
        Some(())
    }

    fn connection_fact(&self, fact: ConnectionFact) -> Option<&str> {
        match fact {
            ConnectionFact::Protocol => self.connection.protocol,
            ConnectionFact::Tls => self.connection.tls,
            ConnectionFact::TlsCipher => self.connection.tls_cipher,
            ConnectionFact::TlsName => self.connection.tls_name,
        }
    }

    /// Appends the value of a source. Several values that do not agree are none.
    ///
    /// A claim that is an array is a list with commas; a comma within an element is percent-encoded.
    fn push_source(&self, out: &mut String, source: &Source) -> Option<()> {
        if let Source::Claim(name) = source {
            let values = self.facts.claim_values(name, Repeated::Refuse).ok()?;
            let (last, others) = values.split_last()?;
            for value in others {
                push_element(out, value);
                out.push(',');
            }
            match others.is_empty() {
                true => (self.push_value)(out, last.as_bytes()),
                false => push_element(out, last),
            }
            return Some(());
        }
        let value = self.facts.value(source, Repeated::Refuse).ok()??;
        (self.push_value)(out, &source.value_text(value));
        Some(())
    }
}

fn push_element(out: &mut String, element: &str) {
    for (place, part) in element.split(',').enumerate() {
        if place > 0 {
            push_percent_encoded(out, b',');
        }
        push_value(out, part.as_bytes());
    }
}

/// Appends a part of a canonical URL, which is percent-encoded already.
fn push_url(out: &mut String, part: &str) {
    for byte in part.bytes() {
        match byte {
            0x21..=0x7e => out.push(char::from(byte)),
            _ => push_percent_encoded(out, byte),
        }
    }
}

fn push_certificate(out: &mut String, der: &[u8], form: CertificateForm) {
    match form {
        CertificateForm::Fingerprint => out.push_str(&hex::encode(Sha256::digest(der))),
        CertificateForm::ByteSequence => {
            out.push(':');
            BASE64_STANDARD.encode_string(der, out);
            out.push(':');
        }
        CertificateForm::EscapedPem => {
            out.push_str("-----BEGIN%20CERTIFICATE-----%0A");
            let text = BASE64_STANDARD.encode(der);
            for line in text.as_bytes().chunks(64) {
                for byte in line {
                    match byte {
                        b'+' | b'/' | b'=' => push_percent_encoded(out, *byte),
                        byte => out.push(char::from(*byte)),
                    }
                }
                out.push_str("%0A");
            }
            out.push_str("-----END%20CERTIFICATE-----%0A");
        }
    }
}

/// Appends a value that others have chosen. Bytes that a header may not contain are percent-encoded, and so is `%`, so
/// that it can be decoded; also spaces at the ends, which servers remove.
fn push_value(out: &mut String, value: &[u8]) {
    let inner = value.trim_ascii();
    for (at, byte) in value.iter().enumerate() {
        let is_outer = inner.is_empty() || at == 0 || at + 1 == value.len();
        match byte {
            b' ' if !is_outer => out.push(' '),
            b'%' => push_percent_encoded(out, *byte),
            0x21..=0x7e => out.push(char::from(*byte)),
            _ => push_percent_encoded(out, *byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(bytes: &[u8]) -> String {
        let mut out = String::new();
        push_value(&mut out, bytes);
        out
    }

    #[test]
    fn a_value_is_readable_and_can_be_decoded() {
        for (bytes, text) in [
            ("CN=app,O=Example\\, Inc.", "CN=app,O=Example\\, Inc."),
            ("J\u{fc}rgen", "J%C3%BCrgen"),
            (" a b ", "%20a b%20"),
            ("  ", "%20%20"),
            ("100%", "100%25"),
            ("a\r\nx-admin: 1", "a%0D%0Ax-admin: 1"),
            ("\0\t\u{7f}", "%00%09%7F"),
            ("", ""),
        ] {
            assert_eq!(value(bytes.as_bytes()), text);
        }
    }

    proptest! {
        #[test]
        fn any_value_is_allowed_in_a_header_and_decodes_to_itself(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let text = value(&bytes);
            prop_assert!(text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)));
            prop_assert_eq!(text.trim(), &text);
            let decoded: Vec<u8> = percent_encoding::percent_decode_str(&text).collect();
            prop_assert_eq!(decoded, bytes);
        }
    }
}
