//! Tells the store that this gateway lives and asks how many do, once a second and in the
//! background, so that each knows its share of the limits when the store goes away. One handle of
//! the process does it, the last one made. Spawned by `mod.rs`.

use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep, timeout};

use super::link::Link;
use crate::metrics::Claim;

const SCRIPT: &str = include_str!("../../../../lua/gateways.lua");
const EVERY: Duration = Duration::from_secs(1);
/// A gateway counts this long after its last report.
const LIFE: Duration = Duration::from_secs(5);
/// Between two looks for a connection.
const AWAY: Duration = Duration::from_millis(100);

/// Reports whenever `claim` holds.
pub async fn report(link: Rc<Link>, prefix: String, claim: Claim) {
    let mut beat = redis::cmd("EVAL");
    let key = format!("{prefix}:gateways");
    beat.arg(SCRIPT).arg(1).arg(key).arg(claim.gateway()).arg(LIFE.as_millis().to_string());
    let mut since: Option<Instant> = None;
    loop {
        if !claim.holds() {
            since = None;
            sleep(EVERY).await;
            continue;
        }
        let Some(connection) = link.connection().await else {
            since = None;
            sleep(AWAY).await;
            continue;
        };
        if let Ok(Ok(Value::Int(count))) = timeout(EVERY, connection.send(&beat)).await {
            // A store that has just come back has not heard from all yet.
            let settled = since.get_or_insert_with(Instant::now).elapsed() >= LIFE;
            claim.count(count, settled);
        }
        sleep(EVERY).await;
    }
}
