//! The rest of a request body after the response. Many clients read a response only once they have sent their body, and
//! lose it if their stream or connection is reset before. So the gateway reads what still comes and discards it, within
//! bounds: bytes and time for each client, and clients for each worker. Beyond them it resets or closes at once.
//!
//! Over HTTP/2, [`discard_stream`] keeps the stream half-closed; the library resets it with NO_ERROR when the body is
//! dropped. Over HTTP/1.1, [`discard_connection`] is the end of a connection that nobody reads any more.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tokio::io::ReadBuf;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::stream::Stream;

/// The most bytes that are discarded for one response.
const DISCARD_BYTES: usize = 32 * 1024 * 1024;
/// The longest time from the end of the response, and the longest pause of the client in it.
const DISCARD_TIME: Duration = Duration::from_secs(10);
const DISCARD_PAUSE: Duration = Duration::from_secs(2);
/// The most streams and connections of a worker whose rest is discarded at the same time.
pub const DISCARDS_MAX: usize = 1000;
/// Bytes of one read from a connection.
const READ_SIZE: usize = 16 * 1024;

/// Discards the rest of the body of a request over HTTP/2. Until the response has ended, only the bytes are bounded:
/// the stream is open anyway. Ends when the client has sent everything or has reset the stream, and at once if the
/// gateway cuts the stream. `permits`: those of the worker.
pub async fn discard_stream(mut body: Incoming, deadline: RequestDeadline, permits: Arc<Semaphore>) {
    let mut left = DISCARD_BYTES;
    let is_answered = poll_fn(|cx| {
        while left > 0 && !deadline.is_over() {
            match ready!(poll_data(&mut body, &deadline, cx)) {
                Some(length) => left = left.saturating_sub(length),
                None => return Poll::Ready(false),
            }
        }
        // The end of the request wakes its reader.
        if deadline.poll_stream_cut(cx.waker()) || deadline.is_over() { Poll::Ready(true) } else { Poll::Pending }
    })
    .await;
    if is_answered && let Ok(_permit) = permits.try_acquire() {
        discard_within(left, async || poll_fn(|cx| poll_data(&mut body, &deadline, cx)).await).await;
    }
    if is_answered {
        deadline.unregister_tasks();
    }
}

/// Returns the length of the next frame of `body`. `None` if no other follows.
fn poll_data(body: &mut Incoming, deadline: &RequestDeadline, cx: &mut Context<'_>) -> Poll<Option<usize>> {
    if deadline.poll_stream_cut(cx.waker()) {
        return Poll::Ready(None);
    }
    let length = |frame: Frame<Bytes>| frame.data_ref().map_or(0, Bytes::len);
    Pin::new(body).poll_frame(cx).map(|frame| frame.and_then(Result::ok).map(length))
}

/// Discards what still comes on a connection whose sending side is closed, until the client closes its side as well.
pub async fn discard_connection(mut stream: Stream, connection: &ConnectionState) {
    discard_within(DISCARD_BYTES, async || poll_fn(|cx| poll_bytes(&mut stream, connection, cx)).await).await;
}

/// Returns the number of bytes that have come. `None` after the last ones.
fn poll_bytes(stream: &mut Stream, connection: &ConnectionState, cx: &mut Context<'_>) -> Poll<Option<usize>> {
    connection.register_task(cx.waker());
    if connection.is_cut() {
        return Poll::Ready(None);
    }
    let mut space = [MaybeUninit::uninit(); READ_SIZE];
    let mut bytes = ReadBuf::uninit(&mut space);
    let read = ready!(stream.poll_discard(cx, &mut bytes));
    Poll::Ready(read.is_ok().then_some(bytes.filled().len()).filter(|count| *count > 0))
}

/// Calls `next` until it returns `None` or a bound is reached. `left`: bytes that may still come.
async fn discard_within(mut left: usize, mut next: impl AsyncFnMut() -> Option<usize>) {
    let all = async {
        while left > 0
            && let Ok(Some(count)) = timeout(DISCARD_PAUSE, next()).await
        {
            left = left.saturating_sub(count);
        }
    };
    // A bound that is reached needs no report: the response has been sent.
    let _ = timeout(DISCARD_TIME, all).await;
}
