//! What is known of a name that servers are written with: the addresses that it had when it was last found,
//! and what became of the lookups. Kept by `snapshot::fleet`, written by the control thread.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::labels::labels;

/// Addresses of one name that are used; what else an answer holds is not.
pub const ADDRESSES_MAX: usize = 256;

labels! {
    /// What became of a lookup.
    LookupOutcome:
    Found = "found",
    /// There is no such name, or it has no address.
    NoAddress = "no_address",
    /// No server answered in time.
    TimedOut = "timeout",
    /// A server refused, failed, or could not be asked.
    Failed = "failed",
}

pub struct KnownName {
    pub name: String,
    addresses: Mutex<Arc<[IpAddr]>>,
    /// It is to be looked up as soon as it may be.
    urged: AtomicBool,
    lookups: [AtomicU64; LookupOutcome::ALL.len()],
    /// Of the last lookup, plus 1; 0 = there was none.
    last: AtomicU64,
}

impl KnownName {
    pub fn new(name: &str) -> KnownName {
        KnownName {
            name: name.to_owned(),
            addresses: Mutex::new(Arc::new([])),
            urged: AtomicBool::new(false),
            lookups: Default::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Those it had when it was last found, in ascending order; none before.
    pub fn addresses(&self) -> Arc<[IpAddr]> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True when that is a change. What is empty changes nothing.
    pub fn found(&self, addresses: &[IpAddr]) -> bool {
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = !addresses.is_empty() && **known != *addresses;
        if changed {
            *known = addresses.into();
        }
        changed
    }

    /// None of its servers can be reached: they may have moved.
    pub fn urge(&self) {
        self.urged.store(true, Ordering::Relaxed);
    }

    pub fn is_urged(&self) -> bool {
        self.urged.load(Ordering::Relaxed)
    }

    /// A lookup begins.
    pub fn begin(&self) {
        self.urged.store(false, Ordering::Relaxed);
    }

    pub fn count(&self, outcome: LookupOutcome) {
        self.lookups[outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.last.store(outcome as u64 + 1, Ordering::Relaxed);
    }

    pub fn lookups(&self, outcome: LookupOutcome) -> u64 {
        self.lookups[outcome as usize].load(Ordering::Relaxed)
    }

    /// What became of the last lookup.
    pub fn last(&self) -> Option<LookupOutcome> {
        let last = self.last.load(Ordering::Relaxed);
        LookupOutcome::ALL.iter().copied().find(|outcome| *outcome as u64 + 1 == last)
    }
}

/// The addresses of an answer that may be connected to, each once, in ascending order. Of too many, those that
/// were there before stay.
pub fn usable(answered: impl IntoIterator<Item = IpAddr>, before: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = answered.into_iter().map(|ip| ip.to_canonical()).filter(is_usable).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.len() > ADDRESSES_MAX {
        addresses.sort_by_key(|ip| !before.contains(ip));
        addresses.truncate(ADDRESSES_MAX);
        addresses.sort_unstable();
    }
    addresses
}

/// It is one machine's.
fn is_usable(ip: &IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !is_broadcast
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + number))
    }

    #[test]
    fn what_an_answer_holds_is_bounded_and_what_stays_stays() {
        let many = || (0..10_000).map(ip);
        let first = usable(many().rev(), &[]);
        assert_eq!((first.len(), first[0], first[255]), (ADDRESSES_MAX, ip(0), ip(255)));
        let before = [ip(9_000), ip(9_999)];
        let next = usable(many(), &before);
        assert_eq!((next.len(), next[253]), (ADDRESSES_MAX, ip(253)));
        assert_eq!(next[254..], before);
        let odd = ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:10.0.0.1", "10.0.0.1"];
        assert_eq!(usable(odd.map(|ip| ip.parse().unwrap()), &[]), [ip(1)]);
    }

    #[test]
    fn a_name_keeps_its_addresses_when_nothing_is_found() {
        let name = KnownName::new("app");
        assert!(name.found(&[ip(1)]) && !name.found(&[ip(1)]) && !name.found(&[]));
        assert_eq!((&*name.addresses(), name.last()), ([ip(1)].as_slice(), None));
        name.count(LookupOutcome::NoAddress);
        assert_eq!((name.last(), name.lookups(LookupOutcome::NoAddress)), (Some(LookupOutcome::NoAddress), 1));
    }
}
