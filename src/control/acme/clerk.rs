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
use super::order::{Customer, OrderFault};
use super::schedule;
use super::shelf::{Need, Shelf, renewal_s};
use super::state::{KeptCertificate, OrderPause, StateDirectory, StateFault, StateLock, now_s};
use super::{Published, names, provide};
use crate::config::{Acme, AcmeSettings};
use crate::control::certificates;
use crate::metrics::{Metrics, OrderResult};
use crate::snapshot::{Current, Snapshot};
use crate::tls::{ChallengeKind, Issued};

/// How often the directory is looked at: a challenge is answered by every gateway so long after it is there.
const TICK: Duration = Duration::from_millis(250);
/// Every file is looked at so often, even if the directory seems untouched, and so is who waits for what.
const WHOLE_LOOK: Duration = Duration::from_secs(5);
/// After the directory could not be used.
const REST: Duration = Duration::from_secs(5);
/// Of one certificate, all challenges included.
const ATTEMPT: Duration = Duration::from_secs(300);
/// The reason for a pause after an order that did not fail.
const DUE_AT_ONCE: &str = "the certificate is due for renewal already: is the clock of this machine right?";
/// A pause that ends later than this was written under another clock.
const CLOCK_MAX_S: u64 = 2 * 86_400;

pub struct Clerk {
    current: Current,
    metrics: Metrics,
    published: Published,
    office: Option<Office>,
    /// Of the config whose listeners have what is published.
    provided: u64,
}

/// What goes with one ACME server and state directory.
struct Office {
    settings: AcmeSettings,
    state: StateDirectory,
    published: Published,
    shelf: Shelf,
    /// Of names that wait for their next attempt.
    waiting: HashMap<String, OrderPause>,
    account: Option<KnownAccount>,
    ordering: Option<JoinHandle<OrderEnd>>,
    looked: Option<Looked>,
    /// What was said last of the directory, and when to try it again.
    fault: Option<(String, Instant)>,
}

/// An account, and what its server asks those to wait who use it.
type KnownAccount = (Account, RetryAfter);

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
    account: Option<KnownAccount>,
    name: String,
    kinds: Vec<ChallengeKind>,
    failures: u32,
}

/// What came of it.
struct OrderEnd {
    name: String,
    /// What it was ordered by.
    settings: AcmeSettings,
    account: Option<KnownAccount>,
    result: Result<KeptCertificate, OrderFault>,
    /// The certificate is in the directory, or the failure is.
    written: Result<(), StateFault>,
    attempt: Option<OrderPause>,
}

impl Clerk {
    pub fn new(current: Current, metrics: Metrics, published: Published) -> Clerk {
        Clerk { current, metrics, published, office: None, provided: 0 }
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
        let mut office = match self.office.take() {
            Some(office) if office.is_at(&acme.settings) => office,
            _ => Office::new(&acme.settings, &self.published),
        };
        office.follow(&acme.settings);
        if self.provided != snapshot.generation {
            // What was issued since its listeners were made, whatever becomes of the disk.
            self.provided = snapshot.generation;
            self.hand_out(&snapshot, Issued::new());
        }
        if !names.is_empty() && !office.rests() {
            let unsaved = office.take_order(&self.metrics);
            let done = office.look(&snapshot, acme, &names, unsaved, |issued| self.hand_out(&snapshot, issued));
            office.tell(done);
        }
        self.office = Some(office);
    }

    /// Has the listeners use these, and for other names what they have.
    fn hand_out(&self, snapshot: &Snapshot, issued: Issued) {
        self.published.rcu(|published| {
            let both = published.iter().chain(&issued);
            both.map(|(name, key)| (name.clone(), key.clone())).collect::<Issued>()
        });
        provide(&snapshot.config, &self.published.load());
        certificates::show(&snapshot.config, &self.metrics);
    }
}

impl Office {
    fn new(settings: &AcmeSettings, published: &Published) -> Office {
        Office {
            settings: settings.clone(),
            state: StateDirectory::of(settings),
            published: published.clone(),
            shelf: Shelf::default(),
            waiting: HashMap::new(),
            account: None,
            ordering: None,
            looked: None,
            fault: None,
        }
    }

    /// Whether it is the one for these settings.
    fn is_at(&self, settings: &AcmeSettings) -> bool {
        (&self.settings.state, &self.settings.directory) == (&settings.state, &settings.directory)
    }

    /// From now on. The server has to be told of what is new.
    fn follow(&mut self, settings: &AcmeSettings) {
        if self.settings != *settings {
            self.settings = settings.clone();
            self.account = None;
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
        is_issued: bool,
        hand_out: impl FnOnce(Issued),
    ) -> Result<(), StateFault> {
        let generation = snapshot.generation;
        let changed = self.state.certificates_changed();
        let is_whole = !self.looked.as_ref().is_some_and(|looked| {
            looked.generation == generation && looked.changed == changed && Instant::now() < looked.next
        });
        if is_whole {
            self.state.prepare()?;
            self.read_again()?;
        }
        if is_issued | is_whole && (self.shelf.refresh(&self.state, names) | is_issued) {
            hand_out(self.shelf.issued());
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
        let pause = schedule::pause(failures.saturating_add(1), self.settings.backoff, rand::random()) / 10;
        let reason = "the gateway ended in the midst of an order".to_owned();
        let cut = OrderPause { failures: failures.saturating_add(1), next_s: now_s() + pause.as_secs(), reason };
        self.state.put_attempt(&lock, name, &cut)?;
        match self.published.load().contains_key(name) {
            true => tracing::info!(name, directory = self.settings.directory, "renewing a certificate"),
            false => tracing::info!(
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
        let end = match futures_util::FutureExt::now_or_never(ordering) {
            Some(Ok(end)) => end,
            None => return false,
            Some(Err(panic)) => {
                metrics.tls.order(OrderResult::Unreachable).inc();
                tracing::error!("an order was given up, which is a mistake in this program: {panic}");
                return false;
            }
        };
        let OrderEnd { name, settings, account, result, written, attempt } = end;
        metrics.tls.order(result.as_ref().map_or_else(OrderFault::result, |_| OrderResult::Issued)).inc();
        if let Err(fault) = &written {
            tracing::error!(name, "{fault}; what it should hold is kept in memory until then");
        }
        match result {
            Ok(certificate) => {
                let until = certificate.until();
                tracing::info!(name, until, "a certificate was issued and is in use");
                if let Some(attempt) = attempt {
                    let seconds = attempt.next_s.saturating_sub(now_s());
                    let reason = &attempt.reason;
                    tracing::warn!(name, seconds, "{reason}; the next is ordered in {seconds} s");
                    self.waiting.insert(name.clone(), attempt);
                }
                self.account = account.filter(|_| settings == self.settings);
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
        let retry_after = account.as_ref().map(|(_, retry_after)| retry_after.clone()).unwrap_or_default();
        // Of earlier orders.
        retry_after.store(0, Ordering::Relaxed);
        let customer = Customer { settings: &settings, state: &state, lock: &lock };
        let whole = async {
            let account = match account {
                Some((account, _)) => account,
                None => customer.account(retry_after.clone()).await?,
            };
            let certificate = customer.order(&account, &name, &kinds).await?;
            Ok((account, certificate))
        };
        let result = timeout(ATTEMPT, whole).await.unwrap_or(Err(OrderFault::Timeout));
        let pause = |reason: String| {
            let failures = failures.saturating_add(1);
            let pause = schedule::pause(failures, settings.backoff, rand::random()).as_secs();
            let next_s = now_s() + pause.max(retry_after.load(Ordering::Relaxed));
            OrderPause { failures, next_s, reason }
        };
        match result {
            Ok((account, certificate)) => {
                // Else it would be ordered again and again.
                let is_due = renewal_s(&certificate) <= signed(now_s());
                let attempt = is_due.then(|| pause(DUE_AT_ONCE.to_owned()));
                let saved = state.save_certificate(&lock, &name, &certificate.pem);
                let written = match &attempt {
                    None => saved.and_then(|()| state.clear_attempt(&lock, &name)),
                    Some(attempt) => saved.and(state.put_attempt(&lock, &name, attempt)),
                };
                let account = Some((account, retry_after));
                OrderEnd { name, settings, account, result: Ok(certificate), written, attempt }
            }
            Err(fault) => {
                let attempt = pause(fault.to_string());
                let written = state.put_attempt(&lock, &name, &attempt).and(state.clear_challenges(&lock));
                OrderEnd { name, settings, account: None, result: Err(fault), written, attempt: Some(attempt) }
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
