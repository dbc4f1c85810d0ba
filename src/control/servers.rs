//! Says in the log how servers stand, at each change, however many workers notice it. Started by the control
//! thread.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::snapshot::Fleet;
use crate::upstream::state::{Ejection, Health, HealthReport};

/// Changes that are undone sooner are not told.
const GLANCE: Duration = Duration::from_millis(200);

/// For ever.
pub async fn follow(fleet: Fleet) {
    let mut glances = interval(GLANCE);
    glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = HashMap::new();
    loop {
        glances.tick().await;
        known = look(&fleet, &known);
    }
}

/// By upstream and server.
type Known = HashMap<(String, String), (Health, Option<Ejection>)>;

fn look(fleet: &Fleet, known: &Known) -> Known {
    let (mut seen, now_ms) = (HashMap::new(), fleet.now_ms());
    for upstream in fleet.upstreams() {
        let name = &upstream.settings.name;
        let roster = upstream.roster();
        let (mut changed, mut up) = (false, 0);
        for member in roster.iter() {
            let (server, told) = (member.endpoint.to_string(), member.state.told(now_ms));
            up += usize::from(told.health == Health::Up);
            let key = (name.clone(), server);
            // Another ejection is told, however short the time between.
            let stands = (told.health, told.ejection);
            if known.get(&key).copied().unwrap_or((Health::Up, None)) != stands {
                tell(name, &key.1, &told);
                changed = true;
            }
            seen.insert(key, stands);
        }
        if changed && up == 0 {
            tracing::error!(upstream = name, "no server is up: requests go to all of them as if they were");
        }
    }
    seen
}

fn tell(upstream: &str, server: &str, told: &HealthReport) {
    let reason = told.reason.unwrap_or_default();
    match (told.health, told.ejection) {
        (Health::Up, _) => tracing::info!(upstream, server, "server is up"),
        (Health::Ejected, Some(ejection)) => {
            let time = Duration::from_millis(ejection.for_ms);
            tracing::warn!(upstream, server, reason, "server ejected for {time:?}");
        }
        (health, _) => tracing::warn!(upstream, server, reason, "server is {}", health.label()),
    }
}
