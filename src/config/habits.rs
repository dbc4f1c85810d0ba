//! Rewrites rates, durations and key parts of other programs, such as `10r/s`, `1m30s` and `$binary_remote_addr`, to
//! ours. Called by `values` for texts that are wrong; the result becomes the help of the diagnostic.

use crate::text::{format_duration, unit_ms};

/// Names of key parts in other programs, in lower case.
const KEY_NAMES: [(&[&str], &str); 9] = [
    (
        &[
            "binary_remote_addr",
            "remote_addr",
            "remote_ip",
            "client_ip",
            "clientip",
            "ip_address",
            "source_ip",
            "address",
            "client",
            "realip_remote_addr",
            "remote_host",
            "client.ip",
            "src",
        ],
        "ip",
    ),
    (&["http_host", "server_name", "hostname"], "host"),
    (&["uri", "document_uri", "url", "request_path"], "path"),
    (&["request_uri"], "target"),
    (&["args"], "query_string"),
    (&["request_method", "http_method", "verb"], "method"),
    (
        &[
            "geoip_country",
            "geoip_country_code",
            "geoip2_country_code",
            "geoip2_data_country_code",
            "country_code",
            "client_country",
        ],
        "country",
    ),
    (&["global", "none", "everyone", "*", "any", "service"], "all"),
    (&["api_key", "apikey", "api-key", "consumer"], "header:x-api-key"),
];
/// Variables of nginx with a name, and the source.
const VARIABLES: [(&str, &str); 5] =
    [("http_", "header:"), ("cookie_", "cookie:"), ("arg_", "query:"), ("jwt_claim_", "jwt:"), ("header.", "header:")];
/// Words between a count and its period.
const PER: [&str; 7] = ["requests/", "request/", "reqs/", "req/", "r/", " per ", "/"];
const SHORT_RATES: [(&str, &str); 4] = [("rps", "s"), ("rpm", "min"), ("rph", "h"), ("qps", "s")];
/// Most digits after the point of a rate.
const DIGITS_MAX: usize = 3;

/// Returns the rate that `text` seems to mean.
pub fn rewrite_rate(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let short = SHORT_RATES.iter().find_map(|(end, period)| Some((text.strip_suffix(end)?, *period)));
    let (count, period) = short.or_else(|| PER.iter().find_map(|per| text.split_once(per)))?;
    let (count, period) = (count.trim(), period.trim());
    let unit = period.trim_start_matches(|char: char| char.is_ascii_digit()).trim_start();
    unit_ms(unit)?;
    let (whole, digits) = count.split_once('.').unwrap_or((count, "0"));
    let digits = digits.trim_end_matches('0');
    if digits.len() > DIGITS_MAX || ![whole, digits].iter().all(|text| text.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    // 0.5/s is one in two seconds.
    let scale = 10_u64.pow(u32::try_from(digits.len()).ok()?);
    let amount = whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(digits.parse().unwrap_or(0))?;
    let divisor = greatest_divisor(amount, scale);
    match (amount, scale / divisor) {
        (0, _) => None,
        (_, 1) => Some(format!("{}/{period}", amount / divisor)),
        // Several periods have no number of their own.
        (_, periods) => (period == unit).then(|| format!("{}/{periods}{unit}", amount / divisor)),
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { greatest_divisor(b, a % b) }
}

/// Returns the duration that `text` seems to mean: `1m30s` and `1.5s` in one smaller unit.
pub fn rewrite_duration(text: &str) -> Option<String> {
    let text = text.trim();
    let (mut rest, mut total_ms) = (text, 0_u64);
    while !rest.is_empty() {
        let number = &rest[..rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count()];
        let after = rest[number.len()..].trim_start();
        let unit = &after[..after.bytes().take_while(u8::is_ascii_alphabetic).count()];
        let one_ms = unit_ms(unit)?;
        let (whole, digits) = number.split_once('.').unwrap_or((number, ""));
        if digits.len() > DIGITS_MAX || whole.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let scale = 10_u64.pow(u32::try_from(digits.len()).ok()?);
        let fraction = one_ms.checked_mul(digits.parse().unwrap_or(0))? / scale;
        total_ms = total_ms.checked_add(whole.parse::<u64>().ok()?.checked_mul(one_ms)?)?.checked_add(fraction)?;
        rest = after[unit.len()..].trim_start();
    }
    (total_ms > 0).then(|| format_duration(total_ms))
}

/// Returns the key part that `text` seems to mean.
pub fn rewrite_key_part(text: &str) -> Option<String> {
    let is_variable = text.starts_with('$');
    let name = text.trim_start_matches('$').trim_matches(['{', '}']).to_ascii_lowercase();
    let known = KEY_NAMES.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, part)| (*part).to_owned());
    known.or_else(|| {
        let (source, rest) = VARIABLES.iter().find_map(|(start, source)| {
            name.strip_prefix(start)
                .filter(|rest| !rest.is_empty() && (is_variable || start.ends_with('.')))
                .map(|rest| (*source, rest))
        })?;
        // nginx writes the names of headers with underscores.
        let rest = if source == "header:" { rest.replace('_', "-") } else { rest.to_owned() };
        Some(format!("{source}{rest}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_other_programs_are_rewritten_to_ours() {
        for (text, rate) in [
            ("10r/s", Some("10/s")),
            ("5r/m", Some("5/m")),
            ("60 per minute", Some("60/minute")),
            ("100 req/s", Some("100/s")),
            ("0.5/s", Some("1/2s")),
            ("1.5/min", Some("3/2min")),
            ("2.0/s", Some("2/s")),
            ("600rpm", Some("600/min")),
            ("0.0001/s", None),
            ("10", None),
            ("fast/s", None),
            ("10/fortnight", None),
            ("99999999999999999999.5/s", None),
            ("0/s", None),
            ("-5/s", None),
            ("0.5/10s", None),
            ("7/10s", Some("7/10s")),
            ("", None),
        ] {
            assert_eq!(rewrite_rate(text).as_deref(), rate, "{text}");
        }
    }

    #[test]
    fn durations_of_other_programs_are_rewritten_to_ours() {
        for (text, duration) in [
            ("1m30s", Some("90s")),
            ("1.5s", Some("1500ms")),
            ("1h30m", Some("90min")),
            ("1 m 30 s", Some("90s")),
            ("0.5h", Some("30min")),
            ("24h0m", Some("1d")),
            ("0s0s", None),
            ("1m30", None),
            ("", None),
            (".5s", None),
            ("1.2.3s", None),
            ("5 fortnights", None),
            ("99999999999999999999d1s", None),
        ] {
            assert_eq!(rewrite_duration(text).as_deref(), duration, "{text}");
        }
    }

    #[test]
    fn key_parts_of_other_programs_are_rewritten_to_ours() {
        for (text, part) in [
            ("$binary_remote_addr", Some("ip")),
            ("client_ip", Some("ip")),
            ("$http_x_api_key", Some("header:x-api-key")),
            ("$cookie_sid", Some("cookie:sid")),
            ("$arg_user", Some("query:user")),
            ("${http_x_user}", Some("header:x-user")),
            ("header.X-User", Some("header:x-user")),
            ("global", Some("all")),
            ("http_x_api_key", None),
            ("$http_", None),
            ("nonsense", None),
        ] {
            assert_eq!(rewrite_key_part(text).as_deref(), part, "{text}");
        }
    }
}
