//! How many client connections there are, over all workers and per client (`max_connections`,
//! `max_connections_per_ip`). The addresses of an IPv6 /64 are one client, because a single host may have all of them.

use crate::ends::End;
use crate::net::client_network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of connections over all workers.
#[derive(Default)]
pub struct ConnectionCount {
    pub(super) all: AtomicUsize,
    /// The counts by [`client_network`].
    by_client: Mutex<HashMap<IpAddr, usize>>,
    /// Connections that are closing to make room for others, and that still count.
    pub(super) closing: AtomicUsize,
    /// New connections that a worker without an idle one has refused: the other workers close as many.
    pub(super) wanted: AtomicUsize,
}

/// Counts one connection, among all and among those of a client, until it is dropped.
pub struct CountedConnection {
    count: Arc<ConnectionCount>,
    pub(super) peer: IpAddr,
}

impl CountedConnection {
    pub(super) fn new(
        count: &Arc<ConnectionCount>,
        peer: IpAddr,
        max: usize,
        max_per_ip: usize,
    ) -> Result<CountedConnection, End> {
        count.add_connection(peer, max, max_per_ip)?;
        Ok(CountedConnection { count: count.clone(), peer })
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.count.remove_connection(self.peer);
    }
}

impl ConnectionCount {
    fn add_connection(&self, peer: IpAddr, max: usize, max_per_ip: usize) -> Result<(), End> {
        if self.all.fetch_add(1, Ordering::Relaxed) >= max.saturating_add(self.closing.load(Ordering::Relaxed)) {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return Err(End::MaxConnections);
        }
        let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_client.entry(client_network(peer)).or_default();
        if *count >= max_per_ip {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return Err(End::MaxConnectionsPerIp);
        }
        *count += 1;
        Ok(())
    }

    pub(super) fn of(&self, peer: IpAddr) -> usize {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner).get(&client_network(peer)).copied().unwrap_or(0)
    }

    fn remove_connection(&self, peer: IpAddr) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        let client = client_network(peer);
        if let Some(count) = by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                by_client.remove(&client);
            }
        }
    }
}
