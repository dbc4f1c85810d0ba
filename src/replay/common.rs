//! The common and combined formats of nginx and Apache, also with the virtual host in front and
//! nginx's `$request_time` and `$msec` at the end. Called by `line`; any bytes may come.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue};

use super::entry::{AccessLogFormat, ReplayEntry, Request, host, request};

/// `[HOST ]CLIENT IDENT USER [TIME] "REQUEST" STATUS BYTES[ "REFERER" "USER AGENT"][ ... [MSEC] [SECONDS]]`,
/// the last two also the other way round, and MSEC also for TIME.
pub fn parse(line: &[u8], wanted: bool) -> Result<ReplayEntry, &'static str> {
    let (first, rest) = split(line, b' ').ok_or("not JSON, and no fields as in a common or combined log")?;
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
    let (stamp_ms, coarse) = match time(stamp) {
        Some(ms) => (ms, true),
        None => (msec(stamp).ok_or("the time stamp is not of the form 10/Oct/2000:13:55:36 -0700")?, false),
    };
    let (line, rest) = quoted(rest).ok_or("no request in quotes")?;
    let (status, mut rest) = status(rest).ok_or("no status after the request")?;
    let mut headers = HeaderMap::new();
    let mut format = AccessLogFormat::Common;
    if let Some((referer, after)) = quoted(rest) {
        (format, rest) = (AccessLogFormat::Combined, after);
        let agent = quoted(rest).map(|(agent, after)| {
            rest = after;
            agent
        });
        for (name, value) in [(REFERER, Some(referer)), (USER_AGENT, agent)] {
            let value = value.filter(|value| wanted && **value != *b"-").map(|value| unescape(value));
            if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(&value).ok()) {
                headers.insert(name, value);
            }
        }
    }
    let request = request_line(&unescape(line), headers);
    let request = request.map(|request| Request { host: request.host.or(virtual_host), ..request });
    let (finer_ms, duration_ms) = ending(rest, stamp_ms);
    let (logged_ms, coarse) = finer_ms.map_or((stamp_ms, coarse), |ms| (ms, false));
    // Whoever logs the duration logs at the end.
    let start_ms = logged_ms - duration_ms.unwrap_or(0);
    Ok(ReplayEntry { logged_ms, coarse, start_ms, duration_ms, status, limited: false, client, request, format })
}

/// The three digits that follow, and what follows them; `None` within for what is no status.
fn status(text: &[u8]) -> Option<(Option<u16>, &[u8])> {
    let [b' ', digits @ ..] = text.get(..4)? else { return None };
    let number = digits.iter().try_fold(0, |n, digit| digit.is_ascii_digit().then(|| n * 10 + u16::from(digit - b'0')));
    number.map(|number| (Some(number).filter(|number| *number >= 100), &text[4..]))
}

/// What the last two fields tell: `$msec`, if it is about the time of the stamp, and `$request_time`.
fn ending(text: &[u8], stamp_ms: i64) -> (Option<i64>, Option<i64>) {
    let text = text.trim_ascii_end();
    let text = text.strip_suffix(b"\"").unwrap_or(text);
    // Behind a name, `rt=0.123`, or alone; in quotes or not.
    let mut fields = text.rsplit(|byte| *byte == b' ').map(|field| {
        let field = field.strip_suffix(b"\"").unwrap_or(field);
        field.rsplit(|byte| matches!(byte, b'"' | b'=')).next().unwrap_or_default()
    });
    let (last, before) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let finer = |field| msec(field).filter(|ms| (ms - stamp_ms).abs() <= 2000);
    match finer(last) {
        Some(ms) => (Some(ms), seconds(before, 1..=8)),
        None => (finer(before), seconds(last, 1..=8)),
    }
}

/// nginx's `$msec` in ms since 1970.
fn msec(text: &[u8]) -> Option<i64> {
    seconds(text, 9..=10)
}

/// Seconds with so many digits and three decimals, as nginx writes them, in ms. Apache's `%D` and `%T` have
/// no decimals, so they are not taken for it.
fn seconds(last: &[u8], wholes: RangeInclusive<usize>) -> Option<i64> {
    let point = last.len().checked_sub(4)?;
    let (whole, decimals) = last.split_at_checked(point)?;
    let digits = whole.iter().chain(&decimals[1..]);
    let fits = decimals[0] == b'.' && wholes.contains(&whole.len()) && digits.clone().all(u8::is_ascii_digit);
    fits.then(|| digits.fold(0, |n, digit| n * 10 + i64::from(digit - b'0')))
}

fn request_line(line: &[u8], headers: HeaderMap) -> Option<Request> {
    let (method, rest) = split(line, b' ')?;
    let end = rest.iter().rposition(|byte| *byte == b' ')?;
    if !rest[end + 1..].starts_with(b"HTTP/") {
        return None;
    }
    request(method, &String::from_utf8_lossy(&rest[..end]), headers)
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
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (year, month, day) in [(1970, 1, 1), (2000, 2, 29), (2000, 3, 1), (2023, 12, 31), (2100, 3, 1)] {
            let date = jiff::civil::date(year, i8::try_from(month).unwrap(), i8::try_from(day).unwrap());
            let since = date.since(jiff::civil::date(1970, 1, 1)).unwrap().get_days();
            assert_eq!(days(i64::from(year), month, day), i64::from(since), "{date}");
        }
    }
}
