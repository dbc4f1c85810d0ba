//! Routes: which requests a route matches, and what happens to them.
//!
//! Input: the config compiler builds a [`Route`] per `[[route]]`. Output: `table::RouteTable` finds the route of a
//! request, and `proxy::steps` applies its settings.
//!
//! - `table`: the lookup, at a cost that does not grow with the number of routes
//! - `plan`: builds the tries of the table and finds shadowed routes
//! - `order`: lists the routes in the order in which they are tried
//! - `decide`: what other proxies may ask about
//! - `compress`: settings of response compression; `cors`: which pages of other origins may read responses
//! - `client_facts`: placeholders of headers that say who the client is
//! - `edges`: the hash table that stores the edges of all tries
//! - `mismatch`: why a route does not match a request
//! - `redirect`: targets of redirects; `error_pages`: which page a status has
//! - `rewrite`: another path and query for the server; `path_map`: paths of the server as paths of the client
//! - `split`: which of several upstreams gets a request; `mirror`: copies for another upstream
//!
//! To add a condition to routes: add it to [`Matcher`], to its `conditions`, `takes` and `covers`, and to the config
//! compiler.

pub(crate) mod client_facts;
pub(crate) mod compress;
pub(crate) mod cors;
pub(crate) mod decide;
mod edges;
pub(crate) mod error_pages;
pub mod matcher;
pub(crate) mod mirror;
pub(crate) mod mismatch;
pub(crate) mod order;
pub(crate) mod path_map;
mod plan;
pub(crate) mod redirect;
pub(crate) mod rewrite;
pub(crate) mod split;
pub(crate) mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::auth::RouteAuth;
use crate::files::FileFolder;
use crate::labels::labels;
use crate::limiting::limit::Limit;
use crate::limiting::limit::address_set::AddressSet;
use crate::limiting::limit::refuse::Refuse;
use crate::limiting::source::PathParam;
use crate::net::IpSet;
use crate::route::client_facts::{ClientFact, StatedHeader};
use crate::route::compress::CompressSettings;
use crate::route::cors::CorsPolicy;
use crate::route::error_pages::ErrorPages;
use crate::route::matcher::{Matcher, PathPattern};
use crate::route::mirror::Mirror;
use crate::route::redirect::Redirect;
use crate::route::rewrite::TargetRewrite;
use crate::route::split::Split;
use crate::upstream::breaker::machine::BreakerRule;
use crate::upstream::priority::Priority;

/// A compiled `[[route]]`. The fields that every request reads come first and fill two cache lines. Routes share
/// settings that they have in common.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Route {
    pub action: Action,
    /// Limits: those of `auth` first, then in config order. Each limit appears at most once, so no two checks share a
    /// state key.
    pub limits: Vec<Arc<Limit>>,
    /// Clients that get 403 before any limit decides.
    pub deny: Arc<IpSet>,
    pub rewrite: Arc<Rewrite>,
    pub request_headers: Arc<HeaderEdit>,
    pub response_headers: Arc<ResponseEdit>,
    pub timeouts: Arc<Timeouts>,
    pub parsing: ParsingRules,
    /// Largest request body in bytes.
    pub max_body: u64,
    /// Maximum number of concurrent requests on the route, over all workers.
    pub max_in_flight: Option<usize>,
    /// When all requests of the route are refused for a while.
    pub breaker: Option<Box<BreakerRule>>,
    /// The priority decides which requests an overloaded upstream refuses first.
    pub priority: Priority,
    /// Maximum number of body bytes that are read to compute limit keys. `None` if no limit of the route has a key in
    /// the body.
    pub key_body: Option<u32>,
    /// Error pages, with those of the server. `None` if there are none.
    pub error_pages: Option<Arc<ErrorPages>>,
    /// Dialects of the rate limit headers, if they differ from the global ones.
    pub ratelimit_headers: Option<Vec<Dialect>>,
    /// How responses are compressed. `None` leaves them as they are.
    pub compress: Option<Arc<CompressSettings>>,
    /// Which pages of other origins may read responses. `None` leaves that to the server.
    pub cors: Option<Arc<CorsPolicy>>,
    /// The upstreams that share the requests. `action` has the first of them.
    pub split: Option<Box<Split>>,
    /// The upstream that gets copies of requests.
    pub mirror: Option<Box<Mirror>>,
    /// Protocols that clients may switch to.
    pub upgrades: Upgrades,
    /// Trailers of requests are forwarded. Those of gRPC calls always are.
    pub request_trailers: bool,
    /// How clients prove their identity. `None`: they need not.
    pub auth: Option<Box<RouteAuth>>,
    /// Clients to which no limit of the route applies.
    pub allow: Arc<IpSet>,
    /// Error response of limits without one of their own.
    pub refuse: Arc<Refuse>,
    /// Parameters of the path template.
    pub params: Vec<PathParam>,
    /// Unique name of the route, used as metric label and log field.
    pub name: String,
    pub matcher: Matcher,
    pub timeout_origins: TimeoutOrigins,
    /// The sets of `deny` whose files have rows with errors. `deny` has their networks, too.
    pub wrong_deny_sets: Vec<Arc<AddressSet>>,
}

impl Route {
    /// Returns a route without conditions, limits and options, which responds with status 200 and no body.
    pub fn bare(timeouts: Timeouts, parsing: ParsingRules) -> Route {
        let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
        let path = PathPattern::Segments { segments: Vec::new(), exact: false };
        Route {
            action: Action::Respond(Box::new(FixedResponse {
                status: StatusCode::OK,
                body: Bytes::new(),
                content_type,
            })),
            limits: Vec::new(),
            deny: Arc::default(),
            rewrite: Arc::default(),
            request_headers: Arc::default(),
            response_headers: Arc::default(),
            timeouts: Arc::new(timeouts),
            parsing,
            max_body: 0,
            max_in_flight: None,
            breaker: None,
            priority: Priority::default(),
            key_body: None,
            error_pages: None,
            ratelimit_headers: None,
            compress: None,
            cors: None,
            split: None,
            mirror: None,
            upgrades: Upgrades::default(),
            request_trailers: false,
            auth: None,
            allow: Arc::default(),
            refuse: Arc::default(),
            params: Vec::new(),
            name: String::new(),
            matcher: Matcher { hosts: Vec::new(), path, methods: Vec::new(), headers: Vec::new() },
            timeout_origins: TimeoutOrigins::DEFAULT,
            wrong_deny_sets: Vec::new(),
        }
    }

    /// Returns the settings of the route that name no other item of the config, without its conditions. The diff of two
    /// configs compares them.
    pub fn own_settings(&self) -> impl PartialEq + use<'_> {
        let Route {
            auth,
            allow,
            deny,
            rewrite,
            request_headers,
            response_headers,
            max_body,
            max_in_flight,
            breaker,
            priority,
            key_body,
            timeouts,
            refuse,
            error_pages,
            ratelimit_headers,
            upgrades,
            request_trailers,
            compress,
            cors,
            parsing,
            // They name other items, or are conditions.
            action: _,
            limits: _,
            split: _,
            mirror: _,
            matcher: _,
            name: _,
            // Derived from the path.
            params: _,
            // Only explanations show them.
            timeout_origins: _,
            wrong_deny_sets: _,
        } = self;
        (
            (auth, allow, deny, rewrite, request_headers, response_headers),
            (max_body, max_in_flight, breaker, priority, key_body, timeouts),
            (refuse, error_pages, ratelimit_headers, upgrades, request_trailers),
            (compress, cors, parsing),
        )
    }

    /// Returns the upstreams to which the action of the route sends requests.
    pub fn upstreams(&self) -> impl Iterator<Item = usize> {
        let single = match (&self.split, &self.action) {
            (None, Action::Upstream(index)) => Some(*index),
            _ => None,
        };
        let branches = self.split.iter().flat_map(|split| &split.branches).map(|branch| branch.upstream);
        single.into_iter().chain(branches)
    }

    /// Returns the limits that are decided before the client is authenticated.
    pub fn auth_limits(&self) -> &[Arc<Limit>] {
        &self.limits[..self.auth_limit_count()]
    }

    /// Returns how many of `limits` are decided before the client is authenticated. They are the first ones.
    pub fn auth_limit_count(&self) -> usize {
        self.auth.as_ref().map_or(0, |auth| auth.limit_count)
    }
}

impl AsRef<[Arc<Limit>]> for Route {
    fn as_ref(&self) -> &[Arc<Limit>] {
        &self.limits
    }
}

/// The action of a route for requests that its limits have admitted.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Index into `Config::upstreams`. With a `split`, it is the upstream of the first branch.
    Upstream(usize),
    /// The built-in echo server.
    Echo,
    Respond(Box<FixedResponse>),
    Redirect(Box<Redirect>),
    /// Files of a folder.
    Files(Arc<FileFolder>),
}

/// A fixed response (`respond`).
#[derive(Debug, PartialEq)]
pub struct FixedResponse {
    pub status: StatusCode,
    pub body: Bytes,
    pub content_type: HeaderValue,
}

/// How the target and the host change for the upstream. Prefixes have no trailing slash; an empty one changes nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub strip_prefix: String,
    pub add_prefix: String,
    /// Another path, and changes of the query. `None` if there are none.
    pub target: Option<TargetRewrite>,
    /// Send the server's own authority as `Host` instead of the client's.
    pub upstream_host: bool,
    /// The `Host` to send instead of the client's.
    pub host: Option<SentHost>,
    /// How the URLs in responses of servers become those of the client.
    pub locations: LocationRewrite,
}

/// The `rewrite_location` of a route.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum LocationRewrite {
    /// Responses stay as they are.
    #[default]
    Off,
    /// The changes of host and path that the route makes are undone.
    Automatic,
    /// Starts of `Location` and `Refresh`, and what replaces them.
    Starts(Vec<(String, String)>),
}

/// The `host` of a `rewrite`.
#[derive(Debug, PartialEq, Eq)]
pub enum SentHost {
    /// The client's, without its port.
    WithoutPort,
    Fixed(HeaderValue),
}

/// Header changes of a route. Removals are applied first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HeaderEdit {
    pub remove: Vec<HeaderName>,
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Headers of requests in which the gateway states who the client is. One whose value a request does not have is
    /// removed.
    pub stated: Vec<StatedHeader>,
}

impl HeaderEdit {
    /// Returns whether a header states a claim of a token.
    pub fn states_claims(&self) -> bool {
        self.stated.iter().any(|(_, text)| text.placeholders().any(ClientFact::is_claim))
    }

    /// Returns whether the edits change this header.
    pub fn edits(&self, name: &HeaderName) -> bool {
        self.names().any(|edited| edited == name)
    }

    /// Returns the names of all headers that the edits change.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.remove.iter().chain(self.set_names())
    }

    /// Returns the names of the headers that the gateway sets.
    pub fn set_names(&self) -> impl Iterator<Item = &HeaderName> {
        let stated_names = self.stated.iter().map(|(name, _)| name);
        self.set.iter().map(|(name, _)| name).chain(stated_names)
    }

    /// Returns whether a header contains the id of the request.
    pub fn states_request_id(&self) -> bool {
        self.stated.iter().any(|(_, text)| text.placeholders().any(|fact| *fact == ClientFact::RequestId))
    }
}

/// Header changes of the responses of a route, in the order of their fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResponseEdit {
    /// Headers to remove and to replace.
    pub edit: HeaderEdit,
    /// Headers to set if the response does not have them.
    pub default: Vec<(HeaderName, HeaderValue)>,
    /// Lines to add to the ones of the response.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Lines to add to a response with a status of [`is_success`](ResponseEdit::is_success).
    pub add_on_success: Vec<(HeaderName, HeaderValue)>,
    /// True if the gateway's own error responses get these changes, too.
    pub on_refusals: bool,
}

impl ResponseEdit {
    /// Returns whether the edits change this header.
    pub fn edits(&self, name: &HeaderName) -> bool {
        let edits = [&self.default, &self.add, &self.add_on_success];
        self.edit.edits(name) || edits.iter().any(|lines| lines.iter().any(|(own, _)| own == name))
    }

    /// Returns whether a response with this status gets `add_on_success`. These are the statuses of nginx's
    /// `add_header`.
    pub fn is_success(status: StatusCode) -> bool {
        matches!(status.as_u16(), 200 | 201 | 204 | 206 | 301..=304 | 307 | 308)
    }
}

/// Timeouts and minimum rates of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest pause between two pieces of a request body.
    pub body: Duration,
    /// Minimum average rate of a request body after the first `body` interval, in bytes per second.
    pub min_body_rate: u64,
    /// Minimum average rate at which a client reads waiting data after the first `stream` interval, in bytes per
    /// second.
    pub min_response_rate: u64,
    /// Longest time to connect to a server, DNS lookup included.
    pub connect: Duration,
    /// Longest time from the end of the request to the response head.
    pub response: Duration,
    /// Longest pause while a response body streams, from the upstream server or to the client.
    pub stream: Duration,
    /// Longest silence of a tunnel.
    pub tunnel: Duration,
}

labels! {
    /// Section of the config that sets an option of a route.
    SettingOrigin:
    /// The route.
    Route = "route",
    /// `[server]`.
    Server = "server",
    /// Nowhere.
    Default = "default",
}

/// Sections of the config that set the timeouts of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutOrigins {
    pub body: SettingOrigin,
    pub connect: SettingOrigin,
    pub response: SettingOrigin,
    pub stream: SettingOrigin,
    pub tunnel: SettingOrigin,
}

impl TimeoutOrigins {
    /// No timeout is set.
    pub const DEFAULT: TimeoutOrigins = TimeoutOrigins {
        body: SettingOrigin::Default,
        connect: SettingOrigin::Default,
        response: SettingOrigin::Default,
        stream: SettingOrigin::Default,
        tunnel: SettingOrigin::Default,
    };
}

labels! {
    /// How ambiguous requests are handled.
    Strictness:
    /// Refuses what other servers on the path could read differently.
    Strict = "strict",
    /// Repairs what can be repaired, and refuses the rest.
    Defensive = "defensive",
    /// Counts what `Defensive` would refuse, and lets it pass.
    Monitor = "monitor",
}

/// The rules of a route for ambiguous requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsingRules {
    pub strictness: Strictness,
    /// Paths may contain encoded slashes (`%2F`), which stay encoded and belong to their segment.
    pub keeps_slashes: bool,
    /// Repeated slashes stay in the path once the route is selected.
    pub keeps_repeated_slashes: bool,
    /// The route lists TRACE in `methods`, or another proxy forwards its requests.
    pub accepts_trace: bool,
}

impl ParsingRules {
    /// `keeps_slashes`: the configured value. `None`: every strictness but `Strict` accepts encoded slashes.
    pub fn new(strictness: Strictness, keeps_slashes: Option<bool>) -> ParsingRules {
        let keeps_slashes = keeps_slashes.unwrap_or(strictness != Strictness::Strict);
        ParsingRules { strictness, keeps_slashes, keeps_repeated_slashes: false, accepts_trace: false }
    }
}

/// Protocols that clients may switch to, by name in any case.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Upgrades {
    #[default]
    Any,
    Only(Vec<String>),
    /// No protocol is allowed, because a limit reads the content of responses and the route lists no protocols. A
    /// request that offers one is refused.
    Refused,
}

impl Upgrades {
    /// Returns whether it allows a protocol that `other` does not.
    pub fn allows_more_than(&self, other: &Upgrades) -> bool {
        match self {
            Upgrades::Any => *other != Upgrades::Any,
            Upgrades::Only(names) => names.iter().any(|name| !other.has(name)),
            Upgrades::Refused => false,
        }
    }

    pub fn has(&self, protocol: &str) -> bool {
        match self {
            Upgrades::Any => true,
            Upgrades::Refused => false,
            Upgrades::Only(names) => names.iter().any(|name| name.eq_ignore_ascii_case(protocol)),
        }
    }
}

/// A dialect of the rate limit headers. Several can be sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// draft-ietf-httpapi-ratelimit-headers-11: `RateLimit: "name";r=9;t=1`.
    Draft11,
    /// Draft 07: `RateLimit: limit=10, remaining=9, reset=1`.
    Draft07,
    /// Draft 03: `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    Draft03,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
    Legacy,
    /// The same headers, with the reset as a time in seconds since 1970.
    Epoch,
}
