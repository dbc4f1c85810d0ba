//! Visits the state keys in Redis, on every master of a cluster. Used to find the key that a hash in a log stands for.

use std::rc::Rc;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::limiting::decision::ErrorKind;
use crate::limiting::store::redis::cluster::slot_map::ClusterNode;
use crate::limiting::store::redis::codec;
use crate::limiting::store::redis::{RedisServers, RedisStore};

/// Longest time for all commands together; below the time that an admin request may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(20);
/// Keys that Redis examines per command: about a millisecond, in which it serves no other client.
const COUNT: usize = 1000;

/// Calls `visit` with all keys that begin with `prefix` and contain the name `part`.
pub async fn visit_keys(
    redis: &RedisStore,
    prefix: &str,
    part: &str,
    visit: &mut impl FnMut(&str),
) -> Result<(), ErrorKind> {
    let until = Instant::now() + SCAN_TIMEOUT;
    let pattern = format!("{prefix}:{{*{}*}}:*", escape_pattern(part));
    match &*redis.servers {
        RedisServers::Single(lane) => {
            scan_server(async |cmd| lane.send(cmd, false).await, &pattern, until, visit).await
        }
        RedisServers::Cluster(cluster) => {
            let mut owners: Vec<Rc<ClusterNode>> = Vec::new();
            for node in cluster.nodes.map.borrow().slots.iter() {
                let node = node.as_ref().ok_or(ErrorKind::Readonly)?;
                if owners.iter().all(|known| !Rc::ptr_eq(known, node)) {
                    owners.push(node.clone());
                }
            }
            if owners.is_empty() {
                return Err(ErrorKind::Disconnected);
            }
            for node in owners {
                scan_server(async |cmd| node.lane.send(cmd, false).await, &pattern, until, visit).await?;
            }
            Ok(())
        }
        RedisServers::InvalidUrl(_) => Err(ErrorKind::Disconnected),
    }
}

async fn scan_server(
    send: impl AsyncFn(&Cmd) -> RedisResult<Value>,
    pattern: &str,
    until: Instant,
    visit: &mut impl FnMut(&str),
) -> Result<(), ErrorKind> {
    let mut cursor = "0".to_owned();
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(COUNT);
        let reply = timeout_at(until, send(&cmd)).await.map_err(|_| ErrorKind::Timeout)?;
        let reply = reply.map_err(|error| codec::sent_error_kind(&error))?;
        let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(reply).map_err(|_| ErrorKind::Reply)?;
        // State keys are ASCII; any other key is not ours.
        keys.iter().filter_map(|key| str::from_utf8(key).ok()).for_each(&mut *visit);
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// Escapes the characters that have a meaning in a pattern of Redis.
fn escape_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_special_characters_match_themselves() {
        assert_eq!(escape_pattern("query:a[b]*?\\"), "query:a\\[b\\]\\*\\?\\\\");
    }
}
