//! Config: from TOML text to [`Config`], the compiled form that a snapshot holds. Only this directory knows the file
//! format.
//!
//! Input: a file with its includes (`documents`, `source`) or the arguments of `sluicegate proxy` (`shorthand`).
//! `cases` reads the test cases of a config. `tree` parses TOML (`syntax`, `substitute`), `recorded` keeps texts in
//! memory (`texts`), `reader` checks keys and types against `schema`, `values` and `origin` parse the strings, and
//! `compile` builds the result. Output: a [`Config`], or a [`Report`] of every mistake with its place and remedy
//! (`diagnostics`, `hints`, `closest`, `unreadable`). `effective` shows what the files say together.
//!
//! To add an option, add its row to `schema`, read it in `compile` (`section.get(&ROW)`), describe it in
//! `conf/full.toml`, and add a wrong value to `tests/config/bad`. A test writes `docs/reference/options.md` and
//! `conf/schema.json` from the rows.

pub mod admin_tokens;
pub mod cases;
pub mod client_address;
mod closest;
mod compile;
mod diagnostics;
mod documents;
mod effective;
mod examples;
mod habits;
mod hints;
mod origin;
mod reader;
mod recorded;
pub mod schema;
mod shorthand;
mod source;
mod substitute;
mod syntax;
mod texts;
mod tree;
mod unreadable;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::Name;
use http::HeaderName;

use crate::config::admin_tokens::AdminToken;
use crate::config::client_address::ClientAddressRules;
pub(crate) use crate::config::closest::find_closest;
pub use crate::config::diagnostics::codes::all_codes;
pub use crate::config::diagnostics::excerpt::split_secrets;
pub use crate::config::diagnostics::report::{Place, Report};
pub use crate::config::effective::{
    EffectiveFormat, ListItem, ListedLimit, WrittenConfig, WrittenMatcher, WrittenOption, WrittenSection, default_text,
    unset_items,
};
pub use crate::config::shorthand::{ProxyArguments, proxy_text};
use crate::config::source::SourceTexts;
pub use crate::config::texts::{LoadedFile, OverlayKind, SourceLine, TextOverlay};
pub use crate::config::unreadable::{FILE_SIZE_MAX, open_file, read_rows};
pub(crate) use crate::config::values::{parse_duration, parse_rate, percent_decode};
use http::HeaderValue;

use crate::envoy::rules::RateLimitDomains;
use crate::geo::GeoDatabase;
use crate::labels::labels;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::address_set::SetFile;
use crate::limiting::limit::cost::Cost;
use crate::limiting::limit::{Limit, LimitTable};
use crate::limiting::source::jwt::TokenVerifier;
use crate::limiting::source::jwt::remote_keys::RemoteKeys;
use crate::limiting::store::settings::StoreSettings;
use crate::net::{ListenAddr, NamedSet, SocketAccess};
use crate::overload::OverloadRule;
pub use crate::route::Strictness;
use crate::route::client_facts::ClientFact;
use crate::route::cors::CorsPolicy;
use crate::route::decide::DecideTable;
use crate::route::error_pages::ErrorPages;
use crate::route::table::RouteTable;
use crate::route::{Dialect, Route};
use crate::telemetry::access_log::AccessLogSettings;
use crate::telemetry::spans::SpanSettings;
use crate::tls::{ChallengeKind, ChallengeStore, ServerTls};
use crate::upstream::{HeadBounds, Upstream};

/// Loads the config in the file at `path` and all its includes.
///
/// # Errors
/// A report of every mistake.
pub fn load_config(path: &Path) -> Result<Config, Report> {
    load_with_texts(path, TextOverlay::default())
}

/// Loads the config in the file at `path` and all its includes, with the texts of `overlay` instead of files.
///
/// # Errors
/// A report of every mistake.
pub fn load_with_texts(path: &Path, overlay: TextOverlay) -> Result<Config, Report> {
    let sources = SourceTexts::with_overlay(overlay);
    let documents = sources.parse_documents(path);
    compile::compile(&sources, &documents).ok_or_else(|| sources.into_report())
}

/// How to reach the admin listener of a running gateway.
pub struct AdminContact {
    pub listen: ListenAddr,
    pub token: Option<String>,
}

/// Parses a listen address as the config writes it.
pub fn parse_listen_addr(text: &str) -> Option<ListenAddr> {
    values::parse_listen(text).ok()
}

/// Returns where a gateway with this file has its admin listener, even if the file no longer loads, because the gateway
/// then keeps running with its last config. `None` if the file does not say.
pub fn find_admin_contact(path: &Path) -> Option<AdminContact> {
    let sources = SourceTexts::default();
    let documents = sources.parse_documents(path);
    compile::admin_contact(&sources, &documents)
}

/// Loads the config in a text that is not in a file. Relative paths start at the working directory.
///
/// # Errors
/// A report of every mistake.
pub fn load_text(name: &str, text: &str) -> Result<Config, Report> {
    let sources = SourceTexts::default();
    let documents = sources.parse_text_documents(name, text);
    compile::compile(&sources, &documents).ok_or_else(|| sources.into_report())
}

/// Config keys as pairs of section and key.
pub type Keys = BTreeSet<(&'static str, &'static str)>;

/// Returns every key that exists, and the keys that the file at `path` uses; the reference config uses all of them.
pub fn known_and_used_keys(path: &Path) -> (Keys, Keys) {
    let options = schema::ALL.iter().flat_map(|section| section.keys().map(|key| (section.name, key)));
    let sources = SourceTexts::default();
    let documents = sources.parse_documents(path);
    compile::compile(&sources, &documents);
    (options.collect(), sources.seen_keys())
}

/// A compiled config: every name is resolved and every number checked.
#[derive(Debug)]
pub struct Config {
    pub server: ServerSettings,
    pub listeners: Vec<Arc<ListenerSettings>>,
    pub admin: Admin,
    /// How certificates are ordered.
    pub acme: Option<Arc<Acme>>,
    pub store: StoreSettings,
    pub ratelimit_headers: Vec<Dialect>,
    /// How tokens are verified, if limits use claims.
    pub jwt: Option<Arc<TokenVerifier>>,
    /// Finds the countries of clients.
    pub geo: Option<Arc<GeoDatabase>>,
    /// The keys of tokens that are fetched from issuers, one for each section.
    pub token_keys: Vec<Arc<RemoteKeys>>,
    /// Request headers that only the gateway may set: those in which some route states an identity, and
    /// `x-limit-exceeded`. They are removed from all requests of clients.
    pub identity_headers: Arc<[HeaderName]>,
    /// Headers that the config reads, states or removes. Requests must not have trailers with these names.
    pub guarded_headers: Vec<HeaderName>,
    pub table: RouteTable,
    pub routes: Vec<Route>,
    /// The server or some route has `cors`.
    pub has_cors: bool,
    /// The names that other proxies may ask about.
    pub decide: DecideTable,
    /// Which limits apply to the rate limit requests of Envoy.
    pub rls: RateLimitDomains,
    /// File and line of each route, indexed like `routes`.
    pub route_lines: Vec<SourceLine>,
    /// A route, or the setting for requests without a route, is `strict`. The bytes of every connection are then
    /// inspected.
    pub is_strict_somewhere: bool,
    pub upstreams: Vec<Arc<Upstream>>,
    pub limits: Arc<LimitTable>,
    /// The named sets, by name, for the diff. Sets of very many items are left out.
    pub sets: BTreeMap<String, Arc<NamedSet>>,
    /// The files of named sets.
    pub set_files: Vec<SetFile>,
    /// The options as they are written, for the effective config and the diff.
    pub written: WrittenConfig,
    /// SHA-256 over all files read, in hex.
    pub hash: String,
    /// Paths whose change must trigger a reload: the config, its includes and their directories, files of sets and
    /// secrets.
    pub files: Vec<PathBuf>,
    /// The main file and its includes with their texts; empty if the config is not in a file.
    pub config_files: Vec<LoadedFile>,
    /// Statements that load but are probably mistakes.
    pub warnings: Option<Report>,
}

labels! {
    /// The service of a listener (`serve`). It selects the module that handles requests.
    Service:
    /// Requests that pass through the gateway, by routes.
    Http = "http",
    /// Questions of other proxies about their requests, by limits.
    Decide = "decide",
    /// Calls of Envoy over gRPC, by limits.
    Grpc = "grpc",
}

/// HTTP/3 of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http3Settings {
    /// The port to advertise to clients. `None`: the port of the listener.
    pub advertise: Option<u16>,
    /// How long clients remember it.
    pub max_age: Duration,
}

/// Settings of one listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerSettings {
    pub address: ListenAddr,
    pub service: Service,
    /// Connections start with a PROXY header.
    pub proxy_protocol: bool,
    pub tls: Option<ServerTls>,
    /// Redirect every request to HTTPS on this port.
    pub redirect_port: Option<u16>,
    /// The value of `Strict-Transport-Security` (`hsts`). Only with TLS.
    pub hsts: Option<HeaderValue>,
    /// Only with TLS, on an address with a port.
    pub http3: Option<Http3Settings>,
    /// Send buffer of the kernel per client, in bytes; 0 leaves it to the system.
    pub max_unsent: u32,
    /// The permissions of a Unix socket, which decide who may connect.
    pub access: SocketAccess,
}

impl Config {
    /// Returns the route at an index: of `[[route]]`, after them of `[decide.NAME]`, then of the domains of `[[rls]]`.
    pub fn route_at(&self, index: usize) -> &Route {
        let place = |first: usize| index.saturating_sub(first);
        let (first_decide, first_rls) = (self.routes.len(), self.routes.len() + self.decide.routes.len());
        let route = self.routes.get(index).or_else(|| self.decide.routes.get(place(first_decide)));
        route.unwrap_or_else(|| &self.rls.routes[place(first_rls)])
    }

    /// Returns all routes in the order of their indexes; see [`route_at`](Self::route_at).
    pub fn all_routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().chain(&self.decide.routes).chain(&self.rls.routes)
    }

    /// Returns the costs that lists set for a limit, with the names of their routes.
    pub fn prices_of(&self, limit: &Limit) -> impl Iterator<Item = (&str, &Cost)> {
        let lists = self.all_routes().flat_map(|route| route.limits.iter().map(|listed| (route.name.as_str(), listed)));
        let rules = self.rls.priced_limits().map(|listed| (schema::rls::TABLE.name, listed));
        let (name, own) = (limit.name.clone(), limit.cost.clone());
        let priced = lists.chain(rules).filter(move |(_, listed)| listed.name == name && listed.cost != own);
        priced.map(|(route, listed)| (route, &listed.cost))
    }

    /// Returns the cross-origin rules of the route at an index of `[[route]]`, or those of requests without a route.
    pub fn cors_policy(&self, route: Option<usize>) -> Option<&CorsPolicy> {
        match route {
            Some(index) => self.routes.get(index)?.cors.as_deref(),
            None => self.server.cors.as_deref(),
        }
    }

    /// Returns the listener at `address`, compared as written.
    pub fn listener(&self, address: &ListenAddr) -> Option<&Arc<ListenerSettings>> {
        self.listeners.iter().find(|listener| listener.address == *address)
    }

    /// Keeps the TLS session state and open ACME challenges of unchanged listeners of `earlier`, and the keys of its
    /// issuers.
    pub fn adopt_sessions(&mut self, earlier: &Config) {
        self.token_keys.iter().for_each(|keys| keys.adopt(&earlier.token_keys));
        if let (Some(acme), Some(before)) = (&self.acme, &earlier.acme) {
            acme.challenges.publish(before.challenges.published());
        }
        for listener in &mut self.listeners {
            let before = earlier.listener(&listener.address).and_then(|before| before.tls.as_ref());
            if let (Some(before), Some(tls)) = (before, &mut Arc::make_mut(listener).tls) {
                tls.keep_sessions(before);
            }
        }
    }
}

/// Section `[acme]`.
#[derive(Debug)]
pub struct Acme {
    pub settings: AcmeSettings,
    /// Open challenges of this config's listeners.
    pub challenges: Arc<ChallengeStore>,
}

/// How certificates are ordered.
#[derive(Clone, Debug, PartialEq)]
pub struct AcmeSettings {
    /// `https` URL of the ACME directory.
    pub directory: String,
    /// The kind of certificate to order, as the server calls it. `None` leaves it to the server.
    pub profile: Option<String>,
    /// `mailto` URLs of the account.
    pub contact: Vec<String>,
    /// Directory that stores the account, certificates and related state.
    pub state: PathBuf,
    /// PEM bundle of CAs trusted for the ACME server. `None` uses the system's roots.
    pub ca: Option<String>,
    /// Challenges that can be answered here, in the order in which they are tried; never empty.
    pub challenges: Vec<ChallengeKind>,
    /// How the records of `dns-01` are published; present if `challenges` has it.
    pub dns: Option<DnsPublisher>,
    /// Pause after the first failure.
    pub backoff: Duration,
}

/// How TXT records get into the DNS zone of the operator.
#[derive(Clone, Debug, PartialEq)]
pub struct DnsPublisher {
    pub method: DnsMethod,
    /// How long the record takes until all servers of the zone have it. Servers that can be asked shorten the wait.
    pub wait: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DnsMethod {
    /// A program and its first arguments; never empty.
    Program(Vec<String>),
    Update(DnsUpdate),
}

/// Dynamic updates of a zone (RFC 2136).
#[derive(Clone, Debug, PartialEq)]
pub struct DnsUpdate {
    /// `host:port` of the primary name server.
    pub server: String,
    /// `None`: the zone that the name server states.
    pub zone: Option<Name>,
    /// Name of the key that signs updates.
    pub key: Name,
    pub algorithm: KeyAlgorithm,
    pub secret: KeySecret,
}

/// The secret of a key. Debug output does not show it.
#[derive(Clone, PartialEq)]
pub struct KeySecret(pub Vec<u8>);

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("***")
    }
}

labels! {
    /// The algorithm of a key that signs updates of DNS (RFC 8945). SHA-1 and MD5 are not among them.
    KeyAlgorithm:
    HmacSha256 = "hmac-sha256",
    HmacSha384 = "hmac-sha384",
    HmacSha512 = "hmac-sha512",
}

labels! {
    /// The treatment of request headers with `_` in their names.
    UnderscoreHeaders:
    /// They are removed.
    Drop = "drop",
    /// They are forwarded, unless servers could confuse them with headers that the gateway reads or writes.
    Keep = "keep",
}

labels! {
    /// The case of header names over HTTP/1.1.
    HeaderCase:
    /// Lower case, as HTTP/2 demands.
    Lower = "lower",
    /// The case in which the client or the server wrote them.
    Keep = "keep",
}

#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// Number of worker threads, at least 1; `auto` is already resolved.
    pub workers: usize,
    pub strictness: Strictness,
    pub max_connections: usize,
    pub max_connections_per_ip: usize,
    /// Maximum number of upgraded connections, over all workers.
    pub max_tunnels: usize,
    pub max_headers: usize,
    pub max_header_bytes: usize,
    pub underscore_headers: UnderscoreHeaders,
    pub header_case: HeaderCase,
    /// True if clients may use HTTP/2.
    pub http2: bool,
    /// Maximum number of concurrent requests per HTTP/2 connection.
    pub max_streams: u32,
    /// Receive buffer of the kernel per upstream connection, in bytes; 0 leaves it to the system.
    pub max_unread: usize,
    /// Default of the routes, and the value for what no route governs.
    pub stream_timeout: Duration,
    pub min_response_rate: u64,
    /// Maximum number of requests per worker that wait for their turn at a limit.
    pub max_delayed: usize,
    /// Maximum number of bytes for the encoders of streaming compressed responses, over all workers.
    pub max_compress_memory: u64,
    /// Time from accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Time from the first byte to the end of the request head.
    pub header_timeout: Duration,
    pub keepalive_timeout: Duration,
    /// How long a request continues after its client shut down its sending side.
    pub half_close_timeout: Duration,
    /// Socket at which a new process requests the listening sockets.
    pub handover: Option<PathBuf>,
    /// Readiness fails for this long before the listeners close.
    pub shutdown_delay: Duration,
    /// Requests still in progress this long after the listeners closed are cut.
    pub shutdown_timeout: Duration,
    /// The proxies that may name the address of a client, and the headers in which they do.
    pub client_address: ClientAddressRules,
    /// Headers about the client and this hop that forwarded requests carry.
    pub forwarded_headers: ForwardedHeaders,
    /// `None` if the access log is off.
    pub access_log: Option<Arc<AccessLogSettings>>,
    /// The facts that `AccessLogSettings::facts` names, in the same order.
    pub log_facts: Vec<ClientFact>,
    /// `None` if spans are off.
    pub spans: Option<Arc<SpanSettings>>,
    /// True if responses carry the request id.
    pub answer_request_id: bool,
    /// Error pages of requests without a route. Routes have a copy. `None` if there are none.
    pub error_pages: Option<Arc<ErrorPages>>,
    /// The cross-origin rules of requests without a route. Routes have a copy. `None` if there are none.
    pub cors: Option<Arc<CorsPolicy>>,
    /// How requests without a trace are treated.
    pub traceparent: TraceParent,
    /// When requests are refused because the process is overloaded.
    pub overload: Option<OverloadRule>,
    /// Which clients see, in problem documents, the setting that refused them.
    pub hints: Hints,
    /// DNS servers to use instead of the system's; empty means the system's.
    pub resolver: Vec<SocketAddr>,
}

impl ServerSettings {
    /// Returns the default bounds of response heads: a gateway that takes larger requests takes larger responses, too.
    pub fn response_head_bounds(&self) -> HeadBounds {
        let HeadBounds { headers, bytes, .. } = HeadBounds::DEFAULT;
        HeadBounds {
            headers: headers.max(self.max_headers),
            bytes: bytes.max(self.max_header_bytes),
            keeps_case: self.header_case == HeaderCase::Keep,
        }
    }
}

labels! {
    /// A header about the client or this hop.
    ForwardedHeader:
    XForwardedFor = "x-forwarded-for",
    XRealIp = "x-real-ip",
    XForwardedProto = "x-forwarded-proto",
    XForwardedHost = "x-forwarded-host",
    XForwardedPort = "x-forwarded-port",
    /// Also added to responses.
    Via = "via",
    XRequestId = "x-request-id",
    Forwarded = "forwarded",
}

/// A set of forwarding headers; by default all except `Forwarded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedHeaders(u8);

impl ForwardedHeaders {
    pub fn has(self, header: ForwardedHeader) -> bool {
        self.0 & (1 << header as u8) != 0
    }

    /// Returns the set with `header` added.
    pub fn with(self, header: ForwardedHeader) -> ForwardedHeaders {
        ForwardedHeaders(self.0 | 1 << header as u8)
    }
}

impl Default for ForwardedHeaders {
    fn default() -> ForwardedHeaders {
        ForwardedHeaders(!(1 << ForwardedHeader::Forwarded as u8))
    }
}

impl FromIterator<ForwardedHeader> for ForwardedHeaders {
    fn from_iter<I: IntoIterator<Item = ForwardedHeader>>(headers: I) -> ForwardedHeaders {
        ForwardedHeaders(headers.into_iter().fold(0, |set, header| set | 1 << header as u8))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hints {
    All,
    /// Only clients on this machine.
    Local,
    None,
}

impl Hints {
    pub fn apply_to(self, client: IpAddr) -> bool {
        match self {
            Hints::All => true,
            Hints::Local => client.is_loopback(),
            Hints::None => false,
        }
    }
}

labels! {
    /// The header that requests without a valid `traceparent` get.
    TraceParent:
    /// The header is forwarded unchanged.
    Pass = "pass",
    /// A new trace starts here.
    Make = "make",
}

#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    pub listen: ListenAddr,
    /// Every token that is accepted. If there is none, only this machine may see keys and change state.
    pub tokens: Vec<AdminToken>,
    /// True if `/metrics` requires a token. Otherwise everyone who reaches the listener may read it.
    pub metrics_need_token: bool,
    /// True if clients with the token may change config files.
    pub edit: bool,
    /// How keys of limits are shown in logs, spans and pages.
    pub key_display: KeyDisplay,
    /// File in which changes and refused attempts are logged.
    pub audit: Option<PathBuf>,
    /// False if `/metrics` leaves out series that have counted nothing.
    pub shows_unused_series: bool,
    /// Name of the environment, and its color in the dashboard.
    pub environment: Option<(String, EnvironmentColor)>,
}

labels! {
    /// Color of the name of an environment.
    EnvironmentColor:
    Gray = "gray",
    Green = "green",
    Blue = "blue",
    Orange = "orange",
    Red = "red",
}
