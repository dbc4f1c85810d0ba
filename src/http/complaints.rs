//! What goes wrong with upstreams, and what clients send in place of requests, as lines of the log: each
//! kind is sampled for itself. Shared by all workers; told by `forward`, `exchange` and the connections.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::labels::labels;
use crate::metrics::Cutoff;
use crate::sampled::Sampled;

labels! {
    /// How an exchange with an upstream failed.
    UpstreamTrouble:
    Connect = "connect",
    /// The TLS handshake failed.
    Tls = "tls",
    /// The connection ended without an answer, or with one that is no HTTP.
    Broken = "broken",
    /// No answer began in time.
    Timeout = "timeout",
    /// The answer broke off.
    CutOff = "cut_off",
    /// The answer stopped for too long.
    Stalled = "stalled",
}

#[derive(Default)]
pub struct Complaints {
    upstreams: Mutex<BTreeMap<String, Weak<UpstreamSamples>>>,
    /// By listener.
    forwarding: Mutex<BTreeMap<String, Weak<Sampled>>>,
    clients: [Sampled; Cutoff::ALL.len()],
}

/// Of one upstream. In a worker's own hands: what workers share is touched only when there is something to tell.
pub struct UpstreamComplaints(Arc<UpstreamSamples>);

struct UpstreamSamples {
    upstream: String,
    kinds: [Sampled; UpstreamTrouble::ALL.len()],
}

impl Complaints {
    /// Those of an upstream, the same for all workers.
    pub fn of(&self, upstream: &str) -> UpstreamComplaints {
        let mut upstreams = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = upstreams.get(upstream).and_then(Weak::upgrade) {
            return UpstreamComplaints(known);
        }
        upstreams.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(UpstreamSamples { upstream: upstream.to_owned(), kinds: Default::default() });
        upstreams.insert(upstream.to_owned(), Arc::downgrade(&new));
        UpstreamComplaints(new)
    }

    /// The sample for forwarding fields at `listener`, the same for all workers as long as one has it.
    pub fn forwarding(&self, listener: &str) -> Arc<Sampled> {
        let mut listeners = self.forwarding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = listeners.get(listener).and_then(Weak::upgrade) {
            return known;
        }
        listeners.retain(|_, known| known.strong_count() > 0);
        let new = Arc::<Sampled>::default();
        listeners.insert(listener.to_owned(), Arc::downgrade(&new));
        new
    }

    /// A client was turned away, or sent something that its listener does not speak. `means`: what and what to do.
    pub fn client(&self, cutoff: Cutoff, listener: &str, client: IpAddr, means: fmt::Arguments<'_>) {
        if let Some(left_out) = self.clients[cutoff as usize].due() {
            tracing::warn!(reason = cutoff.label(), listener, %client, left_out = some(left_out), "{means}");
        }
    }
}

impl UpstreamComplaints {
    pub fn upstream(&self) -> &str {
        &self.0.upstream
    }

    pub fn tell(&self, kind: UpstreamTrouble, server: &str, error: &dyn fmt::Display) {
        if let Some(left_out) = self.0.kinds[kind as usize].due() {
            let (upstream, kind, left_out) = (&*self.0.upstream, kind.label(), some(left_out));
            tracing::warn!(upstream, server, kind, %error, left_out, "an exchange with an upstream failed");
        }
    }
}

/// Nothing left out is not said.
fn some(left_out: u64) -> Option<u64> {
    Some(left_out).filter(|left_out| *left_out > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_has_one_sample_as_long_as_a_worker_knows_it() {
        let complaints = Complaints::default();
        let app = complaints.of("app");
        assert!(Arc::ptr_eq(&app.0, &complaints.of("app").0) && !Arc::ptr_eq(&app.0, &complaints.of("other").0));
        app.tell(UpstreamTrouble::Connect, "a", &"refused");
        assert!(app.0.kinds[UpstreamTrouble::Connect as usize].due().is_none());
        assert!(app.0.kinds[UpstreamTrouble::Broken as usize].due().is_some());
        drop(app);
        assert!(complaints.of("app").0.kinds[UpstreamTrouble::Connect as usize].due().is_some());
        assert_eq!(complaints.upstreams.lock().unwrap().len(), 1);
    }
}
