//! One request and its answer on one connection, moved by the task that polls it: nothing is read or
//! written in between. Its connection serves another request once both sides ended cleanly and nothing
//! unread is left. Made by `forward`, read by `body`.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::time::timeout;

use super::h1::body::{Decoder, Piece};
use super::h1::{HeadReader, ProtocolFault};
use super::http2::exchange::StreamExchange;
use super::interim::InterimHead;
use super::patience::Patience;
use super::pool::{PooledConnection, ServerLease};
use super::sender::{SendEnd, Sender};
use super::trouble::Trouble;
use crate::http::complaints::{UpstreamComplaints, UpstreamTrouble};
use crate::http::downstream::offer::Offer;
use crate::http::downstream::upload::Upload;

/// Bytes of an answer that are read for nobody. A server with more to send notices that the connection
/// is closed.
const DISCARD_MAX: usize = 1024 * 1024;

/// An exchange, in what its connection speaks.
#[allow(clippy::large_enum_variant, reason = "most are of HTTP/1.1, and need no box of their own")]
pub enum Exchange {
    Http1(LineExchange),
    Http2(Box<StreamExchange>),
}

/// An exchange over HTTP/1.1.
pub struct LineExchange {
    /// `None` once another request may have the connection, or it is of no more use.
    lease: Option<PooledConnection>,
    sender: Sender,
    method: Method,
    offer: Option<Offer>,
    reader: HeadReader,
    /// Before the head of the answer, of nothing.
    body: Decoder,
    /// The upstream keeps the connection.
    keep_alive: bool,
    state: ExchangeState,
    complaints: Rc<UpstreamComplaints>,
    /// A head that switches protocols, until the request has been sent.
    switching: Option<Response<()>>,
    /// How long a body that is held waits for the server to ask for it.
    patience: Patience,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeState {
    Asked,
    /// The head has arrived.
    Answering,
    /// The answer is whole.
    Answered,
}

/// What the same call does in each.
macro_rules! in_each {
    ($exchange:expr, $inner:ident => $call:expr) => {
        match $exchange {
            Exchange::Http1($inner) => $call,
            Exchange::Http2($inner) => $call,
        }
    };
}

impl Exchange {
    /// The answer may switch to what the request offers, but over HTTP/2.
    pub fn new(
        lease: ServerLease,
        sender: Sender,
        method: Method,
        offer: Option<Offer>,
        complaints: Rc<UpstreamComplaints>,
    ) -> Exchange {
        match lease {
            ServerLease::Connection(lease) => {
                Exchange::Http1(LineExchange::new(lease, sender, method, offer, complaints))
            }
            ServerLease::Stream(place) => Exchange::Http2(Box::new(StreamExchange::new(place, sender, complaints))),
        }
    }

    /// The request, to be sent in another exchange if that is safe; this one is over.
    pub fn again(&mut self, idempotent: bool) -> Option<Sender> {
        in_each!(self, exchange => exchange.again(idempotent))
    }

    /// Sends the request and reads the head of its answer.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, Trouble>> {
        in_each!(self, exchange => exchange.poll_head(cx))
    }

    /// The connection, once its server has switched protocols.
    pub fn take_switched(&mut self) -> Option<PooledConnection> {
        match self {
            Exchange::Http1(exchange) => exchange.take_switched(),
            Exchange::Http2(_) => None,
        }
    }

    /// Takes the interim responses that have arrived since the last call.
    pub fn take_interims(&mut self) -> Vec<InterimHead> {
        match self {
            Exchange::Http1(exchange) => exchange.reader.interims.take(),
            Exchange::Http2(exchange) => exchange.interims.take(),
        }
    }

    /// The body of the request that the server has answered without asking for it.
    pub fn take_unasked(&mut self) -> Option<Upload> {
        let held = match self {
            Exchange::Http1(exchange) => exchange.sender.is_held(),
            Exchange::Http2(exchange) => exchange.is_held(),
        };
        if held { self.give_up() } else { None }
    }

    /// The body of the answer, if it is small and all of it is there.
    pub fn take_whole(&mut self) -> Option<Bytes> {
        match self {
            Exchange::Http1(exchange) => exchange.take_whole(),
            Exchange::Http2(exchange) => exchange.is_answered().then(Bytes::new),
        }
    }

    /// Reads the body of the answer.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>> {
        in_each!(self, exchange => exchange.poll_frame(cx))
    }

    pub fn complain(&self, kind: UpstreamTrouble, error: &dyn fmt::Display) {
        in_each!(self, exchange => exchange.complain(kind, error));
    }

    pub fn is_answered(&self) -> bool {
        in_each!(self, exchange => exchange.is_answered())
    }

    pub fn size_hint(&self) -> SizeHint {
        in_each!(self, exchange => exchange.size_hint())
    }

    /// The request has been sent to its last byte.
    pub fn is_sent(&self) -> bool {
        in_each!(self, exchange => exchange.is_sent())
    }

    /// Returns true once at least one byte of the request was written to the server, which may act on it.
    pub fn has_left(&self) -> bool {
        match self {
            Exchange::Http1(exchange) => exchange.sender.is_begun(),
            Exchange::Http2(exchange) => exchange.has_left(),
        }
    }

    /// The server has let a deadline pass.
    pub fn doubt(&self) {
        if let Exchange::Http2(exchange) = self {
            exchange.doubt();
        }
    }

    /// Takes what is left of a request body that nobody reads.
    pub fn give_up(&mut self) -> Option<Upload> {
        in_each!(self, exchange => exchange.give_up())
    }

    /// The head of the answer has arrived.
    fn is_begun(&self) -> bool {
        match self {
            Exchange::Http1(exchange) => exchange.state != ExchangeState::Asked,
            Exchange::Http2(exchange) => exchange.is_begun(),
        }
    }

    fn release(&mut self) {
        in_each!(self, exchange => exchange.release());
    }

    /// Sends what is there of the request body.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        in_each!(self, exchange => exchange.poll_send(cx))
    }

    /// The client has left: what is missing of its request will not come.
    fn poll_abandon(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        in_each!(self, exchange => exchange.poll_abandon(cx))
    }
}

impl LineExchange {
    /// The answer may switch to what the request offers.
    fn new(
        lease: PooledConnection,
        sender: Sender,
        method: Method,
        offer: Option<Offer>,
        complaints: Rc<UpstreamComplaints>,
    ) -> LineExchange {
        LineExchange {
            lease: Some(lease),
            patience: Patience::new(sender.is_held()),
            sender,
            method,
            offer,
            reader: HeadReader::default(),
            body: Decoder::Length(0),
            keep_alive: false,
            state: ExchangeState::Asked,
            complaints,
            switching: None,
        }
    }

    /// The request, to be sent in another exchange if that is safe; this one is over.
    fn again(&mut self, idempotent: bool) -> Option<Sender> {
        self.lease = None;
        self.sender.again(idempotent)
    }

    /// Sends the request and reads the head of its answer.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, Trouble>> {
        let Some(lease) = &mut self.lease else { return Poll::Ready(Err(Trouble::Closed)) };
        let connection = &mut lease.connection;
        if self.patience.is_over(cx) {
            self.sender.go_on();
        }
        let mut sent = self.sender.poll(connection, cx);
        loop {
            if let Poll::Ready(SendEnd::Upload) = sent {
                return Poll::Ready(Err(Trouble::Upload));
            }
            if self.switching.is_some() {
                // What comes next of the request would be taken for the other protocol.
                return match (ready!(sent), self.switching.take()) {
                    (SendEnd::Done, Some(response)) => Poll::Ready(Ok(response)),
                    _ => Poll::Ready(Err(Trouble::Fault(ProtocolFault::Switch))),
                };
            }
            match self.reader.read(&mut connection.received, &self.method, self.offer.as_ref()) {
                Ok(None) => {}
                Ok(Some(head)) if head.response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    self.switching = Some(head.response);
                    continue;
                }
                Ok(Some(head)) => {
                    (self.body, self.keep_alive, self.state) = (head.body, head.keep_alive, ExchangeState::Answering);
                    return Poll::Ready(Ok(head.response));
                }
                Err(fault) => return Poll::Ready(Err(Trouble::Fault(fault))),
            }
            if self.sender.is_held() && self.reader.interims.continued {
                self.sender.go_on();
                sent = self.sender.poll(connection, cx);
                continue;
            }
            let Ok(1..) = ready!(connection.poll_receive(cx)) else {
                let trouble = match self.reader.is_idle() && connection.received.is_empty() {
                    true => Trouble::Closed,
                    false => Trouble::Fault(ProtocolFault::Cut),
                };
                return Poll::Ready(Err(trouble));
            };
        }
    }

    /// The connection, once its server has switched protocols.
    fn take_switched(&mut self) -> Option<PooledConnection> {
        self.lease.take()
    }

    /// The body of the answer, if it is small and all of it is there.
    fn take_whole(&mut self) -> Option<Bytes> {
        let received = &mut self.lease.as_mut()?.connection.received;
        let (Decoder::Length(left), Some(_)) = (&self.body, self.sender.end()) else { return None };
        let length = usize::try_from(*left).ok().filter(|length| *length <= received.len())?;
        let body = received.split_to(length).freeze();
        self.answered();
        Some(body)
    }

    /// Reads the body of the answer.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>> {
        let mut ended = false;
        loop {
            let Some(lease) = &mut self.lease else { return Poll::Ready(None) };
            let connection = &mut lease.connection;
            match self.body.next(&mut connection.received, ended) {
                Ok(Piece::End) => {
                    self.answered();
                    return Poll::Ready(None);
                }
                Ok(Piece::Data(data)) => {
                    if self.body.is_end() {
                        self.answered();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(Piece::Trailers(trailers)) => {
                    self.answered();
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(Piece::More) => match ready!(connection.poll_receive(cx)) {
                    Ok(0) => ended = true,
                    Ok(_) => {}
                    Err(_) => return self.fail(ProtocolFault::Cut),
                },
                Err(fault) => return self.fail(fault),
            }
        }
    }

    fn fail(&mut self, fault: ProtocolFault) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>> {
        self.complain(UpstreamTrouble::CutOff, &fault);
        self.lease = None;
        self.sender.give_up();
        Poll::Ready(Some(Err(fault)))
    }

    /// What the server is called; empty once the connection is gone.
    fn server(&self) -> String {
        self.lease.as_ref().map_or_else(String::new, |lease| lease.server().label().to_owned())
    }

    fn complain(&self, kind: UpstreamTrouble, error: &dyn fmt::Display) {
        self.complaints.tell(kind, &self.server(), error);
    }

    fn is_answered(&self) -> bool {
        self.state == ExchangeState::Answered
    }

    fn size_hint(&self) -> SizeHint {
        self.body.exact().map_or_else(SizeHint::new, SizeHint::with_exact)
    }

    /// The request has been sent to its last byte.
    fn is_sent(&self) -> bool {
        self.sender.end() == Some(SendEnd::Done)
    }

    /// The answer is whole: the connection is free, unless the request is still being sent.
    fn answered(&mut self) {
        self.state = ExchangeState::Answered;
        self.release();
    }

    fn release(&mut self) {
        match self.sender.end() {
            None => {}
            Some(SendEnd::Done) if self.keep_alive && self.is_answered() => {
                if let Some(lease) = self.lease.take() {
                    lease.release();
                }
            }
            // An answer that is not whole yet is still read.
            Some(_) if self.is_answered() => self.lease = None,
            Some(_) => {}
        }
    }

    /// Sends what is there of the request body.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // After its answer the upstream closes.
        if self.is_answered() && !self.keep_alive {
            return Poll::Ready(());
        }
        match &mut self.lease {
            Some(lease) => self.sender.poll(&mut lease.connection, cx).map(drop),
            None => Poll::Ready(()),
        }
    }

    /// The client has left: what is missing of its request will not come.
    fn poll_abandon(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.lease {
            Some(lease) if self.sender.end() != Some(SendEnd::Done) => {
                self.sender.give_up();
                lease.connection.poll_finish(cx)
            }
            _ => Poll::Ready(()),
        }
    }

    /// Takes what is left of a request body that nobody reads.
    fn give_up(&mut self) -> Option<Upload> {
        self.sender.give_up()
    }
}

/// Waits for the answer and reads it for nobody, within bounds.
pub async fn discard(exchange: Rc<RefCell<Exchange>>, response: Duration, stream: Duration) {
    poll_fn(|cx| exchange.borrow_mut().poll_abandon(cx)).await;
    let begun = exchange.borrow().is_begun();
    if !begun {
        let head = timeout(response, poll_fn(|cx| exchange.borrow_mut().poll_head(cx))).await;
        let switches = match head {
            Ok(Ok(head)) => head.status() == StatusCode::SWITCHING_PROTOCOLS,
            // To a request that will never be whole.
            Ok(Err(Trouble::Fault(ProtocolFault::Switch))) => true,
            _ => return,
        };
        if switches {
            let switched = exchange.borrow_mut().take_switched();
            if let Some(lease) = switched {
                discard_switched(lease).await;
            }
            return;
        }
    }
    let mut left = DISCARD_MAX;
    while let Ok(Some(Ok(frame))) = timeout(stream, poll_fn(|cx| exchange.borrow_mut().poll_frame(cx))).await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Ends our side of a connection that carries another protocol, and reads what comes for nobody until its server
/// ends the other.
pub async fn discard_switched(mut lease: PooledConnection) {
    let connection = &mut lease.connection;
    poll_fn(|cx| connection.poll_finish(cx)).await;
    let mut left = DISCARD_MAX;
    while let Ok(count @ 1..) = poll_fn(|cx| connection.poll_receive(cx)).await {
        connection.received.clear();
        match left.checked_sub(count) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Sends the rest of a request that is answered already, whether the answer is read or not, and lets its
/// client get to the end of it where the upstream takes no more.
pub async fn carry_on(exchange: Rc<RefCell<Exchange>>) {
    poll_fn(|cx| exchange.borrow_mut().poll_send(cx)).await;
    let rest = {
        let mut exchange = exchange.borrow_mut();
        let rest = exchange.give_up();
        exchange.release();
        rest
    };
    if let Some(upload) = rest {
        upload.discard().await;
    }
}
