//! The networks of a named set (`[set.NAME]`), for `deny`, `allow` and conditions on the address of the client.
//!
//! A row of its file that is not a network is skipped. The row may have replaced one that was right, so the networks
//! that the file lost with it stay wherever being in the set restricts a client: a typing error lifts no block.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::limiting::overrides::RejectedRows;
use crate::net::IpSet;

/// The file of a named set.
#[derive(Debug)]
pub struct SetFile {
    /// The name of the set.
    pub name: String,
    pub path: PathBuf,
    pub addresses: Arc<AddressSet>,
    /// Rows that are skipped because of an error.
    pub rejected: RejectedRows,
}

/// The networks of a named set.
#[derive(Debug, Default)]
pub struct AddressSet {
    pub networks: IpSet,
    /// Number of all items.
    pub len: usize,
    /// Rows of the file that are not networks, the first of very many.
    wrong_rows: BTreeSet<String>,
    /// Number of all such rows.
    wrong_count: usize,
    /// Networks that the file had before it got such rows.
    kept: OnceLock<IpSet>,
}

impl AddressSet {
    pub fn new(networks: IpSet, len: usize, wrong_rows: BTreeSet<String>, wrong_count: usize) -> AddressSet {
        AddressSet { networks, len, wrong_rows, wrong_count, kept: OnceLock::new() }
    }

    /// Returns whether the set contains the address for sure.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.networks.contains(ip)
    }

    /// Returns whether the set contains the address, or did so before its file got rows that cannot be read.
    pub fn may_contain(&self, ip: IpAddr) -> bool {
        self.contains(ip) || self.kept.get().is_some_and(|kept| kept.contains(ip))
    }

    /// Returns the networks that the set keeps although its file has them no longer.
    pub fn kept(&self) -> Option<&IpSet> {
        self.kept.get()
    }

    /// Keeps the networks that `before`, the earlier version of the file, has in addition, if a row has become wrong
    /// since; and those that `before` keeps itself, until no row is wrong. Returns how many.
    pub fn keep_networks(&self, before: &AddressSet) -> usize {
        if self.wrong_rows.is_empty() {
            return 0;
        }
        // Of very many wrong rows, only the number shows that there is another one.
        let has_new =
            self.wrong_count > before.wrong_count || self.wrong_rows.iter().any(|row| !before.wrong_rows.contains(row));
        let listed = has_new.then_some(&before.networks);
        let candidates = listed.into_iter().chain(before.kept()).flat_map(IpSet::iter);
        let kept: IpSet = candidates.filter(|network| !self.networks.has_network(*network)).collect();
        let count = kept.iter().count();
        if count > 0 {
            // A config adopts once, before it becomes active.
            let _ = self.kept.set(kept);
        }
        count
    }
}

/// Compares the networks of the files. Networks that are only kept are not part of a config.
impl PartialEq for AddressSet {
    fn eq(&self, other: &AddressSet) -> bool {
        self.networks == other.networks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::parse_network;

    fn set(networks: &[&str], wrong_rows: &[&str]) -> AddressSet {
        many(networks, wrong_rows, wrong_rows.len())
    }

    /// A set of which only some wrong rows are known.
    fn many(networks: &[&str], wrong_rows: &[&str], wrong_count: usize) -> AddressSet {
        let wrong_rows = wrong_rows.iter().map(|row| (*row).to_owned()).collect();
        let parsed = networks.iter().filter_map(|text| parse_network(text)).collect();
        AddressSet::new(parsed, networks.len(), wrong_rows, wrong_count)
    }

    #[test]
    fn a_mistake_after_very_many_is_new() {
        let first = many(&["10.0.0.0/8", "192.0.2.0/24"], &["x"], 500);
        assert_eq!(many(&["192.0.2.0/24"], &["x"], 501).keep_networks(&first), 1);
        assert_eq!(many(&["192.0.2.0/24"], &["x"], 500).keep_networks(&first), 0);
    }

    #[test]
    fn networks_stay_from_a_new_mistake_until_no_row_is_wrong() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = set(&["10.0.0.0/8", "192.0.2.0/24"], &[]);
        let broken = set(&["192.0.2.0/24"], &["10.0.0.0/99"]);
        assert_eq!(broken.keep_networks(&first), 1);
        assert!(broken.may_contain(ip("10.1.1.1")) && !broken.contains(ip("10.1.1.1")));
        // The mistake is known, so a row that goes now was removed on purpose.
        let shorter = set(&[], &["10.0.0.0/99"]);
        assert_eq!(shorter.keep_networks(&broken), 1);
        assert!(shorter.may_contain(ip("10.1.1.1")) && !shorter.may_contain(ip("192.0.2.1")));
        let mended = set(&["203.0.113.0/24"], &[]);
        assert_eq!(mended.keep_networks(&shorter), 0);
        assert!(!mended.may_contain(ip("10.1.1.1")));
    }
}
