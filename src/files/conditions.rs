//! Conditional requests (RFC 9110, section 13): whether a client has the file already, or expects another one.

use std::time::{Duration, SystemTime};

use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The validators by which a client recognizes a representation. A file without a time has neither.
#[derive(Clone, Debug, Default)]
pub struct Validators {
    /// A strong entity tag.
    pub etag: Option<HeaderValue>,
    /// When the file was modified, in whole seconds.
    pub modified: Option<SystemTime>,
}

/// Result of the conditions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    Send,
    /// 304: the client has it.
    NotModified,
    /// 412: the client expects another one.
    Failed,
}

impl Validators {
    /// Creates the validators of a file. `coding`: the content coding of a compressed copy; each coding has another
    /// entity tag. `now`: a modification in the future counts as now.
    pub fn new(modified: Option<SystemTime>, length: u64, coding: &str, now: SystemTime) -> Validators {
        let Some(age) = modified.and_then(|modified| modified.duration_since(SystemTime::UNIX_EPOCH).ok()) else {
            return Validators::default();
        };
        let dash = if coding.is_empty() { "" } else { "-" };
        let etag = format!("\"{:x}-{length:x}{dash}{coding}\"", age.as_nanos());
        let modified = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(age.as_secs()));
        Validators { etag: HeaderValue::try_from(etag).ok(), modified: modified.map(|modified| modified.min(now)) }
    }

    /// Judges the conditions of a GET or HEAD request, in the order of RFC 9110, section 13.2.2. Malformed ones are
    /// ignored.
    pub fn judge(&self, headers: &HeaderMap) -> Judgement {
        let etag = self.etag.as_ref().map(HeaderValue::as_bytes);
        if headers.contains_key(IF_MATCH) {
            if !lists_tag(headers, &IF_MATCH, etag, |listed, own| listed == own) {
                return Judgement::Failed;
            }
        } else if let (Some(modified), Some(since)) = (self.modified, find_date(headers, &IF_UNMODIFIED_SINCE))
            && modified > since
        {
            return Judgement::Failed;
        }
        if headers.contains_key(IF_NONE_MATCH) {
            if lists_tag(headers, &IF_NONE_MATCH, etag, |listed, own| opaque_part(listed) == opaque_part(own)) {
                return Judgement::NotModified;
            }
        } else if let (Some(modified), Some(since)) = (self.modified, find_date(headers, &IF_MODIFIED_SINCE))
            && modified <= since
        {
            return Judgement::NotModified;
        }
        Judgement::Send
    }

    /// Returns whether the client may get a range: it has a part of this very representation (`If-Range`), or does not
    /// say.
    pub fn may_send_range(&self, headers: &HeaderMap) -> bool {
        let mut lines = headers.get_all(IF_RANGE).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return !headers.contains_key(IF_RANGE) };
        match line.as_bytes() {
            tag @ [b'"', ..] => self.etag.as_ref().is_some_and(|own| own.as_bytes() == tag),
            _ => self.modified.is_some() && find_date(headers, &IF_RANGE) == self.modified,
        }
    }
}

/// Returns whether the header lists a tag that `is_equal` to `own`, or is `*`.
fn lists_tag(
    headers: &HeaderMap,
    name: &HeaderName,
    own: Option<&[u8]>,
    is_equal: impl Fn(&[u8], &[u8]) -> bool,
) -> bool {
    headers.get_all(name).iter().any(|line| {
        let line = line.as_bytes();
        line.trim_ascii() == b"*" || own.is_some_and(|own| list_tags(line).any(|listed| is_equal(listed, own)))
    })
}

/// Splits a list of entity tags, which may contain commas. It ends at the first thing that is not a tag.
fn list_tags(mut line: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let start = line.iter().position(|byte| !matches!(byte, b',' | b' ' | b'\t'))?;
        let rest = &line[start..];
        let open = if rest.starts_with(b"W/") { 2 } else { 0 };
        let quoted = rest.get(open..)?.strip_prefix(b"\"")?;
        let end = open + 1 + quoted.iter().position(|byte| *byte == b'"')? + 1;
        let (tag, after) = rest.split_at(end);
        line = after;
        Some(tag)
    })
}

/// Returns a tag without the mark of a weak one.
fn opaque_part(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns the date of a header with one line.
fn find_date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    let mut lines = headers.get_all(name).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    httpdate::parse_http_date(line.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "Sat, 28 Nov 2026 11:59:59 GMT";
    const AT: &str = "Sat, 28 Nov 2026 12:00:00 GMT";
    const AFTER: &str = "Sat, 28 Nov 2026 12:00:01 GMT";

    fn validators() -> Validators {
        let modified = httpdate::parse_http_date(AT).unwrap() + Duration::from_millis(500);
        Validators::new(Some(modified), 9, "", modified + Duration::from_secs(1))
    }

    fn map(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields.iter().fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
            map
        })
    }

    #[test]
    fn conditions_are_judged_in_order() {
        use Judgement::{Failed, NotModified, Send};
        let own = validators().etag.unwrap().to_str().unwrap().to_owned();
        let (weak, listed) = (format!("W/{own}"), format!("\"a,b\" ,, W/\"c\", {own}"));
        for (fields, judgement) in [
            (&[][..], Send),
            (&[("if-none-match", own.as_str())], NotModified),
            (&[("if-none-match", &weak)], NotModified),
            (&[("if-none-match", &listed)], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"x\"")], Send),
            (&[("if-none-match", "\"x\""), ("if-none-match", &own)], NotModified),
            (&[("if-none-match", "\"x\""), ("if-modified-since", AFTER)], Send),
            (&[("if-none-match", "x"), ("if-modified-since", AFTER)], Send),
            (&[("if-modified-since", BEFORE)], Send),
            (&[("if-modified-since", AT)], NotModified),
            (&[("if-modified-since", AFTER)], NotModified),
            (&[("if-modified-since", "yesterday")], Send),
            (&[("if-modified-since", AT), ("if-modified-since", AT)], Send),
            (&[("if-match", &own)], Send),
            (&[("if-match", &weak)], Failed),
            (&[("if-match", "*")], Send),
            (&[("if-match", "\"x\"")], Failed),
            (&[("if-match", "x")], Failed),
            (&[("if-match", &own), ("if-unmodified-since", BEFORE)], Send),
            (&[("if-unmodified-since", BEFORE)], Failed),
            (&[("if-unmodified-since", AT)], Send),
            (&[("if-unmodified-since", "never")], Send),
            (&[("if-match", "\"x\""), ("if-none-match", &own)], Failed),
        ] {
            assert_eq!(validators().judge(&map(fields)), judgement, "{fields:?}");
        }
        assert_eq!(Validators::default().judge(&map(&[("if-none-match", &own)])), Send);
        assert_eq!(Validators::default().judge(&map(&[("if-match", &own)])), Failed);
    }

    #[test]
    fn a_range_is_of_the_same_representation() {
        let own = validators().etag.unwrap().to_str().unwrap().to_owned();
        for (if_range, may_send) in [
            (&own[..], true),
            (&format!("W/{own}"), false),
            ("\"x\"", false),
            (BEFORE, false),
            (AT, true),
            (AFTER, false),
            ("", false),
        ] {
            assert_eq!(validators().may_send_range(&map(&[("if-range", if_range)])), may_send, "{if_range}");
        }
        assert!(validators().may_send_range(&map(&[])));
        assert!(!validators().may_send_range(&map(&[("if-range", &own), ("if-range", &own)])));
        assert!(!Validators::default().may_send_range(&map(&[("if-range", AT)])));
    }

    #[test]
    fn each_representation_has_a_tag_of_its_own() {
        let now = SystemTime::now();
        let tag =
            |age, length, coding| Validators::new(Some(now - Duration::from_nanos(age)), length, coding, now).etag;
        let tags = [tag(0, 1, ""), tag(0, 1, "br"), tag(0, 1, "gzip"), tag(0, 2, ""), tag(1, 1, "")];
        assert_eq!(std::collections::HashSet::from(tags).len(), 5);
        let later = Validators::new(Some(now + Duration::from_secs(9)), 1, "", now);
        assert_eq!(later.modified, Some(now), "not after the Date of the response");
    }
}
