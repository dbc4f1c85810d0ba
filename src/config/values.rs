//! Parsers for config strings: rates, durations, sizes, addresses, names. Called by `compile` and `shorthand`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;
use ipnet::IpNet;
use regex::{Regex, RegexBuilder};

use crate::config::habits;
use crate::limiting::algorithm::params::{PERIOD_MAX_MS, Rate};
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::limit::when::Expression;
use crate::limiting::source::{Source, SourceKind, SourceOrigin};
pub use crate::names::{TextFault, invalid_text, parse_header_name, parse_param_name};
use crate::net::{ListenAddr, parse_network};
use crate::text::{hex_byte, unit_ms};

/// Memory limit of a compiled regular expression, in bytes.
const REGEX_MAX: usize = 1024 * 1024;

/// Decodes `%XX`; returns `None` if a `%` is not followed by two hex digits.
pub fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let [high, low, rest @ ..] = piece.as_bytes() else { return None };
        bytes.push(hex_byte(*high, *low)?);
        bytes.extend_from_slice(rest);
    }
    Some(bytes)
}

const DAY_MS: u64 = 86_400_000;
const RATE_HELP: &str = "write a count per period: \"10/s\", \"5/10s\", \"1000/min\", \"10000/day\"";
const DURATION_HELP: &str = "write a whole number and its unit: \"30ms\", \"2s\", \"1m\", \"1h\", \"1d\"";
const SIZE_HELP: &str = "write a whole number of bytes, or with a unit: \"64KiB\", \"10MiB\", \"1GiB\", \"1MB\"";

/// Returns the help for a text that is not a rate: what it seems to mean, or what a rate looks like.
fn rate_help(text: &str) -> String {
    habits::rewrite_rate(text).map_or_else(|| RATE_HELP.to_owned(), |better| format!("write \"{better}\""))
}

/// Parses `10/s`, `5/10s`, `1000/min`, `10000/day`.
pub fn parse_rate(text: &str) -> Result<Rate, TextFault> {
    let Some((count, period)) = text.split_once('/') else {
        return invalid_text(format!("`{text}` is not a rate"), rate_help(text));
    };
    let (count, period) = (count.trim(), period.trim());
    let count = match count.parse::<i64>() {
        Ok(count) if count >= 1 && is_digits(text.trim()) => count,
        Ok(0) => {
            return invalid_text(
                "a rate of 0 admits nothing",
                "use a `deny` list or a `respond` route to refuse always",
            );
        }
        _ => return invalid_text(format!("`{count}` is not a positive whole number"), rate_help(text)),
    };
    let (number, unit) = period.split_at(period.bytes().take_while(u8::is_ascii_digit).count());
    let Some(unit_ms) = unit_ms(unit.trim_start()) else {
        if let "week" | "month" | "year" = unit.trim_start() {
            let what = format!("a {} is not a fixed number of milliseconds", unit.trim_start());
            return invalid_text(what, "write a number of days, or use algorithm = \"calendar\"");
        }
        return invalid_text(
            format!("unknown unit `{}`", unit.trim_start()),
            format!("units are ms, s, min, h, day; {RATE_HELP}"),
        );
    };
    let number = if number.is_empty() { Some(1) } else { number.parse::<u64>().ok() };
    let per_ms = number.and_then(|number| i64::try_from(number.checked_mul(unit_ms)?).ok());
    match per_ms {
        Some(0) => invalid_text("the period is 0", RATE_HELP),
        Some(per_ms) if per_ms <= PERIOD_MAX_MS => Ok(Rate { count, per_ms }),
        _ => invalid_text(
            "the period is too long",
            format!("the longest is {} days", PERIOD_MAX_MS.unsigned_abs() / DAY_MS),
        ),
    }
}

/// Parses `30ms`, `2s`, `1m`, `1h`, `1d`.
pub fn parse_duration(text: &str) -> Result<Duration, TextFault> {
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let unit = unit.trim();
    if number.is_empty() {
        return invalid_text(format!("`{text}` is not a duration"), DURATION_HELP);
    }
    if unit.is_empty() {
        return invalid_text(format!("`{text}` has no unit"), DURATION_HELP);
    }
    let Some(unit_ms) = unit_ms(unit) else {
        let better = habits::rewrite_duration(text).map(|better| format!("write \"{better}\""));
        return invalid_text(format!("unknown unit `{unit}`"), better.unwrap_or_else(|| DURATION_HELP.to_owned()));
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)) {
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => invalid_text(format!("`{text}` is too long"), DURATION_HELP),
    }
}

/// Parses `10MiB`, `64KiB`, `1MB`, `512` into bytes.
pub fn parse_size(text: &str) -> Result<u64, TextFault> {
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let unit = unit.trim();
    if number.is_empty() {
        return invalid_text(format!("`{text}` is not a size"), SIZE_HELP);
    }
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return invalid_text(format!("unknown unit `{unit}`"), SIZE_HELP),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(size) => Ok(size),
        None => invalid_text(format!("`{text}` is too large"), SIZE_HELP),
    }
}

/// Returns whether the text is only digits. Rust's parser would accept `+5`.
pub fn is_digits(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Parses an address or a network in CIDR notation.
pub fn parse_cidr(text: &str) -> Result<IpNet, TextFault> {
    if let Some(net) = parse_network(text) {
        return Ok(net);
    }
    match text.parse::<IpNet>() {
        Ok(net) => invalid_text(format!("`{text}` has bits set after the prefix"), format!("write `{}`", net.trunc())),
        Err(_) if ["all", "any", "*"].contains(&text) => invalid_text(
            format!("`{text}` is not an address or network"),
            "write \"0.0.0.0/0\" and \"::/0\" for every address",
        ),
        Err(_) => invalid_text(
            format!("`{text}` is not an address or network"),
            "like \"192.0.2.7\", \"10.0.0.0/8\" or \"2001:db8::/32\"",
        ),
    }
}

/// Parses `127.0.0.1:8080`, `[::1]:8080`, `:8080` (every IPv4 address) or `unix:/run/x.sock`.
pub fn parse_listen(text: &str) -> Result<ListenAddr, TextFault> {
    const HELP: &str =
        "write ADDRESS:PORT like \"127.0.0.1:8080\", \":8080\" for every IPv4 address, or \"unix:/run/x.sock\"";
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.len() {
            0 => invalid_text("the socket has no path", HELP),
            1..=107 if !path.contains('\0') => Ok(ListenAddr::Unix(PathBuf::from(path))),
            _ => invalid_text("the path of a socket may have 107 bytes at most", "use a shorter path"),
        };
    }
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    if let Ok(address) = full.parse::<SocketAddr>() {
        return Ok(ListenAddr::Tcp(address));
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return invalid_text("a listener needs an address, not a name", format!("write \"127.0.0.1:{port}\""));
    }
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => invalid_text(format!("`{text}` has no port"), format!("write \"[{ip}]:8080\"")),
        Ok(ip) => invalid_text(format!("`{text}` has no port"), format!("write \"{ip}:8080\"")),
        Err(_) => invalid_text(format!("`{text}` is not an address to listen on"), HELP),
    }
}

/// Returns whether `host` consists of lower-case labels of letters, digits, `-` and `_`, without a trailing dot.
pub fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
    };
    host.len() <= 253 && host.split('.').all(label)
}

pub const NAME_HELP: &str = "names have 1 to 64 letters, digits, `_`, `.` or `-`";

/// Returns whether the text is a valid name of a limit, upstream or set.
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

/// Compiles a regular expression with bounded memory.
pub fn build_regex(builder: &mut RegexBuilder) -> Result<Regex, TextFault> {
    match builder.size_limit(REGEX_MAX).dfa_size_limit(REGEX_MAX).build() {
        Ok(regex) => Ok(regex),
        Err(regex::Error::CompiledTooBig(_)) => {
            invalid_text("the regular expression is too large", "use smaller repetitions")
        }
        Err(error) => {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            invalid_text(format!("not a regular expression: {reason}"), "the syntax is that of the Rust crate regex")
        }
    }
}

/// Parses the regular expression after `~` in `text`.
pub fn parse_expression(text: &str, rest: &str) -> Result<Expression, TextFault> {
    let (ignore_case, pattern) = match (rest.strip_prefix("i "), rest.strip_prefix(' ')) {
        (Some(pattern), _) => (true, pattern),
        (None, Some(pattern)) => (false, pattern),
        (None, None) => {
            let help = format!("write \"~ regex\", \"~i regex\" to ignore case, or \"= {text}\" for the text");
            return invalid_text(format!("`{text}` is neither a regular expression nor a text"), help);
        }
    };
    // Values may contain line ends, at which matching must not stop.
    let mut builder = RegexBuilder::new(pattern);
    let regex = build_regex(builder.case_insensitive(ignore_case).dot_matches_new_line(true))?;
    Ok(Expression { regex, ignore_case })
}

pub fn parse_header_value(text: &str) -> Result<HeaderValue, TextFault> {
    match HeaderValue::from_str(text) {
        Ok(value) if text.trim() == text => Ok(value),
        Ok(_) => invalid_text("a header value has no spaces around it", "remove them"),
        Err(_) => invalid_text(
            "a header value may only contain visible ASCII characters",
            "remove line breaks and other characters",
        ),
    }
}

/// Parses a `Host` that the gateway sends to servers.
pub fn parse_sent_host(text: &str) -> Result<HeaderValue, TextFault> {
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    if text.chars().all(is_host) && Authority::try_from(text).is_ok() {
        return parse_header_value(text);
    }
    invalid_text(
        format!("`{text}` is not a host"),
        "write a name or an address, optionally with a port; a `rewrite` may also say \"{host}\", the client's host without \
         its port",
    )
}

/// Parses one part of a limit's key: a source, alternatives separated by ` | `, or `all`.
pub fn parse_key_part(text: &str) -> Result<KeyPart, TextFault> {
    let pieces = || text.split('|').map(str::trim);
    if !text.contains(KeyPart::OR) {
        let joined = || pieces().collect::<Vec<_>>().join(KeyPart::OR);
        return match pieces().count() > 1 && pieces().all(|piece| parse_single_part(piece).is_ok()) {
            true => invalid_text(format!("`{text}` has no spaces around its `|`"), format!("write \"{}\"", joined())),
            false => parse_single_part(text),
        };
    }
    let mut sources: Vec<Source> = Vec::new();
    for piece in text.split(KeyPart::OR).map(str::trim) {
        match parse_single_part(piece)? {
            KeyPart::Source(source) if sources.contains(&source) => {
                return invalid_text(format!("the alternative `{piece}` occurs twice"), "remove one of the two");
            }
            KeyPart::Source(source) if source.kind().origin() != SourceOrigin::Request => sources.push(source),
            _ => {
                return invalid_text(
                    format!("every request has `{piece}`, so it is not an alternative"),
                    "alternatives are different places of one value, like \"form:user | json:/user\"; for requests without any of \
                     them write a second limit, with a `when`",
                );
            }
        }
    }
    Ok(KeyPart::Alternatives(sources))
}

fn parse_single_part(text: &str) -> Result<KeyPart, TextFault> {
    let help = || {
        if let Some(better) = habits::rewrite_key_part(text) {
            return format!("write \"{better}\"");
        }
        let forms = Key::SOURCES.iter().map(|kind| kind.form());
        format!("key parts are {}, {}", forms.collect::<Vec<_>>().join(", "), KeyPart::ALL)
    };
    match Source::parse(text, Key::SOURCES) {
        Some(source) => source.map(KeyPart::Source),
        None if text == KeyPart::ALL => Ok(KeyPart::All),
        None => invalid_text(format!("unknown key part `{text}`"), help()),
    }
}

/// Parses a source of one of the `allowed` kinds; `help` lists what else is possible.
pub fn parse_source(text: &str, allowed: &[SourceKind], help: &str) -> Result<Source, TextFault> {
    Source::parse(text, allowed).unwrap_or_else(|| invalid_text(format!("unknown source `{text}`"), help))
}

/// Returns how sources of these kinds are written, for messages.
pub fn describe_sources(kinds: &[SourceKind]) -> String {
    kinds.iter().map(|kind| format!("\"{}\"", kind.form())).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding() {
        for (text, decoded) in [
            ("a+b", Some("a+b".as_bytes())),
            ("%41%20%c3%BC", Some("A \u{fc}".as_bytes())),
            ("caf%E9", Some(b"caf\xe9")),
            ("\u{fc}%2a", Some("\u{fc}*".as_bytes())),
            ("", Some(b"")),
            ("%", None),
            ("%4", None),
            ("%+1", None),
            ("%4\u{fc}", None),
        ] {
            assert_eq!(percent_decode(text).as_deref(), decoded, "{text}");
        }
    }

    #[test]
    fn rates_in_every_spelling() {
        for (text, count, per_ms) in [
            ("10/s", 10, 1000),
            ("5/10s", 5, 10_000),
            ("1000/min", 1000, 60_000),
            ("1/100ms", 1, 100),
            (" 7 / 2 h ", 7, 7_200_000),
            ("10000/day", 10_000, 86_400_000),
        ] {
            assert_eq!(parse_rate(text.trim()), Ok(Rate { count, per_ms }), "{text}");
        }
        for text in [
            "",
            "10",
            "0/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "10/",
            "10/0s",
            "10/fortnight",
            "10/99999999999999999999s",
            "1/4000d",
        ] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_and_sizes() {
        assert_eq!(parse_duration("30ms"), Ok(Duration::from_millis(30)));
        assert_eq!(parse_duration("1d"), Ok(Duration::from_secs(86_400)));
        assert!(
            ["", "5", "s", "1.5s", "-1s", "99999999999999999999s", "1 fortnight"]
                .iter()
                .all(|t| parse_duration(t).is_err())
        );
        assert_eq!(parse_size("10MiB"), Ok(10 << 20));
        assert_eq!(parse_size("1MB"), Ok(1_000_000));
        assert_eq!(parse_size("512"), Ok(512));
        assert!(["", "10M", "MiB", "-1", "99999999999GiB"].iter().all(|text| parse_size(text).is_err()));
    }

    #[test]
    fn addresses_to_listen_on() {
        assert_eq!(parse_listen(":8080").unwrap().to_string(), "0.0.0.0:8080");
        assert_eq!(parse_listen("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert_eq!(parse_listen("unix:/run/x.sock").unwrap().to_string(), "unix:/run/x.sock");
        assert!(
            ["", "8080", "localhost:1", "127.0.0.1", "::1", "1.2.3.4:99999", "unix:"]
                .iter()
                .all(|t| parse_listen(t).is_err())
        );
    }
}
