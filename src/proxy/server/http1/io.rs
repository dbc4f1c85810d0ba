//! The filter between an HTTP/1.1 client's stream and the parser. It bounds heads in time, shows all bytes to the
//! inspector and handles the client's half-close.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use crate::proxy::connection::body::discard::discard_connection;
use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::stream::Stream;
use crate::proxy::context::ClientConnection;
use crate::proxy::head::inspector::FramingEdit;
use crate::proxy::head::raw_target;
use crate::proxy::steps::client_io::{ClientIo, ReadFilter};

/// The filter of HTTP/1.1:
///
/// - The first byte of a request starts the timer of its head.
/// - The inspector sees all bytes, and keeps some from the parser.
/// - A request line with characters that the parser refuses is encoded.
/// - Extensions of chunks are removed, because the parser bounds those of a whole body.
/// - The end of the stream is withheld from the parser while it would lose the client a response.
pub struct Http1Filter {
    /// Bytes from where the framing of a body is broken. The parser does not get them.
    kept_back: Bytes,
    /// The parser has written an error response of its own, which the gateway replaces.
    withheld: bool,
    /// The beginning of a request line that is not whole yet.
    line: Vec<u8>,
    /// The next bytes are the first ones of the connection.
    is_new: bool,
}

/// The stream of an HTTP/1.1 client, as the parser reads and writes it.
pub type Http1Io = ClientIo<Http1Filter>;

impl Http1Io {
    /// Wraps `stream`, from which `start` was read while the protocol was detected.
    pub fn new(stream: Stream, start: Bytes, client: Rc<ClientConnection>) -> Http1Io {
        let mut unread = start;
        let kept_back = unread.split_off(count_visible_bytes(&client, &unread));
        let filter = Http1Filter { kept_back, withheld: false, line: Vec::new(), is_new: true };
        ClientIo { stream, unread, client, filter }
    }

    /// Frees what a resting connection does not need. The next parser reads `unread` first.
    pub fn prepare_rest(&mut self, unread: &[u8]) {
        // A copy of a few bytes. A part of the buffer, even an empty one, would keep all of it.
        self.unread = Bytes::copy_from_slice(unread);
        // An exchange that lingers may hold the client too, and keeps the caches then.
        if let Some(client) = Rc::get_mut(&mut self.client) {
            client.release_caches();
        }
    }

    /// Encodes the request lines in `fresh`, holds one that is not whole yet, and removes extensions of chunks.
    /// `may_begin`: `fresh` may begin with a request line or its rest. Returns false if the parser gets `fresh` as it is.
    /// Otherwise it reads `unread`.
    ///
    /// Only an inspector finds extensions, and request lines behind other requests. Without one, only a line at the start
    /// of `fresh` is encoded, and the parser gets the rest as it is.
    fn replace_lines(&mut self, fresh: &[u8], may_begin: bool) -> bool {
        let edits = self.client.inspector.as_ref().map(|inspector| inspector.borrow_mut().take_edits());
        let (replaced, held) = edit_framing(fresh, &edits.unwrap_or_default());
        let has_begun = may_begin && self.replace_line(replaced.as_deref().unwrap_or(fresh));
        let is_replaced = has_begun || replaced.is_some();
        if let Some(replaced) = replaced.filter(|_| !has_begun) {
            self.unread = replaced.into();
        }
        if !held.is_empty() {
            self.filter.line = held;
        }
        is_replaced
    }

    /// Encodes the request line at the start of `fresh`, or holds it until it is whole. Returns false if the parser
    /// gets `fresh` as it is. Otherwise it reads `unread` instead.
    fn replace_line(&mut self, fresh: &[u8]) -> bool {
        if self.filter.line.is_empty() {
            // Empty lines may come before it.
            let is_empty_line = !fresh.is_empty() && fresh.trim_ascii().is_empty();
            if !is_empty_line && !raw_target::begins_request_line(fresh) {
                return false;
            }
            if raw_target::has_whole_line(fresh) {
                let request_line = raw_target::encode_request_line(fresh);
                let is_replaced = request_line.is_some();
                self.unread = request_line.unwrap_or_default().into();
                return is_replaced;
            }
        }
        self.filter.line.extend_from_slice(fresh);
        let is_whole = raw_target::has_whole_line(&self.filter.line);
        if is_whole || fresh.is_empty() || self.filter.line.len() > self.client.settings.max_header_bytes {
            let line = std::mem::take(&mut self.filter.line);
            self.unread = raw_target::encode_request_line(&line).unwrap_or(line).into();
        }
        true
    }

    /// Adds the line that is held to the bytes that the parser has read.
    pub fn add_held_line(&mut self, read: Bytes) -> Bytes {
        if self.filter.line.is_empty() {
            read
        } else {
            [&read[..], &std::mem::take(&mut self.filter.line)].concat().into()
        }
    }

    /// Returns the stream and all bytes that were read from it and not used. `read`: those that the parser has read.
    pub fn into_stream(self, read: &[u8]) -> (Stream, Vec<u8>) {
        (self.stream, [read, &self.unread, &self.filter.kept_back].concat())
    }

    /// Returns ready once there is something to read, the stream has ended or failed.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unread.is_empty() { self.stream.poll_readable(cx).map(drop) } else { Poll::Ready(()) }
    }

    /// Shuts the connection down, as far as that is possible without waiting.
    pub async fn close(mut self: Box<Self>) {
        poll_fn(|cx| {
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Returns whether the parser's own error response was withheld, so that the gateway has to write one.
    pub fn has_withheld(&self) -> bool {
        self.filter.withheld
    }

    /// Returns whether the client has sent bytes that nobody has read, or may still send some of a request body.
    pub fn has_unread_rest(&self) -> bool {
        !self.client.connection().has_no_unread_body() || self.stream.has_unread_bytes()
    }

    /// Writes an error response and closes.
    pub async fn refuse_and_close(mut self: Box<Self>, response: &[u8]) {
        let written = async {
            self.stream.write_all(response).await?;
            self.stream.shutdown().await
        };
        if let Ok(Ok(())) = timeout(WRITE_TIME, written).await {
            self.discard_rest().await;
        }
    }

    /// Discards what the client still sends, after the sending side has been shut down. To close at once would reset
    /// the connection, and the client might lose the response.
    pub async fn discard_rest(self: Box<Self>) {
        let client = self.client;
        discard_connection(self.stream, client.connection(), &client.worker.discards, client.peer).await;
    }

    /// Starts the timer of a head with its first byte.
    fn begin_head(&self) {
        if self.client.connection().phase().is_idle() {
            self.client.connection().enter_phase(Phase::Head, self.client.settings.header_timeout);
        }
    }
}

/// The longest time to write an error response of a few kilobytes.
const WRITE_TIME: Duration = Duration::from_secs(1);

/// Shows `bytes` to the inspector. Returns how many of them the parser may see.
fn count_visible_bytes(client: &ClientConnection, bytes: &[u8]) -> usize {
    client.inspector.as_ref().map_or(bytes.len(), |inspector| inspector.borrow_mut().feed(bytes))
}

/// Encodes request lines in `bytes`, and removes extensions. Returns the bytes that replace these, unless they stay as
/// they are, and the beginning of a request line that is not whole.
fn edit_framing(bytes: &[u8], edits: &[FramingEdit]) -> (Option<Vec<u8>>, Vec<u8>) {
    let (mut replaced, mut held, mut at) = (None, Vec::new(), 0);
    for edit in edits {
        let (start, end, encoded) = match *edit {
            FramingEdit::Extension { start, end, ends_line } => {
                (start, end, Some(if ends_line { b"\r\n".to_vec() } else { Vec::new() }))
            }
            FramingEdit::RequestLine { start, end: Some(end) } => {
                (start, end, raw_target::encode_request_line(&bytes[start..end]))
            }
            FramingEdit::RequestLine { start, end: None } => {
                let begins = raw_target::begins_request_line(&bytes[start..]);
                if begins {
                    held = bytes[start..].to_vec();
                }
                (start, bytes.len(), begins.then(Vec::new))
            }
        };
        if let Some(encoded) = encoded {
            let output: &mut Vec<u8> = replaced.get_or_insert_default();
            output.extend_from_slice(&bytes[at..start]);
            output.extend_from_slice(&encoded);
            at = end;
        }
    }
    if let Some(output) = &mut replaced {
        output.extend_from_slice(&bytes[at..]);
    }
    (replaced, held)
}

/// Makes the same kind of error as the parser does for other faults in a body.
fn broken_framing() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the framing of the request body is malformed")
}

impl ReadFilter for Http1Filter {
    /// Withholds the parser's error response. While no response is due, the parser writes nothing but its response to a
    /// head that it cannot parse.
    fn withhold_write(io: &mut Http1Io, bytes: &[u8]) -> bool {
        let own = io.client.connection().owes_nothing() && bytes.starts_with(b"HTTP/1.1 4");
        io.filter.withheld |= own;
        io.filter.withheld
    }

    fn has_withheld(&self) -> bool {
        self.withheld
    }

    fn poll_read(io: &mut Http1Io, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(result) = read_unless_held(io, cx, buf) {
                return result;
            }
        }
    }
}

/// Reads once. Returns `None` if what was read is held, or has been replaced by `unread`: the next read continues.
fn read_unless_held(io: &mut Http1Io, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Option<Poll<io::Result<()>>> {
    if io.filter.is_new && !io.unread.is_empty() {
        io.filter.is_new = false;
        let start = std::mem::take(&mut io.unread);
        if !io.replace_lines(&start, true) {
            io.unread = start;
        }
    }
    if io.read_unread(buf) {
        io.begin_head();
        return Some(Poll::Ready(Ok(())));
    }
    if !io.filter.kept_back.is_empty() {
        return Some(Poll::Ready(Err(broken_framing())));
    }
    let before = buf.filled().len();
    let connection = io.client.connection();
    // Bytes of a body that looks like a request line stay as they are.
    let is_line = io.filter.is_new || (connection.phase().is_idle() && connection.awaits_head());
    let result = Pin::new(&mut io.stream).poll_read(cx, buf);
    let fresh = &buf.filled()[before..];
    let is_at_end = fresh.is_empty() && buf.remaining() > 0 && matches!(result, Poll::Ready(Ok(())));
    if is_at_end && io.client.connection().half_close(io.client.settings.half_close_timeout) {
        // The parser would drop the request or its response. It reads again once that is written.
        return Some(Poll::Pending);
    }
    if !fresh.is_empty() {
        io.begin_head();
    }
    let passed = count_visible_bytes(&io.client, fresh);
    if passed < fresh.len() {
        io.filter.kept_back = Bytes::copy_from_slice(&fresh[passed..]);
        buf.set_filled(before + passed);
        if passed == 0 {
            return Some(Poll::Ready(Err(broken_framing())));
        }
    }
    let fresh = &buf.filled()[before..];
    io.filter.is_new &= fresh.is_empty();
    let may_begin = is_line || !io.filter.line.is_empty();
    if matches!(result, Poll::Ready(Ok(()))) && io.replace_lines(fresh, may_begin) {
        buf.set_filled(before);
        return None;
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::head::inspector::Inspector;

    const POST: &str = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";

    /// Returns what the parser gets of `bytes`, in pieces of `step`, and whether the framing is broken.
    fn edit(bytes: &[u8], step: usize) -> (Vec<u8>, bool) {
        let (mut inspector, mut passed) = (Inspector::new(20_000), Vec::new());
        for piece in bytes.chunks(step) {
            let visible = inspector.feed(piece);
            let (replaced, held) = edit_framing(&piece[..visible], &inspector.take_edits());
            passed.extend(replaced.unwrap_or_else(|| piece[..visible].to_vec()));
            passed.extend(held);
            if visible < piece.len() {
                return (passed, true);
            }
        }
        (passed, false)
    }

    #[test]
    fn the_parser_gets_chunks_without_their_extensions() {
        let next = "POST /?a;b HTTP/1.1\r\nx: a;b\r\ncontent-length: 5\r\n\r\n1;a\r\n";
        for (body, plain) in [
            ("1;a=b\r\nx\r\n0\r\n\r\n", "1\r\nx\r\n0\r\n\r\n"),
            ("4;\r\na;\r\n\r\n0;last\r\nt: v;w\r\n\r\n", "4\r\na;\r\n\r\n0\r\nt: v;w\r\n\r\n"),
            ("2 ; a=\"b;c\" ; d\r\n;;\r\n0\r\n\r\n", "2 \r\n;;\r\n0\r\n\r\n"),
        ] {
            let (bytes, expected) = ([POST, body, next].concat(), [POST, plain, next].concat());
            for step in 1..=bytes.len() {
                let (passed, is_broken) = edit(bytes.as_bytes(), step);
                assert_eq!((String::from_utf8(passed).unwrap(), is_broken), (expected.clone(), false), "by {step}");
            }
        }
    }

    #[test]
    fn extensions_are_bounded_by_the_number_of_chunks() {
        let chunk = |length: usize| format!("1;{}\r\nx\r\n", "a".repeat(length));
        let large = 16 * 1024 - 1;
        for (body, is_broken) in [
            (chunk(large), false),
            (chunk(large + 1), true),
            (chunk(large) + &chunk(256), true),
            (chunk(large) + &chunk(255).repeat(1000), false),
        ] {
            let bytes = [POST, &body].concat();
            for step in [1, 700, 100_000] {
                let (passed, broken) = edit(bytes.as_bytes(), step);
                assert_eq!(broken, is_broken, "{} bytes by {step}", body.len());
                assert!(!passed[POST.len()..].contains(&b';'));
            }
        }
    }
}
