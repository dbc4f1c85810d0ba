//! Formats what a tenant has of a shared budget. Called by `mod.rs`.

use serde_json::{Value, json};

use crate::limiting::algorithm::fair::TenantShare;

/// Formats the standing of a tenant that shares a budget.
pub fn format_standing(standing: &TenantShare) -> Value {
    let TenantShare { active, weight, total_weight, rate, backlog, reserve } = *standing;
    json!({
        "active": active, "weight": weight, "total_weight": total_weight, "rate_per_second": rate,
        "reserve": reserve, "must_leave": backlog,
    })
}
