//! Watches whether the server evicts keys. Every key of a limit has an expiry, so each policy but `noeviction` deletes
//! budgets in use when the memory is full, and their owners start with full ones. Only the handle of the process that
//! reports to Redis watches; with a cluster, it asks the node that has the key of the reports.

use std::time::Duration;

use prometheus::IntGauge;
use redis::{Cmd, RedisResult, Value};
use tokio::time::{sleep, timeout};

use crate::limiting::gateways::Claim;

/// Time between two checks. The policy may be changed while the server runs.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Pause before the next attempt while the server cannot be asked, or another handle reports.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
pub const NO_EVICTION: &str = "noeviction";
/// The line of `INFO memory` with the policy.
const POLICY: &str = "maxmemory_policy:";

/// Asks for the policy once. `None`: the server has none.
///
/// # Errors
/// Why the server did not say.
pub async fn read_policy(send: impl AsyncFn(&Cmd) -> RedisResult<Value>) -> Result<Option<String>, String> {
    let reply = send(redis::cmd("INFO").arg("memory")).await.map_err(|error| error.to_string())?;
    let info = redis::from_redis_value::<String>(reply).map_err(|error| error.to_string())?;
    Ok(find_policy(&info))
}

/// Checks the policy periodically, and logs a policy that evicts once. `send` sends a command to the server. Never
/// returns.
pub async fn watch_policy(send: impl AsyncFn(&Cmd) -> RedisResult<Value>, claim: &Claim, may_evict: &IntGauge) {
    let mut last_policy: Option<String> = None;
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    loop {
        if !claim.is_in_force() {
            last_policy = None;
            sleep(RETRY_PAUSE).await;
            continue;
        }
        let Ok(Ok(reply)) = timeout(RETRY_PAUSE, send(&info)).await else {
            // There may be no connection, or the login may not be allowed to run the command.
            sleep(RETRY_PAUSE).await;
            continue;
        };
        if let Some(policy) = redis::from_redis_value::<String>(reply).ok().and_then(|text| find_policy(&text)) {
            may_evict.set(i64::from(policy != NO_EVICTION));
            if last_policy.as_deref() != Some(&policy) {
                log_policy(&policy, last_policy.is_some());
                last_policy = Some(policy);
            }
        }
        sleep(CHECK_INTERVAL).await;
    }
}

fn log_policy(policy: &str, is_changed: bool) {
    if policy != NO_EVICTION {
        tracing::warn!(
            policy,
            "store: Redis may evict the budgets of limits when its memory is full, and their owners start with full ones; \
             set `maxmemory-policy noeviction`"
        );
    } else if is_changed {
        tracing::info!(policy, "store: Redis no longer evicts the budgets of limits");
    }
}

/// Finds the policy in a reply to `INFO memory`. Servers that are not Redis may have none.
fn find_policy(info: &str) -> Option<String> {
    info.lines().find_map(|line| line.strip_prefix(POLICY)).map(|policy| policy.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_one_line_of_many() {
        let info = "# Memory\r\nused_memory:1\r\nmaxmemory_policy:allkeys-lru\r\nx:1\r\n";
        assert_eq!(find_policy(info).as_deref(), Some("allkeys-lru"));
        assert_eq!(find_policy("# Memory\r\n"), None);
    }
}
