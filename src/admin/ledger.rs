//! Saves the usage of limits with `usage`, every second: in Redis for all gateways, or with a memory store in this
//! process and in a file beside its state file. Run by the control thread; `limits` reads it for reports.
//!
//! Nothing waits for it. While Redis is unavailable, usage waits in bounded memory, and what has no space is counted in
//! a metric. Redis applies each batch at most once, so a lost reply counts nothing twice.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prometheus::IntCounterVec;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::admin::store_link::StoreLink;
use crate::config::Config;
use crate::limiting::clock;
use crate::limiting::ledger::pending::PendingUsage;
use crate::limiting::ledger::recorder::LedgerRecorders;
use crate::limiting::ledger::{DAY_MS, DayUsage, LedgerDay, parse_day};
use crate::limiting::store::redis::usage_days::UsagePage;
use crate::replace_file::replace_file;
use crate::snapshot::CurrentSnapshot;

pub struct UsageLedger {
    recorders: LedgerRecorders,
    pending: RefCell<PendingUsage>,
    /// Usage with a memory store. A thread locks it while it writes the file.
    local: Arc<Mutex<LocalUsage>>,
    /// Name of this process in Redis. A restart has another one, so that its batches count from 1.
    gateway: String,
    lost: IntCounterVec,
    link: Rc<StoreLink>,
    current: CurrentSnapshot,
    /// One save at a time.
    turn: Semaphore,
    failing: Cell<bool>,
    written: Cell<Option<Instant>>,
}

/// The usage of a memory store.
#[derive(Default)]
struct LocalUsage {
    days: BTreeMap<LedgerDay, LocalDay>,
    /// Number of keys in all days.
    keys: usize,
    is_changed: bool,
}

/// The usage of a limit on one day.
#[derive(Default)]
struct LocalDay {
    /// The number of days for which usage is kept.
    kept_days: u16,
    keys: BTreeMap<Box<str>, DayUsage>,
}

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct SavedUsage {
    version: u32,
    days: Vec<SavedDay>,
}

#[derive(Serialize, Deserialize)]
struct SavedDay {
    limit: String,
    date: String,
    kept_days: u16,
    /// `ADMITTED REFUSED UNITS` by key.
    keys: BTreeMap<String, String>,
}

const VERSION: u32 = 1;
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the file is written: a crash loses as much.
const FILE_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit of the last save.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a report waits for the usage of the last second.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the thread that writes the file, and the pause before looking again.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of keys on all days of a memory store.
const LOCAL_KEYS_MAX: usize = 200_000;
const FILE_MAX: u64 = 64 * 1024 * 1024;
/// Number of keys on a page.
const PAGE: usize = 1000;
/// A round ends after this many failures in a row.
const FAILURES_MAX: u32 = 3;

impl UsageLedger {
    pub fn new(
        recorders: &LedgerRecorders,
        lost: &IntCounterVec,
        link: &Rc<StoreLink>,
        current: &CurrentSnapshot,
    ) -> UsageLedger {
        let mut ledger = UsageLedger {
            recorders: recorders.clone(),
            pending: RefCell::default(),
            local: Arc::default(),
            gateway: format!("{:032x}", rand::random::<u128>()),
            lost: lost.clone(),
            link: link.clone(),
            current: current.clone(),
            turn: Semaphore::new(1),
            failing: Cell::new(false),
            written: Cell::new(None),
        };
        let config = &current.load().config;
        ledger.create_series(config);
        if let Some(file) = file_of(config).filter(|_| keeps_usage(config)) {
            match LocalUsage::read_file(&file) {
                Ok(usage) => ledger.local = Arc::new(Mutex::new(usage)),
                Err(why) => tracing::warn!("usage in `{}` ignored: {why}", file.display()),
            }
        }
        ledger
    }

    fn create_series(&self, config: &Config) {
        for limit in config.limits.iter().filter(|limit| limit.store_ref.usage_days.is_some()) {
            let _ = self.lost.with_label_values(&[&limit.name]);
        }
    }

    /// Saves periodically. Never returns.
    pub async fn run(self: Rc<UsageLedger>) {
        let mut ticks = interval(SAVE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut generation = 0;
        loop {
            ticks.tick().await;
            let snapshot = self.current.load_full();
            if generation != snapshot.generation {
                generation = snapshot.generation;
                self.create_series(&snapshot.config);
            }
            self.save().await;
            if self.written.get().is_none_or(|at| at.elapsed() >= FILE_INTERVAL) {
                self.write_file_off_thread(&snapshot.config);
            }
        }
    }

    /// Saves what was recorded until now.
    async fn save(&self) {
        let Ok(_turn) = self.turn.acquire().await else { return };
        let snapshot = self.current.load_full();
        let config = &snapshot.config;
        for recorded in self.recorders.collect() {
            self.count_lost(self.pending.borrow_mut().add(recorded));
        }
        match config.store.is_shared() {
            true => self.save_in_redis(&config.store.prefix).await,
            false => self.save_locally().await,
        }
    }

    async fn save_in_redis(&self, prefix: &str) {
        let store = self.link.store();
        let days = self.pending.borrow().list_days();
        let (mut failures, mut failure) = (0, None);
        for day in days {
            loop {
                let Some(batch) = self.pending.borrow_mut().next_batch(&day) else { break };
                match store.save_usage(prefix, &self.gateway, (&day, &batch)).await {
                    Some(Ok(())) => {
                        self.pending.borrow_mut().finish_batch(&day);
                        failures = 0;
                    }
                    Some(Err(why)) => {
                        failure = Some(why);
                        failures += 1;
                        break;
                    }
                    // The store was replaced in the meantime.
                    None => return,
                }
            }
            if failures >= FAILURES_MAX {
                break;
            }
        }
        if let Some(why) = &failure
            && !self.failing.get()
        {
            tracing::warn!("cannot save the usage of limits in Redis, trying again every second: {why}");
        }
        if failure.is_none() && self.failing.get() {
            tracing::info!("the usage of limits is saved in Redis again");
        }
        self.failing.set(failure.is_some());
    }

    async fn save_locally(&self) {
        let Some(mut local) = self.lock_local().await else { return };
        let mut pending = self.pending.borrow_mut();
        for day in pending.list_days() {
            while let Some(batch) = pending.next_batch(&day) {
                let lost = local.add((&day, batch.kept_days), batch.keys);
                if lost > 0 {
                    self.lost.with_label_values(&[&day.limit]).inc_by(lost);
                }
                pending.finish_batch(&day);
            }
        }
        local.drop_expired(clock::now_ms().div_euclid(DAY_MS));
    }

    /// Locks the usage of the memory store, once the thread that writes the file has finished. `None` if that takes too
    /// long.
    async fn lock_local(&self) -> Option<MutexGuard<'_, LocalUsage>> {
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            if let Ok(local) = self.local.try_lock() {
                return Some(local);
            }
            if Instant::now() > until {
                return None;
            }
            sleep(LOCK_PAUSE).await;
        }
    }

    fn count_lost(&self, lost: HashMap<String, u64>) {
        for (limit, decisions) in lost {
            self.lost.with_label_values(&[&limit]).inc_by(decisions);
        }
    }

    fn write_file_off_thread(&self, config: &Config) {
        self.written.set(Some(Instant::now()));
        let Some(file) = file_of(config) else { return };
        if !self.local.try_lock().is_ok_and(|local| local.is_changed) {
            return;
        }
        let local = self.local.clone();
        let work = move || {
            if let Ok(mut local) = local.lock() {
                local.write_file(&file);
            }
        };
        // Without a thread, the next attempt writes it.
        let _ = std::thread::Builder::new().name("usage-file".to_owned()).spawn(work);
    }

    /// Saves for the last time, when the process ends.
    pub async fn save_last(&self) {
        let _ = timeout(STOP_TIMEOUT, self.save()).await;
        if let Some(file) = file_of(&self.current.load().config)
            && let Ok(mut local) = self.local.lock()
            && local.is_changed
        {
            local.write_file(&file);
        }
        let decisions = self.pending.borrow().count_decisions();
        if decisions > 0 {
            tracing::error!(decisions, "the usage of limits in the last seconds is lost: it could not be saved");
        }
    }

    /// Reads a page of the usage of a day, including what this gateway has decided until now.
    ///
    /// # Errors
    /// Redis did not respond.
    pub async fn read_page(&self, day: &LedgerDay, cursor: &str) -> Result<UsagePage, String> {
        let _ = timeout(READ_TIMEOUT, self.save()).await;
        let prefix = self.current.load().config.store.prefix.clone();
        match self.link.store().read_usage(&prefix, day, cursor).await {
            Some(page) => page,
            None => {
                let local = self.lock_local().await.ok_or("the file of usage is being written")?;
                Ok(local.read_page(day, cursor.parse().unwrap_or(0)))
            }
        }
    }
}

fn keeps_usage(config: &Config) -> bool {
    config.limits.iter().any(|limit| limit.store_ref.usage_days.is_some())
}

/// Returns the file for the usage of a memory store, beside the state file.
fn file_of(config: &Config) -> Option<PathBuf> {
    let state = config.store.state.as_deref().filter(|_| !config.store.is_shared())?;
    let mut name = state.file_name()?.to_owned();
    name.push(".usage");
    Some(state.with_file_name(name))
}

impl LocalUsage {
    /// Adds the usage of keys. Returns the number of decisions for which there is no space.
    fn add(&mut self, (day, kept_days): (&LedgerDay, u16), keys: Vec<(Box<str>, DayUsage)>) -> u64 {
        let mut lost = 0;
        let local = self.days.entry(day.clone()).or_default();
        local.kept_days = kept_days;
        for (key, usage) in keys {
            self.is_changed = true;
            if let Some(known) = local.keys.get_mut(&key) {
                known.add(usage);
            } else if self.keys < LOCAL_KEYS_MAX {
                self.keys += 1;
                local.keys.insert(key, usage);
            } else {
                lost += usage.admitted + usage.refused;
            }
        }
        lost
    }

    fn drop_expired(&mut self, today: i64) {
        let now_s = today * (DAY_MS / 1000);
        self.days.retain(|day, local| day.expires_s(local.kept_days) > now_s);
        self.keys = self.days.values().map(|local| local.keys.len()).sum();
    }

    /// Reads the page that begins with the key at index `start`.
    fn read_page(&self, day: &LedgerDay, start: usize) -> UsagePage {
        let Some(LocalDay { keys, .. }) = self.days.get(day) else { return UsagePage::default() };
        let page = keys.iter().skip(start).take(PAGE).map(|(key, usage)| (key.to_string(), *usage)).collect();
        let next = (keys.len() > start.saturating_add(PAGE)).then(|| (start + PAGE).to_string());
        UsagePage { keys: page, next }
    }

    fn read_file(file: &Path) -> Result<LocalUsage, String> {
        let metadata = match file.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(LocalUsage::default()),
            metadata => metadata.map_err(|error| error.to_string())?,
        };
        // Opening a pipe would wait for its other end.
        if !metadata.is_file() || metadata.len() > FILE_MAX {
            return Err("it is not a file of usage".to_owned());
        }
        let text = std::fs::read(file).map_err(|error| error.to_string())?;
        let saved: SavedUsage = serde_json::from_slice(&text).map_err(|error| format!("it is damaged: {error}"))?;
        if saved.version != VERSION {
            return Err(format!("its version is {}; this gateway reads version {VERSION}", saved.version));
        }
        let mut usage = LocalUsage::default();
        for SavedDay { limit, date, kept_days, keys } in saved.days {
            let Some(day) = parse_day(&date) else { continue };
            let keys = keys.into_iter().filter_map(|(key, text)| Some((key.into_boxed_str(), DayUsage::parse(&text)?)));
            usage.add((&LedgerDay { limit, day }, kept_days), keys.collect());
        }
        usage.is_changed = false;
        Ok(usage)
    }

    fn write_file(&mut self, file: &Path) {
        let of_day = |(day, local): (&LedgerDay, &LocalDay)| SavedDay {
            limit: day.limit.clone(),
            date: day.date(),
            kept_days: local.kept_days,
            keys: local.keys.iter().map(|(key, usage)| (key.to_string(), usage.to_string())).collect(),
        };
        let saved = SavedUsage { version: VERSION, days: self.days.iter().map(of_day).collect() };
        let prefix = format!(".{}.new-", file.file_name().unwrap_or_default().to_string_lossy());
        let bytes = serde_json::to_vec(&saved).unwrap_or_default();
        match replace_file(file, &prefix, &bytes) {
            Ok(()) => self.is_changed = false,
            Err(error) => tracing::warn!("cannot write the usage of limits to `{}`: {error}", file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_in_a_file_is_the_same_after_a_restart_and_expires() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.json.usage");
        let day = |day| LedgerDay { limit: "l".to_owned(), day };
        let usage = DayUsage { admitted: 2, refused: 1, units: -3 };
        let mut local = LocalUsage::default();
        assert_eq!(local.add((&day(7), 2), vec![("ip=::1".into(), usage), ("ip=::1".into(), usage)]), 0);
        local.write_file(&file);
        let mut again = LocalUsage::read_file(&file).unwrap();
        let sum = DayUsage { admitted: 4, refused: 2, units: -6 };
        assert_eq!(again.read_page(&day(7), 0).keys, [("ip=::1".to_owned(), sum)]);
        assert!(again.read_page(&day(8), 0).keys.is_empty());
        again.drop_expired(9);
        assert_eq!(again.keys, 1);
        again.drop_expired(10);
        assert_eq!(again.keys, 0);
        for text in ["", "{", r#"{"version":2,"days":[]}"#] {
            std::fs::write(&file, text).unwrap();
            assert!(LocalUsage::read_file(&file).is_err(), "{text}");
        }
    }

    #[test]
    fn pages_cover_all_keys_once() {
        let day = LedgerDay { limit: "l".to_owned(), day: 7 };
        let mut local = LocalUsage::default();
        let keys = (0..2500).map(|key| (format!("ip={key:05}").into_boxed_str(), DayUsage::default())).collect();
        local.add((&day, 2), keys);
        let (mut found, mut start) = (0, 0);
        loop {
            let page = local.read_page(&day, start);
            found += page.keys.len();
            match page.next {
                Some(next) => start = next.parse().unwrap(),
                None => break,
            }
        }
        assert_eq!(found, 2500);
    }
}
