//! DNS state of an upstream hostname or service: the addresses of the last successful lookup, and the results of all
//! lookups. Kept by `snapshot::fleet`, written by the control thread.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::labels::labels;

/// Maximum number of addresses used per name. Further addresses of a DNS response are ignored.
pub const ADDRESSES_MAX: usize = 256;

labels! {
    /// The result of a lookup.
    LookupOutcome:
    Found = "found",
    /// The name does not exist, or it has no address.
    NoAddress = "no_address",
    /// No DNS server responded in time.
    TimedOut = "timeout",
    /// A DNS server refused, failed, or could not be reached.
    Failed = "failed",
}

/// One address of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedAddress {
    pub ip: IpAddr,
    /// The port that an SRV record states. `None`: the port in the config.
    pub port: Option<u16>,
    /// Share of the name's requests, relative to its other addresses. Never 0.
    pub weight: u32,
}

/// An address of a hostname: all have the same weight.
impl From<IpAddr> for NamedAddress {
    fn from(ip: IpAddr) -> NamedAddress {
        NamedAddress { ip, port: None, weight: 1 }
    }
}

/// DNS state of one hostname or service, shared by all upstreams that use it.
pub struct HostnameState {
    pub name: String,
    addresses: Mutex<Arc<[NamedAddress]>>,
    /// A lookup was requested before the next regular one.
    requested: AtomicBool,
    lookups: [AtomicU64; LookupOutcome::ALL.len()],
    /// The outcome of the last lookup plus 1. 0: there was none.
    last: AtomicU64,
}

impl HostnameState {
    pub fn new(name: &str) -> HostnameState {
        HostnameState {
            name: name.to_owned(),
            addresses: Mutex::new(Arc::new([])),
            requested: AtomicBool::new(false),
            lookups: Default::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Returns the addresses of the last successful lookup, in ascending order. Empty before the first.
    pub fn addresses(&self) -> Arc<[NamedAddress]> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores the addresses of a lookup, unless there are none. Returns whether they differ from those before.
    pub fn store_addresses(&self, addresses: &[NamedAddress]) -> bool {
        let mut current = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = !addresses.is_empty() && **current != *addresses;
        if has_changed {
            *current = addresses.into();
        }
        has_changed
    }

    /// Requests a lookup, because none of the servers can be reached: they may have moved.
    pub fn request_lookup(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Returns whether a lookup was requested before the next regular one.
    pub fn is_lookup_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Records that a lookup begins.
    pub fn begin_lookup(&self) {
        self.requested.store(false, Ordering::Relaxed);
    }

    /// Counts a finished lookup.
    pub fn count_lookup(&self, outcome: LookupOutcome) {
        self.lookups[outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.last.store(outcome as u64 + 1, Ordering::Relaxed);
    }

    /// Returns the number of lookups with this outcome.
    pub fn lookups(&self, outcome: LookupOutcome) -> u64 {
        self.lookups[outcome as usize].load(Ordering::Relaxed)
    }

    /// Returns the outcome of the last lookup.
    pub fn last_outcome(&self) -> Option<LookupOutcome> {
        let last = self.last.load(Ordering::Relaxed);
        LookupOutcome::ALL.iter().copied().find(|outcome| *outcome as u64 + 1 == last)
    }
}

/// Returns the addresses of a DNS response that can be connected to, each once, in ascending order. If there are too
/// many, those of `before` are preferred.
pub fn usable_addresses(resolved: Vec<NamedAddress>, before: &[NamedAddress]) -> Vec<NamedAddress> {
    let mut addresses = resolved;
    addresses.iter_mut().for_each(|address| address.ip = address.ip.to_canonical());
    addresses.retain(|address| is_usable(&address.ip));
    addresses.sort_unstable();
    addresses.dedup_by_key(|address| (address.ip, address.port));
    if addresses.len() > ADDRESSES_MAX {
        let is_known = |one: &NamedAddress| before.iter().any(|other| (one.ip, one.port) == (other.ip, other.port));
        addresses.sort_by_key(|address| !is_known(address));
        addresses.truncate(ADDRESSES_MAX);
        addresses.sort_unstable();
    }
    addresses
}

/// Returns whether the address belongs to a single machine.
fn is_usable(ip: &IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !is_broadcast
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> NamedAddress {
        IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + number)).into()
    }

    #[test]
    fn addresses_are_bounded_and_earlier_ones_are_kept() {
        let many = || (0..10_000).map(ip);
        let first = usable_addresses(many().rev().collect(), &[]);
        assert_eq!((first.len(), first[0], first[255]), (ADDRESSES_MAX, ip(0), ip(255)));
        let before = [ip(9_000), ip(9_999)];
        let next = usable_addresses(many().collect(), &before);
        assert_eq!((next.len(), next[253]), (ADDRESSES_MAX, ip(253)));
        assert_eq!(next[254..], before);
        let odd = ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:10.0.0.1", "10.0.0.1"];
        assert_eq!(usable_addresses(odd.map(|ip| ip.parse::<IpAddr>().unwrap().into()).into(), &[]), [ip(1)]);
    }

    #[test]
    fn a_name_keeps_its_addresses_when_nothing_is_found() {
        let name = HostnameState::new("app");
        assert!(name.store_addresses(&[ip(1)]) && !name.store_addresses(&[ip(1)]) && !name.store_addresses(&[]));
        assert_eq!((&*name.addresses(), name.last_outcome()), ([ip(1)].as_slice(), None));
        name.count_lookup(LookupOutcome::NoAddress);
        assert_eq!((name.last_outcome(), name.lookups(LookupOutcome::NoAddress)), (Some(LookupOutcome::NoAddress), 1));
    }
}
