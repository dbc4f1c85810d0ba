//! The list of changed live overrides, a stream in Redis. It only names entries; gateways then read these in their
//! hash. So a list that is lost, cut off or late makes nothing wrong: the periodic reading of the hashes finds every
//! change.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout;

use crate::limiting::store::redis::RedisStore;
use crate::limiting::store::redis::codec::error_text;

/// The last change in the list, and the limits and fields that have changed.
pub type ChangeList = (String, Vec<(String, String)>);

/// Value of a field; `None` if the hash does not have it.
pub type FieldValue = Option<Vec<u8>>;

/// Longest wait for one command.
const TIMEOUT: Duration = Duration::from_secs(1);
/// About how many changes the list keeps.
const CHANGES_KEPT: usize = 10_000;
/// Changes, and fields of a hash, that one command reads.
const PAGE: usize = 1000;
/// How long the list stays after the last change.
const LIST_TTL_MS: u64 = 86_400_000;
/// The change before all others.
const FIRST: &str = "0-0";

/// Adds a change to the list under `key`.
pub async fn announce_change(redis: &RedisStore, key: &str, limit: &str, field: &str) -> Result<(), String> {
    let mut add = redis::cmd("XADD");
    add.arg(key).arg("MAXLEN").arg("~").arg(CHANGES_KEPT).arg("*").arg("limit").arg(limit).arg("field").arg(field);
    send(redis, key, &add).await?;
    send(redis, key, redis::cmd("PEXPIRE").arg(key).arg(LIST_TTL_MS)).await.map(drop)
}

/// Reads the changes after `last`, up to a page; without `last`, only which change is the last one.
pub async fn read_changes(redis: &RedisStore, key: &str, last: Option<&str>) -> Result<ChangeList, String> {
    let Some(last) = last else {
        let mut newest = redis::cmd("XREVRANGE");
        let reply = send(redis, key, newest.arg(key).arg("+").arg("-").arg("COUNT").arg(1)).await?;
        let newest = parse_changes(reply)?.pop().map_or_else(|| FIRST.to_owned(), |(id, _)| id);
        return Ok((newest, Vec::new()));
    };
    let mut range = redis::cmd("XRANGE");
    let reply = send(redis, key, range.arg(key).arg(last).arg("+").arg("COUNT").arg(PAGE + 1)).await?;
    let changes: Vec<_> = parse_changes(reply)?.into_iter().filter(|(id, _)| id != last).collect();
    let newest = changes.last().map_or(last, |(id, _)| id).to_owned();
    Ok((newest, changes.into_iter().filter_map(|(_, change)| change).collect()))
}

/// Reads fields of the hash under `key`.
pub async fn read_fields(redis: &RedisStore, key: &str, fields: &[String]) -> Result<Vec<FieldValue>, String> {
    let mut values = Vec::with_capacity(fields.len());
    for fields in fields.chunks(PAGE) {
        let reply = send(redis, key, redis::cmd("HMGET").arg(key).arg(fields)).await?;
        let page: Vec<FieldValue> = redis::from_redis_value(reply).map_err(|_| malformed())?;
        if page.len() != fields.len() {
            return Err(malformed());
        }
        values.extend(page);
    }
    Ok(values)
}

async fn send(redis: &RedisStore, key: &str, command: &Cmd) -> Result<Value, String> {
    let reply: RedisResult<Value> =
        timeout(TIMEOUT, redis.send(key, command)).await.map_err(|_| "no reply in time".to_owned())?;
    reply.map_err(|error| error_text(&error))
}

fn malformed() -> String {
    "malformed reply".to_owned()
}

/// Id of an entry of the stream, and the limit and the field that it names.
type ListedChange = (String, Option<(String, String)>);

/// Parses entries of the stream. An entry that another program added, without a limit and a field, has only its id.
fn parse_changes(reply: Value) -> Result<Vec<ListedChange>, String> {
    let entries: Vec<(String, Vec<String>)> = redis::from_redis_value(reply).map_err(|_| malformed())?;
    let change = |pairs: Vec<String>| match pairs.as_slice() {
        [name, limit, other, field] if name == "limit" && other == "field" => Some((limit.clone(), field.clone())),
        _ => None,
    };
    Ok(entries.into_iter().map(|(id, pairs)| (id, change(pairs))).collect())
}
