//! Texts that look like patterns, for warnings where the gateway compares whole values and an operator may expect a
//! pattern.

use ipnet::IpNet;

/// What a text looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternLook {
    Wildcard,
    Regex,
    Network,
    Set,
}

impl PatternLook {
    /// Returns what the text looks like; `None` if it looks like a plain value.
    pub fn of(text: &str) -> Option<PatternLook> {
        // Most values have none of these characters.
        if !text.contains(['*', '~', '^', '$', '[', '(', '\\', '+', '/', ':']) {
            return None;
        }
        let has_class =
            text.split('[').skip(1).any(|rest| rest.split_once(']').is_some_and(|(class, _)| is_class(class)));
        let has_choice = text.contains('(') && text.contains('|') && text.contains(')');
        let has_repeat = [".*", ".+", "\\d", "\\w", "\\s", "(?"].iter().any(|mark| text.contains(mark));
        if text.starts_with('~') || text.starts_with('^') || has_class || has_choice || has_repeat {
            return Some(PatternLook::Regex);
        }
        if text.len() > 1 && text.contains('*') {
            return Some(PatternLook::Wildcard);
        }
        if text.strip_prefix("set:").is_some_and(|name| !name.is_empty()) {
            return Some(PatternLook::Set);
        }
        let network = text.parse::<IpNet>().ok().filter(|network| network.prefix_len() < network.max_prefix_len());
        network.map(|_| PatternLook::Network)
    }

    /// Returns the noun for messages.
    pub fn noun(self) -> &'static str {
        match self {
            PatternLook::Wildcard => "a wildcard",
            PatternLook::Regex => "a regular expression",
            PatternLook::Network => "a network",
            PatternLook::Set => "a set",
        }
    }
}

/// Returns whether the text between brackets is a class of characters, such as `a-z` or `^,`.
fn is_class(class: &str) -> bool {
    let bytes = class.as_bytes();
    bytes.first() == Some(&b'^') || bytes.windows(3).any(|part| part[1] == b'-' && part[0] < part[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_look_like_no_pattern() {
        for text in [
            "acme",
            "*",
            "/v1/a",
            "10.0.0.1",
            "2001:db8::1",
            "10.0.0.1/32",
            "a-b_c.d",
            "a[1]",
            "a:b",
            "urn:x:1",
            "a+b@c.d",
        ] {
            assert_eq!(PatternLook::of(text), None, "{text}");
        }
    }

    #[test]
    fn patterns_of_every_kind_are_recognized() {
        for (text, look) in [
            ("acme-*", PatternLook::Wildcard),
            ("**", PatternLook::Wildcard),
            ("~ ^a", PatternLook::Regex),
            ("^acme$", PatternLook::Regex),
            ("acme.*", PatternLook::Regex),
            ("a[0-9]", PatternLook::Regex),
            ("(a|b)", PatternLook::Regex),
            ("\\d+", PatternLook::Regex),
            ("10.0.0.0/8", PatternLook::Network),
            ("2001:db8::/32", PatternLook::Network),
            ("set:vip", PatternLook::Set),
        ] {
            assert_eq!(PatternLook::of(text), Some(look), "{text}");
        }
    }
}
