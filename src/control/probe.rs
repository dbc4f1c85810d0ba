//! Active health checks: one task per checked server. Run by the control thread.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::proxy::outbound::health_check::check_server;
use crate::snapshot::Fleet;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::health::{CheckFault, HealthRule};
use crate::upstream::proxy_header::ProxyVersion;
use crate::upstream::roster::{Member, UpstreamState};
use crate::upstream::state::ServerState;

/// Interval at which new servers are noticed.
const NOTICE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of concurrent checks; further ones wait.
const CHECKS_MAX: usize = 64;
/// Interval over which the first checks of all servers are spread.
const FIRST_CHECK_JITTER: Duration = Duration::from_millis(500);

/// A server and how it is checked.
struct CheckedServer {
    state: Arc<ServerState>,
    rule: HealthRule,
    proxy: Option<ProxyVersion>,
    task: AbortHandle,
}

impl Drop for CheckedServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs the checks of all servers. Never returns.
pub async fn run_probes(fleet: Fleet) {
    let mut glances = interval(NOTICE_INTERVAL);
    glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let permits = Rc::new(Semaphore::new(CHECKS_MAX));
    let mut checks: HashMap<(String, Endpoint), CheckedServer> = HashMap::new();
    loop {
        glances.tick().await;
        let mut next = HashMap::new();
        for upstream in fleet.upstreams() {
            let Some(rule) = &upstream.settings.health else { continue };
            for member in upstream.roster().iter() {
                let key = (upstream.settings.name.clone(), member.endpoint.clone());
                let proxy = upstream.settings.proxy_protocol;
                let same = |check: &CheckedServer| {
                    Arc::ptr_eq(&check.state, &member.state) && check.rule == *rule && check.proxy == proxy
                };
                let check = checks.remove(&key).filter(same);
                next.insert(key, check.unwrap_or_else(|| start_check(&fleet, &upstream, member, rule, &permits)));
            }
        }
        for left in std::mem::replace(&mut checks, next).into_values() {
            // A result that arrives after the config changed would never be corrected.
            left.task.abort();
            left.state.clear_checks();
        }
    }
}

fn start_check(
    fleet: &Fleet,
    upstream: &UpstreamState,
    member: &Member,
    rule: &HealthRule,
    permits: &Rc<Semaphore>,
) -> CheckedServer {
    let proxy = upstream.settings.proxy_protocol;
    let task = spawn_local(run_check(
        fleet.clone(),
        upstream.settings.name.clone(),
        member.clone(),
        rule.clone(),
        proxy,
        permits.clone(),
    ));
    CheckedServer { state: member.state.clone(), rule: rule.clone(), proxy, task: task.abort_handle() }
}

/// Checks one server until the task is aborted.
async fn run_check(
    fleet: Fleet,
    upstream: String,
    member: Member,
    rule: HealthRule,
    proxy: Option<ProxyVersion>,
    permits: Rc<Semaphore>,
) {
    let (every, limit) = (Duration::from_millis(rule.every_ms), Duration::from_millis(rule.timeout_ms));
    let endpoint = &member.endpoint;
    sleep(FIRST_CHECK_JITTER.min(every).mul_f64(rand::random())).await;
    loop {
        let start = Instant::now();
        let result = {
            let _place = permits.acquire().await;
            timeout(limit, check_server(endpoint, &rule, proxy)).await.unwrap_or(Err(CheckFault::Timeout))
        };
        if let Err(fault) = result {
            tracing::debug!(upstream, server = %endpoint, reason = fault.label(), "a check failed");
        }
        if result != Err(CheckFault::NoResources) {
            member.state.record_check(&rule, result, fleet.now_ms());
        }
        // The pause is random, so that several gateways do not check at the same moment.
        let pause = every.mul_f64(0.9 + rand::random::<f64>() / 5.0);
        sleep(pause.saturating_sub(start.elapsed())).await;
    }
}
