//! Loop of the thread that orders certificates: reads the state directory, publishes what it contains, and orders what
//! is due, one certificate at a time. Of several gateways that share a directory, the one with the lock orders; the
//! others load its certificates.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use instant_acme::{Account, CertificateIdentifier};
use rustls::pki_types::CertificateDer;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::acme::cert_cache::{CertCache, CertNeed, renewal_time_s};
use crate::acme::client::RetryAfter;
use crate::acme::order::{OrderClient, OrderError};
use crate::acme::renewal_info::{RenewalAdvice, fetch_advice, identify};
use crate::acme::state::{OrderPause, StateDirectory, StateError, StateLock, StoredCertificate, now_s};
use crate::acme::{PublishedCerts, export_expiry, list_names, provide_certificates, schedule};
use crate::config::{Acme, AcmeSettings};
use crate::file_stamp::FileStamp;
use crate::snapshot::{CurrentSnapshot, Snapshot};
use crate::telemetry::metrics::{Metrics, OrderResult};
use crate::tls::{ChallengeKind, IssuedCertificates};

/// Interval of reading the directory; every gateway can answer a challenge this soon after it is created.
const TICK: Duration = Duration::from_millis(250);
/// Interval of checking every file even if the directory seems unchanged, and of rereading the pauses.
const WHOLE_LOOK: Duration = Duration::from_secs(5);
/// Pause after the directory could not be used.
const REST: Duration = Duration::from_secs(5);
/// Time limit for one certificate, all challenges included.
const ATTEMPT: Duration = Duration::from_secs(300);
/// How often an order is repeated after the server rejected its nonces, and the pause before. A client should repeat a
/// request then (RFC 8555, section 6.5); the library does so twice, and the next failure would cost the pause for
/// failures.
const NONCE_RETRIES: u32 = 3;
const NONCE_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a request for renewal information that failed.
const ADVICE_RETRY: Duration = Duration::from_secs(3600);
/// Reason for a pause after an order that did not fail.
const DUE_AT_ONCE: &str = "the certificate is due for renewal already: is the clock of this machine right?";
/// A longer pause was written under a wrong clock and is ignored.
const CLOCK_MAX_S: u64 = 2 * 86_400;

pub struct AcmeManager {
    current: CurrentSnapshot,
    metrics: Metrics,
    published: PublishedCerts,
    account_state: Option<AcmeAccountState>,
    /// Generation of the config whose listeners have what is published.
    provided: u64,
}

/// State of one ACME server and state directory.
struct AcmeAccountState {
    settings: AcmeSettings,
    state: StateDirectory,
    published: PublishedCerts,
    cache: CertCache,
    /// Names that wait for their next attempt.
    waiting: HashMap<String, OrderPause>,
    account: Option<RegisteredAccount>,
    ordering: Option<JoinHandle<OrderResultReport>>,
    asking: Option<JoinHandle<AdviceReport>>,
    last_check: Option<DirectoryCheck>,
    /// Last reported fault of the directory, and when to try again.
    fault: Option<(String, Instant)>,
}

/// An account and the wait that its server demands.
type RegisteredAccount = (Account, RetryAfter);

/// State at the last complete check.
struct DirectoryCheck {
    generation: u64,
    stamp: Option<FileStamp>,
    next: Instant,
}

/// An order in progress.
struct PendingOrder {
    settings: AcmeSettings,
    state: StateDirectory,
    lock: StateLock,
    account: Option<RegisteredAccount>,
    name: String,
    /// The certificate that is renewed, if the server has renewal information about it.
    replaces: Option<CertificateIdentifier<'static>>,
    kinds: Vec<ChallengeKind>,
    failures: u32,
}

/// The advice of the ACME server about the certificate of a name.
struct AdviceReport {
    name: String,
    certificate: CertificateDer<'static>,
    advice: RenewalAdvice,
}

/// Result of an order.
struct OrderResultReport {
    name: String,
    /// Settings that the order used.
    settings: AcmeSettings,
    account: Option<RegisteredAccount>,
    result: Result<StoredCertificate, OrderError>,
    /// Result of writing the certificate, or its failure, to the directory.
    written: Result<(), StateError>,
    attempt: Option<OrderPause>,
}

impl AcmeManager {
    pub fn new(current: CurrentSnapshot, metrics: Metrics, published: PublishedCerts) -> AcmeManager {
        AcmeManager { current, metrics, published, account_state: None, provided: 0 }
    }

    pub async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                _ = ticks.tick() => self.check_directory(),
            }
        }
    }

    fn check_directory(&mut self) {
        let snapshot = self.current.load_full();
        let Some(acme) = &snapshot.config.acme else {
            self.account_state = None;
            return;
        };
        let names = list_names(&snapshot.config);
        let mut account_state = match self.account_state.take() {
            Some(account_state) if account_state.is_for(&acme.settings) => account_state,
            _ => AcmeAccountState::new(&acme.settings, &self.published),
        };
        if account_state.settings != acme.settings {
            // A new account sends new contacts to the ACME server.
            account_state.settings = acme.settings.clone();
            account_state.account = None;
        }
        if self.provided != snapshot.generation {
            // Certificates issued since the listeners were created are used even if the disk is gone.
            self.provided = snapshot.generation;
            self.publish(&snapshot, IssuedCertificates::new());
        }
        if !names.is_empty() && !account_state.is_paused() {
            let is_issued = account_state.finish_order(&self.metrics);
            let result =
                account_state.check_names(&snapshot, acme, &names, is_issued, |issued| self.publish(&snapshot, issued));
            account_state.report_fault(result);
        }
        self.account_state = Some(account_state);
    }

    /// Passes these certificates to the listeners; other names keep theirs.
    fn publish(&self, snapshot: &Snapshot, issued: IssuedCertificates) {
        self.published.rcu(|published| {
            let both = published.iter().chain(&issued);
            both.map(|(name, key)| (name.clone(), key.clone())).collect::<IssuedCertificates>()
        });
        provide_certificates(&snapshot.config, &self.published.load());
        export_expiry(&snapshot.config, &self.metrics);
    }
}

impl AcmeAccountState {
    fn new(settings: &AcmeSettings, published: &PublishedCerts) -> AcmeAccountState {
        AcmeAccountState {
            settings: settings.clone(),
            state: StateDirectory::for_server(settings),
            published: published.clone(),
            cache: CertCache::default(),
            waiting: HashMap::new(),
            account: None,
            ordering: None,
            asking: None,
            last_check: None,
            fault: None,
        }
    }

    /// Returns whether this state belongs to `settings`.
    fn is_for(&self, settings: &AcmeSettings) -> bool {
        (&self.settings.state, &self.settings.directory) == (&settings.state, &settings.directory)
    }

    /// Returns whether the directory is paused after a fault.
    fn is_paused(&self) -> bool {
        self.fault.as_ref().is_some_and(|(_, until)| Instant::now() < *until)
    }

    /// Logs faults of the directory when they change.
    fn report_fault(&mut self, done: Result<(), StateError>) {
        let before = self.fault.take().map(|(message, _)| message);
        if let Err(fault) = done {
            let message = fault.to_string();
            if before.as_ref() != Some(&message) {
                tracing::error!(
                    "no certificates are ordered, because they could not be stored: {message}; see that `state` of [acme] is a \
                     directory that the user of the gateway may write to, and that there is room"
                );
            }
            self.fault = Some((message, Instant::now() + REST));
        } else if before.is_some() && self.last_check.is_some() {
            tracing::info!("the state directory can be used again");
        }
    }

    fn check_names(
        &mut self,
        snapshot: &Snapshot,
        acme: &Acme,
        names: &BTreeSet<String>,
        is_issued: bool,
        hand_out: impl FnOnce(IssuedCertificates),
    ) -> Result<(), StateError> {
        let generation = snapshot.generation;
        let stamp = self.state.certificates_stamp();
        let is_whole = !self.last_check.as_ref().is_some_and(|last_check| {
            last_check.generation == generation && last_check.stamp == stamp && Instant::now() < last_check.next
        });
        if is_whole {
            self.state.create_directories()?;
            self.reread_pauses()?;
        }
        if is_issued | is_whole && (self.cache.refresh_all(&self.state, names) | is_issued) {
            hand_out(self.cache.issued_certificates());
        }
        if is_whole {
            self.ask_for_advice();
            self.last_check = Some(DirectoryCheck { generation, stamp, next: Instant::now() + WHOLE_LOOK });
        }
        acme.challenges.publish(self.state.read_challenges()?);
        if self.ordering.is_none() { self.start_due_order(names) } else { Ok(()) }
    }

    /// Takes the renewal information that has arrived, and requests the information for the next certificate.
    fn ask_for_advice(&mut self) {
        if let Some(asking) = self.asking.take_if(|asking| asking.is_finished())
            && let Some(Ok(AdviceReport { name, certificate, advice })) = futures_util::FutureExt::now_or_never(asking)
        {
            self.cache.set_advice(&name, &certificate, &advice);
        }
        if self.asking.is_some() {
            return;
        }
        let Some(name) = self.cache.find_question(Instant::now()).map(str::to_owned) else { return };
        let Some(certificate) = self.cache.get(&name).and_then(StoredCertificate::leaf).cloned() else { return };
        let settings = self.settings.clone();
        self.asking = Some(spawn_local(async move {
            let none = RenewalAdvice { window: None, ask_again: ADVICE_RETRY };
            let advice = match identify(&certificate) {
                None => none,
                Some(id) => fetch_advice(&settings, &name, &id).await.unwrap_or_else(|why| {
                    tracing::warn!(name, "no renewal information: {why}; the lifetime of the certificate decides");
                    none
                }),
            };
            AdviceReport { name, certificate, advice }
        }));
    }

    /// Rereads the pauses: another gateway may have written them, and operators remove files.
    fn reread_pauses(&mut self) -> Result<(), StateError> {
        for name in self.waiting.keys().cloned().collect::<Vec<_>>() {
            match self.state.read_pause(&name)? {
                Some(attempt) => drop(self.waiting.insert(name, attempt)),
                None => drop(self.waiting.remove(&name)),
            }
        }
        Ok(())
    }

    /// Starts the first order that is due, unless another gateway is at work.
    fn start_due_order(&mut self, names: &BTreeSet<String>) -> Result<(), StateError> {
        let now = now_s();
        let is_due = |name: &&String| {
            let waits = self.waiting.get(*name).is_some_and(|attempt| attempt.is_ahead(now));
            match self.cache.find_need(name, to_signed(now)) {
                Some(CertNeed::Order) => !waits,
                need => need.is_some(),
            }
        };
        let due: Vec<&String> = names.iter().filter(is_due).collect();
        if due.is_empty() {
            return Ok(());
        }
        let Some(lock) = self.state.try_lock()? else { return Ok(()) };
        self.state.remove_leftovers(&lock)?;
        for name in due {
            // The gateway that had the lock before may have done the work.
            if self.cache.refresh_all(&self.state, names) {
                self.last_check = None;
                return Ok(());
            }
            match self.cache.find_need(name, to_signed(now)) {
                None => {}
                Some(CertNeed::Save) => {
                    if let Some(certificate) = self.cache.get(name).cloned() {
                        self.state.save_certificate(&lock, name, &certificate.pem)?;
                        self.state.remove_pause(&lock, name)?;
                        self.cache.add_issued(&self.state, name, certificate, true);
                        tracing::info!(name, "the certificate in use is in the state directory again");
                    }
                }
                Some(CertNeed::Order) => {
                    let before = self.state.read_pause(name)?;
                    match before {
                        Some(attempt) if attempt.is_ahead(now) => {
                            tracing::info!(
                                name,
                                seconds = attempt.next_s.saturating_sub(now),
                                "waiting before the next order, after {} failures; last: {}; to try at once, remove `{}`",
                                attempt.failures,
                                attempt.reason,
                                self.state.attempt_path(name).display()
                            );
                            self.waiting.insert(name.clone(), attempt);
                        }
                        before => {
                            let failures = before.map_or(0, |attempt| attempt.failures);
                            return self.start_order(lock, name, failures);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Orders a certificate. A crash meanwhile counts as a failure with a tenth of the pause, so that a crashing
    /// gateway does not order more often.
    fn start_order(&mut self, lock: StateLock, name: &str, failures: u32) -> Result<(), StateError> {
        let pause = schedule::pause_after(failures.saturating_add(1), self.settings.backoff, rand::random()) / 10;
        let reason = "the gateway ended in the midst of an order".to_owned();
        let order_pause =
            OrderPause { failures: failures.saturating_add(1), next_s: now_s() + pause.as_secs(), reason };
        self.state.write_pause(&lock, name, &order_pause)?;
        match self.published.load().contains_key(name) {
            true => tracing::info!(name, directory = self.settings.directory, "renewing a certificate"),
            false => tracing::info!(
                name,
                directory = self.settings.directory,
                "ordering a certificate; until it is there, TLS handshakes for that name fail"
            ),
        }
        let mut kinds = self.settings.challenges.clone();
        kinds.retain(|kind| kind.can_prove(name));
        // Each challenge is tried once, then one at a time in turn, because servers count failures.
        if let (1.., Some(turn)) = (failures, usize::try_from(failures).unwrap_or_default().checked_rem(kinds.len())) {
            kinds = vec![kinds[turn]];
        }
        let job = PendingOrder {
            settings: self.settings.clone(),
            state: self.state.clone(),
            lock,
            account: self.account.take(),
            name: name.to_owned(),
            replaces: self
                .cache
                .get(name)
                .filter(|_| self.cache.has_advice(name))
                .and_then(|old| identify(old.leaf()?)),
            kinds,
            failures,
        };
        self.ordering = Some(spawn_local(job.run()));
        Ok(())
    }

    /// Takes the result of a finished order. Returns whether there is a new certificate.
    fn finish_order(&mut self, metrics: &Metrics) -> bool {
        let Some(ordering) = self.ordering.take_if(|ordering| ordering.is_finished()) else { return false };
        // The task has finished; without a result it panicked.
        let end = match futures_util::FutureExt::now_or_never(ordering) {
            Some(Ok(end)) => end,
            None => return false,
            Some(Err(panic)) => {
                metrics.tls.order_counter(OrderResult::Unreachable).inc();
                tracing::error!("an order was given up, which is a bug in this program: {panic}");
                return false;
            }
        };
        let OrderResultReport { name, settings, account, result, written, attempt } = end;
        metrics.tls.order_counter(result.as_ref().map_or_else(OrderError::result, |_| OrderResult::Issued)).inc();
        if let Err(fault) = &written {
            tracing::error!(name, "{fault}; its content is kept in memory until then");
        }
        match result {
            Ok(certificate) => {
                let until = certificate.expiry_text();
                tracing::info!(name, until, "a certificate was issued and is in use");
                if let Some(attempt) = attempt {
                    let seconds = attempt.next_s.saturating_sub(now_s());
                    let reason = &attempt.reason;
                    tracing::warn!(name, seconds, "{reason}; the next is ordered in {seconds} s");
                    self.waiting.insert(name.clone(), attempt);
                }
                self.account = account.filter(|_| settings == self.settings);
                self.cache.add_issued(&self.state, &name, certificate, written.is_ok());
                true
            }
            Err(fault) => {
                let now = now_s();
                let seconds = attempt.as_ref().map_or(0, |attempt| attempt.next_s.saturating_sub(now));
                tracing::warn!(
                    name,
                    seconds,
                    "no certificate was issued: {fault}; {}; next attempt in {seconds} s; to try at once, remove `{}`",
                    fault.remedy(&name),
                    self.state.attempt_path(&name).display()
                );
                self.waiting.extend(attempt.map(|attempt| (name, attempt)));
                false
            }
        }
    }
}

/// Dropping it cancels the order and releases the lock.
impl Drop for AcmeAccountState {
    fn drop(&mut self) {
        if let Some(ordering) = &self.ordering {
            ordering.abort();
        }
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

impl PendingOrder {
    async fn run(self) -> OrderResultReport {
        let PendingOrder { settings, state, lock, account, name, replaces, kinds, failures } = self;
        let retry_after = account.as_ref().map(|(_, retry_after)| retry_after.clone()).unwrap_or_default();
        // Resets the wait of earlier orders.
        retry_after.store(0, Ordering::Relaxed);
        let client = OrderClient { settings: &settings, state: &state, lock: &lock, replaces };
        let mut account = account.map(|(account, _)| account);
        let whole = async {
            let mut retries = NONCE_RETRIES;
            loop {
                match client.order_with_account(&mut account, &retry_after, &name, &kinds).await {
                    Err(fault @ OrderError::BadNonce(_)) if retries > 0 => {
                        tracing::info!(name, "{fault}; the order is repeated");
                        retries -= 1;
                        sleep(NONCE_PAUSE).await;
                    }
                    ordered => return ordered,
                }
            }
        };
        let dns_wait = settings.dns.as_ref().map_or(Duration::ZERO, |publisher| publisher.wait);
        let result = timeout(ATTEMPT + dns_wait, whole).await.unwrap_or_else(|_| {
            if kinds.contains(&ChallengeKind::Dns01) {
                let host = name.strip_prefix("*.").unwrap_or(&name);
                tracing::warn!(name, "a TXT record at `_acme-challenge.{host}` may still exist: remove it");
            }
            Err(OrderError::Timeout)
        });
        let pause = |reason: String| {
            let failures = failures.saturating_add(1);
            let pause = schedule::pause_after(failures, settings.backoff, rand::random()).as_secs();
            let next_s = now_s() + pause.max(retry_after.load(Ordering::Relaxed));
            OrderPause { failures, next_s, reason }
        };
        match result {
            Ok(certificate) => {
                // Otherwise it would be ordered again and again.
                let is_due = renewal_time_s(&certificate) <= to_signed(now_s());
                let attempt = is_due.then(|| pause(DUE_AT_ONCE.to_owned()));
                let save = state.save_certificate(&lock, &name, &certificate.pem);
                let disk_result = match &attempt {
                    None => save.and_then(|()| state.remove_pause(&lock, &name)),
                    Some(attempt) => save.and(state.write_pause(&lock, &name, attempt)),
                };
                let account = account.map(|account| (account, retry_after));
                OrderResultReport { name, settings, account, result: Ok(certificate), written: disk_result, attempt }
            }
            Err(fault) => {
                let attempt = pause(fault.to_string());
                let disk_result = state.write_pause(&lock, &name, &attempt).and(state.remove_challenges(&lock));
                OrderResultReport {
                    name,
                    settings,
                    account: None,
                    result: Err(fault),
                    written: disk_result,
                    attempt: Some(attempt),
                }
            }
        }
    }
}

impl OrderPause {
    fn is_ahead(&self, now_s: u64) -> bool {
        (now_s + 1..now_s + CLOCK_MAX_S).contains(&self.next_s)
    }
}

fn to_signed(time_s: u64) -> i64 {
    i64::try_from(time_s).unwrap_or(i64::MAX)
}
