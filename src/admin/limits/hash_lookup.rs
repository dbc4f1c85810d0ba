//! Finds the keys that hashes from a log stand for. The store contains the keys themselves, so this reads its state
//! keys and hashes them until all are compared. Called by `mod.rs` before an operation runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::admin::limits::requests::NamedValues;
use crate::admin::limits::store_check::store_unavailable;
use crate::admin::problem::Problem;
use crate::config::Config;
use crate::limiting::Limiter;
use crate::limiting::limit::Limit;
use crate::limiting::shown_key::{KeyHash, KeyHasher};
use crate::limiting::state_key::split_state_key;

/// Looks up hashes, one call at a time: each reads all keys of the store.
pub struct HashLookup(Semaphore);

impl Default for HashLookup {
    fn default() -> HashLookup {
        HashLookup(Semaphore::new(1))
    }
}

/// How long a call waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of keys that are remembered per hash: two are too many already.
const MATCHES_MAX: usize = 2;

/// Values by the name of a part and the hash: what state keys contain after the name.
type FoundValues = HashMap<(String, KeyHash), Vec<String>>;

impl HashLookup {
    /// Sets the values of all hashes in `values_of_requests`, one for each limit of a request.
    ///
    /// # Errors
    /// No key has such a hash, or two have; the store did not respond; or too many calls are waiting.
    pub async fn find_values(
        &self,
        limiter: &Limiter,
        config: &Config,
        values_of_requests: Vec<&mut NamedValues>,
    ) -> Result<(), Problem> {
        let wanted = values_of_requests.iter().flat_map(|values| &values.hashed);
        let mut found: FoundValues = wanted.map(|hashed| (hashed.clone(), Vec::new())).collect();
        if found.is_empty() {
            return Ok(());
        }
        let hasher = &config.admin.key_display.hasher;
        let turn = timeout(TURN_TIMEOUT, self.0.acquire()).await;
        let busy = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "other hashes are being looked up; try again");
        let _turn = turn.ok().and_then(Result::ok).ok_or_else(busy)?;
        search_store(limiter, config, hasher, &mut found).await?;
        for values in values_of_requests {
            for (name, hash) in &values.hashed {
                let key = (name.clone(), *hash);
                let state = match found.get(&key).map(Vec::as_slice) {
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

/// Compares the hashes in `found` with all keys of the store, and adds the values that match.
async fn search_store(
    limiter: &Limiter,
    config: &Config,
    hasher: &KeyHasher,
    found: &mut FoundValues,
) -> Result<(), Problem> {
    let names: Vec<String> = found.keys().map(|(name, _)| name.clone()).collect();
    let uses_name = |limit: &&Arc<Limit>| limit.key.0.iter().any(|part| names.contains(&part.state_name()));
    let limits: Vec<&Arc<Limit>> = config.limits.iter().filter(uses_name).collect();
    // With several names, the store cannot filter by name.
    let part = names.first().filter(|name| names.iter().all(|other| other == *name)).map_or("", String::as_str);
    let mut compare = |state_key: &str| {
        for part in split_state_key(state_key) {
            let Some(mark) = part.find(['=', '#']) else { continue };
            let (name, value) = part.split_at(mark);
            if !names.iter().any(|wanted| wanted == name) {
                continue;
            }
            if let Some(matches) = found.get_mut(&(name.to_owned(), hasher.hash(part)))
                && matches.len() < MATCHES_MAX
                && matches.iter().all(|known| known != value)
            {
                matches.push(value.to_owned());
            }
        }
    };
    let visited = limiter.visit_keys(&limits, part, &mut compare).await;
    visited.map_err(|kind| store_unavailable(kind, ": the hash could not be looked up; give the value itself"))
}

fn describe_unknown(name: &str, hash: KeyHash, hasher: &KeyHasher) -> Problem {
    let other = match hasher.is_lasting {
        true => "or the hash was made with another `keys_secret`",
        false => "or the hash comes from another gateway or from before a restart: set `keys_secret` in [admin]",
    };
    let detail = format!(
        "the store has no key whose {name} has the hash {hash}: all that it used may have expired, {other}. \
         The value itself works in any case"
    );
    Problem::new(StatusCode::NOT_FOUND, detail)
}
