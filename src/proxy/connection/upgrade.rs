//! The interface to a tunnel, which replaces the protocol of a connection or of a stream of HTTP/2 or HTTP/3 after a 101 response,
//! and the count of tunnels. The interface separates `ClientConnection`, which stores an upgrade, and `http1`,
//! `http2` and `http3`, which start it, from the tunnel itself.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;

use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::proxy::connection::client_counts::{self, ClientCounts};

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

    /// Ends the upgrade of a client that has disconnected before the tunnel was open.
    fn abandon(self: Box<Self>);
}

/// The number of tunnels over all workers, and of requests for one. Bounded by `max_tunnels`. A client may have seven
/// times as many as it leaves free, so that none can shut out others: many tunnels share one connection.
#[derive(Default)]
pub struct TunnelCount(Mutex<Tunnels>);

#[derive(Default)]
struct Tunnels {
    total: usize,
    by_client: ClientCounts,
}

/// One of the [`TunnelCount`], until it is dropped.
pub struct TunnelPermit {
    tunnels: Arc<TunnelCount>,
    client: IpAddr,
    /// Counts open tunnels. `None` as long as this is a request for one.
    gauge: Option<IntGauge>,
}

impl TunnelCount {
    /// Counts one more tunnel of a client, unless there are `max` already, or too many of this client.
    pub fn acquire(self: &Arc<Self>, client: IpAddr, max: usize) -> Option<TunnelPermit> {
        let mut tunnels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = max.checked_sub(tunnels.total + 1)?;
        if client_counts::has_part(tunnels.by_client.of(client), max, left) {
            return None;
        }
        tunnels.total += 1;
        tunnels.by_client.add(client, 1);
        Some(TunnelPermit { tunnels: self.clone(), client, gauge: None })
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
        let mut tunnels = self.tunnels.0.lock().unwrap_or_else(PoisonError::into_inner);
        tunnels.total -= 1;
        tunnels.by_client.subtract(self.client, 1);
        if let Some(gauge) = &self.gauge {
            gauge.dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_has_all_tunnels() {
        let most = |max: usize, clients: &[&str]| {
            let tunnels = Arc::<TunnelCount>::default();
            let mut open = Vec::new();
            let counts: Vec<usize> = clients
                .iter()
                .map(|client| {
                    let before = open.len();
                    open.extend(std::iter::from_fn(|| tunnels.acquire(client.parse().unwrap(), max)));
                    open.len() - before
                })
                .collect();
            drop(open);
            let left = tunnels.0.lock().unwrap();
            assert_eq!((left.total, left.by_client.sum()), (0, 0));
            counts
        };
        // All addresses of an IPv6 client count together.
        assert_eq!(most(4096, &["2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"]), [3584, 0, 448, 56]);
        // So few are not divided.
        assert_eq!(most(99, &["192.0.2.1", "192.0.2.2"]), [99, 0]);
        assert_eq!(most(0, &["192.0.2.1"]), [0]);
    }
}
