//! One admin connection: one request, its response, close. Called by `mod.rs`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{sleep, timeout};

use crate::admin::access::Peer;
use crate::admin::context::AdminContext;
use crate::admin::inspected_stream::InspectedStream;
use crate::admin::pages::respond;
use crate::admin::slots::{AdminPermit, SlotLost};
use crate::proxy::head::inspector::Inspector;

const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Read buffer of hyper; a longer head gets 431.
const HEAD_MAX: usize = 16 * 1024;
/// Time limit for the whole connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to read what a client still sends after its response: closing at once would cut the response off.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);
const UNREAD_MAX: usize = 2 * 1024 * 1024;

pub async fn serve_connection<S>(
    stream: S,
    peer: Peer,
    context: Rc<AdminContext>,
    (permit, lost): (AdminPermit, SlotLost),
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let permit = Rc::new(permit);
    tokio::select! {
        // The client disconnected, stalled, or blocked others for long enough.
        _ = lost => {}
        () = wait_for_end(&permit) => {}
        () = permit.wait_after_stream() => {}
        () = exchange_request(stream, peer, context, permit.clone()) => {}
    }
}

/// Waits until the time limit of the connection has passed. A connection that streams events has no time limit: the
/// task that produces the events ends it.
async fn wait_for_end(permit: &AdminPermit) {
    loop {
        sleep(CONNECTION_TIMEOUT).await;
        if !permit.is_streaming() {
            return;
        }
    }
}

async fn exchange_request<S>(stream: S, peer: Peer, context: Rc<AdminContext>, permit: Rc<AdminPermit>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let own = permit.clone();
    let inspector = Rc::new(RefCell::new(Inspector::new(HEAD_MAX)));
    let stream = InspectedStream::new(stream, inspector.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (context, permit) = (context.clone(), own.clone());
        let fault = inspector.borrow_mut().take_fault(request.body().size_hint().exact());
        async move { Ok::<_, Infallible>(respond(&context, request, fault, peer, &permit).await) }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if Pin::new(&mut connection).await.is_ok() {
        // The response has been sent.
        permit.hold_bytes(0);
        let stream = connection.into_parts().io.into_inner().into_inner();
        let _ = timeout(UNREAD_TIMEOUT, drain_client(stream)).await;
    }
}

async fn drain_client(mut stream: impl AsyncRead + Unpin) {
    let (mut piece, mut left) = (vec![0; 4096], UNREAD_MAX);
    while left > 0 {
        let mut read = ReadBuf::new(&mut piece);
        let more = poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut read)).await;
        match read.filled().len() {
            count @ 1.. if more.is_ok() => left = left.saturating_sub(count),
            _ => return,
        }
    }
}
