//! If connections to a server are limited, a worker without one can claim a connection that another worker does not
//! use. `proxy::steps::select::reserve` makes the claim; the pool of another worker closes a connection for it.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};

/// The worker that waits for a connection to a server while other workers have all of them. 0: none.
#[derive(Default)]
pub struct ConnectionClaim(AtomicUsize);

impl ConnectionClaim {
    /// Claims a connection for `worker`, counted from 1. Replaces an earlier claim.
    pub fn claim_for(&self, worker: usize) {
        self.0.store(worker, Ordering::SeqCst);
    }

    /// Takes the claim of a worker other than `worker`, and returns that worker.
    pub fn take_from_other(&self, worker: usize) -> Option<usize> {
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
        assert_eq!(claim.take_from_other(1), None);
        claim.claim_for(1);
        assert_eq!(
            [claim.take_from_other(1), claim.take_from_other(2), claim.take_from_other(2)],
            [None, Some(1), None]
        );
    }
}
