//! What goes wrong with upstreams, and what clients send in place of requests, as lines of the log: each
//! kind is sampled for itself. Shared by all workers; told by `forward`, `exchange` and the connections.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustls::{AlertDescription, Error};

use crate::labels::labels;
use crate::metrics::{Cutoff, HandshakeResult};
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
    /// No server had room for a request.
    Overflow = "overflow",
}

#[derive(Default)]
pub struct Complaints {
    upstreams: Mutex<SharedByName<UpstreamSamples>>,
    /// By listener.
    forwarding: Mutex<SharedByName<Sampled>>,
    clients: [Sampled; Cutoff::ALL.len()],
    handshakes: [Sampled; HandshakeResult::ALL.len()],
    descriptors: Sampled,
}

/// What is shared for as long as somebody has it.
struct SharedByName<T> {
    known: BTreeMap<String, Weak<T>>,
    /// So many, and those that nobody has are forgotten: twice as many as were left the last time.
    sweep_at: usize,
}

/// Between two lines of handshakes that were just given up.
const PROBES_PERIOD_MS: u64 = 600_000;

/// Names that are too few to look for what nobody has.
const SWEEP_MIN: usize = 16;

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
        let new = || UpstreamSamples { upstream: upstream.to_owned(), kinds: Default::default() };
        UpstreamComplaints(upstreams.of(upstream, new))
    }

    /// The sample for forwarding fields at `listener`, the same for all workers as long as one has it.
    pub fn forwarding(&self, listener: &str) -> Arc<Sampled> {
        let mut listeners = self.forwarding.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.of(listener, Sampled::default)
    }

    /// There are no file descriptors left for `whom`.
    pub fn short_of_descriptors(&self, whom: &str) {
        if let Some(left_out) = self.descriptors.due() {
            tracing::warn!(
                left_out = some(left_out),
                "out of file descriptors: {whom}; raise the limit (ulimit -n, LimitNOFILE= of systemd, --ulimit \
                 nofile= of docker)"
            );
        }
    }

    /// A TLS handshake failed. What health checks of balancers cause all day is told less often.
    pub fn handshake(&self, result: HandshakeResult, listener: &str, client: IpAddr, error: Option<&io::Error>) {
        let inner = error.and_then(|error| error.get_ref()?.downcast_ref::<Error>());
        let Some(hint) = handshake_hint(result, inner) else { return };
        let line = &self.handshakes[result as usize];
        let due = match result {
            HandshakeResult::Aborted | HandshakeResult::Timeout => line.due_every(PROBES_PERIOD_MS),
            _ => line.due(),
        };
        let (reason, error) = (result.label(), error.map(tracing::field::display));
        match due.map(some) {
            Some(left_out) => {
                tracing::info!(reason, listener, %client, error, left_out, "a TLS handshake failed: {hint}")
            }
            None => tracing::debug!(reason, listener, %client, error, "a TLS handshake failed: {hint}"),
        }
    }

    /// A client was turned away, or sent something that its listener does not speak. `means`: what and what to do.
    pub fn client(&self, cutoff: Cutoff, listener: &str, client: IpAddr, means: fmt::Arguments<'_>) {
        if let Some(left_out) = self.clients[cutoff as usize].due() {
            tracing::warn!(reason = cutoff.label(), listener, %client, left_out = some(left_out), "{means}");
        }
    }
}

/// What a failed handshake probably means, and what to do; `None` where the client is not at fault and nothing is to be
/// done.
fn handshake_hint(result: HandshakeResult, error: Option<&Error>) -> Option<&'static str> {
    Some(match result {
        HandshakeResult::Full
        | HandshakeResult::Resumed
        | HandshakeResult::Draining
        | HandshakeResult::AcmeChallenge => return None,
        HandshakeResult::Timeout => "the client did not finish it within `handshake_timeout`",
        HandshakeResult::Aborted => {
            "the client closed the connection; a probe does so, and clients that do not trust the certificate"
        }
        HandshakeResult::NotTls => "the client does not speak TLS; it must use https:// here",
        HandshakeResult::Incompatible => {
            "client and listener share no TLS version, cipher suite or protocol; see `min_version` and `http2`"
        }
        HandshakeResult::NoClientCertificate => "the client sent no certificate, which `client_auth` requires",
        HandshakeResult::BadClientCertificate => "the client's certificate is expired, or not signed by `client_ca`",
        HandshakeResult::Invalid => "the client broke the TLS protocol",
        HandshakeResult::NoCertificate => "no certificate has been issued yet for the name that the client asked for",
        HandshakeResult::Alert => match error {
            Some(Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate)) => {
                "the client does not trust the certificate: `cert` must hold the whole chain, and the client must know its CA"
            }
            Some(Error::AlertReceived(AlertDescription::CertificateExpired)) => {
                "the client finds the certificate expired: renew it, or check the client's clock"
            }
            Some(Error::AlertReceived(AlertDescription::CertificateUnknown)) => {
                "the client rejects the certificate; often it does not trust its CA, or the name is another"
            }
            _ => "the client ended it with an alert",
        },
    })
}

impl<T> SharedByName<T> {
    fn of(&mut self, name: &str, new: impl FnOnce() -> T) -> Arc<T> {
        if let Some(known) = self.known.get(name).and_then(Weak::upgrade) {
            return known;
        }
        // Only then: a config of many names asks for one after the other.
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, known| known.strong_count() > 0);
            self.sweep_at = 2 * self.known.len().max(SWEEP_MIN);
        }
        let new = Arc::new(new());
        self.known.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }
}

impl<T> Default for SharedByName<T> {
    fn default() -> SharedByName<T> {
        SharedByName { known: BTreeMap::new(), sweep_at: SWEEP_MIN }
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
    }

    #[test]
    fn names_that_nobody_has_are_forgotten_and_no_others() {
        let mut shared = SharedByName::default();
        let kept: Vec<_> = (0..100).map(|i| shared.of(&format!("kept{i}"), || i)).collect();
        for i in 0..1000 {
            assert_eq!(*shared.of(&format!("gone{i}"), || i), i);
            assert!(shared.known.len() <= 300, "{}", shared.known.len());
        }
        assert!((0..100).all(|i| Arc::ptr_eq(&kept[i], &shared.of(&format!("kept{i}"), || 0))));
        drop(kept);
        (0..1000).for_each(|i| drop(shared.of(&format!("last{i}"), || i)));
        assert!(shared.known.len() <= 2 * SWEEP_MIN, "{}", shared.known.len());
    }
}
