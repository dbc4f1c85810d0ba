//! Option `lease` of limits with hot keys. Called by `limits`; `lease` of `concurrency` is an option of that algorithm.

use crate::config::compile::limits::charges::find_outcome_option;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::tree::Value;
use crate::limiting::algorithm::lease_basis::LeaseTerms;
use crate::limiting::algorithm::{LeaseBasis, Rule};
use crate::limiting::hot_keys::terms::SIZE_MIN;

/// Returns whether the section has the table `lease`, which is not an option of an algorithm.
pub fn has_lease_table(section: &Section) -> bool {
    section.node(&limit::LEASE).is_some_and(|node| matches!(node.value, Value::Table(_)))
}

/// Compiles the option. `None` means a mistake; `Some(None)` means that it is not set. `refunded_for` is an upstream
/// whose refusals the limit refunds.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is an error")]
pub fn compile_lease(
    section: &Section,
    rule: Option<&Rule>,
    refunded_for: Option<&String>,
) -> Option<Option<LeaseTerms>> {
    if !has_lease_table(section) {
        return Some(None);
    }
    let node = section.node(&limit::LEASE)?;
    let table = section.read_section(&limit::LEASE)?;
    let horizon_ms = i64::try_from(table.get(&limit::lease::HORIZON).as_millis()).unwrap_or(i64::MAX);
    let rate = table.get(&limit::lease::HOT_AFTER);
    let hot_after = (rate.count.saturating_mul(1000) / rate.per_ms).max(1);
    table.report_unread_keys();
    if let Some((option, _)) = find_outcome_option(section) {
        let what = format!("cannot be combined with {}: units of a lease are not refunded", option.name);
        return section.report_fault(limit::LEASE.name, node, &what, "remove one of the two");
    }
    if let Some(upstream) = refunded_for {
        let what = format!(
            "a route of this limit refunds what upstream {upstream} refuses, but units of a lease are not refunded"
        );
        let help = format!("remove it, or `adaptive` and `breaker` of [upstream.{upstream}]");
        return section.report_fault(limit::LEASE.name, node, &what, &help);
    }
    let rule = rule?;
    let Some(basis) = rule.lease_basis() else {
        return match rule {
            Rule::TokenBucket(_) => {
                let what = "cannot be combined with debt: a lease takes only what the bucket contains";
                section.report_fault(limit::LEASE.name, node, what, "remove one of the two")
            }
            Rule::Fair(_) => {
                let what = "cannot be combined with fair: Redis has to know the tenant of every unit";
                section.report_fault(limit::LEASE.name, node, what, "remove one of the two")
            }
            _ => {
                let what = format!("{} has no leases of units", rule.name());
                let help = "use token_bucket, gcra, fixed_window or calendar, or remove `lease`";
                section.report_fault(limit::LEASE.name, node, &what, help)
            }
        };
    };
    let fault = describe_useless(&basis, horizon_ms)
        .map(|(what, help)| section.report_fault(limit::LEASE.name, node, &what, &help));
    fault.unwrap_or(Some(Some(LeaseTerms { horizon_ms, hot_after })))
}

/// Returns why the limit would have no leases with this horizon, and what to change.
fn describe_useless(basis: &LeaseBasis, horizon_ms: i64) -> Option<(String, String)> {
    if !basis.can_lease(horizon_ms) {
        let units = basis.units_in(horizon_ms);
        let what = format!(
            "the rate refills {units} units within the horizon of {horizon_ms}ms, and the burst must be more than twice that"
        );
        return Some((what, format!("shorten `horizon`, or raise `burst` to {} or more", 2 * units + 1)));
    }
    if basis.units_in(horizon_ms) < SIZE_MIN {
        let what = format!("the rate admits less than {SIZE_MIN} units within the horizon of {horizon_ms}ms");
        return Some((what, "remove it: leases only help limits with higher rates".to_owned()));
    }
    None
}
