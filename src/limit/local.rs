//! The rule by which a gateway decides alone, without the store. Called by `limiter`, `desk` and the admin listener.

use std::sync::Arc;

use super::algo::Rule;
use crate::metrics::Gateways;

/// This gateway's share of `rule`. Slots end with the process that had them, so its restarts do not count.
pub fn local_rule(rule: &Arc<Rule>, gateways: &Gateways) -> Arc<Rule> {
    let period_ms = if rule.lease_ms().is_some() { 0 } else { rule.policy().window_ms };
    match gateways.divisor(period_ms) {
        ..=1 => rule.clone(),
        divisor => Arc::new(rule.share(divisor)),
    }
}
