//! Keeps what this gateway knows of the store in the state file, for the process that comes after it: how many
//! gateways share the limits, the live overrides, and which starts fell into an outage. Writes happen on a
//! thread of their own, only when something has changed. Started by the control thread.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::overrides::Live;
use super::state_file::{SIZE_MAX, SavedOutage, SavedState, VERSION, overrides_from_text, overrides_to_text, sweep};
use crate::config::Config;
use crate::limit::store::settings::StoreSettings;
use crate::metrics::Gateways;
use crate::snapshot::Current;

pub struct StoreState {
    live: Rc<Live>,
    gateways: Arc<Gateways>,
    /// The outage of the process before, until the store answers this one.
    earlier: RefCell<Option<SavedOutage>>,
    /// What the file holds.
    written: RefCell<Option<StateBasis>>,
    failed: Cell<Option<Instant>>,
}

/// What a content of the file was made from.
#[derive(Clone, PartialEq)]
struct StateBasis {
    path: PathBuf,
    store: String,
    /// Of the config, which says which limits there are.
    generation: u64,
    overrides: u64,
    gateways: i64,
    outage: Option<SavedOutage>,
}

/// How often changes are looked for.
const PERIOD: Duration = Duration::from_secs(1);
/// After a failure it is tried again this often.
const RETRY: Duration = Duration::from_secs(10);
/// A start waits for the first report this long, and then for the file.
const START_WAIT: Duration = Duration::from_millis(500);
/// Restarts that are kept, the latest: with each of them shares are halved.
const RESTARTS_MAX: usize = 16;
/// What the file holds apart from overrides takes less than this.
const REST_SIZE: usize = 64 * 1024;

impl StoreState {
    /// Reads the file that the config names, and puts what it holds in force until the store answers. To be called
    /// before this gateway reports.
    pub fn load(config: &Config, gateways: &Arc<Gateways>, live: &Rc<Live>) -> StoreState {
        let state = StoreState {
            live: live.clone(),
            gateways: gateways.clone(),
            earlier: RefCell::default(),
            written: RefCell::default(),
            failed: Cell::default(),
        };
        let Some((path, store)) = kept(&config.store) else { return state };
        sweep(path);
        let ignored = |why: &str| tracing::warn!("state file `{}` ignored: {why}", path.display());
        match SavedState::read(path) {
            Ok(None) => {}
            Ok(Some(saved)) if saved.store != store => ignored("it is about another store or prefix"),
            Ok(Some(saved)) => state.restore(config, saved),
            Err(why) => ignored(&why),
        }
        state
    }

    fn restore(&self, config: &Config, saved: SavedState) {
        self.gateways.take_name(&saved.name);
        self.gateways.restore(saved.gateways);
        // An outage is written to the file only once it has lasted a while, so one that has just begun counts as well.
        *self.earlier.borrow_mut() = Some(saved.outage.unwrap_or_default());
        let raw = saved.overrides.into_iter().map(|(limit, text)| (limit, overrides_from_text(text)));
        self.live.restore(raw.collect());
        self.live.dress(config);
    }

    /// The start has waited for the store. Without it, this process may follow others in the same outage, of which
    /// each had a share of its own; what is written now is found even if this process ends at once.
    pub async fn start(&self, config: &Config) {
        if kept(&config.store).is_none() {
            return;
        }
        let until = Instant::now() + START_WAIT;
        while self.gateways.are_cut_off() && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
        if !self.gateways.are_cut_off() {
            *self.earlier.borrow_mut() = None;
        } else if let Some(outage) = &mut *self.earlier.borrow_mut() {
            let now_s = unix_s();
            outage.restarts.push(now_s);
            let excess = outage.restarts.len().saturating_sub(RESTARTS_MAX);
            outage.restarts.drain(..excess);
            let age_ms = |at_s: &i64| now_s.saturating_sub(*at_s).max(0).saturating_mul(1000);
            self.gateways.restarted(outage.restarts.iter().map(age_ms).collect());
            tracing::warn!(
                restarts = outage.restarts.len(),
                "started while the store is unavailable, as it was for the process before: with each restart within \
                 its period, a limit's local share is halved"
            );
        }
        let _ = timeout(START_WAIT, self.save(1, config)).await;
    }

    /// Never returns.
    pub async fn follow(self: Rc<StoreState>, current: Current) {
        let mut beats = interval(PERIOD);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            if !self.gateways.are_cut_off() {
                *self.earlier.borrow_mut() = None;
            }
            let snapshot = current.load_full();
            if self.failed.get().is_none_or(|at| at.elapsed() >= RETRY) {
                self.save(snapshot.generation, &snapshot.config).await;
            }
        }
    }

    /// Writes the file if it would hold something else than before.
    async fn save(&self, generation: u64, config: &Config) {
        let Some((path, store)) = kept(&config.store) else { return };
        let outage = self.gateways.are_cut_off().then(|| self.earlier.borrow().clone().unwrap_or_default());
        let next = StateBasis {
            path: path.to_owned(),
            store,
            generation,
            overrides: self.live.revision(),
            gateways: self.gateways.seen(),
            outage,
        };
        if self.written.borrow().as_ref() == Some(&next) {
            return;
        }
        let saved = SavedState {
            version: VERSION,
            store: next.store.clone(),
            name: self.gateways.name().to_owned(),
            gateways: next.gateways,
            outage: next.outage.clone(),
            overrides: self.live.of(config).into_iter().map(|(limit, raw)| (limit, overrides_to_text(&raw))).collect(),
        };
        let outcome = write(saved, next.path.clone()).await;
        let shown = next.path.display();
        match &outcome {
            Ok(left_out) if left_out.is_empty() => {}
            Ok(left_out) => tracing::warn!(
                "state file `{shown}` would have more than {SIZE_MAX} bytes: left out the live overrides of {}",
                left_out.join(", ")
            ),
            Err(error) if self.failed.get().is_none() => tracing::warn!(
                "cannot write the state file `{shown}`, trying again every {RETRY:?}: {error}; a start while the store \
                 is unavailable will not know the live overrides and the number of gateways of now"
            ),
            Err(_) => {}
        }
        if outcome.is_ok() && self.failed.get().is_some() {
            tracing::info!("state file `{shown}` is written again");
        }
        self.failed.set(outcome.is_err().then(Instant::now));
        if outcome.is_ok() {
            *self.written.borrow_mut() = Some(next);
        }
    }
}

/// The state file and the store it is about, where there are both.
fn kept(settings: &StoreSettings) -> Option<(&Path, String)> {
    Some((settings.state.as_deref()?, settings.place()?))
}

/// Writes on a thread of its own, which a disk may hold up for as long as it likes. Returns the limits whose
/// overrides were left out, as the file would be too large.
async fn write(saved: SavedState, path: PathBuf) -> Result<Vec<String>, String> {
    let (reply, outcome) = oneshot::channel();
    let work = move || {
        let mut saved = saved;
        let left_out = fit(&mut saved);
        // Whoever waited may have given up.
        let _ = reply.send(saved.write(&path).map(|()| left_out));
    };
    let thread = std::thread::Builder::new().name("state-file".to_owned()).spawn(work);
    thread.map_err(|error| error.to_string())?;
    outcome.await.unwrap_or_else(|_| Err("the thread that writes it failed".to_owned()))
}

/// Leaves out the overrides that take the file beyond its bound, of the largest sets first.
fn fit(saved: &mut SavedState) -> Vec<String> {
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

fn unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
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
        assert_eq!(fit(&mut saved), ["b"]);
        assert!(serde_json::to_vec(&saved).unwrap().len() <= SIZE_MAX);
        assert_eq!(saved.overrides.keys().collect::<Vec<_>>(), ["a", "c", "d"]);
    }
}
