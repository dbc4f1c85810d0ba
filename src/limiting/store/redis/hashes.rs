//! Reads and changes the hashes with live overrides, each at the server of its key.

use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::time::timeout;

use crate::limiting::overrides::{ENTRIES_MAX, HashChange, HashResult, LIVE_ENTRIES_MAX, RawOverrides};
use crate::limiting::store::redis::RedisStore;
use crate::limiting::store::redis::codec::error_text;

/// Longest wait for one command.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Commands sent at once, so that other clients of Redis are not delayed.
const CHUNK: usize = 500;
/// Sets or removes one entry, and removes its other spellings, in one step: a gateway that reads in between finds the
/// entry as it was or as it will be. Returns whether there was one.
const CHANGE_SCRIPT: &str = "\
local key, most, field, value = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local existed = redis.call('HEXISTS', key, field)
for i = 4, #ARGV do existed = existed + redis.call('HDEL', key, ARGV[i]) end
if value == '' then
  redis.call('HDEL', key, field)
elseif existed == 0 and redis.call('HLEN', key) >= most then
  return redis.error_reply('ERR the hash is full')
else
  redis.call('HSET', key, field, value)
end
return existed";

/// Number of fields that one command reads of a large hash: less than a millisecond of work.
const PAGE: usize = 1000;

/// Reads the hashes under `keys`.
pub async fn read_hashes(redis: &RedisStore, keys: &[String]) -> Vec<HashResult> {
    let mut hashes = Vec::with_capacity(keys.len());
    for keys in keys.chunks(CHUNK) {
        let sizes = join_all(keys.iter().map(async |key| send_key_command(redis, "HLEN", key).await)).await;
        // One at a time, as together they could be large.
        for (key, size) in keys.iter().zip(sizes) {
            hashes.push(read_hash(redis, key, size).await.map_err(|error| error_text(&error)));
        }
    }
    hashes
}

/// Makes a change of the hash under `key`. Returns whether the entry existed.
pub async fn change_hash(redis: &RedisStore, key: &str, change: &HashChange<'_>) -> Result<bool, String> {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(CHANGE_SCRIPT)
        .arg(1)
        .arg(key)
        .arg(LIVE_ENTRIES_MAX)
        .arg(change.field)
        .arg(change.value.unwrap_or_default());
    cmd.arg(&change.spellings);
    let reply = timeout(READ_TIMEOUT, redis.send(key, &cmd)).await.unwrap_or_else(|_| Err(failure("no reply in time")));
    match reply {
        Ok(Value::Int(existed)) => Ok(existed > 0),
        Ok(_) => Err("malformed reply".to_owned()),
        Err(error) => Err(error_text(&error)),
    }
}

/// Reads the hash under `key`, whose length is `size`. The outer error is one of the server, the inner one says what is
/// wrong with the hash.
async fn read_hash(
    redis: &RedisStore,
    key: &str,
    size: RedisResult<Value>,
) -> RedisResult<Result<RawOverrides, String>> {
    let malformed = || failure("malformed reply");
    match size {
        Ok(Value::Int(0)) => Ok(Ok(RawOverrides::new())),
        // A hash that is too large is not read.
        Ok(Value::Int(size)) if usize::try_from(size).is_ok_and(|size| size > LIVE_ENTRIES_MAX) => {
            Ok(Err(format!("{key} has {size} fields, {LIVE_ENTRIES_MAX} are allowed")))
        }
        Ok(Value::Int(size)) if usize::try_from(size).is_ok_and(|size| size > ENTRIES_MAX) => {
            read_pages(redis, key).await
        }
        Ok(Value::Int(_)) => parse_fields(send_key_command(redis, "HGETALL", key).await?).map(Ok).ok_or_else(malformed),
        Ok(_) => Err(malformed()),
        // The key contains another type.
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(Err(format!("{key} is not a hash"))),
        Err(error) => Err(error),
    }
}

/// Reads a large hash in pages, so that no command keeps the server busy for long. A field that changes meanwhile has
/// its old or its new value.
async fn read_pages(redis: &RedisStore, key: &str) -> RedisResult<Result<RawOverrides, String>> {
    let mut raw = RawOverrides::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(key).arg(&cursor).arg("COUNT").arg(PAGE);
        let reply =
            timeout(READ_TIMEOUT, redis.send(key, &cmd)).await.unwrap_or_else(|_| Err(failure("no reply in time")));
        let (next, page): (String, Value) = redis::from_redis_value(reply?).map_err(|_| failure("malformed reply"))?;
        // `append` would rebuild the entire map for each page.
        raw.extend(parse_fields(page).ok_or_else(|| failure("malformed reply"))?);
        if raw.len() > LIVE_ENTRIES_MAX {
            return Ok(Err(format!("{key} has more than {LIVE_ENTRIES_MAX} fields")));
        }
        if next == "0" {
            return Ok(Ok(raw));
        }
        cursor = next;
    }
}

async fn send_key_command(redis: &RedisStore, command: &str, key: &str) -> RedisResult<Value> {
    let mut cmd = redis::cmd(command);
    timeout(READ_TIMEOUT, redis.send(key, cmd.arg(key))).await.unwrap_or_else(|_| Err(failure("no reply in time")))
}

fn failure(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Client, what))
}

/// Converts the reply of HGETALL.
fn parse_fields(reply: Value) -> Option<RawOverrides> {
    let bytes = |value| match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    };
    let Value::Array(items) = reply else {
        let Value::Map(pairs) = reply else { return None };
        return pairs.into_iter().map(|(field, value)| Some((bytes(field)?, bytes(value)?))).collect();
    };
    let mut raw = RawOverrides::new();
    let mut items = items.into_iter();
    while let Some(field) = items.next() {
        raw.insert(bytes(field)?, bytes(items.next()?)?);
    }
    Some(raw)
}
