//! Checks servers: one task for each that is to be checked, as long as it is. Started by the control thread.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::http::upstream::check::check;
use crate::snapshot::Fleet;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::health::{CheckFault, HealthRule};
use crate::upstream::introduction::ProxyVersion;
use crate::upstream::roster::{Member, UpstreamState};
use crate::upstream::state::ServerState;

/// How soon new servers are noticed.
const GLANCE: Duration = Duration::from_millis(200);
/// Checks under way at once: more wait.
const AT_ONCE: usize = 64;
/// The first checks of all servers are spread over so long.
const SPREAD: Duration = Duration::from_millis(500);

/// Who is checked, and how.
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

/// For ever.
pub async fn follow(fleet: Fleet) {
    let mut glances = interval(GLANCE);
    glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let room = Rc::new(Semaphore::new(AT_ONCE));
    let mut checked: HashMap<(String, Endpoint), CheckedServer> = HashMap::new();
    loop {
        glances.tick().await;
        let mut next = HashMap::new();
        for upstream in fleet.upstreams() {
            let Some(rule) = &upstream.settings.health else { continue };
            for member in upstream.roster().iter() {
                let key = (upstream.settings.name.clone(), member.endpoint.clone());
                let proxy = upstream.settings.proxy_protocol;
                let same = |known: &CheckedServer| {
                    Arc::ptr_eq(&known.state, &member.state) && known.rule == *rule && known.proxy == proxy
                };
                let known = checked.remove(&key).filter(same);
                next.insert(key, known.unwrap_or_else(|| begin(&fleet, &upstream, member, rule, &room)));
            }
        }
        for left in std::mem::replace(&mut checked, next).into_values() {
            // What it found since the config changed would stand for ever.
            left.task.abort();
            left.state.unchecked();
        }
    }
}

fn begin(
    fleet: &Fleet,
    upstream: &UpstreamState,
    member: &Member,
    rule: &HealthRule,
    room: &Rc<Semaphore>,
) -> CheckedServer {
    let proxy = upstream.settings.proxy_protocol;
    let task = spawn_local(check_on(
        fleet.clone(),
        upstream.settings.name.clone(),
        member.clone(),
        rule.clone(),
        proxy,
        room.clone(),
    ));
    CheckedServer { state: member.state.clone(), rule: rule.clone(), proxy, task: task.abort_handle() }
}

/// Until it is aborted.
async fn check_on(
    fleet: Fleet,
    upstream: String,
    member: Member,
    rule: HealthRule,
    proxy: Option<ProxyVersion>,
    room: Rc<Semaphore>,
) {
    let (every, limit) = (Duration::from_millis(rule.every_ms), Duration::from_millis(rule.timeout_ms));
    let endpoint = &member.endpoint;
    sleep(SPREAD.min(every).mul_f64(rand::random())).await;
    loop {
        let begun = Instant::now();
        let result = {
            let _place = room.acquire().await;
            timeout(limit, check(endpoint, &rule, proxy)).await.unwrap_or(Err(CheckFault::Timeout))
        };
        if let Err(fault) = result {
            tracing::debug!(upstream, server = %endpoint, reason = fault.label(), "a check failed");
        }
        if result != Err(CheckFault::NotAsked) {
            member.state.checked(&rule, result, fleet.now_ms());
        }
        // A little more or less, so that gateways do not ask all at once.
        let pause = every.mul_f64(0.9 + rand::random::<f64>() / 5.0);
        sleep(pause.saturating_sub(begun.elapsed())).await;
    }
}
