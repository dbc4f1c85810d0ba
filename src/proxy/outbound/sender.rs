//! Sends a request over HTTP/1.1. The head and the part of a small body that has arrived leave in one write; the rest
//! follows as the client sends it. Used by `http1::exchange`, and between attempts as the form of a request that can be
//! sent again.

use std::io::Write;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use http_body::Frame;

use crate::proxy::connection::upload::{Upload, UploadProgress, UploadState};
use crate::proxy::outbound::dial::UpstreamConnection;
use crate::proxy::outbound::http1::body::{BodyDecoder, BodyPiece};
use crate::proxy::outbound::http1::request::write_header;
use crate::proxy::words::refusal::Refusal;

/// Bytes that are gathered into one write. Larger pieces of a body are sent as they arrive.
const GATHER_MAX: usize = 16 * 1024;

/// A request that is being sent.
pub struct RequestSender {
    /// The head, which is kept until something of the body follows, because it may have to be sent again. Later the
    /// part of the body that was gathered.
    bytes: Vec<u8>,
    /// Length of the head.
    head: usize,
    /// Number of `bytes` that were sent.
    sent: usize,
    /// A large piece of the body, sent after `bytes`.
    piece: Bytes,
    upload: Option<Upload>,
    /// Set for a chunked body: the names of the trailers that its head announced.
    chunked: Option<Vec<HeaderName>>,
    /// The end of the line after the last chunk has not been written.
    open_chunk: bool,
    /// The last byte of the request is in `bytes` or `piece`, or has been sent.
    complete: bool,
    /// The body waits for `100 Continue`.
    held: bool,
    /// True once at least one byte was written to the connection, so that the server may act on the request.
    begun: bool,
    end: Option<SendEnd>,
}

/// How sending has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendEnd {
    /// The request was sent completely.
    Done,
    /// The server accepts no more. It may have sent a response before.
    Broken,
    /// The client did not send its body completely.
    Upload,
}

impl RequestSender {
    /// `head` includes the empty line at its end. `chunked`: the announced trailers of a chunked body.
    pub fn new(head: Vec<u8>, upload: Option<Upload>, chunked: Option<Vec<HeaderName>>) -> RequestSender {
        RequestSender {
            head: head.len(),
            bytes: head,
            sent: 0,
            piece: Bytes::new(),
            complete: upload.is_none(),
            upload,
            chunked,
            open_chunk: false,
            held: false,
            begun: false,
            end: None,
        }
    }

    /// Takes apart a request of which nothing was sent: into the head, the body, and the announced trailers. The
    /// gathered part of the body is put back.
    pub fn into_parts(mut self) -> (Vec<u8>, Option<Upload>, Option<Vec<HeaderName>>) {
        let mut gathered = BytesMut::from(&self.bytes[self.head..]);
        gathered.extend_from_slice(&self.piece);
        self.bytes.truncate(self.head);
        if let Some(upload) = self.upload.as_mut().filter(|_| !gathered.is_empty()) {
            let mut body = match self.chunked {
                Some(_) => BodyDecoder::new_chunked(),
                None => BodyDecoder::Length(gathered.len() as u64),
            };
            let frames = std::iter::from_fn(|| match body.next_piece(&mut gathered, false) {
                Ok(BodyPiece::Data(data)) => Some(Frame::data(data)),
                Ok(BodyPiece::Trailers(trailers)) => Some(Frame::trailers(trailers)),
                _ => None,
            });
            upload.put_back(frames.collect::<Vec<_>>().into_iter());
        }
        (self.bytes, self.upload, self.chunked)
    }

    /// Holds the body back until `release_body`.
    pub fn hold_body(&mut self) {
        self.held = self.upload.is_some();
    }

    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Sends the held body.
    pub fn release_body(&mut self) {
        self.held = false;
    }

    pub fn end(&self) -> Option<SendEnd> {
        self.end
    }

    /// Returns whether at least one byte was written to the connection, so that the server may act on the request.
    pub fn has_sent_bytes(&self) -> bool {
        self.begun
    }

    /// Returns the request to be sent again from its first byte, if no server can have acted on it, or if it is
    /// `idempotent` and has no body.
    pub fn take_for_retry(&mut self, idempotent: bool) -> Option<RequestSender> {
        let safe = !self.begun || (idempotent && self.upload.is_none());
        if !safe || self.end == Some(SendEnd::Upload) {
            return None;
        }
        let left = RequestSender { end: Some(SendEnd::Broken), ..RequestSender::new(Vec::new(), None, None) };
        Some(RequestSender { sent: 0, begun: false, end: None, ..std::mem::replace(self, left) })
    }

    /// Replaces the head of a request of which nothing was sent.
    pub fn set_head(&mut self, head: Vec<u8>) {
        let length = head.len();
        self.bytes.splice(..self.head, head);
        self.head = length;
    }

    /// Stops sending and returns the rest of the body.
    pub fn abort_upload(&mut self) -> Option<Upload> {
        if self.end == Some(SendEnd::Done) {
            return None;
        }
        self.end = Some(SendEnd::Broken);
        self.upload.take()
    }

    /// Sends what has arrived. Ready once nothing more can be sent.
    pub fn poll_request(&mut self, connection: &mut UpstreamConnection, cx: &mut Context<'_>) -> Poll<SendEnd> {
        if let Some(end) = self.end {
            return Poll::Ready(end);
        }
        let end = ready!(self.poll_end(connection, cx));
        if let (SendEnd::Done, Some(progress)) = (end, self.progress()) {
            progress.upload_sent();
        }
        self.end = Some(end);
        Poll::Ready(end)
    }

    fn poll_end(&mut self, connection: &mut UpstreamConnection, cx: &mut Context<'_>) -> Poll<SendEnd> {
        loop {
            // While the server accepts nothing, the client's body is not read.
            let gathered = match self.held || self.complete || (self.begun && self.is_pending()) {
                true => Poll::Ready(true),
                false => self.gather_body(cx),
            };
            // If the body fails before anything was sent, the server gets nothing.
            if !self.begun && matches!(gathered, Poll::Ready(false)) {
                return Poll::Ready(SendEnd::Upload);
            }
            match self.poll_write(connection, cx) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(SendEnd::Broken),
                Poll::Pending => {
                    if let Some(progress) = self.progress() {
                        progress.wait_for_upstream();
                    }
                    return Poll::Pending;
                }
            }
            match gathered {
                // The caller of `release_body` polls again.
                _ if self.held => return Poll::Pending,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(false) => return Poll::Ready(SendEnd::Upload),
                Poll::Ready(true) if self.complete => return Poll::Ready(SendEnd::Done),
                Poll::Ready(true) => {}
            }
        }
    }

    /// Returns why the client's body cannot be completed.
    pub fn upload_error(&self) -> Refusal {
        self.progress().map_or(UploadState::Broken, UploadProgress::state).end().into()
    }

    fn progress(&self) -> Option<&UploadProgress> {
        self.upload.as_ref().map(Upload::progress)
    }

    fn is_pending(&self) -> bool {
        self.sent < self.bytes.len() || !self.piece.is_empty()
    }

    /// Writes the gathered bytes and the piece. Returns false if the server accepts no more.
    fn poll_write(&mut self, connection: &mut UpstreamConnection, cx: &mut Context<'_>) -> Poll<bool> {
        while self.is_pending() {
            let gathered = self.sent < self.bytes.len();
            let bytes = if gathered { &self.bytes[self.sent..] } else { &self.piece[..] };
            let Ok(count @ 1..) = ready!(connection.poll_send(cx, bytes)) else { return Poll::Ready(false) };
            self.begun = true;
            if gathered {
                self.sent += count;
            } else {
                drop(self.piece.split_to(count));
            }
            if let Some(progress) = self.progress() {
                progress.bytes_sent(count);
            }
        }
        connection.poll_flush(cx).map(|flushed| flushed.is_ok())
    }

    /// Gathers the part of the body that has arrived, up to one write. Returns false if the client did not send its
    /// body completely.
    fn gather_body(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.begun {
            self.bytes.clear();
            self.sent = 0;
        }
        while self.piece.is_empty() && self.bytes.len() < GATHER_MAX && !self.complete {
            let Some(upload) = &mut self.upload else { return Poll::Ready(true) };
            let frame = match ready!(upload.poll(cx)) {
                None => None,
                Some(Ok(frame)) => Some(frame),
                Some(Err(_)) => return Poll::Ready(false),
            };
            let last = upload.is_end();
            match frame.map(Frame::into_data) {
                None => self.complete_body(None),
                Some(Err(frame)) => self.complete_body(frame.into_trailers().ok()),
                Some(Ok(data)) => {
                    self.push_data(data);
                    if last {
                        self.complete_body(None);
                    }
                }
            }
        }
        Poll::Ready(true)
    }

    /// Adds a piece of the body.
    fn push_data(&mut self, data: Bytes) {
        // An empty chunk would end the body.
        if data.is_empty() {
            return;
        }
        self.close_chunk();
        if self.chunked.is_some() {
            let _ = write!(self.bytes, "{:x}\r\n", data.len());
            self.open_chunk = true;
        }
        if self.bytes.len() + data.len() <= GATHER_MAX {
            self.bytes.extend_from_slice(&data);
            self.close_chunk();
        } else {
            self.piece = data;
        }
    }

    fn close_chunk(&mut self) {
        if std::mem::take(&mut self.open_chunk) {
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Ends the body, with the trailers that were announced.
    fn complete_body(&mut self, trailers: Option<HeaderMap>) {
        if self.chunked.is_some() {
            if !self.piece.is_empty() {
                // The end follows the piece, with the next write.
                return;
            }
            self.close_chunk();
            self.bytes.extend_from_slice(b"0\r\n");
            let trailer_names = self.chunked.as_deref().unwrap_or_default();
            for (name, value) in trailers.iter().flatten() {
                if trailer_names.contains(name) {
                    write_header(&mut self.bytes, name, value);
                }
            }
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.complete = true;
    }
}
