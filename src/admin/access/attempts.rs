//! Counts wrong tokens per peer, and bounds the audit lines about peers that did not prove who they are. Called by
//! `mod.rs`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::admin::access::Peer;

/// Wrong tokens of a peer in [`WINDOW`] that get 401. Further ones get 429.
const WRONG_MAX: u32 = 10;
/// Audit lines about one peer in [`WINDOW`].
const LINES_MAX: u32 = 10;
/// Audit lines about all such peers in [`WINDOW`].
const LINES_TOTAL_MAX: u32 = 200;
/// Maximum number of peers that are counted. For one more, the one that was seen first is forgotten.
const PEERS_MAX: usize = 1024;
pub const WINDOW: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct AttemptTable {
    peers: HashMap<PeerKey, PeerAttempts>,
    total: Option<PeerAttempts>,
}

type PeerKey = Option<std::net::IpAddr>;

struct PeerAttempts {
    since: Instant,
    wrong: u32,
    lines: u32,
    /// Requests without an audit line.
    left_out: u64,
}

impl PeerAttempts {
    fn new(now: Instant) -> PeerAttempts {
        PeerAttempts { since: now, wrong: 0, lines: 0, left_out: 0 }
    }

    fn restart_if_over(&mut self, now: Instant) {
        if now.duration_since(self.since) >= WINDOW {
            let left_out = self.left_out;
            *self = PeerAttempts { left_out, ..PeerAttempts::new(now) };
        }
    }
}

impl AttemptTable {
    /// Counts a wrong token. Returns how long the peer is refused, if it sent too many.
    pub fn count_wrong(&mut self, peer: Peer, now: Instant) -> Option<Duration> {
        let own = self.find(peer, now);
        own.wrong = own.wrong.saturating_add(1);
        (own.wrong > WRONG_MAX).then(|| WINDOW.saturating_sub(now.duration_since(own.since)))
    }

    /// Returns whether a line about this peer may be written; otherwise counts it for the summary.
    pub fn take_line(&mut self, peer: Peer, now: Instant) -> bool {
        let total = self.total.get_or_insert_with(|| PeerAttempts::new(now));
        total.restart_if_over(now);
        let fits = total.lines < LINES_TOTAL_MAX;
        let own = self.find(peer, now);
        if !fits || own.lines >= LINES_MAX {
            own.left_out += 1;
            return false;
        }
        own.lines += 1;
        if let Some(total) = &mut self.total {
            total.lines += 1;
        }
        true
    }

    /// Returns the peers with requests left out, and their numbers. The first 20 are listed, `None` is all others.
    pub fn take_summaries(&mut self) -> Vec<(Option<Peer>, u64)> {
        const LISTED: usize = 20;
        let taken = self.peers.iter_mut().filter(|(_, own)| own.left_out > 0);
        let mut counts: Vec<(Option<Peer>, u64)> = taken
            .map(|(key, own)| (Some(key.map_or(Peer::Unix, Peer::Tcp)), std::mem::take(&mut own.left_out)))
            .collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let rest = counts.split_off(counts.len().min(LISTED));
        let forgotten = self.total.as_mut().map_or(0, |total| std::mem::take(&mut total.left_out));
        let others = rest.iter().map(|(_, count)| count).sum::<u64>() + forgotten;
        counts.extend((others > 0).then_some((None, others)));
        counts
    }

    fn find(&mut self, peer: Peer, now: Instant) -> &mut PeerAttempts {
        let key = match peer {
            Peer::Tcp(ip) => Some(ip),
            Peer::Unix => None,
        };
        if !self.peers.contains_key(&key) && self.peers.len() >= PEERS_MAX {
            self.forget_oldest(now);
        }
        let own = self.peers.entry(key).or_insert_with(|| PeerAttempts::new(now));
        own.restart_if_over(now);
        own
    }

    fn forget_oldest(&mut self, now: Instant) {
        let oldest = self.peers.iter().min_by_key(|(_, own)| own.since).map(|(key, _)| *key);
        if let Some(gone) = oldest.and_then(|key| self.peers.remove(&key)) {
            self.total.get_or_insert_with(|| PeerAttempts::new(now)).left_out += gone.left_out;
        }
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
    fn lines_are_bounded_and_the_rest_is_summed_up() {
        let (mut attempts, now) = (AttemptTable::default(), Instant::now());
        let written = (0..1000).filter(|_| attempts.take_line(peer(1), now)).count();
        assert_eq!(written, LINES_MAX as usize);
        assert_eq!(attempts.take_summaries(), [(Some(peer(1)), 990)]);
        assert_eq!(attempts.take_summaries(), []);
        let written = (0..3000).filter(|number| attempts.take_line(peer(10 + number), now)).count();
        assert_eq!(written, (LINES_TOTAL_MAX - LINES_MAX) as usize);
        assert!(attempts.peers.len() <= PEERS_MAX);
        let counted: u64 = attempts.take_summaries().iter().map(|(_, count)| count).sum();
        assert_eq!(counted, 3000 - u64::from(LINES_TOTAL_MAX - LINES_MAX), "those of forgotten peers too");
    }
}
