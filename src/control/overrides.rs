//! Follows the live overrides: hashes in Redis that operators edit, `PREFIX:overrides:LIMIT`, one
//! field for each key. Every gateway reads them on its own. Started by the control thread; the
//! reloader has the limits of a new config dressed before they are in force.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::link::Link;
use crate::config::Config;
use crate::limit::limits::Limit;
use crate::limit::overrides::{ENTRIES_MAX, Raw};
use crate::limit::store::Store;
use crate::limit::store::redis::Redis;
use crate::limit::store::settings::StoreKind;
use crate::snapshot::Current;

#[derive(Default)]
pub struct Live(RefCell<Known>);

#[derive(Default)]
struct Known {
    /// What the hashes held when they were last without mistake, by limit.
    good: BTreeMap<String, Raw>,
    /// The mistakes in force, by limit: each is logged once.
    logged: BTreeMap<String, String>,
}

/// What one look found: hashes or what is wrong with them, by limit. Where a server gave no answer
/// nothing is found.
#[derive(Default)]
struct Look {
    found: BTreeMap<String, Result<Raw, String>>,
    failure: Option<String>,
}

const PERIOD: Duration = Duration::from_secs(2);
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Questions asked at once, so that other clients of Redis get their turn.
const CHUNK: usize = 500;

impl Live {
    /// Gives the limits of a config what is known, which without Redis is nothing. What does not fit its limit any more is left
    /// out; the next look reports it.
    pub fn dress(&self, config: &Config) {
        let good = &mut self.0.borrow_mut().good;
        if config.store.kind == StoreKind::Memory {
            good.clear();
        }
        for limit in config.limits.iter() {
            let fits = |raw| limit.overrides.set_live(&limit.key, raw).is_ok();
            if good.get(&limit.name).is_some_and(|raw| !fits(raw)) {
                good.remove(&limit.name);
            }
        }
    }

    /// The first look at a store, before any request is decided there.
    pub async fn prime(&self, config: &Config, store: &Store) {
        if let Store::Redis(redis) = store {
            let look = look(redis, config).await;
            self.take(config, look.found);
        }
    }

    /// For ever.
    pub async fn follow(self: Rc<Live>, current: Current, link: Rc<Link>) {
        let mut failing = false;
        let mut beats = interval(PERIOD);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let snapshot = current.load_full();
            let Store::Redis(redis) = link.store() else {
                self.0.borrow_mut().logged.clear();
                failing = false;
                continue;
            };
            let Look { found, failure } = look(&redis, &snapshot.config).await;
            // A reload may have come between; whoever is new waits for the next look.
            let now = current.load();
            if now.config.store == snapshot.config.store {
                self.take(&now.config, found);
            }
            if let Some(failure) = &failure
                && !failing
            {
                tracing::warn!("cannot read the overrides in Redis, those known stay in force: {failure}");
            }
            failing = failure.is_some();
        }
    }

    fn take(&self, config: &Config, mut found: BTreeMap<String, Result<Raw, String>>) {
        let Known { good, logged } = &mut *self.0.borrow_mut();
        for limit in config.limits.iter() {
            let Some(found) = found.remove(&limit.name) else { continue };
            if found.as_ref().is_ok_and(|raw| good.get(&limit.name).map_or(raw.is_empty(), |known| raw == known)) {
                logged.remove(&limit.name);
                continue;
            }
            match apply(limit, found) {
                Ok(raw) => {
                    tracing::info!(limit = limit.name, entries = raw.len(), "overrides in Redis are in force");
                    good.insert(limit.name.clone(), raw);
                    logged.remove(&limit.name);
                }
                Err(mistake) if logged.get(&limit.name) == Some(&mistake) => {}
                Err(mistake) => {
                    tracing::error!(limit = limit.name, "overrides in Redis are not taken, the old stay: {mistake}");
                    logged.insert(limit.name.clone(), mistake);
                }
            }
        }
    }
}

fn apply(limit: &Limit, found: Result<Raw, String>) -> Result<Raw, String> {
    let raw = found?;
    limit.overrides.set_live(&limit.key, &raw)?;
    Ok(raw)
}

/// Each hash is read where it is now, which on a cluster is one place for each.
async fn look(redis: &Redis, config: &Config) -> Look {
    let mut look = Look::default();
    for limits in config.limits.chunks(CHUNK) {
        let named =
            limits.iter().map(|limit| (&limit.name, format!("{}:overrides:{}", config.store.prefix, limit.name)));
        let sized = named.map(async |(name, key)| (name, ask(redis, "HLEN", &key).await, key));
        // One at a time: together they could be large.
        for (name, size, key) in join_all(sized).await {
            match hash(redis, &key, size).await {
                Ok(found) => drop(look.found.insert(name.clone(), found)),
                Err(error) => look.failure = Some(error.to_string()),
            }
        }
    }
    look
}

/// The hash under `key`, of `size`, or what is wrong with it; the outer error is one of the server.
async fn hash(redis: &Redis, key: &str, size: RedisResult<Value>) -> RedisResult<Result<Raw, String>> {
    let malformed = || failure("a reply of the wrong form");
    match size {
        Ok(Value::Int(0)) => Ok(Ok(Raw::new())),
        // One that is too large is not read.
        Ok(Value::Int(size)) if usize::try_from(size).is_ok_and(|size| size > ENTRIES_MAX) => {
            Ok(Err(format!("{key} has {size} fields, {ENTRIES_MAX} are allowed")))
        }
        Ok(Value::Int(_)) => fields(ask(redis, "HGETALL", key).await?).map(Ok).ok_or_else(malformed),
        Ok(_) => Err(malformed()),
        // Another kind of value under this name.
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(Err(format!("{key} is not a hash"))),
        Err(error) => Err(error),
    }
}

async fn ask(redis: &Redis, command: &str, key: &str) -> RedisResult<Value> {
    let mut cmd = redis::cmd(command);
    timeout(READ_TIMEOUT, redis.send(key, cmd.arg(key))).await.unwrap_or_else(|_| Err(failure("no answer in time")))
}

fn failure(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Client, what))
}

/// Fields and values of an HGETALL.
fn fields(reply: Value) -> Option<Raw> {
    let bytes = |value| match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    };
    let Value::Array(items) = reply else {
        let Value::Map(pairs) = reply else { return None };
        return pairs.into_iter().map(|(field, value)| Some((bytes(field)?, bytes(value)?))).collect();
    };
    let mut raw = Raw::new();
    let mut items = items.into_iter();
    while let Some(field) = items.next() {
        raw.insert(bytes(field)?, bytes(items.next()?)?);
    }
    Some(raw)
}
