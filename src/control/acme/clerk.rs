//! The loop of the thread that orders certificates: looks at the state directory, hands out what is there,
//! and orders what is due, one certificate at a time. Of several gateways on one directory the one with the
//! lock does so; the others find what it got.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use instant_acme::Account;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::client::RetryAfter;
use super::names;
use super::order::{Customer, OrderFault};
use super::schedule;
use super::shelf::{Need, Shelf};
use super::state::{KeptCertificate, OrderPause, StateDirectory, StateFault, StateLock, now_s};
use crate::config::{Acme, AcmeSettings};
use crate::control::certificates;
use crate::metrics::{Metrics, OrderResult};
use crate::snapshot::{Current, Snapshot};
use crate::tls::ChallengeKind;

/// How often the directory is looked at: a challenge is answered by every gateway so long after it is there.
const TICK: Duration = Duration::from_millis(250);
/// Every file is looked at so often, even if the directory seems untouched, and so is who waits for what.
const WHOLE_LOOK: Duration = Duration::from_secs(5);
/// After the directory could not be used.
const REST: Duration = Duration::from_secs(5);
/// Of one certificate, all challenges included.
const ATTEMPT: Duration = Duration::from_secs(300);
/// A pause that ends later than this was written under another clock.
const CLOCK_MAX_S: u64 = 2 * 86_400;

pub struct Clerk {
    current: Current,
    metrics: Metrics,
    office: Option<Office>,
}

/// What goes with one ACME server and state directory.
struct Office {
    settings: AcmeSettings,
    state: StateDirectory,
    shelf: Shelf,
    /// Of names that wait for their next attempt.
    waiting: HashMap<String, OrderPause>,
    account: Option<Account>,
    ordering: Option<JoinHandle<OrderEnd>>,
    looked: Option<Looked>,
    /// What was said last of the directory, and when to try it again.
    fault: Option<(String, Instant)>,
}

/// As of the last whole look.
struct Looked {
    generation: u64,
    changed: Option<SystemTime>,
    next: Instant,
}

/// One order, as it is carried out.
struct OrderJob {
    settings: AcmeSettings,
    state: StateDirectory,
    lock: StateLock,
    account: Option<Account>,
    name: String,
    kinds: Vec<ChallengeKind>,
    failures: u32,
}

/// What came of it.
struct OrderEnd {
    name: String,
    account: Option<Account>,
    result: Result<KeptCertificate, OrderFault>,
    /// The certificate is in the directory, or the failure is.
    written: Result<(), StateFault>,
    attempt: Option<OrderPause>,
}

impl Clerk {
    pub fn new(current: Current, metrics: Metrics) -> Clerk {
        Clerk { current, metrics, office: None }
    }

    pub async fn work(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                _ = ticks.tick() => self.look(),
            }
        }
    }

    fn look(&mut self) {
        let snapshot = self.current.load_full();
        let Some(acme) = &snapshot.config.acme else {
            self.office = None;
            return;
        };
        let names = names(&snapshot.config);
        let office = match self.office.take() {
            Some(office) if office.settings == acme.settings => office,
            _ => Office::new(&acme.settings),
        };
        let office = self.office.insert(office);
        if names.is_empty() || office.rests() {
            return;
        }
        let done = office.look(&snapshot, acme, &names, &self.metrics);
        office.tell(done);
    }
}

impl Office {
    fn new(settings: &AcmeSettings) -> Office {
        Office {
            settings: settings.clone(),
            state: StateDirectory::of(settings),
            shelf: Shelf::default(),
            waiting: HashMap::new(),
            account: None,
            ordering: None,
            looked: None,
            fault: None,
        }
    }

    /// Whether the directory is given time after a fault.
    fn rests(&self) -> bool {
        self.fault.as_ref().is_some_and(|(_, until)| Instant::now() < *until)
    }

    /// Says what is wrong with the directory when that changes.
    fn tell(&mut self, done: Result<(), StateFault>) {
        let before = self.fault.take().map(|(said, _)| said);
        if let Err(fault) = done {
            let said = fault.to_string();
            if before.as_ref() != Some(&said) {
                tracing::error!(
                    "no certificates are ordered, for they could not be kept: {said}; see that `state` of [acme] is a \
                     directory that the user of the gateway may write to, and that there is room"
                );
            }
            self.fault = Some((said, Instant::now() + REST));
        } else if before.is_some() && self.looked.is_some() {
            tracing::info!("the state directory can be used again");
        }
    }

    fn look(
        &mut self,
        snapshot: &Snapshot,
        acme: &Acme,
        names: &BTreeSet<String>,
        metrics: &Metrics,
    ) -> Result<(), StateFault> {
        let unsaved = self.take_order(metrics);
        let generation = snapshot.generation;
        let changed = self.state.certificates_changed();
        let is_whole = !self.looked.as_ref().is_some_and(|looked| {
            looked.generation == generation && looked.changed == changed && Instant::now() < looked.next
        });
        let is_new = self.looked.as_ref().is_none_or(|looked| looked.generation != generation);
        if is_whole {
            self.state.prepare()?;
            self.read_again()?;
        }
        if unsaved | is_whole && (self.shelf.refresh(&self.state, names) | unsaved | is_new) {
            self.hand_out(snapshot, metrics);
        }
        if is_whole {
            self.looked = Some(Looked { generation, changed, next: Instant::now() + WHOLE_LOOK });
        }
        acme.board.show(self.state.challenges()?);
        if self.ordering.is_none() { self.begin(names) } else { Ok(()) }
    }

    /// Who waits may wait no longer, or longer: another gateway writes there, and operators remove files.
    fn read_again(&mut self) -> Result<(), StateFault> {
        for name in self.waiting.keys().cloned().collect::<Vec<_>>() {
            match self.state.attempt(&name)? {
                Some(attempt) => drop(self.waiting.insert(name, attempt)),
                None => drop(self.waiting.remove(&name)),
            }
        }
        Ok(())
    }

    fn hand_out(&self, snapshot: &Snapshot, metrics: &Metrics) {
        let issued = self.shelf.issued();
        let tls = snapshot.config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        tls.filter(|tls| !tls.ordered().is_empty()).for_each(|tls| tls.provide(&issued));
        certificates::show(&snapshot.config, metrics);
    }

    /// Does the first thing that is due, unless another gateway is at work.
    fn begin(&mut self, names: &BTreeSet<String>) -> Result<(), StateFault> {
        let now = now_s();
        let is_due = |name: &&String| {
            let waits = self.waiting.get(*name).is_some_and(|attempt| attempt.is_ahead(now));
            match self.shelf.need(name, signed(now)) {
                Some(Need::Order) => !waits,
                need => need.is_some(),
            }
        };
        let due: Vec<&String> = names.iter().filter(is_due).collect();
        if due.is_empty() {
            return Ok(());
        }
        let Some(lock) = self.state.lock()? else { return Ok(()) };
        self.state.sweep(&lock)?;
        for name in due {
            // The one that had the lock before may have done it.
            if self.shelf.refresh(&self.state, names) {
                self.looked = None;
                return Ok(());
            }
            match self.shelf.need(name, signed(now)) {
                None => {}
                Some(Need::Save) => {
                    if let Some(certificate) = self.shelf.get(name).cloned() {
                        self.state.save_certificate(&lock, name, &certificate.pem)?;
                        self.state.clear_attempt(&lock, name)?;
                        self.shelf.add(&self.state, name, certificate, true);
                        tracing::info!(name, "the certificate in use is in the state directory again");
                    }
                }
                Some(Need::Order) => {
                    let before = self.state.attempt(name)?;
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
                            return self.order(lock, name, failures);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Orders a certificate. Should the gateway die meanwhile, that counts as a failure, with a tenth of its
    /// pause: one that dies again and again orders no more often than that.
    fn order(&mut self, lock: StateLock, name: &str, failures: u32) -> Result<(), StateFault> {
        let pause = schedule::pause(failures + 1, self.settings.backoff, rand::random()) / 10;
        let reason = "the gateway ended in the midst of an order".to_owned();
        let cut = OrderPause { failures: failures.saturating_add(1), next_s: now_s() + pause.as_secs(), reason };
        self.state.put_attempt(&lock, name, &cut)?;
        match self.shelf.get(name) {
            Some(_) => tracing::info!(name, directory = self.settings.directory, "renewing a certificate"),
            None => tracing::info!(
                name,
                directory = self.settings.directory,
                "ordering a certificate; until it is there, TLS handshakes for that name fail"
            ),
        }
        let kinds = match usize::try_from(failures) {
            // Each way once; later one at a time, in turns, for servers count failures.
            Ok(0) => self.settings.challenges.clone(),
            Ok(at) => self
                .settings
                .challenges
                .iter()
                .cycle()
                .skip(at % self.settings.challenges.len())
                .take(1)
                .copied()
                .collect(),
            Err(_) => Vec::new(),
        };
        let job = OrderJob {
            settings: self.settings.clone(),
            state: self.state.clone(),
            lock,
            account: self.account.take(),
            name: name.to_owned(),
            kinds,
            failures,
        };
        self.ordering = Some(spawn_local(job.carry_out()));
        Ok(())
    }

    /// What came of the order under way, if that has ended. True if there is a certificate.
    fn take_order(&mut self, metrics: &Metrics) -> bool {
        let Some(ordering) = self.ordering.take_if(|ordering| ordering.is_finished()) else { return false };
        // It is finished, and only a panic has no end.
        let Some(Ok(end)) = futures_util::FutureExt::now_or_never(ordering) else { return false };
        let OrderEnd { name, account, result, written, attempt } = end;
        metrics.tls.order(result.as_ref().map_or_else(OrderFault::result, |_| OrderResult::Issued)).inc();
        if let Err(fault) = &written {
            tracing::error!(name, "{fault}; what it should hold is kept in memory until then");
        }
        match result {
            Ok(certificate) => {
                let until = certificate.until();
                tracing::info!(name, until, "a certificate was issued and is in use");
                self.account = account;
                self.shelf.add(&self.state, &name, certificate, written.is_ok());
                true
            }
            Err(fault) => {
                let now = now_s();
                let seconds = attempt.as_ref().map_or(0, |attempt| attempt.next_s.saturating_sub(now));
                tracing::warn!(
                    name,
                    seconds,
                    "no certificate was issued: {fault}; {}; next attempt in {seconds} s",
                    fault.remedy(&name)
                );
                self.waiting.extend(attempt.map(|attempt| (name, attempt)));
                false
            }
        }
    }
}

/// An order that nobody waits for any more gives back the lock.
impl Drop for Office {
    fn drop(&mut self) {
        if let Some(ordering) = &self.ordering {
            ordering.abort();
        }
    }
}

impl OrderJob {
    async fn carry_out(self) -> OrderEnd {
        let OrderJob { settings, state, lock, account, name, kinds, failures } = self;
        let retry_after = RetryAfter::default();
        let customer = Customer { settings: &settings, state: &state, lock: &lock };
        let whole = async {
            let account = match account {
                Some(account) => account,
                None => customer.account(retry_after.clone()).await?,
            };
            let certificate = customer.order(&account, &name, &kinds).await?;
            Ok((account, certificate))
        };
        match timeout(ATTEMPT, whole).await.unwrap_or(Err(OrderFault::Timeout)) {
            Ok((account, certificate)) => {
                let written = state.save_certificate(&lock, &name, &certificate.pem);
                let written = written.and_then(|()| state.clear_attempt(&lock, &name));
                OrderEnd { name, account: Some(account), result: Ok(certificate), written, attempt: None }
            }
            Err(fault) => {
                let failures = failures.saturating_add(1);
                let pause = schedule::pause(failures, settings.backoff, rand::random());
                let asked = retry_after.load(Ordering::Relaxed);
                let next_s = now_s() + pause.as_secs().max(asked);
                let attempt = OrderPause { failures, next_s, reason: fault.to_string() };
                let written = state.put_attempt(&lock, &name, &attempt).and(state.clear_challenges(&lock));
                OrderEnd { name, account: None, result: Err(fault), written, attempt: Some(attempt) }
            }
        }
    }
}

impl OrderPause {
    fn is_ahead(&self, now_s: u64) -> bool {
        (now_s + 1..now_s + CLOCK_MAX_S).contains(&self.next_s)
    }
}

fn signed(time_s: u64) -> i64 {
    i64::try_from(time_s).unwrap_or(i64::MAX)
}
