//! A request as it leaves the gateway: the head as bytes. Made by `dispatch`, sent by
//! `forward`.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderName, Method};

use crate::proxy::account::linger::Linger;
use crate::proxy::connection::upload::Upload;
use crate::proxy::context::ClientConnection;
use crate::proxy::head::headers;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::outbound::http1::request::{Framing, HostSource, RequestHead};
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::outbound::send_clock::SendClock;
use crate::upstream::eject::Blame;
use crate::upstream::priority::Priority;

/// A request that is ready to be sent.
pub struct OutgoingRequest {
    /// The client, in case the server fails the request.
    pub client: Blame,
    /// Hash of the `hash_on` key, for upstreams that have one.
    pub hash: Option<u64>,
    /// The priority decides which requests an overloaded upstream refuses first.
    pub priority: Priority,
    /// The PROXY header that the connection begins with, for upstreams with `proxy_protocol`.
    pub proxy_header: Option<Rc<[u8]>>,
    pub method: Method,
    pub head: RequestHead,
    pub upload: Option<Upload>,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// Names of the trailers that may follow a chunked body.
    pub trailers: Option<Vec<HeaderName>>,
    /// How long the client waits for a response (`grpc-timeout`), where that is less than the route's
    /// `response_timeout`.
    pub client_limit: Option<Duration>,
    /// When the response of the last attempt must have begun. `None` gives each attempt the route's `response_timeout`.
    pub respond_by: Option<Instant>,
    /// Set if the exchange continues when the client disconnects.
    pub linger: Option<Linger>,
    /// The protocol that the server may switch to.
    pub offer: Option<UpgradeOffer>,
    /// True once at least one byte of the request was given to a server, which may act on it.
    pub has_sent_bytes: bool,
    /// Measures the time to the response head, for circuit breakers.
    pub clock: Option<Rc<SendClock>>,
}

impl OutgoingRequest {
    /// Builds the request of `client`. `write_more` appends further header lines.
    pub fn new(
        parts: &Parts,
        client: IpAddr,
        target: &str,
        host: HostSource,
        upload: Option<Upload>,
        linger: Option<Linger>,
        write_more: impl FnOnce(&mut Vec<u8>),
    ) -> OutgoingRequest {
        let Parts { method, headers, version, .. } = parts;
        let framing = match upload.as_ref().map(|upload| upload.size_hint().exact()) {
            None => Framing::of_bodiless(*version, method),
            Some(Some(length)) => Framing::Length(length),
            Some(None) => Framing::Chunked,
        };
        let head = RequestHead::encode(method, target, headers, host, framing, write_more);
        OutgoingRequest {
            trailers: (framing == Framing::Chunked).then(|| headers::announced_trailers(headers).collect()),
            linger,
            ..OutgoingRequest::of_parts(Blame::from_ip(client), method.clone(), head, upload)
        }
    }

    /// Makes a request of its head and its body, without anything that is special.
    pub fn of_parts(client: Blame, method: Method, head: RequestHead, upload: Option<Upload>) -> OutgoingRequest {
        OutgoingRequest {
            client,
            hash: None,
            priority: Priority::default(),
            proxy_header: None,
            method,
            head,
            upload,
            expects_continue: false,
            client_limit: None,
            respond_by: None,
            trailers: None,
            linger: None,
            offer: None,
            has_sent_bytes: false,
            clock: None,
        }
    }
}

/// Returns the PROXY protocol header that names the client at `ip`, if the upstream wants one. The port is 0 for a
/// client behind a trusted proxy, because forwarding headers do not contain it.
pub fn proxy_header(client: &ClientConnection, ip: IpAddr, servers: &WorkerUpstream) -> Option<Rc<[u8]>> {
    let port = if ip == client.peer { client.port } else { 0 };
    servers.proxy_protocol().map(|version| version.client_header(SocketAddr::new(ip, port), client.local_addr))
}
