//! Tells the store that this gateway lives and asks how many do, once a second and in the
//! background, so that each knows its share of the limits when the store goes away. One handle of
//! the process does it, the last one made. Spawned by `mod.rs`.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::{Claim, GATEWAYS_REMEMBERED, Gateways};

const SCRIPT: &str = include_str!("../../../../lua/gateways.lua");
const EVERY: Duration = Duration::from_secs(1);
/// A gateway counts this long after its last report.
const LIFE: Duration = Duration::from_secs(5);
/// The longest that the end of a process waits for the store to confirm that it leaves.
const LEAVE_MAX: Duration = Duration::from_millis(250);
/// Between two looks for a connection.
const AWAY: Duration = Duration::from_millis(100);

/// Reports under `key` whenever `claim` holds; `send` asks the server of the key.
pub async fn report(send: impl AsyncFn(&Cmd) -> RedisResult<Value>, key: &str, claim: &Claim) {
    let beat = command(key, claim.gateway(), "report");
    let mut since: Option<Instant> = None;
    loop {
        if !claim.holds() {
            since = None;
            sleep(EVERY).await;
            continue;
        }
        match timeout(EVERY, send(&beat)).await {
            Ok(Ok(reply)) => {
                if let Ok((alive, most)) = redis::from_redis_value::<(i64, i64)>(reply) {
                    // A store that has just come back has not heard from all yet.
                    let certain = since.get_or_insert_with(Instant::now).elapsed() >= LIFE;
                    claim.count(alive, most, certain);
                }
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

/// Tells the store that this gateway stops, so that the others count it no longer. Waits for a reply for at
/// most `LEAVE_MAX`: without it, the gateway counts for `LIFE`.
pub async fn leave(send: impl AsyncFn(&Cmd) -> RedisResult<Value>, key: &str, gateways: &Gateways) {
    if gateways.leave() {
        let _ = timeout(LEAVE_MAX, send(&command(key, gateways.name(), "leave"))).await;
    }
}

fn command(key: &str, name: &str, verb: &str) -> Cmd {
    let mut command = redis::cmd("EVAL");
    let times = [LIFE, GATEWAYS_REMEMBERED].map(|time| time.as_millis().to_string());
    command.arg(SCRIPT).arg(1).arg(key).arg(name).arg(&times).arg(verb);
    command
}
