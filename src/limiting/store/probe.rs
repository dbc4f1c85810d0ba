//! Asks a store once whether it works as the gateway needs it: `sluicegate check --store`.

use std::rc::Rc;

use crate::limiting::decision::{Check, ErrorKind, Op};
use crate::limiting::limit::Limit;
use crate::limiting::store::Store;
use crate::limiting::store::redis::eviction::NO_EVICTION;

/// Charges one unit of a key that no request has, which needs every command of a decision, and resets it. Returns
/// warnings.
///
/// # Errors
/// Why the store does not decide.
pub async fn probe_store(store: &Store, limit: &Limit, prefix: &str) -> Result<Vec<String>, String> {
    store.wait_first_attempt().await;
    let key = format!("{prefix}:{{check}}:{}:{}", limit.name, limit.rule.name());
    let checks = Rc::new(vec![Check::new(limit, key.clone(), 1)]);
    store.decide(Op::Take, &checks).await.map_err(describe_error)?;
    store.reset(&checks).await.map_err(describe_error)?;
    let Store::Redis(redis) = store else { return Ok(Vec::new()) };
    Ok(match redis.read_eviction_policy(&key).await {
        Ok(Some(policy)) if policy != NO_EVICTION => vec![format!(
            "Redis may evict the budgets of limits when its memory is full (`maxmemory-policy {policy}`), and their owners \
             start with full ones; set `maxmemory-policy noeviction`"
        )],
        Ok(_) => Vec::new(),
        Err(error) => vec![format!("cannot tell whether Redis evicts keys: {error}; allow the command `INFO`")],
    })
}

fn describe_error(kind: ErrorKind) -> String {
    let (what, help) = match kind {
        ErrorKind::Disconnected | ErrorKind::Lost => {
            ("it cannot be reached", "see that `url` is right and that it runs")
        }
        ErrorKind::Denied => (
            "it refuses the login, or a command",
            "see `username`, `password`, and the permissions that the manual lists",
        ),
        ErrorKind::Readonly => ("it is a replica, or has no master", "name the master, or the sentinels"),
        ErrorKind::OutOfMemory => ("its memory is full", "raise `maxmemory`"),
        ErrorKind::Loading => ("it is loading its data", "try again when it has done so"),
        _ => ("it made no decision", "look at the log of the server"),
    };
    format!("the limit store does not work: {what} ({}); {help}", kind.label())
}
