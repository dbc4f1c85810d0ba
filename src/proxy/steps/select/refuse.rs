//! Refuses requests of an upstream without capacity. Called by `reserve` and, before limits are charged, by
//! `proxy::steps::shedding`.

use std::time::Duration;

use crate::ends::End;
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::words::jitter::add_jitter;
use crate::proxy::words::refusal::Refusal;
use crate::upstream::priority::Priority;

/// The time after which clients may retry, in ms, before the jitter.
const RETRY_MS: u64 = 5_000;

impl WorkerUpstream {
    /// Reports whether the upstream has an adaptive limit, and its queue is full of requests of the same or a higher
    /// priority: it would certainly refuse a request of this one.
    pub fn is_full_for(&self, priority: Priority) -> bool {
        let load = self.upstream.load();
        let (Some(rule), true) = (&self.upstream.settings.caps, load.adaptive.is_some()) else { return false };
        let max = rule.waiting.saturating_mul(self.selector.endpoints().servers.len());
        load.queue.len() >= rule.waiting.max(1) && load.queue.is_full_for(priority, max)
    }

    /// Counts a request that is refused because the upstream is full, and returns its error.
    pub fn refuse_full(&self, priority: Priority) -> Refusal {
        let error = self.refuse_waiting(priority, End::QueueFull);
        self.record_unsent(error);
        error
    }

    /// Counts a request that gets no place, and returns its error: `end`, or that of an overloaded upstream if the
    /// upstream has an adaptive limit.
    pub(super) fn refuse_waiting(&self, priority: Priority, end: End) -> Refusal {
        let load = self.upstream.load();
        load.count_refused(priority);
        match load.adaptive {
            Some(_) => Refusal::retry_after(End::UpstreamOverloaded, Duration::from_millis(add_jitter(RETRY_MS))),
            None => end.into(),
        }
    }
}
