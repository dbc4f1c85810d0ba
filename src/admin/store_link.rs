//! The control thread's own store handle, for limits over the admin listener and live overrides. Opened at the start,
//! exchanged by the reloader.

use std::cell::RefCell;
use std::rc::Rc;

use crate::config::Config;
use crate::limiting::Limiter;
use crate::limiting::gateways::Gateways;
use crate::limiting::store::memory::Evictions;
use crate::limiting::store::settings::StoreSettings;
use crate::limiting::store::{Store, Stores};

pub struct StoreLink {
    stores: Stores,
    open: RefCell<OpenStore>,
}

/// A store and the settings it was opened with.
#[derive(Clone)]
pub struct OpenStore {
    settings: StoreSettings,
    limiter: Rc<Limiter>,
}

impl StoreLink {
    /// Opens the store; it connects in the background.
    pub fn open(settings: &StoreSettings, stores: &Stores) -> StoreLink {
        let open = RefCell::new(OpenStore::new(settings, stores));
        StoreLink { stores: stores.clone(), open }
    }

    /// Lets the limits of `config` share the keys in memory, and removes the series of limits that only `old`
    /// has.
    pub fn divide_keys(&self, config: &Config, old: Option<&Config>) {
        let evictions = &self.stores.metrics.store.evictions;
        let counter = |name: &str| Some(evictions.with_label_values(&[name]));
        self.stores.memory.set_shares(config.store.max_keys, &config.limits, counter);
        let of_old = old.into_iter().flat_map(|old| old.limits.iter());
        for gone in of_old.filter(|limit| config.limits.iter().all(|kept| kept.name != limit.name)) {
            let _ = evictions.remove_label_values(&[&gone.name]);
        }
    }

    /// Returns the number of keys in use that were evicted from memory, and when.
    pub fn evictions(&self) -> Evictions {
        self.stores.memory.evictions()
    }

    /// The count of gateways that share the store.
    pub fn gateways(&self) -> &Gateways {
        &self.stores.gateways
    }

    pub fn limiter(&self) -> Rc<Limiter> {
        self.open.borrow().limiter.clone()
    }

    pub fn store(&self) -> Store {
        self.open.borrow().store()
    }

    /// Returns the store for `settings`: the current one, or a new one that had time to connect.
    pub async fn prepare_store(&self, settings: &StoreSettings) -> OpenStore {
        let open = self.open.borrow().clone();
        if open.settings.is_same_but_tls(settings) {
            return OpenStore { settings: settings.clone(), ..open };
        }
        let open = OpenStore::new(settings, &self.stores);
        open.store().wait_first_attempt().await;
        open
    }

    /// Uses `next` from now on.
    pub fn replace_store(&self, next: OpenStore) {
        next.store().apply_settings(&next.settings);
        *self.open.borrow_mut() = next;
    }
}

impl OpenStore {
    fn new(settings: &StoreSettings, stores: &Stores) -> OpenStore {
        let limiter = Limiter::new(stores.open(settings), None, stores, &settings.prefix);
        OpenStore { settings: settings.clone(), limiter: Rc::new(limiter) }
    }

    pub fn store(&self) -> Store {
        self.limiter.charges().store.clone()
    }
}
