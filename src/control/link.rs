//! The control thread's own way to the store in force, for limits asked over the admin listener and
//! for the live overrides. Opened at the start, exchanged by the reloader.

use std::cell::RefCell;
use std::rc::Rc;

use crate::config::Config;
use crate::limit::Limiter;
use crate::limit::store::settings::StoreSettings;
use crate::limit::store::{Store, Stores};
use crate::metrics::Metrics;

pub struct StoreLink {
    stores: Stores,
    metrics: Metrics,
    open: RefCell<OpenStore>,
}

/// A store, and the settings it was opened with.
#[derive(Clone)]
pub struct OpenStore {
    settings: StoreSettings,
    limiter: Rc<Limiter>,
}

impl StoreLink {
    /// Connects in the background.
    pub fn open(settings: &StoreSettings, stores: &Stores, metrics: &Metrics) -> StoreLink {
        let open = RefCell::new(OpenStore::new(settings, stores, metrics));
        StoreLink { stores: stores.clone(), metrics: metrics.clone(), open }
    }

    /// Gives each limit of `config` its share of the keys in memory; the series of those that only
    /// `old` has go.
    pub fn divide(&self, config: &Config, old: Option<&Config>) {
        let evictions = &self.metrics.store_evictions;
        let counter = |name: &str| Some(evictions.with_label_values(&[name]));
        self.stores.memory.divide(config.store.max_keys, &config.limits, counter);
        let of_old = old.into_iter().flat_map(|old| old.limits.iter());
        for gone in of_old.filter(|limit| config.limits.iter().all(|kept| kept.name != limit.name)) {
            let _ = evictions.remove_label_values(&[&gone.name]);
        }
    }

    pub fn limiter(&self) -> Rc<Limiter> {
        self.open.borrow().limiter.clone()
    }

    pub fn store(&self) -> Store {
        self.open.borrow().store()
    }

    /// What serves `settings`: the store at hand, or one that has had time to connect.
    pub async fn reach(&self, settings: &StoreSettings) -> OpenStore {
        let open = self.open.borrow().clone();
        if open.settings.same_but_tls(settings) {
            return OpenStore { settings: settings.clone(), ..open };
        }
        let open = OpenStore::new(settings, &self.stores, &self.metrics);
        open.store().first_attempt().await;
        open
    }

    /// Whoever asks from now on asks `next`.
    pub fn exchange(&self, next: OpenStore) {
        next.store().follow(&next.settings);
        *self.open.borrow_mut() = next;
    }
}

impl OpenStore {
    fn new(settings: &StoreSettings, stores: &Stores, metrics: &Metrics) -> OpenStore {
        let limiter =
            Limiter::new(stores.open(settings), None, (&stores.memory, &stores.hold_times), &settings.prefix, metrics);
        OpenStore { settings: settings.clone(), limiter: Rc::new(limiter) }
    }

    pub fn store(&self) -> Store {
        self.limiter.desk().store.clone()
    }
}
