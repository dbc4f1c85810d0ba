//! The adaptive limit of an upstream: how many requests all workers together send to it at once. It follows the
//! servers' capacity, which is measured.
//!
//! Input: how long each attempt waited for the head of its response. Output: places, which requests need to be sent.
//! `proxy::outbound::select` takes places, `proxy::steps::forward` reports how attempts ended.
//!
//! - `window`: response times and counts of one sample window
//! - `elasticity`: whether more requests bring more throughput
//! - `controller`: the law that changes the limit after each window
//! - this file: the state that all workers share
//!
//! Memory per upstream: one histogram of 184 counters and a few numbers, below 2 KiB.

pub mod controller;
mod elasticity;
#[cfg(test)]
mod tests;
pub mod window;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::upstream::adaptive::controller::{AdaptiveRule, Controller};
use crate::upstream::adaptive::window::{ResponseSample, SampleKind};
use crate::upstream::queue::ServerPace;

/// The adaptive limit of one upstream. Survives reloads.
pub struct AdaptiveLimit {
    limit: AtomicU32,
    in_flight: AtomicU32,
    /// The recent response time, in microseconds. 0: unknown.
    recent_us: AtomicU64,
    /// The time between two responses, in microseconds. 0: unknown.
    gap_us: AtomicU64,
    controller: Mutex<Controller>,
    /// The origin of the controller's clock: the first sample.
    origin: OnceLock<Instant>,
}

/// The place of one request below the limit. Dropping it frees the place.
pub struct AdaptivePermit {
    limit: Arc<AdaptiveLimit>,
}

/// The state as operators see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveReport {
    pub limit: u32,
    pub in_flight: u32,
    /// Response time of servers that do not queue, in milliseconds. 0: unknown yet.
    pub baseline_ms: f64,
    /// Response time recently, in milliseconds. 0: unknown yet.
    pub recent_ms: f64,
}

impl AdaptiveLimit {
    pub fn new(rule: AdaptiveRule) -> AdaptiveLimit {
        let controller = Controller::new(rule, 0);
        AdaptiveLimit {
            limit: AtomicU32::new(controller.limit()),
            in_flight: AtomicU32::new(0),
            recent_us: AtomicU64::new(0),
            gap_us: AtomicU64::new(0),
            controller: Mutex::new(controller),
            origin: OnceLock::new(),
        }
    }

    /// Applies changed settings and keeps what was learned.
    pub fn apply_rule(&self, rule: AdaptiveRule) {
        let mut controller = self.lock();
        controller.apply_rule(rule);
        self.limit.store(controller.limit(), Ordering::SeqCst);
    }

    /// Takes a place. Returns `None` if as many requests as the limit are in flight.
    pub fn take_place(self: &Arc<AdaptiveLimit>) -> Option<AdaptivePermit> {
        let limit = self.limit.load(Ordering::SeqCst);
        let taken =
            self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| (now < limit).then_some(now + 1));
        taken.is_ok().then(|| AdaptivePermit { limit: self.clone() })
    }

    /// Returns whether a place is free.
    pub fn has_place(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) < self.limit.load(Ordering::SeqCst)
    }

    /// Returns the recent response time. Zero: unknown.
    pub fn recent(&self) -> Duration {
        Duration::from_micros(self.recent_us.load(Ordering::Relaxed))
    }

    pub fn pace(&self) -> ServerPace {
        ServerPace { gap: Duration::from_micros(self.gap_us.load(Ordering::Relaxed)), response: self.recent() }
    }

    pub fn report(&self) -> AdaptiveReport {
        let controller = self.lock();
        AdaptiveReport {
            limit: controller.limit(),
            in_flight: self.in_flight.load(Ordering::SeqCst),
            baseline_ms: controller.baseline_us() / 1e3,
            recent_ms: controller.recent_us() / 1e3,
        }
    }

    fn record(&self, kind: SampleKind, waited: Duration, has_queue: bool, now: Instant) -> bool {
        let in_flight = self.in_flight.load(Ordering::SeqCst);
        let at_limit = has_queue || in_flight >= self.limit.load(Ordering::SeqCst);
        let sample = ResponseSample { kind, response_us: to_micros(waited), in_flight, at_limit };
        let now_us = to_micros(now.saturating_duration_since(*self.origin.get_or_init(|| now)));
        let mut controller = self.lock();
        let before = controller.limit();
        if !controller.record(sample, now_us) {
            return false;
        }
        let limit = controller.limit();
        self.limit.store(limit, Ordering::SeqCst);
        self.recent_us.store(controller.recent_response_us(), Ordering::Relaxed);
        self.gap_us.store(controller.gap_us(), Ordering::Relaxed);
        limit > before
    }

    fn lock(&self) -> MutexGuard<'_, Controller> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdaptivePermit {
    /// Records how an attempt ended that waited for `waited`. `has_queue`: other requests wait for a place. Returns
    /// true if the limit has been raised, so that waiting requests may find a place.
    pub fn record(&self, kind: SampleKind, waited: Duration, has_queue: bool, now: Instant) -> bool {
        self.limit.record(kind, waited, has_queue, now)
    }

    /// Returns the limit that the place belongs to.
    pub fn limit(&self) -> &Arc<AdaptiveLimit> {
        &self.limit
    }
}

impl Drop for AdaptivePermit {
    fn drop(&mut self) {
        self.limit.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

fn to_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
