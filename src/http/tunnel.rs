//! A connection whose two sides have switched protocols: bytes go both ways until both sides have ended,
//! and nobody reads them. Made by `gateway` when a server takes what a client offered, run by the workers
//! in place of the connection's parser.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::answer::account::Account;
use crate::http::context::Client;
use crate::http::deadline::{Awaited, Pace};
use crate::http::upstream::exchange;
use crate::http::upstream::linger::Linger;
use crate::http::upstream::pool::PooledConnection;
use crate::route::Timeouts;

/// Bytes read at once, into room that all tunnels of a worker share; what the other side does not take of
/// them is kept, so a tunnel holds twice as many at most, and an idle one none.
const READ_MAX: usize = 32 * 1024;

/// How many tunnels there are over all workers, requests for one included.
#[derive(Default)]
pub struct Tunnels(AtomicUsize);

/// A tunnel's place among them, or that of a request for one.
pub struct TunnelSeat {
    tunnels: Arc<Tunnels>,
    /// Of tunnels that are open.
    gauge: Option<IntGauge>,
}

/// A server that has switched, with the request that asked for it.
pub struct Tunnel {
    upstream: PooledConnection,
    account: Box<Account>,
    timeouts: Arc<Timeouts>,
    _seat: TunnelSeat,
}

/// One direction.
struct Flow {
    /// Read and not written yet, from `written` on.
    pending: Vec<u8>,
    written: usize,
    /// The writing side does not take what there is for it.
    waits: bool,
    state: FlowState,
    /// Bytes written so far.
    total: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FlowState {
    Open,
    /// The reading side has ended, which the other side is still to learn.
    Ending,
    Ended,
}

impl Tunnels {
    /// A place, unless `max` are taken.
    pub fn enter(self: &Arc<Self>, max: usize) -> Option<TunnelSeat> {
        let free = |taken| (taken < max).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
        Some(TunnelSeat { tunnels: self.clone(), gauge: None })
    }
}

impl Drop for TunnelSeat {
    fn drop(&mut self) {
        self.tunnels.0.fetch_sub(1, Ordering::Relaxed);
        if let Some(gauge) = &self.gauge {
            gauge.dec();
        }
    }
}

impl Tunnel {
    /// `open` counts the tunnels that are.
    pub fn new(
        upstream: PooledConnection,
        mut account: Box<Account>,
        timeouts: Arc<Timeouts>,
        mut seat: TunnelSeat,
        open: &IntGauge,
    ) -> Box<Tunnel> {
        account.switched(timeouts.tunnel);
        open.inc();
        seat.gauge = Some(open.clone());
        Box::new(Tunnel { upstream, account, timeouts, _seat: seat })
    }

    /// Carries bytes between `stream`, of `client`, and the server until both sides have ended, one of them fails, or
    /// `is_over`. `early` is what the client sent behind its request. `sent` says how much has left for the client
    /// so far, where that is told from what was written.
    pub async fn run<C: AsyncRead + AsyncWrite + Unpin>(
        mut self: Box<Self>,
        client: &Rc<Client>,
        mut stream: C,
        early: Vec<u8>,
        sent: fn(&C) -> Option<u64>,
        is_over: impl Fn(&mut Context<'_>) -> bool,
    ) {
        let (mut up, mut down) = (Flow::after(early), Flow::after(Vec::new()));
        let pace = Pace::new(self.timeouts.stream, self.timeouts.min_response_rate);
        poll_fn(|cx| {
            if is_over(cx) {
                // Both learn of the end, and not by a reset where that can be helped.
                let _ = Pin::new(&mut stream).poll_shutdown(cx);
                let _ = Pin::new(&mut self.upstream.connection).poll_shutdown(cx);
                return Poll::Ready(());
            }
            let (before, down_before, waited) = (up.progress(), down.progress(), pace.waits());
            let sent_before = sent(&stream);
            let mut room = client.local.room.borrow_mut();
            room.resize(READ_MAX, 0);
            let upstream = &mut self.upstream.connection;
            let ends = [up.poll(&mut stream, upstream, &mut room, cx), down.poll(upstream, &mut stream, &mut room, cx)];
            let (now_ms, carried) = (self.account.deadline().now_ms(), down.total - down_before.0);
            let taken = sent(&stream).zip(sent_before).map_or(carried, |(now, before)| now - before);
            if taken > 0 || !down.waits {
                pace.moved(now_ms, taken);
            }
            if down.waits {
                pace.wait(now_ms);
            }
            if before != up.progress() || down_before != down.progress() || taken > 0 || waited != pace.waits() {
                let half = [&up, &down].iter().any(|flow| flow.state == FlowState::Ended);
                let limit = if half { self.timeouts.stream.min(self.timeouts.tunnel) } else { self.timeouts.tunnel };
                let (awaited, limit) = match pace.left(now_ms) {
                    left if !pace.waits() || left >= limit => (Awaited::Tunnel, limit),
                    left if pace.is_below_average() => (Awaited::Reader, left),
                    left => (Awaited::Stream, left),
                };
                self.account.carried(carried, awaited, limit);
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
            self.leave(client);
        }
    }

    /// It ends, but the server has not: what works on there keeps the slots that the request holds. A server that has
    /// failed ends that at once.
    pub fn leave(self, client: &Rc<Client>) {
        let Tunnel { upstream, account, timeouts, .. } = self;
        if let Some(leases) = account.leases() {
            Linger::new(client, leases, &timeouts).go_on(exchange::discard_switched(upstream));
        }
    }
}

impl Flow {
    /// With bytes that were read before.
    fn after(pending: Vec<u8>) -> Flow {
        Flow { pending, written: 0, waits: false, state: FlowState::Open, total: 0 }
    }

    /// Differs from before if anything has moved.
    fn progress(&self) -> (u64, FlowState) {
        (self.total, self.state)
    }

    /// Moves what is there; ready once the end has been passed on.
    fn poll(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        room: &mut [u8],
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
                    // One that has gone meanwhile needs not be told.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    (self.state, self.waits) = (FlowState::Ended, false);
                    return Poll::Ready(Ok(()));
                }
                FlowState::Open => {}
            }
            let mut read = ReadBuf::new(room);
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
