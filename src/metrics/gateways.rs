//! How many gateways share the store, as this process knows it, and by what it divides the limits while it
//! decides without the store. The Redis handle whose [`Claim`] holds finds out; every worker reads it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use prometheus::IntGauge;

/// For so long the most gateways that reported at the same time are divided by: one that no longer reports may
/// serve clients all the same, without reaching the store.
pub const GATEWAYS_REMEMBERED: Duration = Duration::from_secs(3600);
/// More gateways than this share a limit as if they were this many.
pub const GATEWAYS_MAX: i64 = 1000;

/// Without a report for this long, the store is taken for unavailable.
const SILENCE: Duration = Duration::from_secs(3);
/// More restarts than this halve a share no further: by then it is at its least.
const HALVINGS_MAX: usize = 10;

pub struct Gateways {
    /// This gateway, among those that share a store; chosen when it is first needed.
    name: OnceLock<String>,
    /// The most that reported at the same time within [`GATEWAYS_REMEMBERED`]; 1 until there was a report.
    seen: AtomicI64,
    /// As the config says.
    least: AtomicI64,
    counted: Mutex<ReportHistory>,
    /// Of this process and those before it, in the outage in which it started.
    restarts: ArcSwapOption<Restarts>,
    claims: Mutex<BTreeSet<u64>>,
    holder: AtomicU64,
    left: AtomicBool,
    gauges: GatewayGauges,
}

pub struct GatewayGauges {
    /// Those that report now.
    pub alive: IntGauge,
    /// By how many the limits are divided without the store.
    pub divisor: IntGauge,
}

/// What this process itself has counted.
#[derive(Default)]
struct ReportHistory {
    /// Counts and when they were last reached, the largest and oldest first.
    peaks: VecDeque<(i64, Instant)>,
    last_report: Option<Instant>,
}

/// When gateways were started in one outage, in ms before this process started.
struct Restarts {
    started: Instant,
    ages_ms: Vec<i64>,
}

/// The right to say how many there are; the latest claim that is alive holds.
pub struct Claim {
    gateways: Arc<Gateways>,
    number: u64,
}

impl Gateways {
    pub fn new(gauges: GatewayGauges) -> Gateways {
        gauges.divisor.set(1);
        Gateways {
            name: OnceLock::new(),
            seen: AtomicI64::new(1),
            least: AtomicI64::new(1),
            counted: Mutex::default(),
            restarts: ArcSwapOption::empty(),
            claims: Mutex::default(),
            holder: AtomicU64::new(0),
            left: AtomicBool::new(false),
            gauges,
        }
    }

    pub fn name(&self) -> &str {
        self.name.get_or_init(|| format!("{:032x}", rand::random::<u128>()))
    }

    /// Reports under the name of the process before this one, so that both are counted as one. A text that is no
    /// such name is ignored, as is any after the first report.
    pub fn take_name(&self, name: &str) {
        if name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let _ = self.name.set(name.to_owned());
        }
    }

    /// The most gateways that reported at the same time recently, at least 1: this one.
    pub fn seen(&self) -> i64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// By what a limit whose charges are over after `period_ms` is divided while there is no store: the gateways,
    /// twice as many for each restart within the period, as the process before had a share of its own.
    pub fn divisor(&self, period_ms: i64) -> i64 {
        let gateways = self.count();
        let Some(restarts) = &*self.restarts.load() else { return gateways };
        let run_ms = i64::try_from(restarts.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let recent = restarts.ages_ms.iter().filter(|age_ms| age_ms.saturating_add(run_ms) < period_ms).count();
        (gateways << recent.min(HALVINGS_MAX)).min(GATEWAYS_MAX)
    }

    fn count(&self) -> i64 {
        self.seen().max(self.least.load(Ordering::Relaxed))
    }

    /// The config says that there are at least this many.
    pub fn set_least(&self, least: i64) {
        self.least.store(least.clamp(1, GATEWAYS_MAX), Ordering::Relaxed);
        self.gauges.divisor.set(self.count());
    }

    /// What a process before this one had seen; what the store says counts more.
    pub fn restore(&self, seen: i64) {
        if self.last_report().is_none() {
            self.seen.fetch_max(seen.clamp(1, GATEWAYS_MAX), Ordering::Relaxed);
            self.gauges.divisor.set(self.count());
        }
    }

    /// This process was started in an outage that others before it were started in, so many ms ago.
    pub fn restarted(&self, ages_ms: Vec<i64>) {
        self.restarts.store(Some(Arc::new(Restarts { started: Instant::now(), ages_ms })));
    }

    /// Whether the store has taken no report for a while.
    pub fn are_cut_off(&self) -> bool {
        self.last_report().is_none_or(|at| at.elapsed() >= SILENCE)
    }

    fn last_report(&self) -> Option<Instant> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).last_report
    }

    /// This process stops, and reports no more. Whether it has ever reported.
    pub fn leave(&self) -> bool {
        self.left.store(true, Ordering::Relaxed);
        self.last_report().is_some()
    }

    pub fn claim(self: &Arc<Self>) -> Claim {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let number = claims.last().map_or(1, |last| last + 1);
        claims.insert(number);
        self.holder.store(number, Ordering::Relaxed);
        Claim { gateways: self.clone(), number }
    }

    fn reported(&self, alive: i64, most: i64, certain: bool, now: Instant) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.last_report = Some(now);
        self.restarts.store(None);
        let seen = counted.peak(alive, now).max(most).clamp(1, GATEWAYS_MAX);
        if certain || seen > self.seen() {
            self.seen.store(seen, Ordering::Relaxed);
        }
        if certain || alive > self.gauges.alive.get() {
            self.gauges.alive.set(alive);
        }
        self.gauges.divisor.set(self.count());
    }
}

impl ReportHistory {
    /// The largest count within the time remembered, with this one. A store that lost its data remembers none.
    fn peak(&mut self, count: i64, now: Instant) -> i64 {
        while self.peaks.back().is_some_and(|(earlier, _)| *earlier <= count) {
            self.peaks.pop_back();
        }
        self.peaks.push_back((count, now));
        while self.peaks.front().is_some_and(|(_, at)| now.duration_since(*at) > GATEWAYS_REMEMBERED) {
            self.peaks.pop_front();
        }
        self.peaks.front().map_or(count, |(most, _)| *most)
    }
}

impl Claim {
    pub fn gateway(&self) -> &str {
        self.gateways.name()
    }

    pub fn holds(&self) -> bool {
        self.gateways.holder.load(Ordering::Relaxed) == self.number && !self.gateways.left.load(Ordering::Relaxed)
    }

    /// Takes over how many report now, and the most that did recently; lower numbers only once the store has had
    /// time to hear from all.
    pub fn count(&self, alive: i64, most: i64, certain: bool) {
        if self.holds() {
            self.gateways.reported(alive, most, certain, Instant::now());
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.gateways.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.remove(&self.number);
        self.gateways.holder.store(claims.last().copied().unwrap_or(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateways() -> Arc<Gateways> {
        let gauge = |name| IntGauge::new(name, "test").unwrap();
        Arc::new(Gateways::new(GatewayGauges { alive: gauge("alive"), divisor: gauge("divisor") }))
    }

    #[test]
    fn the_latest_claim_alive_holds() {
        let gateways = gateways();
        let (first, second) = (gateways.claim(), gateways.claim());
        assert!(!first.holds() && second.holds());
        let third = gateways.claim();
        drop(second);
        assert!(!first.holds() && third.holds());
        drop(third);
        assert!(first.holds());
        gateways.leave();
        assert!(!first.holds());
    }

    #[test]
    fn a_name_is_taken_once_and_only_if_it_is_one() {
        let gateways = gateways();
        let name = "0123456789abcdef0123456789abcdef";
        for text in ["", "=4", &name[1..], "0123456789abcdef0123456789abcde=", name, &name.replace('0', "1")] {
            gateways.take_name(text);
        }
        assert_eq!(gateways.name(), name);
    }

    #[test]
    fn a_lower_count_is_believed_once_all_had_time_to_report() {
        let gateways = gateways();
        let start = Instant::now();
        for (i, (count, certain, seen)) in
            [(0, true, 1), (3, false, 3), (2, false, 3), (2, true, 2), (1 << 40, false, GATEWAYS_MAX)]
                .into_iter()
                .enumerate()
        {
            // Later than what is remembered.
            let now = start + (GATEWAYS_REMEMBERED + Duration::from_secs(1)) * u32::try_from(i).unwrap();
            gateways.reported(count, count, certain, now);
            assert_eq!(gateways.seen(), seen);
        }
    }

    #[test]
    fn the_most_of_the_last_hour_is_divided_by() {
        let gateways = gateways();
        let start = Instant::now();
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        for (minutes, alive, most, seen) in
            [(0, 4, 4, 4), (10, 3, 3, 4), (20, 2, 2, 4), (61, 2, 2, 3), (71, 2, 7, 7), (82, 1, 1, 2), (200, 1, 1, 1)]
        {
            gateways.reported(alive, most, true, at(minutes));
            assert_eq!(gateways.seen(), seen, "after {minutes} minutes");
            assert_eq!(gateways.gauges.alive.get(), alive);
        }
    }

    #[test]
    fn each_restart_within_the_period_halves_the_share() {
        let gateways = gateways();
        gateways.set_least(4);
        assert_eq!(gateways.divisor(60_000), 4);
        gateways.restarted(vec![0, 30_000, 3_600_000]);
        assert_eq!([0, 20_000, 60_000, 7_200_000].map(|period_ms| gateways.divisor(period_ms)), [4, 8, 16, 32]);
        gateways.restarted(vec![0; 60]);
        assert_eq!(gateways.divisor(60_000), GATEWAYS_MAX);
        gateways.restore(6);
        assert_eq!(gateways.divisor(0), 6);
        gateways.reported(2, 2, true, Instant::now());
        assert_eq!(gateways.divisor(60_000), 4);
        gateways.restore(9);
        assert_eq!(gateways.divisor(60_000), 4, "the store knows better");
    }
}
