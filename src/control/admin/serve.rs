//! One connection of the admin listener: one request, its answer, the end. Called by `mod.rs`.

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
use tokio::time::timeout;

use super::inspected::Inspected;
use super::pages::{AdminContext, answer};
use super::room::{AdminTicket, Lost};
use crate::http::downstream::inspect::Inspector;

const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// hyper's read buffer; a longer head is answered 431.
const HEAD_MAX: usize = 16 * 1024;
/// The whole connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// What a client may go on sending after its answer: to close at once would cut the answer off.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);
const UNREAD_MAX: usize = 2 * 1024 * 1024;

pub async fn serve<S>(stream: S, local: bool, context: Rc<AdminContext>, (ticket, lost): (AdminTicket, Lost))
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    tokio::select! {
        // A client that goes away, stalls or keeps others out has had its chance.
        _ = lost => {}
        _ = timeout(CONNECTION_TIMEOUT, exchange(stream, local, context, Rc::new(ticket))) => {}
    }
}

async fn exchange<S>(stream: S, local: bool, context: Rc<AdminContext>, ticket: Rc<AdminTicket>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let own = ticket.clone();
    let inspector = Rc::new(RefCell::new(Inspector::new(HEAD_MAX)));
    let stream = Inspected::new(stream, inspector.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (context, ticket) = (context.clone(), own.clone());
        let fault = inspector.borrow_mut().verdict(request.body().size_hint().exact());
        async move { Ok::<_, Infallible>(answer(&context, request, fault, local, &ticket).await) }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if Pin::new(&mut connection).await.is_ok() {
        // The answer has gone.
        ticket.hold(0);
        let stream = connection.into_parts().io.into_inner().into_inner();
        let _ = timeout(UNREAD_TIMEOUT, read_to_end(stream)).await;
    }
}

async fn read_to_end(mut stream: impl AsyncRead + Unpin) {
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
