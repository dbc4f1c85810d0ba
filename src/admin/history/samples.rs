//! Samples of the gateway's traffic, and marks of what changed between them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::telemetry::metrics::Traffic;

/// The time between two samples.
pub const STEP: Duration = Duration::from_secs(5);
/// Samples of one hour.
const SAMPLES: usize = 720;
/// Number of marks that are kept.
const MARKS: usize = 200;
/// Copies of all counts that are kept, from which rates of the last ten seconds follow.
const COUNTS: usize = 3;
/// Maximum number of characters of the text of a mark.
const TEXT_MAX: usize = 200;

/// The recorded past.
#[derive(Default)]
pub struct TrafficHistory(RefCell<Recorded>);

#[derive(Default)]
struct Recorded {
    samples: VecDeque<HistorySample>,
    marks: VecDeque<HistoryMark>,
    counts: VecDeque<TrafficCounts>,
    /// Generation of the config at the last sample; 0 before the first.
    generation: u64,
    is_store_down: bool,
    last_reload: Value,
    lost_lines: LossCount,
    lost_usage: LossCount,
}

/// The counts of all routes at one time.
pub struct TrafficCounts {
    pub at: Instant,
    pub total: Traffic,
    pub routes: BTreeMap<String, Traffic>,
}

/// State of the gateway at one time, beside its counts.
pub struct GatewayState {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub generation: u64,
    pub is_store_up: bool,
    /// The result of the last reload, as the status shows it.
    pub last_reload: Value,
    /// Lines of the access log and the audit log that were lost since the start.
    pub lost_lines: u64,
    /// Decisions since the start that the usage by day does not contain.
    pub lost_usage: u64,
}

/// Number of losses since the start, and when it was last seen to grow.
#[derive(Clone, Copy, Default)]
pub struct LossCount {
    pub count: u64,
    grew_at: Option<Instant>,
    /// The sum of the counters at the last update. It falls when a reload removes a limit with its counter.
    last_sum: u64,
}

impl LossCount {
    fn update(&mut self, sum: u64, at: Instant) {
        if sum > self.last_sum {
            self.count += sum - self.last_sum;
            self.grew_at = Some(at);
        }
        self.last_sum = sum;
    }

    /// Returns how long ago the last loss was.
    pub fn seconds_ago(&self) -> Option<u64> {
        self.grew_at.map(|at| at.elapsed().as_secs())
    }
}

/// Rates in the time before `at_ms`.
#[derive(Clone, Copy)]
struct HistorySample {
    at_ms: u64,
    requests: f32,
    failed: f32,
    refused: f32,
    /// Negative: no request ended.
    p50_ms: f32,
    p99_ms: f32,
    in_flight: u32,
}

/// Something that changed.
struct HistoryMark {
    at_ms: u64,
    kind: &'static str,
    text: String,
}

impl TrafficHistory {
    /// Adds the counts of now, and marks what has changed since the last ones.
    pub fn add_counts(&self, at: Instant, routes: BTreeMap<String, Traffic>, state: &GatewayState) {
        let mut total = Traffic::default();
        routes.values().for_each(|route| total.add(route));
        let history = &mut *self.0.borrow_mut();
        let counts = TrafficCounts { at, total, routes };
        if let Some(before) = history.counts.back() {
            let sample = compare_counts(before, &counts, state.at_ms);
            push_bounded(&mut history.samples, sample, SAMPLES);
        }
        push_bounded(&mut history.counts, counts, COUNTS);
        history.lost_lines.update(state.lost_lines, at);
        history.lost_usage.update(state.lost_usage, at);
        history.add_marks(state);
    }

    /// Returns the newest sum of all counts that is at least `age` old.
    pub fn find_total(&self, age: Duration) -> Option<(Instant, Traffic)> {
        let history = self.0.borrow();
        let total = history.counts.iter().rev().find(|counts| counts.at.elapsed() >= age);
        total.map(|counts| (counts.at, counts.total.clone()))
    }

    /// Returns the rates of the last step, and the requests in flight; nothing before the first step.
    pub fn latest_rates(&self) -> Value {
        let history = self.0.borrow();
        let Some(sample) = history.samples.back() else { return json!({}) };
        json!({
            "per_second": round_tenths(sample.requests),
            "failed_per_second": round_tenths(sample.failed),
            "refused_per_second": round_tenths(sample.refused),
            "p50_ms": round_tenths(sample.p50_ms),
            "p99_ms": round_tenths(sample.p99_ms),
            "in_flight": sample.in_flight,
        })
    }

    /// Returns the log lines that were lost.
    pub fn lost_lines(&self) -> LossCount {
        self.0.borrow().lost_lines
    }

    /// Returns the decisions that the usage by day does not contain.
    pub fn lost_usage(&self) -> LossCount {
        self.0.borrow().lost_usage
    }

    /// Calls `read` with the oldest and the newest counts.
    pub fn with_counts<T>(&self, read: impl FnOnce(&TrafficCounts, &TrafficCounts) -> T) -> Option<T> {
        let history = self.0.borrow();
        Some(read(history.counts.front()?, history.counts.back()?))
    }

    /// Writes the samples and marks of the last `span` as JSON: an array for each series.
    pub fn write_json(&self, span: Duration) -> String {
        let history = self.0.borrow();
        let newest_ms = history.samples.back().map_or(0, |sample| sample.at_ms);
        let first_ms = newest_ms.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        let samples: Vec<_> = history.samples.iter().filter(|sample| sample.at_ms > first_ms).collect();
        let series = |read: fn(&HistorySample) -> Value| samples.iter().map(|sample| read(sample)).collect::<Value>();
        let marks = history.marks.iter().filter(|mark| mark.at_ms > first_ms);
        json!({
            "step_seconds": STEP.as_secs(),
            "at_ms": series(|sample| sample.at_ms.into()),
            "requests_per_second": series(|sample| round_tenths(sample.requests)),
            "failed_per_second": series(|sample| round_tenths(sample.failed)),
            "refused_per_second": series(|sample| round_tenths(sample.refused)),
            "p50_ms": series(|sample| round_tenths(sample.p50_ms)),
            "p99_ms": series(|sample| round_tenths(sample.p99_ms)),
            "in_flight": series(|sample| sample.in_flight.into()),
            "marks": marks.map(|mark| json!({ "at_ms": mark.at_ms, "kind": mark.kind, "text": mark.text })).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

impl Recorded {
    fn add_marks(&mut self, state: &GatewayState) {
        let mut add = |kind, text: &str| {
            let text = text.chars().take(TEXT_MAX).collect();
            push_bounded(&mut self.marks, HistoryMark { at_ms: state.at_ms, kind, text }, MARKS);
        };
        let is_first = self.generation == 0;
        let reload = &state.last_reload;
        if is_first {
            add("start", "the gateway started");
        } else if state.generation != self.generation {
            let summary = reload["summary"].as_str().unwrap_or_default();
            // Changes within one step have one mark.
            let what = match state.generation.saturating_sub(self.generation) {
                ..=1 => format!("generation {}: {summary}", state.generation),
                _ => format!("generations {} to {}; the last: {summary}", self.generation + 1, state.generation),
            };
            add("reload", &what);
        }
        if !is_first && reload["result"] == "failure" && reload["at"] != self.last_reload["at"] {
            add("reload_failed", reload["summary"].as_str().unwrap_or("a changed config was rejected"));
        }
        match (self.is_store_down, state.is_store_up) {
            (false, false) => add("store_down", "the limit store does not respond"),
            (true, true) => add("store_up", "the limit store responds again"),
            _ => {}
        }
        self.generation = state.generation;
        self.is_store_down = !state.is_store_up;
        self.last_reload = json!({ "at": reload["at"] });
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a rate")]
fn compare_counts(before: &TrafficCounts, now: &TrafficCounts, at_ms: u64) -> HistorySample {
    let seconds = (now.at - before.at).as_secs_f64().max(0.001);
    let rate = |read: fn(&Traffic) -> u64| rate_between(read(&before.total), read(&now.total), seconds) as f32;
    let quantile = |share| now.total.duration_quantile(&before.total, share).map_or(-1.0, |ms| ms as f32);
    HistorySample {
        at_ms,
        requests: rate(|traffic| traffic.requests),
        failed: rate(|traffic| traffic.failed),
        refused: rate(|traffic| traffic.refused),
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        in_flight: now.total.in_flight.try_into().unwrap_or_default(),
    }
}

/// Returns the events per second. The counts of a removed route are gone, so a count may be lower than before.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
pub fn rate_between(before: u64, now: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 / seconds
}

/// Rounds to tenths; `null` for a negative number.
fn round_tenths(number: f32) -> Value {
    if number < 0.0 { Value::Null } else { ((f64::from(number) * 10.0).round() / 10.0).into() }
}

fn push_bounded<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    list.push_back(item);
    while list.len() > most {
        list.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(at_ms: u64, generation: u64) -> GatewayState {
        GatewayState { at_ms, generation, is_store_up: true, last_reload: Value::Null, lost_lines: 0, lost_usage: 0 }
    }

    fn traffic(requests: u64) -> BTreeMap<String, Traffic> {
        let mut traffic = Traffic::default();
        traffic.requests = requests;
        BTreeMap::from([("app".to_owned(), traffic)])
    }

    fn read(history: &TrafficHistory, minutes: u64) -> Value {
        serde_json::from_str(&history.write_json(Duration::from_secs(60 * minutes))).unwrap()
    }

    #[test]
    fn one_hour_is_kept_and_ranges_are_cut_from_its_end() {
        let (history, start) = (TrafficHistory::default(), Instant::now());
        for step in 0..2000_u32 {
            let at_ms = 1_000_000 + 5000 * u64::from(step);
            history.add_counts(start + STEP * step, traffic(50 * u64::from(step)), &state(at_ms, 1));
        }
        let [hour, five] = [60, 5].map(|minutes| read(&history, minutes));
        assert_eq!([&hour, &five].map(|shown| shown["at_ms"].as_array().unwrap().len()), [SAMPLES, 60]);
        assert_eq!(five["at_ms"].as_array().unwrap().last(), Some(&json!(1_000_000 + 5000 * 1999)));
        for series in ["requests_per_second", "failed_per_second", "refused_per_second", "p50_ms", "in_flight"] {
            assert_eq!(hour[series].as_array().unwrap().len(), SAMPLES, "{series}");
        }
        assert_eq!(hour["requests_per_second"][0], 10.0);
        assert_eq!(hour["p99_ms"][0], Value::Null);
    }

    #[test]
    fn counts_of_removed_routes_are_no_negative_rates() {
        let (history, start) = (TrafficHistory::default(), Instant::now());
        history.add_counts(start, traffic(900), &state(1, 1));
        history.add_counts(start + STEP, BTreeMap::new(), &state(2, 2));
        assert_eq!(read(&history, 5)["requests_per_second"], json!([0.0]));
    }

    #[test]
    fn changes_are_marked_once_and_their_number_is_bounded() {
        let (history, start) = (TrafficHistory::default(), Instant::now());
        let failed = json!({ "result": "failure", "at": "noon", "summary": "2 errors" });
        let states = [
            state(1, 1),
            state(2, 1),
            state(3, 2),
            GatewayState { is_store_up: false, ..state(4, 2) },
            GatewayState { is_store_up: false, last_reload: failed.clone(), ..state(5, 2) },
            GatewayState { last_reload: failed, ..state(6, 2) },
        ];
        for (step, state) in states.iter().enumerate() {
            history.add_counts(start + STEP * u32::try_from(step).unwrap(), traffic(0), state);
        }
        let kinds = |shown: &Value| -> Vec<String> {
            shown["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap().to_owned()).collect()
        };
        let wanted = ["start", "reload", "store_down", "reload_failed", "store_up"];
        assert_eq!(kinds(&read(&history, 60)), wanted);
        for generation in 3..1000 {
            history.add_counts(start, traffic(0), &state(7, generation));
        }
        assert_eq!(kinds(&read(&history, 60)).len(), MARKS);
    }

    #[test]
    fn a_sample_is_small() {
        assert!(size_of::<HistorySample>() <= 48);
    }
}
