//! The interface to a tunnel, which replaces the protocol of a connection or of a stream of HTTP/2 or HTTP/3 after a 101 response,
//! and the count of tunnels. The interface separates `ClientConnection`, which stores an upgrade, and `http1`,
//! `http2` and `http3`, which start it, from the tunnel itself.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;

use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};

/// The client's end of a tunnel.
pub trait TunnelIo: AsyncRead + AsyncWrite + Unpin {
    /// Returns the number of bytes that have left for the client so far. `None` if all that is written counts at once.
    fn sent_bytes(&self) -> Option<u64>;
}

/// Returns true when a tunnel has to end, and else registers the task to be woken for that.
pub type IsOver<'a> = Box<dyn Fn(&mut Context<'_>) -> bool + 'a>;

/// An upstream server that has switched protocols and waits for the client's stream.
pub trait Upgrade {
    /// Carries bytes between `stream` and the server until both sides have ended, one of them fails, or `is_over`.
    /// `early` is what the client sent behind its request.
    fn run<'a>(
        self: Box<Self>,
        stream: Box<dyn TunnelIo>,
        early: Vec<u8>,
        is_over: IsOver<'a>,
    ) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

    /// Ends the upgrade of a client that has left before the tunnel was open.
    fn abandon(self: Box<Self>);
}

/// The number of tunnels over all workers, and of requests for one. Bounded by `max_tunnels`.
#[derive(Default)]
pub struct TunnelCount(AtomicUsize);

/// One of the [`TunnelCount`], until it is dropped.
pub struct TunnelPermit {
    tunnels: Arc<TunnelCount>,
    /// Counts open tunnels. `None` as long as this is a request for one.
    gauge: Option<IntGauge>,
}

impl TunnelCount {
    /// Counts one more tunnel, unless there are `max` already.
    pub fn acquire(self: &Arc<Self>, max: usize) -> Option<TunnelPermit> {
        let next = |taken| (taken < max).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(TunnelPermit { tunnels: self.clone(), gauge: None })
    }
}

impl TunnelPermit {
    /// Records that the tunnel is open, and counts it in `gauge` from now on.
    pub fn mark_open(&mut self, gauge: &IntGauge) {
        gauge.inc();
        self.gauge = Some(gauge.clone());
    }
}

impl Drop for TunnelPermit {
    fn drop(&mut self) {
        self.tunnels.0.fetch_sub(1, Ordering::Relaxed);
        if let Some(gauge) = &self.gauge {
            gauge.dec();
        }
    }
}
