//! The memory store and the Redis store: exact decisions, expiry of keys, clocks, and memory per key.

mod bans;
mod bytes_per_key;
mod charging;
mod clocks;
mod evictions;
mod expiry;
mod log_blocks;
mod long_decisions;
mod lost_tasks;
mod receipts;
mod redis;
mod redis_state;

use sluicegate::limiting::decision::Check;

use crate::support::limiting::check;
use crate::support::limiting::variants::{Variant, variants};

/// A time in the middle of an hour, day, week, month and year.
const NOW: i64 = 1_781_531_234_567;

/// One unit of a form's limit.
fn one(variant: &Variant) -> Check {
    check(&variant.limit(), "all", 1)
}

#[test]
fn every_algorithm_has_its_forms() {
    let variants = variants(10);
    for name in crate::support::limiting::rules::limit_rules() {
        assert!(variants.iter().any(|variant| variant.algorithm() == name), "{name} has no form");
    }
    for variant in variants {
        assert_eq!(variant.limit().rule.name(), variant.algorithm());
    }
}
