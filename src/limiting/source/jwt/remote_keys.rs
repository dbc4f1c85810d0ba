//! The keys of an issuer as requests see them: the last ones that were fetched, until they are too old. `crate::jwks`
//! fetches them; a request never does, but it can ask for a refresh, at a bounded rate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use jsonwebtoken::Algorithm;
use tokio::sync::{Notify, watch};

use crate::limiting::source::jwt::jwk::KeySet;

/// Least time between the end of a refresh and the next one that a token with an unknown key causes. Clients choose
/// `kid`, so this is the most load that they can cause at the issuer.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Keys are refreshed this often within the time for which they serve, whatever lifetime their response states.
const REFRESHES_BEFORE_STALE: u32 = 2;

/// The place at which an issuer publishes its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssuerLocation {
    /// The URL of an OpenID issuer, whose discovery document names the key set.
    Issuer(String),
    /// The URL of a JSON Web Key Set.
    Jwks(String),
}

/// The keys of a `[jwt]` section with `issuer` or the URL of `jwks`.
#[derive(Debug)]
pub struct RemoteKeys {
    pub settings: RemoteKeySettings,
    state: ArcSwap<KeyState>,
}

/// How keys are fetched, and how long they serve.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteKeySettings {
    /// The section: `jwt`, or `jwt.NAME`.
    pub name: String,
    pub location: IssuerLocation,
    /// CAs that the issuer's own certificate is verified with, in PEM. `None`: the system's.
    pub ca: Option<String>,
    /// Accepted algorithms. Keys of others are skipped.
    pub algorithms: Vec<Algorithm>,
    /// How long keys serve after they were fetched.
    pub max_stale: Duration,
}

/// State that a section shares with the same section of an earlier config.
#[derive(Debug)]
struct KeyState {
    published: ArcSwapOption<PublishedKeys>,
    refresh: Mutex<RefreshState>,
    /// Wakes the task that fetches.
    wanted: Notify,
    /// Counts refreshes that have ended.
    ended: watch::Sender<u64>,
}

/// Keys that were fetched.
#[derive(Debug)]
pub struct PublishedKeys {
    pub set: Arc<KeySet>,
    /// Unix time in seconds.
    pub fetched_s: i64,
    /// When they are to be fetched again.
    pub due: Instant,
}

#[derive(Debug)]
struct RefreshState {
    /// A refresh runs or is about to.
    is_pending: bool,
    ended: Option<Instant>,
    /// Why the last one failed.
    fault: Option<String>,
}

/// The state of the keys, for operators.
pub struct KeyStatus {
    pub keys: usize,
    /// When the keys were fetched, in seconds of Unix time.
    pub fetched_s: Option<i64>,
    /// There are no keys, or they are older than `max_stale`.
    pub is_unusable: bool,
    /// Why the last refresh failed.
    pub fault: Option<String>,
}

impl IssuerLocation {
    pub fn url(&self) -> &str {
        match self {
            IssuerLocation::Issuer(url) | IssuerLocation::Jwks(url) => url,
        }
    }
}

impl RemoteKeys {
    pub fn new(settings: RemoteKeySettings) -> RemoteKeys {
        // The first refresh is pending from the start, so that requests wait for it.
        let refresh = RefreshState { is_pending: true, ended: None, fault: None };
        RemoteKeys { settings, state: ArcSwap::from_pointee(KeyState::new(None, refresh)) }
    }

    /// Takes over the keys of an earlier config that come from the same place, so that a reload loses no key while the
    /// issuer is down. A renamed section keeps them, too. A section whose algorithms have changed keeps the keys that
    /// fit the new ones.
    pub fn adopt(&self, earlier: &[Arc<RemoteKeys>]) {
        let settings = |keys: &RemoteKeys| (keys.settings.name.clone(), keys.settings.algorithms.clone());
        let from_same_place = || earlier.iter().filter(|keys| keys.settings.location == self.settings.location);
        if let Some(unchanged) = from_same_place().find(|keys| settings(keys) == settings(self)) {
            // A refresh that ends after the reload is seen too.
            return self.state.store(unchanged.state.load_full());
        }
        let latest = from_same_place().filter_map(|keys| keys.published()).max_by_key(|published| published.fetched_s);
        let Some(PublishedKeys { set, fetched_s, due }) = latest.as_deref() else { return };
        if let Ok(set) = set.read_again(&self.settings.algorithms) {
            let published = PublishedKeys { set: Arc::new(set), fetched_s: *fetched_s, due: *due };
            let refresh = RefreshState { is_pending: false, ended: None, fault: None };
            self.state.store(Arc::new(KeyState::new(Some(Arc::new(published)), refresh)));
        }
    }

    /// Returns the keys that are valid at `now_s`.
    pub fn current(&self, now_s: i64) -> Option<Arc<KeySet>> {
        let published = self.published()?;
        (!self.is_stale(&published, now_s)).then(|| published.set.clone())
    }

    /// Returns the keys that were fetched last, even if they are too old.
    pub fn published(&self) -> Option<Arc<PublishedKeys>> {
        self.state.load().published.load_full()
    }

    fn is_stale(&self, published: &PublishedKeys, now_s: i64) -> bool {
        let age_s = now_s.saturating_sub(published.fetched_s);
        u64::try_from(age_s).is_ok_and(|age_s| age_s > self.settings.max_stale.as_secs())
    }

    /// Requests a refresh, and returns what reports its end. Returns `None` if the last one ended too recently.
    pub fn request_refresh(&self, now: Instant) -> Option<watch::Receiver<u64>> {
        let state = self.state.load();
        let mut refresh = state.lock();
        let end = state.ended.subscribe();
        if refresh.is_pending {
            return Some(end);
        }
        if refresh.ended.is_some_and(|end| now.saturating_duration_since(end) < REFRESH_INTERVAL) {
            return None;
        }
        refresh.is_pending = true;
        state.wanted.notify_one();
        Some(end)
    }

    /// Returns whether a refresh runs or is about to.
    pub fn is_refresh_pending(&self) -> bool {
        self.state.load().lock().is_pending
    }

    /// Returns when a request has asked for a refresh.
    pub async fn wait_until_wanted(&self) {
        let state = self.state.load_full();
        state.wanted.notified().await;
    }

    pub fn begin_refresh(&self) {
        self.state.load().lock().is_pending = true;
    }

    /// Publishes the result of a refresh. `lifetime`: when the keys are to be fetched again.
    pub fn end_refresh(&self, result: Result<KeySet, String>, lifetime: Duration, (now, now_s): (Instant, i64)) {
        let state = self.state.load();
        let fault = match result {
            Ok(set) => {
                let lifetime = lifetime.min(self.settings.max_stale / REFRESHES_BEFORE_STALE);
                let published = PublishedKeys { set: Arc::new(set), fetched_s: now_s, due: now + lifetime };
                state.published.store(Some(Arc::new(published)));
                None
            }
            Err(fault) => Some(fault),
        };
        *state.lock() = RefreshState { is_pending: false, ended: Some(now), fault };
        state.ended.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns what is known of the keys at `now_s`.
    pub fn status(&self, now_s: i64) -> KeyStatus {
        let (published, fault) = (self.published(), self.state.load().lock().fault.clone());
        KeyStatus {
            keys: published.as_ref().map_or(0, |published| published.set.len()),
            fetched_s: published.as_ref().map(|published| published.fetched_s),
            is_unusable: published.is_none_or(|published| self.is_stale(&published, now_s)),
            fault,
        }
    }
}

impl KeyState {
    fn new(published: Option<Arc<PublishedKeys>>, refresh: RefreshState) -> KeyState {
        KeyState {
            published: ArcSwapOption::new(published),
            refresh: Mutex::new(refresh),
            wanted: Notify::new(),
            ended: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RefreshState> {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &[u8] = br#"{"keys":[{"kty":"oct","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}]}"#;

    fn keys() -> RemoteKeys {
        RemoteKeys::new(RemoteKeySettings {
            name: "jwt".to_owned(),
            location: IssuerLocation::Issuer("https://id.test".to_owned()),
            ca: None,
            algorithms: vec![Algorithm::HS256],
            max_stale: Duration::from_secs(3600),
        })
    }

    fn set() -> KeySet {
        KeySet::from_jwks(SET, &[Algorithm::HS256]).unwrap()
    }

    #[test]
    fn clients_cause_at_most_one_refresh_per_interval() {
        let (keys, start) = (keys(), Instant::now());
        assert!(keys.request_refresh(start).is_some(), "the first refresh is pending");
        keys.end_refresh(Ok(set()), Duration::from_secs(60), (start, 0));
        let mut refreshes = 0;
        for tenth in 0..1000 {
            let now = start + Duration::from_millis(100) * tenth;
            if keys.request_refresh(now).is_some() {
                // While it runs, all wait for it.
                assert!(keys.request_refresh(now).is_some());
                refreshes += 1;
                keys.end_refresh(Err("down".to_owned()), Duration::ZERO, (now, 0));
            }
        }
        assert_eq!(refreshes, 19, "in 100 seconds");
    }

    #[test]
    fn the_last_keys_serve_up_to_their_age() {
        let (keys, now) = (keys(), Instant::now());
        assert!(keys.current(0).is_none() && keys.status(0).is_unusable);
        keys.end_refresh(Ok(set()), Duration::from_secs(9999), (now, 1000));
        assert_eq!(keys.published().unwrap().due, now + Duration::from_secs(1800));
        keys.end_refresh(Err("down".to_owned()), Duration::ZERO, (now, 2000));
        // A clock that went back makes no keys too old.
        for (now_s, is_served) in [(0, true), (1000, true), (4600, true), (4601, false)] {
            assert_eq!(keys.current(now_s).is_some(), is_served, "{now_s}");
            assert_eq!(keys.status(now_s).is_unusable, !is_served);
        }
        assert_eq!(keys.status(4601).fault.as_deref(), Some("down"));
    }

    #[test]
    fn a_reload_keeps_the_keys_of_the_same_issuer() {
        let old = Arc::new(keys());
        let with = |change: &dyn Fn(&mut RemoteKeySettings)| {
            let mut settings = old.settings.clone();
            change(&mut settings);
            let new = RemoteKeys::new(settings);
            new.adopt(std::slice::from_ref(&old));
            new
        };
        let same = with(&|_| {});
        // A refresh that ends after the reload is seen too.
        old.end_refresh(Ok(set()), Duration::ZERO, (Instant::now(), 1000));
        assert!(same.current(1000).is_some());
        let renamed = with(&|settings| settings.name = "jwt.other".to_owned());
        let wider = with(&|settings| settings.algorithms.push(Algorithm::RS256));
        for kept in [renamed, wider] {
            assert_eq!(kept.published().map(|published| published.fetched_s), Some(1000), "they become no younger");
            assert!(kept.current(1000).is_some() && kept.current(4601).is_none() && !kept.is_refresh_pending());
        }
        let elsewhere = with(&|settings| settings.location = IssuerLocation::Issuer("https://other.test".to_owned()));
        assert!(elsewhere.current(1000).is_none());
        let asymmetric = with(&|settings| settings.algorithms = vec![Algorithm::RS256]);
        assert!(asymmetric.current(1000).is_none(), "no key fits");
        assert!(asymmetric.is_refresh_pending());
    }
}
