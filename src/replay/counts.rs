//! Counts of replayed requests by result. Filled by the replay, read by `text` and `json`.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;

use crate::limiting::usage::sketch::DistinctKeys;
use crate::replay::input::entry::{ClientOrigin, ReplayEntry};
use crate::replay::input::source::LogPlace;

/// Fewer requests do not show that a private address is a proxy.
pub const LINES_MIN: u64 = 100;

#[derive(Default)]
pub struct Counts {
    pub admitted: u64,
    pub refused: u64,
    /// Not refused by the limits that could be evaluated, while other limits of the route could not be.
    pub not_evaluated: u64,
    /// Part of the admitted ones that were delayed.
    pub delayed: u64,
    pub longest_delay_ms: i64,
    /// Lines without a request, such as TLS on a plain port.
    pub no_request: u64,
    /// Rejected as malformed before routing.
    pub malformed: u64,
    pub no_route: u64,
    /// The first unrouted request, as method, host and path.
    pub unrouted: Option<(LogPlace, String)>,
    pub denied: u64,
    /// Refused because of missing or wrong credentials when they were logged.
    pub unauthenticated: u64,
    /// Requests whose client is on the route's `allow` list.
    pub allowed: u64,
    pub no_host: u64,
    /// Requests whose client is in a header that a trusted proxy wrote.
    pub forwarded: u64,
    /// Requests of a trusted proxy whose client the log does not have.
    pub unknown_client: u64,
    /// Requests of a proxy that is not trusted, with a header that names another client.
    pub untrusted_proxy: u64,
    pub other_addresses: OtherAddresses,
    /// Lines that contain a duration.
    pub durations: u64,
    /// Treated as ended early, because too many requests were in progress.
    pub ended_early: u64,
    /// Requests that start before an already decided one: the first, their number, and the largest difference.
    pub late_first: Option<LogPlace>,
    pub late: u64,
    pub latest_ms: i64,
    pub first_ms: Option<i64>,
    pub last_ms: i64,
    /// A time stamp finer than whole seconds occurred.
    pub fine: bool,
}

/// Addresses in fields that are not known. If they are more than those at the starts of the same lines, the latter are
/// probably proxies, and the former their clients.
pub struct OtherAddresses {
    /// Lines of requests, and those of them with such an address.
    lines: u64,
    named: u64,
    peers: DistinctKeys,
    others: DistinctKeys,
}

impl OtherAddresses {
    /// Number of addresses that are counted exactly, and bits of the registers for more.
    const EXACT_MAX: usize = 4096;
    const REGISTER_BITS: u32 = 12;

    fn count_line(&mut self, entry: &ReplayEntry) {
        self.lines += 1;
        let Some(other) = entry.other_address.filter(|_| entry.client_origin == ClientOrigin::Line) else { return };
        self.named += 1;
        let hash = |ip: IpAddr| BuildHasherDefault::<DefaultHasher>::default().hash_one(ip);
        self.peers.add_key(hash(entry.client));
        self.others.add_key(hash(other));
    }

    /// Returns whether most lines probably name their client in such a field.
    pub fn are_clients(&self) -> bool {
        let count = |keys: &DistinctKeys| keys.estimate_count().0;
        self.lines > LINES_MIN && self.named * 2 > self.lines && count(&self.others) > count(&self.peers)
    }
}

impl Default for OtherAddresses {
    fn default() -> OtherAddresses {
        let keys = || DistinctKeys::new(OtherAddresses::EXACT_MAX, OtherAddresses::REGISTER_BITS);
        OtherAddresses { lines: 0, named: 0, peers: keys(), others: keys() }
    }
}

impl Counts {
    /// Returns when the limits are evaluated: at the start, but never before those of earlier lines.
    pub fn count_entry(&mut self, entry: &ReplayEntry, place: LogPlace) -> i64 {
        let start_ms = entry.start_ms;
        let now_ms = self.first_ms.map_or(start_ms, |_| self.last_ms.max(start_ms));
        self.first_ms.get_or_insert(start_ms);
        if start_ms < now_ms {
            self.late += 1;
            self.late_first = Some(self.late_first.map_or(place, |first| first.min(place)));
            self.latest_ms = self.latest_ms.max(now_ms - start_ms);
        }
        self.last_ms = now_ms;
        self.fine |= !entry.coarse;
        self.durations += u64::from(entry.duration_ms.is_some());
        self.other_addresses.count_line(entry);
        match entry.client_origin {
            ClientOrigin::Line => {}
            ClientOrigin::Forwarded => self.forwarded += 1,
            ClientOrigin::Unknown => self.unknown_client += 1,
            ClientOrigin::Untrusted => self.untrusted_proxy += 1,
        }
        now_ms
    }

    /// Returns the number of requests that matched a route and reached its limits.
    pub fn count_decided(&self) -> u64 {
        self.count_evaluated() + self.not_evaluated
    }

    /// Returns whether there was no request.
    pub fn is_empty(&self) -> bool {
        self.count_decided() + self.denied + self.unauthenticated + self.no_route + self.malformed == 0
    }

    /// Returns whether the clients of most requests are proxies, as far as the config knows.
    pub fn has_proxies_as_clients(&self) -> bool {
        self.untrusted_proxy * 2 > self.count_decided()
    }

    /// Returns the number of requests for which the result is known.
    pub fn count_evaluated(&self) -> u64 {
        self.admitted + self.refused
    }
}
