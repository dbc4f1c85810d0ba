//! Who waits for a connection to a server that has as many as it may. Made by `http::upstream::turn`, answered by the pools
//! of other workers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A worker that waits for a connection to a server, of which others have them all.
#[derive(Default)]
pub struct ConnectionClaim(AtomicUsize);

impl ConnectionClaim {
    /// By `worker`, counted from 1.
    pub fn make(&self, worker: usize) {
        self.0.store(worker, Ordering::SeqCst);
    }

    /// The one that another than `worker` has made, which is answered with this.
    pub fn take(&self, worker: usize) -> Option<usize> {
        let claimed = self.0.load(Ordering::SeqCst);
        let is_its = claimed != 0 && claimed != worker;
        (is_its && self.0.compare_exchange(claimed, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()).then_some(claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_for_others() {
        let claim = ConnectionClaim::default();
        assert_eq!(claim.take(1), None);
        claim.make(1);
        assert_eq!([claim.take(1), claim.take(2), claim.take(2)], [None, Some(1), None]);
    }
}
