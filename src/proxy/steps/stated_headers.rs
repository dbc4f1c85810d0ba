//! The headers in which the gateway states who the client is (`request_headers.set` with placeholders). Called by
//! `dispatch` after authentication and limits, and by explanations.

use std::fmt::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use crate::limiting::source::inputs::Repeated;
use crate::limiting::source::{Facts, Source, SourceOrigin};
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::steps::door::Door;
use crate::proxy::steps::limits::request_facts;
use crate::route::client_facts::{CertificateForm, ClientFact, StatedHeader};
use crate::text::push_percent_encoded;

/// Returns the value of each header that the route states, in order; `None` for one that is to be removed, because the
/// request does not have a value for one of its placeholders. `request_id`: the id, if a header contains it.
pub fn find_values<'a, D: Door<'a>>(
    door: &D,
    routed: RoutedRequest<'_>,
    request_id: Option<&HeaderValue>,
) -> Vec<(HeaderName, Option<HeaderValue>)> {
    let headers = &routed.route.request_headers.stated;
    let is_claim =
        |fact: &ClientFact| matches!(fact, ClientFact::Source(source) if source.kind().origin() == SourceOrigin::Token);
    let needs_claims = headers.iter().any(|(_, text)| text.placeholders().any(is_claim));
    let facts = request_facts(door, routed, needs_claims);
    headers.iter().map(|header| (header.0.clone(), render(header, &facts, request_id))).collect()
}

fn render((_, text): &StatedHeader, facts: &Facts<'_>, request_id: Option<&HeaderValue>) -> Option<HeaderValue> {
    let mut is_complete = true;
    let value = text.render(|fact, out| is_complete &= push_fact(out, fact, facts, request_id).is_some());
    // All that a template and its values can contain is allowed in a header.
    HeaderValue::try_from(value).ok().filter(|_| is_complete)
}

/// Appends the value of a placeholder. `None` if the request does not have it.
fn push_fact(out: &mut String, fact: &ClientFact, facts: &Facts<'_>, request_id: Option<&HeaderValue>) -> Option<()> {
    match fact {
        ClientFact::ClientIp => drop(write!(out, "{}", facts.client)),
        ClientFact::RequestId => push_value(out, request_id?.as_bytes()),
        ClientFact::Certificate(form) => push_certificate(out, facts.certificate?.der.as_deref()?, *form),
        ClientFact::Source(source) => push_source(out, source, facts)?,
    }
    Some(())
}

/// Appends the value of a source. Several values that do not agree are none.
///
/// A claim that is an array is a list with commas; a comma within an element is percent-encoded.
fn push_source(out: &mut String, source: &Source, facts: &Facts<'_>) -> Option<()> {
    if let Source::Claim(name) = source {
        let values = facts.claim_values(name, Repeated::Refuse).ok()?;
        let (last, others) = values.split_last()?;
        for value in others {
            push_element(out, value);
            out.push(',');
        }
        match others.is_empty() {
            true => push_value(out, last.as_bytes()),
            false => push_element(out, last),
        }
        return Some(());
    }
    let value = facts.value(source, Repeated::Refuse).ok()??;
    push_value(out, &source.value_text(value));
    Some(())
}

fn push_element(out: &mut String, element: &str) {
    for (place, part) in element.split(',').enumerate() {
        if place > 0 {
            push_percent_encoded(out, b',');
        }
        push_value(out, part.as_bytes());
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

/// Appends a value that others have chosen. What a header may not contain is percent-encoded, and `%` itself, so that
/// it can be decoded; also spaces at the ends, which servers remove.
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
