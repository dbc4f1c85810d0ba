//! The response body as the client connection reads it. It forwards the frames of its source and owns the account of
//! the request, so that the request ends when the body is dropped.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::ends::{End, UpstreamFailureKind};
use crate::files::body::FileBody;
use crate::limiting::charges::guard::ChargeGuard;
use crate::limiting::limit::request_end::ResponseTail;
use crate::proxy::account::linger::Linger;
use crate::proxy::account::{RequestAccount, ResponseEnd};
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::connection::upload::Upload;
use crate::proxy::head::headers;
use crate::proxy::outbound::exchange;
use crate::proxy::outbound::exchange::Exchange;
use crate::proxy::outbound::http1::ProtocolFault;
use crate::proxy::outbound::select::endpoint::StreamedResponse;
use crate::proxy::outbound::switched::SwitchedServer;
use crate::proxy::render::compress::encoder::EncoderFault;
use crate::proxy::render::compress::stage::CompressionStage;
use crate::proxy::words::refusal::Refusal;
use crate::upstream::breaker::BreakerPermit;

/// How long the rest of a body is read that nobody gets.
const LONGEST_DISCARD: Duration = Duration::from_secs(5);

/// A response body with the account of its request.
pub struct ResponseBody {
    source: BodySource,
    /// Compresses what the source returns.
    compression: Option<Box<CompressionStage<Refusal>>>,
    /// The client must not get the length of the source as `Content-Length`.
    hides_length: bool,
    account: Option<Box<RequestAccount>>,
    /// How the body has ended so far.
    end: ResponseEnd,
    /// The body has failed, which the connection learns once it has written what precedes.
    failure: Option<Refusal>,
}

/// The source of the frames of a response body.
enum BodySource {
    Full(Bytes),
    /// The message of a gRPC response, and the trailers after it, which are empty once they are sent.
    Message {
        message: Bytes,
        trailers: HeaderMap,
    },
    Upstream {
        exchange: Rc<RefCell<dyn Exchange>>,
        response: StreamedResponse,
        /// Continues the exchange if the client disconnects, for limits whose slots must be held as long as the server
        /// works.
        linger: Option<Linger>,
        /// The last poll was pending: the gateway waits for the server.
        waits: bool,
    },
    Echo(Box<Upload>),
    File(Box<FileBody>),
    /// A response without a body, after which the connection becomes a tunnel to this server. `None` once the tunnel
    /// has taken the connection.
    Switched(Option<Box<SwitchedServer>>),
}

impl From<EncoderFault> for Refusal {
    fn from(_: EncoderFault) -> Refusal {
        End::CompressionFailed.into()
    }
}

impl ResponseBody {
    pub fn full(bytes: impl Into<Bytes>) -> ResponseBody {
        ResponseBody::new(BodySource::Full(bytes.into()))
    }

    /// Sends a message and trailers, which are not empty.
    pub fn message(message: Bytes, trailers: HeaderMap) -> ResponseBody {
        ResponseBody::new(BodySource::Message { message, trailers })
    }

    /// Streams a server's response.
    pub fn upstream(
        exchange: Rc<RefCell<dyn Exchange>>,
        response: StreamedResponse,
        linger: Option<Linger>,
    ) -> ResponseBody {
        ResponseBody::new(BodySource::Upstream { exchange, response, linger, waits: false })
    }

    /// Streams the request's own body back.
    pub fn echo(upload: Upload) -> ResponseBody {
        ResponseBody::new(BodySource::Echo(Box::new(upload)))
    }

    /// Sends bytes of a file.
    pub fn file(body: FileBody) -> ResponseBody {
        ResponseBody::new(BodySource::File(Box::new(body)))
    }

    /// The body of a response that switches protocols.
    pub fn switched(server: Option<SwitchedServer>) -> ResponseBody {
        ResponseBody::new(BodySource::Switched(server.map(Box::new)))
    }

    fn new(source: BodySource) -> ResponseBody {
        ResponseBody {
            source,
            compression: None,
            hides_length: false,
            account: None,
            end: ResponseEnd::Abandoned,
            failure: None,
        }
    }

    /// Returns whether a tunnel follows instead of a body.
    pub fn is_tunnel(&self) -> bool {
        matches!(self.source, BodySource::Switched(_))
    }

    /// Returns the length of a body that has arrived completely.
    pub fn full_length(&self) -> Option<usize> {
        match &self.source {
            BodySource::Full(bytes) => Some(bytes.len()),
            _ => None,
        }
    }

    /// Returns true if only the end of the server's connection ends the body.
    pub fn ends_by_close(&self) -> bool {
        matches!(&self.source, BodySource::Upstream { exchange, .. } if exchange.borrow().ends_by_close())
    }

    /// Returns a body that has arrived completely.
    pub fn as_full(&self) -> Option<&Bytes> {
        if let BodySource::Full(bytes) = &self.source { Some(bytes) } else { None }
    }

    /// Takes a body that has arrived completely, and leaves an empty one.
    pub fn take_full(&mut self) -> Option<Bytes> {
        match &mut self.source {
            BodySource::Full(bytes) => Some(std::mem::take(bytes)),
            _ => None,
        }
    }

    /// Compresses the body while it streams.
    pub fn compress_with(&mut self, stage: CompressionStage<Refusal>) {
        self.compression = Some(Box::new(stage));
    }

    /// Makes the length of the body unknown.
    pub fn forget_length(&mut self) {
        self.hides_length = true;
    }

    /// Takes the server that has switched protocols.
    pub fn take_switched(&mut self) -> Option<SwitchedServer> {
        match &mut self.source {
            BodySource::Switched(server) => server.take().map(|server| *server),
            _ => None,
        }
    }

    /// Reads and drops the rest of a server's body, so that its connection can serve another request. The connection of
    /// a long or slow body is closed. `charges` are settled by the trailers.
    pub fn discard(mut self, charges: Option<Box<ChargeGuard>>) {
        if let BodySource::Upstream { linger, .. } = &mut self.source {
            // The client has not left: it gets another response.
            *linger = None;
        }
        if charges.is_none() && self.is_end_stream() {
            return;
        }
        spawn_local(async move {
            let mut charges = charges;
            let drained = timeout(LONGEST_DISCARD, self.read_to_trailers(charges.as_deref_mut())).await;
            if let Some(mut charges) = charges {
                charges.settle_end(match &drained {
                    Ok(Ok(Some(trailers))) => Some(ResponseTail::Whole(trailers)),
                    Ok(Err(_)) => Some(ResponseTail::Cut),
                    // The server may still have worked on the request.
                    Ok(Ok(None)) | Err(_) => None,
                });
            }
        });
    }

    /// Reads and drops the body of a response that nobody gets, within the same bounds.
    pub async fn read_out(mut self) {
        let _ = timeout(LONGEST_DISCARD, self.read_to_trailers(None)).await;
    }

    /// Reads the body to its end and returns its trailers, empty if there are none. Returns `None` if the body is
    /// longer than 64 KiB. `charges` read the usage in the body.
    async fn read_to_trailers(&mut self, mut charges: Option<&mut ChargeGuard>) -> Result<Option<HeaderMap>, Refusal> {
        let mut left = 64 * 1024_usize;
        while let Some(frame) = self.frame().await.transpose()? {
            if let (Some(charges), Some(data)) = (&mut charges, frame.data_ref()) {
                charges.scan_body(data);
            }
            match frame.into_trailers() {
                Ok(trailers) => return Ok(Some(trailers)),
                Err(frame) => match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                    Some(rest) => left = rest,
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(HeaderMap::new()))
    }

    /// Makes the rest of a server's response count for circuit breakers: a body that breaks off, and trailers that say
    /// that the server failed.
    pub fn report_to_breakers(&mut self, permits: Vec<BreakerPermit>) {
        if let BodySource::Upstream { response, .. } = &mut self.source {
            response.breakers = permits;
        }
    }

    /// Makes the request end with this body.
    pub fn attach_account(&mut self, account: Box<RequestAccount>) {
        self.account = Some(account);
    }
}

impl BodySource {
    /// Returns the next frame as the server sent it.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        match self {
            BodySource::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodySource::Switched(_) => Poll::Ready(None),
            BodySource::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            BodySource::Message { message, trailers } => Poll::Ready(match (message.is_empty(), trailers.is_empty()) {
                (false, _) => Some(Ok(Frame::data(std::mem::take(message)))),
                (true, false) => Some(Ok(Frame::trailers(std::mem::take(trailers)))),
                (true, true) => None,
            }),
            BodySource::Upstream { exchange, response, waits, .. } => {
                let poll = exchange.borrow_mut().poll_frame(cx);
                let waited = std::mem::replace(waits, poll.is_pending());
                // The application resets a single stream: gRPC servers end calls that way at the client's deadline. So
                // a reset does not count against the server.
                if let Poll::Ready(Some(Err(fault))) = &poll
                    && *fault != ProtocolFault::Reset
                {
                    response.record_cut_off(waited);
                }
                if let Poll::Ready(Some(Ok(frame))) = &poll
                    && let Some(trailers) = frame.trailers_ref()
                {
                    response.record_trailers(trailers);
                }
                poll.map(|frame| {
                    frame.map(|frame| frame.map_err(|fault| Refusal::with_text(End::UpstreamCutOff, fault.text())))
                })
            }
            BodySource::Echo(upload) => {
                upload.poll(cx).map(|frame| frame.map(|frame| frame.map_err(|error| error.state().end().into())))
            }
            BodySource::File(body) => body
                .poll_piece(cx)
                .map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(|_| End::FileCutOff.into()))),
        }
    }

    /// Returns the next frame, and shows a copy of it to limits that settle by the body. They have seen a body that
    /// arrived completely.
    fn poll_scanned(
        &mut self,
        account: &mut Option<Box<RequestAccount>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        let is_full = matches!(self, BodySource::Full(_));
        let poll = self.poll_frame(cx);
        if let (Poll::Ready(Some(Ok(frame))), Some(account), false) = (&poll, account, is_full)
            && let Some(data) = frame.data_ref()
        {
            account.scan_body(data);
        }
        poll
    }

    fn is_end(&self) -> bool {
        match self {
            BodySource::Full(bytes) => bytes.is_empty(),
            BodySource::Message { message, trailers } => message.is_empty() && trailers.is_empty(),
            BodySource::Switched(_) => true,
            BodySource::Upstream { exchange, .. } => exchange.borrow().is_complete(),
            BodySource::Echo(upload) => upload.is_end(),
            BodySource::File(body) => body.remaining() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            BodySource::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodySource::Message { .. } => SizeHint::default(),
            BodySource::Switched(_) => SizeHint::with_exact(0),
            BodySource::Upstream { exchange, .. } => exchange.borrow().size_hint(),
            BodySource::Echo(upload) => upload.size_hint(),
            BodySource::File(body) => SizeHint::with_exact(body.remaining()),
        }
    }

    /// Records that the gateway waits for the client, not for the server.
    fn end_wait(&mut self) {
        if let BodySource::Upstream { waits, .. } = self {
            *waits = false;
        }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        if self.failure.is_some() {
            return self.poll_failure();
        }
        let ResponseBody { source, compression, account, end, .. } = &mut *self;
        let poll = match compression {
            None => source.poll_scanned(account, cx),
            Some(stage) => poll_compressed(stage, source, account, cx),
        };
        match &poll {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(account) = account {
                    account.record_sent(frame.data_ref().map_or(0, Bytes::len));
                    frame.trailers_ref().into_iter().for_each(|trailers| account.settle_by_trailers(trailers));
                }
            }
            Poll::Ready(Some(Err(error))) => *end = ResponseEnd::Broken(error.end),
            Poll::Ready(None) => *end = ResponseEnd::Whole,
            Poll::Pending => {}
        }
        let mut frame = match poll {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(error))) => {
                self.failure = Some(error);
                return self.poll_failure();
            }
            poll => return poll,
        };
        if let Some(trailers) = frame.trailers_mut() {
            headers::clean_trailers(trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.compression {
            _ if self.failure.is_some() => false,
            None => self.source.is_end(),
            Some(stage) => stage.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.hides_length || self.compression.is_some() { SizeHint::default() } else { self.source.size_hint() }
    }
}

/// Returns the next compressed frame, and records how much of the body was read for it.
fn poll_compressed(
    stage: &mut CompressionStage<Refusal>,
    source: &mut BodySource,
    account: &mut Option<Box<RequestAccount>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
    let poll = stage.poll_frame(cx, |cx| source.poll_scanned(account, cx));
    if poll.is_ready() {
        source.end_wait();
    }
    if let Some(entry) = account.as_mut().and_then(|account| account.log_entry()) {
        entry.record_uncompressed(stage.bytes_in());
    }
    poll
}

impl ResponseBody {
    /// Returns the failure once the connection has written what precedes it.
    fn poll_failure(&mut self) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        let deadline = self.account.as_ref().map(|account| account.deadline());
        if deadline.is_none_or(|deadline| deadline.may_fail_response()) {
            Poll::Ready(self.failure.take().map(Err))
        } else {
            Poll::Pending
        }
    }

    /// Reads the end of an HTTP/2 response whose `Content-Length` has been reached. The server may still send trailers,
    /// but for an HTTP/1.1 client the HTTP library stops reading at that length, and its response is complete.
    fn read_past_length(&mut self) {
        let BodySource::Upstream { exchange, linger, .. } = &self.source else { return };
        let is_past = !exchange.borrow().is_complete() && exchange.borrow().size_hint().exact() == Some(0);
        // A compressed body has no length at which reading could stop.
        let is_past = is_past && self.compression.is_none();
        let Some(account) = self.account.as_mut().filter(|_| is_past) else { return };
        // The end has often arrived already. Dropping the stream before its end would reset it.
        let poll = exchange.borrow_mut().poll_frame(&mut Context::from_waker(Waker::noop()));
        match poll {
            Poll::Ready(Some(Ok(frame))) => {
                frame.trailers_ref().into_iter().for_each(|found| account.settle_by_trailers(found))
            }
            Poll::Ready(_) => {}
            Poll::Pending => {
                if let Some((held, limit)) = account.take_waiting_charges() {
                    spawn_local(await_trailers(exchange.clone(), held, limit));
                } else if linger.is_none() {
                    exchange.borrow_mut().end_at_length();
                }
            }
        }
        self.end = ResponseEnd::Whole;
    }
}

/// Settles charges by the trailers of a response whose body has reached its length. If the stream does not end within
/// `limit`, the response counts as cut off.
async fn await_trailers(exchange: Rc<RefCell<dyn Exchange>>, mut held: Box<ChargeGuard>, limit: Duration) {
    let next = timeout(limit, poll_fn(|cx| exchange.borrow_mut().poll_frame(cx))).await;
    let none = HeaderMap::new();
    held.settle_end(Some(match &next {
        Ok(Some(Ok(frame))) => ResponseTail::Whole(frame.trailers_ref().unwrap_or(&none)),
        Ok(None) => ResponseTail::Whole(&none),
        Ok(Some(Err(_))) | Err(_) => ResponseTail::Cut,
    }));
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.read_past_length();
        if self.is_end_stream() {
            self.end = ResponseEnd::Whole;
        }
        if let BodySource::Upstream { exchange, linger, waits, .. } = &mut self.source {
            let is_complete = exchange.borrow().is_complete();
            let late = self.account.as_ref().and_then(|account| account.deadline().expired_wait());
            if let (true, false, Some(late)) = (*waits, is_complete, late) {
                if late == RequestWait::Stream {
                    self.end = ResponseEnd::Broken(End::ResponseStalled);
                }
                exchange.borrow().log_failure(UpstreamFailureKind::Stalled, &End::ResponseStalled.row().text);
            }
            if let (false, Some(linger)) = (is_complete, linger.take()) {
                let stream = linger.stream;
                linger.continue_exchange(exchange::discard_response(exchange.clone(), stream, stream));
            }
        }
        if let Some(account) = self.account.take() {
            // The exchange ends first: it owns the rest of the request body, which the account asks about.
            self.source = BodySource::Full(Bytes::new());
            account.end(self.end);
        }
    }
}
