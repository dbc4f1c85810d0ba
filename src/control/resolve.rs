//! Resolves the hostnames of servers: when their time to live ends, within bounds, and as soon as none of their
//! addresses accepts connections. Requests use the last result and never wait for a lookup. Run by the control thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::config::Config;
use crate::control::lookup::{HostResolver, LookupResult};
use crate::snapshot::Fleet;
use crate::telemetry::sampled::LogSampler;
use crate::upstream::Upstream;
use crate::upstream::hostname::{ADDRESSES_MAX, HostnameState, LookupOutcome, NamedAddress};

/// Interval at which due lookups are noticed.
const NOTICE_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between two lookups of a name, even if its time to live is shorter.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Maximum number of concurrent lookups; further ones wait.
const LOOKUPS_MAX: usize = 16;
/// How long a start or reload waits for new names.
const FIRST_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of addresses shown in a log line.
const SHOWN_MAX: usize = 8;

pub struct HostnameUpdater {
    fleet: Fleet,
    names: RefCell<HashMap<String, Rc<ResolvedName>>>,
    resolver: RefCell<(Vec<SocketAddr>, Rc<HostResolver>)>,
    under_way: Cell<usize>,
    /// Notified when a lookup has ended.
    ended: Notify,
}

struct ResolvedName {
    known: Arc<HostnameState>,
    every: Cell<Duration>,
    /// When the next lookup is due, subject to `PAUSE_MIN`.
    due: Cell<Instant>,
    last_lookup: Cell<Option<Instant>>,
    is_under_way: Cell<bool>,
    failures: Cell<u32>,
    address_log: LogSampler,
    failure_log: LogSampler,
}

impl HostnameUpdater {
    pub fn new(fleet: &Fleet, config: &Config) -> Rc<HostnameUpdater> {
        let servers = config.server.resolver.clone();
        let resolver = Rc::new(HostResolver::new(&servers));
        Rc::new(HostnameUpdater {
            fleet: fleet.clone(),
            names: RefCell::default(),
            resolver: RefCell::new((servers, resolver)),
            under_way: Cell::new(0),
            ended: Notify::new(),
        })
    }

    /// Runs due lookups. Never returns.
    pub async fn run(self: Rc<HostnameUpdater>) {
        let mut glances = interval(NOTICE_INTERVAL);
        glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            glances.tick().await;
            self.start_due_lookups();
        }
    }

    /// Resolves the names of a config that is about to become active, and waits for new ones for a while.
    pub async fn resolve_new_names(self: &Rc<HostnameUpdater>, config: &Config) {
        let servers = &config.server.resolver;
        if self.resolver.borrow().0 != *servers {
            *self.resolver.borrow_mut() = (servers.clone(), Rc::new(HostResolver::new(servers)));
            self.names.borrow().values().for_each(|name| name.due.set(Instant::now()));
        }
        let now = Instant::now();
        let every = list_hostnames(config);
        for (name, every) in &every {
            let mut names = self.names.borrow_mut();
            let new = || Rc::new(ResolvedName::new(self.fleet.get_or_create_hostname(name), *every, now));
            names.entry((*name).to_owned()).or_insert_with(new).every.set(*every);
        }
        self.start_due_lookups();
        let is_met =
            |name: &&str| self.names.borrow().get(*name).is_none_or(|name| name.known.last_outcome().is_some());
        let first_lookups = async {
            while !every.keys().all(&is_met) {
                self.ended.notified().await;
                self.start_due_lookups();
            }
        };
        let _ = timeout(FIRST_LOOKUP_TIMEOUT, first_lookups).await;
    }

    /// Stops resolving names that the active config does not use.
    pub fn forget_unused(&self, config: &Config) {
        let hostnames = list_hostnames(config);
        self.names.borrow_mut().retain(|name, _| hostnames.contains_key(name.as_str()));
    }

    /// Starts the lookups that are due.
    fn start_due_lookups(self: &Rc<HostnameUpdater>) {
        let now = Instant::now();
        let due = sort_due(self.names.borrow().values().filter(|name| name.is_due(now)));
        if !due.is_empty() && !self.resolver.borrow().1.is_current() {
            let mut resolver = self.resolver.borrow_mut();
            resolver.1 = Rc::new(HostResolver::new(&resolver.0));
        }
        for name in due.into_iter().take(LOOKUPS_MAX.saturating_sub(self.under_way.get())) {
            self.under_way.set(self.under_way.get() + 1);
            name.last_lookup.set(Some(now));
            name.is_under_way.set(true);
            name.known.begin_lookup();
            let resolver = self.resolver.borrow().1.clone();
            spawn_local(self.clone().resolve_name(name, resolver));
        }
    }

    async fn resolve_name(self: Rc<HostnameUpdater>, name: Rc<ResolvedName>, resolver: Rc<HostResolver>) {
        let before = name.known.addresses();
        let result = resolver.resolve(&name.known.name, &before).await;
        let outcome = match &result {
            Ok(lookup) => {
                if self.fleet.record_lookup(&name.known, &lookup.addresses) {
                    name.log_addresses(lookup);
                }
                LookupOutcome::Found
            }
            Err(outcome) => {
                name.log_failure(*outcome, before.len());
                *outcome
            }
        };
        name.known.count_lookup(outcome);
        name.schedule_next(result.ok().map(|lookup| lookup.ttl));
        name.is_under_way.set(false);
        self.under_way.set(self.under_way.get() - 1);
        self.ended.notify_waiters();
    }
}

/// Sorts due names: those never resolved first, then those that have waited longest, so that many failing names cannot
/// starve others.
fn sort_due<'n>(due: impl Iterator<Item = &'n Rc<ResolvedName>>) -> Vec<Rc<ResolvedName>> {
    let mut due: Vec<Rc<ResolvedName>> = due.cloned().collect();
    due.sort_by_key(|name| name.last_lookup.get());
    due
}

/// Returns the hostnames of a config, each with its longest interval between lookups.
fn list_hostnames(config: &Config) -> HashMap<&str, Duration> {
    let mut hostnames = HashMap::new();
    let of_upstream = |upstream: &'_ Arc<Upstream>| Duration::from_millis(upstream.resolve_every_ms);
    for upstream in &config.upstreams {
        for name in upstream.servers.iter().filter_map(|server| server.origin.hostname()) {
            let every = hostnames.entry(name).or_insert(Duration::MAX);
            *every = of_upstream(upstream).min(*every);
        }
    }
    hostnames
}

impl ResolvedName {
    fn new(known: Arc<HostnameState>, every: Duration, now: Instant) -> ResolvedName {
        ResolvedName {
            known,
            every: Cell::new(every),
            due: Cell::new(now),
            last_lookup: Cell::new(None),
            is_under_way: Cell::new(false),
            failures: Cell::new(0),
            address_log: LogSampler::default(),
            failure_log: LogSampler::default(),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let rests = self.last_lookup.get().is_some_and(|last_lookup| now < last_lookup + PAUSE_MIN);
        let latest = self.last_lookup.get().map_or(now, |last_lookup| last_lookup + self.every.get());
        !self.is_under_way.get() && !rests && (self.known.is_lookup_requested() || now >= self.due.get().min(latest))
    }

    /// Schedules the next lookup; after failures soon, then less and less often.
    fn schedule_next(&self, ttl: Option<Duration>) {
        let pause = match ttl {
            Some(ttl) => {
                self.failures.set(0);
                ttl
            }
            None => {
                let failures = self.failures.get().min(16);
                self.failures.set(failures + 1);
                PAUSE_MIN * (1 << failures)
            }
        };
        // Randomised, so that several gateways do not query at the same moment.
        let pause = pause.min(self.every.get()).mul_f64(1.0 - rand::random::<f64>() / 10.0);
        self.due.set(Instant::now() + pause.max(PAUSE_MIN));
    }

    fn log_addresses(&self, found: &LookupResult) {
        let Some(left_out) = self.address_log.take_turn() else { return };
        let addresses = &found.addresses;
        let list: Vec<String> = addresses.iter().take(SHOWN_MAX).map(show_address).collect();
        let more = addresses.len().saturating_sub(SHOWN_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (name, ttl, addresses) = (&self.known.name, found.ttl, list.join(", "));
        let left_out = Some(left_out).filter(|left_out| *left_out > 0);
        tracing::info!(name, ?ttl, left_out, "servers are at {addresses}{more}");
        if found.answer_count > ADDRESSES_MAX {
            tracing::warn!(name, "it has {} addresses: {ADDRESSES_MAX} of them are used", found.answer_count);
        }
    }

    fn log_failure(&self, outcome: LookupOutcome, kept: usize) {
        let Some(left_out) = self.failure_log.take_turn() else { return };
        let (name, reason) = (&self.known.name, outcome.label());
        let left_out = Some(left_out).filter(|left_out| *left_out > 0);
        let means = if kept > 0 { "the addresses found before stay in use" } else { "it has no address" };
        tracing::warn!(name, reason, left_out, "a name was not found: {means}");
    }
}

/// Returns an address for the log, with its port if DNS states it.
fn show_address(address: &NamedAddress) -> String {
    address.port.map_or_else(|| address.ip.to_string(), |port| SocketAddr::new(address.ip, port).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_names_are_sorted_by_their_last_lookup() {
        let now = Instant::now();
        let name = |name: &str, last_lookup_s: Option<u64>| {
            let followed = ResolvedName::new(Arc::new(HostnameState::new(name)), Duration::MAX, now);
            followed.last_lookup.set(last_lookup_s.map(|seconds| now + Duration::from_secs(seconds)));
            Rc::new(followed)
        };
        let due = [name("late", Some(9)), name("early", Some(1)), name("new", None), name("later", Some(10))];
        let turns: Vec<String> = sort_due(due.iter()).iter().map(|name| name.known.name.clone()).collect();
        assert_eq!(turns, ["new", "early", "late", "later"]);
    }
}
