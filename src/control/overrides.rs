//! Follows the live overrides: hashes in Redis that operators edit, `PREFIX:overrides:LIMIT`, one
//! field for each key. Every gateway reads them on its own. Started by the control thread; the
//! reloader has the limits of a new config dressed before they are in force.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::link::StoreLink;
use crate::config::Config;
use crate::limit::limits::Limit;
use crate::limit::overrides::Raw;
use crate::limit::store::Store;
use crate::snapshot::Current;

#[derive(Default)]
pub struct Live(RefCell<KnownOverrides>);

#[derive(Default)]
struct KnownOverrides {
    /// What the hashes held when they were last without mistake, by limit.
    good: BTreeMap<String, Raw>,
    /// Counts changes of `good`.
    revision: u64,
    /// The mistakes in force, by limit: each is logged once.
    logged: BTreeMap<String, String>,
    /// When mistakes of a limit were last logged.
    logged_at: BTreeMap<String, Instant>,
}

/// What one look found: hashes or what is wrong with them, by limit. Where a server gave no answer
/// nothing is found.
#[derive(Default)]
struct Look {
    found: BTreeMap<String, Result<Raw, String>>,
    failure: Option<String>,
}

const PERIOD: Duration = Duration::from_secs(2);
/// A hash whose mistakes change all the time has one line of the log in this time.
const LOG_PERIOD: Duration = Duration::from_secs(10);

impl Live {
    /// What an earlier process had in force, until the store answers.
    pub fn restore(&self, good: BTreeMap<String, Raw>) {
        let entries: usize = good.values().map(Raw::len).sum();
        if entries > 0 {
            tracing::info!(entries, "live overrides of the state file are in force until the store answers");
        }
        self.0.borrow_mut().good = good;
    }

    /// Changes with what is in force.
    pub fn revision(&self) -> u64 {
        self.0.borrow().revision
    }

    /// What is in force for the limits of `config`.
    pub fn of(&self, config: &Config) -> BTreeMap<String, Raw> {
        let good = &self.0.borrow().good;
        let known = |limit: &Arc<Limit>| Some((limit.name.clone(), good.get(&limit.name)?.clone()));
        config.limits.iter().filter_map(known).filter(|(_, raw)| !raw.is_empty()).collect()
    }

    /// Gives the limits of a config what is known, which without Redis is nothing. What does not fit its limit any more is left
    /// out; the next look reports it.
    pub fn dress(&self, config: &Config) {
        let good = &mut self.0.borrow_mut().good;
        if !config.store.is_shared() {
            good.clear();
        }
        for limit in config.limits.iter() {
            let Some(raw) = good.get(&limit.name) else { continue };
            if let Err(mistake) = limit.overrides.set_live(&limit.key, raw) {
                tracing::warn!(limit = limit.name, "live overrides left out, as they do not fit the limit: {mistake}");
                good.remove(&limit.name);
            }
        }
    }

    /// The first look at a store, before any request is decided there.
    pub async fn prime(&self, config: &Config, store: &Store) {
        if let Some(look) = look(store, config).await {
            self.take(config, look.found);
        }
    }

    /// For ever.
    pub async fn follow(self: Rc<Live>, current: Current, link: Rc<StoreLink>) {
        let mut failing = false;
        let mut beats = interval(PERIOD);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let snapshot = current.load_full();
            let Some(Look { found, failure }) = look(&link.store(), &snapshot.config).await else {
                self.0.borrow_mut().logged.clear();
                failing = false;
                continue;
            };
            // A reload may have come between; whoever is new waits for the next look.
            let now = current.load();
            if now.config.store == snapshot.config.store {
                self.take(&now.config, found);
            }
            if let Some(failure) = &failure
                && !failing
            {
                tracing::warn!("cannot read the overrides in Redis, those known stay in force: {failure}");
            }
            failing = failure.is_some();
        }
    }

    fn take(&self, config: &Config, mut found: BTreeMap<String, Result<Raw, String>>) {
        let KnownOverrides { good, revision, logged, logged_at } = &mut *self.0.borrow_mut();
        for limit in config.limits.iter() {
            let Some(found) = found.remove(&limit.name) else { continue };
            if found.as_ref().is_ok_and(|raw| good.get(&limit.name).map_or(raw.is_empty(), |known| raw == known)) {
                logged.remove(&limit.name);
                continue;
            }
            match apply(limit, found) {
                Ok(raw) => {
                    tracing::info!(limit = limit.name, entries = raw.len(), "overrides in Redis are in force");
                    good.insert(limit.name.clone(), raw);
                    *revision += 1;
                    logged.remove(&limit.name);
                }
                Err(mistake) if logged.get(&limit.name) == Some(&mistake) => {}
                // The next look finds it again.
                Err(_) if logged_at.get(&limit.name).is_some_and(|at| at.elapsed() < LOG_PERIOD) => {}
                Err(mistake) => {
                    tracing::error!(limit = limit.name, "live overrides rejected, keeping the previous set: {mistake}");
                    logged_at.insert(limit.name.clone(), Instant::now());
                    logged.insert(limit.name.clone(), mistake);
                }
            }
        }
    }
}

fn apply(limit: &Limit, found: Result<Raw, String>) -> Result<Raw, String> {
    let raw = found?;
    limit.overrides.set_live(&limit.key, &raw)?;
    Ok(raw)
}

/// `None` where the store has no place for hashes.
async fn look(store: &Store, config: &Config) -> Option<Look> {
    let key = |limit: &Arc<Limit>| format!("{}:overrides:{}", config.store.prefix, limit.name);
    let keys: Vec<String> = config.limits.iter().map(key).collect();
    let mut look = Look::default();
    for (limit, found) in config.limits.iter().zip(store.hashes(&keys).await?) {
        match found {
            Ok(found) => drop(look.found.insert(limit.name.clone(), found)),
            Err(failure) => look.failure = Some(failure),
        }
    }
    Some(look)
}
