//! Formats what a tenant has of a shared budget. Called by `mod.rs`.

use serde_json::{Value, json};

use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::fair::TenantShare;
use crate::limiting::answer::Answer;

/// Adds the share of a tenant to the state of its budget, if tenants share it. `answer` is that to a cost of 0.
pub fn add_standing(state: &mut Value, rule: &Rule, answer: &Answer) {
    let Some(share) = rule.tenant_share(answer) else { return };
    let TenantShare { active, weight, total_weight, rate, backlog, reserve } = share;
    state["fair"] = json!({
        "active": active, "weight": weight, "total_weight": total_weight, "rate_per_second": rate,
        "reserve": reserve, "must_leave": backlog,
    });
}
