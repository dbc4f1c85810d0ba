//! One request and its response over HTTP/2, on a stream of a shared connection. The task that polls the exchange
//! drives it. Started by `forward`.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};

use crate::ends::{End, UpstreamFailureKind};
use crate::proxy::connection::upload::Upload;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::head::{extended_connect, headers};
use crate::proxy::outbound::continue_timer::ContinueTimer;
use crate::proxy::outbound::exchange::Exchange;
use crate::proxy::outbound::http1::{ProtocolFault, never_has_body, parse_content_length};
use crate::proxy::outbound::http2::body_sender::BodySender;
use crate::proxy::outbound::http2::request;
use crate::proxy::outbound::http2::response_data::ResponseData;
use crate::proxy::outbound::http2::stream_end::AnsweredStream;
use crate::proxy::outbound::interim::{InterimResponse, InterimResponses};
use crate::proxy::outbound::pool::PooledStream;
use crate::proxy::outbound::sender::{RequestSender, SendEnd};
use crate::proxy::outbound::switched::{SwitchedServer, SwitchedStream};
use crate::proxy::words::failure_log::UpstreamFailureLog;
use crate::proxy::words::refusal::Refusal;

/// An exchange over HTTP/2.
pub struct Http2Exchange {
    /// `None` once nothing more is sent or received on the stream.
    place: Option<PooledStream>,
    /// The head as bytes of HTTP/1.1, for another attempt.
    head: Vec<u8>,
    /// The request, until it has been sent.
    request: Option<Request<()>>,
    /// Most headers of the response.
    max_headers: usize,
    /// The method is HEAD, so the response has no content.
    is_head: bool,
    upload: BodySender,
    /// The tunnel that the request opens.
    handshake: Option<TunnelHandshake>,
    response: Option<ResponseFuture>,
    body: Option<Rc<RefCell<ResponseData>>>,
    /// Bytes of the response body that are left, if that is known.
    left: Option<u64>,
    interims: InterimResponses,
    /// Set while the body waits for `100 Continue`.
    held: Option<ContinueTimer>,
    /// The head was sent, so the server may act on the request.
    opened: bool,
    /// The server has stated that it has not processed the request.
    refused: bool,
    /// The response is complete.
    complete: bool,
    failure_log: Rc<UpstreamFailureLog>,
}

/// The parts of a tunnel request's head that are needed for its response.
struct TunnelHandshake {
    offer: UpgradeOffer,
    /// The `Sec-WebSocket-Key` of the client.
    key: Option<HeaderValue>,
}

impl Http2Exchange {
    /// `offer`: the protocol that the client offers to switch to. Only a request that needs its tunnel keeps it.
    pub fn new(
        place: PooledStream,
        sender: RequestSender,
        offer: Option<UpgradeOffer>,
        failure_log: Rc<UpstreamFailureLog>,
    ) -> Http2Exchange {
        let continue_timer = sender.is_held().then(|| ContinueTimer::new(true));
        let (head, upload, announced) = sender.into_parts();
        if let Some(upload) = &upload {
            upload.progress().start_http2_stream();
        }
        let mut request = request::convert_head(&head, place.is_secure(), &place.server().host);
        let is_handshake = |offer: &UpgradeOffer| {
            request.as_ref().is_none_or(|request| offer.needs_tunnel(request.method(), upload.is_some()))
        };
        let handshake = offer.filter(is_handshake).map(|offer| TunnelHandshake {
            key: request.as_mut().and_then(|request| request::convert_to_connect(request, &offer)),
            offer,
        });
        Http2Exchange {
            handshake,
            is_head: request.as_ref().is_some_and(|request| request.method() == Method::HEAD),
            request,
            head,
            upload: BodySender::new(upload, announced, place.connection().frames.clone()),
            max_headers: place.server().head_bounds().headers,
            place: Some(place),
            response: None,
            body: None,
            left: None,
            interims: InterimResponses::default(),
            held: continue_timer,
            opened: false,
            refused: false,
            complete: false,
            failure_log,
        }
    }

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<RecvStream>, Refusal>> {
        let Some(response) = &mut self.response else { return Poll::Ready(Err(End::UpstreamClosed.into())) };
        while let Some(interim) = ready!(response.poll_informational(cx)) {
            match interim {
                Ok(interim) if interim.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    return Poll::Ready(Err(self.reset_for_fault(ProtocolFault::Switch)));
                }
                Ok(interim) => {
                    let mut parts = interim.into_parts().0;
                    headers::trim_values(&mut parts.headers);
                    if !self.interims.add(parts.status, parts.headers) {
                        return Poll::Ready(Err(self.reset_for_fault(ProtocolFault::InterimFlood)));
                    }
                }
                Err(error) => return Poll::Ready(Err(self.convert_error(&error))),
            }
        }
        if self.interims.continued {
            self.held = None;
        }
        match ready!(Pin::new(response).poll(cx)) {
            Ok(response) if response.headers().len() > self.max_headers => {
                Poll::Ready(Err(self.reset_for_fault(ProtocolFault::HeadTooLarge)))
            }
            Ok(response) => Poll::Ready(Ok(response)),
            Err(error) => Poll::Ready(Err(self.convert_error(&error))),
        }
    }

    /// Sends the head of the request. Pending until the server allows its stream.
    fn poll_send_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        let Some(place) = &self.place else { return Poll::Ready(Err(End::UpstreamClosed.into())) };
        if self.request.is_none() {
            return Poll::Ready(Err(ProtocolFault::Http2.into()));
        }
        let opens_tunnel = self.handshake.is_some();
        // A tunnel begins right behind the head, so a body has no place.
        if opens_tunnel && !(self.upload.whole && place.connection().allows_tunnels()) {
            return Poll::Ready(Err(End::UpstreamTunnel.into()));
        }
        let ends_stream = self.upload.whole && !opens_tunnel;
        match ready!(place.connection().poll_send_head(cx, &mut self.request, ends_stream)) {
            Ok((answer, stream)) => {
                self.opened = true;
                self.response = Some(answer);
                self.upload.stream = Some(stream);
                if self.upload.whole {
                    self.upload.end = Some(SendEnd::Done);
                }
                Poll::Ready(Ok(()))
            }
            // Nothing was sent.
            Err(error) => Poll::Ready(Err(self.mark_not_processed(&error))),
        }
    }

    /// Takes the head of the final response apart from its body.
    fn accept_response(&mut self, response: Response<RecvStream>) -> Result<Response<()>, Refusal> {
        let (mut parts, body) = response.into_parts();
        parts.version = http::Version::HTTP_11;
        headers::trim_values(&mut parts.headers);
        let handshake = self.handshake.take();
        if let Some(TunnelHandshake { offer, key }) = handshake.as_ref().filter(|_| parts.status.is_success()) {
            let mut response = Response::from_parts(parts, ());
            extended_connect::translate_to_switch(&mut response, offer.header_value(), key.as_ref());
            self.body = self.place.as_ref().map(|place| place.connection().open_response(body));
            return Ok(response);
        }
        if let (Some(_), Some(stream)) = (handshake, &mut self.upload.stream) {
            // No tunnel follows. If this fails, the server has ended the stream.
            let _ = stream.send_data(Bytes::new(), true);
        }
        self.left = match parse_content_length(parts.headers.get_all(CONTENT_LENGTH).iter()) {
            Ok(left) => left,
            Err(fault) => return Err(self.reset_for_fault(fault)),
        };
        // Such a response is complete, even if the server ends the stream only with a later frame.
        let has_no_body = body.is_end_stream() || self.is_head || never_has_body(parts.status);
        if has_no_body {
            self.left = Some(0);
        }
        self.body = self.place.as_ref().map(|place| place.connection().open_response(body));
        self.upload.replay = None;
        if has_no_body {
            self.complete_response();
        }
        Ok(Response::from_parts(parts, ()))
    }

    /// Resets the stream after a fault of the server.
    fn reset_for_fault(&mut self, fault: ProtocolFault) -> Refusal {
        self.reset_stream(Reason::PROTOCOL_ERROR);
        fault.into()
    }

    /// Records that the server has not processed the request. Its connection accepts no further ones.
    fn mark_not_processed(&mut self, error: &h2::Error) -> Refusal {
        tracing::debug!(%error, "a server did not process a request over HTTP/2");
        self.refused = true;
        if let Some(place) = &self.place {
            place.connection().retire();
        }
        End::UpstreamRefused.into()
    }

    /// Returns why there is no response. A GOAWAY fails only those streams that the server has not processed.
    fn convert_error(&mut self, error: &h2::Error) -> Refusal {
        let is_unprocessed = error.is_go_away() || (error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM));
        if error.is_remote() && is_unprocessed {
            return self.mark_not_processed(error);
        }
        tracing::debug!(%error, "a request over HTTP/2 failed");
        if self.upload.frames.is_exceeded() {
            ProtocolFault::FrameFlood.into()
        } else if error.is_io() {
            End::UpstreamClosed.into()
        } else if error.is_reset() && error.is_remote() {
            ProtocolFault::Reset.into()
        } else {
            ProtocolFault::Http2.into()
        }
    }

    /// Records that the response is complete. The rest of the request may still be sent.
    fn complete_response(&mut self) {
        self.complete = true;
        self.left = Some(0);
        self.release_connection();
    }

    /// Drops the stream. That resets it unless both sides have ended.
    fn drop_stream(&mut self) {
        (self.response, self.body, self.upload.stream, self.place) = (None, None, None, None);
    }

    fn reset_stream(&mut self, reason: Reason) {
        if let Some(stream) = &mut self.upload.stream {
            stream.send_reset(reason);
        }
        self.drop_stream();
    }
}

impl Exchange for Http2Exchange {
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, Refusal>> {
        if self.response.is_none() {
            ready!(self.poll_send_head(cx))?;
        }
        if self.held.as_mut().is_some_and(|timer| timer.poll_expired(cx)) {
            self.held = None;
        }
        let is_held = self.held.is_some();
        let mut answer = if is_held { self.poll_response(cx) } else { Poll::Pending };
        // `100 Continue` may have arrived just now.
        if self.held.is_none() && answer.is_pending() {
            if let Poll::Ready(SendEnd::Upload) = self.upload.poll(cx) {
                // The stream is reset when the exchange is dropped, which may linger.
                return Poll::Ready(Err(self.upload.upload_error()));
            }
            answer = self.poll_response(cx);
        }
        Poll::Ready(ready!(answer).and_then(|response| self.accept_response(response)))
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>> {
        let Some(body) = self.body.as_ref().filter(|_| !self.complete) else { return Poll::Ready(None) };
        let frame = ready!(body.borrow_mut().poll_frame(cx));
        let is_end = body.borrow().is_end_stream();
        match frame {
            Some(Ok(mut frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                }
                if let Some(trailers) = frame.trailers_mut() {
                    headers::trim_values(trailers);
                }
                if is_end {
                    self.complete_response();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.log_failure(UpstreamFailureKind::CutOff, &error);
                self.drop_stream();
                self.abort_upload();
                let is_reset = error.is_reset() && error.is_remote();
                Poll::Ready(Some(Err(if is_reset { ProtocolFault::Reset } else { ProtocolFault::CutOff })))
            }
            None => {
                self.complete_response();
                Poll::Ready(None)
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.place {
            Some(_) => self.upload.poll(cx).map(drop),
            None => Poll::Ready(()),
        }
    }

    /// HTTP/2 can end a request early only by a reset of its stream, and the gateway would then not notice that the
    /// server continues to work. Therefore, the server waits for the rest of the body until the exchange is dropped.
    fn poll_abandon(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.response.is_none() && self.body.is_none() {
            // Nothing has been sent.
            self.drop_stream();
        } else if !self.is_sent() {
            self.abort_upload();
            (self.upload.piece, self.upload.trailers, self.upload.replay) = (Bytes::new(), None, None);
        }
        Poll::Ready(())
    }

    fn take_request(&mut self, idempotent: bool) -> Option<RequestSender> {
        self.place = None;
        let safe = self.refused || (idempotent && self.upload.upload.is_none());
        // The sent part of the body is no longer kept for a replay.
        let is_body_lost = self.upload.upload.is_some() && self.upload.replay.is_none();
        if !safe || is_body_lost || self.upload.end == Some(SendEnd::Upload) {
            return None;
        }
        let BodySender { upload, piece, trailers, replay, .. } = &mut self.upload;
        let mut upload = upload.take();
        if let Some(upload) = &mut upload {
            let mut frames: Vec<_> = replay.take().into_iter().flatten().map(Frame::data).collect();
            frames.extend(Some(std::mem::take(piece)).filter(|piece| !piece.is_empty()).map(Frame::data));
            frames.extend(trailers.take().map(Frame::trailers));
            upload.put_back(frames.into_iter());
        }
        let mut again = RequestSender::new(std::mem::take(&mut self.head), upload, self.upload.announced.take());
        if self.held.is_some() {
            again.hold_body();
        }
        Some(again)
    }

    fn take_switched(&mut self) -> Option<SwitchedServer> {
        let (body, sender, place) = (self.body.take()?, self.upload.stream.take()?, self.place.take()?);
        Some(SwitchedServer::Stream(SwitchedStream::new(body, sender, place)))
    }

    fn take_interims(&mut self) -> Vec<InterimResponse> {
        self.interims.take()
    }

    fn end_at_length(&mut self) {
        self.complete_response();
    }

    fn take_complete_body(&mut self) -> Option<Bytes> {
        self.complete.then(Bytes::new)
    }

    fn abort_upload(&mut self) -> Option<Upload> {
        if self.is_sent() {
            return None;
        }
        self.upload.end = Some(SendEnd::Broken);
        self.upload.upload.take()
    }

    fn release_connection(&mut self) {
        if !self.complete || self.upload.end.is_none() {
            return;
        }
        let unended = self.body.take_if(|body| !body.borrow().is_end_stream()).filter(|_| self.is_sent());
        if let (Some(body), Some(place)) = (unended, self.place.take()) {
            let (server, failure_log) = (place.server().label().to_owned(), self.failure_log.clone());
            let sender = self.upload.stream.take();
            AnsweredStream { body, sender, slot: place.into_slot(), server, failure_log }.await_end();
        }
        self.drop_stream();
    }

    fn mark_suspect(&self) {
        if let Some(place) = &self.place {
            place.connection().send_ping(place.now_ms());
        }
    }

    fn log_failure(&self, kind: UpstreamFailureKind, error: &dyn fmt::Display) {
        let server = self.place.as_ref().map_or("", |place| place.server().label());
        self.failure_log.log_failure(kind, server, error);
    }

    fn is_held(&self) -> bool {
        self.held.is_some()
    }

    fn is_sent(&self) -> bool {
        self.upload.end == Some(SendEnd::Done)
    }

    /// A request that the server reported as not processed counts as not sent.
    fn has_sent_bytes(&self) -> bool {
        self.opened && !self.refused
    }

    fn has_head(&self) -> bool {
        self.body.is_some() || self.complete
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
