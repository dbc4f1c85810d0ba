//! A request in the form in which it leaves: the target that the route makes of what was asked, and the
//! head as it is written. Made by `onward`, sent by `forward`.

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, TRAILER};
use http::request::Parts;
use http::{HeaderName, Method};

use crate::http::downstream::gate::Admitted;
use crate::http::downstream::offer::Offer;
use crate::http::downstream::upload::Upload;
use crate::http::headers;
use crate::http::upstream::h1::request::{Framing, HostField, RequestHead};
use crate::http::upstream::linger::Linger;
use crate::route::Rewrite;
use crate::upstream::eject::Blame;

/// A request ready to leave.
pub struct Outgoing {
    /// Who caused it, should a server fail.
    pub blame: Blame,
    /// Of what says which server it gets, for upstreams that go by it.
    pub hash: Option<u64>,
    /// What the connection to the server begins with, for upstreams that are told whose it is.
    pub introduction: Option<Rc<[u8]>>,
    pub method: Method,
    pub head: RequestHead,
    pub upload: Option<Upload>,
    /// The client sends its body when it is asked for.
    pub expects: bool,
    /// Of a chunked body: the trailers that may follow it.
    pub trailers: Option<Vec<HeaderName>>,
    /// How long the client waits for a response (`grpc-timeout`), where that is less than the route's
    /// `response_timeout`.
    pub client_limit: Option<Duration>,
    /// The exchange goes on when the client leaves.
    pub linger: Option<Linger>,
    /// What the server may switch to.
    pub offer: Option<Offer>,
    /// At least one byte of it has been given to a server, which may act on it.
    pub has_left: bool,
}

impl Outgoing {
    /// Of `client`; `tell` appends further lines to the fields.
    pub fn new(
        parts: &Parts,
        client: IpAddr,
        target: &str,
        host: HostField,
        upload: Option<Upload>,
        linger: Option<Linger>,
        tell: impl FnOnce(&mut Vec<u8>),
    ) -> Outgoing {
        let Parts { method, headers, .. } = parts;
        let framing = match upload.as_ref().map(|upload| upload.size_hint().exact()) {
            None => Framing::None { announced: headers.contains_key(CONTENT_LENGTH) },
            Some(Some(length)) => Framing::Length(length),
            Some(None) => Framing::Chunked,
        };
        let announced = || headers::announced(headers.get_all(TRAILER).iter()).collect();
        Outgoing {
            blame: Blame::of(client),
            hash: None,
            introduction: None,
            method: method.clone(),
            head: RequestHead::write(method, target, headers, host, framing, tell),
            upload,
            expects: false,
            client_limit: None,
            trailers: (framing == Framing::Chunked).then(announced),
            linger,
            offer: None,
            has_left: false,
        }
    }
}

/// The target to forward.
pub fn target<'a>(admitted: &'a Admitted, rewrite: &Rewrite) -> Cow<'a, str> {
    let received = admitted.path();
    let rest = match received.strip_prefix(rewrite.strip_prefix.as_str()) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => received,
    };
    if rest.len() == received.len() && rewrite.add_prefix.is_empty() && !admitted.path_changed() {
        return Cow::Borrowed(admitted.target().as_str());
    }
    let slash = if rest.is_empty() { "/" } else { "" };
    let query = admitted.query().map_or_else(String::new, |query| format!("?{query}"));
    Cow::Owned(format!("{}{rest}{slash}{query}", rewrite.add_prefix))
}
