//! A request on its way out: its head and what is at hand of a small body leave in one write, the rest
//! follows piece by piece as the client sends it. Used by `exchange`.

use std::io::Write;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use http_body::Frame;

use super::connect::UpstreamConnection;
use super::h1::body::{Decoder, Piece};
use super::h1::request::write_field;
use crate::http::downstream::upload::{Upload, UploadProgress};

/// Bytes gathered into one write; larger pieces of a body are sent as they came.
const GATHER_MAX: usize = 16 * 1024;

pub struct Sender {
    /// The head, which is kept until there is an answer, as it may have to be sent again; later what was
    /// gathered of the body.
    bytes: Vec<u8>,
    /// Length of the head.
    head: usize,
    /// Of `bytes`.
    sent: usize,
    /// A large piece of the body, sent after `bytes`.
    piece: Bytes,
    upload: Option<Upload>,
    /// Of a chunked body: the names of the trailers that its head announced.
    chunked: Option<Vec<HeaderName>>,
    /// `piece` is a chunk whose line end follows.
    open_chunk: bool,
    /// The last byte of the request is in `bytes` or `piece`, or has been sent.
    complete: bool,
    /// The body waits until the server asks for it.
    held: bool,
    /// The connection has taken something, so the upstream may have seen it.
    begun: bool,
    end: Option<SendEnd>,
}

/// Why nothing more is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendEnd {
    /// All of it was.
    Done,
    /// The upstream takes no more. It may have answered before.
    Broken,
    /// The body cannot be completed.
    Upload,
}

impl Sender {
    /// `head` ends with its empty line.
    pub fn new(head: Vec<u8>, upload: Option<Upload>, chunked: Option<Vec<HeaderName>>) -> Sender {
        Sender {
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

    /// Takes it apart, of which nothing has been sent: the head, the body with what was gathered of it put
    /// back, and the trailers that may follow it.
    pub fn into_parts(mut self) -> (Vec<u8>, Option<Upload>, Option<Vec<HeaderName>>) {
        let mut gathered = BytesMut::from(&self.bytes[self.head..]);
        gathered.extend_from_slice(&self.piece);
        self.bytes.truncate(self.head);
        if let Some(upload) = self.upload.as_mut().filter(|_| !gathered.is_empty()) {
            let mut body = match self.chunked {
                Some(_) => Decoder::chunked(),
                None => Decoder::Length(gathered.len() as u64),
            };
            let frames = std::iter::from_fn(|| match body.next(&mut gathered, false) {
                Ok(Piece::Data(data)) => Some(Frame::data(data)),
                Ok(Piece::Trailers(trailers)) => Some(Frame::trailers(trailers)),
                _ => None,
            });
            upload.put_back(frames.collect::<Vec<_>>().into_iter());
        }
        (self.bytes, self.upload, self.chunked)
    }

    /// Sends the head alone, until `go_on`.
    pub fn hold(&mut self) {
        self.held = self.upload.is_some();
    }

    pub fn is_held(&self) -> bool {
        self.held
    }

    pub fn go_on(&mut self) {
        self.held = false;
    }

    pub fn end(&self) -> Option<SendEnd> {
        self.end
    }

    /// The connection has taken at least one byte, so the server may act on the request.
    pub fn is_begun(&self) -> bool {
        self.begun
    }

    /// To be sent once more from its first byte, if no upstream can have acted on it, or, being
    /// `idempotent`, it may act twice. A body that has left is gone.
    pub fn again(&mut self, idempotent: bool) -> Option<Sender> {
        let safe = !self.begun || (idempotent && self.upload.is_none());
        if !safe || self.end == Some(SendEnd::Upload) {
            return None;
        }
        let left = Sender { end: Some(SendEnd::Broken), ..Sender::new(Vec::new(), None, None) };
        Some(Sender { sent: 0, begun: false, end: None, ..std::mem::replace(self, left) })
    }

    /// Replaces the head of a request of which nothing has been sent.
    pub fn set_head(&mut self, head: Vec<u8>) {
        let length = head.len();
        self.bytes.splice(..self.head, head);
        self.head = length;
    }

    /// The rest of the body, which nobody takes any more.
    pub fn give_up(&mut self) -> Option<Upload> {
        if self.end == Some(SendEnd::Done) {
            return None;
        }
        self.end = Some(SendEnd::Broken);
        self.upload.take()
    }

    /// Sends what is there; ready once nothing more is to be sent.
    pub fn poll(&mut self, connection: &mut UpstreamConnection, cx: &mut Context<'_>) -> Poll<SendEnd> {
        if let Some(end) = self.end {
            return Poll::Ready(end);
        }
        let end = ready!(self.poll_end(connection, cx));
        if let (SendEnd::Done, Some(progress)) = (end, self.progress()) {
            progress.sent();
        }
        self.end = Some(end);
        Poll::Ready(end)
    }

    fn poll_end(&mut self, connection: &mut UpstreamConnection, cx: &mut Context<'_>) -> Poll<SendEnd> {
        loop {
            // What the upstream does not take is not asked of the client.
            let gathered = match self.held || self.complete || (self.begun && self.is_pending()) {
                true => Poll::Ready(true),
                false => self.gather(cx),
            };
            // A body that is broken before anything left reaches no server.
            if !self.begun && matches!(gathered, Poll::Ready(false)) {
                return Poll::Ready(SendEnd::Upload);
            }
            match self.poll_send(connection, cx) {
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
                // Whoever lets it go on polls again.
                _ if self.held => return Poll::Pending,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(false) => return Poll::Ready(SendEnd::Upload),
                Poll::Ready(true) if self.complete => return Poll::Ready(SendEnd::Done),
                Poll::Ready(true) => {}
            }
        }
    }

    fn progress(&self) -> Option<&UploadProgress> {
        self.upload.as_ref().map(Upload::progress)
    }

    fn is_pending(&self) -> bool {
        self.sent < self.bytes.len() || !self.piece.is_empty()
    }

    /// False when the upstream takes no more.
    fn poll_send(&mut self, connection: &mut UpstreamConnection, cx: &mut Context<'_>) -> Poll<bool> {
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
                progress.moved(count);
            }
        }
        connection.poll_flush(cx).map(|flushed| flushed.is_ok())
    }

    /// Takes what is at hand of the body, up to what leaves in one write; false when it cannot be
    /// completed.
    fn gather(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
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
                None => self.complete(None),
                Some(Err(frame)) => self.complete(frame.into_trailers().ok()),
                Some(Ok(data)) => {
                    self.push(data);
                    if last {
                        self.complete(None);
                    }
                }
            }
        }
        Poll::Ready(true)
    }

    fn push(&mut self, data: Bytes) {
        // An empty chunk would be the last.
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
    fn complete(&mut self, trailers: Option<HeaderMap>) {
        if self.chunked.is_some() {
            if !self.piece.is_empty() {
                // The end goes after the piece, with the next write.
                return;
            }
            self.close_chunk();
            self.bytes.extend_from_slice(b"0\r\n");
            let announced = self.chunked.as_deref().unwrap_or_default();
            for (name, value) in trailers.iter().flatten() {
                if announced.contains(name) {
                    write_field(&mut self.bytes, name, value);
                }
            }
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.complete = true;
    }
}
