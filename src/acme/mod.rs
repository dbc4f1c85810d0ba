//! Automatic certificates (ACME, RFC 8555). A thread of its own orders them, so that nothing else ever waits for a
//! disk or a remote server.
//!
//! Input: the names and settings of `[acme]`. Output: certificates in the listeners and in the state directory.
//! `manager` is the thread's loop, `schedule` decides when to renew and how long to pause, `order` runs one order
//! through `client`, `renewal_info` asks when the server wants a certificate to be renewed, `dns` publishes the records
//! of challenges, `cert_cache` holds what was issued, and `state` reads and writes the directory.

mod cert_cache;
mod client;
mod dns;
mod manager;
mod order;
mod renewal_info;
mod schedule;
mod state;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::acme::manager::AcmeManager;
use crate::acme::state::StateDirectory;
use crate::config::{AcmeSettings, Config};
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::{Metrics, OrderResult};
use crate::tls::IssuedCertificates;

/// Certificates of the listeners by name, so that nothing else has to read them from disk.
type PublishedCerts = Arc<ArcSwap<IssuedCertificates>>;

/// How long a start or reload waits for the state directory, whose disk may be remote and unavailable.
const DISK: Duration = Duration::from_secs(2);

/// Handle of the thread; it starts with the first config that has `[acme]` and ends with this value.
pub struct AcmeThread {
    metrics: Metrics,
    published: PublishedCerts,
    /// Reads what the disk contains for new names.
    reader: Option<JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
}

impl AcmeThread {
    pub fn new(metrics: &Metrics) -> AcmeThread {
        AcmeThread { metrics: metrics.clone(), published: PublishedCerts::default(), reader: None, stop: None }
    }

    /// Provides certificates to the listeners of a config that will replace `before`: those in use, and for other
    /// names those in the state directory if it responds in time; otherwise the thread provides them later.
    pub async fn provide_known(&mut self, config: &Config, before: Option<&Config>) {
        let Some(acme) = &config.acme else { return };
        let certificates = self.published.load_full();
        let mut names = list_names(config);
        let unknown = names.iter().filter(|name| !certificates.contains_key(*name)).cloned().collect();
        let from_disk = self.read_certificates(&acme.settings, unknown).await;
        names.extend(before.map(list_names).unwrap_or_default());
        self.published.rcu(|published| {
            let current = published.iter().filter(|(name, _)| names.contains(*name));
            // A certificate issued meanwhile is newer than one that was read.
            from_disk
                .iter()
                .chain(current)
                .map(|(name, key)| (name.clone(), key.clone()))
                .collect::<IssuedCertificates>()
        });
        provide_certificates(config, &self.published.load());
    }

    /// Reads the certificates of these names from the state directory.
    async fn read_certificates(&mut self, settings: &AcmeSettings, names: Vec<String>) -> IssuedCertificates {
        if names.is_empty() || self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) {
            return IssuedCertificates::new();
        }
        let state = StateDirectory::for_server(settings);
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            let read_key = |name: String| Some((name.clone(), state.read_certificate(&name).ok()?.ok()?.key));
            let _ = sender.send(names.into_iter().filter_map(read_key).collect());
        };
        match std::thread::Builder::new().name("acme-disk".to_owned()).spawn(run) {
            Ok(reader) => self.reader = Some(reader),
            Err(error) => tracing::error!("certificates are not read yet: no thread for that: {error}"),
        }
        match timeout(DISK, receiver).await {
            Ok(certificates) => certificates.unwrap_or_default(),
            Err(_) => {
                tracing::error!("`state` of [acme] does not respond: its certificates are used once it does");
                IssuedCertificates::new()
            }
        }
    }

    /// Starts or updates the thread for a config that has become active.
    pub fn update(&mut self, current: &CurrentSnapshot) {
        if current.load().config.acme.is_none() || self.stop.is_some() {
            return;
        }
        OrderResult::ALL.iter().for_each(|result| drop(self.metrics.tls.order_counter(*result)));
        let (stop, stopped) = oneshot::channel();
        let manager = AcmeManager::new(current.clone(), self.metrics.clone(), self.published.clone());
        let run = move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
            Ok(runtime) => runtime.block_on(manager.run(stopped)),
            Err(error) => tracing::error!("no certificates can be ordered: no event loop for that: {error}"),
        };
        match std::thread::Builder::new().name("acme".to_owned()).spawn(run) {
            Ok(_) => self.stop = Some(stop),
            Err(error) => tracing::error!("no certificates can be ordered: no thread for that: {error}"),
        }
    }
}

/// Passes certificates to the listeners that ordered them.
fn provide_certificates(config: &Config, issued: &IssuedCertificates) {
    let tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    tls.filter(|tls| !tls.ordered_names().is_empty()).for_each(|tls| tls.use_issued(issued));
}

/// Returns all names that need a certificate.
fn list_names(config: &Config) -> BTreeSet<String> {
    let tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    tls.flat_map(|tls| tls.ordered_names().iter().cloned()).collect()
}

/// Exports the expiry of the certificates of a config that becomes active.
pub fn export_expiry(config: &Config, metrics: &Metrics) {
    metrics.tls.export_listeners(config.listeners.iter().filter_map(|listener| {
        let certificates = listener.tls.as_ref()?.certificates.current();
        let terms = certificates.validities.iter().map(|term| (term.name.clone(), term.not_after_s));
        Some((listener.address.to_string(), terms.collect()))
    }));
}
