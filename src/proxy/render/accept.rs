//! Content negotiation (RFC 9110, section 12.5.1): which format of an error a client prefers.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::route::error_pages::PageFormat;

/// How well a media range describes a format. Of ranges with the same quality, the most specific one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    /// `*/*`
    Any,
    /// `text/*`
    Type,
    /// `text/html`
    Exact,
}

/// The formats, the preferred one first if the client has no preference.
const FORMATS: [PageFormat; 3] = [PageFormat::Json, PageFormat::Html, PageFormat::Text];

/// Returns the format that the client prefers: by quality, then by how specific its range is, then by the order of the
/// ranges. A client that accepts every format or none of these gets a problem document.
///
/// Browsers name `text/html`. Older ones give `*/*` the same quality, so quality alone is not enough.
pub fn negotiate(headers: &HeaderMap) -> PageFormat {
    negotiate_lines(headers.get_all(ACCEPT).iter().map(http::HeaderValue::as_bytes))
}

/// Does the same for the beginning of an HTTP/1.1 head that could not be parsed.
pub fn negotiate_head(head: &[u8]) -> PageFormat {
    let lines = head.split(|byte| *byte == b'\n').skip(1).take_while(|line| !line.trim_ascii().is_empty());
    negotiate_lines(lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(line.iter().position(|byte| *byte == b':')?)?;
        name.eq_ignore_ascii_case(b"accept").then_some(&value[1..])
    }))
}

fn negotiate_lines<'h>(lines: impl Iterator<Item = &'h [u8]>) -> PageFormat {
    // Per format: the most specific range that matches it, with its quality and place.
    let mut best: [Option<(Specificity, u16, usize)>; 3] = [None; 3];
    let members = lines.flat_map(|line| line.split(|byte| *byte == b','));
    for (place, member) in members.enumerate() {
        let Some((range, quality)) = parse_member(member) else { continue };
        for (format, best) in FORMATS.into_iter().zip(&mut best) {
            let Some(specificity) = match_range(range, format) else { continue };
            // JSON has two exact names; the one that the client prefers counts.
            let is_better =
                best.is_none_or(|(known, quality_known, _)| (specificity, quality) > (known, quality_known));
            if is_better {
                *best = Some((specificity, quality, place));
            }
        }
    }
    let mut choice = (PageFormat::Json, 0, Specificity::Any, 0);
    for (format, best) in FORMATS.into_iter().zip(best) {
        let Some((specificity, quality, place)) = best.filter(|(_, quality, _)| *quality > 0) else { continue };
        let (_, quality_chosen, specificity_chosen, place_chosen) = choice;
        let order = (quality, specificity).cmp(&(quality_chosen, specificity_chosen)).then(place_chosen.cmp(&place));
        if order.is_gt() {
            choice = (format, quality, specificity, place);
        }
    }
    choice.0
}

/// Splits `type/subtype;q=0.5` into the media range and its quality in thousandths. `None` if it is malformed.
fn parse_member(member: &[u8]) -> Option<(&[u8], u16)> {
    let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let range = parts.next().filter(|range| range.contains(&b'/'))?;
    let mut quality = 1000;
    for part in parts {
        if let [b'q' | b'Q', b'=', value @ ..] = part {
            quality = parse_quality(value)?;
        }
    }
    Some((range, quality))
}

/// Parses `0`, `0.5`, `1.000`: at most three digits after the point, and at most 1.
fn parse_quality(value: &[u8]) -> Option<u16> {
    let (whole, fraction) = match value {
        [whole] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u16::from(byte - b'0'));
    let mut thousandths = digit(whole)? * 1000;
    for (place, byte) in [100, 10, 1].into_iter().zip(fraction) {
        thousandths += digit(byte)? * place;
    }
    (thousandths <= 1000).then_some(thousandths)
}

fn match_range(range: &[u8], format: PageFormat) -> Option<Specificity> {
    let (exact, any): (&[&[u8]], &[u8]) = match format {
        PageFormat::Json => (&[b"application/json", b"application/problem+json"], b"application/*"),
        PageFormat::Html => (&[b"text/html"], b"text/*"),
        PageFormat::Text => (&[b"text/plain"], b"text/*"),
    };
    if exact.iter().any(|name| range.eq_ignore_ascii_case(name)) {
        return Some(Specificity::Exact);
    }
    if range.eq_ignore_ascii_case(any) {
        return Some(Specificity::Type);
    }
    (range == b"*/*").then_some(Specificity::Any)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn format(accept: &str) -> PageFormat {
        negotiate(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(accept).unwrap())]))
    }

    #[test]
    fn clients_get_what_they_prefer() {
        use PageFormat::{Html, Json, Text};
        for (accept, expected) in [
            ("*/*", Json),
            ("", Json),
            ("application/json", Json),
            ("application/problem+json", Json),
            ("application/*", Json),
            ("application/json, text/plain, */*", Json),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", Html),
            ("text/html, application/xhtml+xml, */*", Html),
            ("text/html, */*; q=0.01", Html),
            ("TEXT/HTML;charset=utf-8", Html),
            ("text/plain", Text),
            ("text/*", Html),
            ("text/html, text/plain, text/sgml, */*;q=0.01", Html),
            ("text/plain, text/html", Text),
            ("text/plain;q=0.5, text/html;q=0.4", Text),
            ("text/html;q=0.4, application/json;q=0.5", Json),
            ("text/html, application/json", Html),
            ("application/json, text/html", Json),
            ("text/html;q=0", Json),
            ("text/html;q=0, */*", Json),
            ("application/json;q=0, */*;q=0.1", Html),
            ("text/*;q=0.9, text/html;q=0.1, text/plain;q=0.2", Text),
            ("application/json;q=0.1, application/problem+json", Json),
            ("application/json;q=0, application/problem+json, text/html;q=0.5", Json),
            ("image/avif,image/webp,*/*;q=0.8", Json),
            ("image/png", Json),
            ("text/html;q=2", Json),
            ("text/html;q=0.1234", Json),
            ("text/html;q=", Json),
            ("html", Json),
            (",,;q=1,/,", Json),
            ("text/html ; q=1", Html),
        ] {
            assert_eq!(format(accept), expected, "{accept}");
        }
    }

    #[test]
    fn the_header_of_a_broken_head_counts() {
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nAccept: text/html\r\nbad header\r\n\r\n", PageFormat::Html),
            ("GET / HTTP/1.1\r\nx: y\r\nACCEPT:text/plain\r\n", PageFormat::Text),
            ("GET / HTTP/1.1\r\n\r\nAccept: text/html\r\n", PageFormat::Json),
            ("Accept: text/html", PageFormat::Json),
            (":\n:", PageFormat::Json),
            ("", PageFormat::Json),
        ] {
            assert_eq!(negotiate_head(head.as_bytes()), expected, "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn no_header_is_too_odd(line in prop::collection::vec(any::<u8>(), 0..200)) {
            negotiate_lines([&line[..]].into_iter());
            negotiate_head(&line);
        }

        #[test]
        fn a_format_that_is_refused_is_not_sent(
            ranges in prop::collection::vec(("text/(html|plain)|\\*/\\*|text/\\*|application/json", 0u16..=10), 0..6),
        ) {
            let accept: Vec<String> = ranges.iter().map(|(range, q)| format!("{range};q={}", f32::from(*q) / 10.0)).collect();
            let is_refused = |name: &str| ranges.iter().any(|(range, q)| range == name && *q == 0)
                && !ranges.iter().any(|(range, q)| range == name && *q > 0);
            let chosen = format(&accept.join(", "));
            prop_assert!(!(chosen == PageFormat::Html && is_refused("text/html")), "{accept:?}");
            prop_assert!(!(chosen == PageFormat::Text && is_refused("text/plain")), "{accept:?}");
        }
    }
}
