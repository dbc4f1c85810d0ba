//! JSON lines of Caddy, Traefik and nginx. Called by `line`; the input may be any bytes.
//!
//! nginx does not define a JSON format. A `log_format` with `escape=json` is read if its fields are named after the
//! variables of nginx, or have other common names.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::proxy::head::identity::parse_address;
use crate::replay::input::common::{parse_request_line, parse_time, read_status, round_millis};
use crate::replay::input::entry::{
    AccessLogFormat, LoggedForwarding, LoggedHeaders, ReplayEntry, canonical_host, find_other_address, list_addresses,
    parse_request,
};

/// Fields that never name the client.
const OF_SERVERS: &[&str] = &[
    "host",
    "http_host",
    "server_name",
    "server_addr",
    "upstream_addr",
    "upstream",
    "realip_remote_addr",
    "proxy_protocol_server_addr",
    "ServiceAddr",
    "RequestAddr",
    "RequestHost",
    "request_Host",
];
/// Headers whose values Caddy replaces by `REDACTED`.
const REDACTED: &[&str] = &["authorization", "cookie", "proxy-authorization", "set-cookie"];

/// Parses a line of another program in JSON.
pub fn parse_json(line: &[u8], wanted: bool) -> Result<ReplayEntry, &'static str> {
    const OTHER: &str = "not JSON of an access log of Sluicegate, Caddy, Traefik or nginx (with escape=json)";
    let fields: Map<String, Value> = serde_json::from_slice(line).map_err(|_| OTHER)?;
    const MESSAGE: &str = "a message of Caddy, not a request";
    match fields.get("request") {
        // A failed request has such a line beside that of its access log.
        Some(Value::Object(_)) if is_caddy_error(&fields) => Err(MESSAGE),
        Some(Value::Object(request)) => parse_caddy(&fields, request, wanted),
        _ if fields.contains_key("RequestMethod") => parse_traefik(&fields, wanted),
        _ if fields.contains_key("logger") && fields.contains_key("msg") => Err(MESSAGE),
        _ => parse_nginx(&fields, wanted),
    }
}

/// Returns true for a line of Caddy's error log about a request.
fn is_caddy_error(fields: &Map<String, Value>) -> bool {
    let logger = text(fields, &["logger"]).unwrap_or("");
    logger == "http.log.error" || logger.starts_with("http.log.error.") || fields.contains_key("err_id")
}

/// Parses a line of Caddy, which it writes at the end of a request.
fn parse_caddy(
    fields: &Map<String, Value>,
    request: &Map<String, Value>,
    wanted: bool,
) -> Result<ReplayEntry, &'static str> {
    let peer = text(request, &["remote_ip"]).and_then(|ip| ip.parse::<IpAddr>().ok());
    // Caddy 2.6 and older log no `client_ip`.
    let named = text(request, &["client_ip"]).and_then(|ip| ip.parse::<IpAddr>().ok());
    let client = named.or(peer).ok_or("no `remote_ip` in `request`")?;
    let end_ms = fields.get("ts").and_then(read_time).ok_or("`ts` is not a time")?;
    let headers = request.get("headers").and_then(Value::as_object);
    let lists = headers.into_iter().flatten().filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"));
    let values = lists.flat_map(|(_, values)| values.as_array().into_iter().flatten());
    let chain: Vec<&str> = values.filter_map(Value::as_str).collect();
    let mut kept = HeaderMap::new();
    for (name, values) in headers.into_iter().flatten().filter(|_| wanted) {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        for value in values.as_array().into_iter().flatten().filter_map(Value::as_str) {
            kept.extend(HeaderValue::from_bytes(value.as_bytes()).ok().map(|value| (name.clone(), value)));
        }
    }
    let (method, uri) = (text(request, &["method"]), text(request, &["uri"]));
    let mut request_line = method.zip(uri).and_then(|(method, uri)| parse_request(method.as_bytes(), uri, kept));
    if let Some(request_line) = &mut request_line {
        request_line.host =
            text(request, &["host"]).and_then(|host| canonical_host(host.as_bytes())).or(request_line.host.take());
    }
    let mut entry = ReplayEntry::new(client, end_ms, request_line, AccessLogFormat::Caddy);
    entry.coarse = false;
    for (name, values) in headers.into_iter().flatten() {
        let values: Vec<&str> = values.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        add_address_header(&mut entry, name, &values.join(", "));
    }
    entry.forwarded = match headers {
        _ if named.is_some() && named != peer => LoggedForwarding::Applied,
        Some(_) => LoggedForwarding::from_chain(&chain.join(", ")),
        None => LoggedForwarding::NotLogged,
    };
    entry.status = number(fields, &["status"]).and_then(read_status);
    entry.user = text(fields, &["user_id"]).filter(|user| !user.is_empty()).map(str::to_owned);
    entry.end_after(number(fields, &["duration"]).and_then(|seconds| round_millis(seconds * 1000.0)));
    entry.headers = match headers {
        Some(_) => LoggedHeaders::AllExcept(REDACTED),
        None => LoggedHeaders::Listed(Vec::new()),
    };
    Ok(entry)
}

/// Parses a line of Traefik.
fn parse_traefik(fields: &Map<String, Value>, wanted: bool) -> Result<ReplayEntry, &'static str> {
    // `ClientHost` is the `X-Forwarded-For` of the request, or else the address of the connection.
    let host = text(fields, &["ClientHost"]).unwrap_or("");
    let peer = text(fields, &["ClientAddr"]).and_then(parse_address);
    let client = peer.or_else(|| parse_address(host)).ok_or("no `ClientAddr` with an address")?;
    let start = text(fields, &["StartUTC", "StartLocal", "time"]).and_then(read_text_time);
    let start_ms = start.ok_or("no `StartUTC`")?;
    let (listed, headers) = collect_headers(fields, "request_", wanted);
    let (method, path) = (text(fields, &["RequestMethod"]), text(fields, &["RequestPath"]));
    let mut request_line = method.zip(path).and_then(|(method, path)| parse_request(method.as_bytes(), path, headers));
    if let Some(request_line) = &mut request_line {
        let name = text(fields, &["RequestHost", "RequestAddr"]);
        request_line.host = name.and_then(|name| canonical_host(name.as_bytes())).or(request_line.host.take());
    }
    // Traefik logs nanoseconds.
    let duration_ms = number(fields, &["Duration"]).and_then(|nanos| round_millis(nanos / 1e6));
    let mut entry =
        ReplayEntry::new(client, start_ms + duration_ms.unwrap_or(0), request_line, AccessLogFormat::Traefik);
    entry.coarse = !fields.contains_key("StartUTC") && !fields.contains_key("StartLocal");
    read_addresses(&mut entry, fields, "request_", &["ClientAddr", "ClientHost"]);
    // Traefik has appended the peer to the chain. Otherwise an entry of the peer would mean that the client was taken
    // from the chain already.
    entry.forwarded = match peer {
        Some(_) => {
            let names_other = |part: &&str| parse_address(part.trim()) != peer;
            LoggedForwarding::from_chain(&host.split(',').filter(names_other).collect::<Vec<_>>().join(","))
        }
        None => LoggedForwarding::NotLogged,
    };
    entry.status = number(fields, &["DownstreamStatus"]).and_then(read_status);
    entry.user = text(fields, &["ClientUsername"]).filter(|user| !matches!(*user, "-" | "")).map(str::to_owned);
    entry.end_after(duration_ms);
    entry.headers = LoggedHeaders::Listed(listed);
    Ok(entry)
}

/// Parses a line of a `log_format` of nginx with `escape=json`.
fn parse_nginx(fields: &Map<String, Value>, wanted: bool) -> Result<ReplayEntry, &'static str> {
    let client = text(fields, &["remote_addr", "client", "client_ip", "remote_ip", "ip"]);
    let client = client.and_then(|client| client.parse().ok()).ok_or("no `remote_addr` with an address")?;
    // The finest time first.
    let msec = fields.get("msec").and_then(read_time);
    let other = ["time_iso8601", "time_local", "time", "timestamp", "@timestamp", "ts", "date"];
    let other = other.iter().find_map(|name| fields.get(*name).and_then(read_time));
    let end_ms = msec.or(other).ok_or("no `time_iso8601`, `time_local` or `msec` with a time")?;
    let (listed, kept) = collect_headers(fields, "http_", wanted);
    let line = text(fields, &["request"]);
    let method = text(fields, &["request_method", "method"]);
    let target = text(fields, &["request_uri", "uri", "path", "url"]);
    if line.is_none() && (method.is_none() || target.is_none()) {
        return Err("no `request`, and no `request_method` with `request_uri`");
    }
    let mut request_line = match (method, target) {
        (Some(method), Some(target)) => parse_request(method.as_bytes(), target, kept),
        _ => line.and_then(|line| parse_request_line(line.as_bytes(), kept)),
    };
    if let Some(request_line) = &mut request_line {
        let query = text(fields, &["args", "query_string"]).filter(|query| !query.is_empty());
        request_line.query = request_line.query.take().or_else(|| query.map(str::to_owned));
        let name = text(fields, &["http_host", "host", "server_name"]);
        request_line.host = name.and_then(|name| canonical_host(name.as_bytes())).or(request_line.host.take());
    }
    let mut entry = ReplayEntry::new(client, end_ms, request_line, AccessLogFormat::NginxJson);
    entry.coarse = end_ms % 1000 == 0 && msec.is_none();
    read_addresses(&mut entry, fields, "http_", &["remote_addr", "http_x_forwarded_for", "x_forwarded_for"]);
    entry.forwarded = match text(fields, &["http_x_forwarded_for", "x_forwarded_for"]) {
        Some(chain) => LoggedForwarding::from_chain(chain),
        None => LoggedForwarding::NotLogged,
    };
    entry.status = number(fields, &["status"]).and_then(read_status);
    entry.user = text(fields, &["remote_user"]).filter(|user| !matches!(*user, "-" | "")).map(str::to_owned);
    let seconds = number(fields, &["request_time"]);
    entry.end_after(seconds.and_then(|seconds| round_millis(seconds * 1000.0)));
    entry.headers = LoggedHeaders::Listed(listed);
    Ok(entry)
}

/// Reads the headers of a line that may name the client, and an address in a field that is not `known`. The fields of
/// headers start with `prefix`.
fn read_addresses(entry: &mut ReplayEntry, fields: &Map<String, Value>, prefix: &str, known: &[&str]) {
    for (field, value) in fields {
        let Some(value) = value.as_str().filter(|_| !OF_SERVERS.contains(&field.as_str())) else { continue };
        if known.contains(&field.as_str()) {
            continue;
        }
        if let Some(name) = field.strip_prefix(prefix) {
            add_address_header(entry, &name.replace('_', "-"), value);
        }
        // A text, such as a request line, may contain any address.
        if entry.other_address.is_none() && is_list(value) {
            entry.other_address = find_other_address(value.as_bytes(), entry.client);
        }
    }
}

/// Adds a header that may name the client, unless it has other text. Programs write `-` or nothing for one that the
/// request does not have.
fn add_address_header(entry: &mut ReplayEntry, name: &str, value: &str) {
    let is_absent = matches!(value, "" | "-");
    if name.eq_ignore_ascii_case("x-forwarded-for") || !is_absent && !is_list(value) && !is_forwarded(name) {
        return;
    }
    let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { return };
    let value = (!is_absent).then(|| HeaderValue::from_bytes(value.as_bytes()).ok()).flatten();
    if is_absent || value.is_some() {
        entry.address_headers.push((name, value));
    }
}

/// Returns whether a text is an address, or a list of which the last element is one.
fn is_list(text: &str) -> bool {
    list_addresses(text.as_bytes()).next().flatten().is_some()
}

fn is_forwarded(name: &str) -> bool {
    name.eq_ignore_ascii_case("forwarded")
}

/// Collects the headers whose fields start with `prefix`: the names that the line has, and the values.
fn collect_headers(fields: &Map<String, Value>, prefix: &str, wanted: bool) -> (Vec<HeaderName>, HeaderMap) {
    let (mut listed, mut headers) = (Vec::new(), HeaderMap::new());
    let aliases = [("user_agent", "user-agent"), ("referer", "referer"), ("referrer", "referer")];
    for (field, value) in fields.iter().filter(|_| wanted) {
        let alias = aliases.iter().find(|(alias, _)| field == alias).map(|(_, name)| *name);
        let Some(name) = field.strip_prefix(prefix).or(alias) else { continue };
        let name = name.replace('_', "-").to_ascii_lowercase();
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        // Programs write `-` or nothing for a header that the request does not have.
        let value = value.as_str().filter(|value| !matches!(*value, "" | "-"));
        headers.extend(
            value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()).map(|at| (name.clone(), at)),
        );
        listed.push(name);
    }
    (listed, headers)
}

/// Returns the text of the first of some fields that the line has.
fn text<'f>(fields: &'f Map<String, Value>, names: &[&str]) -> Option<&'f str> {
    names.iter().find_map(|name| fields.get(*name)?.as_str())
}

/// Returns the number of the first of some fields, which may be written as text.
fn number(fields: &Map<String, Value>, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| match fields.get(*name)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    })
}

/// Reads a time: seconds, milliseconds or nanoseconds since 1970, or a text.
fn read_time(value: &Value) -> Option<i64> {
    let of_number = |number: f64| match number {
        seconds if seconds < 1e11 => seconds * 1000.0,
        millis if millis < 1e14 => millis,
        nanos => nanos / 1e6,
    };
    match value {
        Value::Number(number) => number.as_f64().map(of_number).and_then(round_time),
        Value::String(text) => match text.parse::<f64>() {
            Ok(number) => round_time(of_number(number)),
            Err(_) => read_text_time(text),
        },
        _ => None,
    }
}

/// Rounds ms since 1970, up to the year 5138.
#[expect(clippy::cast_possible_truncation, reason = "compared before")]
fn round_time(ms: f64) -> Option<i64> {
    (0.0..1e14).contains(&ms).then(|| ms.round() as i64)
}

/// Reads a time of ISO 8601 or of the common format; returns ms since 1970.
fn read_text_time(text: &str) -> Option<i64> {
    let iso = || text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond);
    // Caddy's `iso8601` has no colon in the offset.
    let compact = || jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%.f%z", text).ok()?.to_timestamp().ok();
    iso().or_else(|| compact().map(jiff::Timestamp::as_millisecond)).or_else(|| parse_time(text.as_bytes()))
}
