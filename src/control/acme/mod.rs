//! Certificates that an ACME server issues: a thread of its own orders them, keeps them in the state directory
//! and hands them to the listeners, so that nothing else ever waits for a disk or a server far away.

mod clerk;
mod client;
mod order;
mod schedule;
mod shelf;
mod state;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::config::{AcmeSettings, Config};
use crate::metrics::{Metrics, OrderResult};
use crate::snapshot::Current;
use crate::tls::Issued;
use clerk::Clerk;
use state::StateDirectory;

/// The certificates that listeners have, by name, so that nobody else has to ask a disk for them.
type Published = Arc<ArcSwap<Issued>>;

/// How long a start or a reload waits for a disk; it may be one that is far away and gone.
const DISK: Duration = Duration::from_secs(2);

/// Started with the first config that has [acme]; ends with this value.
pub struct AcmeThread {
    metrics: Metrics,
    published: Published,
    /// Reads what is on the disk for names that are new.
    reader: Option<JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
}

impl AcmeThread {
    pub fn new(metrics: &Metrics) -> AcmeThread {
        AcmeThread { metrics: metrics.clone(), published: Published::default(), reader: None, stop: None }
    }

    /// Hands the listeners of a config that is to come into force in place of `before` the certificates that are in
    /// use, and for names that have none those in the state directory, if it answers in time: else the thread does so
    /// later.
    pub async fn provision(&mut self, config: &Config, before: Option<&Config>) {
        let Some(acme) = &config.acme else { return };
        let known = self.published.load_full();
        let mut wanted = names(config);
        let unknown = wanted.iter().filter(|name| !known.contains_key(*name)).cloned().collect();
        let found = self.read(&acme.settings, unknown).await;
        wanted.extend(before.map(names).unwrap_or_default());
        self.published.rcu(|published| {
            let kept = published.iter().filter(|(name, _)| wanted.contains(*name));
            // What was issued meanwhile is newer than what was found.
            found.iter().chain(kept).map(|(name, key)| (name.clone(), key.clone())).collect::<Issued>()
        });
        provide(config, &self.published.load());
    }

    /// What the state directory has for these names.
    async fn read(&mut self, settings: &AcmeSettings, names: Vec<String>) -> Issued {
        if names.is_empty() || self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) {
            return Issued::new();
        }
        let state = StateDirectory::of(settings);
        let (done, found) = oneshot::channel();
        let run = move || {
            let kept = |name: String| Some((name.clone(), state.certificate(&name).ok()?.ok()?.key));
            let _ = done.send(names.into_iter().filter_map(kept).collect());
        };
        match std::thread::Builder::new().name("acme-disk".to_owned()).spawn(run) {
            Ok(reader) => self.reader = Some(reader),
            Err(error) => tracing::error!("certificates are not read yet: no thread for that: {error}"),
        }
        match timeout(DISK, found).await {
            Ok(found) => found.unwrap_or_default(),
            Err(_) => {
                tracing::error!("`state` of [acme] does not answer: its certificates are used once it does");
                Issued::new()
            }
        }
    }

    /// For a config that has come into force.
    pub fn follow(&mut self, current: &Current) {
        if current.load().config.acme.is_none() || self.stop.is_some() {
            return;
        }
        OrderResult::ALL.iter().for_each(|result| drop(self.metrics.tls.order(*result)));
        let (stop, stopped) = oneshot::channel();
        let clerk = Clerk::new(current.clone(), self.metrics.clone(), self.published.clone());
        let run = move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
            Ok(runtime) => runtime.block_on(clerk.work(stopped)),
            Err(error) => tracing::error!("no certificates can be ordered: no event loop for that: {error}"),
        };
        match std::thread::Builder::new().name("acme".to_owned()).spawn(run) {
            Ok(_) => self.stop = Some(stop),
            Err(error) => tracing::error!("no certificates can be ordered: no thread for that: {error}"),
        }
    }
}

/// Hands certificates to the listeners that have ordered some.
fn provide(config: &Config, issued: &Issued) {
    let tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    tls.filter(|tls| !tls.ordered().is_empty()).for_each(|tls| tls.provide(issued));
}

/// All that are to have a certificate.
fn names(config: &Config) -> BTreeSet<String> {
    let tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    tls.flat_map(|tls| tls.ordered().iter().cloned()).collect()
}
