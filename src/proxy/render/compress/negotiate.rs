//! Selects the algorithm of a response from the client's `Accept-Encoding` (RFC 9110, section 12.5.3).

use std::cmp::Reverse;

use http::header::{ACCEPT_ENCODING, CACHE_CONTROL};
use http::{HeaderMap, HeaderValue};

use crate::route::compress::{CompressSettings, CompressionAlgorithm};

const ALGORITHMS: usize = CompressionAlgorithm::ALL.len();

/// Weights in 1/1000 that a client gives. `None` if it does not mention the coding.
#[derive(Default)]
struct AcceptedCodings {
    named: [Option<u16>; ALGORITHMS],
    identity: Option<u16>,
    /// The weight of `*`, for all codings that are not named.
    others: Option<u16>,
}

/// Returns the algorithm that the client prefers among those of `settings`; at equal weights the first of them wins.
/// Returns `None` if the client accepts none, prefers uncompressed responses, or demands that nothing transforms the
/// response.
pub fn select_algorithm(headers: &HeaderMap, settings: &CompressSettings) -> Option<CompressionAlgorithm> {
    if !headers.contains_key(ACCEPT_ENCODING) || has_no_transform(headers) {
        return None;
    }
    let codings = parse_codings(headers.get_all(ACCEPT_ENCODING).iter());
    let weight = |algorithm: CompressionAlgorithm| codings.named[algorithm as usize].or(codings.others).unwrap_or(0);
    let identity = codings.identity.unwrap_or(0);
    let mut best = None;
    for algorithm in &settings.algorithms {
        let weight = weight(*algorithm);
        if weight > 0 && weight >= identity && best.is_none_or(|(_, found)| weight > found) {
            best = Some((*algorithm, weight));
        }
    }
    best.map(|(algorithm, _)| algorithm)
}

/// Returns those of `algorithms` that the client accepts and likes no less than the uncompressed body, the preferred
/// one first; at equal weights in their order.
pub fn rank_algorithms(headers: &HeaderMap, algorithms: &[CompressionAlgorithm]) -> Vec<CompressionAlgorithm> {
    let codings = parse_codings(headers.get_all(ACCEPT_ENCODING).iter());
    let weight = |algorithm: CompressionAlgorithm| codings.named[algorithm as usize].or(codings.others).unwrap_or(0);
    let identity = codings.identity.unwrap_or(0);
    let mut ranked: Vec<CompressionAlgorithm> = algorithms.to_vec();
    ranked.retain(|algorithm| weight(*algorithm) > 0 && weight(*algorithm) >= identity);
    ranked.sort_by_key(|algorithm| Reverse(weight(*algorithm)));
    ranked
}

/// Returns whether `Cache-Control` forbids intermediaries to transform the body.
pub fn has_no_transform(headers: &HeaderMap) -> bool {
    let directives = headers.get_all(CACHE_CONTROL).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    directives.map(<[u8]>::trim_ascii).any(|directive| directive.eq_ignore_ascii_case(b"no-transform"))
}

/// Parses all lines in one pass. Malformed members are ignored. If a coding occurs twice, the lower weight counts.
fn parse_codings<'h>(lines: impl Iterator<Item = &'h HeaderValue>) -> AcceptedCodings {
    let mut codings = AcceptedCodings::default();
    for member in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
        let Some((coding, weight)) = parse_member(member) else { continue };
        let slot = match coding {
            b"*" => &mut codings.others,
            _ if coding.eq_ignore_ascii_case(b"identity") => &mut codings.identity,
            // The older name of gzip (RFC 9110, section 8.4.1.3).
            _ if coding.eq_ignore_ascii_case(b"x-gzip") => &mut codings.named[CompressionAlgorithm::Gzip as usize],
            _ => {
                let algorithms = CompressionAlgorithm::ALL.iter().copied();
                let Some(algorithm) =
                    algorithms.into_iter().find(|one| coding.eq_ignore_ascii_case(one.label().as_bytes()))
                else {
                    continue;
                };
                &mut codings.named[algorithm as usize]
            }
        };
        *slot = Some(slot.map_or(weight, |earlier| earlier.min(weight)));
    }
    codings
}

/// Parses `CODING` or `CODING;q=WEIGHT`. Returns `None` if it is neither.
fn parse_member(member: &[u8]) -> Option<(&[u8], u16)> {
    let member = member.trim_ascii();
    let Some(semicolon) = member.iter().position(|byte| *byte == b';') else { return Some((member, 1000)) };
    let (coding, parameter) = (member[..semicolon].trim_ascii_end(), member[semicolon + 1..].trim_ascii_start());
    let [b'q' | b'Q', b'=', weight @ ..] = parameter else { return None };
    Some((coding, parse_weight(weight)?))
}

/// Parses a weight in 1/1000: `0` to `1` with up to three decimals (RFC 9110, section 12.4.2).
fn parse_weight(text: &[u8]) -> Option<u16> {
    let (whole, decimals) = match text {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] => (whole, decimals),
        _ => return None,
    };
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |at: usize| decimals.get(at).map_or(0, |digit| u16::from(digit - b'0'));
    let weight = u16::from(whole - b'0') * 1000 + digit(0) * 100 + digit(1) * 10 + digit(2);
    (weight <= 1000).then_some(weight)
}

#[cfg(test)]
mod tests {
    use CompressionAlgorithm::{Br, Gzip, Zstd};
    use proptest::prelude::*;

    use super::*;

    fn select(lines: &[&str]) -> Option<CompressionAlgorithm> {
        let lines = lines.iter().map(|line| (ACCEPT_ENCODING, HeaderValue::from_str(line).unwrap()));
        select_algorithm(&lines.collect(), &CompressSettings::default())
    }

    #[test]
    fn the_highest_weight_wins_and_then_the_order_of_the_config() {
        for (lines, selected) in [
            (&["gzip, deflate, br, zstd"][..], Some(Zstd)),
            (&["gzip, deflate, br"], Some(Br)),
            (&["gzip"], Some(Gzip)),
            (&["GZIP;Q=0.1"], Some(Gzip)),
            (&["x-gzip"], Some(Gzip)),
            (&["gzip;q=1.0, zstd;q=0.9, br;q=0.95"], Some(Gzip)),
            (&["gzip ; q=0.5 , br;  q=0.501"], Some(Br)),
            (&["gzip", "br;q=0.2", "zstd;q=0.1"], Some(Gzip)),
            (&["deflate, compress"], None),
            (&["*"], Some(Zstd)),
            (&["*;q=0.1, zstd;q=0"], Some(Br)),
            (&["*;q=0, gzip"], Some(Gzip)),
            (&["*;q=0"], None),
            (&["gzip;q=0"], None),
            (&["gzip;q=0.000"], None),
            (&["gzip;q=0.001"], Some(Gzip)),
            (&["identity"], None),
            (&["identity, gzip;q=0.5"], None),
            (&["identity;q=0.5, gzip;q=0.5"], Some(Gzip)),
            (&["identity;q=0.5, *;q=0.4"], None),
            (&["identity;q=0"], None),
            (&["identity;q=0, gzip;q=0.2"], Some(Gzip)),
            (&["identity;q=0, *"], Some(Zstd)),
            (&[""], None),
            (&[",,, ,gzip,"], Some(Gzip)),
            (&[], None),
        ] {
            assert_eq!(select(lines), selected, "{lines:?}");
        }
    }

    #[test]
    fn malformed_members_do_not_count() {
        for member in [
            "gzip;q=1.5",
            "gzip;q=-1",
            "gzip;q=",
            "gzip;q",
            "gzip;",
            "gzip;q=0.1234",
            "gzip;q=1.001",
            "gzip;q=.5",
            "gzip;q=00",
            "gzip;level=9",
            "gzip;q=1;q=1",
            "gzip;q =1",
            "gz ip",
            "gzip;q=1 x",
            "gzipx",
        ] {
            assert_eq!(select(&[member]), None, "{member}");
            assert_eq!(select(&[&format!("{member}, br;q=0.1")]), Some(Br), "{member}");
        }
    }

    #[test]
    fn the_lower_weight_of_a_repeated_coding_counts() {
        assert_eq!(select(&["gzip, gzip;q=0"]), None);
        assert_eq!(select(&["gzip;q=0, x-gzip"]), None);
        assert_eq!(select(&["zstd;q=0.1, br;q=0.2, zstd;q=0.9"]), Some(Br));
    }

    #[test]
    fn only_configured_algorithms_are_selected() {
        let settings = CompressSettings { algorithms: vec![Gzip, Zstd], ..CompressSettings::default() };
        let headers = |text| HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]);
        assert_eq!(select_algorithm(&headers("br, gzip, zstd"), &settings), Some(Gzip));
        assert_eq!(select_algorithm(&headers("br"), &settings), None);
        assert_eq!(select_algorithm(&headers("*"), &settings), Some(Gzip));
    }

    #[test]
    fn a_client_can_forbid_transformations() {
        let mut headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        headers.append(CACHE_CONTROL, HeaderValue::from_static("no-cache, No-Transform"));
        assert_eq!(select_algorithm(&headers, &CompressSettings::default()), None);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transformer"));
        assert_eq!(select_algorithm(&headers, &CompressSettings::default()), Some(Gzip));
    }

    proptest! {
        #[test]
        fn a_refused_coding_is_never_selected(text in "((gzip|br|zstd|identity|\\*|x)(;q=(0|1|0\\.5|1\\.5|0\\.25))?,? ?){0,6}") {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_str(&text).unwrap())]);
            if let Some(selected) = select_algorithm(&headers, &CompressSettings::default()) {
                let refused = format!("{};q=0", selected.label());
                prop_assert!(!text.split(',').any(|member| member.trim() == refused), "{text:?} {selected:?}");
                prop_assert!(text.contains(selected.label()) || text.contains('*'), "{text:?} {selected:?}");
            }
        }
    }
}
