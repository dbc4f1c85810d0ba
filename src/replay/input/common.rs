//! The common and combined formats of nginx and Apache, optionally with the virtual host in front, and with nginx's
//! `$http_x_forwarded_for`, `$request_time` and `$msec` at the end. Called by `line`; the input may be any bytes.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue};

use crate::replay::input::entry::{
    AccessLogFormat, LoggedForwarding, LoggedHeaders, ReplayEntry, Request, canonical_host, find_other_address,
    list_addresses, parse_request,
};
use crate::text::hex_byte;

/// Parses `[HOST ]CLIENT IDENT USER [TIME] "REQUEST" STATUS BYTES[ "REFERER" "USER AGENT"[ "FORWARDED FOR"]][ ... [MSEC] [SECONDS]]`.
/// The last two may be swapped, and MSEC may stand instead of TIME.
pub fn parse_common(line: &[u8], wanted: bool) -> Result<ReplayEntry, &'static str> {
    let (first, rest) = split_field(line, b' ').ok_or("neither JSON nor the common or combined format")?;
    let (client, virtual_host, rest) = match parse_address(first) {
        Some(client) => (client, None, rest),
        // Apache's vhost_combined starts with the virtual host.
        None => {
            let second = split_field(rest, b' ').and_then(|(second, rest)| Some((parse_address(second)?, rest)));
            let (client, rest) = second.ok_or("does not start with a client address")?;
            (client, canonical_host(first), rest)
        }
    };
    let (names, stamp, rest) = split_stamp(rest).ok_or("no time stamp in brackets")?;
    let user = split_field(names, b' ').and_then(|(_, user)| parse_user(user));
    let (stamp_ms, coarse) =
        parse_stamp(stamp).ok_or("the time stamp is not of the form 10/Oct/2000:13:55:36 -0700")?;
    let (line, rest) = take_quoted(rest).ok_or("no request in quotes")?;
    let (status, mut rest) = parse_status(rest).ok_or("no status after the request")?;
    let mut headers = HeaderMap::new();
    let mut format = AccessLogFormat::Common;
    let mut forwarded = LoggedForwarding::NotLogged;
    let fields = rest;
    if let Some((referer, after)) = take_quoted(rest) {
        (format, rest) = (AccessLogFormat::Combined, after);
        let agent = take_quoted(rest).map(|(agent, after)| {
            rest = after;
            agent
        });
        forwarded = parse_forwarding(rest);
        for (name, value) in [(REFERER, Some(referer)), (USER_AGENT, agent)] {
            let value = value.filter(|value| wanted && **value != *b"-").map(|value| unescape_field(value));
            if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(&value).ok()) {
                headers.insert(name, value);
            }
        }
    }
    let request = parse_request_line(&unescape_field(line), headers);
    let request = request.map(|request| Request { host: request.host.or(virtual_host), ..request });
    let (finer_ms, duration_ms) = parse_ending(rest, stamp_ms);
    let (logged_ms, coarse) = finer_ms.map_or((stamp_ms, coarse), |ms| (ms, false));
    let mut entry = ReplayEntry::new(client, logged_ms, request, format);
    let names_client = matches!(forwarded, LoggedForwarding::Chain(_));
    entry.other_address = if names_client { None } else { find_other_address(fields, client) };
    // Servers that log the duration write the line at the end of the request.
    entry.end_after(duration_ms);
    entry.headers = match format {
        AccessLogFormat::Combined => LoggedHeaders::agents(),
        _ => LoggedHeaders::Listed(Vec::new()),
    };
    Ok(ReplayEntry { coarse, status, forwarded, user, ..entry })
}

/// Splits the rest of a line at its time stamp in brackets. The name of a user may have brackets, too, but no quotes, which
/// programs escape; so the time stamp precedes the first of them.
fn split_stamp(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let before_quote = || {
        let end = text.windows(3).position(|bytes| bytes == b"] \"")?;
        let start = text[..end].iter().rposition(|byte| *byte == b'[')?;
        parse_stamp(&text[start + 1..end])?;
        Some((&text[..start], &text[start + 1..end], &text[end + 1..]))
    };
    let first = || {
        let (names, rest) = split_field(text, b'[')?;
        let (stamp, rest) = split_field(rest, b']')?;
        Some((names, stamp, rest))
    };
    before_quote().or_else(first)
}

/// Parses the time stamp of a line. Returns ms since 1970, and whether it has whole seconds.
fn parse_stamp(stamp: &[u8]) -> Option<(i64, bool)> {
    parse_time(stamp).map(|ms| (ms, true)).or_else(|| parse_msec(stamp).map(|ms| (ms, false)))
}

/// Parses the field after the user agent, which is `"$http_x_forwarded_for"` in the format `main` of nginx. Another
/// field in this place is not a list of addresses.
fn parse_forwarding(rest: &[u8]) -> LoggedForwarding {
    let Some((value, _)) = take_quoted(rest).filter(|_| rest.starts_with(b" \"")) else {
        return LoggedForwarding::NotLogged;
    };
    if value == b"-" {
        return LoggedForwarding::Absent;
    }
    // The elements before the last one may be anything that a client wrote.
    let value = unescape_field(value);
    let is_chain = list_addresses(&value).next().flatten().is_some();
    match HeaderValue::from_bytes(&value) {
        Ok(chain) if is_chain => LoggedForwarding::Chain(chain),
        _ => LoggedForwarding::NotLogged,
    }
}

/// Parses the name of the user; a server writes `-` or `""` if there is none.
fn parse_user(text: &[u8]) -> Option<String> {
    let text = text.trim_ascii();
    let is_name = !matches!(text, b"" | b"-" | b"\"\"");
    is_name.then(|| String::from_utf8_lossy(&unescape_field(text)).into_owned())
}

/// Parses a status of three digits; returns it with the rest, or `None` inside if it is not a status.
fn parse_status(text: &[u8]) -> Option<(Option<u16>, &[u8])> {
    let [b' ', digits @ ..] = text.get(..4)? else { return None };
    let number = digits.iter().try_fold(0, |n, digit| digit.is_ascii_digit().then(|| n * 10 + u16::from(digit - b'0')));
    number.map(|number| (Some(number).filter(|number| *number >= 100), &text[4..]))
}

/// Returns `$msec`, if it is close to the time stamp, and `$request_time` from the last two fields.
fn parse_ending(text: &[u8], stamp_ms: i64) -> (Option<i64>, Option<i64>) {
    let text = text.trim_ascii_end();
    let text = text.strip_suffix(b"\"").unwrap_or(text);
    // The value may follow a name, as in `rt=0.123`, and may be quoted.
    let mut fields = text.rsplit(|byte| *byte == b' ').map(|field| {
        let field = field.strip_suffix(b"\"").unwrap_or(field);
        field.rsplit(|byte| matches!(byte, b'"' | b'=')).next().unwrap_or_default()
    });
    let (last, before) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let finer = |field| parse_msec(field).filter(|ms| (ms - stamp_ms).abs() <= 2000);
    match finer(last) {
        Some(ms) => (Some(ms), parse_seconds(before, 1..=8)),
        None => (finer(before), parse_seconds(last, 1..=8)),
    }
}

/// Parses nginx's `$msec`; returns ms since 1970.
fn parse_msec(text: &[u8]) -> Option<i64> {
    parse_seconds(text, 9..=10)
}

/// Parses seconds with the given number of digits and three decimals, as nginx writes them; returns ms. Apache's `%D`
/// and `%T` have no decimals and are not mistaken for them.
fn parse_seconds(last: &[u8], wholes: RangeInclusive<usize>) -> Option<i64> {
    let point = last.len().checked_sub(4)?;
    let (whole, decimals) = last.split_at_checked(point)?;
    let digits = whole.iter().chain(&decimals[1..]);
    let fits = decimals[0] == b'.' && wholes.contains(&whole.len()) && digits.clone().all(u8::is_ascii_digit);
    fits.then(|| digits.fold(0, |n, digit| n * 10 + i64::from(digit - b'0')))
}

pub fn parse_request_line(line: &[u8], headers: HeaderMap) -> Option<Request> {
    let (method, rest) = split_field(line, b' ')?;
    let end = rest.iter().rposition(|byte| *byte == b' ')?;
    if !rest[end + 1..].starts_with(b"HTTP/") {
        return None;
    }
    parse_request(method, &String::from_utf8_lossy(&rest[..end]), headers)
}

fn parse_address(text: &[u8]) -> Option<IpAddr> {
    str::from_utf8(text).ok()?.parse().ok()
}

pub fn split_field(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|byte| *byte == at)?;
    Some((&text[..place], &text[place + 1..]))
}

/// Returns the content of the next quotes, still escaped, and the rest.
pub fn take_quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, text) = split_field(text, b'"')?;
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

/// Decodes `\xHH` of nginx and `\"` and similar of Apache.
pub fn unescape_field(text: &[u8]) -> Cow<'_, [u8]> {
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
        if let [b'x', high, low, after @ ..] = tail
            && let Some(byte) = hex_byte(*high, *low)
        {
            out.push(byte);
            rest = after;
            continue;
        }
        if let [next, after @ ..] = tail {
            out.push(match next {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                other => *other,
            });
            rest = after;
        }
    }
    Cow::Owned(out)
}

/// Parses `10/Oct/2000:13:55:36 -0700`; returns ms since 1970.
pub fn parse_time(stamp: &[u8]) -> Option<i64> {
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
    let date = days_since_epoch(year, month, day);
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    if day < 1 || date >= days_since_epoch(next_year, next_month, 1) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let east = (number(22, 24) * 60 + number(24, 26)) * if stamp[21] == b'-' { -60 } else { 60 };
    Some(((date * 24 + hour) * 3600 + minute * 60 + second - east) * 1000)
}

/// Returns the days since 1970 of a Gregorian date from year 0 on. Years start in March, so that the leap day is the
/// last of its year.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

/// Rounds a duration in ms. Longer ones than 30 years are ignored.
#[expect(clippy::cast_possible_truncation, reason = "compared before")]
pub fn round_millis(ms: f64) -> Option<i64> {
    (0.0..1e12).contains(&ms).then(|| ms.round() as i64)
}

/// Reads a status that a log has as a number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "compared before")]
pub fn read_status(status: f64) -> Option<u16> {
    (100.0..1000.0).contains(&status).then_some(status as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_that_the_month_does_not_have_is_no_time() {
        for (date, is_read) in [
            ("29/Feb/2024", true),
            ("29/Feb/2023", false),
            ("30/Feb/2024", false),
            ("31/Apr/2024", false),
            ("31/Dec/2024", true),
            ("32/Dec/2024", false),
            ("00/Jan/2024", false),
        ] {
            let stamp = format!("{date}:13:55:36 +0000");
            assert_eq!(parse_time(stamp.as_bytes()).is_some(), is_read, "{date}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (year, month, day) in [(1970, 1, 1), (2000, 2, 29), (2000, 3, 1), (2023, 12, 31), (2100, 3, 1)] {
            let date = jiff::civil::date(year, i8::try_from(month).unwrap(), i8::try_from(day).unwrap());
            let since = date.since(jiff::civil::date(1970, 1, 1)).unwrap().get_days();
            assert_eq!(days_since_epoch(i64::from(year), month, day), i64::from(since), "{date}");
        }
    }
}
