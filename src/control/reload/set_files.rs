//! Reports rows of the files of named sets that are skipped, and keeps networks that such files have lost with them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::Config;
use crate::limiting::limit::address_set::{AddressSet, SetFile};
use crate::net::IpSet;
use crate::telemetry::metrics::StoreMetrics;

/// Lets the sets of a new config keep networks of the old one whose rows may have got mistakes since, wherever being in
/// the set restricts a client.
pub fn keep_networks(config: &mut Config, old: &Config) {
    let mut has_kept = false;
    for file in config.set_files.iter().filter(|file| file.rejected.count > 0) {
        let is_same = |before: &&SetFile| (&before.name, &before.path) == (&file.name, &file.path);
        let Some(before) = old.set_files.iter().find(is_same) else { continue };
        let kept = file.addresses.keep_networks(&before.addresses);
        if kept > 0 {
            has_kept = true;
            tracing::warn!(
                set = file.name,
                kept,
                "the file of the set has rows with errors, so `deny` and `client` keep networks that it has no longer"
            );
        }
    }
    if !has_kept {
        return;
    }
    // Routes share lists that are equal; those of several sets may be, without their wrong rows.
    let mut extended: HashMap<(*const IpSet, Vec<*const AddressSet>), Arc<IpSet>> = HashMap::new();
    for route in config.routes.iter_mut().filter(|route| !route.wrong_deny_sets.is_empty()) {
        let (deny, sets) = (&route.deny, &route.wrong_deny_sets);
        let extend = || {
            let mut all = IpSet::clone(deny);
            sets.iter().filter_map(|set| set.kept()).for_each(|kept| all.extend(kept));
            Arc::new(all)
        };
        let list = (Arc::as_ptr(deny), sets.iter().map(Arc::as_ptr).collect());
        route.deny = extended.entry(list).or_insert_with(extend).clone();
    }
}

/// Logs and counts the rows that are skipped.
pub fn report_rows(config: &Config, metrics: &StoreMetrics) {
    metrics.rejected_set_rows.reset();
    for file in &config.set_files {
        let count = i64::try_from(file.rejected.count).unwrap_or(i64::MAX);
        metrics.rejected_set_rows.with_label_values(&[&file.name]).set(count);
        if let Some(mistakes) = file.rejected.describe() {
            let path = file.path.display();
            tracing::error!(set = file.name, %path, "rows skipped, the others are active: {mistakes}");
        }
    }
}
