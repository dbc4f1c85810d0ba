//! Whatever a server reports of its usage: nothing panics, and what is read does not depend on where the bytes are cut.

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use sluicegate::limiting::settlement::include_usage::set_include_usage;
use sluicegate::limiting::settlement::readings::UsageReadings;
use sluicegate::limiting::settlement::scan::UsageScan;
use sluicegate::limiting::settlement::sources::{UsageDialect, UsageSource, UsageSources};

fn read(pieces: &[&[u8]], head: &HeaderMap, sources: &Arc<UsageSources>, is_whole: bool) -> UsageReadings {
    let mut scan = UsageScan::start(std::iter::once(sources), StatusCode::OK, head, true, false);
    for piece in pieces {
        scan.push(piece);
    }
    scan.end(is_whole);
    scan.readings(sources).expect("the sources are those of the scan").clone()
}

pub type Input<'a> = (bool, bool, bool, u8, &'a [u8]);

pub fn run(input: Input<'_>) {
    let (is_stream, is_gzip, is_whole, step, bytes) = input;
    let mut head = HeaderMap::new();
    let media_type = if is_stream { "text/event-stream" } else { "application/json" };
    head.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    if is_gzip {
        head.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let dialects = UsageDialect::ALL.iter().map(|dialect| UsageSource::Dialect(*dialect));
    let sources = Arc::new(UsageSources::new(dialects.collect()));
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    let whole = read(&[bytes], &head, &sources, is_whole);
    assert_eq!(read(&pieces, &head, &sources, is_whole), whole);
    assert_eq!(read(&single, &head, &sources, is_whole), whole);
    if let Some(changed) = set_include_usage("/v1/chat/completions", bytes) {
        assert_eq!(set_include_usage("/v1/chat/completions", &changed), None, "asked once");
    }
}
