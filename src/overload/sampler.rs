//! Values that the control thread computes every 250 ms from the counts of requests and from the system: the shares of
//! requests to refuse, and the measured capacity. Pure: measurements are arguments.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "measurements are small, not negative, and rough"
)]

use std::collections::VecDeque;

use crate::overload::OverloadRule;
use crate::overload::process_load::{ServedTotals, WHOLE_SHARE};

/// Time between two samples.
pub const SAMPLE_MS: u64 = 250;
/// Samples of one second, over which means and CPU are computed.
const SECOND: usize = 4;
/// Samples over which the capacity is measured: ten seconds.
const CAPACITY_SAMPLES: usize = 40;
/// The largest share that is refused: some requests always pass and show whether the process has recovered.
const SHARE_MAX: f64 = 0.95;
/// The smallest change of a share.
const STEP_MIN: f64 = 0.01;

/// One measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurement {
    pub at_ms: u64,
    pub served: ServedTotals,
    /// CPU time used so far, and the CPU time that one second of wall time offers. `None` if it cannot be measured.
    pub cpu: Option<CpuTime>,
    /// Load average of one minute.
    pub load: Option<f64>,
}

/// CPU time of the process, or of its cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    pub used_us: u64,
    /// CPUs that the process may use.
    pub cpus: f64,
}

/// Values of the last second, and what follows from them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Served requests per second.
    pub qps: f64,
    /// Mean time to the response head. `None` if no request was served.
    pub latency_ms: Option<f64>,
    pub load: Option<f64>,
    /// Used share of the CPU time.
    pub cpu: Option<f64>,
    pub latency_share: u32,
    pub cpu_share: u32,
    /// Most requests that may await their response, while the load average is above its bound.
    pub capacity: Option<u64>,
}

/// Computes samples from measurements.
#[derive(Debug, Default)]
pub struct LoadSampler {
    /// Measurements of the last second, oldest first.
    recent: VecDeque<Measurement>,
    /// Served requests per second, and mean response times in milliseconds, of the last ten seconds.
    throughput: VecDeque<f64>,
    latencies: VecDeque<f64>,
    latency_share: f64,
    cpu_share: f64,
}

impl LoadSampler {
    /// Adds a measurement.
    pub fn add_measurement(&mut self, rule: &OverloadRule, now: Measurement) -> Sample {
        let previous = self.recent.back().copied();
        let first = self.recent.front().copied().unwrap_or(now);
        push_bounded(&mut self.recent, now, SECOND);
        let seconds = now.at_ms.saturating_sub(first.at_ms) as f64 / 1000.0;
        let requests_since = |since: &Measurement| now.served.requests.saturating_sub(since.served.requests);
        let mean_ms = |since: &Measurement| {
            let us = now.served.latency_us.saturating_sub(since.served.latency_us);
            (requests_since(since) > 0).then(|| us as f64 / requests_since(since) as f64 / 1000.0)
        };
        let qps = if seconds > 0.0 { requests_since(&first) as f64 / seconds } else { 0.0 };
        let latency_ms = mean_ms(&first);
        let cpu = first.cpu.zip(now.cpu).filter(|_| seconds > 0.0).map(|(before, after)| {
            after.used_us.saturating_sub(before.used_us) as f64 / 1e6 / seconds / after.cpus.max(0.001)
        });
        push_bounded(&mut self.throughput, qps, CAPACITY_SAMPLES);
        if let Some(mean) = previous.as_ref().and_then(mean_ms) {
            push_bounded(&mut self.latencies, mean, CAPACITY_SAMPLES);
        }
        self.latency_share = next_share(self.latency_share, latency_ms, rule.latency_ms.map(|most| most as f64));
        self.cpu_share = next_share(self.cpu_share, cpu, rule.cpu.map(|most| f64::from(most.thousandths()) / 1000.0));
        let is_loaded = rule.load_thousandths.zip(now.load).is_some_and(|(most, load)| load * 1000.0 > most as f64);
        Sample {
            qps,
            latency_ms,
            load: now.load,
            cpu,
            latency_share: to_share(self.latency_share),
            cpu_share: to_share(self.cpu_share),
            capacity: if is_loaded { self.measured_capacity() } else { None },
        }
    }

    /// Returns the requests that were in the process at once when it worked best (Little's law): the highest
    /// throughput times the lowest response time. At least 1. `None` before anything was served.
    fn measured_capacity(&self) -> Option<u64> {
        let throughput = self.throughput.iter().copied().fold(0.0, f64::max);
        let latency_ms = self.latencies.iter().copied().reduce(f64::min)?;
        let capacity = (throughput * latency_ms / 1000.0).ceil().max(1.0);
        // Below 2^53: a rate of requests times at most hours.
        (throughput > 0.0).then_some(capacity as u64)
    }
}

/// Returns the share to refuse next. It approaches the share at which the value would be at its bound if the value were
/// proportional to the admitted requests: by half of the difference with each sample above the bound, so that the
/// measured second can follow, and by a quarter below it. Without a value, nothing needs to be refused.
fn next_share(share: f64, value: Option<f64>, most: Option<f64>) -> f64 {
    let Some(most) = most else { return 0.0 };
    let admitted_share = value.map_or(1.0, |value| (1.0 - share) * most / value.max(f64::MIN_POSITIVE)).min(1.0);
    let ideal = 1.0 - admitted_share;
    if value.is_some_and(|value| value > most) {
        (share + (ideal - share) / 2.0).max(share + STEP_MIN).min(SHARE_MAX)
    } else {
        (share + (ideal - share) / 4.0).min(share - STEP_MIN).max(0.0)
    }
}

fn to_share(share: f64) -> u32 {
    (share * f64::from(WHOLE_SHARE)) as u32
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    // There is one more sample than intervals between samples.
    if queue.len() > most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Fraction;

    /// Adds `count` samples of a process that serves `qps` requests per second in `latency_ms` with `cpu` of two CPUs.
    fn run(
        sampler: &mut LoadSampler,
        rule: &OverloadRule,
        now: &mut Measurement,
        count: usize,
        [qps, latency_ms, cpu, load]: [f64; 4],
    ) -> Sample {
        let mut sample = Sample::default();
        for _ in 0..count {
            now.at_ms += SAMPLE_MS;
            let served = (qps / 4.0) as u64;
            now.served.requests += served;
            now.served.latency_us += served * (latency_ms * 1000.0) as u64;
            now.cpu = Some(CpuTime { used_us: now.cpu.unwrap().used_us + (cpu * 2.0 * 250_000.0) as u64, cpus: 2.0 });
            now.load = Some(load);
            sample = sampler.add_measurement(rule, *now);
        }
        sample
    }

    fn started() -> (LoadSampler, Measurement) {
        (LoadSampler::default(), Measurement { cpu: Some(CpuTime { used_us: 0, cpus: 2.0 }), ..Default::default() })
    }

    #[test]
    fn values_are_those_of_the_last_second() {
        let (mut sampler, mut now) = started();
        let rule = OverloadRule::default();
        let sample = run(&mut sampler, &rule, &mut now, 8, [400.0, 20.0, 0.75, 3.0]);
        assert_eq!((sample.qps, sample.latency_ms, sample.cpu), (400.0, Some(20.0), Some(0.75)));
        assert_eq!((sample.latency_share, sample.cpu_share, sample.capacity), (0, 0, None));
        let idle = run(&mut sampler, &rule, &mut now, 5, [0.0, 0.0, 0.0, 0.0]);
        assert_eq!((idle.qps, idle.latency_ms, idle.cpu), (0.0, None, Some(0.0)));
    }

    #[test]
    fn the_capacity_is_throughput_times_response_time_while_the_load_is_high() {
        let (mut sampler, mut now) = started();
        let rule = OverloadRule { load_thousandths: Some(4_000), ..OverloadRule::default() };
        assert_eq!(run(&mut sampler, &rule, &mut now, 8, [400.0, 20.0, 0.5, 4.0]).capacity, None);
        assert_eq!(run(&mut sampler, &rule, &mut now, 8, [400.0, 80.0, 0.5, 4.1]).capacity, Some(8));
        assert_eq!(run(&mut sampler, &rule, &mut now, 60, [400.0, 80.0, 0.5, 9.0]).capacity, Some(32));
        let (mut idle, mut now) = started();
        assert_eq!(run(&mut idle, &rule, &mut now, 8, [0.0, 0.0, 0.0, 9.0]).capacity, None);
    }

    /// A process whose CPU use follows the admitted share: offered work of `offered` times its CPUs.
    #[test]
    fn the_refused_share_settles_at_the_bound_of_the_cpu() {
        let rule = OverloadRule { cpu: Fraction::parse(0.9), ..OverloadRule::default() };
        for offered in [1.5, 2.0, 8.0] {
            let (mut sampler, mut now) = started();
            let (mut used, mut share, mut shares) = (0.0, 0.0, Vec::new());
            for _ in 0..400 {
                let cpu = f64::min(offered * (1.0 - share), 1.0);
                used += cpu;
                let sample = run(&mut sampler, &rule, &mut now, 1, [100.0, 1.0, cpu, 0.0]);
                share = f64::from(sample.cpu_share) / f64::from(WHOLE_SHARE);
                shares.push(share);
            }
            let mean = shares[100..].iter().sum::<f64>() / 300.0;
            let ideal = 1.0 - 0.9 / offered;
            assert!((mean - ideal).abs() < 0.06, "offered {offered}: refused {mean}, ideal {ideal}");
            assert!(used / 400.0 > 0.8, "offered {offered}: used {}", used / 400.0);
            run(&mut sampler, &rule, &mut now, 30, [100.0, 1.0, 0.1, 0.0]);
            assert_eq!(sampler.cpu_share, 0.0, "it recovers");
        }
    }

    #[test]
    fn some_requests_always_pass_and_a_condition_without_a_value_refuses_nothing() {
        let (mut sampler, mut now) = started();
        let rule = OverloadRule { latency_ms: Some(1), ..OverloadRule::default() };
        let sample = run(&mut sampler, &rule, &mut now, 100, [100.0, 5_000.0, 1.0, 0.0]);
        assert_eq!(sample.latency_share, to_share(SHARE_MAX));
        assert_eq!(sample.cpu_share, 0, "the rule has no bound of the CPU");
        assert_eq!(next_share(0.5, None, Some(1.0)), 0.375, "nothing is measured");
        assert_eq!(next_share(0.5, Some(9.0), None), 0.0, "the bound was removed");
    }
}
