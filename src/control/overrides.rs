//! Follows the live overrides: hashes in Redis that operators edit, `PREFIX:overrides:LIMIT`, one
//! field for each key. Every gateway reads them on its own. Started by the control thread; the
//! reloader has the limits of a new config dressed before they are in force.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, RedisResult, Value};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::config::Config;
use crate::limit::overrides::Raw;
use crate::limit::rule::Limit;
use crate::limit::store::settings::{StoreKind, StoreSettings};
use crate::snapshot::Current;

/// What the hashes held when they were last without mistake, by limit.
#[derive(Default)]
pub struct Live {
    good: Mutex<BTreeMap<String, Raw>>,
}

const PERIOD: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// A hash with more fields is not read.
const ENTRIES_MAX: i64 = 10_000;
/// Commands of one round trip, so that other clients of Redis get their turn.
const CHUNK: usize = 500;

/// The task's memory from one look to the next.
#[derive(Default)]
struct Follower {
    link: Option<(StoreSettings, MultiplexedConnection)>,
    /// The mistakes in force, by limit: each is logged once.
    logged: BTreeMap<String, String>,
    failing: bool,
}

impl Live {
    /// Gives the limits of a config what is known. What does not fit its limit any more is left
    /// out; the next look reports it.
    pub fn dress(&self, config: &Config) {
        let mut good = self.lock();
        for limit in &config.limits {
            let fits = |raw| limit.overrides.set_live(&limit.key, raw).is_ok();
            if good.get(&limit.name).is_some_and(|raw| !fits(raw)) {
                good.remove(&limit.name);
            }
        }
    }

    /// The first look, before any request is served.
    pub async fn prime(&self, config: &Config) {
        let StoreKind::Redis(url) = &config.store.kind else { return };
        let mut follower = Follower::default();
        if let Ok(found) = follower.look(&config.store, &url.0, &names(config)).await {
            self.take(&mut follower.logged, config, found);
        }
    }

    pub async fn follow(self: Arc<Live>, current: Current) {
        let mut follower = Follower::default();
        let mut beats = interval(PERIOD);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let settings = current.load().config.store.clone();
            let StoreKind::Redis(url) = &settings.kind else {
                follower = Follower::default();
                continue;
            };
            let names = names(&current.load().config);
            match follower.look(&settings, &url.0, &names).await {
                Ok(found) => {
                    follower.failing = false;
                    // A reload may have come between; whoever is new waits for the next look.
                    let config = &current.load().config;
                    if config.store == settings {
                        self.take(&mut follower.logged, config, found);
                    }
                }
                Err(error) => {
                    follower.link = None;
                    if !std::mem::replace(&mut follower.failing, true) {
                        tracing::warn!("cannot read the overrides in Redis, those known stay in force: {error}");
                    }
                }
            }
        }
    }

    fn take(
        &self,
        logged: &mut BTreeMap<String, String>,
        config: &Config,
        mut found: BTreeMap<String, Result<Raw, String>>,
    ) {
        let mut good = self.lock();
        for limit in &config.limits {
            let found = found.remove(&limit.name).unwrap_or_else(|| Ok(Raw::new()));
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Raw>> {
        self.good.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn apply(limit: &Limit, found: Result<Raw, String>) -> Result<Raw, String> {
    let raw = found?;
    limit.overrides.set_live(&limit.key, &raw)?;
    Ok(raw)
}

fn names(config: &Config) -> Vec<String> {
    config.limits.iter().map(|limit| limit.name.clone()).collect()
}

impl Follower {
    /// The hashes that there are.
    async fn look(
        &mut self,
        settings: &StoreSettings,
        url: &str,
        names: &[String],
    ) -> Result<BTreeMap<String, Result<Raw, String>>, String> {
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        if self.link.as_ref().is_none_or(|(known, _)| known != settings) {
            self.link = Some((settings.clone(), connect(url).await?));
        }
        let Some((_, connection)) = &mut self.link else { return Err("not connected".to_owned()) };
        let mut found = BTreeMap::new();
        for names in names.chunks(CHUNK) {
            let key = |name: &String| format!("{}:overrides:{name}", settings.prefix);
            let sizes = ask(connection, "HLEN", names.iter().map(key)).await?;
            let mut wanted = Vec::new();
            for (name, size) in names.iter().zip(sizes) {
                match size {
                    Ok(Value::Int(0)) => {}
                    Ok(Value::Int(size)) if size <= ENTRIES_MAX => wanted.push(name),
                    Ok(Value::Int(size)) => {
                        let mistake = format!("{} has {size} fields, {ENTRIES_MAX} are allowed", key(name));
                        found.insert(name.clone(), Err(mistake));
                    }
                    Ok(_) => return Err("a reply of the wrong form".to_owned()),
                    // Another kind of value under this name; any other error is one of the server.
                    Err(error) if error.code() == Some("WRONGTYPE") => {
                        found.insert(name.clone(), Err(format!("{} is not a hash", key(name))));
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
            // One at a time: together they could be large.
            for name in wanted {
                let reply = ask(connection, "HGETALL", std::iter::once(key(name))).await?.pop();
                let raw = reply.and_then(Result::ok).and_then(fields).ok_or("a reply of the wrong form")?;
                found.insert(name.clone(), Ok(raw));
            }
        }
        Ok(found)
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let connect = async { redis::Client::open(url)?.get_multiplexed_async_connection().await };
    match timeout(CONNECT_TIMEOUT, connect).await {
        Ok(connection) => connection.map_err(|error: RedisError| error.category().to_owned()),
        Err(_) => Err("no answer to a connect".to_owned()),
    }
}

/// The replies to `command` for each key; the outer error is one of the connection.
async fn ask(
    connection: &mut MultiplexedConnection,
    command: &str,
    keys: impl Iterator<Item = String>,
) -> Result<Vec<RedisResult<Value>>, String> {
    let mut pipe = Pipeline::new();
    let mut count = 0;
    for key in keys {
        pipe.cmd(command).arg(key);
        count += 1;
    }
    let replies: RedisResult<Vec<Value>> =
        match timeout(READ_TIMEOUT, connection.send_packed_commands(&pipe, 0, count)).await {
            Ok(replies) => replies,
            Err(_) => return Err("no answer in time".to_owned()),
        };
    let reply = |value| match value {
        Value::ServerError(error) => Err(RedisError::from(error)),
        value => Ok(value),
    };
    Ok(replies.map_err(|error| error.to_string())?.into_iter().map(reply).collect())
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
