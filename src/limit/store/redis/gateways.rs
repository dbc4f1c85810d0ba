//! Tells the store that this gateway lives and asks how many do, once a second and in the
//! background, so that each knows its share of the limits when the store goes away. One handle of
//! the process does it, the last one made. Spawned by `mod.rs`.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::Claim;

const SCRIPT: &str = include_str!("../../../../lua/gateways.lua");
const EVERY: Duration = Duration::from_secs(1);
/// A gateway counts this long after its last report.
const LIFE: Duration = Duration::from_secs(5);
/// Between two looks for a connection.
const AWAY: Duration = Duration::from_millis(100);

/// Reports under `key` whenever `claim` holds; `send` asks the server of the key.
pub async fn report(send: impl AsyncFn(&Cmd) -> RedisResult<Value>, key: &str, claim: &Claim) {
    let mut beat = redis::cmd("EVAL");
    beat.arg(SCRIPT).arg(1).arg(key).arg(claim.gateway()).arg(LIFE.as_millis().to_string());
    let mut since: Option<Instant> = None;
    loop {
        if !claim.holds() {
            since = None;
            sleep(EVERY).await;
            continue;
        }
        match timeout(EVERY, send(&beat)).await {
            Ok(Ok(Value::Int(count))) => {
                // A store that has just come back has not heard from all yet.
                let certain = since.get_or_insert_with(Instant::now).elapsed() >= LIFE;
                claim.count(count, certain);
            }
            Ok(Err(error)) if error.code().is_none() => {
                since = None;
                sleep(AWAY).await;
                continue;
            }
            _ => {}
        }
        sleep(EVERY).await;
    }
}
