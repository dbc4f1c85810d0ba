//! What each client holds of something that all clients share, and how much of it one of them may have.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use crate::net::client_network;

/// Fewer are not divided among clients.
const DIVIDED_FROM: usize = 100;
/// How many a client may have for each one that it leaves free.
const SHARE: usize = 7;

/// Returns whether a client that has `own` of `max` has its part of them, if `left` stay free.
pub fn has_part(own: usize, max: usize, left: usize) -> bool {
    max >= DIVIDED_FROM && own >= left.saturating_mul(SHARE)
}

/// Counts by [`client_network`]: a single host may have all addresses of an IPv6 /64.
#[derive(Debug, Default)]
pub struct ClientCounts(HashMap<IpAddr, usize>);

impl ClientCounts {
    /// Returns how much a client holds.
    pub fn of(&self, client: IpAddr) -> usize {
        self.0.get(&client_network(client)).copied().unwrap_or(0)
    }

    pub fn add(&mut self, client: IpAddr, count: usize) {
        *self.0.entry(client_network(client)).or_default() += count;
    }

    /// Subtracts what was added for the client before.
    pub fn subtract(&mut self, client: IpAddr, count: usize) {
        if let Entry::Occupied(mut own) = self.0.entry(client_network(client)) {
            *own.get_mut() -= count;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    /// Returns what all clients hold.
    #[cfg(test)]
    pub fn sum(&self) -> usize {
        assert!(self.0.values().all(|count| *count > 0));
        self.0.values().sum()
    }
}
