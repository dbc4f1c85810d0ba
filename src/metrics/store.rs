//! The store's health as all workers see it. Each worker has a connection and a breaker of its
//! own; the gauges show the worst of them, and only a change of the whole is logged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntGauge;

pub struct StoreHealth {
    views: Mutex<Views>,
    up: IntGauge,
    breaker: IntGauge,
}

/// More are not told in one outage.
const REASONS_MAX: usize = 8;

#[derive(Default)]
struct Views {
    next: u64,
    workers: HashMap<u64, HealthView>,
    /// What was logged last.
    announced: Option<bool>,
    /// The reasons told since the store went away, a few.
    reasons: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
struct HealthView {
    up: bool,
    breaker: i64,
}

/// One worker's part; it no longer counts once dropped.
pub struct StoreView {
    health: Arc<StoreHealth>,
    id: u64,
}

impl StoreHealth {
    pub fn new(up: IntGauge, breaker: IntGauge) -> StoreHealth {
        let health = StoreHealth { views: Mutex::default(), up, breaker };
        health.show(&Views::default());
        health
    }

    /// Joins a worker, which sees nothing until it says otherwise.
    pub fn join(self: &Arc<Self>) -> StoreView {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.next += 1;
        let id = views.next;
        views.workers.insert(id, HealthView { up: false, breaker: 0 });
        self.show(&views);
        StoreView { health: self.clone(), id }
    }

    /// With no worker joined the store is the embedded one, which is always there.
    fn show(&self, views: &Views) {
        self.up.set(i64::from(views.workers.values().all(|view| view.up)));
        self.breaker.set(views.workers.values().map(|view| view.breaker).max().unwrap_or(0));
    }
}

impl Views {
    /// Whether the reason was not told yet; it counts as told now. What was broken off shows another one
    /// with the next attempt: that a password is wrong, for instance.
    fn is_news(&mut self, why: &str) -> bool {
        let is_news =
            !why.is_empty() && self.reasons.len() < REASONS_MAX && self.reasons.iter().all(|told| told != why);
        if is_news {
            self.reasons.push(why.to_owned());
        }
        is_news
    }
}

impl StoreView {
    /// `why`: the error seen, without secrets.
    pub fn set(&self, up: bool, breaker: i64, why: &str) {
        let mut views = self.health.views.lock().unwrap_or_else(PoisonError::into_inner);
        if views.announced == Some(false) && !up && views.is_news(why) {
            tracing::warn!(error = why, "the limit store still does not answer, for another reason");
        }
        if views.workers.insert(self.id, HealthView { up, breaker }) == Some(HealthView { up, breaker })
            && views.announced.is_some()
        {
            return;
        }
        self.health.show(&views);
        let all_up = views.workers.values().all(|view| view.up);
        // A worker that is still connecting does not make the store bad news.
        if views.announced == Some(all_up) || (up && !all_up) {
            return;
        }
        views.announced = Some(all_up);
        if all_up {
            views.reasons.clear();
            tracing::info!("the limit store answers");
        } else {
            views.is_news(why);
            tracing::warn!(error = why, "the limit store does not answer: limits follow their on_error until it does");
        }
    }
}

impl Drop for StoreView {
    fn drop(&mut self) {
        let mut views = self.health.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.workers.remove(&self.id);
        self.health.show(&views);
    }
}
