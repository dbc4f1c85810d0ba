//! The texts that callers give for a part of a key: a value, or a hash instead of it. A value that looks like a part of
//! a key, as a log or a report shows it, is refused: used as it is, it would be a key that no client has. Called by
//! `requests`.

use crate::limiting::key::KeyPart;
use crate::limiting::key::shown_key::KeyHash;
use crate::limiting::source::{Source, SourceKind};

/// A hash that a caller gives instead of a value.
#[derive(Debug, PartialEq)]
pub enum GivenHash {
    /// As a log shows the part.
    Shown(KeyHash),
    /// The digest that a state key has instead of a long or unusual value. A usage report shows it.
    Digest(String),
}

/// The ways in which a caller gives a value that is not plain, for messages.
pub struct OtherForms {
    /// What is before and after the digits of a hash.
    pub hash: [&'static str; 2],
    /// Name of the form that is never refused.
    pub literal: &'static str,
}

/// Number of hexadecimal digits of a digest.
const DIGEST_LEN: usize = 32;

impl GivenHash {
    /// Parses the digits of a hash, or `NAME#DIGITS` with the name that the part has in state keys.
    pub fn parse(part: &str, text: &str) -> Option<GivenHash> {
        let digits = text.strip_prefix(part).and_then(|rest| rest.strip_prefix('#')).unwrap_or(text);
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_digest = digits.len() == DIGEST_LEN && digits.bytes().all(is_digit);
        match is_digest {
            true => Some(GivenHash::Digest(digits.to_owned())),
            false => KeyHash::parse(digits).map(GivenHash::Shown),
        }
    }
}

/// Refuses a value that looks like a part of a key: with the name of this part, or of another source, before `=`, `#`
/// or `!`. Case does not matter.
pub fn refuse_part_text(part: &KeyPart, value: &[u8], forms: &OtherForms) -> Result<(), String> {
    let Ok(text) = str::from_utf8(value) else { return Ok(()) };
    let Some(at) = text.find(['=', '#', '!']) else { return Ok(()) };
    let (name, rest) = (&text[..at], &text[at + 1..]);
    let hash = GivenHash::parse("", rest);
    let what = match &text[at..=at] {
        "#" if name.is_empty() && hash.is_some() => describe_hash(rest, forms),
        _ if name.is_empty() => return Ok(()),
        "=" if is_named(part, name) && !rest.is_empty() => {
            format!("it looks like a key from the log; write only the value: {rest}")
        }
        "#" if is_named(part, name) && hash.is_some() => describe_hash(rest, forms),
        "#" if is_named(part, name) => {
            "it looks like a key from the log, but a hash has 16 digits from 0 to 9 and a to f \
             there, and 32 in a usage report"
                .to_owned()
        }
        "!" if is_named(part, name) && rest.is_empty() => {
            "it looks like a key from the log: that of requests without this part, which share one budget".to_owned()
        }
        mark if mark != "!" => match other_source(name) {
            Some(other) => format!("it looks like a key by {other}, but this part of the key is {part}"),
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    Err(format!("{what}; if clients send exactly this text, give it as `{}`", forms.literal))
}

fn describe_hash(digits: &str, forms: &OtherForms) -> String {
    let [start, end] = forms.hash;
    format!("it looks like a key from the log; write {start}{digits}{end}")
}

/// Returns whether `name` is one of the names of the part: in state keys, in the config, of one of its sources, or of
/// what this source reads, such as `x-api-key`.
fn is_named(part: &KeyPart, name: &str) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let is_source = |source: &Source| {
        let full_name = source.display_name();
        let own_name = full_name.split_once(':').map(|(_, own_name)| own_name);
        source.is_called(name) || is(&full_name) || own_name.is_some_and(is)
    };
    is(&part.state_name()) || is(&part.to_string()) || part.sources().iter().any(is_source)
}

/// Returns the source with this name, if it cannot be the beginning of an ordinary value.
fn other_source(name: &str) -> Option<Source> {
    let name = name.to_ascii_lowercase();
    let is_distinct = name.contains(':') || name == SourceKind::Ip.word();
    is_distinct.then(|| Source::parse(&name, SourceKind::ALL)).flatten()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: OtherForms = OtherForms { hash: ["hash=", ""], literal: "literal" };

    fn part(names: &[&str]) -> KeyPart {
        let sources: Vec<Source> =
            names.iter().map(|name| Source::parse(name, SourceKind::ALL).unwrap().unwrap()).collect();
        match <[Source; 1]>::try_from(sources) {
            Ok([source]) => KeyPart::Source(source),
            Err(sources) => KeyPart::Alternatives(sources),
        }
    }

    fn refuse(part: &KeyPart, text: &str) -> Option<String> {
        refuse_part_text(part, text.as_bytes(), &FORMS).err()
    }

    #[test]
    fn texts_that_look_like_parts_of_keys_are_refused() {
        let key = part(&["header:x-api-key"]);
        for (text, why) in [
            ("header:x-api-key=acme", "write only the value: acme"),
            ("header:X-API-Key=acme", "write only the value: acme"),
            ("x-api-key=acme", "write only the value: acme"),
            ("header:x-api-key#5f1c0a6e9b3d2784", "write hash=5f1c0a6e9b3d2784"),
            ("#5f1c0a6e9b3d2784", "write hash=5f1c0a6e9b3d2784"),
            ("header:x-api-key#63b586b4a93f204837ee1e038f8ce2be", "write hash=63b586b4a93f204837ee1e038f8ce2be"),
            ("header:x-api-key#5f1c0a6e9b3d278", "a hash has 16 digits"),
            ("header:x-api-key!", "requests without this part"),
            (
                "header:x-name=acme",
                "it looks like a key by header:x-name, but this part of the key is header:x-api-key",
            ),
            ("ip=203.0.113.9", "it looks like a key by ip"),
        ] {
            let refusal = refuse(&key, text).unwrap_or_else(|| panic!("{text} is accepted"));
            assert!(refusal.contains(why) && refusal.ends_with("give it as `literal`"), "{text}: {refusal}");
        }
        let either = part(&["header:x-api-key", "query:key"]);
        for text in ["header:x-api-key|query:key=a", "header:x-api-key | query:key=a", "query:key=a"] {
            assert!(refuse(&either, text).is_some(), "{text}");
        }
        assert!(refuse(&part(&["ip/24/56"]), "ip=203.0.113.9").is_some());
    }

    #[test]
    fn ordinary_values_are_accepted() {
        let key = part(&["header:x-api-key"]);
        for text in [
            "acme",
            "0123456789abcdef",
            "dGVzdA==",
            "a=b",
            "#17",
            "#",
            "=",
            "!",
            "path=/a",
            "user!",
            "a:b",
            "Bearer x=y",
            "x-api-key",
        ] {
            assert_eq!(refuse(&key, text), None, "{text}");
        }
        assert_eq!(refuse_part_text(&key, b"header:x-api-key=\xff", &FORMS), Ok(()));
    }
}
