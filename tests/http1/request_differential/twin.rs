//! The comparison itself. Also that of the fuzz target `request`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use sluicegate::ends::End;
use sluicegate::proxy::head::inspector::Inspector;

/// Maximum length of a head, and so of a line.
pub const MAX: usize = 1024;

/// A head that hyper has accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperHead {
    pub target: String,
    /// Length of the body; `None` for a chunked one.
    pub length: Option<u64>,
    /// The body is complete.
    pub whole: bool,
    /// How many bytes hyper had then.
    pub at: usize,
}

/// The bytes that have arrived on a connection so far.
#[derive(Clone, Default)]
struct Wire {
    waiting: Rc<RefCell<VecDeque<u8>>>,
    ended: Rc<Cell<bool>>,
}

impl Read for Wire {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() && !self.ended.get() {
            return Poll::Pending;
        }
        let count = waiting.len().min(buf.remaining());
        buf.put_slice(&waiting.drain(..count).collect::<Vec<u8>>());
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns the requests that hyper reads from `pieces`. With an inspector, hyper gets only the bytes that the inspector
/// passes, and the connection ends at a fault, as in the gateway.
pub fn taken(pieces: &[&[u8]], inspector: Option<Inspector>) -> Vec<HyperHead> {
    let (wire, log, fed) = (Wire::default(), Rc::<RefCell<Vec<HyperHead>>>::default(), Rc::<Cell<usize>>::default());
    let inspector = inspector.map(|inspector| Rc::new(RefCell::new(inspector)));
    let service = service_fn(|request: Request<Incoming>| {
        let (log, length) = (log.clone(), request.body().size_hint().exact());
        let verdict = inspector.as_ref().and_then(|inspector| inspector.borrow_mut().take_fault(length));
        let target = request.uri().to_string();
        let place = log.borrow().len();
        log.borrow_mut().push(HyperHead { target, length, whole: false, at: fed.get() });
        async move {
            let whole = request.into_body().collect().await.is_ok();
            log.borrow_mut()[place].whole = whole;
            let mut response = Response::new(Empty::<Bytes>::new());
            if verdict.is_some() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    let connection = builder.max_headers(100).max_buf_size(8192).max_header_size(MAX);
    let mut connection = Box::pin(connection.serve_connection(wire.clone(), service));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut runs = || {
        loop {
            woken.0.store(false, Ordering::SeqCst);
            let polled = connection.as_mut().poll(&mut Context::from_waker(&waker));
            if polled.is_ready() || !woken.0.load(Ordering::SeqCst) {
                return polled.is_pending();
            }
        }
    };
    for piece in pieces {
        let passed = inspector.as_ref().map_or(piece.len(), |inspector| inspector.borrow_mut().feed(piece));
        wire.waiting.borrow_mut().extend(&piece[..passed]);
        fed.set(fed.get() + passed);
        if !runs() || passed < piece.len() {
            break;
        }
    }
    wire.ended.set(true);
    runs();
    drop(connection);
    log.take()
}

/// How the inspector may be stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stricter {
    /// `LineEnd`, `TargetFragment`, `ContentLength`, `TransferEncodingWithLength`.
    Head,
    /// A line of a chunked body that ends in a line feed alone.
    BareLine,
    /// A line that is longer than a head may be.
    LongLine,
}

/// Returns the inspector's verdicts on heads with bodies of these lengths after all bytes, and the number of bytes that
/// it passes.
fn verdicts(pieces: &[&[u8]], heads: &[HyperHead]) -> (Vec<Option<End>>, usize) {
    let mut inspector = Inspector::new(MAX);
    let mut passed = 0;
    for piece in pieces {
        let of_piece = inspector.feed(piece);
        passed += of_piece;
        if of_piece < piece.len() {
            break;
        }
    }
    (heads.iter().map(|head| inspector.take_fault(head.length)).collect(), passed)
}

/// Returns the line at which the inspector stopped a chunked body after `passed` bytes, as far as it has arrived.
fn broken_line(bytes: &[u8], passed: usize) -> &[u8] {
    let begin = bytes[..passed].iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
    let end = bytes[begin..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| begin + end + 1);
    &bytes[begin..end]
}

/// Compares both parsers on `bytes`. Returns the difference if the inspector is stricter.
///
/// # Errors
/// If they differ in another way.
pub fn compare(bytes: &[u8], pieces: &[&[u8]]) -> Result<Option<Stricter>, String> {
    let singles: Vec<&[u8]> = bytes.chunks(1).collect();
    let heads = taken(&singles, None);
    let (said, passed) = verdicts(&singles, &heads);
    let shown = || format!("{:?}\nhyper {heads:?}\nours {said:?}, {passed} passed", String::from_utf8_lossy(bytes));
    for other in [verdicts(&[bytes], &heads), verdicts(pieces, &heads)] {
        if other.0 != said || (other.1 < bytes.len()) != (passed < bytes.len()) {
            return Err(format!("other verdicts in other pieces: {other:?}\n{}", shown()));
        }
    }
    // Both parsers in sequence, as in the gateway.
    let served = taken(&singles, Some(Inspector::new(MAX)));
    let parts = |heads: &[HyperHead]| {
        heads.iter().map(|head| (head.target.clone(), head.length, head.whole)).collect::<Vec<_>>()
    };
    if parts(&served) != parts(&taken(pieces, Some(Inspector::new(MAX)))) {
        return Err(format!("served {served:?} and otherwise in other pieces\n{}", shown()));
    }
    let faulty = said.iter().position(|fault| fault.is_some_and(|fault| fault != End::Framing));
    let vouched = said.iter().take_while(|fault| fault.is_none()).count();
    // No request after a fault is served, and no broken body counts as complete.
    let end = faulty.map_or(vouched, |faulty| faulty + 1);
    let whole = parts(&heads[..end]) == parts(&served);
    let kind = if faulty.is_some() && whole && end == vouched + 1 {
        Some(Stricter::Head)
    } else if faulty.is_none() && whole && end == heads.len() {
        None
    } else if faulty.is_none() && !whole && served.len() == end && passed < bytes.len() {
        let line = broken_line(bytes, passed);
        match line.strip_suffix(b"\n") {
            _ if line.len() > MAX => Some(Stricter::LongLine),
            Some(text) if !text.ends_with(b"\r") => Some(Stricter::BareLine),
            _ => return Err(format!("a body broken off for no reason: {line:?}\n{}", shown())),
        }
    } else {
        return Err(format!("served {served:?}, a verdict too few or too many\n{}", shown()));
    };
    // The inspector gives its verdict with the last byte of the head, not before.
    let mut inspector = Inspector::new(MAX);
    let mut fed = 0;
    for head in &heads[..vouched] {
        inspector.feed(&bytes[fed..head.at - 1]);
        let before = inspector.take_fault(head.length);
        inspector.feed(&bytes[head.at - 1..head.at]);
        if (before, inspector.take_fault(head.length)) != (Some(End::Framing), None) {
            return Err(format!("a head ends elsewhere: {}", shown()));
        }
        fed = head.at;
    }
    Ok(kind)
}
