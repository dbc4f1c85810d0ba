//! Certificates that an ACME server issues: a thread of its own orders them, keeps them in the state directory
//! and hands them to the listeners, so that nothing else ever waits for a disk or a server far away.

mod clerk;
mod client;
mod order;
mod schedule;
mod shelf;
mod state;

use std::collections::BTreeSet;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::metrics::{Metrics, OrderResult};
use crate::snapshot::Current;
use clerk::Clerk;
use state::StateDirectory;

/// Started with the first config that has [acme]; ends with this value.
pub struct AcmeThread {
    current: Current,
    metrics: Metrics,
    stop: Option<oneshot::Sender<()>>,
}

impl AcmeThread {
    pub fn new(current: &Current, metrics: &Metrics) -> AcmeThread {
        AcmeThread { current: current.clone(), metrics: metrics.clone(), stop: None }
    }

    /// For a config that has come into force.
    pub fn follow(&mut self, config: &Config) {
        if config.acme.is_none() || self.stop.is_some() {
            return;
        }
        OrderResult::ALL.iter().for_each(|result| drop(self.metrics.tls.order(*result)));
        let (stop, stopped) = oneshot::channel();
        let clerk = Clerk::new(self.current.clone(), self.metrics.clone());
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

/// Hands the listeners of a config that is to come into force the certificates that are there.
pub fn provision(config: &Config) {
    let Some(acme) = &config.acme else { return };
    let state = StateDirectory::of(&acme.settings);
    let kept = |name: String| Some((name.clone(), state.certificate(&name).ok()?.key));
    let issued = names(config).into_iter().filter_map(kept).collect();
    config.listeners.iter().filter_map(|listener| listener.tls.as_ref()).for_each(|tls| tls.provide(&issued));
}

/// All that are to have a certificate.
fn names(config: &Config) -> BTreeSet<String> {
    let tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    tls.flat_map(|tls| tls.ordered().iter().cloned()).collect()
}
