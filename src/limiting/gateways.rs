//! Budgets while the store is unavailable: how many gateways share the store, and which share of a limit this gateway
//! then admits on its own.
//!
//! Example: four gateways share a limit of 100 requests per minute. Redis becomes unavailable, so each of them admits
//! 25 per minute from its own memory. A gateway that is restarted meanwhile has forgotten what it admitted before,
//! so it halves its share for each restart within the period: 12 per minute after one restart.
//!
//! One Redis handle of the process, the latest that holds a [`Claim`], learns the count from the store; every worker
//! reads it. The metrics only show the result.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::limiting::algorithm::Rule;
use crate::net::ListenAddr;
use crate::telemetry::metrics::GatewayGauges;
use arc_swap::ArcSwapOption;

/// Budgets are divided by the most gateways that reported at the same time within this interval. A gateway that no
/// longer reports may still serve clients: it may only have lost its connection to the store.
pub const GATEWAYS_REMEMBERED: Duration = Duration::from_secs(3600);
/// Largest number that a budget is divided by.
pub const GATEWAYS_MAX: i64 = 1000;

/// The store counts as unavailable after this long without a report.
const SILENCE: Duration = Duration::from_secs(3);
/// Restarts beyond this number do not halve the share further: it is at its minimum by then.
const HALVINGS_MAX: usize = 10;

/// Port of the admin listener, if the config has none.
const ADMIN_PORT: u16 = 9900;

/// Name of this machine or container, empty if it has none.
static HOST_NAME: LazyLock<String> =
    LazyLock::new(|| std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned());

/// Number of gateways that share the store, as known to this process. One value per process, shared by all workers.
pub struct Gateways {
    /// Random name under which this gateway reports to the store; chosen when it is first needed.
    name: OnceLock<String>,
    /// Name that operators see.
    display_name: Mutex<String>,
    /// The most gateways that reported at the same time within [`GATEWAYS_REMEMBERED`]; 1 until the first report.
    peak: AtomicI64,
    /// Minimum number of gateways, from the config.
    minimum: AtomicI64,
    history: Mutex<ReportHistory>,
    /// Restarts during the current outage, including earlier processes. `None` outside of an outage.
    restarts: ArcSwapOption<Restarts>,
    /// Numbers of all claims that exist.
    claims: Mutex<BTreeSet<u64>>,
    /// Number of the active claim; 0 if there is none.
    holder: AtomicU64,
    /// True once this process stops and reports no more.
    left: AtomicBool,
    /// `None` where no metrics are shown, as in tests of the stores.
    gauges: Option<GatewayGauges>,
}

/// Reports of the store to this process.
#[derive(Default)]
struct ReportHistory {
    /// Counts and the time they were last reached; the largest and oldest first.
    peaks: VecDeque<(i64, Instant)>,
    last_report: Option<Instant>,
}

/// Starts of gateway processes during one outage.
struct Restarts {
    /// When this process learned of them.
    started: Instant,
    /// Age of each start at `started`, in ms.
    ages_ms: Vec<i64>,
}

/// The right to report for this process. Only the latest claim that still exists is active.
pub struct Claim {
    gateways: Arc<Gateways>,
    number: u64,
}

impl Default for Gateways {
    fn default() -> Gateways {
        Gateways {
            name: OnceLock::new(),
            display_name: Mutex::new(HOST_NAME.clone()),
            peak: AtomicI64::new(1),
            minimum: AtomicI64::new(1),
            history: Mutex::default(),
            restarts: ArcSwapOption::empty(),
            claims: Mutex::default(),
            holder: AtomicU64::new(0),
            left: AtomicBool::new(false),
            gauges: None,
        }
    }
}

impl Gateways {
    /// Creates the count of one gateway, which `gauges` show.
    pub fn new(gauges: GatewayGauges) -> Gateways {
        let gateways = Gateways { gauges: Some(gauges), ..Gateways::default() };
        gateways.show_divisor();
        gateways
    }

    /// Name under which this gateway reports to the store.
    pub fn name(&self) -> &str {
        self.name.get_or_init(|| format!("{:032x}", rand::random::<u128>()))
    }

    /// Name that operators see: the name of the machine or container, and the address of the admin listener if it is
    /// not on the default port. Gateways on one machine need different ports, unless each listens at an address of its
    /// own.
    pub fn display_name(&self) -> String {
        self.display_name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the name that operators see, by the address of the admin listener.
    pub fn set_display_name(&self, admin: &ListenAddr) {
        *self.display_name.lock().unwrap_or_else(PoisonError::into_inner) = name_gateway(&HOST_NAME, admin);
    }

    /// Takes over the name of the previous process, so that both count as one gateway. Ignored if `name` is not 32
    /// hexadecimal digits, or if this process has already reported under another name.
    pub fn adopt_name(&self, name: &str) {
        if name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let _ = self.name.set(name.to_owned());
        }
    }

    /// Returns the most gateways that reported at the same time within [`GATEWAYS_REMEMBERED`]; at least 1.
    pub fn peak_count(&self) -> i64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the rule by which this gateway decides while the store is unavailable: its share of `rule`. Slots of
    /// `concurrency` end with the process that held them, so restarts do not reduce their share.
    pub fn local_rule(&self, rule: &Arc<Rule>) -> Arc<Rule> {
        let period_ms = if rule.lease_ms().is_some() { 0 } else { rule.policy().window_ms };
        match self.budget_divisor(period_ms) {
            ..=1 => rule.clone(),
            divisor => Arc::new(rule.share(divisor)),
        }
    }

    /// Returns the number that a budget is divided by while the store is unavailable: the number of gateways, doubled
    /// for each restart within `period_ms`, the time after which a charge no longer counts. A previous process has
    /// used a share of its own.
    fn budget_divisor(&self, period_ms: i64) -> i64 {
        let gateways = self.effective_count();
        let Some(restarts) = &*self.restarts.load() else { return gateways };
        let run_ms = i64::try_from(restarts.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let recent = restarts.ages_ms.iter().filter(|age_ms| age_ms.saturating_add(run_ms) < period_ms).count();
        (gateways << recent.min(HALVINGS_MAX)).min(GATEWAYS_MAX)
    }

    /// Returns the number of gateways that budgets are divided by: the peak, or the minimum of the config if larger.
    pub fn effective_count(&self) -> i64 {
        self.peak_count().max(self.minimum.load(Ordering::Relaxed))
    }

    fn show_divisor(&self) {
        if let Some(gauges) = &self.gauges {
            gauges.divisor.set(self.effective_count());
        }
    }

    /// Sets the minimum number of gateways, from the config.
    pub fn set_minimum(&self, least: i64) {
        self.minimum.store(least.clamp(1, GATEWAYS_MAX), Ordering::Relaxed);
        self.show_divisor();
    }

    /// Restores the count that a previous process saved. Ignored once the store has reported one.
    pub fn restore_peak(&self, seen: i64) {
        if self.last_report().is_none() {
            self.peak.fetch_max(seen.clamp(1, GATEWAYS_MAX), Ordering::Relaxed);
            self.show_divisor();
        }
    }

    /// Records the starts of gateway processes during the current outage: this one and earlier ones, each as its age
    /// in ms. The next report clears them.
    pub fn record_restarts(&self, ages_ms: Vec<i64>) {
        self.restarts.store(Some(Arc::new(Restarts { started: Instant::now(), ages_ms })));
    }

    /// Returns whether the store has accepted no report for three seconds.
    pub fn is_store_silent(&self) -> bool {
        self.last_report().is_none_or(|at| at.elapsed() >= SILENCE)
    }

    fn last_report(&self) -> Option<Instant> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).last_report
    }

    /// Ends the reports of this process, which stops. Returns whether it has ever reported.
    pub fn stop_reporting(&self) -> bool {
        self.left.store(true, Ordering::Relaxed);
        self.last_report().is_some()
    }

    /// Creates the claim of a new Redis handle; it replaces earlier ones until it is dropped.
    pub fn create_claim(self: &Arc<Self>) -> Claim {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let number = claims.last().map_or(1, |last| last + 1);
        claims.insert(number);
        self.holder.store(number, Ordering::Relaxed);
        Claim { gateways: self.clone(), number }
    }

    fn record_report(&self, alive: i64, most: i64, certain: bool, now: Instant) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.last_report = Some(now);
        self.restarts.store(None);
        let peak = history.record_peak(alive, now).max(most).clamp(1, GATEWAYS_MAX);
        if certain || peak > self.peak_count() {
            self.peak.store(peak, Ordering::Relaxed);
        }
        if let Some(gauges) = &self.gauges
            && (certain || alive > gauges.alive.get())
        {
            gauges.alive.set(alive);
        }
        self.show_divisor();
    }
}

/// Returns the name of the gateway on the machine `host` with this admin listener.
fn name_gateway(host: &str, admin: &ListenAddr) -> String {
    match admin {
        ListenAddr::Tcp(addr) if addr.port() == ADMIN_PORT => host.to_owned(),
        ListenAddr::Tcp(addr) => format!("{host}:{}", addr.port()),
        ListenAddr::Unix(path) => format!("{host}:{}", path.display()),
    }
}

impl ReportHistory {
    /// Records `count` and returns the largest count within [`GATEWAYS_REMEMBERED`]. The store keeps such a maximum
    /// too, but loses it with its data.
    fn record_peak(&mut self, count: i64, now: Instant) -> i64 {
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
    /// Name under which this gateway reports.
    pub fn gateway_name(&self) -> &str {
        self.gateways.name()
    }

    /// Returns whether this claim is active and the process has not ended its reports.
    pub fn is_in_force(&self) -> bool {
        self.gateways.holder.load(Ordering::Relaxed) == self.number && !self.gateways.left.load(Ordering::Relaxed)
    }

    /// Records a reply of the store: `alive` gateways report now, `most` did at the same time within
    /// [`GATEWAYS_REMEMBERED`]. Lower numbers than before are accepted only if `certain`: once the store has had time
    /// to receive a report of every gateway.
    pub fn record_report(&self, alive: i64, most: i64, certain: bool) {
        if self.is_in_force() {
            self.gateways.record_report(alive, most, certain, Instant::now());
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
    use prometheus::IntGauge;

    use super::*;
    use crate::config;

    fn gateways() -> Arc<Gateways> {
        let gauge = |name| IntGauge::new(name, "test").unwrap();
        Arc::new(Gateways::new(GatewayGauges { alive: gauge("alive"), divisor: gauge("divisor") }))
    }

    #[test]
    fn gateways_on_one_machine_have_different_names() {
        let name = |admin: &str| name_gateway("edge-1", &ListenAddr::Tcp(admin.parse().unwrap()));
        assert_eq!(name("127.0.0.1:9900"), "edge-1");
        assert_eq!([name("0.0.0.0:9901"), name("[::1]:9902")], ["edge-1:9901", "edge-1:9902"]);
        let socket = ListenAddr::Unix("/run/sluicegate/b.sock".into());
        assert_eq!(name_gateway("edge-1", &socket), "edge-1:/run/sluicegate/b.sock");
        let default = config::load_text("c", "[[route]]\nupstream = \"echo:\"\n").unwrap().admin.listen;
        assert_eq!(name_gateway("edge-1", &default), "edge-1");
    }

    #[test]
    fn the_latest_claim_alive_holds() {
        let gateways = gateways();
        let (first, second) = (gateways.create_claim(), gateways.create_claim());
        assert!(!first.is_in_force() && second.is_in_force());
        let third = gateways.create_claim();
        drop(second);
        assert!(!first.is_in_force() && third.is_in_force());
        drop(third);
        assert!(first.is_in_force());
        gateways.stop_reporting();
        assert!(!first.is_in_force());
    }

    #[test]
    fn a_name_is_taken_once_and_only_if_it_is_one() {
        let gateways = gateways();
        let name = "0123456789abcdef0123456789abcdef";
        for text in ["", "=4", &name[1..], "0123456789abcdef0123456789abcde=", name, &name.replace('0', "1")] {
            gateways.adopt_name(text);
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
            // Previous counts are no longer remembered.
            let now = start + (GATEWAYS_REMEMBERED + Duration::from_secs(1)) * u32::try_from(i).unwrap();
            gateways.record_report(count, count, certain, now);
            assert_eq!(gateways.peak_count(), seen);
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
            gateways.record_report(alive, most, true, at(minutes));
            assert_eq!(gateways.peak_count(), seen, "after {minutes} minutes");
            assert_eq!(gateways.gauges.as_ref().unwrap().alive.get(), alive);
        }
    }

    #[test]
    fn each_restart_within_the_period_halves_the_share() {
        let gateways = gateways();
        gateways.set_minimum(4);
        assert_eq!(gateways.budget_divisor(60_000), 4);
        gateways.record_restarts(vec![0, 30_000, 3_600_000]);
        assert_eq!([0, 20_000, 60_000, 7_200_000].map(|period_ms| gateways.budget_divisor(period_ms)), [4, 8, 16, 32]);
        gateways.record_restarts(vec![0; 60]);
        assert_eq!(gateways.budget_divisor(60_000), GATEWAYS_MAX);
        gateways.restore_peak(6);
        assert_eq!(gateways.budget_divisor(0), 6);
        gateways.record_report(2, 2, true, Instant::now());
        assert_eq!(gateways.budget_divisor(60_000), 4);
        gateways.restore_peak(9);
        assert_eq!(gateways.budget_divisor(60_000), 4, "the store knows better");
    }
}
