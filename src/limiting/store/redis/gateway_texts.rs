//! Writes and reads what each gateway that shares the store tells the others: `PREFIX:gateway:NAME` and, with a further
//! suffix, its last refusals. Both expire if the gateway stops. The names are those of the gateways that report
//! (`heartbeat`).

use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult};
use tokio::time::timeout;

use crate::limiting::store::redis::codec::error_text;
use crate::limiting::store::redis::{RedisStore, gateways_key};

/// A text that a gateway writes for the others.
#[derive(Clone, Copy, Debug)]
pub enum GatewayText {
    /// Its name, rates and most refused keys.
    Summary,
    /// The requests that its limits refused last.
    Refusals,
}

/// A text of one gateway.
pub struct PeerText {
    /// 32 hexadecimal digits.
    pub name: String,
    /// The text and its age in milliseconds; `None` if the gateway has written none, or it cannot be read.
    pub text: Option<(String, u64)>,
}

/// Longest wait for one command.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of gateways that are listed.
const GATEWAYS_MAX: usize = 200;

impl GatewayText {
    fn key(self, prefix: &str, name: &str) -> String {
        let suffix = match self {
            GatewayText::Summary => "",
            GatewayText::Refusals => ":refusals",
        };
        format!("{prefix}:gateway:{name}{suffix}")
    }

    /// Returns how long a text is kept without a new one, in milliseconds.
    fn lifetime_ms(self) -> u64 {
        match self {
            GatewayText::Summary => 20_000,
            GatewayText::Refusals => 600_000,
        }
    }

    /// Returns the maximum number of bytes that are read. A longer text is cut, so that it is no JSON.
    pub const fn max_len(self) -> usize {
        match self {
            GatewayText::Summary => 16 * 1024,
            GatewayText::Refusals => 64 * 1024,
        }
    }
}

/// Writes a text of the gateway called `name`.
pub async fn write_text(
    redis: &RedisStore,
    (prefix, name): (&str, &str),
    kind: GatewayText,
    text: &str,
) -> Result<(), String> {
    let key = kind.key(prefix, name);
    let mut cmd = redis::cmd("SET");
    cmd.arg(&key).arg(text).arg("PX").arg(kind.lifetime_ms());
    send::<()>(redis, &key, &cmd).await.map_err(|error| error_text(&error))
}

/// Reads the texts of all gateways that report.
pub async fn read_texts(redis: &RedisStore, prefix: &str, kind: GatewayText) -> Result<Vec<PeerText>, String> {
    let key = gateways_key(prefix);
    let mut cmd = redis::cmd("ZRANGEBYSCORE");
    // Other members of this set have negative scores.
    cmd.arg(&key).arg(0).arg("+inf").arg("LIMIT").arg(0).arg(GATEWAYS_MAX);
    let names: Vec<String> = send(redis, &key, &cmd).await.map_err(|error| error_text(&error))?;
    let is_name = |name: &String| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let read = names.into_iter().filter(is_name).map(async |name| {
        // A key may have another type, or be on a node that is down.
        let text = read_text(redis, &kind.key(prefix, &name), kind).await.unwrap_or_default();
        PeerText { name, text }
    });
    Ok(join_all(read).await)
}

/// Reads a text and its age.
async fn read_text(redis: &RedisStore, key: &str, kind: GatewayText) -> RedisResult<Option<(String, u64)>> {
    let (mut get, mut left) = (redis::cmd("GETRANGE"), redis::cmd("PTTL"));
    get.arg(key).arg(0).arg(kind.max_len());
    left.arg(key);
    let (text, left_ms) = tokio::join!(send::<Vec<u8>>(redis, key, &get), send::<i64>(redis, key, &left));
    let (text, left_ms) = (String::from_utf8(text?).unwrap_or_default(), u64::try_from(left_ms?).unwrap_or(0));
    Ok((!text.is_empty()).then(|| (text, kind.lifetime_ms().saturating_sub(left_ms))))
}

async fn send<T: FromRedisValue>(redis: &RedisStore, key: &str, cmd: &redis::Cmd) -> RedisResult<T> {
    let late = || Err(RedisError::from((ErrorKind::Client, "no reply in time")));
    let reply = timeout(TIMEOUT, redis.send(key, cmd)).await.unwrap_or_else(|_| late())?;
    redis::from_redis_value(reply).map_err(|_| RedisError::from((ErrorKind::Client, "malformed reply")))
}
