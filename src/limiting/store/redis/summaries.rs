//! Writes and reads the summary of each gateway that shares the store, for the list of all gateways:
//! `PREFIX:gateway:NAME`, which expires if the gateway stops. The names are those of the gateways that report
//! (`heartbeat`).

use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult};
use tokio::time::timeout;

use crate::limiting::store::redis::codec::error_text;
use crate::limiting::store::redis::{RedisStore, gateways_key};

/// The summary of one gateway.
pub struct GatewaySummary {
    /// 32 hexadecimal digits.
    pub name: String,
    /// The text and its age in milliseconds; `None` if the gateway has written none, or it cannot be read.
    pub text: Option<(String, u64)>,
}

/// Longest wait for one command.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long a summary is kept without a new one.
const LIFETIME_MS: u64 = 20_000;
/// Maximum number of gateways that are listed.
const GATEWAYS_MAX: usize = 200;
/// Maximum number of bytes that are read of a summary.
const SUMMARY_MAX: usize = 16 * 1024;

fn summary_key(prefix: &str, name: &str) -> String {
    format!("{prefix}:gateway:{name}")
}

/// Writes the summary of the gateway called `name`.
pub async fn write_summary(redis: &RedisStore, prefix: &str, name: &str, text: &str) -> Result<(), String> {
    let key = summary_key(prefix, name);
    let mut cmd = redis::cmd("SET");
    cmd.arg(&key).arg(text).arg("PX").arg(LIFETIME_MS);
    send::<()>(redis, &key, &cmd).await.map_err(|error| error_text(&error))
}

/// Reads the summaries of all gateways that report.
pub async fn read_summaries(redis: &RedisStore, prefix: &str) -> Result<Vec<GatewaySummary>, String> {
    let key = gateways_key(prefix);
    let mut cmd = redis::cmd("ZRANGEBYSCORE");
    // Other members of this set have negative scores.
    cmd.arg(&key).arg(0).arg("+inf").arg("LIMIT").arg(0).arg(GATEWAYS_MAX);
    let names: Vec<String> = send(redis, &key, &cmd).await.map_err(|error| error_text(&error))?;
    let is_name = |name: &String| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let read = names.into_iter().filter(is_name).map(async |name| {
        // One key may have another type, or be on a node that is down.
        let text = read_summary(redis, &summary_key(prefix, &name)).await.unwrap_or_default();
        GatewaySummary { name, text }
    });
    Ok(join_all(read).await)
}

/// Reads a summary and its age. One that is too long is cut, so that it is no JSON.
async fn read_summary(redis: &RedisStore, key: &str) -> RedisResult<Option<(String, u64)>> {
    let (mut get, mut left) = (redis::cmd("GETRANGE"), redis::cmd("PTTL"));
    get.arg(key).arg(0).arg(SUMMARY_MAX);
    left.arg(key);
    let (text, left_ms) = tokio::join!(send::<Vec<u8>>(redis, key, &get), send::<i64>(redis, key, &left));
    let (text, left_ms) = (String::from_utf8(text?).unwrap_or_default(), u64::try_from(left_ms?).unwrap_or(0));
    Ok((!text.is_empty()).then(|| (text, LIFETIME_MS.saturating_sub(left_ms))))
}

async fn send<T: FromRedisValue>(redis: &RedisStore, key: &str, cmd: &redis::Cmd) -> RedisResult<T> {
    let late = || Err(RedisError::from((ErrorKind::Client, "no reply in time")));
    let reply = timeout(TIMEOUT, redis.send(key, cmd)).await.unwrap_or_else(|_| late())?;
    redis::from_redis_value(reply).map_err(|_| RedisError::from((ErrorKind::Client, "malformed reply")))
}
