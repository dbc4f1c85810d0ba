//! The rest of a request body after the response. Many clients read a response only once they have sent their body, and
//! lose it if their stream or connection is reset before. So the gateway reads what still comes and discards it, within
//! bounds: bytes and time for each rest, and rests for each client and for the worker. Beyond them, and when the worker
//! closes, it resets or closes at once.
//!
//! Over HTTP/2 and HTTP/3, [`discard_stream`] keeps the stream half-closed. Afterwards, the gateway asks the client with
//! NO_ERROR to send no more. Over HTTP/1.1, [`discard_connection`] is the end of a connection that nobody reads any
//! more. Bodies that are read to their end, so that their connection stays usable, have the bounds of
//! [`discard_within`] only.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::io::ReadBuf;
use tokio::time::timeout;

use crate::proxy::connection::client_counts::ClientCounts;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::stream::Stream;

/// The most bytes that are discarded for one response.
const DISCARD_BYTES: usize = 32 * 1024 * 1024;
/// The longest time from the end of the response, and the longest pause of the client in it.
const DISCARD_TIME: Duration = Duration::from_secs(10);
const DISCARD_PAUSE: Duration = Duration::from_secs(2);
/// The most streams and connections of a worker whose rest is discarded at the same time, and those of one client.
const DISCARDS_MAX: usize = 1000;
const DISCARDS_PER_CLIENT: usize = 100;
/// Bytes of one read from a connection.
const READ_SIZE: usize = 16 * 1024;

/// The places of a worker for what it discards.
#[derive(Default)]
pub struct DiscardPlaces {
    taken: Cell<usize>,
    by_client: RefCell<ClientCounts>,
    is_closed: Cell<bool>,
}

/// A place, until it is dropped.
struct DiscardPermit {
    places: Rc<DiscardPlaces>,
    ip: IpAddr,
}

impl DiscardPlaces {
    /// Takes a place for the client with the address `ip`. `None` if the client or the worker has none left.
    fn take(self: &Rc<Self>, ip: IpAddr) -> Option<DiscardPermit> {
        let mut by_client = self.by_client.borrow_mut();
        if self.is_closed() || self.taken.get() >= DISCARDS_MAX || by_client.of(ip) >= DISCARDS_PER_CLIENT {
            return None;
        }
        self.taken.set(self.taken.get() + 1);
        by_client.add(ip, 1);
        Some(DiscardPermit { places: self.clone(), ip })
    }

    /// Has the worker discard nothing more. Tasks that wait for their client notice that when they are polled next.
    pub fn close(&self) {
        self.is_closed.set(true);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.get()
    }
}

impl Drop for DiscardPermit {
    fn drop(&mut self) {
        self.places.taken.set(self.places.taken.get() - 1);
        self.places.by_client.borrow_mut().subtract(self.ip, 1);
    }
}

/// Discards the rest of a request on a stream of HTTP/2 or HTTP/3, sent by the client with the address `ip`. `poll_next`
/// reads it, and returns the number of bytes, or `None` at the end. Until the response has ended, only the bytes are
/// bounded: the stream is open anyway. Ends when the client has sent everything or has reset the stream, and at once if
/// the gateway cuts the stream.
pub async fn discard_stream(
    mut poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<usize>>,
    deadline: RequestDeadline,
    places: Rc<DiscardPlaces>,
    ip: IpAddr,
) {
    let mut left = DISCARD_BYTES;
    let mut poll_next = |cx: &mut Context<'_>| match deadline.poll_stream_cut(cx.waker()) {
        true => Poll::Ready(None),
        false => poll_next(cx),
    };
    let is_answered = poll_fn(|cx| {
        while left > 0 && !deadline.is_over() {
            match ready!(poll_next(cx)) {
                Some(length) => left = left.saturating_sub(length),
                None => return Poll::Ready(false),
            }
        }
        // The end of the request wakes its reader.
        if deadline.poll_stream_cut(cx.waker()) || deadline.is_over() { Poll::Ready(true) } else { Poll::Pending }
    })
    .await;
    if is_answered {
        discard_answered(left, poll_next, &places, ip).await;
        deadline.unregister_tasks();
    }
}

/// Discards the rest of a request on a stream whose response has ended, like [`discard_stream`].
pub async fn discard_rest(
    poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<usize>>,
    places: Rc<DiscardPlaces>,
    ip: IpAddr,
) {
    discard_answered(DISCARD_BYTES, poll_next, &places, ip).await;
}

pub fn data_length(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

/// Discards what still comes on a connection whose sending side is closed, until the client closes its side as well.
pub async fn discard_connection(
    mut stream: Stream,
    connection: &ConnectionState,
    places: &Rc<DiscardPlaces>,
    ip: IpAddr,
) {
    let next = |cx: &mut Context<'_>| {
        connection.register_task(cx.waker());
        if connection.is_cut() { Poll::Ready(None) } else { poll_bytes(&mut stream, cx) }
    };
    discard_answered(DISCARD_BYTES, next, places, ip).await;
}

/// Returns the number of bytes that have come. `None` after the last ones.
fn poll_bytes(stream: &mut Stream, cx: &mut Context<'_>) -> Poll<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); READ_SIZE];
    let mut bytes = ReadBuf::uninit(&mut space);
    let read = ready!(stream.poll_discard(cx, &mut bytes));
    Poll::Ready(read.is_ok().then_some(bytes.filled().len()).filter(|count| *count > 0))
}

/// Discards what `poll_next` reads, until it returns `None` or the bounds of a rest are reached. It returns the number
/// of bytes.
pub async fn discard_within(poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<usize>>) {
    discard_bytes(DISCARD_BYTES, poll_next).await;
}

/// Discards the rest of a body after the response. At most `left` bytes can still come. Does nothing if there is no
/// place.
async fn discard_answered(
    left: usize,
    mut poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<usize>>,
    places: &Rc<DiscardPlaces>,
    ip: IpAddr,
) {
    let Some(_place) = places.take(ip) else { return };
    discard_bytes(left, |cx| if places.is_closed() { Poll::Ready(None) } else { poll_next(cx) }).await;
}

async fn discard_bytes(mut left: usize, mut poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<usize>>) {
    let all = async {
        while left > 0
            && let Ok(Some(count)) = timeout(DISCARD_PAUSE, poll_fn(&mut poll_next)).await
        {
            left = left.saturating_sub(count);
        }
    };
    // A bound that is reached needs no report: the response has been sent.
    let _ = timeout(DISCARD_TIME, all).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_places_to_others() {
        let places = Rc::<DiscardPlaces>::default();
        let of = |ip: &str| places.take(ip.parse().unwrap());
        let mut taken: Vec<_> = (0..DISCARDS_PER_CLIENT).map(|_| of("2001:db8::1").unwrap()).collect();
        assert!(of("2001:db8::2").is_none(), "the same network");
        taken.extend(
            (0..DISCARDS_MAX - DISCARDS_PER_CLIENT).map(|number| of(&format!("10.0.{}.1", number / 9)).unwrap()),
        );
        assert!(of("192.0.2.1").is_none());
        taken.remove(0);
        let last = of("192.0.2.1").unwrap();
        drop((taken, last));
        assert!(places.by_client.borrow().sum() == 0 && places.taken.get() == 0);
        places.close();
        assert!(of("192.0.2.1").is_none());
    }
}
