//! How many client connections there are, over all workers and per client (`max_connections`,
//! `max_connections_per_ip`). A client may have seven times as many as it leaves free, so that none can shut out others.

use crate::config::ServerSettings;
use crate::ends::End;
use crate::proxy::connection::client_counts::{self, ClientCounts};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// At least one of this many connections counts as free, so that a client with less than an eighth of all is not
/// treated as greedy only because others have the rest.
const FREE_PART: usize = 56;

/// How many connections there may be.
#[derive(Clone, Copy)]
pub struct ConnectionBounds {
    pub max: usize,
    pub max_per_ip: usize,
    /// The peer has connections for many clients, and may have all of them.
    pub is_proxy: bool,
}

impl ConnectionBounds {
    /// Returns the bounds for connections of `peer`.
    pub fn of(server: &ServerSettings, peer: IpAddr) -> ConnectionBounds {
        ConnectionBounds {
            max: server.max_connections,
            max_per_ip: server.max_connections_per_ip,
            is_proxy: server.client_address.trusted.contains(peer),
        }
    }

    /// Returns whether a client with `own` connections has used up its share, if `left` connections remain free.
    fn has_part(self, own: usize, left: usize) -> bool {
        !self.is_proxy && client_counts::has_part(own, self.max, left)
    }
}

/// The number of connections over all workers.
#[derive(Default)]
pub struct ConnectionCount {
    pub(super) all: AtomicUsize,
    by_client: Mutex<ClientCounts>,
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
        bounds: ConnectionBounds,
    ) -> Result<CountedConnection, End> {
        count.add_connection(peer, bounds)?;
        Ok(CountedConnection { count: count.clone(), peer })
    }

    /// Counts the connection for `client` instead of its peer. The total already includes it.
    pub(super) fn recount_for(&mut self, client: IpAddr, bounds: ConnectionBounds) -> Result<(), End> {
        self.count.add_for_client(client, bounds, Some(self.count.left_of(bounds)))?;
        self.count.subtract_for_client(self.peer);
        self.peer = client;
        Ok(())
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.count.remove_connection(self.peer);
    }
}

impl ConnectionCount {
    fn add_connection(&self, peer: IpAddr, bounds: ConnectionBounds) -> Result<(), End> {
        let max = bounds.max.saturating_add(self.closing.load(Ordering::Relaxed));
        let others = self.all.fetch_add(1, Ordering::Relaxed);
        let added = self.add_for_client(peer, bounds, max.checked_sub(others + 1));
        if added.is_err() {
            self.all.fetch_sub(1, Ordering::Relaxed);
        }
        added
    }

    /// Counts a connection for its client. `left`: how many more there may then be, if there may be this one.
    fn add_for_client(&self, peer: IpAddr, bounds: ConnectionBounds, left: Option<usize>) -> Result<(), End> {
        let left = left.ok_or(End::MaxConnections)?;
        let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        let own = by_client.of(peer);
        if own >= bounds.max_per_ip {
            return Err(End::MaxConnectionsPerIp);
        }
        if bounds.has_part(own, left) {
            return Err(End::MaxConnections);
        }
        by_client.add(peer, 1);
        Ok(())
    }

    pub(super) fn of(&self, peer: IpAddr) -> usize {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner).of(peer)
    }

    /// Returns how many connections there may be besides those that there are, but at least one of [`FREE_PART`].
    fn left_of(&self, bounds: ConnectionBounds) -> usize {
        let max = bounds.max.saturating_add(self.closing.load(Ordering::Relaxed));
        max.saturating_sub(self.all.load(Ordering::Relaxed)).max(bounds.max / FREE_PART).max(1)
    }

    /// Returns whether `peer` has its part, so that no connection of somebody else may close for it.
    pub(super) fn has_part(&self, peer: IpAddr, bounds: ConnectionBounds) -> bool {
        bounds.has_part(self.of(peer), self.left_of(bounds))
    }

    fn remove_connection(&self, peer: IpAddr) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.subtract_for_client(peer);
    }

    fn subtract_for_client(&self, peer: IpAddr) {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner).subtract(peer, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_has_all_connections_but_a_proxy() {
        let open = |peers: &[u8], bounds: ConnectionBounds| {
            let count = Arc::<ConnectionCount>::default();
            let mut open = Vec::new();
            let most = |peer: &u8| {
                let ip = IpAddr::from([192, 0, 2, *peer]);
                while let Ok(connection) = CountedConnection::new(&count, ip, bounds) {
                    open.push(connection);
                }
                count.of(ip)
            };
            let counts: Vec<usize> = peers.iter().map(most).collect();
            drop(open);
            assert_eq!((count.all.load(Ordering::Relaxed), count.of(IpAddr::from([192, 0, 2, 1]))), (0, 0));
            counts
        };
        let bounds = ConnectionBounds { max: 800, max_per_ip: usize::MAX, is_proxy: false };
        assert_eq!(open(&[1, 2, 3, 4], bounds), [700, 87, 11, 1]);
        assert_eq!(open(&[1, 2], ConnectionBounds { max_per_ip: 600, ..bounds }), [600, 175]);
        assert_eq!(open(&[1, 2], ConnectionBounds { is_proxy: true, ..bounds }), [800, 0]);
        // So few connections are not divided.
        assert_eq!(open(&[1, 2], ConnectionBounds { max: 99, ..bounds }), [99, 0]);
    }

    #[test]
    fn a_client_behind_a_proxy_has_its_part_too() {
        let count = Arc::<ConnectionCount>::default();
        let bounds = ConnectionBounds { max: 800, max_per_ip: usize::MAX, is_proxy: false };
        let [proxy, client] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut connections: Vec<CountedConnection> = (0..800)
            .map(|_| CountedConnection::new(&count, proxy, ConnectionBounds { is_proxy: true, ..bounds }).ok().unwrap())
            .collect();
        let recounted =
            connections.iter_mut().filter_map(|connection| connection.recount_for(client, bounds).ok()).count();
        // Nothing is left, so its part is about an eighth.
        assert_eq!((recounted, count.of(proxy), count.of(client)), (98, 702, 98));
        connections.truncate(200);
        assert!(connections.iter_mut().skip(98).all(|connection| connection.recount_for(client, bounds).is_ok()));
        assert_eq!((count.of(proxy), count.of(client), count.all.load(Ordering::Relaxed)), (0, 200, 200));
    }
}
