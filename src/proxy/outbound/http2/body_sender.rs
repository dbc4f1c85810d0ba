//! Sends the body of a request on an HTTP/2 stream, as fast as the client sends it and the server accepts it. Used by
//! `exchange`.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http::{HeaderMap, HeaderName};
use http_body::Frame;

use crate::proxy::connection::upload::{Upload, UploadProgress, UploadState};
use crate::proxy::outbound::http2::frame_guard::FrameBudget;
use crate::proxy::outbound::sender::SendEnd;
use crate::proxy::words::refusal::Refusal;

/// Bytes of a request body that are kept until the response begins, because they may have to be sent again.
const REPLAY_MAX: usize = 64 * 1024;

/// The request body that is being sent.
pub struct BodySender {
    pub upload: Option<Upload>,
    /// Names of the announced trailers, for another attempt over HTTP/1.1.
    pub announced: Option<Vec<HeaderName>>,
    pub stream: Option<SendStream<Bytes>>,
    /// The frames that the server may still send.
    pub frames: Rc<FrameBudget>,
    /// A piece that the client has sent and the server has not accepted yet.
    pub piece: Bytes,
    pub trailers: Option<HeaderMap>,
    /// The client has sent the body completely.
    pub whole: bool,
    /// The part of the body that was sent, to be sent again. `None` once it is larger than `REPLAY_MAX`.
    pub replay: Option<Vec<Bytes>>,
    /// Bytes of the body that were sent.
    replayed: usize,
    pub end: Option<SendEnd>,
}

impl BodySender {
    /// `upload`: the body, if there is one. `announced`: names of the trailers that the head announced.
    pub fn new(upload: Option<Upload>, announced: Option<Vec<HeaderName>>, frames: Rc<FrameBudget>) -> BodySender {
        BodySender {
            whole: upload.is_none(),
            upload,
            announced,
            stream: None,
            frames,
            piece: Bytes::new(),
            trailers: None,
            replay: Some(Vec::new()),
            replayed: 0,
            end: None,
        }
    }

    fn progress(&self) -> Option<&UploadProgress> {
        self.upload.as_ref().map(Upload::progress)
    }

    /// Returns why the client's body cannot be completed.
    pub fn upload_error(&self) -> Refusal {
        self.progress().map_or(UploadState::Broken, UploadProgress::state).end().into()
    }

    /// Sends what has arrived. Ready once nothing more can be sent.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendEnd> {
        if let Some(end) = self.end {
            return Poll::Ready(end);
        }
        let end = ready!(self.poll_end(cx));
        if let (SendEnd::Done, Some(progress)) = (end, self.progress()) {
            progress.upload_sent();
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
                // Cloned because they may have to be sent again.
                let result = match self.trailers.clone() {
                    Some(trailers) => stream.send_trailers(trailers),
                    None => stream.send_data(Bytes::new(), true),
                };
                return Poll::Ready(if result.is_ok() { SendEnd::Done } else { SendEnd::Broken });
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
                    self.whole = true;
                }
            }
        }
    }

    /// Sends as much of the piece as the server accepts. Returns the end if nothing follows the piece.
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
        self.frames.record_sent_data(count);
        if stream.send_data(part, last).is_err() {
            return Poll::Ready(Some(SendEnd::Broken));
        }
        if let Some(progress) = self.progress() {
            progress.bytes_sent(count);
        }
        Poll::Ready(last.then_some(SendEnd::Done))
    }
}
