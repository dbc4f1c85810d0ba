//! Counts wrong tokens per peer. Called by `mod.rs`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::admin::access::Peer;

/// Wrong tokens of a peer in [`WINDOW`] that get 401. Further ones get 429.
const WRONG_MAX: u32 = 10;
/// Maximum number of peers that are counted. For one more, the one that was seen first is forgotten.
const PEERS_MAX: usize = 1024;
pub const WINDOW: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct AttemptTable {
    peers: HashMap<Peer, PeerAttempts>,
}

struct PeerAttempts {
    since: Instant,
    wrong: u32,
}

impl AttemptTable {
    /// Counts a wrong token. Returns how long the peer is refused, if it sent too many.
    pub fn count_wrong(&mut self, peer: Peer, now: Instant) -> Option<Duration> {
        let own = self.find(peer, now);
        own.wrong = own.wrong.saturating_add(1);
        (own.wrong > WRONG_MAX).then(|| WINDOW.saturating_sub(now.duration_since(own.since)))
    }

    fn find(&mut self, peer: Peer, now: Instant) -> &mut PeerAttempts {
        if !self.peers.contains_key(&peer) && self.peers.len() >= PEERS_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, own)| own.since).map(|(peer, _)| *peer);
            oldest.and_then(|peer| self.peers.remove(&peer));
        }
        let own = self.peers.entry(peer).or_insert(PeerAttempts { since: now, wrong: 0 });
        if now.duration_since(own.since) >= WINDOW {
            *own = PeerAttempts { since: now, wrong: 0 };
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(number: u32) -> Peer {
        Peer::Tcp(Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn the_eleventh_wrong_token_in_a_minute_is_one_too_many() {
        let (mut attempts, start) = (AttemptTable::default(), Instant::now());
        for _ in 0..WRONG_MAX {
            assert_eq!(attempts.count_wrong(peer(1), start), None);
        }
        let later = start + WINDOW / 3;
        assert_eq!(attempts.count_wrong(peer(1), later), Some(WINDOW - WINDOW / 3));
        assert_eq!(attempts.count_wrong(peer(2), later), None);
        assert_eq!(attempts.count_wrong(peer(1), start + WINDOW), None);
    }

    #[test]
    fn a_bounded_number_of_peers_is_counted() {
        let (mut attempts, now) = (AttemptTable::default(), Instant::now());
        assert!((0..3000).all(|number| attempts.count_wrong(peer(number), now).is_none()));
        assert_eq!(attempts.peers.len(), PEERS_MAX);
    }
}
