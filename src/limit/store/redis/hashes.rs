//! Reads the hashes that operators edit, each where it is now, which on a cluster is one place for each.
//! Called by [`super::Redis::hashes`].

use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::time::timeout;

use super::Redis;
use crate::limit::overrides::{ENTRIES_MAX, Found, Raw};

const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Questions asked at once, so that other clients of Redis get their turn.
const CHUNK: usize = 500;

pub async fn read(redis: &Redis, keys: &[String]) -> Vec<Found> {
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(CHUNK) {
        let sizes = join_all(keys.iter().map(async |key| ask(redis, "HLEN", key).await)).await;
        // One at a time: together they could be large.
        for (key, size) in keys.iter().zip(sizes) {
            found.push(hash(redis, key, size).await.map_err(|error| error.to_string()));
        }
    }
    found
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
