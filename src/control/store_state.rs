//! Keeps the facts about the store that the next process needs in the state file: how many gateways share the limits,
//! the live overrides, and which starts happened during an outage. Files are written on a separate thread, and only
//! when something changed. Run by the control thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use crate::admin::live_overrides::LiveOverrides;
use crate::config::Config;
use crate::control::state_file::{
    SIZE_MAX, SavedOutage, SavedState, VERSION, format_overrides, parse_overrides, remove_leftovers, write_file,
};
use crate::limiting::gateways::Gateways;
use crate::limiting::overrides::RawOverrides;
use crate::limiting::store::settings::StoreSettings;
use crate::local_ca;
use crate::snapshot::CurrentSnapshot;

pub struct StoreState {
    live: Rc<LiveOverrides>,
    gateways: Arc<Gateways>,
    /// Outage of the previous process, until this process reaches the store.
    previous_outage: RefCell<Option<SavedOutage>>,
    /// State that the last written file was made from.
    written: RefCell<Option<StateBasis>>,
    failed: Cell<Option<Instant>>,
    /// When a change by the admin API may be written. A file with many overrides takes long to make.
    next_write: Cell<Option<Instant>>,
}

/// Inputs from which the content was made.
#[derive(Clone, PartialEq)]
struct StateBasis {
    path: PathBuf,
    store: String,
    /// Generation of the config, which determines the limits.
    generation: u64,
    overrides: u64,
    gateways: i64,
    outage: Option<SavedOutage>,
}

/// Interval at which changes are looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Changes by the admin API that come within this time are written together.
const CHANGES_TOGETHER: Duration = Duration::from_millis(50);
/// After a write, further changes wait this many times as long as the file took to make, and at most
/// [`CHECK_INTERVAL`]. So a stream of changes takes no more than a tenth of a core.
const PAUSE_FACTOR: u32 = 9;
/// Pause before another attempt after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long a start waits for the first report, and then for the file.
const START_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of remembered restarts, the latest ones: each halves the share.
const RESTARTS_MAX: usize = 16;
/// Upper bound of the content without overrides, in bytes.
const REST_SIZE: usize = 64 * 1024;

impl StoreState {
    /// Reads the file that the config names, and applies its content until the store is available. Must be called
    /// before this gateway reports.
    pub fn load(config: &Config, gateways: &Arc<Gateways>, live: &Rc<LiveOverrides>) -> StoreState {
        let state = StoreState {
            live: live.clone(),
            gateways: gateways.clone(),
            previous_outage: RefCell::default(),
            written: RefCell::default(),
            failed: Cell::default(),
            next_write: Cell::default(),
        };
        let Some((path, store)) = state_file_of(&config.store) else { return state };
        remove_leftovers(path);
        let log_ignored = |why: &str| tracing::warn!("state file `{}` ignored: {why}", path.display());
        match SavedState::read_file(path) {
            Ok(None) => {}
            Ok(Some(saved)) if saved.store != store => log_ignored("it is about another store or prefix"),
            Ok(Some(saved)) => state.restore_overrides(config, saved),
            Err(why) => log_ignored(&why),
        }
        state
    }

    fn restore_overrides(&self, config: &Config, saved: SavedState) {
        if config.store.is_shared() {
            self.gateways.adopt_name(&saved.name);
            self.gateways.restore_peak(saved.gateways);
            // An outage is written only after it has lasted for some time, so one that had just begun counts as well.
            *self.previous_outage.borrow_mut() = Some(saved.outage.unwrap_or_default());
        }
        let raw = saved.overrides.into_iter().map(|(limit, text)| (limit, parse_overrides(text)));
        self.live.restore_saved(raw.collect());
        self.live.apply_known(config);
    }

    /// Called once the start has waited for the store. Without the store, this process may follow others in the same
    /// outage, each with its own share; the file is written at once so that a later process finds this start.
    pub async fn record_start(&self, config: &Config) {
        if state_file_of(&config.store).is_none() || !config.store.is_shared() {
            return;
        }
        let until = Instant::now() + START_TIMEOUT;
        while self.gateways.is_store_silent() && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
        if !self.gateways.is_store_silent() {
            *self.previous_outage.borrow_mut() = None;
        } else if let Some(outage) = &mut *self.previous_outage.borrow_mut() {
            let now_s = local_ca::now_s();
            outage.restarts.push(now_s);
            let excess = outage.restarts.len().saturating_sub(RESTARTS_MAX);
            outage.restarts.drain(..excess);
            let age_ms = |at_s: &i64| now_s.saturating_sub(*at_s).max(0).saturating_mul(1000);
            self.gateways.record_restarts(outage.restarts.iter().map(age_ms).collect());
            tracing::warn!(
                restarts = outage.restarts.len(),
                "started while the store is unavailable, as it was for the process before: with each restart within \
                 its period, a limit's local share is halved"
            );
        }
        let _ = timeout(START_TIMEOUT, self.save_if_changed(1, config)).await;
    }

    /// Keeps the file up to date. Never returns.
    pub async fn run(self: Rc<StoreState>, current: CurrentSnapshot) {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // A change by the admin API is reported as kept once the file has it. One write serves those that come together.
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.live.wait_for_change() => {
                    let earliest = Instant::now() + CHANGES_TOGETHER;
                    sleep_until(self.next_write.get().map_or(earliest, |at| at.max(earliest))).await;
                }
            }
            if !self.gateways.is_store_silent() {
                *self.previous_outage.borrow_mut() = None;
            }
            let snapshot = current.load_full();
            if self.failed.get().is_none_or(|at| at.elapsed() >= RETRY_INTERVAL) {
                self.save_if_changed(snapshot.generation, &snapshot.config).await;
            }
        }
    }

    /// Writes the file if its content would change.
    async fn save_if_changed(&self, generation: u64, config: &Config) {
        let Some((path, store)) = state_file_of(&config.store) else { return };
        let is_away = config.store.is_shared() && self.gateways.is_store_silent();
        let outage = is_away.then(|| self.previous_outage.borrow().clone().unwrap_or_default());
        let next = StateBasis {
            path: path.to_owned(),
            store,
            generation,
            overrides: self.live.revision(),
            gateways: self.gateways.peak_count(),
            outage,
        };
        if self.written.borrow().as_ref() == Some(&next) {
            return;
        }
        let begun = Instant::now();
        let state = SavedState {
            version: VERSION,
            store: next.store.clone(),
            name: self.gateways.name().to_owned(),
            gateways: next.gateways,
            outage: next.outage.clone(),
            overrides: BTreeMap::new(),
        };
        let content = StateContent { state, overrides: self.live.overrides_for(config) };
        let copying = begun.elapsed();
        let outcome = write_off_thread(content, next.path.clone()).await;
        let making = outcome.as_ref().map_or(Duration::ZERO, |(_, making)| *making);
        let pause = (copying + making).saturating_mul(PAUSE_FACTOR).min(CHECK_INTERVAL);
        self.next_write.set(Some(Instant::now() + pause));
        let outcome = outcome.map(|(left_out, _)| left_out);
        let path = next.path.display();
        match &outcome {
            Ok(left_out) if left_out.is_empty() => {}
            Ok(left_out) => tracing::warn!(
                "state file `{path}` would have more than {SIZE_MAX} bytes: left out the live overrides of {}",
                left_out.join(", ")
            ),
            Err(error) if self.failed.get().is_none() => tracing::warn!(
                "cannot write the state file `{path}`, trying again every {RETRY_INTERVAL:?}: {error}; a start while the store \
                 is unavailable will not know the live overrides and the number of gateways of now"
            ),
            Err(_) => {}
        }
        let unsaved = match &outcome {
            Ok(left_out) => left_out.iter().cloned().collect(),
            Err(_) => config.limits.iter().map(|limit| limit.name.clone()).collect(),
        };
        self.live.note_saved(next.overrides, unsaved);
        if outcome.is_ok() && self.failed.get().is_some() {
            tracing::info!("state file `{path}` is written again");
        }
        self.failed.set(outcome.is_err().then(Instant::now));
        if outcome.is_ok() {
            *self.written.borrow_mut() = Some(next);
        }
    }
}

/// Returns the state file and the name of its store, if a file is set.
fn state_file_of(settings: &StoreSettings) -> Option<(&Path, String)> {
    let path = settings.state.as_deref()?;
    match settings.is_shared() {
        true => Some((path, settings.location()?)),
        false => Some((path, format!("memory {}", settings.prefix))),
    }
}

/// Content of the next state file.
struct StateContent {
    /// All but the overrides.
    state: SavedState,
    overrides: BTreeMap<String, RawOverrides>,
}

impl StateContent {
    /// Formats the content. Returns also the limits whose overrides are left out because the file would be too large.
    fn format(self) -> Result<(Vec<u8>, Vec<String>), String> {
        let StateContent { mut state, overrides } = self;
        state.overrides = overrides.into_iter().map(|(limit, raw)| (limit, format_overrides(&raw))).collect();
        let content = state.format()?;
        if content.len() <= SIZE_MAX {
            return Ok((content, Vec::new()));
        }
        let left_out = drop_until_fits(&mut state);
        Ok((state.format()?, left_out))
    }
}

/// Makes the content and writes it on a separate thread, which a slow disk may block. Returns the limits whose overrides
/// were left out, and how long the content took to make.
async fn write_off_thread(content: StateContent, path: PathBuf) -> Result<(Vec<String>, Duration), String> {
    let (reply, outcome) = oneshot::channel();
    let work = move || {
        let begun = Instant::now();
        let formatted = content.format().map(|content| (content, begun.elapsed()));
        let written = formatted
            .and_then(|((content, left_out), making)| write_file(&path, &content).map(|()| (left_out, making)));
        // The caller may have given up.
        let _ = reply.send(written);
    };
    let thread = std::thread::Builder::new().name("state-file".to_owned()).spawn(work);
    thread.map_err(|error| error.to_string())?;
    outcome.await.unwrap_or_else(|_| Err("the thread that writes it failed".to_owned()))
}

/// Drops overrides until the file fits, from the largest sets first.
fn drop_until_fits(saved: &mut SavedState) -> Vec<String> {
    let size = |limit: &String, overrides| {
        serde_json::to_vec(overrides).map_or(SIZE_MAX, |json| json.len()) + 2 * limit.len() + 8
    };
    let mut sizes: Vec<(usize, String)> =
        saved.overrides.iter().map(|(limit, overrides)| (size(limit, overrides), limit.clone())).collect();
    sizes.sort_unstable();
    let mut total = REST_SIZE;
    let mut left_out = Vec::new();
    for (size, limit) in sizes {
        total = total.saturating_add(size);
        if total > SIZE_MAX {
            saved.overrides.remove(&limit);
            left_out.push(limit);
        }
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_sets_of_overrides_are_left_out_of_a_file_that_is_too_large() {
        let set = |bytes: usize| [("k".repeat(bytes), "rate=0".to_owned())].into();
        let mut saved = SavedState { version: VERSION, ..SavedState::default() };
        for (limit, bytes) in [("a", SIZE_MAX / 2), ("b", SIZE_MAX), ("c", SIZE_MAX / 4), ("d", 3)] {
            saved.overrides.insert(limit.to_owned(), set(bytes));
        }
        assert_eq!(drop_until_fits(&mut saved), ["b"]);
        assert!(serde_json::to_vec(&saved).unwrap().len() <= SIZE_MAX);
        assert_eq!(saved.overrides.keys().collect::<Vec<_>>(), ["a", "c", "d"]);
    }

    #[test]
    fn a_file_that_fits_has_all_overrides() {
        let content = |bytes: usize| {
            let raw = |key: usize| RawOverrides::from([(vec![b'k'; key], b"rate=0".to_vec())]);
            let overrides = [("a", 3), ("b", bytes)].map(|(limit, key)| (limit.to_owned(), raw(key)));
            let state = SavedState { version: VERSION, ..SavedState::default() };
            let (text, left_out) = StateContent { state, overrides: overrides.into() }.format().unwrap();
            assert!(text.len() <= SIZE_MAX);
            let saved: SavedState = serde_json::from_slice(&text).unwrap();
            (saved.overrides.into_keys().collect::<Vec<_>>(), left_out)
        };
        let both = ["a", "b"].map(str::to_owned).to_vec();
        assert_eq!(content(SIZE_MAX - 1000), (both, Vec::new()));
        assert_eq!(content(SIZE_MAX), (vec!["a".to_owned()], vec!["b".to_owned()]));
    }
}
