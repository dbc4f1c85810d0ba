//! One request and its response over HTTP/1.1, on a connection of its own. The task that polls the exchange drives it:
//! nothing is read or written in between. Started by `forward`.

use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body::{Frame, SizeHint};

use crate::ends::{End, UpstreamFailureKind};
use crate::proxy::connection::upload::Upload;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::outbound::continue_timer::ContinueTimer;
use crate::proxy::outbound::exchange::Exchange;
use crate::proxy::outbound::http1::body::{BodyDecoder, BodyPiece};
use crate::proxy::outbound::http1::{ProtocolFault, ResponseHeadReader};
use crate::proxy::outbound::interim::InterimResponse;
use crate::proxy::outbound::pool::PooledConnection;
use crate::proxy::outbound::sender::{RequestSender, SendEnd};
use crate::proxy::outbound::switched::SwitchedServer;
use crate::proxy::words::failure_log::UpstreamFailureLog;
use crate::proxy::words::refusal::Refusal;

/// An exchange over HTTP/1.1.
pub struct Http1Exchange {
    /// `None` once the connection was returned to its pool, handed over after a switch of protocols, or closed.
    lease: Option<PooledConnection>,
    sender: RequestSender,
    method: Method,
    /// The protocol that the server may switch to.
    offer: Option<UpgradeOffer>,
    reader: ResponseHeadReader,
    /// Empty until the head of the response has arrived.
    body: BodyDecoder,
    /// The server keeps the connection open after this response.
    keep_alive: bool,
    state: ExchangeState,
    failure_log: Rc<UpstreamFailureLog>,
    /// A response that switches protocols, held back until the request has been sent.
    switching: Option<Response<()>>,
    /// How long a held body waits for `100 Continue`.
    continue_timer: ContinueTimer,
    /// The task that sends the rest of the request while the response is read.
    sending_task: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeState {
    /// No head of a response has arrived.
    AwaitingHead,
    /// The head has arrived, the body has not ended.
    ReadingBody,
    /// The response is complete.
    Complete,
}

impl Http1Exchange {
    pub fn new(
        lease: PooledConnection,
        sender: RequestSender,
        method: Method,
        offer: Option<UpgradeOffer>,
        failure_log: Rc<UpstreamFailureLog>,
    ) -> Http1Exchange {
        Http1Exchange {
            continue_timer: ContinueTimer::new(sender.is_held()),
            sender,
            method,
            offer,
            reader: ResponseHeadReader::new(lease.server().head_bounds()),
            lease: Some(lease),
            body: BodyDecoder::Length(0),
            keep_alive: false,
            state: ExchangeState::AwaitingHead,
            failure_log,
            switching: None,
            sending_task: None,
        }
    }

    fn fail_body(&mut self, fault: ProtocolFault) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>> {
        self.log_failure(UpstreamFailureKind::CutOff, &fault);
        self.lease = None;
        self.sender.abort_upload();
        self.wake_sending_task();
        Poll::Ready(Some(Err(fault)))
    }

    /// Wakes the task that sends the rest of the request, because it has nothing more to wait for.
    fn wake_sending_task(&mut self) {
        if let Some(task) = self.sending_task.take() {
            task.wake();
        }
    }

    /// The response is complete: the connection is free, unless the request is still being sent.
    fn complete_response(&mut self) {
        self.state = ExchangeState::Complete;
        self.release_connection();
        self.wake_sending_task();
    }
}

impl Exchange for Http1Exchange {
    fn take_request(&mut self, idempotent: bool) -> Option<RequestSender> {
        self.lease = None;
        self.sender.take_for_retry(idempotent)
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, Refusal>> {
        let Some(lease) = &mut self.lease else { return Poll::Ready(Err(End::UpstreamClosed.into())) };
        let connection = &mut lease.connection;
        if self.continue_timer.poll_expired(cx) {
            self.sender.release_body();
        }
        let mut poll = self.sender.poll_request(connection, cx);
        loop {
            if let Poll::Ready(SendEnd::Upload) = poll {
                return Poll::Ready(Err(self.sender.upload_error()));
            }
            if self.switching.is_some() {
                // The server would read the rest of the request as the other protocol.
                return match (ready!(poll), self.switching.take()) {
                    (SendEnd::Done, Some(response)) => Poll::Ready(Ok(response)),
                    _ => Poll::Ready(Err(ProtocolFault::Switch.into())),
                };
            }
            match self.reader.take_head(&mut connection.received, &self.method, self.offer.as_ref()) {
                Ok(None) => {}
                Ok(Some(head)) if head.response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    self.switching = Some(head.response);
                    continue;
                }
                Ok(Some(head)) => {
                    (self.body, self.keep_alive, self.state) = (head.body, head.keep_alive, ExchangeState::ReadingBody);
                    return Poll::Ready(Ok(head.response));
                }
                Err(fault) => return Poll::Ready(Err(fault.into())),
            }
            if self.sender.is_held() && self.reader.interims.continued {
                self.sender.release_body();
                poll = self.sender.poll_request(connection, cx);
                continue;
            }
            let Ok(1..) = ready!(connection.poll_receive(cx)) else {
                let error = match self.reader.is_idle() && connection.received.is_empty() {
                    true => Refusal::from(End::UpstreamClosed),
                    false => ProtocolFault::CutOff.into(),
                };
                return Poll::Ready(Err(error));
            };
        }
    }

    fn take_switched(&mut self) -> Option<SwitchedServer> {
        let mut lease = self.lease.take()?;
        lease.connection.end_bulk();
        Some(SwitchedServer::Connection(lease))
    }

    fn take_interims(&mut self) -> Vec<InterimResponse> {
        self.reader.interims.take()
    }

    fn take_complete_body(&mut self) -> Option<Bytes> {
        let buffer = &mut self.lease.as_mut()?.connection.received;
        let (BodyDecoder::Length(left), Some(_)) = (&self.body, self.sender.end()) else { return None };
        let length = usize::try_from(*left).ok().filter(|length| *length <= buffer.len())?;
        let body = buffer.split_to(length).freeze();
        self.complete_response();
        Some(body)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>> {
        let mut is_at_end = false;
        loop {
            let Some(lease) = &mut self.lease else { return Poll::Ready(None) };
            let connection = &mut lease.connection;
            match self.body.next_piece(&mut connection.received, is_at_end) {
                Ok(BodyPiece::End) => {
                    self.complete_response();
                    return Poll::Ready(None);
                }
                Ok(BodyPiece::Data(data)) => {
                    connection.leave_shared_buffer();
                    if self.body.is_end() {
                        self.complete_response();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(BodyPiece::Trailers(trailers)) => {
                    self.complete_response();
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(BodyPiece::More) => match ready!(connection.poll_receive(cx)) {
                    Ok(0) => is_at_end = true,
                    Ok(_) => {}
                    Err(_) => return self.fail_body(ProtocolFault::CutOff),
                },
                Err(fault) => return self.fail_body(fault),
            }
        }
    }

    fn log_failure(&self, kind: UpstreamFailureKind, error: &dyn fmt::Display) {
        let server = self.lease.as_ref().map_or("", |lease| lease.server().label());
        self.failure_log.log_failure(kind, server, error);
    }

    fn is_held(&self) -> bool {
        self.sender.is_held()
    }

    fn has_head(&self) -> bool {
        self.state != ExchangeState::AwaitingHead
    }

    fn is_complete(&self) -> bool {
        self.state == ExchangeState::Complete
    }

    fn size_hint(&self) -> SizeHint {
        self.body.exact_length().map_or_else(SizeHint::new, SizeHint::with_exact)
    }

    fn ends_by_close(&self) -> bool {
        matches!(self.body, BodyDecoder::Close)
    }

    fn is_sent(&self) -> bool {
        self.sender.end() == Some(SendEnd::Done)
    }

    fn has_sent_bytes(&self) -> bool {
        self.sender.has_sent_bytes()
    }

    fn release_connection(&mut self) {
        match self.sender.end() {
            None => {}
            Some(SendEnd::Done) if self.keep_alive && self.is_complete() => {
                if let Some(lease) = self.lease.take() {
                    lease.release();
                }
            }
            // An incomplete response is still being read.
            Some(_) if self.is_complete() => self.lease = None,
            Some(_) => {}
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The server closes the connection after its response.
        if self.is_complete() && !self.keep_alive {
            return Poll::Ready(());
        }
        let Some(lease) = &mut self.lease else { return Poll::Ready(()) };
        let poll = self.sender.poll_request(&mut lease.connection, cx);
        self.sending_task = poll.is_pending().then(|| cx.waker().clone());
        poll.map(drop)
    }

    fn poll_abandon(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.lease {
            Some(lease) if self.sender.end() != Some(SendEnd::Done) => {
                self.sender.abort_upload();
                lease.connection.poll_close_write(cx)
            }
            _ => Poll::Ready(()),
        }
    }

    fn abort_upload(&mut self) -> Option<Upload> {
        self.sender.abort_upload()
    }
}
