//! Development certificates (`tls = { internal = true }`): issues those of a config that becomes active, and renews
//! them while it is. Certificates are kept in memory only; the CA is on disk (`local_ca`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval};

use crate::acme;
use crate::config::{Config, ListenerSettings};
use crate::local_ca::authority::is_due;
use crate::local_ca::{self, LocalCaError, LocalCas, now_s};
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::Metrics;
use crate::tls::ServerTls;

/// Interval of comparing certificates with the wall clock, which may be set at any moment.
const TICK: Duration = Duration::from_secs(1);

/// Issues the development certificates of all listeners.
#[derive(Default)]
pub struct DevelopmentCerts {
    /// The CAs of the active config. Renewals do not read them again.
    cas: RefCell<LocalCas>,
    is_renewing: Cell<bool>,
}

impl DevelopmentCerts {
    /// Opens the CAs of the first config and issues its certificates.
    ///
    /// # Errors
    /// A CA cannot be used.
    pub fn issue_first(config: &Config) -> Result<Rc<DevelopmentCerts>, LocalCaError> {
        let certs = Rc::<DevelopmentCerts>::default();
        certs.issue_all(config, local_ca::open_all(local_ca::list_directories(config))?);
        Ok(certs)
    }

    /// Issues the certificates of a config that is about to become active, with these CAs.
    pub fn issue_all(&self, config: &Config, cas: LocalCas) {
        *self.cas.borrow_mut() = cas;
        for (listener, tls) in list_internal(config) {
            self.issue(listener, tls, "issued");
        }
    }

    fn issue(&self, listener: &ListenerSettings, tls: &ServerTls, verb: &str) {
        let cas = self.cas.borrow();
        let Some(ca) = tls.internal().and_then(|internal| cas.get(&internal.state)) else { return };
        let (listener, names) = (&listener.address, tls.internal_names());
        match ca.issue(&names, now_s()) {
            Ok(leaf) => {
                let until_s = leaf.validity.not_after_s;
                let until = Timestamp::from_second(until_s).map_or_else(|_| until_s.to_string(), |at| at.to_string());
                tracing::info!(%listener, until, names = names.join(", "), "development certificate {verb}");
                tls.use_internal(leaf);
            }
            Err(error) => tracing::error!(%listener, "development certificate not {verb}: {error}"),
        }
    }

    /// Renews certificates from now on, if the active config has any.
    pub fn start_renewal(self: &Rc<Self>, current: &CurrentSnapshot, metrics: &Metrics) {
        if list_internal(&current.load().config).next().is_none() || self.is_renewing.replace(true) {
            return;
        }
        let (own, current, metrics) = (self.clone(), current.clone(), metrics.clone());
        spawn_local(async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                own.renew_due(&current.load().config, &metrics);
            }
        });
    }

    fn renew_due(&self, config: &Config, metrics: &Metrics) {
        let now_s = now_s();
        let mut has_renewed = false;
        for (listener, tls) in list_internal(config) {
            if tls.internal_validity().is_none_or(|validity| is_due(&validity, now_s)) {
                self.issue(listener, tls, "renewed");
                has_renewed = true;
            }
        }
        if has_renewed {
            acme::export_expiry(config, metrics);
        }
    }
}

/// Returns the listeners with development certificates.
fn list_internal(config: &Config) -> impl Iterator<Item = (&ListenerSettings, &ServerTls)> {
    config.listeners.iter().filter_map(|listener| {
        let tls = listener.tls.as_ref().filter(|tls| tls.internal().is_some())?;
        Some((&**listener, tls))
    })
}
