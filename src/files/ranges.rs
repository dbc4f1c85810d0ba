//! Which bytes of a file a client asks for (`Range`, RFC 9110, section 14).
//!
//! A server may ignore a range, so everything unusual gets the whole file: many ranges, ranges that overlap more than
//! once, and several ranges that together are hardly less. So no request costs more than the file itself.

use std::num::NonZeroUsize;
use std::ops::Range;

use http::header::RANGE;
use http::{HeaderMap, HeaderValue};
use http_range_header::{RangeUnsatisfiableError, parse_range_header_with_max_ranges};

/// The most ranges of one response.
const RANGES_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(15);
/// Bytes that each of several ranges costs in addition to its content: the head of its part.
const PART_COST: u64 = 256;

/// The part of the file that the response has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Whole,
    One(Range<u64>),
    Several(Vec<Range<u64>>),
    /// The file has none of the requested bytes: 416.
    None,
}

impl Selection {
    /// Reads the ranges that a client asks for of a file with `length` bytes.
    pub fn from_headers(headers: &HeaderMap, length: u64) -> Selection {
        let mut lines = headers.get_all(RANGE).iter().map(HeaderValue::to_str);
        let (Some(Ok(line)), None) = (lines.next(), lines.next()) else { return Selection::Whole };
        let Ok(parsed) = parse_range_header_with_max_ranges(line, RANGES_MAX) else { return Selection::Whole };
        let ranges = match parsed.validate(length) {
            Ok(ranges) => ranges,
            Err(RangeUnsatisfiableError::Unsatisfiable) => return Selection::None,
            Err(_) => return Selection::Whole,
        };
        let ranges: Vec<Range<u64>> = ranges.into_iter().map(|range| *range.start()..range.end() + 1).collect();
        match &ranges[..] {
            [] => Selection::Whole,
            [range] => Selection::One(range.clone()),
            several => {
                let cost: u64 = several.iter().map(|range| range.end - range.start + PART_COST).sum();
                if cost < length { Selection::Several(ranges) } else { Selection::Whole }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Selection::{None, One, Several, Whole};
    use super::*;

    fn select(line: &str, length: u64) -> Selection {
        Selection::from_headers(&HeaderMap::from_iter([(RANGE, HeaderValue::from_str(line).unwrap())]), length)
    }

    #[test]
    fn ranges_are_read() {
        for (line, length, selection) in [
            ("bytes=0-0", 10_000, One(0..1)),
            ("bytes=0-", 10_000, One(0..10_000)),
            ("bytes=9999-", 10_000, One(9999..10_000)),
            ("bytes=0-99999", 10_000, One(0..10_000)),
            ("bytes=-1", 10_000, One(9999..10_000)),
            ("bytes=-99999", 10_000, One(0..10_000)),
            ("BYTES=1-2", 10_000, One(1..3)),
            ("bytes=0-18446744073709551615", 10_000, One(0..10_000)),
            ("bytes=0-99999999999999999999", 10_000, One(0..10_000)),
            ("bytes=0-0, -1", 10_000, Several(vec![0..1, 9999..10_000])),
            ("bytes=20-29,0-9", 10_000, Several(vec![20..30, 0..10])),
            ("bytes=0-5,3-9", 10_000, Several(vec![0..6, 3..10])),
            ("bytes=0-5,3-9,4-12", 10_000, Whole),
            ("bytes=0-9,20000-", 10_000, One(0..10)),
            ("bytes=10000-", 10_000, None),
            ("bytes=20000-,30000-", 10_000, None),
            ("bytes=-0", 10_000, None),
            ("bytes=0-", 0, None),
            ("bytes=5-2", 10_000, Whole),
            ("bytes=a-b", 10_000, Whole),
            ("bytes=", 10_000, Whole),
            ("bytes=-", 10_000, Whole),
            ("bytes 0-1", 10_000, Whole),
            ("items=0-1", 10_000, Whole),
            ("bytes=0-,0-,0-", 10_000, Whole),
            ("bytes=0-4999,5000-9999", 10_000, Whole),
            ("bytes=0-1,2-3", 512, Whole),
        ] {
            assert_eq!(select(line, length), selection, "{line} of {length}");
        }
        let mut twice = HeaderMap::new();
        twice.append(RANGE, HeaderValue::from_static("bytes=0-1"));
        twice.append(RANGE, HeaderValue::from_static("bytes=2-3"));
        assert_eq!(Selection::from_headers(&twice, 10_000), Whole);
    }

    proptest! {
        #[test]
        fn no_request_costs_more_than_the_file(
            specs in prop::collection::vec("[0-9]{0,5}-[0-9]{0,5}", 1..40),
            length in 0u64..20_000,
        ) {
            match select(&format!("bytes={}", specs.join(",")), length) {
                One(range) => prop_assert!(range.start < range.end && range.end <= length),
                Several(ranges) => {
                    prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
                    let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                    prop_assert!(sum + ranges.len() as u64 * PART_COST < length);
                }
                Whole | None => {}
            }
        }
    }
}
