//! The state of one request: the steps of `request` fill it in, and `finish_response` reads it.
//!
//! What a step finds and a later step uses up is passed on by value: an [`Admitted`] request has all that the limits
//! and the steps before them granted, and a [`Reply`] has the response.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::ORIGIN;
use http::request::Parts;
use http::{HeaderValue, Response, Version};
use http_body::Body as _;

use crate::grpc;
use crate::limiting::Verdict;
use crate::limiting::source::jwt::Claims;
use crate::proxy::account::RequestAccount;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::connection::upgrade::TunnelPermit;
use crate::proxy::connection::upload::{Upload, UploadProgress};
use crate::proxy::context::{ClientConnection, WorkerSnapshot};
use crate::proxy::head::body::RequestBody;
use crate::proxy::head::identity::{self, ClientAddress};
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::render::accept;
use crate::proxy::render::call_ids::CallIds;
use crate::proxy::words::known_headers::{HeaderSet, KnownHeader, find_single};
use crate::route::Route;
use crate::route::compress::CompressionAlgorithm;
use crate::route::decide::DecidePoint;
use crate::route::error_pages::PageFormat;
use crate::upstream::breaker::BreakerPermit;

/// The results of the steps so far.
pub struct RequestContext<'a> {
    pub client: &'a Rc<ClientConnection>,
    pub view: &'a Rc<WorkerSnapshot>,
    /// The client: the TCP peer, or the address that trusted proxies forwarded.
    pub identity: ClientAddress,
    pub received: Box<Received>,
    /// The client gets a gRPC response if the request is refused. Decided before the route edits the headers.
    pub wants_grpc_errors: bool,
    /// The connection cannot carry another request after this one, because the rest of this one's body was not read or
    /// the bytes that follow are not safe to parse.
    pub must_close: bool,
    pub account: Box<RequestAccount>,
    /// The route with its index; see [`Config::route_at`](crate::config::Config::route_at).
    pub route: Option<(usize, &'a Route)>,
    /// Index of the route that matches, if one does. A request may be refused before it enters the route.
    pub found_route: Option<usize>,
    /// The `Origin` of the page that sends the request, as it arrived, if some route has `cors`.
    pub origin: Option<HeaderValue>,
    /// The proxy that describes the request may have joined the lines of a header.
    pub has_joined_lines: bool,
    /// The decision that another proxy asks for, if the request is such a question.
    pub question: Option<&'a DecidePoint>,
    pub admission: Admission,
    /// The algorithm that the client accepts, if the route compresses responses.
    pub compression: Option<CompressionAlgorithm>,
    /// The request id, if the log or the response needs it. Otherwise it is generated only for the upstream server.
    pub request_id: Option<HeaderValue>,
    /// The format of an error response, if the route edits `Accept`. Otherwise the header determines it.
    pub accepted_format: Option<PageFormat>,
}

impl<'a> RequestContext<'a> {
    pub fn new(
        client: &'a Rc<ClientConnection>,
        view: &'a Rc<WorkerSnapshot>,
        received: Box<Received>,
        account: Box<RequestAccount>,
    ) -> RequestContext<'a> {
        let config = &view.snapshot.config;
        RequestContext {
            client,
            view,
            identity: identity::identify(client.peer, &received.parts.headers, &config.server.client_address),
            // A refused tunnel is reported by its status.
            wants_grpc_errors: !received.is_connect() && received.is_grpc(),
            origin: if config.has_cors { find_single(&received.parts.headers, &ORIGIN).cloned() } else { None },
            received,
            must_close: false,
            account,
            route: None,
            found_route: None,
            has_joined_lines: false,
            question: None,
            admission: Admission::default(),
            compression: None,
            request_id: None,
            accepted_format: None,
        }
    }

    /// Returns the route that the request has entered.
    pub fn matched_route(&self) -> Option<&'a Route> {
        self.route.map(|(_, route)| route)
    }

    /// Returns the route that matches the request, whether the request has entered it or not.
    pub fn found_route(&self) -> Option<&'a Route> {
        let route = self.found_route.and_then(|index| self.view.snapshot.config.routes.get(index));
        self.matched_route().or(route)
    }

    /// Returns the format in which the client prefers errors.
    pub fn error_format(&self) -> PageFormat {
        self.accepted_format.unwrap_or_else(|| accept::negotiate(&self.received.parts.headers))
    }

    /// Returns the request id, if the access log or a span has it: an id that nobody can look up is of no use.
    pub fn logged_id(&self) -> Option<&HeaderValue> {
        self.request_id.as_ref().filter(|_| self.account.logs_request_id())
    }
}

/// The results of authentication and limits for a request so far.
#[derive(Default)]
pub struct Admission {
    /// The identity that the route's `auth` verified.
    pub user: Option<Rc<str>>,
    /// Claims of the token that the route's `auth` verified.
    pub claims: Option<Arc<Claims>>,
    /// The verdict of the limits that have decided.
    pub verdict: Option<Verdict>,
    /// `Set-Cookie` headers of the auth server, for the client.
    pub cookies: Vec<HeaderValue>,
    /// The calls that a refusal names.
    pub call_ids: CallIds,
}

/// A request as it arrived. `forwarded_head` turns its headers into those that are forwarded, before any step reads
/// them.
pub struct Received {
    pub parts: Parts,
    /// The well-known headers that were received.
    pub header_set: HeaderSet,
    pub body: ClientBody,
}

/// The body of a request, in the state in which the steps have left it.
pub enum ClientBody {
    Unread(RequestBody),
    /// A part was read, to compute the keys of limits.
    ReadAhead(Upload),
    /// The action of the route reads it.
    Opened(Rc<UploadProgress>),
    /// The body must not be read any more, or there was none.
    Gone,
}

impl ClientBody {
    /// Takes the body if nothing of it was read, and `is_wanted` returns true.
    pub fn take_unread_if(&mut self, is_wanted: impl FnOnce(&RequestBody) -> bool) -> Option<RequestBody> {
        match std::mem::replace(self, ClientBody::Gone) {
            ClientBody::Unread(body) if is_wanted(&body) => Some(body),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Takes the body if a part of it was read.
    pub fn take_read_ahead(&mut self) -> Option<Upload> {
        match std::mem::replace(self, ClientBody::Gone) {
            ClientBody::ReadAhead(upload) => Some(upload),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Returns a lower bound of the length of a body that was not read.
    pub fn least_length(&self) -> u64 {
        if let ClientBody::Unread(body) = self { body.size_hint().lower() } else { 0 }
    }

    /// Returns the length; `None` if it is not known yet.
    pub fn find_length(&self) -> Option<u64> {
        match self {
            ClientBody::Unread(body) => body.size_hint().exact(),
            ClientBody::ReadAhead(upload) => upload.find_length(),
            ClientBody::Opened(_) | ClientBody::Gone => Some(0),
        }
    }
}

impl Received {
    /// Returns true for a request over HTTP/2 or HTTP/3: other requests share its connection.
    pub fn is_on_stream(&self) -> bool {
        matches!(self.parts.version, Version::HTTP_2 | Version::HTTP_3)
    }

    /// Returns true for an extended CONNECT. On a stream, no other request can carry `Upgrade`.
    pub fn is_connect(&self) -> bool {
        self.is_on_stream() && self.header_set.has(KnownHeader::Upgrade)
    }

    pub fn is_http11(&self) -> bool {
        self.parts.version == Version::HTTP_11
    }

    /// Returns the length of the body; `None` if the client did not announce it.
    pub fn announced_length(&self) -> Option<u64> {
        match &self.body {
            ClientBody::Unread(body) if !body.is_end_stream() => body.size_hint().exact(),
            _ => Some(0),
        }
    }

    pub fn is_grpc(&self) -> bool {
        self.header_set.has(KnownHeader::ContentType) && grpc::is_grpc(&self.parts.headers)
    }

    /// Returns how long a gRPC client waits for its response (`grpc-timeout`), if that is less than the route's
    /// `response_timeout`.
    pub fn client_timeout(&self, route: &Route) -> Option<Duration> {
        let limit = if self.is_grpc() { grpc::parse_timeout(&self.parts.headers) } else { None };
        limit.filter(|limit| *limit < route.timeouts.response)
    }
}

/// A request with the route that serves it: what the limits and the dispatch to the route's action read.
#[derive(Clone, Copy)]
pub struct RoutedRequest<'r> {
    pub route: &'r Route,
    /// The canonical host, path and method.
    pub head: &'r ValidatedHead,
    pub identity: &'r ClientAddress,
}

/// A request that may be served.
pub struct Admitted<'a> {
    pub route: &'a Route,
    /// The protocols that an upstream server may switch to.
    pub offer: Option<UpgradeOffer>,
    pub places: Places,
}

/// The places that a request occupies and that all clients share, except those that its account holds.
#[derive(Default)]
pub struct Places {
    /// The place of its tunnel among those that may be open, if it offers to switch protocols.
    pub tunnel: Option<TunnelPermit>,
    /// Permits of the circuit breakers of the upstream and the route, until a server responds.
    pub breakers: Vec<BreakerPermit>,
}

/// A response that `finish_response` completes.
pub enum Reply {
    /// The response of the route, or of the gateway in its place. If the server has switched protocols, the permit is
    /// that of the tunnel.
    Route(Response<ResponseBody>, Option<TunnelPermit>),
    /// A response of the gateway before the request has entered its route: a redirect to HTTPS, or the proof for an
    /// ACME server.
    Gateway(Response<ResponseBody>),
    /// The response to a preflight.
    Preflight(Response<ResponseBody>),
    /// The response of the auth server, which has refused the request.
    AuthServer(Response<ResponseBody>),
    /// The decision for which another proxy asks.
    Decision(Response<ResponseBody>),
}
