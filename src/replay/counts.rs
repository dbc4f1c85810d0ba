//! Requests of a replay by what became of them. Filled by the replay, read by `text` and `json`.

use super::entry::ReplayEntry;
use super::source::LogPlace;

#[derive(Default)]
pub struct Counts {
    pub admitted: u64,
    pub refused: u64,
    /// Not refused by the limits that could be evaluated, while others of the route could not.
    pub not_evaluated: u64,
    /// Of the admitted: not before their turn.
    pub delayed: u64,
    pub longest_delay_ms: i64,
    /// Lines that hold no request, such as TLS on a plain port.
    pub no_request: u64,
    /// The gate refuses them before any route.
    pub malformed: u64,
    pub no_route: u64,
    /// The first of them, as method, host and path.
    pub unrouted: Option<(LogPlace, String)>,
    pub denied: u64,
    /// On the `allow` list of their route.
    pub allowed: u64,
    pub no_host: u64,
    /// Lines that say how long their request took.
    pub durations: u64,
    /// Taken as ended early, because too many were under way.
    pub ended_early: u64,
    /// Lines that start before what was decided already: the first, how many, by how much at most.
    pub late_first: Option<LogPlace>,
    pub late: u64,
    pub latest_ms: i64,
    pub first_ms: Option<i64>,
    pub last_ms: i64,
    /// A time stamp finer than whole seconds was seen.
    pub fine: bool,
}

impl Counts {
    /// When the limits are asked: at the start, but never before those of earlier lines.
    pub fn enter(&mut self, entry: &ReplayEntry, place: LogPlace) -> i64 {
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
        now_ms
    }

    /// Requests that a route took and its limits could see.
    pub fn decided(&self) -> u64 {
        self.evaluated() + self.not_evaluated
    }

    /// Those of which it is known whether they are refused.
    pub fn evaluated(&self) -> u64 {
        self.admitted + self.refused
    }
}
