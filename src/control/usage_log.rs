//! Logs which limits refuse requests, and whose: one line per limit about every ten seconds. Also sets the gauges of
//! limits.

use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::time::{MissedTickBehavior, interval};

use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::Limit;
use crate::limiting::usage::KeyOutcome;
use crate::limiting::usage::history::{COLLECT_EVERY, UsageHistory, UsageMonitor, UsageWindow};
use crate::snapshot::{CurrentSnapshot, export_policies};
use crate::telemetry::metrics::{LimitRegistry, Metrics};

/// Number of collections per log line: ten seconds.
const TICKS_PER_LINE: u32 = 5;
/// Maximum number of limits logged at a time: the ones that refuse most.
const LINES_MAX: usize = 20;

/// Collects the decisions of all threads, and logs the limits that refused. Never returns.
pub async fn run_usage_log(monitor: Rc<UsageMonitor>, current: CurrentSnapshot, metrics: Metrics) {
    let mut ticks = interval(COLLECT_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate.
    ticks.tick().await;
    monitor.record_limits(&current.load().config.limits);
    loop {
        for _ in 0..TICKS_PER_LINE {
            ticks.tick().await;
            drop(monitor.collect());
            monitor.record_limits(&current.load().config.limits);
        }
        let snapshot = current.load();
        let display = &snapshot.config.admin.key_display;
        export_policies(&snapshot.config, &metrics.limits);
        export_refused_keys(&monitor.collect(), snapshot.config.limits.iter(), &metrics.limits);
        log_refusals(&monitor.collect(), snapshot.config.limits.iter(), display);
    }
}

/// Sets the gauges of how many keys each limit refused in the last minute.
fn export_refused_keys<'l>(
    history: &UsageHistory,
    limits: impl Iterator<Item = &'l Arc<Limit>>,
    registry: &LimitRegistry,
) {
    let keys = history.count_refused_keys(UsageWindow::Minute);
    for limit in limits {
        if let Some(gauges) = registry.find(&limit.name) {
            gauges.set_keys_refused(keys.get(&limit.store_ref.id).copied().unwrap_or(0));
        }
    }
}

fn log_refusals<'l>(history: &UsageHistory, limits: impl Iterator<Item = &'l Arc<Limit>>, display: &KeyDisplay) {
    let totals = history.totals(UsageWindow::TenSeconds);
    let refusals = |limit: &Limit| totals.get(&limit.store_ref.id).map_or(0, |sums| sums[KeyOutcome::Refused as usize]);
    let mut refusing: Vec<&Arc<Limit>> = limits.filter(|limit| refusals(limit) > 0).collect();
    refusing.sort_by_key(|limit| Reverse(refusals(limit)));
    for limit in refusing.iter().take(LINES_MAX) {
        let window =
            history.find_usage(limit.store_ref.id, KeyOutcome::Refused, UsageWindow::TenSeconds, Instant::now());
        let admissions = totals.get(&limit.store_ref.id).map_or(0, |sums| sums[KeyOutcome::Admitted as usize]);
        let (keys, is_exact) = window.usage.distinct.estimate_count();
        let most = window.usage.frequent.list_top(1).first().map_or(String::new(), |(_, parts, count)| {
            format!("; most: {} ({count})", display.show_state_parts(limit.counted_key(), parts.split(',')))
        });
        let (total, about) = (window.usage.total, if is_exact { "" } else { "about " });
        let (requests, nouns) = (total + admissions, if keys == 1 { "key" } else { "keys" });
        tracing::info!(
            "limit {}: refused {total} of about {requests} {} of {about}{keys} {nouns} in {} s{most}",
            limit.name,
            if requests == 1 { "request" } else { "requests" },
            window.covered.as_secs(),
        );
    }
    if let Some(more) = refusing.len().checked_sub(LINES_MAX).filter(|more| *more > 0) {
        tracing::info!("{more} more limits refused requests; see /-/top");
    }
}
