//! Counts the clients of a breaker and remembers those that failed, so that a few of them cannot open it or keep it
//! open. Pure.

use std::collections::VecDeque;

use crate::upstream::eject::Blame;

/// The number of different clients, from a bit for the hash of each. Clients may share a bit, so many clients count as
/// fewer: 10 as 10, 100 as about 91, and more than 3000 as 512 at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientBits([u64; WORDS]);

const WORDS: usize = 8;
const BITS: u32 = 512;

impl ClientBits {
    /// Adds the client of a request. A request that no client caused counts as all clients.
    pub fn add_client(&mut self, client: Blame) {
        let Blame::Client(client) = client else {
            self.0 = [u64::MAX; WORDS];
            return;
        };
        // Fibonacci hashing: neighbouring addresses get different bits.
        let bit = client.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - BITS.trailing_zeros());
        self.0[usize::try_from(bit / 64).unwrap_or(0) % WORDS] |= 1 << (bit % 64);
    }

    pub fn add_all(&mut self, other: &ClientBits) {
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Clients whose probes failed. At most 64; beyond that, the oldest is forgotten.
#[derive(Debug, Default)]
pub struct Suspects(VecDeque<u64>);

/// Most clients that are remembered.
const SUSPECTS_MAX: usize = 64;

impl Suspects {
    pub fn add_client(&mut self, client: u64) {
        if !self.0.contains(&client) {
            if self.0.len() == SUSPECTS_MAX {
                self.0.pop_front();
            }
            self.0.push_back(client);
        }
    }

    pub fn contains(&self, client: Blame) -> bool {
        matches!(client, Blame::Client(client) if self.0.contains(&client))
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_count_their_clients_and_never_too_many() {
        for (clients, least) in [(0, 0), (1, 1), (10, 9), (100, 80), (100_000, 512)] {
            let mut bits = ClientBits::default();
            // Addresses of one network, twice each.
            (0..2 * clients).for_each(|n| bits.add_client(Blame::Client(0x7f00_0000 + n % clients)));
            assert!((least..=clients).contains(&bits.count()), "{clients} count as {}", bits.count());
        }
    }

    #[test]
    fn suspects_are_bounded() {
        let mut suspects = Suspects::default();
        (0..1000).for_each(|client| suspects.add_client(client));
        assert_eq!(suspects.0.len(), SUSPECTS_MAX);
        assert!(suspects.contains(Blame::Client(999)) && !suspects.contains(Blame::Client(0)));
    }
}
