//! A request between its head and its answer, as the page and its helpers (`limits`, `onward`) fill it in
//! and the tail reads it. Made by `gateway`.

use std::rc::Rc;

use http::request::Parts;
use http::{HeaderValue, Version};
use hyper::body::Incoming;

use crate::http::answer::account::Account;
use crate::http::context::{Client, View};
use crate::http::downstream::upload::{Upload, UploadProgress};
use crate::http::fields::{Fields, KnownField};
use crate::http::tunnel::TunnelSeat;
use crate::limit::Verdict;

/// A request under way: what the page has found out so far, for the tail.
pub struct RequestUnderWay<'a> {
    pub client: &'a Rc<Client>,
    pub view: &'a View,
    pub received: Box<Received>,
    /// The body was taken and not read to its end, so nothing can follow it.
    pub cut: bool,
    /// Of the body, once it was taken.
    pub upload: Option<Rc<UploadProgress>>,
    /// The body with what was read of it before the limits were asked, until somebody takes it.
    pub read_ahead: Option<Upload>,
    pub account: Box<Account>,
    pub route: Option<usize>,
    pub verdict: Option<Verdict>,
    /// Of a request to switch protocols.
    pub seat: Option<TunnelSeat>,
    /// Where something else than its upstream wants it.
    pub request_id: Option<HeaderValue>,
    /// Its client may know which settings refuse it.
    pub hints: bool,
}

/// A request as it came.
pub struct Received {
    pub parts: Parts,
    pub fields: Fields,
    /// Taken by whoever reads it.
    pub body: Option<Incoming>,
}

impl Received {
    /// It came over HTTP/2, with others beside it on its connection.
    pub fn on_stream(&self) -> bool {
        self.parts.version == Version::HTTP_2
    }

    /// It was an extended CONNECT: no other may ask for a switch over HTTP/2.
    pub fn is_connect(&self) -> bool {
        self.on_stream() && self.fields.has(KnownField::Upgrade)
    }
}
