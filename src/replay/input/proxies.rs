//! Lines of HAProxy, Nginx Proxy Manager, AWS load balancers and CloudFront. Called by `line`; the input may be any
//! bytes.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::proxy::head::identity::parse_address;
use crate::replay::input::common::{
    parse_request_line, parse_time, read_status, round_millis, split_field, take_quoted, unescape_field,
};
use crate::replay::input::entry::{
    AccessLogFormat, LoggedForwarding, LoggedHeaders, ReplayEntry, canonical_host, find_other_address, parse_request,
};
use crate::text::hex_byte;

/// Longer durations are ignored.
const DURATION_MAX_MS: i64 = 1_000_000_000_000;

/// Parses `[PREFIX ]CLIENT:PORT [TIME] FRONTEND BACKEND/SERVER TIMERS STATUS BYTES ... "REQUEST"`, HAProxy's `httplog`.
/// Returns `None` for other lines.
pub fn parse_haproxy(line: &[u8]) -> Option<Result<ReplayEntry, &'static str>> {
    let text = str::from_utf8(line).ok()?;
    // A prefix of syslog may have brackets as well: `haproxy[760]:`.
    let (before, start_ms, rest) = text.match_indices(" [").find_map(|(at, _)| {
        let (stamp, rest) = text[at + 2..].split_once(']')?;
        Some((&text[..at], parse_fine_time(stamp)?, rest))
    })?;
    let address = before.rsplit(' ').next()?;
    let mut fields = rest.split_ascii_whitespace();
    let (_frontend, server, timers, status) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    if !server.contains('/') || timers.split('/').count() != 5 {
        return Some(Err("a line of HAProxy that is not of the format `httplog`"));
    }
    let Some(client) = address.rsplit_once(':').and_then(|(ip, _)| parse_address(ip)) else {
        return Some(Err("the client of this line of HAProxy is not an address"));
    };
    // The request is the last field in quotes. HAProxy encodes quotes within it.
    let quoted = rest.rfind('"').and_then(|end| Some(&rest[rest[..end].rfind(" \"")? + 2..end]));
    let request = parse_request_line(&decode_hex(quoted.unwrap_or("").as_bytes(), b'#'), HeaderMap::new());
    // With `option logasap`, the time does not include the body.
    let total_ms = timers.rsplit('/').next().and_then(|total| total.parse::<i64>().ok()).filter(|ms| *ms >= 0);
    let total_ms = total_ms.filter(|ms| *ms < DURATION_MAX_MS && !timers.contains('+'));
    let mut entry =
        ReplayEntry::new(client, start_ms.saturating_add(total_ms.unwrap_or(0)), request, AccessLogFormat::HaProxy);
    entry.coarse = false;
    // Captured headers stand before the request.
    entry.other_address = find_other_address(rest.split('"').next().unwrap_or_default().as_bytes(), client);
    entry.status = status.parse().ok().and_then(read_status);
    entry.end_after(total_ms);
    Some(Ok(entry))
}

/// Parses `10/Oct/2000:13:55:36.123`, which has no zone; returns ms since 1970 in UTC.
fn parse_fine_time(stamp: &str) -> Option<i64> {
    let (seconds, millis) = stamp.split_once('.')?;
    let is_millis = millis.len() == 3 && millis.bytes().all(|byte| byte.is_ascii_digit());
    let millis: i64 = millis.parse().ok().filter(|_| is_millis)?;
    Some(parse_time(format!("{seconds} +0000").as_bytes())? + millis)
}

/// Parses `[TIME] ... STATUS - METHOD SCHEME HOST "URI" [Client IP] ... "USER AGENT" "REFERER"` of Nginx Proxy Manager.
pub fn parse_proxy_manager(line: &[u8], wanted: bool) -> Result<ReplayEntry, &'static str> {
    const OTHER: &str = "starts with a bracket, but is not of the format of Nginx Proxy Manager";
    let (_, rest) = split_field(line, b'[').ok_or(OTHER)?;
    let (stamp, rest) = split_field(rest, b']').ok_or(OTHER)?;
    let end_ms = parse_time(stamp).ok_or(OTHER)?;
    let (names, _) = split_field(rest, b'"').ok_or(OTHER)?;
    let names: Vec<&str> = str::from_utf8(names).map_err(|_| OTHER)?.split_ascii_whitespace().collect();
    let [.., status, "-", method, _scheme, host] = names.as_slice() else { return Err(OTHER) };
    let (uri, rest) = take_quoted(rest).ok_or(OTHER)?;
    let client = rest.strip_prefix(b" [Client ").and_then(|rest| split_field(rest, b']')).ok_or(OTHER)?.0;
    let client: IpAddr = str::from_utf8(client).ok().and_then(|ip| ip.parse().ok()).ok_or(OTHER)?;
    let agents = take_quoted(rest).and_then(|(agent, rest)| Some((agent, take_quoted(rest)?.0)));
    let (agent, referer) = agents.ok_or(OTHER)?;
    let headers = read_agents(&[(USER_AGENT, unescape_field(agent)), (REFERER, unescape_field(referer))], wanted);
    let uri = unescape_field(uri);
    let mut request = parse_request(method.as_bytes(), &String::from_utf8_lossy(&uri), headers);
    if let Some(request) = &mut request {
        request.host = canonical_host(host.as_bytes()).or(request.host.take());
    }
    let mut entry = ReplayEntry::new(client, end_ms, request, AccessLogFormat::ProxyManager);
    entry.status = status.parse().ok().and_then(read_status);
    entry.headers = LoggedHeaders::Listed(vec![USER_AGENT, REFERER]);
    Ok(entry)
}

/// Returns whether a line starts like those of an AWS Application Load Balancer.
pub fn is_load_balancer(line: &[u8]) -> bool {
    const KINDS: [&[u8]; 6] = [b"http ", b"https ", b"h2 ", b"grpcs ", b"ws ", b"wss "];
    KINDS.iter().any(|kind| line.strip_prefix(*kind).is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit)))
}

/// Parses `TYPE TIME ELB CLIENT:PORT TARGET TIMES STATUS STATUS RECEIVED SENT "REQUEST" "USER AGENT" ...` of an AWS
/// Application Load Balancer, which writes it at the end of a request.
pub fn parse_load_balancer(line: &[u8], wanted: bool) -> Result<ReplayEntry, &'static str> {
    const OTHER: &str = "not of the format of an AWS Application Load Balancer";
    let (names, _) = split_field(line, b'"').ok_or(OTHER)?;
    let names: Vec<&str> = str::from_utf8(names).map_err(|_| OTHER)?.split_ascii_whitespace().collect();
    let [_, time, _, client, _, first, second, third, status, _, _, _] = names.as_slice() else { return Err(OTHER) };
    let end_ms = time.parse::<jiff::Timestamp>().map_err(|_| OTHER)?.as_millisecond();
    let client = client.rsplit_once(':').and_then(|(ip, _)| parse_address(ip)).ok_or("no address of the client")?;
    let (request, rest) = take_quoted(line).ok_or(OTHER)?;
    let agent = take_quoted(rest).map(|(agent, _)| unescape_field(agent)).unwrap_or_default();
    let headers = read_agents(&[(USER_AGENT, agent)], wanted);
    let request = parse_request_line(&unescape_field(request), headers);
    let mut entry = ReplayEntry::new(client, end_ms, request, AccessLogFormat::LoadBalancer);
    entry.coarse = false;
    entry.status = status.parse().ok().and_then(read_status);
    // A time of -1 stands for a connection that ended before.
    let times: Option<Vec<f64>> =
        [first, second, third].iter().map(|time| time.parse().ok().filter(|time| *time >= 0.0)).collect();
    let sum_ms = || times.and_then(|times| round_millis(times.iter().sum::<f64>() * 1000.0));
    let created_ms = read_creation_time(rest).and_then(|created| end_ms.checked_sub(created)).filter(|ms| *ms >= 0);
    entry.end_after(created_ms.or_else(sum_ms));
    entry.headers = LoggedHeaders::Listed(vec![USER_AGENT]);
    Ok(entry)
}

/// Reads `request_creation_time` in `"USER AGENT" CIPHER PROTOCOL GROUP "TRACE" "DOMAIN" "CERTIFICATE" PRIORITY CREATED ...`,
/// in ms since 1970. Returns `None` for lines of older logs, which end earlier.
fn read_creation_time(fields: &[u8]) -> Option<i64> {
    let mut rest = fields;
    for _ in 0..4 {
        (_, rest) = take_quoted(rest)?;
    }
    let created = str::from_utf8(rest).ok()?.split_ascii_whitespace().nth(1)?;
    Some(created.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

/// Returns whether a line starts like those of CloudFront: a date, a tab and a time.
pub fn is_cloudfront(line: &[u8]) -> bool {
    let is_date = |date: &[u8]| date.len() == 10 && date[4] == b'-' && date[7] == b'-';
    split_field(line, b'\t').is_some_and(|(date, rest)| is_date(date) && rest.get(8) == Some(&b'\t'))
}

/// Parses a standard log of CloudFront: fields with tabs between them, in the order of its documentation.
pub fn parse_cloudfront(line: &[u8], wanted: bool) -> Result<ReplayEntry, &'static str> {
    const OTHER: &str = "not of the format of a standard log of CloudFront, with its fields in their order";
    let text = str::from_utf8(line).map_err(|_| OTHER)?;
    let fields: Vec<&str> = text.split('\t').collect();
    let [date, time, _, _, client, method, domain, path, status, referer, agent, query, ..] = fields.as_slice() else {
        return Err(OTHER);
    };
    let end_ms = format!("{date}T{time}Z").parse::<jiff::Timestamp>().map_err(|_| OTHER)?.as_millisecond();
    let client: IpAddr = client.parse().map_err(|_| OTHER)?;
    let agents = [(USER_AGENT, decode_hex(agent.as_bytes(), b'%')), (REFERER, decode_hex(referer.as_bytes(), b'%'))];
    let headers = read_agents(&agents, wanted);
    let mut request = parse_request(method.as_bytes(), path, headers);
    if let Some(request) = &mut request {
        // The host of the viewer, and for old lines the domain of the distribution.
        let host = fields.get(15).filter(|host| **host != "-").unwrap_or(domain);
        request.host = canonical_host(host.as_bytes());
        request.query = (*query != "-").then(|| (*query).to_owned());
    }
    let mut entry = ReplayEntry::new(client, end_ms, request, AccessLogFormat::CloudFront);
    entry.status = status.parse().ok().and_then(read_status);
    entry.end_after(fields.get(18).and_then(|taken| taken.parse::<f64>().ok()).and_then(|s| round_millis(s * 1000.0)));
    entry.forwarded = match fields.get(19) {
        Some(chain) => LoggedForwarding::from_chain(&String::from_utf8_lossy(&decode_hex(chain.as_bytes(), b'%'))),
        None => LoggedForwarding::NotLogged,
    };
    entry.headers = LoggedHeaders::Listed(vec![USER_AGENT, REFERER]);
    Ok(entry)
}

/// Reads headers whose value is `-` if the request did not have them.
fn read_agents(values: &[(HeaderName, Cow<'_, [u8]>)], wanted: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in values.iter().filter(|(_, value)| wanted && !matches!(&**value, b"-" | b"")) {
        headers.extend(HeaderValue::from_bytes(value).ok().map(|value| (name.clone(), value)));
    }
    headers
}

/// Decodes `%20`, or `#20` of HAProxy. Other marks stay.
fn decode_hex(text: &[u8], mark: u8) -> Cow<'_, [u8]> {
    if !text.contains(&mark) {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        let found = match (byte, tail) {
            (own, [high, low, after @ ..]) if *own == mark => hex_byte(*high, *low).map(|byte| (byte, after)),
            _ => None,
        };
        let (byte, after) = found.unwrap_or((*byte, tail));
        decoded.push(byte);
        rest = after;
    }
    Cow::Owned(decoded)
}
