//! The TLS handshake of a new connection, in the connection's own task. Each has a timer, and a worker computes one
//! handshake at a time, so that a flood of them does not delay its other connections.

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

use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::stream::{Stream, TlsTransport};
use crate::proxy::context::worker_context::WorkerContext;
use crate::telemetry::metrics::HandshakeResult;
use crate::tls::{ServerTls, TlsPeer, is_challenge};

/// Performs the handshake, within `handshake_timeout`. The gateway allocates nothing for it until the client has sent
/// something.
///
/// # Errors
/// Why the handshake failed. The client has got an alert where the protocol allows one.
pub async fn perform_handshake(
    stream: Stream,
    tls: &ServerTls,
    deadline: &ConnectionState,
    worker: &WorkerContext,
) -> Result<CompletedHandshake, FailedHandshake> {
    let timeout = worker.state.view().snapshot.config.server.handshake_timeout;
    deadline.enter_phase(Phase::Handshake, timeout);
    let due = HandshakeTimer { deadline, worker };
    due.run_within(poll_fn(|cx| stream.poll_readable(cx))).await?.map_err(FailedHandshake::new)?;
    let mut transport = TlsTransport::new(stream, worker.state.large_writes.clone());
    // A client that disconnects gives up its place in the queue.
    let mut turn = due.run_within(wait_unless_gone(worker.handshake_permit.acquire(), &mut transport)).await??;
    // Runs all other tasks first; the next handshake in the queue does likewise.
    due.run_within(wait_unless_gone(tokio::task::yield_now(), &mut transport)).await??;
    let mut accept = pin!(exchange_messages(transport, tls));
    loop {
        if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(accept.as_mut().poll(cx))).await {
            return result.and_then(|stream| CompletedHandshake::new(stream, tls));
        }
        drop(turn);
        due.run_within(next_wake()).await?;
        turn = due.run_within(worker.handshake_permit.acquire()).await?;
        tokio::task::yield_now().await;
    }
}

/// Waits for `awaited` as long as the client is connected.
///
/// # Errors
/// The client has disconnected.
async fn wait_unless_gone<F: Future>(awaited: F, transport: &mut TlsTransport) -> Result<F::Output, FailedHandshake> {
    let mut awaited = pin!(awaited);
    poll_fn(|cx| match transport.poll_gone(cx) {
        Poll::Ready(error) => Poll::Ready(Err(FailedHandshake::new(error))),
        Poll::Pending => awaited.as_mut().poll(cx).map(Ok),
    })
    .await
}

/// Exchanges the messages of the handshake. An ACME server that validates a `tls-alpn-01` challenge gets the
/// challenge's certificate and no connection.
async fn exchange_messages(stream: TlsTransport, tls: &ServerTls) -> Result<TlsStream<TlsTransport>, FailedHandshake> {
    let Some(challenges) = &tls.challenges else {
        return TlsAcceptor::from(tls.config.clone()).accept(stream).await.map_err(FailedHandshake::new);
    };
    let started = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(FailedHandshake::new)?;
    let hello = started.client_hello();
    let without = |error| FailedHandshake { result: HandshakeResult::NoCertificate, error: Some(error) };
    if is_challenge(&hello) {
        let mut stream = started.into_stream(challenges.clone()).await.map_err(without)?;
        // The server has seen the certificate, so an error does not matter.
        let _ = stream.shutdown().await;
        return Err(FailedHandshake { result: HandshakeResult::AcmeChallenge, error: None });
    }
    let has_certificate = tls.certificates.current().has_certificate_for(hello.server_name());
    let accepted = started.into_stream(tls.config.clone()).await;
    accepted.map_err(|error| if has_certificate { FailedHandshake::new(error) } else { without(error) })
}

/// A handshake that has succeeded.
pub struct CompletedHandshake {
    pub stream: TlsStream<TlsTransport>,
    /// How the handshake is counted: in full or resumed.
    pub result: HandshakeResult,
    /// TLS properties of the client: version, certificate and names.
    pub peer: Box<TlsPeer>,
}

impl CompletedHandshake {
    /// Checks the client's certificate once more: a resumed session does not verify it again, and it may have expired.
    fn new(stream: TlsStream<TlsTransport>, tls: &ServerTls) -> Result<CompletedHandshake, FailedHandshake> {
        let (_, session) = stream.get_ref();
        let (peer, result) = (Box::new(TlsPeer::new(session, tls.certificates.current())), success_result(session));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if peer.has_expired(i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
            return Err(FailedHandshake { result: HandshakeResult::BadClientCertificate, error: None });
        }
        Ok(CompletedHandshake { stream, result, peer })
    }
}

/// A handshake that has failed.
pub struct FailedHandshake {
    /// How the handshake is counted.
    pub result: HandshakeResult,
    /// The error for the log, if there is more to say than the result.
    pub error: Option<io::Error>,
}

impl FailedHandshake {
    fn new(error: io::Error) -> FailedHandshake {
        FailedHandshake { result: failure_result(&error), error: Some(error) }
    }
}

/// Ends a handshake when its time is up, when it is cut, and when the worker closes.
struct HandshakeTimer<'a> {
    deadline: &'a ConnectionState,
    worker: &'a WorkerContext,
}

impl HandshakeTimer<'_> {
    async fn run_within<F: Future>(&self, awaited: F) -> Result<F::Output, FailedHandshake> {
        let mut awaited = pin!(awaited);
        poll_fn(|cx| {
            self.deadline.register_task(cx.waker());
            let result = if self.deadline.expired_phase().is_some() {
                HandshakeResult::Timeout
            } else if self.deadline.is_cut() || self.worker.is_closing() {
                HandshakeResult::Draining
            } else {
                return awaited.as_mut().poll(cx).map(Ok);
            };
            Poll::Ready(Err(FailedHandshake { result, error: None }))
        })
        .await
    }
}

/// Completes when the task is polled again. The future that was polled before has registered the task.
fn next_wake() -> impl Future<Output = ()> {
    let mut polled = false;
    poll_fn(move |_| match std::mem::replace(&mut polled, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
}

/// Returns how a successful handshake is counted.
fn success_result(connection: &ServerConnection) -> HandshakeResult {
    match connection.handshake_kind() {
        Some(HandshakeKind::Resumed) => HandshakeResult::Resumed,
        _ => HandshakeResult::Full,
    }
}

/// Returns how a failed handshake is counted.
fn failure_result(error: &io::Error) -> HandshakeResult {
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
