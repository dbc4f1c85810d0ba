//! The law of the adaptive limit: how many requests an upstream gets at once, from the response times and the
//! throughput of the recent windows.
//!
//! Two measures show whether the servers are overloaded. The queue estimate compares the recent response time with the
//! baseline, which is the response time of servers that do not queue: with n requests in flight, n · (1 - baseline /
//! recent) of them wait. The elasticity says whether more requests in flight bring more throughput. The second is the
//! guard of the first: a limit that has become too low, because the servers became slower for another reason, is raised
//! although the response times are long; and one that is too high is lowered although the baseline was poisoned.

use crate::upstream::adaptive::elasticity::{Elasticity, Estimate};
use crate::upstream::adaptive::window::{ResponseSample, SampleWindow};

/// `adaptive` of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveRule {
    /// Bounds of the limit.
    pub min: u32,
    pub max: u32,
    /// The limit before anything is known.
    pub start: u32,
    /// A fixed baseline in microseconds. `None`: the baseline is measured.
    pub fixed_baseline_us: Option<u64>,
}

/// A window lasts at least so long, and until it has `WINDOW_SAMPLES`.
const WINDOW_US: u64 = 250_000;
const WINDOW_SAMPLES: u32 = 100;
/// Few requests: a window of this length needs only `SLOW_WINDOW_SAMPLES`.
const SLOW_WINDOW_US: u64 = 2_000_000;
const SLOW_WINDOW_SAMPLES: u32 = 20;
/// A window of this length ends in any case. With fewer than `SLOW_WINDOW_SAMPLES / 2` it decides nothing.
const MAX_WINDOW_US: u64 = 30_000_000;
/// After a change of the limit, samples are ignored for the usual response time, and at most for so long.
const MAX_TRANSITION_US: u64 = 1_000_000;
/// The quantile of the response times.
const QUANTILE: f64 = 0.9;
/// Maximum rise of the baseline in a minute, as a factor.
const RISE_PER_MINUTE: f64 = 1.1;
/// How far the baseline moves towards a shorter response time in one window.
const FALL: f64 = 0.3;
/// The limit is active if at least this fraction of the samples met it.
const FULL_PART: f64 = 0.85;
/// The elasticity that the limit is steered to: servers that are just busy.
const KNEE: f64 = 0.14;
/// Guesses of the elasticity with a long queue at the servers, and without one.
const SATURATED_GUESS: f64 = 0.04;
const UNSATURATED_GUESS: f64 = 1.0;
/// The standard error of the guess.
const GUESS_ERROR: f64 = 0.7;
/// Slopes beyond this and 1 are noise, or come from servers whose capacity changed.
const LEAST_SLOPE: f64 = -0.3;
/// Lower estimates are noise, or servers that lose throughput by switching between requests.
const MIN_ELASTICITY: f64 = -0.1;
/// Relative change of the limit per unit of elasticity.
const GAIN: f64 = 0.4;
/// Smaller relative changes are not made.
const MIN_CHANGE: f64 = 0.03;
/// If the elasticity exceeds this by its standard error, more requests in flight bring more throughput.
const RISING: f64 = 0.4;
/// The fraction of the limit that a dip leaves. A dip lasts for one window and shows the response time and throughput
/// at a lower limit.
const DIP: f64 = 0.9;
/// After this many windows in a row with the active limit and a short queue, the limit is multiplied by `PROBE`,
/// although the elasticity does not suggest it: the estimate may be from a time when the servers had less capacity.
const PROBE_INTERVAL: u32 = 3;
const PROBE: f64 = 1.2;
/// Windows between two dips while the limit does not change.
const DIP_INTERVAL: u32 = 4;

/// The state of the adaptive limit of one upstream.
#[derive(Clone, Debug)]
pub struct Controller {
    rule: AdaptiveRule,
    limit: f64,
    /// 0: unknown yet.
    baseline_us: f64,
    /// The quantiles of the last three windows.
    recent_us: [f64; 3],
    window: SampleWindow,
    elasticity: Elasticity,
    /// No queue has been seen yet, so the limit grows fast.
    is_starting: bool,
    is_dipping: bool,
    /// Windows in a row at the limit with a short queue, since the last probe.
    short_queues: u32,
    /// Windows since the last dip or change.
    unchanged: u32,
    /// Responses per second in the last window.
    throughput: f64,
}

/// The change of the limit after a window.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LimitStep {
    Hold,
    /// Lowers the limit for one window only.
    Dip,
    /// Multiplies the limit.
    Scale(f64),
}

impl Controller {
    pub fn new(rule: AdaptiveRule, now_us: u64) -> Controller {
        let mut controller = Controller {
            rule,
            limit: f64::from(rule.start),
            baseline_us: 0.0,
            recent_us: [0.0; 3],
            window: SampleWindow::new(now_us),
            elasticity: Elasticity::default(),
            is_starting: true,
            is_dipping: false,
            short_queues: 0,
            unchanged: 0,
            throughput: 0.0,
        };
        controller.apply_rule(rule);
        controller
    }

    /// Applies changed settings. The learned values stay, within the new bounds.
    pub fn apply_rule(&mut self, rule: AdaptiveRule) {
        self.rule = rule;
        self.limit = self.limit.clamp(f64::from(rule.min), f64::from(rule.max));
        if let Some(fixed_us) = rule.fixed_baseline_us {
            self.baseline_us = to_f64(fixed_us);
        }
    }

    /// Returns the active limit.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the limit is from `min` to `max`")]
    pub fn limit(&self) -> u32 {
        let limit = if self.is_dipping { (self.limit * DIP).ceil() } else { self.limit };
        (limit as u32).clamp(self.rule.min, self.rule.max)
    }

    /// Returns the response time of servers that do not queue, in microseconds. 0: unknown.
    pub fn baseline_us(&self) -> f64 {
        self.baseline_us
    }

    /// Returns the recent response time, in microseconds: the median of three windows. 0: unknown.
    pub fn recent_us(&self) -> f64 {
        let mut times = self.recent_us;
        times.sort_by(f64::total_cmp);
        // Before the third window, the latest counts.
        if times[0] == 0.0 { self.recent_us[2] } else { times[1] }
    }

    /// Returns the recent response time in whole microseconds. 0: unknown.
    pub fn recent_response_us(&self) -> u64 {
        to_u64(self.recent_us())
    }

    /// Returns the time between two responses of the last window, in microseconds. 0: unknown.
    pub fn gap_us(&self) -> u64 {
        if self.throughput > 0.0 { to_u64(1e6 / self.throughput) } else { 0 }
    }

    /// Adds a sample. Returns true if it ended a window, after which the limit may be another.
    pub fn record(&mut self, sample: ResponseSample, now_us: u64) -> bool {
        if now_us < self.window.began_us {
            return false;
        }
        // The samples before a long pause would make the throughput look tiny, and the queue wait for it.
        if now_us - self.window.began_us > 2 * MAX_WINDOW_US {
            self.window = SampleWindow::new(now_us);
        }
        self.window.record(sample);
        let (lasted, samples) = (now_us - self.window.began_us, self.window.samples);
        let is_complete = (lasted >= WINDOW_US && samples >= WINDOW_SAMPLES)
            || (lasted >= SLOW_WINDOW_US && samples >= SLOW_WINDOW_SAMPLES)
            || lasted >= MAX_WINDOW_US;
        if is_complete {
            self.end_window(now_us);
        }
        is_complete
    }

    /// Ends the window: learns from it, and changes the limit.
    fn end_window(&mut self, now_us: u64) {
        let window = std::mem::replace(&mut self.window, SampleWindow::new(now_us));
        if window.samples < SLOW_WINDOW_SAMPLES / 2 {
            return;
        }
        let seconds = to_f64(now_us - window.began_us) / 1e6;
        let response_us = window.quantile_us(QUANTILE);
        self.recent_us = [self.recent_us[1], self.recent_us[2], response_us];
        self.throughput = f64::from(window.responses) / seconds;
        let at_limit = window.part_at_limit();
        if at_limit >= FULL_PART {
            // Servers that gained capacity are discovered as fast as new ones.
            self.is_starting |=
                self.elasticity.add_window(window.mean_in_flight(), f64::from(window.responses), seconds);
        } else if at_limit < FULL_PART / 2.0 {
            self.elasticity = Elasticity::default();
        }
        self.move_baseline(response_us, seconds, at_limit >= FULL_PART);
        let before = self.limit();
        let step = self.choose_step(&window);
        self.take_step(step);
        if self.limit() != before {
            let transition_us = self.recent_us[2].min(to_f64(MAX_TRANSITION_US));
            self.window = SampleWindow::new(now_us + to_u64(transition_us));
        }
    }

    /// Moves the baseline towards the response time of a window. It falls fast, and rises by at most a tenth in a
    /// minute. While the limit is active, longer response times may come from a queue: then it rises only if the
    /// throughput rises with the requests in flight.
    fn move_baseline(&mut self, response_us: f64, seconds: f64, is_full: bool) {
        if self.rule.fixed_baseline_us.is_some() || response_us <= 0.0 {
            return;
        }
        if self.baseline_us == 0.0 {
            self.baseline_us = response_us;
        } else if response_us < self.baseline_us {
            self.baseline_us += FALL * (response_us - self.baseline_us);
        } else if !is_full || self.elasticity.estimate().is_some_and(is_rising) {
            let most_us = self.baseline_us * RISE_PER_MINUTE.powf(seconds / 60.0);
            self.baseline_us = response_us.min(most_us);
        }
    }

    /// Returns how many of the requests in flight wait at the servers.
    fn estimate_queue(&self, in_flight: f64) -> f64 {
        let recent_us = self.recent_us();
        if recent_us <= 0.0 { 0.0 } else { in_flight * (1.0 - self.baseline_us / recent_us) }
    }

    fn choose_step(&mut self, window: &SampleWindow) -> LimitStep {
        if self.is_dipping {
            return LimitStep::Hold;
        }
        if window.timeouts.saturating_mul(10) >= window.samples {
            self.short_queues = 0;
            return LimitStep::Scale(0.8);
        }
        let (at_limit, in_flight) = (window.part_at_limit(), window.mean_in_flight());
        let queue = self.estimate_queue(in_flight);
        // Vegas' bounds of the queue; with large limits, response times are not exact enough for them.
        let short = (3.0 * self.limit.log10()).max(0.05 * self.limit);
        let is_long = queue > 2.0 * short;
        if at_limit < FULL_PART {
            let may_rise = at_limit > 0.0 && (!is_long || at_limit < 0.3) && self.limit < 5.0 * in_flight;
            let is_idle = self.limit > f64::from(self.rule.start).max(8.0 * in_flight);
            return match (may_rise, is_idle) {
                (true, _) => LimitStep::Scale(1.1),
                (false, true) => LimitStep::Scale(0.98),
                (false, false) => LimitStep::Hold,
            };
        }
        self.short_queues = if queue < short { self.short_queues + 1 } else { 0 };
        // The suggestion of the queue estimate, as a first guess of the elasticity. A measured elasticity outweighs it.
        let guess = if is_long {
            SATURATED_GUESS
        } else if queue < short {
            UNSATURATED_GUESS
        } else {
            KNEE
        };
        let elasticity = match self.elasticity.estimate() {
            None => guess,
            Some(Estimate { slope, error }) => {
                let weight = (GUESS_ERROR / error).powi(2);
                (slope.clamp(LEAST_SLOPE, 1.0) * weight + guess) / (weight + 1.0)
            }
        };
        if self.is_starting && queue < short && elasticity > KNEE {
            return LimitStep::Scale(1.5);
        }
        self.is_starting = false;
        let change = (GAIN * (elasticity.max(MIN_ELASTICITY) - KNEE)).min(0.25);
        if queue < short && change < MIN_CHANGE && self.short_queues >= PROBE_INTERVAL {
            return LimitStep::Scale(PROBE);
        }
        if change.abs() < MIN_CHANGE { self.hold_or_dip() } else { LimitStep::Scale(1.0 + change) }
    }

    fn hold_or_dip(&self) -> LimitStep {
        if self.unchanged >= DIP_INTERVAL && self.limit * DIP >= f64::from(self.rule.min) {
            LimitStep::Dip
        } else {
            LimitStep::Hold
        }
    }

    fn take_step(&mut self, step: LimitStep) {
        self.is_dipping = step == LimitStep::Dip;
        self.unchanged = if step == LimitStep::Hold { self.unchanged + 1 } else { 0 };
        if let LimitStep::Scale(factor) = step {
            if factor > 1.0 {
                self.short_queues = 0;
            }
            // A small limit moves by half a request at least.
            let change = (self.limit * (factor - 1.0)).abs().max(0.5).copysign(factor - 1.0);
            self.limit = (self.limit + change).clamp(f64::from(self.rule.min), f64::from(self.rule.max));
        }
    }
}

fn is_rising(estimate: Estimate) -> bool {
    estimate.slope - estimate.error > RISING
}

#[allow(clippy::cast_precision_loss, reason = "response times need no 53 bits")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
fn to_u64(number: f64) -> u64 {
    number.clamp(0.0, 1e15) as u64
}
