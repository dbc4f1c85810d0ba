//! The process rule: `[server.overload]` refuses requests while the whole process is overloaded, on any route.
//!
//! Input: the rule, admissions and ends of requests, and the CPU time and load that the system reports. Output: whether
//! a request is admitted. The conditions are evaluated in this order: requests per second, requests in flight, mean
//! response time, load average with the measured capacity, CPU.
//!
//! - `mod.rs`: the rule and its conditions
//! - `process_load`: counts of requests and the decision, which all workers share
//! - `sampler`: what the control thread computes every 250 ms: shares to refuse, the measured capacity
//! - `cpu`: CPU time of the process or its cgroup, and the load average

pub(crate) mod cpu;
pub(crate) mod process_load;
pub(crate) mod sampler;

use crate::labels::labels;
use crate::upstream::Fraction;

/// `overload` of `[server]`. A condition without a value is not evaluated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverloadRule {
    /// Most admitted requests in any second.
    pub qps: Option<u64>,
    /// Most requests in flight.
    pub in_flight: Option<u64>,
    /// Longest mean time to the response head.
    pub latency_ms: Option<u64>,
    /// Load average, in 1/1000, from which requests in flight are bounded by the measured capacity.
    pub load_thousandths: Option<u64>,
    /// Largest share of the CPU time.
    pub cpu: Option<Fraction>,
}

impl OverloadRule {
    /// Returns the conditions that have a value.
    pub fn conditions(&self) -> impl Iterator<Item = OverloadCondition> + use<> {
        let OverloadRule { qps, in_flight, latency_ms, load_thousandths, cpu } = self;
        let set = [qps.is_some(), in_flight.is_some(), latency_ms.is_some(), load_thousandths.is_some(), cpu.is_some()];
        OverloadCondition::ALL.iter().copied().zip(set).filter_map(|(condition, is_set)| is_set.then_some(condition))
    }
}

labels! {
    /// A condition of the process rule, in the order of evaluation; the `condition` label of its metrics.
    OverloadCondition:
    Qps = "qps",
    InFlight = "in_flight",
    Latency = "latency",
    Load = "load",
    Cpu = "cpu",
}
