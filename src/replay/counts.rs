//! Counts of replayed requests by result. Filled by the replay, read by `text` and `json`.

use std::net::IpAddr;

use crate::net::is_private;
use crate::replay::input::entry::{AccessLogFormat, ClientOrigin, LoggedForwarding, ReplayEntry};
use crate::replay::input::source::LogPlace;

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
    /// Requests whose client is in their `X-Forwarded-For`.
    pub forwarded: u64,
    /// Requests of a trusted proxy whose client the log does not have.
    pub unknown_client: u64,
    /// Requests with an `X-Forwarded-For` of a proxy that is not trusted.
    pub untrusted_proxy: u64,
    pub lone_peer: LonePeer,
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

/// Finds a private address that sends nearly all requests. Probably, it is a proxy that nobody has told the config
/// about.
#[derive(Default)]
pub struct LonePeer {
    /// Lines of requests, of which the last two counts are a majority vote: the address that it leads, and by how many
    /// requests.
    lines: u64,
    leader: Option<LonePeerAddress>,
    lead: u64,
}

/// A private address that sends nearly all requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LonePeerAddress {
    pub address: IpAddr,
    /// Format of the log that has it.
    pub format: AccessLogFormat,
}

impl LonePeer {
    /// Fewer lines say nothing.
    const LINES_MIN: u64 = 100;

    fn count_line(&mut self, entry: &ReplayEntry) {
        self.lines += 1;
        let is_candidate = entry.client_origin == ClientOrigin::Line
            && matches!(entry.forwarded, LoggedForwarding::NotLogged | LoggedForwarding::Applied)
            && is_private(entry.client);
        if is_candidate && self.lead == 0 {
            self.leader = Some(LonePeerAddress { address: entry.client, format: entry.format });
        }
        match is_candidate && self.leader.is_some_and(|leader| leader.address == entry.client) {
            true => self.lead += 1,
            false => self.lead = self.lead.saturating_sub(1),
        }
    }

    /// Returns the address, if there is one: it has sent at least nine in ten requests, and it is found if it has sent
    /// 19 in 20.
    pub fn find(&self) -> Option<LonePeerAddress> {
        self.leader.filter(|_| self.lines > Self::LINES_MIN && self.lead * 10 >= self.lines * 9)
    }
}

impl LonePeerAddress {
    /// Returns whether the address may as well be that of somebody who tries the gateway on this machine. The gateway
    /// logs the client as its own rules determine it, while other servers log the peer.
    pub fn may_be_user(self) -> bool {
        self.format == AccessLogFormat::Json && self.address.is_loopback()
    }

    /// Returns why no number is recommended from its requests, and what to do.
    pub fn describe(self) -> &'static str {
        match self.format {
            AccessLogFormat::Json => {
                "one private address sends nearly all requests, so it is probably a proxy: list it in `trusted_proxies`, and replay a log that is written from then on"
            }
            AccessLogFormat::Common | AccessLogFormat::Combined => {
                "one private address sends nearly all requests, so it is probably a proxy: list it in `trusted_proxies`, and log the client, in nginx as \"$http_x_forwarded_for\" right after \"$http_user_agent\""
            }
            _ => {
                "one private address sends nearly all requests, so it is probably a proxy: list it in `trusted_proxies`, and log the client that it names"
            }
        }
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
        self.lone_peer.count_line(entry);
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

    /// Returns whether the clients of most requests are proxies, as far as the config knows.
    pub fn has_proxies_as_clients(&self) -> bool {
        self.untrusted_proxy * 2 > self.count_decided()
    }

    /// Returns the number of requests for which the result is known.
    pub fn count_evaluated(&self) -> u64 {
        self.admitted + self.refused
    }
}
