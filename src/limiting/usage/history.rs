//! Usage that all threads recorded in the last 10 seconds, minute and 10 minutes. Owned by the control thread.

use std::cell::{Ref, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::labels::labels;
use crate::limiting::limit::LimitTable;
use crate::limiting::partition::PrehashedState;
use crate::limiting::usage::KeyOutcome;
use crate::limiting::usage::headroom::HeadroomHistory;
use crate::limiting::usage::recorder::{CAPACITY, LimitUsage, OutcomeUsage, RecordedUsage, UsageRecorders};
use crate::limiting::usage::refusals::{RefusalLog, RefusalRecorders};
use crate::limiting::usage::sketch::DistinctKeys;
use crate::telemetry::metrics::{HeadroomSums, LimitRegistry};

labels! {
    /// A window of time; the parameter `window` of `/-/top`.
    UsageWindow:
    TenSeconds = "10s",
    Minute = "1m",
    TenMinutes = "10m",
}

impl UsageWindow {
    fn length(self) -> Duration {
        Duration::from_secs(match self {
            UsageWindow::TenSeconds => 10,
            UsageWindow::Minute => 60,
            UsageWindow::TenMinutes => 600,
        })
    }

    /// Returns the length of the parts that the window consists of.
    fn part_length(self) -> Duration {
        Duration::from_secs(match self {
            UsageWindow::TenSeconds => 2,
            UsageWindow::Minute => 10,
            UsageWindow::TenMinutes => 60,
        })
    }
}

/// Interval at which the control thread should collect records: the shortest part of a window.
pub const COLLECT_EVERY: Duration = Duration::from_secs(2);
/// A part may be shorter by this much: a timer can fire early.
const EARLY: Duration = Duration::from_millis(200);
/// Maximum number of bytes that all limits, outcomes, windows and parts take together.
const BYTES_MAX: usize = 48 * 1024 * 1024;

/// The recorders of all threads, and the history of what they recorded.
pub struct UsageMonitor {
    recorders: UsageRecorders,
    history: RefCell<UsageHistory>,
    refusal_recorders: RefusalRecorders,
    refusals: RefCell<RefusalLog>,
    /// Decisions of requests by limit.
    counts: Arc<LimitRegistry>,
    headroom: RefCell<HeadroomHistory>,
}

impl UsageMonitor {
    pub fn new(recorders: &UsageRecorders, refusals: &RefusalRecorders, counts: &Arc<LimitRegistry>) -> UsageMonitor {
        let now = Instant::now();
        UsageMonitor {
            recorders: recorders.clone(),
            history: RefCell::new(UsageHistory::new(now)),
            refusal_recorders: refusals.clone(),
            refusals: RefCell::default(),
            counts: counts.clone(),
            headroom: RefCell::new(HeadroomHistory::new(now)),
        }
    }

    /// Records which limits are active.
    pub fn record_limits(&self, limits: &LimitTable) {
        self.headroom.borrow_mut().record_limits(limits, Instant::now());
    }

    /// Returns what the limit `name` left to keys in the last ten minutes, and how long it has had its settings.
    pub fn find_headroom(&self, name: &str) -> (HeadroomSums, Option<Duration>) {
        let headroom = self.headroom.borrow();
        let since = headroom.unchanged_since(name).map(|since| Instant::now().saturating_duration_since(since));
        (headroom.find_headroom(name, &self.counts), since)
    }

    /// Collects the refusals of all workers until now, and returns the last ones.
    pub fn collect_refusals(&self) -> Ref<'_, RefusalLog> {
        self.refusals.borrow_mut().collect(&self.refusal_recorders);
        self.refusals.borrow()
    }

    /// Collects what was recorded until now, and returns the history.
    pub fn collect(&self) -> Ref<'_, UsageHistory> {
        let mut history = self.history.borrow_mut();
        history.add(&self.recorders.collect(), Instant::now());
        // At once, so that both cover the same requests.
        if let Some(began) = history.longest_window() {
            self.headroom.borrow_mut().read_counts(began, &self.counts);
        }
        drop(history);
        self.history.borrow()
    }
}

/// Usage of all limits by window.
pub struct UsageHistory {
    windows: [WindowHistory; UsageWindow::ALL.len()],
}

/// Parts of one window, the oldest first. The last one is still being filled.
struct WindowHistory {
    window: UsageWindow,
    parts: VecDeque<UsagePart>,
}

struct UsagePart {
    started: Instant,
    limits: HashMap<u64, LimitUsage, PrehashedState>,
}

/// Usage of one limit with one outcome within a window.
pub struct WindowUsage {
    /// How much time the records cover: at least the window if the process ran that long, and about one part more at
    /// most.
    pub covered: Duration,
    pub usage: OutcomeUsage,
    /// Start of the last part in which each key of the list was counted, by the hash of the key.
    last_seen: HashMap<u64, Instant, PrehashedState>,
}

impl UsageHistory {
    pub fn new(now: Instant) -> UsageHistory {
        let window = |index: usize| WindowHistory::new(UsageWindow::ALL[index], now);
        UsageHistory { windows: [window(0), window(1), window(2)] }
    }

    /// Adds what was recorded until `now`.
    pub fn add(&mut self, recorded: &[RecordedUsage], now: Instant) {
        for window in &mut self.windows {
            window.add(recorded);
            window.rotate(now);
        }
        // Halves every part until the bound holds. Errors grow, but stay known.
        let mut capacity = CAPACITY;
        while capacity > 1 && self.memory() > BYTES_MAX {
            capacity /= 2;
            self.parts_mut().for_each(|usage| usage.shrink_to(capacity));
        }
    }

    /// Returns when the oldest and the newest part of the longest window began.
    fn longest_window(&self) -> Option<(Instant, Instant)> {
        let parts = &self.windows[UsageWindow::TenMinutes as usize].parts;
        Some((parts.front()?.started, parts.back()?.started))
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut LimitUsage> {
        let parts = self.windows.iter_mut().flat_map(|window| &mut window.parts);
        parts.flat_map(|part| part.limits.values_mut())
    }

    fn memory(&self) -> usize {
        let parts = self.windows.iter().flat_map(|window| &window.parts);
        parts.flat_map(|part| part.limits.values()).map(LimitUsage::memory).sum()
    }

    /// Returns the usage of the limit with the id `limit` within `window`.
    pub fn find_usage(&self, limit: u64, outcome: KeyOutcome, window: UsageWindow, now: Instant) -> WindowUsage {
        let window = &self.windows[window as usize];
        let first = window.parts.front().map_or(now, |part| part.started);
        let mut found = WindowUsage {
            covered: now.saturating_duration_since(first),
            usage: OutcomeUsage::default(),
            last_seen: HashMap::default(),
        };
        for part in &window.parts {
            let Some(usage) = part.limits.get(&limit).and_then(|limit| limit.outcome(outcome)) else { continue };
            found.usage.merge(usage);
            found.last_seen.extend(usage.frequent.hashes().map(|hash| (hash, part.started)));
        }
        found
    }

    /// Calls `visit` with the keys of the limit with the id `limit`, as far as the longest window has them. A key may
    /// be visited several times.
    pub fn visit_keys(&self, limit: u64, mut visit: impl FnMut(&str)) {
        let parts = self.windows[UsageWindow::TenMinutes as usize].parts.iter();
        for usage in parts.filter_map(|part| part.limits.get(&limit)) {
            let outcomes = KeyOutcome::ALL.iter().filter_map(|outcome| usage.outcome(*outcome));
            outcomes.for_each(|usage| usage.frequent.keys().for_each(&mut visit));
        }
    }

    /// Returns how often the limit with the id `limit` had this outcome for the key with that hash, within the longest
    /// window: at least, and at most.
    pub fn count_key(&self, limit: u64, outcome: KeyOutcome, hash: u64) -> (u64, u64) {
        let parts = self.windows[UsageWindow::TenMinutes as usize].parts.iter();
        let usages = parts.filter_map(|part| part.limits.get(&limit)?.outcome(outcome));
        let (least, missed) = usages.fold((0, 0), |(least, missed), usage| {
            (least + usage.frequent.count_of(hash).unwrap_or(0), missed + usage.frequent.missed)
        });
        (least, least + missed)
    }

    /// Returns the estimated number of keys that each limit refused within `window`, by the id of the limit.
    pub fn count_refused_keys(&self, window: UsageWindow) -> BTreeMap<u64, u64> {
        let mut keys: BTreeMap<u64, DistinctKeys> = BTreeMap::new();
        for (limit, usage) in self.windows[window as usize].parts.iter().flat_map(|part| &part.limits) {
            let Some(refused) = usage.outcome(KeyOutcome::Refused) else { continue };
            match keys.entry(*limit) {
                Entry::Occupied(mut known) => known.get_mut().merge(&refused.distinct),
                Entry::Vacant(new) => drop(new.insert(refused.distinct.clone())),
            }
        }
        keys.into_iter().map(|(limit, keys)| (limit, keys.estimate_count().0)).collect()
    }

    /// Returns the totals of all limits within `window` by outcome, by the id of the limit.
    pub fn totals(&self, window: UsageWindow) -> BTreeMap<u64, [u64; KeyOutcome::ALL.len()]> {
        let mut totals: BTreeMap<u64, [u64; KeyOutcome::ALL.len()]> = BTreeMap::new();
        for part in &self.windows[window as usize].parts {
            for (limit, usage) in &part.limits {
                let sums = totals.entry(*limit).or_default();
                for (sum, outcome) in sums.iter_mut().zip(KeyOutcome::ALL) {
                    *sum += usage.outcome(*outcome).map_or(0, |usage| usage.total);
                }
            }
        }
        totals
    }
}

impl WindowHistory {
    fn new(window: UsageWindow, now: Instant) -> WindowHistory {
        let open = UsagePart { started: now, limits: HashMap::default() };
        WindowHistory { window, parts: VecDeque::from([open]) }
    }

    /// Starts a new part if the last one is long enough, and drops parts that the window does not need.
    fn rotate(&mut self, now: Instant) {
        let age = |part: &UsagePart| now.saturating_duration_since(part.started);
        if self.parts.back().is_none_or(|open| age(open) + EARLY >= self.window.part_length()) {
            self.parts.push_back(UsagePart { started: now, limits: HashMap::default() });
        }
        while self.parts.get(1).is_some_and(|second| age(second) >= self.window.length()) {
            self.parts.pop_front();
        }
    }

    fn add(&mut self, recorded: &[RecordedUsage]) {
        let Some(open) = self.parts.back_mut() else { return };
        for (limit, usage) in recorded.iter().flat_map(|recorded| &recorded.limits) {
            open.limits.entry(*limit).or_default().merge(usage);
        }
    }
}

impl WindowUsage {
    /// Returns how long ago the key with that hash was last counted, to the precision of a part of the window.
    pub fn last_seen(&self, hash: u64, now: Instant) -> Option<Duration> {
        self.last_seen.get(&hash).map(|started| now.saturating_duration_since(*started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::usage::recorder::UsageRecorder;
    use crate::limiting::usage::{hash_key, recorder};

    const LIMIT: u64 = 7;
    const HEAVY: u64 = 20_000;

    fn record(recorder: &UsageRecorder, key: &str) {
        recorder.record(LIMIT, KeyOutcome::Refused, &format!("sg:{{{key}}}:limit:gcra"), 1);
    }

    #[test]
    fn ten_heavy_keys_among_a_million_are_within_the_bounds() {
        let (recorders, start) = (UsageRecorders::default(), Instant::now());
        let threads = [recorders.register(), recorders.register()];
        let mut history = UsageHistory::new(start);
        let mut now = start;
        let mut next = 0_u64;
        for _ in 0..20 {
            for thread in &threads {
                for place in 0..25_000_u64 {
                    record(thread, &format!("ip={next:x}"));
                    next += 1;
                    if place % 5 == 0 {
                        record(thread, &format!("heavy={}", place / 5 % 10));
                    }
                }
            }
            now += COLLECT_EVERY;
            history.add(&recorders.collect(), now);
        }
        let found = history.find_usage(LIMIT, KeyOutcome::Refused, UsageWindow::TenMinutes, now);
        let usage = &found.usage;
        assert_eq!(usage.total, 1_000_000 + 10 * HEAVY);
        assert!(usage.frequent.missed <= usage.total / CAPACITY as u64, "{}", usage.frequent.missed);
        let top = usage.frequent.list_top(10);
        for (_, key, count) in &top {
            assert!(key.starts_with("heavy="), "{top:?}");
            assert!(*count <= HEAVY && HEAVY <= count + usage.frequent.missed, "{key} {count}");
        }
        let (distinct, _) = usage.distinct.estimate_count();
        assert!(distinct.abs_diff(1_000_010) < 70_000, "{distinct}");
        // The short window has a quarter of that: five of twenty collections.
        let short = history.find_usage(LIMIT, KeyOutcome::Refused, UsageWindow::TenSeconds, now);
        assert_eq!(short.usage.total, usage.total / 4);
        assert_eq!(short.covered, Duration::from_secs(10));
        assert!(history.memory() <= BYTES_MAX);
    }

    #[test]
    fn a_window_forgets_in_time_and_not_too_early() {
        let (recorders, mut now) = (UsageRecorders::default(), Instant::now());
        let thread = recorders.register();
        let mut history = UsageHistory::new(now);
        record(&thread, "ip=::1");
        for collections in 1..350 {
            now += COLLECT_EVERY;
            history.add(&recorders.collect(), now);
            let passed = collections * COLLECT_EVERY.as_secs();
            for (window, length) in
                [(UsageWindow::TenSeconds, 10), (UsageWindow::Minute, 60), (UsageWindow::TenMinutes, 600)]
            {
                let total = history.find_usage(LIMIT, KeyOutcome::Refused, window, now).usage.total;
                let part = window.part_length().as_secs();
                assert!(passed > length || total == 1, "{passed} {length}: forgotten too early");
                assert!(passed <= length + part || total == 0, "{passed} {length}: kept too long");
            }
        }
    }

    #[test]
    fn many_limits_with_many_keys_stay_within_memory() {
        let (recorders, mut now) = (UsageRecorders::default(), Instant::now());
        let mut history = UsageHistory::new(now);
        for collection in 0..12 {
            // As long as keys of several headers.
            let key = |place| format!("sg:{{n={collection}-{place}{}}}:l:gcra", "x".repeat(600));
            let keys: Vec<String> = (0..CAPACITY).map(key).collect();
            // One recorder for each limit, as the bound of a recorder would apply before that of the history.
            for limit in 0..200 {
                let thread = recorders.register();
                keys.iter().for_each(|key| thread.record(limit, KeyOutcome::WouldRefuse, key, 1));
            }
            now += COLLECT_EVERY;
            history.add(&recorders.collect(), now);
            assert!(history.memory() <= BYTES_MAX);
        }
        let usage = history.find_usage(1, KeyOutcome::WouldRefuse, UsageWindow::TenSeconds, now).usage;
        assert!(usage.frequent.missed > 0 && usage.total >= 5 * CAPACITY as u64, "{}", usage.total);
    }

    #[test]
    fn recorders_that_are_not_collected_are_bounded() {
        let recorders = UsageRecorders::default();
        let thread = recorders.register();
        for limit in 0..1000 {
            for place in 0..150 {
                thread.record(limit, KeyOutcome::Refused, &format!("sg:{{n={place}}}:l:gcra"), 1);
            }
        }
        let collected = recorders.collect();
        let bytes: usize = collected.iter().flat_map(|recorded| recorded.limits.values()).map(LimitUsage::memory).sum();
        assert!(bytes <= recorder::BYTES_MAX + 64 * 1024, "{bytes}");
        let last = collected[0].limits.get(&999).and_then(|usage| usage.outcome(KeyOutcome::Refused)).unwrap();
        assert_eq!((last.total, last.frequent.missed), (150, 150));
        drop(thread);
        recorders.collect();
        assert!(recorders.collect().is_empty(), "the recorder of an ended thread is forgotten");
        assert_ne!(hash_key("a"), hash_key("b"));
    }
}
