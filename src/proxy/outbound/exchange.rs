//! One request and its response on one connection to a server. HTTP/1.1 and HTTP/2 each implement [`Exchange`].
//! `forward` starts an exchange and waits for the head, `response::body` reads the body, and the functions here finish
//! an exchange that has lost its reader.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::ends::End;
use crate::ends::UpstreamFailureKind;
use crate::proxy::connection::upload::Upload;
use crate::proxy::outbound::http1::ProtocolFault;
use crate::proxy::outbound::interim::InterimResponse;
use crate::proxy::outbound::sender::RequestSender;
use crate::proxy::outbound::switched::SwitchedServer;
use crate::proxy::words::refusal::Refusal;

/// Bytes of a response that are read and discarded. A server with more to send sees the connection close.
const DISCARD_MAX: usize = 1024 * 1024;

/// One request and its response, in the protocol of its connection. The connection serves another request once both
/// sides have ended cleanly and nothing unread is left.
pub trait Exchange {
    /// Sends the request and reads the head of the response.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, Refusal>>;

    /// Reads the body of the response.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProtocolFault>>>;

    /// Sends the part of the request body that has arrived. Ready once nothing more can be sent.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ends the request where it is, because its client has disconnected.
    fn poll_abandon(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ends this exchange and returns the request, if it is safe to send it again.
    fn take_request(&mut self, idempotent: bool) -> Option<RequestSender>;

    /// Returns the server's end of the tunnel, once the server has switched protocols.
    fn take_switched(&mut self) -> Option<SwitchedServer>;

    /// Returns the interim responses that have arrived since the last call.
    fn take_interims(&mut self) -> Vec<InterimResponse>;

    /// Ends a response whose body has reached its length. Over HTTP/1.1, there is nothing to do.
    fn end_at_length(&mut self) {}

    /// Returns the body of the response if it is small and has arrived completely.
    fn take_complete_body(&mut self) -> Option<Bytes>;

    /// Stops sending and returns the rest of the request body, which no server reads.
    fn abort_upload(&mut self) -> Option<Upload>;

    /// Returns the connection to its pool, if both sides have ended.
    fn release_connection(&mut self);

    /// Records that the server has exceeded a deadline, so that the connection is checked before it is used again.
    fn mark_suspect(&self) {}

    /// Logs a failure of the server, sampled.
    fn log_failure(&self, kind: UpstreamFailureKind, error: &dyn fmt::Display);

    /// Returns whether the request body waits for `100 Continue`.
    fn is_held(&self) -> bool;

    /// Returns whether the request has been sent completely.
    fn is_sent(&self) -> bool;

    /// Returns whether at least one byte of the request was written to the server, which may act on it.
    fn has_sent_bytes(&self) -> bool;

    /// Returns whether the head of the response has arrived.
    fn has_head(&self) -> bool;

    /// Returns whether the response has arrived completely.
    fn is_complete(&self) -> bool;

    /// Returns what is known of the remaining length of the response body.
    fn size_hint(&self) -> SizeHint;

    /// Returns true if only the end of the connection ends the response body.
    fn ends_by_close(&self) -> bool {
        false
    }
}

/// Waits for the response and discards it, up to 1 MiB. `response` bounds the time until its head, `stream` each pause
/// of its body.
pub async fn discard_response(exchange: Rc<RefCell<dyn Exchange>>, response: Duration, stream: Duration) {
    poll_fn(|cx| exchange.borrow_mut().poll_abandon(cx)).await;
    let has_head = exchange.borrow().has_head();
    if !has_head {
        let head = timeout(response, poll_fn(|cx| exchange.borrow_mut().poll_head(cx))).await;
        let switches = match head {
            Ok(Ok(head)) => head.status() == StatusCode::SWITCHING_PROTOCOLS,
            // The switch answers a request that will never be complete.
            Ok(Err(refusal)) if refusal.end == End::UpstreamSwitched => true,
            _ => return,
        };
        if switches {
            let switched = exchange.borrow_mut().take_switched();
            if let Some(server) = switched {
                discard_switched(server).await;
            }
            return;
        }
    }
    let mut left = DISCARD_MAX;
    while let Ok(Some(Ok(frame))) = timeout(stream, poll_fn(|cx| exchange.borrow_mut().poll_frame(cx))).await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Ends the gateway's side of a tunnel, and discards what arrives until the server ends its side, up to 1 MiB.
pub async fn discard_switched(mut server: SwitchedServer) {
    // An error means that the server has gone already.
    let _ = server.shutdown().await;
    let (mut left, mut buffer) = (DISCARD_MAX, vec![0; 8 * 1024]);
    while let Ok(count @ 1..) = server.read(&mut buffer).await {
        match left.checked_sub(count) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Sends the rest of a request whose response has begun. If the server accepts no more of it, discards the rest, so
/// that the client can finish sending.
pub async fn send_rest(exchange: Rc<RefCell<dyn Exchange>>) {
    poll_fn(|cx| exchange.borrow_mut().poll_send(cx)).await;
    let rest = {
        let mut exchange = exchange.borrow_mut();
        let rest = exchange.abort_upload();
        exchange.release_connection();
        rest
    };
    if let Some(upload) = rest {
        upload.discard().await;
    }
}
