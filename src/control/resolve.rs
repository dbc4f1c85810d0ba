//! Looks up the names of servers, again and again: when their time to live ends, within bounds, and as soon as
//! none of their addresses accepts connections. Requests take what was found last, and wait for none of
//! this. Run by the control thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::lookup::{Finder, Found};
use crate::config::Config;
use crate::sampled::Sampled;
use crate::snapshot::Fleet;
use crate::upstream::Upstream;
use crate::upstream::names::{ADDRESSES_MAX, KnownName, LookupOutcome};

/// How soon it is noticed that a lookup is due.
const GLANCE: Duration = Duration::from_millis(100);
/// A name is looked up no more often than this, whatever its time to live, and whoever asks.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Lookups under way at once; more wait.
const AT_ONCE: usize = 16;
/// How long a start or a reload waits for names that it has not met.
const FIRST: Duration = Duration::from_secs(1);
/// Addresses shown in a line of the log.
const SHOWN: usize = 8;

pub struct Resolving {
    fleet: Fleet,
    names: RefCell<HashMap<String, Rc<FollowedName>>>,
    finder: RefCell<(Vec<SocketAddr>, Rc<Finder>)>,
    under_way: Cell<usize>,
    /// A lookup has ended.
    ended: Notify,
}

struct FollowedName {
    known: Arc<KnownName>,
    every: Cell<Duration>,
    /// When it is looked up next, but for `PAUSE_MIN` after the last time.
    due: Cell<Instant>,
    begun: Cell<Option<Instant>>,
    is_under_way: Cell<bool>,
    failures: Cell<u32>,
    moves: Sampled,
    troubles: Sampled,
}

impl Resolving {
    pub fn new(fleet: &Fleet, config: &Config) -> Rc<Resolving> {
        let servers = config.server.resolver.clone();
        let finder = Rc::new(Finder::new(&servers));
        Rc::new(Resolving {
            fleet: fleet.clone(),
            names: RefCell::default(),
            finder: RefCell::new((servers, finder)),
            under_way: Cell::new(0),
            ended: Notify::new(),
        })
    }

    /// For ever.
    pub async fn follow(self: Rc<Resolving>) {
        let mut glances = interval(GLANCE);
        glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            glances.tick().await;
            self.look();
        }
    }

    /// Looks up the names of a config that is about to be in force. Those that nobody has met are waited for, a
    /// while.
    pub async fn reach(self: &Rc<Resolving>, config: &Config) {
        self.ask(&config.server.resolver);
        let now = Instant::now();
        let every = wanted(config);
        for (name, every) in &every {
            let mut names = self.names.borrow_mut();
            let new = || Rc::new(FollowedName::new(self.fleet.name(name), *every, now));
            names.entry((*name).to_owned()).or_insert_with(new).every.set(*every);
        }
        self.look();
        let is_met = |name: &&str| self.names.borrow().get(*name).is_none_or(|name| name.known.last().is_some());
        let met = async {
            while !every.keys().all(&is_met) {
                self.ended.notified().await;
                self.look();
            }
        };
        let _ = timeout(FIRST, met).await;
    }

    /// This config is in force: other names are followed no longer.
    pub fn settle(&self, config: &Config) {
        let wanted = wanted(config);
        self.names.borrow_mut().retain(|name, _| wanted.contains_key(name.as_str()));
    }

    /// From now on these servers are asked, or those of the system.
    fn ask(&self, servers: &[SocketAddr]) {
        if self.finder.borrow().0 != servers {
            *self.finder.borrow_mut() = (servers.to_vec(), Rc::new(Finder::new(servers)));
            self.names.borrow().values().for_each(|name| name.due.set(Instant::now()));
        }
    }

    /// Begins the lookups that are due.
    fn look(self: &Rc<Resolving>) {
        let now = Instant::now();
        let due = in_turn(self.names.borrow().values().filter(|name| name.is_due(now)));
        if !due.is_empty() && !self.finder.borrow().1.is_current() {
            let mut finder = self.finder.borrow_mut();
            finder.1 = Rc::new(Finder::new(&finder.0));
        }
        for name in due.into_iter().take(AT_ONCE.saturating_sub(self.under_way.get())) {
            self.under_way.set(self.under_way.get() + 1);
            name.begun.set(Some(now));
            name.is_under_way.set(true);
            name.known.begin();
            let finder = self.finder.borrow().1.clone();
            spawn_local(self.clone().find(name, finder));
        }
    }

    async fn find(self: Rc<Resolving>, name: Rc<FollowedName>, finder: Rc<Finder>) {
        let before = name.known.addresses();
        let found = finder.find(&name.known.name, &before).await;
        let outcome = match &found {
            Ok(found) => {
                if self.fleet.found(&name.known, &found.addresses) {
                    name.tell(found);
                }
                LookupOutcome::Found
            }
            Err(outcome) => {
                name.tell_trouble(*outcome, before.len());
                *outcome
            }
        };
        name.known.count(outcome);
        name.schedule(found.ok().map(|found| found.ttl));
        name.is_under_way.set(false);
        self.under_way.set(self.under_way.get() - 1);
        self.ended.notify_waiters();
    }
}

/// Those that were never looked up first, then those that have waited longest: many that nobody answers for would
/// else keep others from ever being asked for.
fn in_turn<'n>(due: impl Iterator<Item = &'n Rc<FollowedName>>) -> Vec<Rc<FollowedName>> {
    let mut due: Vec<Rc<FollowedName>> = due.cloned().collect();
    due.sort_by_key(|name| name.begun.get());
    due
}

/// The names of a config's servers, each with the time after which it is looked up at the latest.
fn wanted(config: &Config) -> HashMap<&str, Duration> {
    let mut wanted = HashMap::new();
    let of_upstream = |upstream: &'_ Arc<Upstream>| Duration::from_millis(upstream.resolve_every_ms);
    for upstream in &config.upstreams {
        for name in upstream.servers.iter().filter_map(|server| server.origin.host_name()) {
            let every = wanted.entry(name).or_insert(Duration::MAX);
            *every = of_upstream(upstream).min(*every);
        }
    }
    wanted
}

impl FollowedName {
    fn new(known: Arc<KnownName>, every: Duration, now: Instant) -> FollowedName {
        FollowedName {
            known,
            every: Cell::new(every),
            due: Cell::new(now),
            begun: Cell::new(None),
            is_under_way: Cell::new(false),
            failures: Cell::new(0),
            moves: Sampled::default(),
            troubles: Sampled::default(),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let rests = self.begun.get().is_some_and(|begun| now < begun + PAUSE_MIN);
        let latest = self.begun.get().map_or(now, |begun| begun + self.every.get());
        !self.is_under_way.get() && !rests && (self.known.is_urged() || now >= self.due.get().min(latest))
    }

    /// A failed lookup is repeated soon, and then less often.
    fn schedule(&self, ttl: Option<Duration>) {
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
        // A little less, so that gateways do not ask all at once.
        let pause = pause.min(self.every.get()).mul_f64(1.0 - rand::random::<f64>() / 10.0);
        self.due.set(Instant::now() + pause.max(PAUSE_MIN));
    }

    fn tell(&self, found: &Found) {
        let Some(left_out) = self.moves.due() else { return };
        let addresses = &found.addresses;
        let shown: Vec<String> = addresses.iter().take(SHOWN).map(IpAddr::to_string).collect();
        let more = addresses.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (name, ttl, addresses) = (&self.known.name, found.ttl, shown.join(", "));
        let left_out = Some(left_out).filter(|left_out| *left_out > 0);
        tracing::info!(name, ?ttl, left_out, "servers are at {addresses}{more}");
        if found.answered > ADDRESSES_MAX {
            tracing::warn!(name, "it has {} addresses: {ADDRESSES_MAX} of them are used", found.answered);
        }
    }

    fn tell_trouble(&self, outcome: LookupOutcome, kept: usize) {
        let Some(left_out) = self.troubles.due() else { return };
        let (name, reason) = (&self.known.name, outcome.label());
        let left_out = Some(left_out).filter(|left_out| *left_out > 0);
        let means = if kept > 0 { "the addresses found before stay in use" } else { "it has no address" };
        tracing::warn!(name, reason, left_out, "a name was not found: {means}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_asked_for_last_comes_last_and_who_never_was_first() {
        let now = Instant::now();
        let name = |name: &str, begun_s: Option<u64>| {
            let followed = FollowedName::new(Arc::new(KnownName::new(name)), Duration::MAX, now);
            followed.begun.set(begun_s.map(|seconds| now + Duration::from_secs(seconds)));
            Rc::new(followed)
        };
        let due = [name("late", Some(9)), name("early", Some(1)), name("new", None), name("later", Some(10))];
        let turns: Vec<String> = in_turn(due.iter()).iter().map(|name| name.known.name.clone()).collect();
        assert_eq!(turns, ["new", "early", "late", "later"]);
    }
}
