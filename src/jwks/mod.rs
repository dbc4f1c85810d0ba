//! Fetches the keys of token issuers (`issuer` and URLs of `jwks` in `[jwt]`), on a thread of its own: no request ever
//! waits for an issuer, except for a bounded time for keys that it lacks.
//!
//! Input: the settings in `Config::token_keys`, and the requests for refreshes that they receive. Output: key sets in
//! these settings, which verifiers read. `client` makes the HTTP requests, and `schedule` decides when.

mod client;
mod schedule;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::sleep;

use crate::config::Config;
use crate::jwks::client::KeyClient;
use crate::limiting::clock;
use crate::limiting::source::jwt::remote_keys::{RemoteKeySettings, RemoteKeys};
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::Metrics;

/// Handle of the thread; it starts with the first config that needs it and ends with this value.
pub struct JwksThread {
    metrics: Metrics,
    changed: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
}

/// A task that keeps the keys of one section fresh.
struct RefreshTask {
    settings: RemoteKeySettings,
    handle: AbortHandle,
}

impl JwksThread {
    pub fn new(metrics: &Metrics) -> JwksThread {
        JwksThread { metrics: metrics.clone(), changed: Arc::default(), stop: None }
    }

    /// Starts or updates the thread for a config that has become active.
    pub fn update(&mut self, current: &CurrentSnapshot) {
        let config = &current.load().config;
        // Before the gateway is ready, so that the metrics are complete from the first scrape.
        config.token_keys.iter().for_each(|keys| self.metrics.tokens.export_section(&keys.settings.name));
        self.changed.notify_one();
        if config.token_keys.is_empty() || self.stop.is_some() {
            return;
        }
        let (stop, stopped) = oneshot::channel();
        let (current, metrics, changed) = (current.clone(), self.metrics.clone(), self.changed.clone());
        let run = move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
            Ok(runtime) => runtime.block_on(run_tasks(&current, &metrics, &changed, stopped)),
            Err(error) => tracing::error!("no keys of tokens can be fetched: no event loop for that: {error}"),
        };
        match std::thread::Builder::new().name("jwks".to_owned()).spawn(run) {
            Ok(_) => self.stop = Some(stop),
            Err(error) => tracing::error!("no keys of tokens can be fetched: no thread for that: {error}"),
        }
    }
}

/// Runs one task for each section of the active config, until the process ends.
async fn run_tasks(current: &CurrentSnapshot, metrics: &Metrics, changed: &Notify, mut stopped: oneshot::Receiver<()>) {
    let mut tasks = Vec::new();
    loop {
        replace_tasks(&mut tasks, &current.load().config, metrics);
        tokio::select! {
            () = changed.notified() => {}
            _ = &mut stopped => return,
        }
    }
}

/// Keeps the tasks of unchanged sections, ends the others, and starts those of new sections.
fn replace_tasks(tasks: &mut Vec<RefreshTask>, config: &Config, metrics: &Metrics) {
    tasks.retain(|task| {
        let is_kept = config.token_keys.iter().any(|keys| keys.settings == task.settings);
        if !is_kept {
            task.handle.abort();
        }
        is_kept
    });
    metrics.tokens.keep_sections(|name| config.token_keys.iter().any(|keys| keys.settings.name == name));
    for keys in &config.token_keys {
        if tasks.iter().all(|task| task.settings != keys.settings) {
            let handle = spawn_local(keep_fresh(keys.clone(), metrics.clone())).abort_handle();
            tasks.push(RefreshTask { settings: keys.settings.clone(), handle });
        }
    }
}

/// Fetches the keys when they are due, and when a request asks for newer ones.
async fn keep_fresh(keys: Arc<RemoteKeys>, metrics: Metrics) {
    let RemoteKeySettings { name, location, .. } = &keys.settings;
    let url = location.url();
    let mut failures = 0;
    let mut has_warned_of_age = false;
    metrics.tokens.export_section(name);
    // After a reload, the keys may be there already. A refresh that the reload interrupted begins again.
    let mut pause = match keys.published() {
        Some(published) if !keys.is_refresh_pending() => published.due.saturating_duration_since(Instant::now()),
        _ => Duration::ZERO,
    };
    let client = match KeyClient::new(keys.settings.ca.as_deref()) {
        Ok(client) => client,
        Err(fault) => {
            tracing::error!("{name}: the keys of {url} cannot be fetched: {fault}");
            keys.end_refresh(Err(fault), Default::default(), (Instant::now(), now_s()));
            return;
        }
    };
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            () = keys.wait_until_wanted() => {}
        }
        keys.begin_refresh();
        let before = keys.published();
        let (result, lifetime) = match client.fetch_keys(&keys.settings).await {
            Ok((set, lifetime)) => (Ok(set), lifetime),
            Err(fault) => (Err(fault), Default::default()),
        };
        let now_s = now_s();
        match &result {
            Ok(set) => {
                metrics.tokens.record_keys(name, set.len(), now_s);
                if before.is_none_or(|before| before.set.digest() != set.digest()) {
                    let skipped = (!set.skipped.is_empty()).then(|| set.skipped.join("; "));
                    tracing::info!(keys = set.len(), skipped, "{name}: new keys of {url}");
                } else if failures > 0 {
                    tracing::info!("{name}: the keys of {url} can be fetched again");
                }
                (failures, has_warned_of_age) = (0, false);
            }
            Err(fault) => {
                metrics.tokens.count_failure(name);
                if failures == 0 {
                    let until = if before.is_some() { "the last ones serve" } else { "there are none yet" };
                    tracing::warn!("{name}: the keys of {url} cannot be fetched, {until}: {fault}");
                }
                failures += 1;
            }
        }
        pause = match result {
            Ok(_) => schedule::vary(lifetime, rand::random()),
            Err(_) => schedule::pause_after(failures, rand::random()),
        };
        keys.end_refresh(result, lifetime, (Instant::now(), now_s));
        if let Some(published) = keys.published().filter(|_| failures == 0) {
            pause = pause.min(published.due.saturating_duration_since(Instant::now()));
        }
        let is_too_old = keys.published().is_some() && keys.status(now_s).is_unusable;
        if is_too_old && !has_warned_of_age {
            has_warned_of_age = true;
            tracing::error!("{name}: the keys of {url} are older than max_stale, so all its tokens are refused");
        }
    }
}

fn now_s() -> i64 {
    clock::now_ms() / 1000
}
