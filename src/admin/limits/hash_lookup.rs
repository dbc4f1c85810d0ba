//! Finds the keys that hashes from a log stand for. The store contains the keys themselves, so this reads its state
//! keys and hashes them until all are compared. Of tenants it contains only numbers: they are among the names that the
//! config lists, and those of recent decisions. Called by `mod.rs` before an operation runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::admin::cached::TimeBudget;
use crate::admin::limits::requests::NamedValues;
use crate::admin::limits::store_check::store_unavailable;
use crate::admin::problem::Problem;
use crate::config::Config;
use crate::limiting::Limiter;
use crate::limiting::key::Key;
use crate::limiting::key::shown_key::{KeyHash, KeyHasher};
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::limit::Limit;
use crate::limiting::usage::history::UsageMonitor;

/// Looks up hashes, one call at a time: each reads all keys of the store.
pub struct HashLookup {
    turns: Semaphore,
    /// Time spent on the keys of recent decisions.
    effort: TimeBudget,
}

impl Default for HashLookup {
    fn default() -> HashLookup {
        HashLookup { turns: Semaphore::new(1), effort: TimeBudget::default() }
    }
}

/// How long a call waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of keys that are remembered per hash: two are too many already.
const MATCHES_MAX: usize = 2;

/// Values by the name of a part and the hash: what state keys contain after the name.
type FoundValues = HashMap<(String, KeyHash), Vec<String>>;

/// Hashes keys and keeps the values that are wanted.
struct KeyComparison<'a> {
    hasher: &'a KeyHasher,
    /// The names of the wanted parts, as in state keys.
    names: Vec<String>,
    found: FoundValues,
}

impl KeyComparison<'_> {
    /// Compares the parts of a key, such as `ip=::1,path=/a`.
    fn compare(&mut self, parts: &str) {
        for part in parts.split(',') {
            let Some(mark) = part.find(['=', '#']) else { continue };
            let (name, value) = part.split_at(mark);
            if !self.names.iter().any(|wanted| wanted == name) {
                continue;
            }
            if let Some(matches) = self.found.get_mut(&(name.to_owned(), self.hasher.hash(part)))
                && matches.len() < MATCHES_MAX
                && matches.iter().all(|known| known != value)
            {
                matches.push(value.to_owned());
            }
        }
    }

    fn wants_any(&self, key: &Key) -> bool {
        key.0.iter().any(|part| self.names.contains(&part.state_name()))
    }
}

impl HashLookup {
    /// Sets the values of all hashes in `values_of_requests`, one for each limit of a request.
    ///
    /// # Errors
    /// No key has such a hash, or two have; the store did not respond; or too many calls are waiting.
    pub async fn find_values(
        &self,
        limiter: &Limiter,
        (config, usage): (&Config, &UsageMonitor),
        values_of_requests: Vec<&mut NamedValues>,
    ) -> Result<(), Problem> {
        let hashes = values_of_requests.iter().flat_map(|values| &values.hashed);
        let states: FoundValues = hashes.map(|hashed| (hashed.clone(), Vec::new())).collect();
        if states.is_empty() {
            return Ok(());
        }
        let hasher = &config.admin.key_display.hasher;
        let names = states.keys().map(|(name, _)| name.clone()).collect();
        let mut comparison = KeyComparison { hasher, names, found: states };
        let turn = timeout(TURN_TIMEOUT, self.turns.acquire()).await;
        let busy = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "other hashes are being looked up; try again");
        let _turn = turn.ok().and_then(Result::ok).ok_or_else(busy)?;
        search_store(limiter, config, &mut comparison).await?;
        let search = self.effort.run_within(|| search_tenants(config, usage, &mut comparison));
        search.ok_or_else(busy)?;
        let states = comparison.found;
        for values in values_of_requests {
            for (name, hash) in &values.hashed {
                let key = (name.clone(), *hash);
                let state = match states.get(&key).map(Vec::as_slice) {
                    Some([state]) => state.clone(),
                    Some([]) | None => return Err(describe_unknown(name, *hash, hasher)),
                    Some(_) => {
                        let detail = format!("two values of {name} have the hash {hash}; give the value itself");
                        return Err(Problem::new(StatusCode::CONFLICT, detail));
                    }
                };
                values.found.push((name.clone(), state));
            }
        }
        Ok(())
    }
}

/// Compares all keys of the store.
async fn search_store(limiter: &Limiter, config: &Config, comparison: &mut KeyComparison<'_>) -> Result<(), Problem> {
    let limits: Vec<&Arc<Limit>> = config.limits.iter().filter(|limit| comparison.wants_any(&limit.key)).collect();
    if limits.is_empty() {
        return Ok(());
    }
    // With several names, the store cannot filter by name.
    let names = &comparison.names;
    let part = names.first().filter(|name| names.iter().all(|other| other == *name)).cloned().unwrap_or_default();
    let mut compare = |state_key: &str| comparison.compare(state_key_parts(state_key));
    let visit = limiter.visit_keys(&limits, &part, &mut compare).await;
    visit.map_err(|kind| store_unavailable(kind, ": the hash could not be looked up; give the value itself"))
}

/// Compares the tenants that the config lists, and those of recent decisions.
fn search_tenants(config: &Config, usage: &UsageMonitor, comparison: &mut KeyComparison<'_>) {
    let mut ids = Vec::new();
    for limit in config.limits.iter() {
        let Some(fair) = limit.fair.as_ref().filter(|fair| comparison.wants_any(&fair.key)) else { continue };
        fair.listed_tenants().for_each(|(name, _)| comparison.compare(&name));
        ids.push(limit.store_ref.id);
    }
    if ids.is_empty() {
        return;
    }
    let history = usage.collect();
    ids.iter().for_each(|id| history.visit_keys(*id, |parts| comparison.compare(parts)));
    for check in usage.collect_refusals().newest().flat_map(|refusal| &refusal.checks) {
        if ids.contains(&check.limit.store_ref.id) {
            comparison.compare(state_key_parts(&check.key));
        }
    }
}

fn describe_unknown(name: &str, hash: KeyHash, hasher: &KeyHasher) -> Problem {
    let other = match hasher.is_lasting {
        true => "or the hash was made with another `keys_secret`",
        false => "or the hash comes from another gateway or from before a restart: set `keys_secret` in [admin]",
    };
    let detail = format!(
        "the store has no key whose {name} has the hash {hash}: all that it used may have expired, {other}. A tenant is \
         found if `weights` lists it, or among the decisions of the last minutes. The value itself works in any case"
    );
    Problem::new(StatusCode::NOT_FOUND, detail)
}
