//! One request and its answer on a stream of a shared connection, moved by the task that polls it. Used by
//! `http::upstream::exchange`.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};

use super::frame_guard::FrameBudget;
use super::request;
use crate::http::complaints::{UpstreamComplaints, UpstreamTrouble};
use crate::http::downstream::upload::{Upload, UploadProgress};
use crate::http::headers;
use crate::http::upstream::h1::{FIELDS_MAX, ProtocolFault, is_bodiless, stated_length};
use crate::http::upstream::interim::InterimHeads;
use crate::http::upstream::patience::Patience;
use crate::http::upstream::pool::PooledStream;
use crate::http::upstream::sender::{SendEnd, Sender};
use crate::http::upstream::trouble::Trouble;

/// Bytes of a request body that are kept until there is an answer, as they may have to be sent again.
const REPLAY_MAX: usize = 64 * 1024;

pub struct StreamExchange {
    /// `None` once nothing is to be done on the stream any more.
    place: Option<PooledStream>,
    /// As lines, for another exchange.
    head: Vec<u8>,
    /// The request, until it has been sent.
    request: Option<Request<()>>,
    upload: SentBody,
    answer: Option<ResponseFuture>,
    body: Option<RecvStream>,
    /// Bytes of the answer that are still to come, if that is known.
    left: Option<u64>,
    pub interims: InterimHeads,
    /// The body waits until the server asks for it, or this is over.
    held: Option<Patience>,
    /// The stream was opened: the server may have seen the request.
    opened: bool,
    /// The server has not looked at the request.
    refused: bool,
    answered: bool,
    complaints: Rc<UpstreamComplaints>,
}

/// The request's body on its way.
struct SentBody {
    upload: Option<Upload>,
    /// In lines: the trailers that its head announced.
    announced: Option<Vec<HeaderName>>,
    stream: Option<SendStream<Bytes>>,
    /// Those that its server may send.
    frames: Rc<FrameBudget>,
    /// Taken from the client, not yet by the server.
    piece: Bytes,
    trailers: Option<HeaderMap>,
    /// The client has sent all.
    whole: bool,
    /// What left, while it is little.
    replay: Option<Vec<Bytes>>,
    replayed: usize,
    end: Option<SendEnd>,
}

impl StreamExchange {
    pub fn new(place: PooledStream, sender: Sender, complaints: Rc<UpstreamComplaints>) -> StreamExchange {
        let held = sender.is_held().then(|| Patience::new(true));
        let (head, upload, announced) = sender.into_parts();
        if let Some(upload) = &upload {
            upload.progress().begin_stream();
        }
        let request = request::of_head(&head, place.is_secure(), &place.server().host);
        StreamExchange {
            request,
            head,
            upload: SentBody {
                end: None,
                whole: upload.is_none(),
                upload,
                announced,
                stream: None,
                frames: place.connection().frames.clone(),
                piece: Bytes::new(),
                trailers: None,
                replay: Some(Vec::new()),
                replayed: 0,
            },
            place: Some(place),
            answer: None,
            body: None,
            left: None,
            interims: InterimHeads::default(),
            held,
            opened: false,
            refused: false,
            answered: false,
            complaints,
        }
    }

    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, Trouble>> {
        let Some(place) = &self.place else { return Poll::Ready(Err(Trouble::Closed)) };
        if self.answer.is_none() {
            if self.request.is_none() {
                return Poll::Ready(Err(Trouble::Fault(ProtocolFault::Http2)));
            }
            match ready!(place.connection().poll_open(cx, &mut self.request, self.upload.whole)) {
                Ok((answer, stream)) => {
                    self.opened = true;
                    self.answer = Some(answer);
                    if self.upload.whole {
                        self.upload.end = Some(SendEnd::Done);
                    } else {
                        self.upload.stream = Some(stream);
                    }
                }
                // Nothing has left.
                Err(error) => return Poll::Ready(Err(self.refuse(&error))),
            }
        }
        if self.held.as_mut().is_some_and(|patience| patience.is_over(cx)) {
            self.held = None;
        }
        let held = self.held.is_some();
        let mut answer = if held { self.poll_answer(cx) } else { Poll::Pending };
        // It may have been asked for just now.
        if self.held.is_none() && answer.is_pending() {
            if let Poll::Ready(SendEnd::Upload) = self.upload.poll(cx) {
                // The server is told once the exchange is dropped: it may linger.
                return Poll::Ready(Err(Trouble::Upload));
            }
            answer = self.poll_answer(cx);
        }
        match ready!(answer) {
            Ok(response) => {
                let (mut parts, body) = response.into_parts();
                self.left = match stated_length(parts.headers.get_all(CONTENT_LENGTH).iter()) {
                    Ok(left) => left,
                    Err(fault) => return Poll::Ready(Err(self.fault(fault))),
                };
                // Some servers end the stream of an answer without a body only after its head.
                let ended = body.is_end_stream() || is_bodiless(parts.status);
                if ended {
                    self.left = Some(0);
                }
                parts.version = http::Version::HTTP_11;
                headers::trim_values(&mut parts.headers);
                self.body = Some(body);
                self.upload.replay = None;
                if ended {
                    self.finish();
                }
                Poll::Ready(Ok(Response::from_parts(parts, ())))
            }
            Err(trouble) => Poll::Ready(Err(trouble)),
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<RecvStream>, Trouble>> {
        let Some(answer) = &mut self.answer else { return Poll::Ready(Err(Trouble::Closed)) };
        while let Some(interim) = ready!(answer.poll_informational(cx)) {
            match interim {
                Ok(interim) if interim.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    return Poll::Ready(Err(self.fault(ProtocolFault::Switch)));
                }
                Ok(interim) => {
                    let mut parts = interim.into_parts().0;
                    headers::trim_values(&mut parts.headers);
                    if !self.interims.add(parts.status, parts.headers) {
                        return Poll::Ready(Err(self.fault(ProtocolFault::Interim)));
                    }
                }
                Err(error) => return Poll::Ready(Err(self.trouble(&error))),
            }
        }
        if self.interims.continued {
            self.held = None;
        }
        match ready!(Pin::new(answer).poll(cx)) {
            Ok(response) if response.headers().len() > FIELDS_MAX => {
                Poll::Ready(Err(self.fault(ProtocolFault::HeadTooLarge)))
            }
            Ok(response) => Poll::Ready(Ok(response)),
            Err(error) => Poll::Ready(Err(self.trouble(&error))),
        }
    }

    /// The server's own fault; it is told that nothing more is wanted.
    fn fault(&mut self, fault: ProtocolFault) -> Trouble {
        self.reset(Reason::PROTOCOL_ERROR);
        Trouble::Fault(fault)
    }

    fn refuse(&mut self, error: &h2::Error) -> Trouble {
        tracing::debug!(%error, "a request was not taken over HTTP/2");
        self.refused = true;
        if let Some(place) = &self.place {
            place.connection().retire();
        }
        Trouble::Refused
    }

    /// Why there is no answer. After a GOAWAY only streams fail with it that the server has not looked at.
    fn trouble(&mut self, error: &h2::Error) -> Trouble {
        let refused = error.is_go_away() || (error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM));
        if error.is_remote() && refused {
            return self.refuse(error);
        }
        tracing::debug!(%error, "a request over HTTP/2 failed");
        if self.upload.frames.is_exceeded() {
            Trouble::Fault(ProtocolFault::Flood)
        } else if error.is_io() {
            Trouble::Closed
        } else if error.is_reset() && error.is_remote() {
            Trouble::Fault(ProtocolFault::Reset)
        } else {
            Trouble::Fault(ProtocolFault::Http2)
        }
    }

    /// To be sent in another exchange, if that is safe; this one is over.
    pub fn again(&mut self, idempotent: bool) -> Option<Sender> {
        self.place = None;
        let safe = self.refused || (idempotent && self.upload.upload.is_none());
        // More than is kept has left: it is gone.
        let gone = self.upload.upload.is_some() && self.upload.replay.is_none();
        if !safe || gone || self.upload.end == Some(SendEnd::Upload) {
            return None;
        }
        let SentBody { upload, piece, trailers, replay, .. } = &mut self.upload;
        let mut upload = upload.take();
        if let Some(upload) = &mut upload {
            let mut frames: Vec<_> = replay.take().into_iter().flatten().map(Frame::data).collect();
            frames.extend(Some(std::mem::take(piece)).filter(|piece| !piece.is_empty()).map(Frame::data));
            frames.extend(trailers.take().map(Frame::trailers));
            upload.put_back(frames.into_iter());
        }
        let mut again = Sender::new(std::mem::take(&mut self.head), upload, self.upload.announced.take());
        if self.held.is_some() {
            again.hold();
        }
        Some(again)
    }

    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>> {
        let Some(body) = self.body.as_mut().filter(|_| !self.answered) else { return Poll::Ready(None) };
        let frame = match ready!(body.poll_data(cx)) {
            Some(Ok(data)) => {
                let _ = body.flow_control().release_capacity(data.len());
                self.upload.frames.took_data();
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                if body.is_end_stream() {
                    self.finish();
                }
                Ok(Frame::data(data))
            }
            Some(Err(error)) => Err(error),
            None => match ready!(body.poll_trailers(cx)) {
                Ok(trailers) => {
                    self.finish();
                    match trailers {
                        Some(mut trailers) => {
                            headers::trim_values(&mut trailers);
                            Ok(Frame::trailers(trailers))
                        }
                        None => return Poll::Ready(None),
                    }
                }
                Err(error) => Err(error),
            },
        };
        Poll::Ready(Some(frame.map_err(|error| {
            self.complain(UpstreamTrouble::CutOff, &error);
            self.drop_stream();
            self.give_up();
            if error.is_reset() && error.is_remote() { ProtocolFault::Reset } else { ProtocolFault::Cut }
        })))
    }

    /// The answer is whole; what is left of the request may still be sent.
    fn finish(&mut self) {
        self.answered = true;
        self.left = Some(0);
        self.release();
    }

    pub fn release(&mut self) {
        if self.answered && self.upload.end.is_some() {
            self.drop_stream();
        }
    }

    /// A stream that has not ended on both sides is reset by that.
    fn drop_stream(&mut self) {
        (self.answer, self.body, self.upload.stream, self.place) = (None, None, None, None);
    }

    fn reset(&mut self, reason: Reason) {
        if let Some(stream) = &mut self.upload.stream {
            stream.send_reset(reason);
        }
        self.drop_stream();
    }

    /// The server has let a deadline pass.
    pub fn doubt(&self) {
        if let Some(place) = &self.place {
            place.connection().doubt(place.now_ms());
        }
    }

    pub fn server(&self) -> String {
        self.place.as_ref().map_or_else(String::new, |place| place.server().label().to_owned())
    }

    pub fn complain(&self, kind: UpstreamTrouble, error: &dyn fmt::Display) {
        self.complaints.tell(kind, &self.server(), error);
    }

    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// The request was sent, and the server has not said that it did not look at it.
    pub fn has_left(&self) -> bool {
        self.opened && !self.refused
    }

    pub fn is_begun(&self) -> bool {
        self.body.is_some() || self.answered
    }

    pub fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }

    pub fn is_sent(&self) -> bool {
        self.upload.end == Some(SendEnd::Done)
    }

    /// Sends what is there of the request body.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.place {
            Some(_) => self.upload.poll(cx).map(drop),
            None => Poll::Ready(()),
        }
    }

    /// The client has left: what is missing of its request will not come. A stream cannot say so but by its reset,
    /// by which a server that works on would be lost sight of: it waits for the rest until the exchange is dropped.
    pub fn poll_abandon(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.answer.is_none() && self.body.is_none() {
            // Nothing has left.
            self.drop_stream();
        } else if !self.is_sent() {
            self.give_up();
            (self.upload.piece, self.upload.trailers, self.upload.replay) = (Bytes::new(), None, None);
        }
        Poll::Ready(())
    }

    pub fn give_up(&mut self) -> Option<Upload> {
        if self.is_sent() {
            return None;
        }
        self.upload.end = Some(SendEnd::Broken);
        self.upload.upload.take()
    }
}

impl SentBody {
    fn progress(&self) -> Option<&UploadProgress> {
        self.upload.as_ref().map(Upload::progress)
    }

    /// Sends what is there; ready once nothing more is to be sent.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendEnd> {
        if let Some(end) = self.end {
            return Poll::Ready(end);
        }
        let end = ready!(self.poll_end(cx));
        if let (SendEnd::Done, Some(progress)) = (end, self.progress()) {
            progress.sent();
        }
        self.end = Some(end);
        Poll::Ready(end)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<SendEnd> {
        loop {
            if !self.piece.is_empty() {
                match ready!(self.poll_piece(cx)) {
                    Some(end) => return Poll::Ready(end),
                    None => continue,
                }
            }
            let Some(stream) = &mut self.stream else { return Poll::Ready(SendEnd::Broken) };
            if self.whole {
                // They may have to be sent again.
                let sent = match self.trailers.clone() {
                    Some(trailers) => stream.send_trailers(trailers),
                    None => stream.send_data(Bytes::new(), true),
                };
                return Poll::Ready(if sent.is_ok() { SendEnd::Done } else { SendEnd::Broken });
            }
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(SendEnd::Broken);
            }
            let Some(upload) = &mut self.upload else { return Poll::Ready(SendEnd::Broken) };
            let frame = match ready!(upload.poll(cx)) {
                None => None,
                Some(Ok(frame)) => Some(frame),
                Some(Err(_)) => return Poll::Ready(SendEnd::Upload),
            };
            self.whole = upload.is_end();
            match frame.map(Frame::into_data) {
                None => self.whole = true,
                Some(Ok(data)) => self.piece = data,
                Some(Err(frame)) => {
                    self.trailers = frame.into_trailers().ok();
                    self.trailers.iter_mut().for_each(headers::clean_trailers);
                    self.whole = true;
                }
            }
        }
    }

    /// Sends what the server takes of the piece; an end where nothing follows it.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<SendEnd>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Some(SendEnd::Broken)) };
        stream.reserve_capacity(self.piece.len());
        if stream.capacity() == 0 {
            match stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => return Poll::Ready(None),
                Poll::Ready(_) => return Poll::Ready(Some(SendEnd::Broken)),
                Poll::Pending => {
                    if let Some(progress) = self.progress() {
                        progress.wait_for_upstream();
                    }
                    return Poll::Pending;
                }
            }
        }
        let part = self.piece.split_to(stream.capacity().min(self.piece.len()));
        let last = self.piece.is_empty() && self.whole && self.trailers.is_none();
        self.replayed += part.len();
        match &mut self.replay {
            Some(replay) if self.replayed <= REPLAY_MAX => replay.push(part.clone()),
            _ => self.replay = None,
        }
        let count = part.len();
        self.frames.sent_data(count);
        if stream.send_data(part, last).is_err() {
            return Poll::Ready(Some(SendEnd::Broken));
        }
        if let Some(progress) = self.progress() {
            progress.moved(count);
        }
        Poll::Ready(last.then_some(SendEnd::Done))
    }
}
