//! A client's stream as the parser sees it: whatever it reads and writes passes here. Made by
//! `h1`.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use super::bounds::Bounds;
use super::client_io::{ClientIo, ReadAs};
use super::stream::Stream;
use crate::http::context::Client;
use crate::http::deadline::Phase;

/// Notes the first byte of a request, which starts the deadline of its head, shows all bytes to the
/// inspector, which may keep some from the parser, and keeps the end of the stream back while a request is
/// under way.
pub struct AsWatched {
    header_timeout: Duration,
    half_close_timeout: Duration,
    /// From where a body breaks off: not for the parser.
    kept_back: Bytes,
    /// The parser has answered what it could not read, in a form that is not ours.
    withheld: bool,
}

pub type Watched = ClientIo<AsWatched>;

impl Watched {
    /// `start` has been read of `stream`, by nobody who parses.
    pub fn new(stream: Stream, start: Bytes, client: Rc<Client>, bounds: &Bounds) -> Watched {
        let Bounds { header_timeout, half_close_timeout, .. } = *bounds;
        let mut unread = start;
        let kept_back = unread.split_off(inspect(&client, &unread));
        let reader = AsWatched { header_timeout, half_close_timeout, kept_back, withheld: false };
        ClientIo { stream, unread, client, reader }
    }

    /// `unread` comes first.
    pub fn after(self, unread: &[u8]) -> Watched {
        // A copy of next to nothing: even an empty part would keep the whole buffer.
        ClientIo { unread: Bytes::copy_from_slice(unread), ..self }
    }

    /// The stream, with what was read of it and not used: `read` by a parser, and before.
    pub fn into_stream(self, read: &[u8]) -> (Stream, Vec<u8>) {
        (self.stream, [read, &self.unread, &self.reader.kept_back].concat())
    }

    /// Ready once there is something to read, be it the end or an error.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unread.is_empty() { self.stream.poll_readable(cx).map(drop) } else { Poll::Ready(()) }
    }

    /// Says farewell to the client, as far as the socket takes it at once.
    pub async fn close(mut self) {
        poll_fn(|cx| {
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            Poll::Ready(())
        })
        .await;
    }

    pub fn has_withheld(&self) -> bool {
        self.reader.withheld
    }

    /// Answers what is no request, and closes once the client has read that or is gone: closing before would
    /// reset the connection, and the answer might be lost.
    pub async fn refuse(mut self, answer: &[u8]) {
        let farewell = async {
            self.stream.write_all(answer).await?;
            self.stream.shutdown().await?;
            let mut rest = [0; 1024];
            let mut left = REFUSED_MAX;
            while left > 0 {
                match self.stream.read(&mut rest).await? {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
            Ok::<(), io::Error>(())
        };
        let _ = timeout(FAREWELL, farewell).await;
    }

    /// The first byte of a request starts the deadline of its head.
    fn begin_head(&self) {
        if self.client.deadline().phase() == Phase::Idle {
            self.client.deadline().arm(Phase::Head, self.reader.header_timeout);
        }
    }
}

/// How long a client may take to read that it is refused, and what is read of it meanwhile.
const FAREWELL: Duration = Duration::from_secs(1);
const REFUSED_MAX: usize = 1024 * 1024;

/// How many of these bytes the parser may have.
fn inspect(client: &Client, bytes: &[u8]) -> usize {
    client.inspector.as_ref().map_or(bytes.len(), |inspector| inspector.borrow_mut().feed(bytes))
}

/// As the parser itself says it of other faults in a body.
fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the body is not framed by the letter")
}

impl ReadAs for AsWatched {
    /// While a head is awaited and all has been written, the parser has nothing to say but that it cannot read
    /// it.
    fn withholds(io: &mut Watched, bytes: &[u8]) -> bool {
        let deadline = io.client.deadline();
        let own = deadline.phase() == Phase::Head && deadline.is_flushed() && bytes.starts_with(b"HTTP/1.1 4");
        io.reader.withheld |= own;
        io.reader.withheld
    }

    fn has_withheld(&self) -> bool {
        self.withheld
    }

    fn poll_read(io: &mut Watched, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if io.take_unread(buf) {
            io.begin_head();
            return Poll::Ready(Ok(()));
        }
        if !io.reader.kept_back.is_empty() {
            return Poll::Ready(Err(broken()));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut io.stream).poll_read(cx, buf);
        let fresh = &buf.filled()[before..];
        let ended = fresh.is_empty() && buf.remaining() > 0 && matches!(result, Poll::Ready(Ok(())));
        if ended && io.client.deadline().half_closed(io.reader.half_close_timeout) {
            // The server would drop the request. It asks again after the answer.
            return Poll::Pending;
        }
        if !fresh.is_empty() {
            io.begin_head();
        }
        let passed = inspect(&io.client, fresh);
        if passed < fresh.len() {
            io.reader.kept_back = Bytes::copy_from_slice(&fresh[passed..]);
            buf.set_filled(before + passed);
            if passed == 0 {
                return Poll::Ready(Err(broken()));
            }
        }
        result
    }
}
