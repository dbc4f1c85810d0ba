//! One line of an access log as a request: the common and combined formats of nginx and Apache,
//! and our own JSON. Called for every line; any bytes may come.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use serde::Deserialize;

use crate::http::canonical;

/// A request as far as a log knows it.
#[derive(Debug, PartialEq)]
pub struct Entry {
    pub time_ms: i64,
    pub client: IpAddr,
    /// `None`: the client sent something else than a request.
    pub request: Option<Request>,
    pub format: Format,
}

#[derive(Debug, PartialEq)]
pub struct Request {
    pub method: Method,
    /// Canonical; `None` when the log does not say.
    pub host: Option<String>,
    /// As logged.
    pub path: String,
    pub query: Option<String>,
    /// The few fields that logs hold.
    pub headers: HeaderMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Common,
    Combined,
    Json,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::Common => "common",
            Format::Combined => "combined",
            Format::Json => "json",
        }
    }
}

/// Reads a line without its end.
pub fn parse(line: &[u8]) -> Result<Entry, &'static str> {
    let entry = match line.trim_ascii_start().first() {
        Some(b'{') => json(line),
        _ => common(line),
    }?;
    if entry.time_ms < 0 { Err("the time is before 1970") } else { Ok(entry) }
}

#[derive(Deserialize)]
struct Json<'a> {
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    client: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    host: Cow<'a, str>,
    #[serde(borrow)]
    path: Cow<'a, str>,
}

fn json(line: &[u8]) -> Result<Entry, &'static str> {
    let json: Json = serde_json::from_slice(line).map_err(|_| "not JSON with time, client, method, host and path")?;
    let time: jiff::Timestamp = json.time.parse().map_err(|_| "`time` is not a time stamp")?;
    let client = json.client.parse().map_err(|_| "`client` is not an address")?;
    let request = request(json.method.as_bytes(), &json.path, HeaderMap::new())
        .map(|request| Request { host: host(json.host.as_bytes()).or(request.host), ..request });
    Ok(Entry { time_ms: time.as_millisecond(), client, request, format: Format::Json })
}

/// `[HOST ]CLIENT IDENT USER [TIME] "REQUEST" STATUS BYTES[ "REFERER" "USER AGENT"]`
fn common(line: &[u8]) -> Result<Entry, &'static str> {
    let (first, rest) = split(line, b' ').ok_or("no fields")?;
    let (client, virtual_host) = match address(first) {
        Some(client) => (client, None),
        // Apache's vhost_combined has the virtual host in front.
        None => {
            let second = split(rest, b' ').and_then(|(second, _)| address(second));
            (second.ok_or("does not start with a client address")?, host(first))
        }
    };
    let (_, rest) = split(rest, b'[').ok_or("no time stamp in brackets")?;
    let (stamp, rest) = split(rest, b']').ok_or("no time stamp in brackets")?;
    let time_ms = time(stamp).ok_or("the time stamp is not of the form 10/Oct/2000:13:55:36 -0700")?;
    let (line, rest) = quoted(rest).ok_or("no request in quotes")?;
    if !matches!(rest, [b' ', a, b, c, ..] if [a, b, c].iter().all(|byte| byte.is_ascii_digit())) {
        return Err("no status after the request");
    }
    let mut headers = HeaderMap::new();
    let mut format = Format::Common;
    if let Some((referer, rest)) = quoted(rest) {
        format = Format::Combined;
        let agent = quoted(rest).map(|(agent, _)| agent);
        for (name, value) in [(REFERER, Some(referer)), (USER_AGENT, agent)] {
            let value = value.filter(|value| **value != *b"-").map(|value| unescape(value));
            if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(&value).ok()) {
                headers.insert(name, value);
            }
        }
    }
    let request = request_line(&unescape(line), headers);
    let request = request.map(|request| Request { host: request.host.or(virtual_host), ..request });
    Ok(Entry { time_ms, client, request, format })
}

fn request_line(line: &[u8], headers: HeaderMap) -> Option<Request> {
    let (method, rest) = split(line, b' ')?;
    let end = rest.iter().rposition(|byte| *byte == b' ')?;
    if !rest[end + 1..].starts_with(b"HTTP/") {
        return None;
    }
    request(method, &String::from_utf8_lossy(&rest[..end]), headers)
}

/// `target` may be absolute.
fn request(method: &[u8], target: &str, headers: HeaderMap) -> Option<Request> {
    let method = Method::from_bytes(method).ok()?;
    let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let (named, target) = match absolute {
        None => (None, target),
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            (host(authority.as_bytes()), if path.is_empty() { "/" } else { path })
        }
    };
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    let path = if path.is_empty() && absolute.is_some() { "/" } else { path };
    if !path.starts_with('/') && path != "*" {
        return None;
    }
    Some(Request { method, host: named, path: path.to_owned(), query, headers })
}

/// The canonical host of `host[:port]`.
pub fn host(text: &[u8]) -> Option<String> {
    let read = canonical::authority(text)?;
    let mut host = match read.rewritten {
        Some(text) => text,
        None => str::from_utf8(text).ok()?.to_owned(),
    };
    host.truncate(read.host_len);
    Some(host).filter(|host| !host.is_empty())
}

fn address(text: &[u8]) -> Option<IpAddr> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|byte| *byte == at)?;
    Some((&text[..place], &text[place + 1..]))
}

/// What stands in the next quotes, still escaped, and what follows them.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, text) = split(text, b'"')?;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return Some((&text[..at], &text[at + 1..])),
            _ => at += 1,
        }
    }
    None
}

/// nginx writes `\xHH`, Apache `\"` and the like.
fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let hex = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        match tail {
            [b'x', high, low, tail @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                out.push(hex(*high).unwrap_or(0) * 16 + hex(*low).unwrap_or(0));
                rest = tail;
            }
            [next, tail @ ..] => {
                out.push(match next {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    other => *other,
                });
                rest = tail;
            }
            [] => {}
        }
    }
    Cow::Owned(out)
}

/// `10/Oct/2000:13:55:36 -0700` in ms since 1970.
fn time(stamp: &[u8]) -> Option<i64> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    const FORM: &[u8; 26] = b"00/AAA/0000:00:00:00 +0000";
    let stamp = <&[u8; 26]>::try_from(stamp).ok()?;
    let fits = |(byte, form): (&u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        b'A' => true,
        b'+' => matches!(byte, b'+' | b'-'),
        other => byte == other,
    };
    if !stamp.iter().zip(FORM).all(fits) {
        return None;
    }
    let number = |from: usize, to: usize| stamp[from..to].iter().fold(0, |n, digit| n * 10 + i64::from(digit - b'0'));
    let month = (1..).zip(MONTHS).find(|(_, name)| *name == &stamp[3..6])?.0;
    let (day, year) = (number(0, 2), number(7, 11));
    let (hour, minute, second) = (number(12, 14), number(15, 17), number(18, 20));
    if !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let east = (number(22, 24) * 60 + number(24, 26)) * if stamp[21] == b'-' { -60 } else { 60 };
    Some(((days(year, month, day) * 24 + hour) * 3600 + minute * 60 + second - east) * 1000)
}

/// Days since 1970 of a Gregorian date from year 0 on; years are counted from March, so that the
/// leap day is the last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COMBINED: &str =
        r#"192.0.2.7 - al ice [10/Oct/2000:13:55:36 -0700] "GET /a\x22b?x=1 HTTP/1.1" 200 23 "-" "a \"b\"""#;

    #[test]
    fn a_combined_line_is_a_request() {
        let entry = parse(COMBINED.replace("\\\\", "\\").as_bytes()).unwrap();
        assert_eq!((entry.time_ms, entry.format), (971_211_336_000, Format::Combined));
        let request = entry.request.unwrap();
        assert_eq!((request.path.as_str(), request.query.as_deref()), ("/a\"b", Some("x=1")));
        assert_eq!(request.headers.get("user-agent").unwrap(), "a \"b\"");
        assert!(request.headers.get("referer").is_none());
    }

    #[test]
    fn common_lines_hosts_and_what_is_no_request() {
        let line = r#"::1 - - [29/Feb/2024:23:59:59 +0100] "GET http://A.example:80/x HTTP/1.0" 304 -"#;
        let entry = parse(line.as_bytes()).unwrap();
        assert_eq!((entry.time_ms, entry.format), (1_709_247_599_000, Format::Common));
        assert_eq!(entry.request.unwrap().host.as_deref(), Some("a.example"));
        let named = format!("b.example:443 {line}").replace("http://A.example:80", "");
        assert_eq!(parse(named.as_bytes()).unwrap().request.unwrap().host.as_deref(), Some("b.example"));
        for odd in ["-", r"\x16\x03\x01", "GET", "GET /", "GET x HTTP/1.1"] {
            let line = format!(r#"::1 - - [29/Feb/2024:23:59:59 +0100] "{odd}" 400 0"#);
            assert_eq!(parse(line.as_bytes()).unwrap().request, None, "{odd}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (year, month, day) in [(1970, 1, 1), (2000, 2, 29), (2000, 3, 1), (2023, 12, 31), (2100, 3, 1)] {
            let date = jiff::civil::date(year, i8::try_from(month).unwrap(), i8::try_from(day).unwrap());
            let since = date.since(jiff::civil::date(1970, 1, 1)).unwrap().get_days();
            assert_eq!(days(i64::from(year), month, day), i64::from(since), "{date}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_damaged_line_is_read_or_refused(at in 0usize..90, byte in any::<u8>(), cut in 0usize..100) {
            let mut line = COMBINED.as_bytes().to_vec();
            let at = at % line.len();
            line[at] = byte;
            line.truncate(cut);
            let _ = parse(&line);
        }
    }
}
