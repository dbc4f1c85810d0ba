//! Config text as messages show it: with asterisks instead of secrets. Reads TOML tolerantly, because messages show
//! text that is not valid.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::config::diagnostics::secret_options::{
    URL_PARAMETERS, has_secret_query, may_be_secret, resembles_body, resembles_secret,
};
use crate::config::schema::limit;
use crate::config::schema::lookup::locate_value;
use crate::config::schema::row::ClientData;

/// Values nested more deeply are masked without a look at their keys.
const MAX_DEPTH: usize = 32;
/// Characters that end a URL.
const URL_END: [char; 5] = ['"', '\'', ' ', '\t', '\n'];

/// Replaces secrets in messages.
const MASK: &str = "***";
/// Maximum length of the name of a placeholder.
const PLACEHOLDER_MAX: usize = 32;
/// Minimum length of a secret that messages hide. The text of a shorter one occurs in many messages by coincidence.
const HIDDEN_MIN: usize = 4;
/// Bytes before and after the place of a mistake whose secrets its message may quote.
const NEAR: usize = 256;

/// Returns the secrets in and near a range of `text`, given what [`mask_secrets`] made of it. Only near ones, because a
/// text may have thousands of mistakes and secrets.
pub fn list_secrets<'t>(text: &'t str, masked: &str, near: Range<usize>) -> BTreeSet<&'t str> {
    let is_masked = |at: usize| text.as_bytes()[at] != masked.as_bytes()[at];
    let end = text.len().min(near.end.saturating_add(NEAR));
    let mut at = end.min(near.start.saturating_sub(NEAR));
    // A secret that begins before is listed whole.
    while at > 0 && is_masked(at - 1) {
        at -= 1;
    }
    let mut secrets = BTreeSet::new();
    while let Some(start) = (at..end).find(|at| is_masked(*at)) {
        at = (start..text.len()).find(|at| !is_masked(*at)).unwrap_or(text.len());
        let secret = text.get(start..at).unwrap_or_default();
        // A message may quote one of the values that are joined in the name of a tenant.
        secrets.extend([secret].into_iter().chain(secret.split(',')).filter(|secret| secret.len() >= HIDDEN_MIN));
    }
    secrets
}

/// Replaces a secret in a message. What follows a space or a letter is a word of the message itself: messages quote
/// values, or show them within a URL.
pub fn hide_secret(message: &mut String, secret: &str) {
    let mut from = 0;
    while let Some(found) = message[from..].find(secret) {
        let (start, end) = (from + found, from + found + secret.len());
        let is_value = |c: char| !c.is_alphanumeric() && c != ' ';
        if !message[..start].chars().next_back().is_some_and(is_value) {
            from = end;
        } else {
            message.replace_range(start..end, MASK);
            from = start + MASK.len();
        }
    }
}

/// Replaces each byte of a secret by `*`, so that all places stay where they are.
pub fn mask_secrets(text: &str) -> String {
    String::from_utf8_lossy(&Masker::mask_text(text, b'*', true)).into_owned()
}

/// Splits a text into pieces, of which the second, the fourth and so on are secrets. Keys of clients and bodies of
/// responses are none: only those who may edit the text get the pieces.
pub fn split_secrets(text: &str) -> Vec<&str> {
    // No valid config contains this byte.
    let masked = Masker::mask_text(text, 0, false);
    let is_masked = |at: usize| text.as_bytes()[at] != masked[at];
    let (mut pieces, mut from) = (Vec::new(), 0);
    while from < text.len() {
        let is_secret = pieces.len() % 2 == 1;
        let end = (from..text.len()).find(|at| is_masked(*at) != is_secret).unwrap_or(text.len());
        pieces.push(&text[from..end]);
        from = end;
    }
    pieces
}

struct Masker<'t> {
    text: &'t str,
    masked: Vec<u8>,
    /// Replaces each byte of a secret.
    mark: u8,
    /// Masks keys of clients and bodies of responses, too.
    hides_client_data: bool,
    at: usize,
    /// Number of tables and arrays around the current value.
    depth: usize,
    section: Vec<&'t str>,
}

impl<'t> Masker<'t> {
    fn mask_text(text: &'t str, mark: u8, hides_client_data: bool) -> Vec<u8> {
        let masked = text.as_bytes().to_vec();
        let mut masker = Masker { text, masked, mark, hides_client_data, at: 0, depth: 0, section: Vec::new() };
        masker.mask_statements();
        masker.mask_url_secrets();
        masker.masked
    }

    /// Returns whether the value at a path may be a body that is masked.
    fn is_hidden_body(&self, path: &[&str]) -> bool {
        self.hides_client_data && resembles_body(path)
    }

    /// Returns whether the value at a path is masked as a whole.
    fn is_secret(&self, path: &[&str]) -> bool {
        is_secret_path(path) || (self.hides_client_data && is_override_key(path))
    }

    fn mask_statements(&mut self) {
        while let Some(next) = self.skip_blanks(b" \t\r\n") {
            match next {
                b'#' => self.at = self.line_end(),
                b'[' => {
                    self.at += if self.rest().starts_with("[[") { 2 } else { 1 };
                    let mut path = Vec::new();
                    self.read_key(&mut path);
                    self.section = path;
                    self.at = self.line_end();
                }
                _ => {
                    let mut path = self.section.clone();
                    self.mask_entry(&mut path);
                    let rest = &self.rest()[..self.line_end() - self.at];
                    let is_over = rest.trim_start().is_empty() || rest.trim_start().starts_with(['#', ',']);
                    if !is_over && (self.is_secret(&path) || self.is_hidden_body(&path)) {
                        // The rest may belong to a secret with a wrong quote.
                        self.mask(self.at..self.at + rest.len());
                    }
                    // After a comma, which is a mistake, the next entry follows.
                    let next = rest.find(',').filter(|_| rest.trim_start().starts_with(','));
                    self.at += next.map_or(rest.len(), |comma| comma + 1);
                }
            }
        }
    }

    /// Masks a key and its value, and leaves the keys of the entry in `path`.
    fn mask_entry(&mut self, path: &mut Vec<&'t str>) {
        let outer = path.len();
        self.read_key(path);
        let is_empty = path.len() == outer;
        self.skip_blanks(b" \t");
        if self.rest().starts_with('=') || is_empty {
            self.at += self.rest().chars().next().map_or(0, char::len_utf8);
        }
        self.mask_value(path);
    }

    fn mask_value(&mut self, path: &mut Vec<&'t str>) {
        match self.skip_blanks(b" \t") {
            Some(b'{') => self.mask_items(path, b'}'),
            Some(b'[') => self.mask_items(path, b']'),
            Some(b'"') => self.mask_string(path, '"'),
            Some(b'\'') => self.mask_string(path, '\''),
            Some(b'\r' | b'\n') | None => {}
            Some(_) => {
                let length = self.rest().find([',', ']', '}', '#', '\n', '\r']).unwrap_or(self.rest().len());
                self.mask_if_secret(path, length);
                self.at += length;
            }
        }
    }

    /// Masks the entries of a table or the elements of an array, up to `end`.
    fn mask_items(&mut self, path: &mut Vec<&'t str>, end: u8) {
        self.at += 1;
        self.depth += 1;
        let outer = path.len();
        while let Some(next) = self.skip_blanks(b" \t\r\n,") {
            if next == end {
                self.at += 1;
                break;
            }
            if self.depth > MAX_DEPTH {
                let line_end = self.line_end();
                self.mask(self.at..line_end);
                self.at = line_end;
            } else if next == b'#' {
                self.at = self.line_end();
            } else if matches!(next, b'}' | b']') {
                break;
            } else if end == b'}' {
                self.mask_entry(path);
                path.truncate(outer);
            } else {
                self.mask_value(path);
            }
        }
        self.depth -= 1;
    }

    /// Masks a string. Without a closing quote, it ends with its line.
    fn mask_string(&mut self, path: &[&str], quote: char) {
        let triple: String = [quote; 3].iter().collect();
        let marks = if self.rest().starts_with(&triple) { 3 } else { 1 };
        self.at += marks;
        let (rest, mark) = (self.rest(), &triple[..marks]);
        let mut length = 0;
        let is_closed = loop {
            let Some(found) = rest[length..].find(['\\', '\n', quote]) else { break false };
            length += found;
            match rest.as_bytes()[length] {
                b'\\' if quote == '"' => {
                    let width = rest[length + 1..].chars().next().map_or(0, char::len_utf8);
                    length += 1 + width;
                }
                b'\n' if marks == 1 => break false,
                _ if rest[length..].starts_with(mark) => break true,
                _ => length += 1,
            }
        };
        if !is_closed && (length == 0 || marks == 3) {
            length = rest.len();
        } else if !is_closed {
            length = rest.find('\n').unwrap_or(rest.len());
        }
        self.mask_if_secret(path, length);
        self.at += length + if is_closed { marks } else { 0 };
    }

    fn mask_if_secret(&mut self, path: &[&str], length: usize) {
        let value = self.rest()[..length].trim_end();
        if self.is_hidden_body(path) {
            return self.mask_body(self.at..self.at + value.len());
        }
        let secret = match value.find('?') {
            _ if self.is_secret(path) => Some(0),
            Some(question) if has_secret_query(path) => Some(question + 1),
            _ => None,
        };
        if let Some(start) = secret {
            self.mask(self.at + start..self.at + value.len());
        }
    }

    /// Masks the body of a response except its placeholders, which are what mistakes in a body are about.
    fn mask_body(&mut self, range: Range<usize>) {
        let mut from = range.start;
        while let Some(open) = self.text[from..range.end].find('{').map(|found| from + found) {
            let inside = &self.text[open + 1..range.end];
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_' || c == '-';
            let name = inside.find(|c| !is_name(c)).filter(|end| (1..=PLACEHOLDER_MAX).contains(end));
            let placeholder_end = name.filter(|end| inside[*end..].starts_with('}')).map(|end| open + end + 2);
            let masked_end = if placeholder_end.is_some() { open } else { open + 1 };
            self.mask(from..masked_end);
            from = placeholder_end.unwrap_or(masked_end);
        }
        self.mask(from..range.end);
    }

    /// Reads a dotted key, and appends its parts to `path`. Masks names that are values of clients.
    fn read_key(&mut self, path: &mut Vec<&'t str>) {
        loop {
            self.skip_blanks(b" \t");
            let rest = self.rest();
            let (key, length) = match rest.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    let inside = &rest[1..];
                    let end = inside.find([quote, '\n']).unwrap_or(inside.len());
                    let close = usize::from(inside[end..].starts_with(quote));
                    (&inside[..end], 1 + end + close)
                }
                _ => {
                    let is_bare = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
                    let end = rest.find(|c| !is_bare(c)).unwrap_or(rest.len());
                    (&rest[..end], end)
                }
            };
            if length == 0 {
                return;
            }
            if self.hides_client_data && has_client_names(path) {
                let start = self.at + usize::from(key.len() < length);
                self.mask(start..start + key.len());
            }
            path.push(key);
            self.at += length;
            self.skip_blanks(b" \t");
            if !self.rest().starts_with('.') {
                return;
            }
            self.at += 1;
        }
    }

    /// Masks passwords and secret parameters of URLs.
    fn mask_url_secrets(&mut self) {
        let text = self.text;
        let until = |start: usize, ends: &[char]| text[start..].find(ends).map_or(text.len(), |end| start + end);
        // Ends of the last URL and of the last password: what lies before them is masked already.
        let (mut end, mut password_end) = (0, 0);
        for (at, scheme) in text.match_indices("://") {
            if at < end {
                continue;
            }
            let url = at + scheme.len();
            end = until(url, &URL_END);
            let login = text[url..end].rfind('@').map_or(url, |end| url + end);
            if let Some(colon) = text[url..login].find(':') {
                self.mask(url + colon + 1..login);
            }
            for name in URL_PARAMETERS {
                for (found, name) in text[url..end].match_indices(name) {
                    let start = url + found + name.len();
                    let end = until(start, &[URL_END.as_slice(), &['&']].concat());
                    self.masked[start..end].fill(self.mark);
                }
            }
        }
        for word in ["password=", "pass="] {
            for (at, word) in text.match_indices(word) {
                let start = at + word.len();
                if start >= password_end {
                    password_end = until(start, &[URL_END.as_slice(), &['&']].concat());
                    self.mask(start..password_end);
                }
            }
            password_end = 0;
        }
    }

    /// Masks a range, but keeps its lines and the names in `${NAME:-default}`.
    fn mask(&mut self, range: Range<usize>) {
        let mut from = range.start;
        while let Some(open) = self.text[from..range.end].find("${").map(|found| from + found) {
            let close = self.text[open..range.end].find('}').map_or(range.end, |found| open + found);
            self.fill(from..open);
            if let Some(default) = self.text[open..close].find(":-") {
                self.fill(open + default + 2..close);
            }
            from = range.end.min(close + 1);
        }
        self.fill(from..range.end);
    }

    fn fill(&mut self, range: Range<usize>) {
        let mark = self.mark;
        self.masked[range].iter_mut().filter(|byte| !matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = mark);
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Returns the end of the current line.
    fn line_end(&self) -> usize {
        self.rest().find('\n').map_or(self.text.len(), |newline| self.at + newline)
    }

    /// Skips these bytes, and returns the one that follows.
    fn skip_blanks(&mut self, blanks: &[u8]) -> Option<u8> {
        let rest = self.rest().as_bytes();
        let blank_count = rest.iter().position(|byte| !blanks.contains(byte)).unwrap_or(rest.len());
        self.at += blank_count;
        rest.get(blank_count).copied()
    }
}

/// Returns whether the value at a path, from the section on, is a secret. The second key may be the name of the
/// section.
fn is_secret_path(path: &[&str]) -> bool {
    let Some((kind, keys)) = path.split_first() else { return false };
    may_be_secret(kind, keys)
        || keys.split_first().is_some_and(|(_, keys)| may_be_secret(kind, keys))
        || path.last().is_some_and(|name| resembles_secret(name))
}

/// Returns whether a path leads to a part of a client's key, except for one by its hash. People who may not read the
/// files get the messages, and a text that is not valid does not tell how logs would show the key.
fn is_override_key(path: &[&str]) -> bool {
    let [kind, _, overrides, key, rest @ ..] = path else { return false };
    [*kind, *overrides, *key] == [limit::TABLE.name, limit::OVERRIDES.name, limit::overrides::KEY.name]
        && *rest != [limit::override_key::HASH.name]
}

/// Returns whether the names in the table at a path are values of clients: the tenants of a limit.
fn has_client_names(path: &[&str]) -> bool {
    let place = path.split_first().and_then(|(kind, keys)| locate_value(kind, keys.get(1..)?));
    place.is_some_and(|place| !place.is_entry && place.option.clients == ClientData::Keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_and_everything_else_stays() {
        for (text, masked) in [
            ("[admin]\ntoken = \"abc\" # why", "abc"),
            ("[admin]\ntoken = \"ab\"c\"", "[admin]\ntoken = \"**\"**"),
            ("[admin]\ntokens = [{ name = \"a\", token = 'abc', role = \"read\" }]", "abc"),
            ("[[admin.tokens]]\nname = \"a\"\ntoken = \"a\\\"b\"\nrole = \"read\"", "a\\\"b"),
            ("[admin]\nlisten = 3, token = \"abc\"", "abc"),
            ("admin.token = abc", "abc"),
            ("[admin]\ntoken \"abc\"", "abc"),
            ("[admin]\ntokn = \"abc", "abc"),
            ("[server]\nadmin_token = \"x\"\nkeys_secret = \"abc\"", "abc"),
            ("[admin]\ntoken = \"${X:-abc}\"", "abc"),
            ("[admin]\ntoken = \"${X}abc${file:y}\"", "abc"),
            ("[jwt]\nkey = \"\"\"\nabc\n\"\"\"\nx = 1", "abc"),
            ("[jwt.main]\nkey = '''abc", "abc"),
            ("[limit.a]\nwhen = { cookie = { sid = [\"abc\"] }, header = { x-plan = \"free\" } }", "abc"),
            ("[limit.a.when.header]\nauthorization = \"abc\"\nx-plan = \"free\"", "abc"),
            ("[[route]]\nrequest_headers.set.\"X-Api-Key\" = \"abc\"", "abc"),
            ("[store]\nurl = \"redis://user:abc@host/0\"", "abc"),
            ("[[route]]\nauth = { forward = \"http://h/v?api_key=abc&x=1\" }", "api_key=abc&x=1"),
            ("[[route]]\nauth.forward = 'http://h/v?abc'", "abc"),
            ("[spans]\nurl = \"http://h/v?api_key=abc&x=1\"", "abc"),
            ("[limit.a]\noverrides = [{ key = \"abc\", rate = \"1/s\" }]", "abc"),
            ("[limit.a]\noverrides = [{ rate = 0, key = [{ percent = \"abc\" }] }]", "abc"),
            ("[limit.a]\noverrides = [\n{ key = [7, abc", "[limit.a]\noverrides = [\n{ key = [*, ***"),
            ("[[limit.a.overrides]]\nkey = [\"abc\"]\nrate = \"1/s\"", "abc"),
            ("[limit]\na = { overrides = [{ key = 'abc' }] }", "abc"),
            ("[limit.a]\nfair = { key = \"ip\", weights = { abc = 5 } }", "abc"),
            ("[limit.a.fair.weights]\n\"abc\" = 5", "abc"),
            ("limit.a.fair.weights.abc = 5", "abc"),
            ("[[route]]\nrespond = { status = 200, body = \"abc\" }", "abc"),
            ("[limit.a.refuse]\nbody = '''\nabc\n'''\nstatus = 403", "abc"),
            ("[[route]]\nrefuse.bdoy = \"a{b c}", "a{b c}"),
            ("[[route]]\nrefuse.body = \"a{b}{retry_aftr}\"", "[[route]]\nrefuse.body = \"*{b}{retry_aftr}\""),
            ("[[route]]\nrefuse.body = \"{ä{\\\"ab\\\":{}}\"", "[[route]]\nrefuse.body = \"**************\""),
        ] {
            let expected = match masked.starts_with('[') {
                true => masked.to_owned(),
                false => text.replacen(masked, &"*".repeat(masked.len()), 1),
            };
            assert_eq!(mask_secrets(text), expected);
        }
        for text in [
            "[limit.a]\noverrides = [{ key = [{ hash = \"abc\" }], rate = 0 }]\nfair = { key = \"ip\", weight = 5 }",
            "[limit.a]\nkey = \"ip\"\nrate = \"10/s\"\n[[listener]]\ntls = { client_auth = \"required\" }",
            "[admin]\nlisten = \"127.0.0.1:9900\" # = token\nkeys = { ip = \"plain\" }\n[limit.token]\nrate = \"1/s\"",
            "[[route]]\nauth = { basic = \"users\" }\nheader = { x-version = \"2\" }\n[limit.tokens]\nburst = 3",
        ] {
            assert_eq!(mask_secrets(text), text);
        }
    }

    #[test]
    fn texts_are_split_around_their_secrets() {
        for (text, secrets) in [
            ("", &[][..]),
            ("[jwt]\nkey = \"a*c\"\n[limit.a]\nkey = \"ip\"", &["a*c"]),
            ("[admin]\nkeys_secret = \"\"\"\nab\ncd\"\"\" # x", &["ab", "cd"]),
            ("[server]\nkey_secret = '\u{e9}'\nspans = { headers = { x-any = \"ab\" } }", &["\u{e9}", "ab"]),
            ("[[route]]\nrequest_headers.set.authorization = \"ab\"", &["ab"]),
            ("[limit.a]\nwhen = { cookie = { sid = [\"ab\"] }, header = { x-plan = \"free\" } }", &["ab"]),
            ("[store]\nurl = \"redis://u:p@h?x=1&pass=${P:-d}\"", &["p", "d"]),
            ("[limit.a]\noverrides = [{ key = \"ab\", rate = 0 }]\nrefuse.body = \"cd\"\nfair.weights.ef = 5", &[]),
            ("token=\"ab", &["ab"]),
        ] {
            let pieces = split_secrets(text);
            assert_eq!(pieces.concat(), text);
            assert_eq!(pieces.into_iter().skip(1).step_by(2).collect::<Vec<_>>(), secrets, "{text}");
        }
    }

    #[test]
    fn secrets_near_a_place_are_listed_whole() {
        let text = format!("[admin]\ntoken = \"{}\"\n{}\n[jwt]\nkey = \"near\"\n", "far".repeat(200), "#".repeat(300));
        let (masked, end) = (mask_secrets(&text), text.len());
        let secrets = |near: Range<usize>| list_secrets(&text, &masked, near).into_iter().collect::<Vec<_>>();
        assert_eq!(secrets(end - 3..end), ["near"]);
        // The middle of the long secret.
        assert_eq!(secrets(300..301), ["far".repeat(200)]);
    }

    #[test]
    fn any_text_is_masked_in_time_that_its_length_bounds() {
        let long = ["[", "{", "[{a=", "\"\"\"", "'", "\\", "é=", "a.", "token=", "\n", "é\"", "[["];
        for text in long.map(|part| part.repeat(100_000 / part.len())) {
            assert_eq!(mask_secrets(&text).len(), text.len(), "{}", &text[..20]);
            assert_eq!(split_secrets(&text).concat(), text);
        }
    }
}
