//! A tunnel: carries bytes between a client and a server that have switched protocols, unread, until both sides have
//! ended. Made for a 101 response; the connection or stream that it came on runs it instead of its parser.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::account::RequestAccount;
use crate::proxy::account::linger::Linger;
use crate::proxy::connection::min_rate::MinRate;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::connection::upgrade::{IsOver, TunnelIo, TunnelPermit, Upgrade};
use crate::proxy::context::ClientConnection;
use crate::proxy::outbound::exchange;
use crate::proxy::outbound::switched::SwitchedServer;
use crate::route::Timeouts;

/// Bytes read at once, into a buffer that all tunnels of a worker share. Each direction keeps what the other side does
/// not accept at once, so a tunnel holds twice as much at most, and an idle one nothing.
const READ_MAX: usize = 32 * 1024;

/// A server that has switched protocols, with the request that led to that.
pub struct Tunnel {
    /// The client holds its tunnel until it runs.
    client: Weak<ClientConnection>,
    upstream: SwitchedServer,
    account: Box<RequestAccount>,
    timeouts: Arc<Timeouts>,
    _permit: TunnelPermit,
}

/// One direction.
struct Flow {
    /// Bytes that were read, of which those from `written` on are not written yet.
    pending: Vec<u8>,
    written: usize,
    /// The writing side does not accept what there is for it.
    waits: bool,
    state: FlowState,
    /// Bytes written so far.
    total: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FlowState {
    Open,
    /// The reading side has ended, and the writing side is not shut down yet.
    Ending,
    Ended,
}

impl Tunnel {
    /// Makes the tunnel of a request with a 101 response. It carries nothing until it [runs](Upgrade::run).
    pub fn new(
        client: &Rc<ClientConnection>,
        upstream: SwitchedServer,
        mut account: Box<RequestAccount>,
        timeouts: Arc<Timeouts>,
        mut permit: TunnelPermit,
    ) -> Box<Tunnel> {
        account.start_tunnel(timeouts.tunnel);
        permit.mark_open(&client.worker.process.metrics.tunnels);
        Box::new(Tunnel { client: Rc::downgrade(client), upstream, account, timeouts, _permit: permit })
    }

    async fn carry(mut self: Box<Self>, mut stream: Box<dyn TunnelIo>, early: Vec<u8>, is_over: IsOver<'_>) {
        let Some(client) = self.client.upgrade() else { return };
        let (mut up, mut down) = (Flow::with_pending(early), Flow::with_pending(Vec::new()));
        let pace = MinRate::new(self.timeouts.stream, self.timeouts.min_response_rate);
        poll_fn(|cx| {
            if is_over(cx) {
                // Both sides learn of the end, if possible not by a reset.
                let _ = Pin::new(&mut stream).poll_shutdown(cx);
                let _ = Pin::new(&mut self.upstream).poll_shutdown(cx);
                return Poll::Ready(());
            }
            let (up_before, down_before, waited) = (up.progress(), down.progress(), pace.is_waiting());
            let sent_before = stream.sent_bytes();
            let mut buffer = client.worker.tunnel_buffer.borrow_mut();
            buffer.resize(READ_MAX, 0);
            let upstream = &mut self.upstream;
            let ends =
                [up.poll(&mut stream, upstream, &mut buffer, cx), down.poll(upstream, &mut stream, &mut buffer, cx)];
            let bytes = down.total - down_before.0;
            let sent_bytes = stream.sent_bytes().zip(sent_before).map_or(bytes, |(now, before)| now - before);
            self.apply_min_rate(&pace, sent_bytes, down.waits);
            let has_moved = up_before != up.progress() || down_before != down.progress() || sent_bytes > 0;
            if has_moved || waited != pace.is_waiting() {
                let is_half_open = [&up, &down].iter().any(|flow| flow.state == FlowState::Ended);
                let (awaited, limit) = self.next_wait(&pace, is_half_open);
                self.account.record_tunnel_bytes((bytes, up.total), awaited, limit);
            }
            match ends {
                [Poll::Ready(Err(_)), _] | [_, Poll::Ready(Err(_))] | [Poll::Ready(_), Poll::Ready(_)] => {
                    Poll::Ready(())
                }
                _ => Poll::Pending,
            }
        })
        .await;
        if down.state == FlowState::Open {
            self.linger(&client);
        }
    }

    /// Credits the client with `taken` bytes, and begins a wait for it while something is left to write.
    fn apply_min_rate(&self, pace: &MinRate, taken: u64, waits: bool) {
        let now_ms = self.account.deadline().now_ms();
        if taken > 0 || !waits {
            pace.credit_bytes(now_ms, taken);
        }
        if waits {
            pace.begin_wait(now_ms);
        }
    }

    /// Returns what the tunnel waits for, and for how long.
    fn next_wait(&self, pace: &MinRate, is_half_open: bool) -> (RequestWait, Duration) {
        let timeouts = &self.timeouts;
        let limit = if is_half_open { timeouts.stream.min(timeouts.tunnel) } else { timeouts.tunnel };
        match pace.time_left(self.account.deadline().now_ms()) {
            left if !pace.is_waiting() || left >= limit => (RequestWait::Tunnel, limit),
            left if pace.is_below_average() => (RequestWait::Reader, left),
            left => (RequestWait::Stream, left),
        }
    }

    /// Ends a tunnel whose server has not ended: the request keeps its slots of `concurrency` limits for as long
    /// as the server works on. A server that has failed ends that at once.
    fn linger(self, client: &Rc<ClientConnection>) {
        let Tunnel { upstream, account, timeouts, .. } = self;
        if let Some(leases) = account.shared_leases() {
            Linger::new(client, leases, &timeouts).continue_exchange(exchange::discard_switched(upstream));
        }
    }
}

impl Upgrade for Tunnel {
    fn run<'a>(
        self: Box<Self>,
        stream: Box<dyn TunnelIo>,
        early: Vec<u8>,
        is_over: IsOver<'a>,
    ) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(self.carry(stream, early, is_over))
    }

    fn abandon(self: Box<Self>) {
        if let Some(client) = self.client.upgrade() {
            self.linger(&client);
        }
    }
}

impl Flow {
    /// Makes a direction in which `pending` has been read before.
    fn with_pending(pending: Vec<u8>) -> Flow {
        Flow { pending, written: 0, waits: false, state: FlowState::Open, total: 0 }
    }

    /// Compares unequal to an earlier value if anything has moved since.
    fn progress(&self) -> (u64, FlowState) {
        (self.total, self.state)
    }

    /// Moves bytes as far as possible. Returns ready once the writing side is shut down.
    fn poll(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        buffer: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.waits = true;
        loop {
            while self.written < self.pending.len() {
                let count = ready!(self.poll_write(to, &self.pending[self.written..], cx))?;
                (self.written, self.total) = (self.written + count, self.total + count as u64);
            }
            (self.pending, self.written) = (Vec::new(), 0);
            match self.state {
                FlowState::Ended => {
                    self.waits = false;
                    return Poll::Ready(Ok(()));
                }
                FlowState::Ending => {
                    // An error means that the side has gone already.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    (self.state, self.waits) = (FlowState::Ended, false);
                    return Poll::Ready(Ok(()));
                }
                FlowState::Open => {}
            }
            let mut read = ReadBuf::new(buffer);
            if Pin::new(&mut *from).poll_read(cx, &mut read)?.is_pending() {
                ready!(Pin::new(&mut *to).poll_flush(cx))?;
                self.waits = false;
                return Poll::Pending;
            }
            let read = read.filled();
            if read.is_empty() {
                self.state = FlowState::Ending;
                continue;
            }
            let count = match self.poll_write(to, read, cx)? {
                Poll::Ready(count) => count,
                Poll::Pending => 0,
            };
            self.total += count as u64;
            if count < read.len() {
                self.pending = read[count..].to_vec();
            }
        }
    }

    fn poll_write(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match ready!(Pin::new(to).poll_write(cx, bytes))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            count => Poll::Ready(Ok(count)),
        }
    }
}
