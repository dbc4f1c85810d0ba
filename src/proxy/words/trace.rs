//! `traceparent` (W3C Trace Context): the trace that a request belongs to. A received header is forwarded unchanged.
//! The gateway starts a trace only if the config says so and there is none to continue.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::telemetry::spans::{OpenSpan, SpanSettings};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A parsed `traceparent`: the ids of the trace and of the peer's span, in hexadecimal digits.
pub struct ParsedTraceparent<'h> {
    /// The trace id.
    pub trace_id: &'h str,
    span: &'h str,
    flags: &'h str,
}

/// Returns the trace id, if there is exactly one `traceparent` and it is valid.
pub fn trace_id(headers: &HeaderMap) -> Option<&str> {
    parse_traceparent(headers).map(|parent| parent.trace_id)
}

/// Opens a span if the request is sampled: the received trace says so, or there is no trace and the gateway samples the
/// request randomly.
pub fn open_span(settings: &Arc<SpanSettings>, headers: &HeaderMap) -> Option<OpenSpan> {
    let Some(ParsedTraceparent { trace_id: id, span, flags }) = parse_traceparent(headers) else {
        return OpenSpan::sample_trace(settings);
    };
    let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    let (id, span) = (u128::from_str_radix(id, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    is_sampled.then(|| OpenSpan::continue_trace(settings, id, span))
}

/// Makes `span` the parent of the request to the upstream.
pub fn set_parent(headers: &mut HeaderMap, span: &OpenSpan) {
    if let Ok(field) = HeaderValue::try_from(span.traceparent()) {
        if trace_id(headers).is_none() {
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, field);
    }
}

fn parse_traceparent(headers: &HeaderMap) -> Option<ParsedTraceparent<'_>> {
    let mut fields = headers.get_all(TRACEPARENT).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    let text = field.to_str().ok()?;
    let mut parts = text.splitn(4, '-');
    let (version, id, span, rest) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may add fields after the flags.
    let (flags, more) = rest.split_once('-').map_or((rest, false), |(flags, _)| (flags, true));
    let has_lengths = version.len() == 2 && id.len() == 32 && span.len() == 16 && flags.len() == 2;
    let hex = [version, id, span, flags]
        .iter()
        .all(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    let is_known_version = version != "ff" && (version != "00" || !more);
    let zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    (has_lengths && hex && is_known_version && !zero(id) && !zero(span)).then_some(ParsedTraceparent {
        trace_id: id,
        span,
        flags,
    })
}

/// Starts a trace if there is none. `sampled`: the flag of the new trace. It is true unless the gateway itself exports
/// spans and did not sample this request. Servers that follow their parent would otherwise never record anything.
pub fn ensure_trace(headers: &mut HeaderMap, sampled: bool) {
    if trace_id(headers).is_some() {
        return;
    }
    let (id, parent) = (rand::random::<u128>().max(1), rand::random::<u64>().max(1));
    if let Ok(field) = HeaderValue::try_from(format!("00-{id:032x}-{parent:016x}-{:02x}", u8::from(sampled))) {
        headers.insert(TRACEPARENT, field);
        // It belongs to the invalid trace that is replaced.
        headers.remove(TRACESTATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers<const N: usize>(fields: [&str; N]) -> HeaderMap {
        fields.into_iter().map(|field| (TRACEPARENT, field.parse().unwrap())).collect()
    }

    #[test]
    fn valid_traceparents_are_left_unchanged() {
        const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (field, read) in [
            (format!("00-{ID}-00f067aa0ba902b7-01"), true),
            (format!("cc-{ID}-00f067aa0ba902b7-01-what-comes"), true),
            (format!("00-{ID}-00f067aa0ba902b7-01-what"), false),
            (format!("ff-{ID}-00f067aa0ba902b7-01"), false),
            (format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), false),
            (format!("00-{ID}-0000000000000000-01"), false),
            (format!("00-{}-00f067aa0ba902b7-01", ID.to_uppercase()), false),
            (format!("00-{ID}-00f067aa0ba902b7-1"), false),
            (format!("00-{ID}"), false),
            (String::new(), false),
        ] {
            let mut headers = headers([field.as_str()]);
            assert_eq!(trace_id(&headers), read.then_some(ID), "{field}");
            ensure_trace(&mut headers, true);
            assert_eq!(headers[TRACEPARENT] == field, read, "{field}");
            assert!(trace_id(&headers).is_some());
        }
        assert_eq!(trace_id(&headers([format!("00-{ID}-00f067aa0ba902b7-01").as_str(); 2])), None);
        assert_eq!(trace_id(&HeaderMap::new()), None);
    }
}
