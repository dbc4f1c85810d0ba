//! The last hour of the gateway, for people who open the dashboard after something happened: rates in steps of five
//! seconds, and what changed when. `pages::traffic` shows it.
//!
//! Input: the counts of `/metrics`, which a task of the control thread reads every five seconds. Output: JSON. Memory
//! is bounded: 720 samples of 48 bytes, `MARKS` marks, and three copies of the counts of all routes.
//!
//! - `samples`: the samples, and the marks between them
//! - `rates`: rates of each route and limit
//!
//! To add a series, add a field to `HistorySample`, fill it in `samples::TrafficHistory::add_counts`, list it in
//! `samples::TrafficHistory::write_json`, and describe it in `openapi/schemas/traffic.json`.

mod rates;
mod samples;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep};

pub use crate::admin::history::rates::write_rates;
pub use crate::admin::history::samples::TrafficHistory;
use crate::admin::history::samples::{GatewayState, STEP};
use crate::admin::lifecycle::SharedState;
use crate::limiting::clock;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::Metrics;

/// Reading the counts takes at most one part in `SHARE` of the time of the control thread.
const SHARE: u32 = 50;

/// Starts to record the past, until the control thread ends.
pub fn record_history(metrics: &Metrics, current: &CurrentSnapshot, shared: &Arc<SharedState>) -> Rc<TrafficHistory> {
    let history = Rc::<TrafficHistory>::default();
    let source = TrafficSource { metrics: metrics.clone(), current: current.clone(), shared: shared.clone() };
    spawn_local(source.record(history.clone()));
    history
}

/// The sources of the counts and the state.
struct TrafficSource {
    metrics: Metrics,
    current: CurrentSnapshot,
    shared: Arc<SharedState>,
}

impl TrafficSource {
    async fn record(self, history: Rc<TrafficHistory>) {
        let mut tick = interval(STEP);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let start = Instant::now();
            let snapshot = self.current.load();
            let lost_of = |limit: &str| self.metrics.store.usage_lost.with_label_values(&[limit]).get();
            let recorded = snapshot.config.limits.iter().filter(|limit| limit.store_ref.usage_days.is_some());
            let state = GatewayState {
                at_ms: clock::now_ms().try_into().unwrap_or_default(),
                generation: snapshot.generation,
                is_store_up: self.metrics.store.up.get() == 1,
                last_reload: self.shared.last_reload(),
                lost_lines: self.metrics.access_log_dropped.get() + self.metrics.admin.audit_lines_lost.get(),
                lost_usage: recorded.map(|limit| lost_of(&limit.name)).sum(),
            };
            history.add_counts(start, self.metrics.routes.list_traffic(), &state);
            sleep((start.elapsed() * SHARE).saturating_sub(STEP)).await;
        }
    }
}
