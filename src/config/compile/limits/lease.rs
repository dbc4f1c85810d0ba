//! Option `lease` of limits with hot keys. Called by `limits`; `lease` of `concurrency` is an option of that algorithm.

use crate::config::reader::Section;
use crate::config::tree::Value;
use crate::config::{schema, values};
use crate::limiting::algorithm::lease_basis::LeaseTerms;
use crate::limiting::algorithm::{LeaseBasis, Rule};
use crate::limiting::hot_keys::terms::SIZE_MIN;

/// Default of `horizon`, in ms.
const HORIZON_MS: i64 = 100;
/// Default of `hot_after`: decisions per second.
const HOT_AFTER: i64 = 200;

/// Returns whether the section has the table `lease`, which is not an option of an algorithm.
pub fn has_lease_table(section: &Section) -> bool {
    section.node("lease").is_some_and(|node| matches!(node.value, Value::Table(_)))
}

/// Compiles the option. `None` means a mistake; `Some(None)` means that it is not set. `refunded_for` is an upstream
/// whose refusals the limit refunds.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is a mistake")]
pub fn compile_lease(
    section: &Section,
    rule: Option<&Rule>,
    refunded_for: Option<&String>,
) -> Option<Option<LeaseTerms>> {
    if !has_lease_table(section) {
        return Some(None);
    }
    let node = section.node("lease")?;
    let table = section.read_section("lease", &schema::limit::lease::TABLE)?;
    let horizon = match table.node("horizon") {
        None => Some(HORIZON_MS),
        Some(_) => table.read_duration("horizon").and_then(|horizon| i64::try_from(horizon.as_millis()).ok()),
    };
    let hot_after = match table.node("hot_after") {
        None => Some(HOT_AFTER),
        Some(_) => table
            .parse_string("hot_after", values::parse_rate)
            .map(|rate| (rate.count.saturating_mul(1000) / rate.per_ms).max(1)),
    };
    table.report_unread_keys();
    if let Some(key) = ["charge_on", "refund_on", "settle"].into_iter().find(|key| section.node(key).is_some()) {
        let what = format!("cannot be combined with {key}: units of a lease are not refunded");
        return section.report_fault("lease", node, &what, "remove one of the two");
    }
    if let Some(upstream) = refunded_for {
        let what = format!(
            "a route of this limit refunds what upstream {upstream} refuses, but units of a lease are not refunded"
        );
        let help = format!("remove it, or `adaptive` and `breaker` of [upstream.{upstream}]");
        return section.report_fault("lease", node, &what, &help);
    }
    let (rule, horizon_ms, hot_after) = (rule?, horizon?, hot_after?);
    let Some(basis) = rule.lease_basis() else {
        return match rule {
            Rule::TokenBucket(_) => {
                let what = "cannot be combined with debt: a lease takes only what the bucket contains";
                section.report_fault("lease", node, what, "remove one of the two")
            }
            Rule::Fair(_) => {
                let what = "cannot be combined with fair: Redis has to know the tenant of every unit";
                section.report_fault("lease", node, what, "remove one of the two")
            }
            _ => {
                let what = format!("{} has no leases of units", rule.name());
                let help = "use token_bucket, gcra, fixed_window or calendar, or remove `lease`";
                section.report_fault("lease", node, &what, help)
            }
        };
    };
    let fault =
        describe_useless(&basis, horizon_ms).map(|(what, help)| section.report_fault("lease", node, &what, &help));
    fault.unwrap_or(Some(Some(LeaseTerms { horizon_ms, hot_after })))
}

/// Returns why the limit would have no leases with this horizon, and what to change.
fn describe_useless(basis: &LeaseBasis, horizon_ms: i64) -> Option<(String, String)> {
    if !basis.can_lease(horizon_ms) {
        let refilled = basis.units_in(horizon_ms);
        let what = format!(
            "the rate refills {refilled} units within the horizon of {horizon_ms}ms, and the burst must be more than twice that"
        );
        return Some((what, format!("shorten `horizon`, or raise `burst` to {} or more", 2 * refilled + 1)));
    }
    if basis.units_in(horizon_ms) < SIZE_MIN {
        let what = format!("the rate admits less than {SIZE_MIN} units within the horizon of {horizon_ms}ms");
        return Some((what, "remove it: leases only help limits with higher rates".to_owned()));
    }
    None
}
