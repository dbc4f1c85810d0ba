//! Saves the usage of keys in Redis, and reads it: a hash `PREFIX:usage:LIMIT:DATE` for each limit and day, with one
//! field for each key.

use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};
use tokio::time::timeout;

use crate::limiting::ledger::pending::UsageBatch;
use crate::limiting::ledger::{DayUsage, LedgerDay};
use crate::limiting::store::redis::RedisStore;
use crate::limiting::store::redis::codec::error_text;

/// Longest wait for one command.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Number of fields that one command reads.
const PAGE: usize = 1000;
/// Start of the field of a key, and of the number of the last batch that a gateway has saved.
const KEY_FIELD: &str = "=";
const GATEWAY_FIELD: &str = "#";

/// Adds a batch to the hash of a day, unless the gateway has saved one with that number or a later one: a reply may
/// get lost, and the gateway sends the batch again.
const SAVE_SCRIPT: &str = "\
local key, gateway, number = KEYS[1], ARGV[1], tonumber(ARGV[2])
if tonumber(redis.call('HGET', key, gateway) or '0') >= number then return 0 end
for i = 4, #ARGV, 4 do
  local a, r, u = string.match(redis.call('HGET', key, ARGV[i]) or '', '^(%d+) (%d+) (-?%d+)$')
  local function sum(known, more) return (tonumber(known) or 0) + tonumber(more) end
  redis.call('HSET', key, ARGV[i],
    string.format('%.0f %.0f %.0f', sum(a, ARGV[i + 1]), sum(r, ARGV[i + 2]), sum(u, ARGV[i + 3])))
end
redis.call('HSET', key, gateway, ARGV[2])
redis.call('EXPIREAT', key, ARGV[3])
return 1";

/// A page of the usage of one day.
#[derive(Default)]
pub struct UsagePage {
    pub keys: Vec<(String, DayUsage)>,
    /// The cursor of the next page; `None` if this is the last one.
    pub next: Option<String>,
}

fn hash_key(prefix: &str, day: &LedgerDay) -> String {
    format!("{prefix}:usage:{}:{}", day.limit, day.date())
}

/// Saves a batch of the gateway called `gateway`, at most once however often it is called with it.
pub async fn save_batch(
    redis: &RedisStore,
    prefix: &str,
    gateway: &str,
    (day, batch): (&LedgerDay, &UsageBatch),
) -> Result<(), String> {
    let key = hash_key(prefix, day);
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(SAVE_SCRIPT).arg(1).arg(&key).arg(format!("{GATEWAY_FIELD}{gateway}")).arg(batch.number);
    cmd.arg(day.expires_s(batch.kept_days));
    for (parts, usage) in &batch.keys {
        cmd.arg(format!("{KEY_FIELD}{parts}")).arg(usage.admitted).arg(usage.refused).arg(usage.units);
    }
    match timeout(TIMEOUT, redis.send(&key, &cmd)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error_text(&error)),
        Err(_) => Err("no reply in time".to_owned()),
    }
}

/// Reads a page of a day. A key that changes meanwhile may be on two pages.
pub async fn read_page(redis: &RedisStore, prefix: &str, day: &LedgerDay, cursor: &str) -> Result<UsagePage, String> {
    let key = hash_key(prefix, day);
    let mut cmd = redis::cmd("HSCAN");
    cmd.arg(&key).arg(cursor).arg("COUNT").arg(PAGE);
    let late = || Err(RedisError::from((ErrorKind::Client, "no reply in time")));
    let reply = timeout(TIMEOUT, redis.send(&key, &cmd)).await.unwrap_or_else(|_| late());
    let reply: Value = reply.map_err(|error| error_text(&error))?;
    let (next, fields): (String, Vec<(String, String)>) =
        redis::from_redis_value(reply).map_err(|_| "malformed reply".to_owned())?;
    let keys = fields
        .into_iter()
        .filter_map(|(field, value)| Some((field.strip_prefix(KEY_FIELD)?.to_owned(), DayUsage::parse(&value)?)));
    Ok(UsagePage { keys: keys.collect(), next: Some(next).filter(|next| next != "0") })
}
