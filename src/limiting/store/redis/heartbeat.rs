//! Reports this gateway to Redis once a second and learns how many gateways there are. So each knows its share of the
//! limits when Redis becomes unavailable. Only one handle of the process reports: the one created last.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, sleep, timeout};

use crate::limiting::gateways::{Claim, GATEWAYS_REMEMBERED, Gateways};

const SCRIPT: &str = include_str!("../../../../lua/gateways.lua");
/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a gateway counts after its last report.
const REPORT_LIFETIME: Duration = Duration::from_secs(5);
/// Longest time that a stopping process waits for Redis to confirm its last report.
const STOP_TIMEOUT: Duration = Duration::from_millis(250);
/// Pause before the next attempt without a connection.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Reports under `key` while `claim` is active. `send` sends a command to the server of the key. Never returns.
pub async fn run_reports(send: impl AsyncFn(&Cmd) -> RedisResult<Value>, key: &str, claim: &Claim) {
    let beat = report_command(key, claim.gateway_name(), "report");
    let mut since: Option<Instant> = None;
    loop {
        if !claim.is_in_force() {
            since = None;
            sleep(REPORT_INTERVAL).await;
            continue;
        }
        match timeout(REPORT_INTERVAL, send(&beat)).await {
            Ok(Ok(reply)) => {
                if let Ok((alive, most)) = redis::from_redis_value::<(i64, i64)>(reply) {
                    // A server that has just become available has not received the reports of all gateways yet.
                    let certain = since.get_or_insert_with(Instant::now).elapsed() >= REPORT_LIFETIME;
                    claim.record_report(alive, most, certain);
                }
            }
            Ok(Err(error)) if error.code().is_none() => {
                since = None;
                sleep(RETRY_PAUSE).await;
                continue;
            }
            _ => {}
        }
        sleep(REPORT_INTERVAL).await;
    }
}

/// Reports that this gateway stops, so that the others no longer count it. Waits at most `STOP_TIMEOUT` for the reply;
/// without the report, the gateway counts for `REPORT_LIFETIME`.
pub async fn report_stop(send: impl AsyncFn(&Cmd) -> RedisResult<Value>, key: &str, gateways: &Gateways) {
    if gateways.stop_reporting() {
        let _ = timeout(STOP_TIMEOUT, send(&report_command(key, gateways.name(), "leave"))).await;
    }
}

fn report_command(key: &str, name: &str, verb: &str) -> Cmd {
    let mut command = redis::cmd("EVAL");
    let times = [REPORT_LIFETIME, GATEWAYS_REMEMBERED].map(|time| time.as_millis().to_string());
    command.arg(SCRIPT).arg(1).arg(key).arg(name).arg(&times).arg(verb);
    command
}
