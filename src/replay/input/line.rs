//! Parses one line of an access log: our JSON format here, others in the files of their formats. Called for every line; the
//! input may be any bytes. The start of a line says which format it has.

use std::borrow::Cow;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::limiting::key::shown_key::parse_shown_key;
use crate::replay::input::common::round_millis;
use crate::replay::input::entry::{
    AccessLogFormat, LoggedForwarding, LoggedHeaders, ReplayEntry, Request, canonical_host, parse_request,
};
use crate::replay::input::{common, json, proxies};

/// Parses a line without its line end; headers and keys only if they are wanted.
pub fn parse_line(line: &[u8], headers: bool) -> Result<ReplayEntry, &'static str> {
    let entry = match line.trim_ascii_start().first() {
        // Another program's JSON has other fields.
        Some(b'{') => parse_json(line, headers).or_else(|own| match is_own_json(line) {
            true => Err(own),
            false => json::parse_json(line, headers),
        }),
        Some(b'[') => proxies::parse_proxy_manager(line, headers),
        _ if proxies::is_cloudfront(line) => proxies::parse_cloudfront(line, headers),
        _ if proxies::is_load_balancer(line) => proxies::parse_load_balancer(line, headers),
        _ => common::parse_common(line, headers).or_else(|other| proxies::parse_haproxy(line).unwrap_or(Err(other))),
    }?;
    if entry.start_ms < 0 { Err("the request starts before 1970") } else { Ok(entry) }
}

/// Returns whether a line has the fields of our JSON, so that the reason why it is not read is one of that format.
fn is_own_json(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Own {
        #[serde(rename = "client")]
        _client: IgnoredAny,
        #[serde(rename = "path")]
        _path: IgnoredAny,
        #[serde(rename = "time")]
        _time: IgnoredAny,
    }
    serde_json::from_slice::<Own>(line).is_ok()
}

#[derive(Deserialize)]
struct Json<'a> {
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    client: Cow<'a, str>,
    #[serde(borrow, default)]
    user: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    host: Cow<'a, str>,
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow, default)]
    query: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    user_agent: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    referer: Option<Cow<'a, str>>,
    status: Option<u16>,
    duration_ms: Option<f64>,
    refused_by: Option<IgnoredAny>,
    #[serde(borrow, default)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    keys: Option<Cow<'a, str>>,
}

/// Parses JSON; `time` is the start of the request.
fn parse_json(line: &[u8], wanted: bool) -> Result<ReplayEntry, &'static str> {
    let json: Json = serde_json::from_slice(line).map_err(|_| "not JSON with time, client, method, host and path")?;
    let time: jiff::Timestamp = json.time.parse().map_err(|_| "`time` is not a time stamp")?;
    let client = json.client.parse().map_err(|_| "`client` is not an address")?;
    let mut headers = HeaderMap::new();
    for (name, value) in [(USER_AGENT, &json.user_agent), (REFERER, &json.referer)] {
        let value = value.as_deref().filter(|_| wanted);
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
    let request = parse_request(json.method.as_bytes(), &json.path, headers).map(|request| Request {
        host: canonical_host(json.host.as_bytes()).or(request.host),
        query: json.query.map(Cow::into_owned).or(request.query),
        ..request
    });
    // `keys` contains `key`, unless it was cut off.
    let texts = [json.keys, json.key];
    let texts = texts.iter().flatten().filter(|_| wanted);
    let key_parts = texts.flat_map(|text| parse_shown_key(text)).collect();
    let start_ms = time.as_millisecond();
    Ok(ReplayEntry {
        coarse: false,
        duration_ms: json.duration_ms.and_then(round_millis),
        status: json.status.filter(|status| *status >= 100),
        limited: json.refused_by.is_some(),
        forwarded: LoggedForwarding::Applied,
        user: json.user.map(Cow::into_owned),
        key_parts,
        headers: LoggedHeaders::agents(),
        ..ReplayEntry::new(client, start_ms, request, AccessLogFormat::Json)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::client_address::ClientAddressRules;
    use crate::net::parse_network;
    use crate::replay::input::entry::ClientOrigin;

    const COMBINED: &str =
        r#"192.0.2.7 - al ice [10/Oct/2000:13:55:36 -0700] "GET /a\x22b?x=1 HTTP/1.1" 200 23 "-" "a \"b\"""#;

    #[test]
    fn a_combined_line_is_a_request() {
        let entry = parse_line(COMBINED.replace("\\\\", "\\").as_bytes(), true).unwrap();
        assert_eq!((entry.logged_ms, entry.format), (971_211_336_000, AccessLogFormat::Combined));
        assert_eq!(entry.user.as_deref(), Some("al ice"));
        let request = entry.request.unwrap();
        assert_eq!((request.path.as_str(), request.query.as_deref()), ("/a\"b", Some("x=1")));
        assert_eq!(request.headers.get("user-agent").unwrap(), "a \"b\"");
        assert!(request.headers.get("referer").is_none());
    }

    #[test]
    fn common_lines_hosts_and_what_is_no_request() {
        let line = r#"::1 - - [29/Feb/2024:23:59:59 +0100] "GET http://A.example:80/x HTTP/1.0" 304 -"#;
        let entry = parse_line(line.as_bytes(), true).unwrap();
        assert_eq!((entry.logged_ms, entry.format), (1_709_247_599_000, AccessLogFormat::Common));
        assert_eq!(entry.user, None);
        assert_eq!(entry.request.unwrap().host.as_deref(), Some("a.example"));
        let named = format!("b.example:443 {line}").replace("http://A.example:80", "");
        assert_eq!(parse_line(named.as_bytes(), true).unwrap().request.unwrap().host.as_deref(), Some("b.example"));
        let user = |text: &str| parse_line(named.replace("::1 - -", text).as_bytes(), true).unwrap().user;
        assert_eq!(user(r"::1 - jos\xC3\xA9").as_deref(), Some("jos\u{e9}"));
        assert_eq!(user("::1 - \"\""), None);
        assert_eq!(user(r"::1 - a\x20-\x20\x5Bb\x5D\x20\x22c").as_deref(), Some("a - [b] \"c"));
        assert_eq!(user(r"::1 - \x2D").as_deref(), Some("-"));
        // nginx writes brackets of a name as they are.
        assert_eq!(user("::1 - a[b] [c").as_deref(), Some("a[b] [c"));
        assert_eq!(user("::1 - a [01/Jan/2000:00:00:00 +0000]").as_deref(), Some("a [01/Jan/2000:00:00:00 +0000]"));
        for odd in ["-", r"\x16\x03\x01", "GET", "GET /", "GET x HTTP/1.1"] {
            let line = format!(r#"::1 - - [29/Feb/2024:23:59:59 +0100] "{odd}" 400 0"#);
            assert_eq!(parse_line(line.as_bytes(), true).unwrap().request, None, "{odd}");
        }
    }

    #[test]
    fn starts_ends_and_outcomes() {
        let timed = |text: &str| {
            parse_line(text.as_bytes(), true).map(|entry| (entry.start_ms, entry.duration_ms, entry.status))
        };
        let at = 971_211_336_000;
        for (end, start_ms, duration_ms) in [
            (" 1.250", at - 1250, Some(1250)),
            (" \"1.250\"", at - 1250, Some(1250)),
            (" rt=0.000", at, Some(0)),
            (" 1250", at, None),
            (" 1.25", at, None),
            (" 0x1.250", at, None),
            (" -", at, None),
            (" 1.250 971211336.471", at + 471 - 1250, Some(1250)),
            (" msec=971211336.471 rt=1.250", at + 471 - 1250, Some(1250)),
            (" 971211336.471", at + 471, None),
            (" 1.250 971211346.471", at, None),
        ] {
            assert_eq!(timed(&format!("{COMBINED}{end}")), Ok((start_ms, duration_ms, Some(200))), "{end}");
        }
        let msec = COMBINED.replace("10/Oct/2000:13:55:36 -0700", "971211336.471") + " 1.250";
        assert_eq!(timed(&msec), Ok((at + 471 - 1250, Some(1250), Some(200))), "in place of the time");
        let coarse = |text: &str| parse_line(text.as_bytes(), true).map(|entry| entry.coarse);
        assert_eq!((coarse(COMBINED), coarse(&msec)), (Ok(true), Ok(false)));
        assert_eq!(coarse(&format!("{COMBINED} 1.250 971211336.000")), Ok(false));
        let own = r#"{"time":"2026-01-02T03:04:05.5Z","client":"::1","method":"GET","path":"/","status":503"#;
        assert_eq!(timed(&format!("{own},\"duration_ms\":1.6}}")), Ok((1_767_323_045_500, Some(2), Some(503))));
        assert_eq!(timed(&format!("{own},\"duration_ms\":-1}}")), Ok((1_767_323_045_500, None, Some(503))));
        let more = format!("{own},\"query\":\"a=1\",\"user_agent\":\"x\",\"referer\":null}}");
        let request = parse_line(more.as_bytes(), true).unwrap().request.unwrap();
        assert_eq!((request.query.as_deref(), request.headers.len()), (Some("a=1"), 1));
        let user = |value: &str| parse_line(format!("{own},\"user\":{value}}}").as_bytes(), true).unwrap().user;
        assert_eq!((user("\"alice\"").as_deref(), user("null")), (Some("alice"), None));
        assert_eq!(request.headers["user-agent"], "x");
        assert!(parse_line(format!("{own},\"refused_by\":\"x\"}}").as_bytes(), true).unwrap().limited);
        assert!(!parse_line(format!("{own},\"refused_by\":null}}").as_bytes(), true).unwrap().limited);
    }

    #[test]
    fn the_client_is_the_one_that_trusted_proxies_name() {
        let trusted = parse_network("192.0.2.0/24").into_iter().collect();
        let rules = ClientAddressRules { trusted, ..ClientAddressRules::default() };
        let identify = |line: &str| {
            let mut entry = parse_line(line.as_bytes(), false).unwrap();
            entry.identify_client(&rules);
            (entry.client.to_string(), entry.client_origin)
        };
        for (field, client, origin) in [
            (" \"203.0.113.9\"", "203.0.113.9", ClientOrigin::Forwarded),
            (" \"evil, 203.0.113.9, 192.0.2.8\" 0.250", "203.0.113.9", ClientOrigin::Forwarded),
            (" \"\\x22, 203.0.113.9\"", "203.0.113.9", ClientOrigin::Forwarded),
            (" \"192.0.2.8\"", "192.0.2.8", ClientOrigin::Forwarded),
            (" \"[2001:db8::1]:80\"", "2001:db8::1", ClientOrigin::Forwarded),
            (" \"-\"", "192.0.2.7", ClientOrigin::Line),
            ("", "192.0.2.7", ClientOrigin::Unknown),
            (" 0.250", "192.0.2.7", ClientOrigin::Unknown),
            (" \"a.example\"", "192.0.2.7", ClientOrigin::Unknown),
            (" 0.250 \"203.0.113.9\"", "192.0.2.7", ClientOrigin::Unknown),
        ] {
            assert_eq!(identify(&format!("{COMBINED}{field}")), (client.to_owned(), origin), "{field}");
            let untrusted = format!("{COMBINED}{field}").replacen("192.0.2.7", "198.51.100.7", 1);
            let origin = if origin == ClientOrigin::Forwarded { ClientOrigin::Untrusted } else { ClientOrigin::Line };
            assert_eq!(identify(&untrusted), ("198.51.100.7".to_owned(), origin), "{field}");
        }
        // The real-IP module of nginx has replaced the address already.
        let replaced = format!("{COMBINED} \"198.51.100.7, 192.0.2.8\"").replacen("192.0.2.7", "198.51.100.7", 1);
        assert_eq!(identify(&replaced), ("198.51.100.7".to_owned(), ClientOrigin::Line));
        let own = r#"{"time":"2026-01-02T03:04:05.5Z","client":"192.0.2.7","method":"GET","path":"/"}"#;
        assert_eq!(identify(own).1, ClientOrigin::Line, "the gateway has determined the client");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_line(&bytes, true);
        }

        #[test]
        fn a_damaged_line_is_read_or_refused(at in 0usize..90, byte in any::<u8>(), cut in 0usize..100) {
            let mut line = COMBINED.as_bytes().to_vec();
            let at = at % line.len();
            line[at] = byte;
            line.truncate(cut);
            let _ = parse_line(&line, true);
        }
    }
}
