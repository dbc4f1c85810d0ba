//! Masks secrets in logged URLs: query values by parameter name, and user and password of a referer. Called by
//! `record`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Text written instead of a masked value.
const MASKED: &str = "***";

/// Patterns of parameter names in lower case; `*` matches any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masks(Vec<String>);

/// Names that commonly carry secrets; masked by default.
const SECRETS: [&str; 18] = [
    "*token*",
    "*secret*",
    "*pass*",
    "*pwd*",
    "*key*",
    "*auth*",
    "*signature*",
    "sig",
    "code",
    "*session*",
    "*jwt*",
    "*credential*",
    "*cookie*",
    "otp",
    "*-otp",
    "*_otp",
    "otp-*",
    "otp_*",
];

/// Returns whether values of this name, of a header, parameter or claim, are usually secrets.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRETS.iter().any(|pattern| matches_pattern(&name, pattern))
}

impl Default for Masks {
    fn default() -> Masks {
        Masks::new(SECRETS.iter().map(|name| (*name).to_owned()))
    }
}

impl Masks {
    pub fn new(patterns: impl Iterator<Item = String>) -> Masks {
        Masks(patterns.map(|pattern| pattern.to_lowercase()).collect())
    }

    /// Returns `query` with the values of matching parameters masked.
    pub fn mask_query<'a>(&self, query: &'a str) -> Cow<'a, str> {
        if self.0.is_empty() || !query.split(['&', ';']).any(|pair| self.masks(pair)) {
            return Cow::Borrowed(query);
        }
        let mut output = String::with_capacity(query.len());
        for pair in query.split_inclusive(['&', ';']) {
            let end = pair.trim_end_matches(['&', ';']).len();
            let (own, separator) = pair.split_at(end);
            match own.split_once('=') {
                Some((name, _)) if self.masks(own) => {
                    output.push_str(name);
                    output.push('=');
                    output.push_str(MASKED);
                }
                _ => output.push_str(own),
            }
            output.push_str(separator);
        }
        Cow::Owned(output)
    }

    /// Masks the query of a URL such as `Referer`, and its user and password unless masking is off.
    pub fn mask_reference<'a>(&self, reference: &'a str) -> Cow<'a, str> {
        let (before, query) = match reference.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (reference, None),
        };
        match (self.mask_path(before), query.map(|query| self.mask_query(query))) {
            (Cow::Borrowed(_), None | Some(Cow::Borrowed(_))) => Cow::Borrowed(reference),
            (before, Some(query)) => Cow::Owned(format!("{before}?{query}")),
            (before, None) => before,
        }
    }

    /// Masks user and password of `reference`, which has no query, and the parameters in its path: `/PATH;token=***`.
    fn mask_path<'a>(&self, reference: &'a str) -> Cow<'a, str> {
        let is_masked = |part: &str| part.split('/').next().is_some_and(|pair| self.masks(pair));
        if !reference.split(';').skip(1).any(is_masked) {
            return self.mask_user_info(reference);
        }
        let mut parts = reference.split(';');
        let mut output = self.mask_user_info(parts.next().unwrap_or_default()).into_owned();
        for part in parts {
            let (pair, rest) = part.split_at(part.find('/').unwrap_or(part.len()));
            let name = pair.split('=').next().unwrap_or_default();
            let text = if self.masks(pair) { format!("{name}={MASKED}") } else { pair.to_owned() };
            output.push_str(&format!(";{text}{rest}"));
        }
        Cow::Owned(output)
    }

    /// Masks user and password of `reference`, which has no query: `http://***@HOST/PATH`.
    fn mask_user_info<'a>(&self, reference: &'a str) -> Cow<'a, str> {
        let Some(start) = reference.find("//").map(|slashes| slashes + 2).filter(|_| !self.0.is_empty()) else {
            return Cow::Borrowed(reference);
        };
        let authority =
            reference[start..].find(['/', '#']).map_or(&reference[start..], |end| &reference[start..start + end]);
        match authority.rfind('@') {
            Some(at) => Cow::Owned(format!("{}{MASKED}{}", &reference[..start], &reference[start + at..])),
            None => Cow::Borrowed(reference),
        }
    }

    fn masks(&self, pair: &str) -> bool {
        let Some((name, _)) = pair.split_once('=') else { return false };
        let name = name.replace('+', " ");
        let name = percent_decode_str(&name).decode_utf8_lossy().to_lowercase();
        self.0.iter().any(|pattern| matches_pattern(&name, pattern))
    }
}

/// Matches greedily: each part between two `*` is found at its first position, the last part at the end.
fn matches_pattern(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_as_a_server_reads_them() {
        let masks = Masks::default();
        for (query, masked) in [
            ("a=1&b=2", "a=1&b=2"),
            ("a=1&token=x&b=2", "a=1&token=***&b=2"),
            ("Access_Token=x", "Access_Token=***"),
            ("%74oken=x&to%6Ben=y", "%74oken=***&to%6Ben=***"),
            ("api+key=x;sid=1", "api+key=***;sid=1"),
            ("user[password]=x", "user[password]=***"),
            ("a=1;code=x", "a=1;code=***"),
            ("codes=x&decode=x", "codes=x&decode=x"),
            ("pass=x&credential=y", "pass=***&credential=***"),
            ("x_pwd=x;otp=1", "x_pwd=***;otp=***"),
            ("hotplug=x", "hotplug=x"),
            ("token", "token"),
            ("token=", "token=***"),
            ("token=a=b&&c", "token=***&&c"),
        ] {
            assert_eq!(masks.mask_query(query), masked);
            assert_eq!(masks.mask_reference(&format!("https://a/b?{query}")), format!("https://a/b?{masked}"));
        }
        assert_eq!(masks.mask_reference("https://a/token=x"), "https://a/token=x");
        assert_eq!(masks.mask_reference("https://u:p@a/b;a=1;token=x/c?d=1"), "https://***@a/b;a=1;token=***/c?d=1");
        assert_eq!(Masks::new(std::iter::empty()).mask_query("token=x"), "token=x");
        assert_eq!(Masks::new(std::iter::once("*".to_owned())).mask_query("a=1&b"), "a=***&b");
    }

    #[test]
    fn user_and_password_of_a_reference_are_masked() {
        let masks = Masks::default();
        for (reference, masked) in [
            ("http://u:pw@h/", "http://***@h/"),
            ("https://u@h", "https://***@h"),
            ("//u:p@w@h:80/a@b", "//***@h:80/a@b"),
            ("http://u:pw@h?token=x", "http://***@h?token=***"),
            ("http://h/a@b//c@d", "http://h/a@b//c@d"),
            ("http://h#a@b", "http://h#a@b"),
            ("u:pw@h", "u:pw@h"),
        ] {
            assert_eq!(masks.mask_reference(reference), masked);
        }
        assert_eq!(Masks::new(std::iter::empty()).mask_reference("http://u:pw@h/"), "http://u:pw@h/");
    }

    #[test]
    fn stars_stand_for_anything() {
        for (name, pattern, like) in [
            ("abc", "abc", true),
            ("abc", "ab", false),
            ("abc", "a*", true),
            ("abc", "*c", true),
            ("abc", "a*c", true),
            ("ac", "a*c", true),
            ("a", "a*a", false),
            ("aXbYc", "a*b*c", true),
            ("abab", "*ab", true),
            ("abba", "*b*b*", true),
            ("aba", "*b*b*", false),
            ("", "*", true),
        ] {
            assert_eq!(matches_pattern(name, pattern), like, "{name} {pattern}");
        }
    }
}
