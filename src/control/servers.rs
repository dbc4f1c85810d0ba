//! Logs each change of a server's health or ejection, and of a circuit breaker, once, however many workers notice it.
//! Run by the control thread.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::snapshot::Fleet;
use crate::upstream::breaker::machine::BreakerPhase;
use crate::upstream::state::{Ejection, Health, HealthReport};

/// Changes that are undone within this time are not logged.
const NOTICE_INTERVAL: Duration = Duration::from_millis(200);

/// Logs changes. Never returns.
pub async fn run_server_log(fleet: Fleet) {
    let mut glances = interval(NOTICE_INTERVAL);
    glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut known_breakers) = (HashMap::new(), HashMap::new());
    loop {
        glances.tick().await;
        known = log_changes(&fleet, &known);
        known_breakers = log_breakers(&fleet, &known_breakers);
    }
}

/// Logged phases of breakers by kind and name, with how often the breaker had opened.
type LoggedBreakers = HashMap<(&'static str, String), (BreakerPhase, u64)>;

/// Logs breakers that have opened or closed. Their other changes are steps on the way.
fn log_breakers(fleet: &Fleet, known: &LoggedBreakers) -> LoggedBreakers {
    let (mut seen, now_ms) = (HashMap::new(), fleet.now_ms());
    for breaker in fleet.breakers() {
        let (kind, name, report) = (breaker.kind.label(), &breaker.name, breaker.describe(now_ms));
        let key = (kind, name.clone());
        let (phase, opened) = known.get(&key).copied().unwrap_or((BreakerPhase::Closed, 0));
        if report.entered.open > opened
            && let Some(cause) = report.cause
        {
            let condition = cause.condition.label();
            let (failed, requests) = (cause.failed, cause.requests);
            let event = if cause.were_probes { "breaker stays open: of its probes" } else { "breaker opened:" };
            tracing::warn!(kind, name, condition, "{kind} {name}: {event} {failed} of {requests} failed ({condition})");
        } else if report.phase != phase {
            match report.phase {
                BreakerPhase::Ramp => tracing::info!(kind, name, "{kind} {name}: breaker closes; requests ramp up"),
                BreakerPhase::Closed => tracing::info!(kind, name, "{kind} {name}: breaker closed"),
                BreakerPhase::HalfOpen | BreakerPhase::Open => {}
            }
        }
        seen.insert(key, (report.phase, report.entered.open));
    }
    seen
}

/// Logged states by upstream and server.
type LoggedStates = HashMap<(String, String), (Health, Option<Ejection>)>;

fn log_changes(fleet: &Fleet, known: &LoggedStates) -> LoggedStates {
    let (mut seen, now_ms) = (HashMap::new(), fleet.now_ms());
    for upstream in fleet.upstreams() {
        let name = &upstream.settings.name;
        let roster = upstream.roster();
        let is_only = roster.len() == 1;
        let (mut changed, mut up_before, mut up) = (false, 0, 0);
        for member in roster.iter() {
            let (server, report) = (member.endpoint.to_string(), member.state.report_health(now_ms));
            let key = (name.clone(), server);
            // A new ejection is logged even if it follows the last one immediately.
            let now = (report.health, report.ejection);
            let before = known.get(&key).copied().unwrap_or((Health::Up, None));
            up += usize::from(report.health == Health::Up);
            up_before += usize::from(before.0 == Health::Up);
            if before != now {
                let what = Change { upstream: name, server: &key.1, report: &report };
                if is_only {
                    what.log_only_server()
                } else {
                    what.log_change()
                }
                changed = true;
            }
            seen.insert(key, now);
        }
        let servers = roster.len();
        if is_only || !changed {
            continue;
        }
        if up == 0 {
            tracing::error!(
                upstream = name,
                "upstream {name}: all servers are down; sending requests anyway (fail open)"
            );
        } else if up_before == 0 {
            tracing::info!(
                upstream = name,
                "upstream {name}: {up} of {servers} servers up; sending requests to no others"
            );
        }
    }
    seen
}

/// New state of a server.
struct Change<'a> {
    upstream: &'a str,
    server: &'a str,
    report: &'a HealthReport,
}

impl Change<'_> {
    /// Logs the state of one of several servers.
    fn log_change(&self) {
        let Change { upstream, server, report } = *self;
        let reason = report.reason.unwrap_or_default();
        match (report.health, report.ejection) {
            (Health::Up, _) => tracing::info!(upstream, server, "upstream {upstream}: server {server} is up"),
            (Health::Ejected, Some(ejection)) => {
                let time = Duration::from_millis(ejection.for_ms);
                tracing::warn!(
                    upstream,
                    server,
                    reason,
                    "upstream {upstream}: server {server} ejected for {time:?} ({reason})"
                );
            }
            (Health::Refusing, _) => {
                tracing::warn!(
                    upstream,
                    server,
                    reason,
                    "upstream {upstream}: server {server} accepts no connections ({reason})"
                );
            }
            _ => tracing::warn!(upstream, server, reason, "upstream {upstream}: server {server} is down ({reason})"),
        }
    }

    /// Logs the state of an upstream's only server, which receives requests whether it is healthy or not.
    fn log_only_server(&self) {
        let Change { upstream, server, report } = *self;
        let reason = report.reason.unwrap_or_default();
        match report.health {
            Health::Up => tracing::info!(upstream, server, "upstream {upstream}: its only server {server} is up"),
            _ => tracing::error!(
                upstream,
                server,
                reason,
                "upstream {upstream}: its only server {server} is down ({reason}); sending requests anyway"
            ),
        }
    }
}
