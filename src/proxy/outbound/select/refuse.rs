//! Refuses requests of an upstream without capacity. Called by `reserve` and, before limits are charged, by the request
//! page.

use std::time::Duration;

use crate::proxy::outbound::error::UpstreamError;
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::upstream::priority::Priority;

/// The time after which clients may retry, in milliseconds. Each gets a random one within a fifth of it, so that clients
/// that were refused together do not return together.
const RETRY_MS: u64 = 5_000;

impl WorkerUpstream {
    /// Returns an error if the upstream is overloaded so that it would certainly refuse a request of this priority. Asked
    /// before limits are charged.
    ///
    /// # Errors
    /// The queue is full of requests of the same or a higher priority.
    pub fn check_capacity(&self, priority: Priority) -> Result<(), UpstreamError> {
        let load = self.upstream.load();
        let (Some(rule), true) = (&self.upstream.settings.caps, load.adaptive.is_some()) else { return Ok(()) };
        if load.queue.len() < rule.waiting.max(1) {
            return Ok(());
        }
        let max = rule.waiting.saturating_mul(self.selector.endpoints().servers.len());
        if !load.queue.is_full_for(priority, max) {
            return Ok(());
        }
        let error = self.refuse_waiting(priority, UpstreamError::QueueFull);
        self.record_unsent(error);
        Err(error)
    }

    /// Counts a request that gets no place, and returns its error: `error`, or that of an overloaded upstream if the
    /// upstream has an adaptive limit.
    pub(super) fn refuse_waiting(&self, priority: Priority, error: UpstreamError) -> UpstreamError {
        let load = self.upstream.load();
        load.count_refused(priority);
        match load.adaptive {
            Some(_) => UpstreamError::Overloaded(jittered_wait()),
            None => error,
        }
    }
}

fn jittered_wait() -> Duration {
    Duration::from_millis(rand::random_range(RETRY_MS - RETRY_MS / 5..=RETRY_MS + RETRY_MS / 5))
}
