//! Finds values by name: headers, query parameters, cookies and path segments. Names and values are decoded the way
//! upstream servers decode them, so that another spelling of a value does not get another budget. Where servers
//! differ, the value is ambiguous.

use std::borrow::Cow;

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode;

use crate::canonical;
use crate::labels::labels;
use crate::limiting::source::canonical::{Ambiguous, canonicalize_credential};
use crate::names::is_header_alias;
use crate::text::hex_byte;

labels! {
    /// Which value counts if a request repeats a name.
    #[derive(Default)]
    Repeated:
    /// None: the value is ambiguous, because servers differ in which one they use. This includes names and ends of
    /// values that only some servers recognize.
    #[default]
    Refuse = "refuse",
    First = "first",
    Last = "last",
}

/// Result of a search: the value, or `None` if it is absent.
pub type FoundValue<'a> = Result<Option<Cow<'a, [u8]>>, Ambiguous>;

/// Finds the header `name`. Each line is a value; commas do not divide it. If the value must be unique, there must also
/// be no header with the same name in CGI, which turns all punctuation into `_`, and no server may trim the value.
pub fn find_header<'h>(headers: &'h HeaderMap, name: &HeaderName, repeated: Repeated) -> FoundValue<'h> {
    let mut lines = headers.get_all(name).iter();
    let line = match repeated {
        Repeated::First => lines.next(),
        Repeated::Last => lines.next_back(),
        Repeated::Refuse => {
            let line = lines.next();
            if lines.next().is_some()
                || headers.keys().any(|other| is_header_alias(other, name))
                || line.is_some_and(|line| may_be_trimmed(line.as_bytes()))
            {
                return Err(Ambiguous);
            }
            line
        }
    };
    Ok(line.map(|line| Cow::Borrowed(line.as_bytes())))
}

/// White space of Latin-1 beyond ASCII: the next line and the non-breaking space. Alone, the bytes are not UTF-8.
pub const LATIN_1_SPACES: [u8; 2] = [0x85, 0xa0];

/// Returns whether some servers trim more of a header than the spaces and tabs of HTTP: characters of UTF-8, or bytes
/// that they read as Latin-1.
fn may_be_trimmed(value: &[u8]) -> bool {
    let ends = [value.first(), value.last()];
    if ends.into_iter().flatten().all(u8::is_ascii) {
        return false;
    }
    match str::from_utf8(value) {
        Ok(text) => text.trim_matches(is_trimmed_by_some).len() < text.len(),
        Err(_) => ends.into_iter().flatten().any(|byte| LATIN_1_SPACES.contains(byte)),
    }
}

/// Returns whether some program removes the character at either end of a text, or whether it shows nothing there.
pub fn is_trimmed_by_some(character: char) -> bool {
    // Not white space to Unicode.
    const INVISIBLE: [char; 5] = ['\u{180e}', '\u{200b}', '\u{2060}', '\u{feff}', '\u{ad}'];
    character.is_whitespace() || character.is_control() || INVISIBLE.contains(&character)
}

/// Finds the header `name` where another proxy may have joined its lines: by commas, as HTTP permits. A comma in quotes
/// or in a comment, as in `User-Agent`, is part of a value, unless the quotes or the comment do not end.
pub fn find_joined_header<'h>(headers: &'h HeaderMap, name: &HeaderName, repeated: Repeated) -> FoundValue<'h> {
    let Some(line) = find_header(headers, name, repeated)? else { return Ok(None) };
    let commas = find_separators(&line);
    let (Some(first), Some(last)) = (commas.first(), commas.last()) else { return Ok(Some(line)) };
    let value = match repeated {
        Repeated::Refuse => return Err(Ambiguous),
        Repeated::First => &line[..*first],
        Repeated::Last => &line[last + 1..],
    };
    Ok(Some(Cow::Owned(value.trim_ascii().to_vec())))
}

/// Returns the places of the commas that may separate values. If quotes or a comment do not end, these are all commas.
fn find_separators(line: &[u8]) -> Vec<usize> {
    let (mut commas, mut is_quoted, mut depth, mut is_escaped) = (Vec::new(), false, 0_usize, false);
    for (place, byte) in line.iter().enumerate() {
        if std::mem::replace(&mut is_escaped, false) {
            continue;
        }
        match byte {
            b'\\' if is_quoted || depth > 0 => is_escaped = true,
            b'"' if depth == 0 => is_quoted = !is_quoted,
            b'(' if !is_quoted => depth += 1,
            b')' if !is_quoted => depth = depth.saturating_sub(1),
            b',' if !is_quoted && depth == 0 => commas.push(place),
            _ => {}
        }
    }
    if is_quoted || depth > 0 || is_escaped {
        let all = line.iter().enumerate().filter(|(_, byte)| **byte == b',');
        return all.map(|(place, _)| place).collect();
    }
    commas
}

/// Returns the credential in the `line` of a header, in canonical form. A line with several credentials is ambiguous.
pub fn read_credential(line: Cow<'_, [u8]>) -> FoundValue<'_> {
    match line {
        Cow::Borrowed(line) => canonicalize_credential(line),
        Cow::Owned(line) => Ok(canonicalize_credential(&line)?.map(|credential| Cow::Owned(credential.into_owned()))),
    }
}

/// Finds the query parameter `name` and decodes it: `%41` is `A`, and `+` is a space, in names too. A parameter without
/// `=` has an empty value.
pub fn find_query<'q>(query: Option<&'q str>, name: &str, repeated: Repeated) -> FoundValue<'q> {
    let Some(query) = query else { return Ok(None) };
    if repeated == Repeated::Refuse {
        return if hides_after_dropped_start(query, name) { Err(Ambiguous) } else { find_unique_query(query, name) };
    }
    let mut values = query.split('&').filter(|pair| !pair.is_empty()).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (compare_names(key.as_bytes(), name) == NameMatch::Same).then_some(value)
    });
    let value = if repeated == Repeated::First { values.next() } else { values.next_back() };
    Ok(value.map(decode_form_value))
}

/// Returns true if some servers find the name after characters that they drop at the start: `URLSearchParams` drops a
/// question mark, and UTF-8 decoders drop a byte order mark.
fn hides_after_dropped_start(query: &str, name: &str) -> bool {
    let rest = query.trim_start_matches(['?', '\u{feff}']);
    let key = rest.split(['&', ';', '=']).next().unwrap_or_default();
    rest.len() < query.len() && compare_names(key.as_bytes(), name) != NameMatch::None
}

/// Returns true if a server that reads any body as a form finds `name` in a JSON document.
pub fn is_form_field(document: &[u8], name: &str) -> bool {
    str::from_utf8(document).is_ok_and(|text| find_unique_query(text, name) != Ok(None))
}

/// Returns a query without the parameters that any server finds by one of `names`. The rest stays as it is written.
pub fn remove_parameters(query: &str, names: &[String]) -> String {
    let is_removed = |part: &str| {
        let key = part.split('=').next().unwrap_or_default();
        names.iter().any(|name| compare_names(key.as_bytes(), name) != NameMatch::None)
    };
    let mut pairs = Vec::new();
    for (index, pair) in query.split('&').enumerate() {
        // Some servers drop these characters at the start of a query, and separate parameters with `;`.
        let whole = if index == 0 { pair.trim_start_matches(['?', '\u{feff}']) } else { pair };
        if !whole.split(';').any(is_removed) {
            pairs.push(pair.to_owned());
            continue;
        }
        let parts: Vec<&str> = whole.split(';').filter(|part| !is_removed(part)).collect();
        if !parts.is_empty() {
            pairs.push(parts.join(";"));
        }
    }
    pairs.join("&")
}

/// Finds a parameter that must be unique. Some servers also separate parameters with `;`.
fn find_unique_query<'q>(query: &'q str, name: &str) -> FoundValue<'q> {
    let mut parameter = None;
    for pair in query.split('&') {
        for part in pair.split(';').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            match compare_names(key.as_bytes(), name) {
                NameMatch::None => {}
                NameMatch::Same
                    if part.len() == pair.len() && parameter.is_none() && is_unambiguous(value.as_bytes()) =>
                {
                    parameter = Some(value);
                }
                _ => return Err(Ambiguous),
            }
        }
    }
    Ok(parameter.map(decode_form_value))
}

/// Finds the cookie `name` and percent-decodes it, without surrounding spaces and one pair of quotes. A `+` remains a
/// `+`.
pub fn find_cookie<'h>(headers: &'h HeaderMap, name: &str, repeated: Repeated) -> FoundValue<'h> {
    let mut cookie = None;
    for pair in headers.get_all(COOKIE).iter().flat_map(cookie_pairs) {
        let (key, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(equals) => (pair[..equals].trim_ascii(), Some(pair[equals + 1..].trim_ascii())),
            None => (pair, None),
        };
        match value.filter(|_| key == name.as_bytes()) {
            Some(value) => match repeated {
                Repeated::First if cookie.is_some() => {}
                Repeated::Refuse if cookie.is_some() || hides_cookie(pair, name) || !is_unambiguous_cookie(value) => {
                    return Err(Ambiguous);
                }
                _ => cookie = Some(value),
            },
            None if repeated != Repeated::Refuse => {}
            None if compare_names(trim_non_ascii_space(key), name) != NameMatch::None || hides_cookie(pair, name) => {
                return Err(Ambiguous);
            }
            None => {}
        }
    }
    Ok(cookie.map(|value| percent_decode(trim_quotes(value)).into()))
}

fn cookie_pairs(field: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    field.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty())
}

/// Returns whether the name occurs within this pair for a server that ends cookies at a comma, a space or a quote.
fn hides_cookie(pair: &[u8], name: &str) -> bool {
    let mut pieces = pair.split(|byte| matches!(byte, b',' | b' ' | b'\t' | b'"')).skip(1);
    pieces.any(|piece| {
        let key = piece.split(|byte| *byte == b'=').next().unwrap_or_default();
        !key.is_empty() && compare_names(key, name) != NameMatch::None
    })
}

/// Returns whether all servers read the whole value: none ends it early, removes escapes, or trims it.
fn is_unambiguous_cookie(value: &[u8]) -> bool {
    let value = trim_quotes(value);
    let is_truncated = value.iter().any(|byte| matches!(byte, b',' | b' ' | b'\t' | b'"' | b'\\'));
    !is_truncated && is_unambiguous(value) && trim_non_ascii_space(value).len() == value.len()
}

/// Trims bytes that some servers treat as white space: U+00A0 and U+0085, in Latin-1 or UTF-8, and others that do not
/// occur in cookies.
fn trim_non_ascii_space(mut text: &[u8]) -> &[u8] {
    while let [0x80.. | 0..=b' ', rest @ ..] | [rest @ .., 0x80.. | 0..=b' '] = text {
        text = rest;
    }
    text
}

/// Removes one pair of quotes around a value.
pub fn trim_quotes(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] => inner,
        plain => plain,
    }
}

/// Returns segment `index` of a path, from 0, percent-decoded. Empty segments do not count. Some servers end a segment
/// at `;` or at a zero byte; such a segment is ambiguous.
pub fn find_segment(path: &str, index: usize, repeated: Repeated) -> FoundValue<'_> {
    let ends = |segment: &str| segment.contains(';') || !is_unambiguous(segment.as_bytes());
    match canonical::find_segment(path, index) {
        Some(segment) if repeated == Repeated::Refuse && ends(segment) => Err(Ambiguous),
        segment => Ok(segment.map(|segment| percent_decode(segment.as_bytes()).into())),
    }
}

/// Result of comparing a name in a request with the one that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameMatch {
    Same,
    /// Some servers treat it as the name: those that ignore case, turn punctuation into `_`, end names at `[`, `]` or a
    /// zero byte, or remove these or spaces.
    Alike,
    None,
}

fn compare_names(written: &[u8], name: &str) -> NameMatch {
    match compare_folded(written, name) {
        NameMatch::None if matches_with_brackets(written, name) => NameMatch::Alike,
        matched => matched,
    }
}

fn compare_folded(written: &[u8], name: &str) -> NameMatch {
    let mut rest = Decoded(written);
    let mut same = true;
    let mut expected = name.bytes();
    let mut next = rest.next();
    if next == Some(b' ') && !name.starts_with(' ') {
        same = false;
        next = rest.find(|byte| *byte != b' ');
    }
    while let Some(byte) = next {
        let Some(expected) = expected.next() else {
            let ends = matches!(byte, b'[' | 0) || (byte == b' ' && rest.all(|byte| byte == b' '));
            return if ends { NameMatch::Alike } else { NameMatch::None };
        };
        if fold_byte(byte) != fold_byte(expected) {
            return NameMatch::None;
        }
        same &= byte == expected;
        next = rest.next();
    }
    match expected.next() {
        Some(_) => NameMatch::None,
        None if same && !has_wide_escape(written) => NameMatch::Same,
        None => NameMatch::Alike,
    }
}

/// Returns whether servers find the name that interpret brackets anywhere, like Rack and qs (`[user]`, `user]`,
/// `a][b`), or that remove zero bytes.
fn matches_with_brackets(written: &[u8], name: &str) -> bool {
    // `a[]` is the name of a list, which `a` is not.
    let rest = name.trim_end_matches(']');
    let name = if rest.ends_with('[') { name } else { rest };
    let (mut written, mut expected) = (normalize_brackets(Decoded(written)), normalize_brackets(name.bytes()));
    loop {
        match (written.next(), expected.next()) {
            (None | Some(b'['), None) => return true,
            (Some(byte), Some(expected)) if byte == expected => {}
            _ => return false,
        }
    }
}

/// Folds a name, without brackets and spaces before it; consecutive brackets become one.
fn normalize_brackets(name: impl Iterator<Item = u8>) -> impl Iterator<Item = u8> {
    let mut last = b'[';
    let plain = name.filter(|byte| *byte != 0).map(|byte| if byte == b']' { b'[' } else { byte });
    plain.skip_while(|byte| matches!(byte, b'[' | b' ')).filter_map(move |byte| {
        let repeats = byte == b'[' && last == b'[';
        last = byte;
        (!repeats).then(|| if byte == b'[' { byte } else { fold_byte(byte) })
    })
}

/// Returns whether all servers decode the value alike and to its end. Some end it at a zero byte.
fn is_unambiguous(value: &[u8]) -> bool {
    !has_wide_escape(value) && !value.contains(&0) && !value.windows(3).any(|bytes| bytes == b"%00")
}

/// Returns whether the text may contain `%uXXXX`, which only some servers decode.
fn has_wide_escape(text: &[u8]) -> bool {
    text.windows(2).any(|pair| pair[0] == b'%' && pair[1].eq_ignore_ascii_case(&b'u'))
}

fn fold_byte(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' => byte.to_ascii_lowercase(),
        b'a'..=b'z' | b'0'..=b'9' | 0x80.. | 0 => byte,
        _ => b'_',
    }
}

/// Decodes the bytes of a name in a form or a query: `%XX`, `+`, and `%u00XX`.
struct Decoded<'a>(&'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        let (byte, rest) = match (byte, rest) {
            (b'+', _) => (b' ', rest),
            (b'%', [b'u' | b'U', b'0', b'0', high, low, rest @ ..]) if hex_byte(*high, *low).is_some() => {
                (hex_byte(*high, *low)?, rest)
            }
            (b'%', [high, low, rest @ ..]) if hex_byte(*high, *low).is_some() => (hex_byte(*high, *low)?, rest),
            (byte, rest) => (*byte, rest),
        };
        self.0 = rest;
        Some(byte)
    }
}

/// Decodes a form value. A `%` without two hexadecimal digits remains as it is.
fn decode_form_value(text: &str) -> Cow<'_, [u8]> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text.as_bytes());
    }
    let bytes: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    Cow::Owned(percent_decode(&bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(found: FoundValue) -> Result<Option<String>, Ambiguous> {
        found.map(|value| value.map(|value| String::from_utf8(value.into_owned()).unwrap()))
    }

    fn param(text: &str, name: &str, repeated: Repeated) -> Result<Option<String>, Ambiguous> {
        shown(find_query(Some(text), name, repeated))
    }

    fn some(text: &str) -> Result<Option<String>, Ambiguous> {
        Ok(Some(text.to_owned()))
    }

    #[test]
    fn a_parameter_counts_however_it_is_spelt() {
        for (text, value) in [
            ("act=1", Some("1")),
            ("x=1&act=2", Some("2")),
            ("%61c%74=2", Some("2")),
            ("act", Some("")),
            ("act=", Some("")),
            ("act=a+b%20c%2B%3B", Some("a b c+;")),
            ("act=1=2", Some("1=2")),
            ("act=%zz%4", Some("%zz%4")),
            ("xact=1&actx=1&a=ct&ac%u0174=1&act.x=1", None),
            ("", None),
        ] {
            for repeated in [Repeated::Refuse, Repeated::First, Repeated::Last] {
                assert_eq!(param(text, "act", repeated), Ok(value.map(str::to_owned)), "{text} {repeated:?}");
            }
        }
        assert_eq!(param("&&=1", "", Repeated::Refuse), some("1"));
        assert_eq!(find_query(None, "act", Repeated::Refuse), Ok(None));
    }

    /// Some servers read each of these as `user=real`, others do not.
    #[test]
    fn values_that_servers_read_differently_are_ambiguous() {
        for text in [
            "user=x&user=real",
            "user=real&user=real",
            "us%65r=x&user=real",
            "user&user=real",
            "user=real&user",
            "user=x&User=real",
            "User=real",
            "a=1;user=real",
            "user=real;x",
            "user;x=1",
            "user[]=real",
            "user=x&user%5B0%5D=real",
            "user=x&+user=real",
            "user%00x=real",
            "user+=real",
            "%u0075ser=real",
            "user=x&%U0075ser=real",
            "user=%u0072eal",
            "user=%U0072eal",
            "user]=real",
            "user=x&user]=real",
            "user=x&user%5D=real",
            "[user]=real",
            "user=x&%5Buser%5D=real",
            "user=x&][+User]]=real",
            "user=x&user][id]=real",
            "user=x&[user][]=real",
            "user=x&us%00er=real",
            "user=x&%00user=real",
            "user=real%00x",
            "user=real\0x",
            "user=%00",
        ] {
            assert_eq!(param(text, "user", Repeated::Refuse), Err(Ambiguous), "{text}");
        }
        assert_eq!(param("user=x&user.id=1", "user_id", Repeated::Refuse), Err(Ambiguous));
        assert_eq!(param("filter[user]=1&filter[day]=2", "filter[user]", Repeated::Refuse), some("1"));
        for text in
            ["filter[user", "filter[[user]", "filter][user]]", "[filter][user]", "filter]user]", "filter[user][id]"]
        {
            let text = format!("filter[user]=x&{text}=real");
            assert_eq!(param(&text, "filter[user]", Repeated::Refuse), Err(Ambiguous), "{text}");
        }
        assert_eq!(param("users[]=x&]users[=real", "users[]", Repeated::Refuse), Err(Ambiguous));
        assert_eq!(param("users[]=x&users=1&users[a]=2&x[users]=3", "users[]", Repeated::Refuse), some("x"));
        assert_eq!(
            param("user=x&%2500=1&account[user]=2&user_id=3&[]=4&]=5&%00=6", "user", Repeated::Refuse),
            some("x")
        );
        assert_eq!(param("user_name=x&user[name]=y&user=z", "user_name", Repeated::Refuse), some("x"));
    }

    #[test]
    fn the_first_or_the_last_parameter_counts_where_a_limit_says_so() {
        let text = "user=a&us%65r=b;c&User=d&user";
        assert_eq!(param(text, "user", Repeated::First), some("a"));
        assert_eq!(param(text, "user", Repeated::Last), some(""));
        assert_eq!(param("user=a&us%65r=b;c", "user", Repeated::Last), some("b;c"));
    }

    #[test]
    fn a_header_occurs_once_under_any_of_its_names() {
        const NAME: HeaderName = HeaderName::from_static("x-api-key");
        let of = |lines: &[(&'static str, &'static str)], repeated| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_static(value));
            }
            shown(find_header(&headers, &NAME, repeated))
        };
        let twice = [("x-api-key", "a, b"), ("x-api-key", "c")];
        assert_eq!(of(&twice[..1], Repeated::Refuse), some("a, b"));
        assert_eq!(of(&twice, Repeated::Refuse), Err(Ambiguous));
        assert_eq!(of(&twice, Repeated::First), some("a, b"));
        assert_eq!(of(&twice, Repeated::Last), some("c"));
        for alias in ["x_api_key", "x-api_key", "x.api.key"] {
            assert_eq!(of(&[("x-api-key", "a"), (alias, "b")], Repeated::Refuse), Err(Ambiguous), "{alias}");
            assert_eq!(of(&[(alias, "b")], Repeated::Refuse), Err(Ambiguous), "{alias}");
            assert_eq!(of(&[(alias, "b")], Repeated::Last), Ok(None), "{alias}");
        }
        assert_eq!(of(&[("x-api-keys", "a"), ("x-apis-key", "b")], Repeated::Refuse), Ok(None));
    }

    #[test]
    fn a_header_whose_ends_some_servers_trim_is_ambiguous() {
        const NAME: HeaderName = HeaderName::from_static("x-api-key");
        let of = |value: &[u8], repeated| {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_bytes(value).unwrap())]);
            find_header(&headers, &NAME, repeated).map(|value| value.map(Cow::into_owned))
        };
        for value in [
            &b"\xa0k1"[..],
            b"\xa0\xa0k1",
            b"k1\xa0",
            b"k1\x85",
            b"\x85k1",
            b"\xff\xa0",
            b"k1\xc3\xa0\xa0",
            "\u{a0}k1".as_bytes(),
            "k1\u{85}".as_bytes(),
            "k1\u{3000}".as_bytes(),
            "\u{feff}k1".as_bytes(),
            "k1\u{200b}".as_bytes(),
        ] {
            assert_eq!(of(value, Repeated::Refuse), Err(Ambiguous), "{value:?}");
            assert_eq!(of(value, Repeated::First), Ok(Some(value.to_vec())), "{value:?}");
        }
        for value in
            [&b""[..], b"k1", b"k\xa01", b"caf\xe9", b"\xff\x80", "voil\u{e0}".as_bytes(), "\u{e9}t\u{e9}".as_bytes()]
        {
            assert_eq!(of(value, Repeated::Refuse), Ok(Some(value.to_vec())), "{value:?}");
        }
    }

    #[test]
    fn a_line_that_a_proxy_may_have_joined_is_one_value_or_ambiguous() {
        const NAME: HeaderName = HeaderName::from_static("x-api-key");
        let of = |line: &str, repeated| {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_str(line).unwrap())]);
            shown(find_joined_header(&headers, &NAME, repeated))
        };
        for whole in
            ["gold", "", "a b", "(KHTML, like Gecko) x", "\"a,b\"", "\"a\\\",b\"", "(a \\), b)", "(a (b, c), d)"]
        {
            for repeated in [Repeated::Refuse, Repeated::First, Repeated::Last] {
                assert_eq!(of(whole, repeated), some(whole), "{whole} {repeated:?}");
            }
        }
        for (joined, first, last) in [
            ("gold,junk", "gold", "junk"),
            ("gold, b ,c", "gold", "c"),
            (",gold", "", "gold"),
            ("\",gold", "\"", "gold"),
            ("(,gold", "(", "gold"),
            ("\"a\",gold", "\"a\"", "gold"),
            ("),gold", ")", "gold"),
            ("\\,gold", "\\", "gold"),
            ("(\",gold", "(\"", "gold"),
        ] {
            assert_eq!(of(joined, Repeated::Refuse), Err(Ambiguous), "{joined}");
            assert_eq!(of(joined, Repeated::First), some(first), "{joined}");
            assert_eq!(of(joined, Repeated::Last), some(last), "{joined}");
        }
    }

    #[test]
    fn a_cookie_stands_once_in_all_lines() {
        let of = |lines: &[&'static str], name: &str, repeated| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            shown(find_cookie(&headers, name, repeated))
        };
        let lines = ["a=1; sid=\"x%79\";b", "d=2; c = 3 "];
        for (name, value) in [("a", Some("1")), ("sid", Some("xy")), ("c", Some("3")), ("e", None)] {
            for repeated in [Repeated::Refuse, Repeated::First, Repeated::Last] {
                assert_eq!(of(&lines, name, repeated), Ok(value.map(str::to_owned)), "{name} {repeated:?}");
            }
        }
        for lines in [
            &["sid=x; sid=real"][..],
            &["sid=x", "sid=real"],
            &["sid; sid=real"],
            &["sid=real; SID=x"],
            &["%73id=real"],
            &["a=1,sid=real"],
            &["sid=x, sid=real"],
            &["a sid=real"],
            &["sid=real x"],
            &["sid=real,x"],
            &["sid=real\u{a0}"],
            &["a=1; \u{a0}sid=real"],
            &["sid=\"\\162eal\""],
            &["sid=%u0072eal"],
            &["sid=real%00x"],
            &["sid=x; sid%00=real"],
            &["sid=x; [sid]=real"],
        ] {
            assert_eq!(of(lines, "sid", Repeated::Refuse), Err(Ambiguous), "{lines:?}");
        }
        assert_eq!(of(&["sid=1; sid=2", "sid=3"], "sid", Repeated::First), some("1"));
        assert_eq!(of(&["sid=1; sid=2", "sid=3; SID=4"], "sid", Repeated::Last), some("3"));
    }

    #[test]
    fn a_segment_is_decoded() {
        let of = |path, index, repeated| shown(find_segment(path, index, repeated));
        assert_eq!(of("/posts/a%21b/vote", 1, Repeated::Refuse), some("a!b"));
        assert_eq!(of("/posts/1;v=2/vote", 1, Repeated::Refuse), Err(Ambiguous));
        assert_eq!(of("/posts/1%00v/vote", 1, Repeated::Refuse), Err(Ambiguous));
        assert_eq!(of("/posts/1;v=2/vote", 1, Repeated::First), some("1;v=2"));
        assert_eq!(of("/posts", 1, Repeated::Refuse), Ok(None));
    }
}
