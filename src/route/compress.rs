//! Settings of response compression (`compress`): which media types, from which size, and with which algorithms.

use std::fmt;

use crate::labels::labels;

labels! {
    /// A content coding that the gateway can apply, by its name in `Content-Encoding`.
    CompressionAlgorithm:
    Zstd = "zstd",
    Br = "br",
    Gzip = "gzip",
}

/// Media types that are compressed by default: text in every form, and the few binary formats that compress well.
const DEFAULT_TYPES: [&str; 16] = [
    "text/*",
    "application/json",
    "application/*+json",
    "application/javascript",
    "application/x-javascript",
    "application/xml",
    "application/*+xml",
    "application/x-ndjson",
    "application/yaml",
    "application/wasm",
    "image/svg+xml",
    "image/bmp",
    "image/x-icon",
    "image/vnd.microsoft.icon",
    "font/ttf",
    "font/otf",
];
const DEFAULT_MIN_SIZE: u64 = 1024;

/// A stream of events. A pattern with `*` does not match it, because many clients expect it uncompressed.
const EVENT_STREAM: &str = "text/event-stream";
/// Start of every gRPC media type. gRPC compresses its messages itself.
const GRPC_START: &str = "application/grpc";

/// Settings of response compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressSettings {
    pub types: Vec<MediaTypePattern>,
    /// Smallest body that is compressed, in bytes, if its length is known.
    pub min_size: u64,
    /// Allowed algorithms in order of preference.
    pub algorithms: Vec<CompressionAlgorithm>,
}

impl Default for CompressSettings {
    fn default() -> CompressSettings {
        CompressSettings {
            types: DEFAULT_TYPES.iter().filter_map(|text| MediaTypePattern::parse(text).ok()).collect(),
            min_size: DEFAULT_MIN_SIZE,
            algorithms: CompressionAlgorithm::ALL.to_vec(),
        }
    }
}

impl CompressSettings {
    /// Returns whether bodies with this `Content-Type` are compressed.
    pub fn has_type(&self, content_type: &[u8]) -> bool {
        let end = content_type.iter().position(|byte| *byte == b';').unwrap_or(content_type.len());
        let media_type = content_type[..end].trim_ascii();
        self.types.iter().any(|pattern| pattern.matches(media_type))
    }
}

/// A media type without parameters, in lower case. Its subtype may contain one `*`, and `*/*` is every type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaTypePattern {
    /// The text before the `*`, or the whole type.
    start: String,
    /// The text after the `*`. `None` if there is no `*`.
    end: Option<String>,
}

/// A text that is not a pattern of media types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaTypeFault {
    Malformed,
    /// The pattern has parameters, such as `charset`.
    Parameters,
    /// gRPC is never compressed.
    Grpc,
}

impl MediaTypePattern {
    /// Parses `text/html`, `text/*`, `application/*+json` or `*/*`, in any case.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<MediaTypePattern, MediaTypeFault> {
        if text.contains(';') {
            return Err(MediaTypeFault::Parameters);
        }
        let text = text.to_ascii_lowercase();
        let is_token = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
        };
        let (kind, subtype) = text.split_once('/').ok_or(MediaTypeFault::Malformed)?;
        if text == "*/*" {
            return Ok(MediaTypePattern { start: String::new(), end: Some(String::new()) });
        }
        let (start, end) = subtype.split_once('*').map_or((subtype, None), |(start, end)| (start, Some(end)));
        let is_subtype = match end {
            None => is_token(start),
            Some(end) => [start, end].into_iter().all(|part| part.is_empty() || is_token(part)),
        };
        if !is_token(kind) || !is_subtype {
            return Err(MediaTypeFault::Malformed);
        }
        let start = format!("{kind}/{start}");
        if start.starts_with(GRPC_START) {
            return Err(MediaTypeFault::Grpc);
        }
        Ok(MediaTypePattern { start, end: end.map(str::to_owned) })
    }

    /// Returns whether the pattern matches a media type without parameters. A pattern with `*` matches neither gRPC nor
    /// event streams.
    fn matches(&self, media_type: &[u8]) -> bool {
        let Some(end) = &self.end else { return media_type.eq_ignore_ascii_case(self.start.as_bytes()) };
        let fits = media_type.len() >= self.start.len() + end.len();
        fits && has_start(media_type, &self.start)
            && media_type[media_type.len() - end.len()..].eq_ignore_ascii_case(end.as_bytes())
            && !has_start(media_type, GRPC_START)
            && !media_type.eq_ignore_ascii_case(EVENT_STREAM.as_bytes())
    }
}

/// Compares the start of `text` in any case.
fn has_start(text: &[u8], start: &str) -> bool {
    text.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start.as_bytes()))
}

impl fmt::Display for MediaTypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            None => f.write_str(&self.start),
            Some(end) if self.start.is_empty() && end.is_empty() => f.write_str("*/*"),
            Some(end) => write!(f, "{}*{end}", self.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(types: &[&str]) -> CompressSettings {
        let types = types.iter().map(|text| MediaTypePattern::parse(text).unwrap()).collect();
        CompressSettings { types, ..CompressSettings::default() }
    }

    #[test]
    fn default_types_are_valid_and_match_text_only() {
        let default = CompressSettings::default();
        assert_eq!(default.types.len(), DEFAULT_TYPES.len());
        assert_eq!(default.types.iter().map(ToString::to_string).collect::<Vec<_>>(), DEFAULT_TYPES);
        for (content_type, is_compressed) in [
            ("text/html; charset=utf-8", true),
            ("TEXT/CSS", true),
            ("application/json", true),
            ("application/json ;charset=utf-8", true),
            ("application/problem+json", true),
            ("application/vnd.api+json;version=1", true),
            ("application/xhtml+xml", true),
            ("image/svg+xml", true),
            ("text/event-stream", false),
            ("Text/Event-Stream; charset=utf-8", false),
            ("application/grpc", false),
            ("application/grpc+json", false),
            ("application/grpc-web+json", false),
            ("image/png", false),
            ("application/octet-stream", false),
            ("application/jsonx", false),
            ("application/+json", true),
            ("application/json+", false),
            ("text", false),
            ("", false),
        ] {
            assert_eq!(default.has_type(content_type.as_bytes()), is_compressed, "{content_type}");
        }
    }

    #[test]
    fn event_streams_must_be_listed_and_grpc_cannot_be() {
        assert!(settings(&["text/event-stream"]).has_type(b"text/event-stream;charset=utf-8"));
        assert!(!settings(&["*/*", "text/event*", "text/*-stream"]).has_type(b"text/event-stream"));
        assert!(settings(&["*/*"]).has_type(b"image/png"));
        assert!(!settings(&["*/*"]).has_type(b"application/grpc-web-text"));
        for text in ["application/grpc", "application/grpc-web*", "Application/GRPC+proto"] {
            assert_eq!(MediaTypePattern::parse(text), Err(MediaTypeFault::Grpc), "{text}");
        }
    }

    #[test]
    fn a_pattern_overlaps_no_text_twice() {
        let pattern = settings(&["application/a*a"]);
        assert!(!pattern.has_type(b"application/a"));
        assert!(pattern.has_type(b"application/aa"));
        assert!(pattern.has_type(b"application/abca"));
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for text in
            ["", "text", "text/", "/html", "*", "*/html", "text/**", "te xt/html", "text/html, text/css", "te*/x"]
        {
            assert_eq!(MediaTypePattern::parse(text), Err(MediaTypeFault::Malformed), "{text}");
        }
        assert_eq!(MediaTypePattern::parse("text/html; charset=utf-8"), Err(MediaTypeFault::Parameters));
    }
}
