//! Log lines about failed upstream requests, failed TLS handshakes and rejected clients. Each kind of line is sampled
//! separately, so that a flood of one kind does not hide the others. All workers share the samples.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{fmt, io};

use rustls::{AlertDescription, Error};

use crate::ends::{End, UpstreamFailureKind};
use crate::telemetry::metrics::HandshakeResult;
use crate::telemetry::sampled::LogSampler;

/// The samples of all log lines about failures.
pub struct FailureLog {
    upstreams: Mutex<SharedByName<UpstreamSamples>>,
    /// Samples for ignored forwarding headers, by listener.
    forwarding: Mutex<SharedByName<LogSampler>>,
    /// Samples for trusted proxies that name no client, by listener.
    unnamed: Mutex<SharedByName<LogSampler>>,
    clients: [RejectedClients; End::ALL.len()],
    handshakes: [LogSampler; HandshakeResult::ALL.len()],
    descriptors: LogSampler,
    files: LogSampler,
}

/// Sampled lines about rejected clients, and the clients whose lines were left out.
#[derive(Default)]
struct RejectedClients {
    sampler: LogSampler,
    left_out: Mutex<HashMap<IpAddr, u64>>,
}

/// The most clients that are counted until the next line.
const CLIENTS_MAX: usize = 1024;
/// The most clients that a line names besides its own.
const NAMED_MAX: usize = 3;

/// Values by name, each shared as long as somebody uses it.
struct SharedByName<T> {
    known: BTreeMap<String, Weak<T>>,
    /// Number of entries that triggers the next sweep of unused ones: twice what the last sweep left.
    sweep_at: usize,
}

/// Time between two lines about handshakes that clients gave up or did not finish.
const PROBES_PERIOD_MS: u64 = 600_000;

/// Minimum number of entries for a sweep.
const SWEEP_MIN: usize = 16;

/// Log lines of one upstream. Each worker has its own handle, so that shared memory is touched only to log.
pub struct UpstreamFailureLog(Arc<UpstreamSamples>);

/// The samples of one upstream, shared by all workers.
struct UpstreamSamples {
    upstream: String,
    kinds: [LogSampler; UpstreamFailureKind::ALL.len()],
}

impl Default for FailureLog {
    fn default() -> FailureLog {
        FailureLog {
            upstreams: Mutex::default(),
            forwarding: Mutex::default(),
            unnamed: Mutex::default(),
            clients: std::array::from_fn(|_| RejectedClients::default()),
            handshakes: Default::default(),
            descriptors: LogSampler::default(),
            files: LogSampler::default(),
        }
    }
}

impl FailureLog {
    /// Returns the samples of an upstream, which all workers share.
    pub fn for_upstream(&self, upstream: &str) -> UpstreamFailureLog {
        let mut upstreams = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || UpstreamSamples { upstream: upstream.to_owned(), kinds: Default::default() };
        UpstreamFailureLog(upstreams.get_or_insert(upstream, new))
    }

    /// Returns the sample for ignored forwarding headers at `listener`, which all workers share.
    pub fn forwarding_sample(&self, listener: &str) -> Arc<LogSampler> {
        let mut listeners = self.forwarding.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.get_or_insert(listener, LogSampler::default)
    }

    /// Returns the sample for trusted proxies that name no client at `listener`, which all workers share.
    pub fn unnamed_sample(&self, listener: &str) -> Arc<LogSampler> {
        let mut listeners = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.get_or_insert(listener, LogSampler::default)
    }

    /// Logs that the process is out of file descriptors. `whom`: the consequence, as part of the line.
    pub fn log_descriptor_shortage(&self, whom: &str) {
        if let Some(left_out) = self.descriptors.take_turn() {
            tracing::warn!(
                left_out = nonzero(left_out),
                "out of file descriptors: {whom}; raise the limit (ulimit -n, LimitNOFILE= of systemd, --ulimit \
                 nofile= of docker)"
            );
        }
    }

    /// Logs why a file of `folder` is not served. `what`: a clause.
    pub fn log_file_failure(&self, folder: &Path, what: fmt::Arguments<'_>) {
        if let Some(left_out) = self.files.take_turn() {
            tracing::warn!(left_out = nonzero(left_out), "files {}: {what}", folder.display());
        }
    }

    /// Logs a failed TLS handshake. The kinds that health checks of load balancers cause all day are logged less often.
    pub fn log_handshake_failure(
        &self,
        result: HandshakeResult,
        listener: &str,
        client: IpAddr,
        error: Option<&io::Error>,
    ) {
        let inner = error.and_then(|error| error.get_ref()?.downcast_ref::<Error>());
        let Some(hint) = handshake_hint(result, inner) else { return };
        let line = &self.handshakes[result as usize];
        let due = match result {
            HandshakeResult::Aborted | HandshakeResult::Timeout => line.take_turn_every(PROBES_PERIOD_MS),
            _ => line.take_turn(),
        };
        let (reason, error) = (result.label(), error.map(tracing::field::display));
        match due.map(nonzero) {
            Some(left_out) => {
                tracing::info!(reason, listener, %client, error, left_out, "TLS handshake failed: {hint}")
            }
            None => tracing::debug!(reason, listener, %client, error, "TLS handshake failed: {hint}"),
        }
    }

    /// Logs a client that was rejected or that speaks another protocol than its listener. `means`: what happened and
    /// what to do.
    pub fn log_rejected_client(&self, end: End, listener: &str, client: IpAddr, means: fmt::Arguments<'_>) {
        let clients = &self.clients[end as usize];
        match clients.sampler.take_turn() {
            Some(left_out) => {
                let (left_out, most) = (nonzero(left_out), clients.take_most());
                tracing::warn!(reason = end.label(), listener, %client, left_out, left_out_most = most, "{means}");
            }
            None => clients.record(client),
        }
    }
}

impl RejectedClients {
    /// Counts a client whose line is left out.
    fn record(&self, client: IpAddr) {
        let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        if left_out.len() < CLIENTS_MAX || left_out.contains_key(&client) {
            *left_out.entry(client).or_default() += 1;
        }
    }

    /// Returns the clients whose lines were left out most often since the last call, each with its number: `192.0.2.7:
    /// 35`.
    fn take_most(&self) -> Option<String> {
        let counts = std::mem::take(&mut *self.left_out.lock().unwrap_or_else(PoisonError::into_inner));
        let mut counts: Vec<(IpAddr, u64)> = counts.into_iter().collect();
        counts.sort_by_key(|(client, count)| (Reverse(*count), *client));
        let names: Vec<String> =
            counts.iter().take(NAMED_MAX).map(|(client, count)| format!("{client}: {count}")).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// Returns what a failed handshake probably means and what to do. Returns `None` if there is nothing to report.
fn handshake_hint(result: HandshakeResult, error: Option<&Error>) -> Option<&'static str> {
    Some(match result {
        HandshakeResult::Full
        | HandshakeResult::Resumed
        | HandshakeResult::Draining
        | HandshakeResult::AcmeChallenge => return None,
        HandshakeResult::Timeout => "the client did not finish it within `handshake_timeout`",
        HandshakeResult::Aborted => {
            "the client closed the connection, as health probes do, and clients that do not trust the certificate"
        }
        HandshakeResult::NotTls => "the client does not speak TLS; it must use https:// here",
        HandshakeResult::Incompatible => {
            "client and listener share no TLS version, cipher suite or protocol; see `min_version` and `http2`"
        }
        HandshakeResult::NoClientCertificate => "the client sent no certificate, which `client_auth` requires",
        HandshakeResult::BadClientCertificate => "the client's certificate is expired, or not signed by `client_ca`",
        HandshakeResult::Invalid => "the client violated the TLS protocol",
        HandshakeResult::NoCertificate => {
            "no certificate has been issued yet for the server name that the client requested"
        }
        HandshakeResult::Alert => match error {
            Some(Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate)) => {
                "the client does not trust the certificate: `cert` must contain the whole chain, and the client must trust its CA"
            }
            Some(Error::AlertReceived(AlertDescription::CertificateExpired)) => {
                "the client considers the certificate expired: renew it, or check the client's clock"
            }
            Some(Error::AlertReceived(AlertDescription::CertificateUnknown)) => {
                "the client rejects the certificate; often it does not trust the CA, or the name does not match"
            }
            _ => "the client aborted it with an alert",
        },
    })
}

impl<T> SharedByName<T> {
    fn get_or_insert(&mut self, name: &str, new: impl FnOnce() -> T) -> Arc<T> {
        if let Some(known) = self.known.get(name).and_then(Weak::upgrade) {
            return known;
        }
        // Not at every insertion: a config with many names would sweep once per name.
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

impl UpstreamFailureLog {
    pub fn upstream(&self) -> &str {
        &self.0.upstream
    }

    /// Logs a failed request to this upstream.
    pub fn log_failure(&self, kind: UpstreamFailureKind, server: &str, error: &dyn fmt::Display) {
        if let Some(left_out) = self.0.kinds[kind as usize].take_turn() {
            let (upstream, kind, left_out) = (&*self.0.upstream, kind.label(), nonzero(left_out));
            tracing::warn!(upstream, server, kind, %error, left_out, "upstream request failed");
        }
    }
}

/// Omits the count of suppressed lines if it is 0.
fn nonzero(left_out: u64) -> Option<u64> {
    Some(left_out).filter(|left_out| *left_out > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_has_one_sample_as_long_as_a_worker_knows_it() {
        let log = FailureLog::default();
        let app = log.for_upstream("app");
        assert!(Arc::ptr_eq(&app.0, &log.for_upstream("app").0) && !Arc::ptr_eq(&app.0, &log.for_upstream("other").0));
        app.log_failure(UpstreamFailureKind::Connect, "a", &"refused");
        assert!(app.0.kinds[UpstreamFailureKind::Connect as usize].take_turn().is_none());
        assert!(app.0.kinds[UpstreamFailureKind::Broken as usize].take_turn().is_some());
        drop(app);
        assert!(log.for_upstream("app").0.kinds[UpstreamFailureKind::Connect as usize].take_turn().is_some());
    }

    #[test]
    fn the_clients_that_were_left_out_most_are_named() {
        let rejected = RejectedClients::default();
        let client = |last: u16| {
            let [high, low] = last.to_be_bytes();
            IpAddr::from([10, 0, high, low])
        };
        assert_eq!(rejected.take_most(), None);
        for (last, count) in [(1, 2), (2, 35), (3, 4), (4, 1)] {
            (0..count).for_each(|_| rejected.record(client(last)));
        }
        assert_eq!(rejected.take_most().unwrap(), "10.0.0.2: 35, 10.0.0.3: 4, 10.0.0.1: 2");
        assert_eq!(rejected.take_most(), None);
        (0..5000).for_each(|last| rejected.record(client(last)));
        assert_eq!(rejected.left_out.lock().unwrap().len(), CLIENTS_MAX);
    }

    #[test]
    fn names_that_nobody_has_are_forgotten_and_no_others() {
        let mut shared = SharedByName::default();
        let kept: Vec<_> = (0..100).map(|i| shared.get_or_insert(&format!("kept{i}"), || i)).collect();
        for i in 0..1000 {
            assert_eq!(*shared.get_or_insert(&format!("gone{i}"), || i), i);
            assert!(shared.known.len() <= 300, "{}", shared.known.len());
        }
        assert!((0..100).all(|i| Arc::ptr_eq(&kept[i], &shared.get_or_insert(&format!("kept{i}"), || 0))));
        drop(kept);
        (0..1000).for_each(|i| drop(shared.get_or_insert(&format!("last{i}"), || i)));
        assert!(shared.known.len() <= 2 * SWEEP_MIN, "{}", shared.known.len());
    }
}
