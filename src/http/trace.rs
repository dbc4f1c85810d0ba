//! `traceparent` (W3C Trace Context): the trace that a request belongs to. It goes on as it came; made here
//! only where the config says so and there is none that can be continued. Called by `onward` and the access log.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::spans::{OpenSpan, SpanSettings};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What a `traceparent` says: the ids of the trace and of the peer's span, in hex.
pub struct Parent<'h> {
    pub id: &'h str,
    span: &'h str,
    flags: &'h str,
}

/// The trace's id, if the one field says it as it must.
pub fn id(headers: &HeaderMap) -> Option<&str> {
    parent(headers).map(|parent| parent.id)
}

/// The span of a request that is to be told of: its peer's trace says so, or there is none and chance does.
pub fn begin(settings: &Arc<SpanSettings>, headers: &HeaderMap) -> Option<OpenSpan> {
    let Some(Parent { id, span, flags }) = parent(headers) else { return OpenSpan::sampled_root(settings) };
    let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    let (id, span) = (u128::from_str_radix(id, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    sampled.then(|| OpenSpan::child(settings, id, span))
}

/// What is asked for it belongs to `span`.
pub fn go_on(headers: &mut HeaderMap, span: &OpenSpan) {
    if let Ok(field) = HeaderValue::try_from(span.traceparent()) {
        if id(headers).is_none() {
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, field);
    }
}

fn parent(headers: &HeaderMap) -> Option<Parent<'_>> {
    let mut fields = headers.get_all(TRACEPARENT).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    let text = field.to_str().ok()?;
    let mut parts = text.splitn(4, '-');
    let (version, id, span, rest) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may say more after the flags.
    let (flags, more) = rest.split_once('-').map_or((rest, false), |(flags, _)| (flags, true));
    let sized = version.len() == 2 && id.len() == 32 && span.len() == 16 && flags.len() == 2;
    let hex = [version, id, span, flags]
        .iter()
        .all(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    let known = version != "ff" && (version != "00" || !more);
    let zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    (sized && hex && known && !zero(id) && !zero(span)).then_some(Parent { id, span, flags })
}

/// Starts a trace where there is none. It is marked as sampled, unless somebody here chose and passed it over: else
/// servers that follow their parent would record nothing of it.
pub fn ensure(headers: &mut HeaderMap, sampled: bool) {
    if id(headers).is_some() {
        return;
    }
    let (id, parent) = (rand::random::<u128>().max(1), rand::random::<u64>().max(1));
    if let Ok(field) = HeaderValue::try_from(format!("00-{id:032x}-{parent:016x}-{:02x}", u8::from(sampled))) {
        headers.insert(TRACEPARENT, field);
        // It belongs to the trace that could not be read.
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
    fn what_can_be_continued_is_left_alone() {
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
            assert_eq!(id(&headers), read.then_some(ID), "{field}");
            ensure(&mut headers, true);
            assert_eq!(headers[TRACEPARENT] == field, read, "{field}");
            assert!(id(&headers).is_some());
        }
        assert_eq!(id(&headers([format!("00-{ID}-00f067aa0ba902b7-01").as_str(); 2])), None);
        assert_eq!(id(&HeaderMap::new()), None);
    }
}
