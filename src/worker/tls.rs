//! The TLS handshake of a new connection, in the connection's own task: it has a deadline, and one at a
//! time computes, so that a flood of them leaves the worker's other connections their turns.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::server::Acceptor;
use rustls::{Error, HandshakeKind, InvalidMessage, ServerConnection};
use tokio::io::AsyncWriteExt;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::Worker;
use super::stream::{Stream, UnderTls};
use crate::http::deadline::{ConnectionDeadline, Phase};
use crate::metrics::HandshakeResult;
use crate::tls::{ServerTls, TlsPeer, asks_for_proof};

/// The client's stream in TLS. What keeps others waiting is the arithmetic; until a client has sent
/// something, nothing is even made for it.
///
/// # Errors
/// Why there will be none; the client has been told as far as the protocol allows.
pub async fn handshake(
    stream: Stream,
    tls: &ServerTls,
    deadline: &ConnectionDeadline,
    worker: &Worker,
) -> Result<Shaken, Failed> {
    let timeout = worker.local.view().snapshot.config.server.handshake_timeout;
    deadline.arm(Phase::Handshake, timeout);
    let due = Due { deadline, worker };
    due.wait_for(poll_fn(|cx| stream.poll_readable(cx))).await?.map_err(Failed::of)?;
    let mut accept = pin!(accept(UnderTls::new(stream), tls));
    loop {
        let turn = due.wait_for(worker.handshake_turn.acquire()).await?;
        // Everybody else first; the next in the queue will do likewise.
        tokio::task::yield_now().await;
        if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(accept.as_mut().poll(cx))).await {
            return result.and_then(|stream| Shaken::of(stream, tls));
        }
        drop(turn);
        due.wait_for(woken()).await?;
    }
}

/// The exchange of messages. An ACME server that looks for a proof gets that and no connection.
async fn accept(stream: UnderTls, tls: &ServerTls) -> Result<TlsStream<UnderTls>, Failed> {
    let Some(challenges) = &tls.challenges else {
        return TlsAcceptor::from(tls.config.clone()).accept(stream).await.map_err(Failed::of);
    };
    let started = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(Failed::of)?;
    let hello = started.client_hello();
    let without = |error| Failed { result: HandshakeResult::NoCertificate, error: Some(error) };
    if asks_for_proof(&hello) {
        let mut stream = started.into_stream(challenges.clone()).await.map_err(without)?;
        // It has seen what it came for.
        let _ = stream.shutdown().await;
        return Err(Failed { result: HandshakeResult::AcmeChallenge, error: None });
    }
    let has_certificate = tls.certificates.now().answers_to(hello.server_name());
    let accepted = started.into_stream(tls.config.clone()).await;
    accepted.map_err(|error| if has_certificate { Failed::of(error) } else { without(error) })
}

/// A handshake that is done.
pub struct Shaken {
    pub stream: TlsStream<UnderTls>,
    pub result: HandshakeResult,
    pub told: Box<TlsPeer>,
}

impl Shaken {
    /// A session that goes on verifies no certificate anew, so one that has expired since is refused here.
    fn of(stream: TlsStream<UnderTls>, tls: &ServerTls) -> Result<Shaken, Failed> {
        let (_, session) = stream.get_ref();
        let (told, result) = (Box::new(TlsPeer::of(session, tls.certificates.now())), of_success(session));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if told.has_expired(i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
            return Err(Failed { result: HandshakeResult::BadClientCertificate, error: None });
        }
        Ok(Shaken { stream, result, told })
    }
}

/// A handshake that came to nothing.
pub struct Failed {
    pub result: HandshakeResult,
    /// What was said of it.
    pub error: Option<io::Error>,
}

impl Failed {
    fn of(error: io::Error) -> Failed {
        Failed { result: of_failure(&error), error: Some(error) }
    }
}

/// When a handshake must end, whatever it waits for.
struct Due<'a> {
    deadline: &'a ConnectionDeadline,
    worker: &'a Worker,
}

impl Due<'_> {
    async fn wait_for<F: Future>(&self, awaited: F) -> Result<F::Output, Failed> {
        let mut awaited = pin!(awaited);
        poll_fn(|cx| {
            self.deadline.register(cx.waker());
            let result = if self.deadline.expired().is_some() {
                HandshakeResult::Timeout
            } else if self.deadline.is_cut() || self.worker.closing() {
                HandshakeResult::Draining
            } else {
                return awaited.as_mut().poll(cx).map(Ok);
            };
            Poll::Ready(Err(Failed { result, error: None }))
        })
        .await
    }
}

/// Ends when the task is polled once more: whatever was polled before has registered it.
fn woken() -> impl Future<Output = ()> {
    let mut polled = false;
    poll_fn(move |_| match std::mem::replace(&mut polled, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
}

/// How a handshake is counted that is done,
fn of_success(connection: &ServerConnection) -> HandshakeResult {
    match connection.handshake_kind() {
        Some(HandshakeKind::Resumed) => HandshakeResult::Resumed,
        _ => HandshakeResult::Full,
    }
}

/// and one that failed.
fn of_failure(error: &io::Error) -> HandshakeResult {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return HandshakeResult::Aborted;
    };
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => HandshakeResult::NotTls,
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => HandshakeResult::Incompatible,
        Error::NoCertificatesPresented => HandshakeResult::NoClientCertificate,
        Error::InvalidCertificate(_) => HandshakeResult::BadClientCertificate,
        Error::AlertReceived(_) => HandshakeResult::Alert,
        _ => HandshakeResult::Invalid,
    }
}
