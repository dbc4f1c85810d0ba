//! A request as an access log describes it, independent of the log's format. Created by `line` and `common`.

use std::net::IpAddr;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::canonical;
use crate::config::client_address::{AddressHeader, ClientAddressRules};
use crate::limiting::key::shown_key::ShownPart;
use crate::net::{IpSet, is_private};
use crate::proxy::head::identity;

#[derive(Debug, PartialEq)]
pub struct ReplayEntry {
    /// Time of the line.
    pub logged_ms: i64,
    /// The time has a resolution of whole seconds.
    pub coarse: bool,
    /// When limits are evaluated: the end minus the duration, or the logged time.
    pub start_ms: i64,
    pub duration_ms: Option<i64>,
    /// Status of the response.
    pub status: Option<u16>,
    /// A limit refused the request when it was logged.
    pub limited: bool,
    /// The address in the line, and after [`ReplayEntry::identify_client`] the client.
    pub client: IpAddr,
    pub forwarded: LoggedForwarding,
    /// Other headers in which proxies name clients: the value, or `None` if the request did not have the header.
    pub address_headers: Vec<(HeaderName, Option<HeaderValue>)>,
    /// An address in a field that is not known, if it is not the one at the start of the line.
    pub other_address: Option<IpAddr>,
    pub client_origin: ClientOrigin,
    /// Why the client may be a proxy; set by [`ReplayEntry::identify_client`].
    pub proxy_sign: Option<ProxySign>,
    /// Identity that the server verified; `None` if there was none or the log does not have it.
    pub user: Option<String>,
    /// `None` if the client sent something other than a request.
    pub request: Option<Request>,
    /// Parts of the keys that the limits used when the request was logged. Hashes stand for values.
    pub key_parts: Vec<ShownPart>,
    /// Which headers of requests the log has.
    pub headers: LoggedHeaders,
    pub format: AccessLogFormat,
}

/// The headers that a line would have if the request had them.
#[derive(Debug, PartialEq)]
pub enum LoggedHeaders {
    Listed(Vec<HeaderName>),
    /// All but these, whose values are hidden.
    AllExcept(&'static [&'static str]),
}

impl LoggedHeaders {
    /// Returns whether the log has this header.
    pub fn has(&self, name: &HeaderName) -> bool {
        match self {
            LoggedHeaders::Listed(names) => names.contains(name),
            LoggedHeaders::AllExcept(hidden) => !hidden.contains(&name.as_str()),
        }
    }

    /// Returns the headers that the combined format logs.
    pub fn agents() -> LoggedHeaders {
        LoggedHeaders::Listed(vec![USER_AGENT, REFERER])
    }
}

/// The part of a line about the proxies before the server that wrote it.
#[derive(Debug, Default, PartialEq)]
pub enum LoggedForwarding {
    /// Nothing.
    #[default]
    NotLogged,
    /// The gateway that wrote the line has determined the client.
    Applied,
    /// The request had no `X-Forwarded-For`.
    Absent,
    /// The request had this `X-Forwarded-For`.
    Chain(HeaderValue),
}

/// The origin of the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrigin {
    /// The line starts with it.
    #[default]
    Line,
    /// The line starts with the address of a trusted proxy, and has the header of the request that names the client.
    Forwarded,
    /// The line starts with the address of a trusted proxy, and does not name the client.
    Unknown,
    /// The line starts with an address that `trusted_proxies` does not list, but it names another client.
    Untrusted,
}

/// Why the client of a line may be a proxy, with many clients behind it. The first that applies to a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxySign {
    /// The request names another client, and `trusted_proxies` does not list this one.
    NamesClient,
    /// `trusted_proxies` lists it, and the request names no other client.
    Trusted,
    /// It has a private address, which no header names.
    Private,
    /// Our own log has a loopback address: of a proxy on this machine, or of somebody who tries the gateway.
    ThisMachine,
}

/// A header that may name the client, as a line of the log has it.
enum LoggedHeader<'e> {
    NotLogged,
    /// The request did not have it.
    Absent,
    Value(&'e HeaderValue),
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

#[derive(Debug, PartialEq)]
pub struct Request {
    pub method: Method,
    /// Canonical host; `None` if the log has none.
    pub host: Option<String>,
    /// Path as logged.
    pub path: String,
    pub query: Option<String>,
    /// The few headers that logs contain.
    pub headers: HeaderMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    Common,
    Combined,
    /// Sluicegate's own.
    Json,
    Caddy,
    Traefik,
    NginxJson,
    HaProxy,
    ProxyManager,
    LoadBalancer,
    CloudFront,
}

impl LoggedForwarding {
    /// Reads the `X-Forwarded-For` of a log that has `-` or nothing if the request had none. A text that does not end
    /// with an address is something else.
    pub fn from_chain(text: &str) -> LoggedForwarding {
        if matches!(text, "" | "-") {
            return LoggedForwarding::Absent;
        }
        let is_chain = list_addresses(text.as_bytes()).next().flatten().is_some();
        match HeaderValue::from_bytes(text.as_bytes()) {
            Ok(chain) if is_chain => LoggedForwarding::Chain(chain),
            _ => LoggedForwarding::NotLogged,
        }
    }
}

impl ReplayEntry {
    /// Creates an entry of a line whose other facts are not known.
    pub fn new(client: IpAddr, logged_ms: i64, request: Option<Request>, format: AccessLogFormat) -> ReplayEntry {
        ReplayEntry {
            logged_ms,
            coarse: true,
            start_ms: logged_ms,
            duration_ms: None,
            status: None,
            limited: false,
            client,
            forwarded: LoggedForwarding::NotLogged,
            address_headers: Vec::new(),
            other_address: None,
            client_origin: ClientOrigin::Line,
            proxy_sign: None,
            user: None,
            request,
            key_parts: Vec::new(),
            headers: LoggedHeaders::Listed(Vec::new()),
            format,
        }
    }

    /// Sets the duration of a request whose line was written at its end.
    pub fn end_after(&mut self, duration_ms: Option<i64>) {
        self.duration_ms = duration_ms;
        self.start_ms = self.logged_ms.saturating_sub(duration_ms.unwrap_or(0));
    }

    /// Determines the client as the gateway would, if it stood where the server stood that wrote the line.
    pub fn identify_client(&mut self, rules: &ClientAddressRules) {
        self.client = rules.nat64.client_of(self.client);
        self.client_origin = if self.forwarded == LoggedForwarding::Applied {
            ClientOrigin::Line
        } else if !rules.trusted.contains(self.client) {
            if self.names_another(rules) { ClientOrigin::Untrusted } else { ClientOrigin::Line }
        } else {
            match self.find_naming_header(rules) {
                None => ClientOrigin::Unknown,
                Some(headers) if headers.is_empty() => ClientOrigin::Line,
                Some(headers) => {
                    self.client = identity::identify(self.client, &headers, rules).ip;
                    ClientOrigin::Forwarded
                }
            }
        };
        self.proxy_sign = self.find_proxy_sign(rules);
    }

    /// Finds the header in which the gateway would look for the client: the first of the rules that the request has, or
    /// none. Returns `None` if the log does not tell.
    fn find_naming_header(&self, rules: &ClientAddressRules) -> Option<HeaderMap> {
        let mut is_absent = false;
        for header in rules.headers.iter() {
            match self.read_header(header.name()) {
                LoggedHeader::Value(value) => {
                    return Some(HeaderMap::from_iter([(header.name().clone(), value.clone())]));
                }
                LoggedHeader::Absent => is_absent = true,
                // Hardly any log contains `Forwarded`, and hardly any proxy sends it instead of the header before it in
                // the list.
                LoggedHeader::NotLogged if is_absent && *header == AddressHeader::Forwarded => {}
                LoggedHeader::NotLogged => return None,
            }
        }
        Some(HeaderMap::new())
    }

    fn read_header(&self, name: &HeaderName) -> LoggedHeader<'_> {
        if let Some((_, value)) = self.address_headers.iter().find(|(known, _)| known == name) {
            return value.as_ref().map_or(LoggedHeader::Absent, LoggedHeader::Value);
        }
        let is_chain = *name == X_FORWARDED_FOR;
        match (&self.forwarded, &self.headers) {
            (LoggedForwarding::Chain(chain), _) if is_chain => LoggedHeader::Value(chain),
            (LoggedForwarding::Absent, _) if is_chain => LoggedHeader::Absent,
            (_, LoggedHeaders::AllExcept(hidden)) if !is_chain && !hidden.contains(&name.as_str()) => {
                LoggedHeader::Absent
            }
            _ => LoggedHeader::NotLogged,
        }
    }

    /// Returns whether a header of the request names another client than the line. A server that has taken the client
    /// from a header already logs an address that the header names.
    fn names_another(&self, rules: &ClientAddressRules) -> bool {
        let is_other = |name: &HeaderName| match self.read_header(name) {
            LoggedHeader::Value(value) => !names_address(value, self.client),
            LoggedHeader::Absent | LoggedHeader::NotLogged => false,
        };
        is_other(&X_FORWARDED_FOR) || rules.headers.iter().any(|header| is_other(header.name()))
    }

    fn find_proxy_sign(&self, rules: &ClientAddressRules) -> Option<ProxySign> {
        let is_own = self.format == AccessLogFormat::Json;
        match self.client_origin {
            ClientOrigin::Unknown => None,
            ClientOrigin::Untrusted => Some(ProxySign::NamesClient),
            _ if rules.trusted.contains(self.client) => Some(ProxySign::Trusted),
            _ if !is_private(self.client) => None,
            ClientOrigin::Forwarded => self.is_hop(rules).then_some(ProxySign::NamesClient),
            ClientOrigin::Line if is_own && self.client.is_loopback() => Some(ProxySign::ThisMachine),
            // A balancer or a container may pass connections on without a header. Only a server that has taken the
            // client from a header shows that it is neither.
            ClientOrigin::Line => {
                let is_named = match self.forwarded {
                    LoggedForwarding::Chain(_) => true,
                    LoggedForwarding::Applied => !is_own,
                    LoggedForwarding::NotLogged | LoggedForwarding::Absent => false,
                };
                (!is_named).then_some(ProxySign::Private)
            }
        }
    }

    /// Returns whether the `X-Forwarded-For` that names the client also names one before it.
    fn is_hop(&self, rules: &ClientAddressRules) -> bool {
        let LoggedForwarding::Chain(chain) = &self.forwarded else { return false };
        let first = list_addresses(chain.as_bytes()).last();
        rules.headers.contains(&AddressHeader::XForwardedFor) && first != Some(Some(self.client))
    }

    /// Returns whether the client is in a list of networks; an unknown client is in none.
    pub fn is_client_in(&self, networks: &IpSet) -> bool {
        self.client_origin != ClientOrigin::Unknown && networks.contains(self.client)
    }

    /// Returns whether the request was shorter than the resolution of its time stamp, so that the log does not show
    /// what ran concurrently.
    pub fn is_blurred(&self) -> bool {
        self.coarse && self.duration_ms.is_some_and(|duration_ms| duration_ms < 1000)
    }
}

impl AccessLogFormat {
    /// Returns what its lines leave open, which the report says.
    pub fn caveat(self) -> Option<&'static str> {
        match self {
            AccessLogFormat::HaProxy => Some("its times have no zone, and are read as UTC; it has no headers"),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            AccessLogFormat::Common => "common",
            AccessLogFormat::Combined => "combined",
            AccessLogFormat::Json => "json",
            AccessLogFormat::Caddy => "caddy",
            AccessLogFormat::Traefik => "traefik",
            AccessLogFormat::NginxJson => "nginx json",
            AccessLogFormat::HaProxy => "haproxy",
            AccessLogFormat::ProxyManager => "nginx proxy manager",
            AccessLogFormat::LoadBalancer => "aws load balancer",
            AccessLogFormat::CloudFront => "cloudfront",
        }
    }
}

/// Builds a request; `target` may be absolute.
pub fn parse_request(method: &[u8], target: &str, headers: HeaderMap) -> Option<Request> {
    let method = Method::from_bytes(method).ok()?;
    let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let (named, target) = match absolute {
        None => (None, target),
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            (canonical_host(authority.as_bytes()), if path.is_empty() { "/" } else { path })
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

/// Returns the canonical host of `host[:port]`.
pub fn canonical_host(text: &[u8]) -> Option<String> {
    let read = canonical::authority::parse_authority(text)?;
    let mut host = match read.rewritten {
        Some(text) => text,
        None => str::from_utf8(text).ok()?.to_owned(),
    };
    host.truncate(read.host_len);
    Some(host).filter(|host| !host.is_empty())
}

/// Returns whether a list of addresses, or a single one, contains this address.
fn names_address(chain: &HeaderValue, client: IpAddr) -> bool {
    list_addresses(chain.as_bytes()).any(|address| address == Some(client))
}

/// Returns the elements of an `X-Forwarded-For` from the last to the first; `None` for one that is not an address.
pub fn list_addresses(chain: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    let read = |text: &[u8]| str::from_utf8(text.trim_ascii()).ok().and_then(identity::parse_address);
    chain.rsplit(|byte| *byte == b',').map(move |text| read(text).map(|ip| ip.to_canonical()))
}

/// Returns an address in a text that is not `client`: the last one, as of the nearest proxy. One with a port is that of
/// a server.
pub fn find_other_address(text: &[u8], client: IpAddr) -> Option<IpAddr> {
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || b"\"',;=|{}[]".contains(byte);
    let addresses = text.rsplit(is_between).filter_map(|word| str::from_utf8(word).ok()?.parse::<IpAddr>().ok());
    addresses.map(|ip| ip.to_canonical()).find(|ip| *ip != client && !ip.is_unspecified())
}
