//! The response body towards the client: it passes frames on and holds the account of its request,
//! which ends with it.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::http::answer::account::Account;
use crate::http::answer::cause::{Cause, EndReason};
use crate::http::complaints::UpstreamTrouble;
use crate::http::downstream::upload::{Upload, UploadError, UploadState};
use crate::http::headers;
use crate::http::upstream::asked::StreamedResponse;
use crate::http::upstream::exchange::{self, Exchange};
use crate::http::upstream::h1::ProtocolFault;
use crate::http::upstream::linger::Linger;
use crate::http::upstream::pool::PooledConnection;
use crate::limit::afterwards::ResponseTail;
use crate::limit::held::Held;
use crate::metrics::Cutoff;

/// A response body as the client connection reads it.
pub struct Body {
    source: BodySource,
    account: Option<Box<Account>>,
}

enum BodySource {
    Full(Bytes),
    Upstream {
        exchange: Rc<RefCell<Exchange>>,
        response: StreamedResponse,
        /// It goes on when the client leaves.
        linger: Option<Linger>,
        /// More of it is waited for.
        waits: bool,
    },
    Echo(Box<Upload>),
    /// None: what comes after the head is no answer any more. Until it is taken.
    Switched(Option<Box<PooledConnection>>),
}

/// A response body that could not be completed.
#[derive(Debug)]
pub enum BodyError {
    Upstream(ProtocolFault),
    Upload(UploadError),
}

impl BodyError {
    pub fn cause(&self) -> Cause {
        match self {
            BodyError::Upstream(_) => EndReason::UpstreamCutOff.into(),
            BodyError::Upload(error) => match error.state() {
                UploadState::TooLarge => Cutoff::BodyTooLarge.into(),
                UploadState::Left => Cutoff::ClientLeft.into(),
                UploadState::Running | UploadState::Done | UploadState::Broken | UploadState::Unread => {
                    EndReason::BodyMalformed.into()
                }
            },
        }
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Upstream(error) => write!(f, "the upstream broke off: {error}"),
            BodyError::Upload(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BodyError {}

impl Body {
    pub fn full(bytes: impl Into<Bytes>) -> Body {
        Body { source: BodySource::Full(bytes.into()), account: None }
    }

    /// Streams a server's response.
    pub fn upstream(exchange: Rc<RefCell<Exchange>>, response: StreamedResponse, linger: Option<Linger>) -> Body {
        Body { source: BodySource::Upstream { exchange, response, linger, waits: false }, account: None }
    }

    /// Streams the request's own body back.
    pub fn echo(upload: Upload) -> Body {
        Body { source: BodySource::Echo(Box::new(upload)), account: None }
    }

    /// Of an answer that switches protocols.
    pub fn switched(connection: Option<PooledConnection>) -> Body {
        Body { source: BodySource::Switched(connection.map(Box::new)), account: None }
    }

    /// The connection of the server that has switched.
    pub fn take_switched(&mut self) -> Option<PooledConnection> {
        match &mut self.source {
            BodySource::Switched(connection) => connection.take().map(|connection| *connection),
            _ => None,
        }
    }

    /// The request ends with this body.
    pub fn end_with(&mut self, account: Box<Account>) {
        self.account = Some(account);
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match &mut self.source {
            BodySource::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodySource::Switched(_) => Poll::Ready(None),
            BodySource::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            BodySource::Upstream { exchange, response, waits, .. } => {
                let polled = exchange.borrow_mut().poll_frame(cx);
                let waited = std::mem::replace(waits, polled.is_pending());
                // A reset of one stream is the application's: gRPC servers end calls so at the client's deadline.
                if let Poll::Ready(Some(Err(fault))) = &polled
                    && *fault != ProtocolFault::Reset
                {
                    response.broke_off(waited);
                }
                polled.map(|frame| frame.map(|frame| frame.map_err(BodyError::Upstream)))
            }
            BodySource::Echo(upload) => {
                upload.poll(cx).map(|frame| frame.map(|frame| frame.map_err(BodyError::Upload)))
            }
        };
        if let (Poll::Ready(next), Some(account)) = (&polled, &mut self.account) {
            match next {
                Some(Ok(frame)) => {
                    account.sent(frame.data_ref().map_or(0, Bytes::len));
                    if let Some(trailers) = frame.trailers_ref() {
                        account.trailers(trailers);
                    }
                }
                Some(Err(error)) => account.broke_off(error),
                None => account.sent_whole(),
            }
        }
        let Poll::Ready(Some(Ok(mut frame))) = polled else { return polled };
        if let Some(trailers) = frame.trailers_mut() {
            headers::clean_trailers(trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Full(bytes) => bytes.is_empty(),
            BodySource::Switched(_) => true,
            BodySource::Upstream { exchange, .. } => exchange.borrow().is_answered(),
            BodySource::Echo(upload) => upload.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodySource::Switched(_) => SizeHint::with_exact(0),
            BodySource::Upstream { exchange, .. } => exchange.borrow().size_hint(),
            BodySource::Echo(upload) => upload.size_hint(),
        }
    }
}

impl Body {
    /// An HTTP/2 server that states a length may end its stream later, with trailers. The library reads nothing beyond
    /// the length for an HTTP/1.1 client, whose response is whole.
    fn read_past_length(&mut self) {
        let BodySource::Upstream { exchange, .. } = &self.source else { return };
        let is_past = !exchange.borrow().is_answered() && exchange.borrow().size_hint().exact() == Some(0);
        let Some(account) = self.account.as_mut().filter(|_| is_past) else { return };
        // The end is often there already. A stream that is dropped before it would be reset.
        match exchange.borrow_mut().poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(frame))) => frame.trailers_ref().into_iter().for_each(|found| account.trailers(found)),
            Poll::Ready(_) => {}
            Poll::Pending => {
                if let Some((held, limit)) = account.take_waiting_charges() {
                    spawn_local(await_trailers(exchange.clone(), held, limit));
                }
            }
        }
        account.sent_whole();
    }
}

/// Settles charges by the trailers of a response whose body has reached its length. Without trailers within `limit`
/// the response was cut off.
async fn await_trailers(exchange: Rc<RefCell<Exchange>>, mut held: Box<Held>, limit: Duration) {
    let next = timeout(limit, poll_fn(|cx| exchange.borrow_mut().poll_frame(cx))).await;
    let none = HeaderMap::new();
    held.finish(Some(match &next {
        Ok(Some(Ok(frame))) => ResponseTail::Whole(frame.trailers_ref().unwrap_or(&none)),
        Ok(None) => ResponseTail::Whole(&none),
        Ok(Some(Err(_))) | Err(_) => ResponseTail::Cut,
    }));
}

impl Drop for Body {
    fn drop(&mut self) {
        self.read_past_length();
        if self.is_end_stream()
            && let Some(account) = &mut self.account
        {
            account.sent_whole();
        }
        let BodySource::Upstream { exchange, linger, waits, .. } = &mut self.source else { return };
        let answered = exchange.borrow().is_answered();
        let late = |account: &&mut Box<Account>| account.deadline().expired().is_some();
        if let Some(account) = self.account.as_mut().filter(|account| *waits && !answered && late(account)) {
            account.stalled();
            exchange.borrow().complain(UpstreamTrouble::Stalled, &"the answer did not go on in time (stream_timeout)");
        }
        if let (false, Some(linger)) = (answered, linger.take()) {
            let stream = linger.stream;
            linger.go_on(exchange::discard(exchange.clone(), stream, stream));
        }
    }
}
