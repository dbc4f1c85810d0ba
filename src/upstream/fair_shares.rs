//! How many requests each server of an upstream has had for its weight, so that shares follow the weights exactly.
//! This is stride scheduling: every request moves a server ahead by a step, and the larger its weight, the shorter the
//! step. The server that is least far ahead is due. Pure; used by `balance`.

use std::cell::Cell;

/// The whole of a weight, for servers that start slowly.
pub const RAMPED: u32 = 1000;
/// The step of a server with weight 1.
const LONGEST_STEP: u64 = 1 << 50;
/// Steps that a server may lag behind the others and catch up later.
///
/// A server lags while it is overloaded. Up to this many requests it gets back afterwards; what is beyond, it would get
/// back in a burst, so it is forgotten.
const CREDIT_STEPS: u64 = 8;

/// The state of one worker.
#[derive(Debug)]
pub struct FairShares {
    servers: Vec<Progress>,
    /// Where the server was that has been furthest ahead when it was picked.
    front: Cell<u128>,
    /// The servers have their random starting points.
    started: Cell<bool>,
}

#[derive(Debug)]
struct Progress {
    /// Never 0. For a server of weight 0, that of weight 1.
    step: u64,
    at: Cell<u128>,
}

impl FairShares {
    pub fn new(weights: &[u32]) -> FairShares {
        let step = |weight: &u32| LONGEST_STEP / u64::from((*weight).max(1));
        let servers = weights.iter().map(|weight| Progress { step: step(weight), at: Cell::default() }).collect();
        FairShares { servers, front: Cell::default(), started: Cell::default() }
    }

    /// Before the first pick: the first request of each server is due at a random point within one step of it. So the
    /// shares are right on average however few requests come between two reloads, and workers do not begin with the
    /// same server.
    pub fn start(&self, mut random: impl FnMut() -> u64) {
        if !self.started.replace(true) {
            let mut start = |step: u64| u128::from(LONGEST_STEP - step + random() % step);
            self.servers.iter().for_each(|server| server.at.set(start(server.step)));
        }
    }

    /// Where the server would be after one more request: the one with the least is due. `ramp`: the part of its weight
    /// that counts, in thousandths.
    pub fn due(&self, server: usize, ramp: u32) -> u128 {
        let (server, front) = (&self.servers[server], self.front.get());
        let step = server.ramped_step(ramp);
        let credit = step.max(server.step * CREDIT_STEPS);
        if server.at.get() + u128::from(credit) < front {
            server.at.set(front);
        }
        server.at.get() + u128::from(step)
    }

    /// The server gets a request.
    pub fn serve(&self, server: usize, ramp: u32) {
        let server = &self.servers[server];
        self.front.set(self.front.get().max(server.at.get()));
        server.at.set(server.at.get() + u128::from(server.ramped_step(ramp)));
    }
}

impl Progress {
    fn ramped_step(&self, ramp: u32) -> u64 {
        if ramp >= RAMPED { self.step } else { self.step * u64::from(RAMPED) / u64::from(ramp.max(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Picks the server that is due, `count` times.
    fn serve(shares: &FairShares, may: impl Fn(usize) -> bool, count: usize) -> Vec<usize> {
        let servers = 0..shares.servers.len();
        let mut counts = vec![0; servers.len()];
        for _ in 0..count {
            let Some(due) = servers.clone().filter(|i| may(*i)).min_by_key(|i| shares.due(*i, RAMPED)) else { break };
            shares.serve(due, RAMPED);
            counts[due] += 1;
        }
        counts
    }

    #[test]
    fn requests_follow_the_weights_exactly() {
        let shares = FairShares::new(&[95, 4, 1]);
        shares.start(|| 1 << 40);
        for _ in 0..5 {
            let counts = serve(&shares, |_| true, 100);
            assert!((94..=96).contains(&counts[0]) && (3..=5).contains(&counts[1]), "{counts:?}");
        }
        assert_eq!(serve(&FairShares::new(&[720_720_000, 1]), |_| true, 100_000), [100_000, 0]);
    }

    #[test]
    fn a_server_catches_up_a_short_lag_and_not_a_long_one() {
        let shares = FairShares::new(&[1, 1]);
        for (missed, extra) in [(4, 4), (1000, 0)] {
            assert_eq!(serve(&shares, |server| server == 0, missed), [missed, 0]);
            let counts = serve(&shares, |_| true, 100);
            let ahead = counts[1].saturating_sub(counts[0]);
            assert!(ahead.abs_diff(extra) <= 1, "missed {missed}, then {counts:?}");
        }
    }

    #[test]
    fn shares_are_right_on_average_though_few_requests_follow_each_start() {
        for (weights, requests) in [([99, 1], 100), ([95, 5], 20), ([9, 1], 10)] {
            let mut seed = 1_u64;
            let mut random = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                seed >> 10
            };
            let light: usize = (0..2000)
                .map(|_| {
                    let shares = FairShares::new(&weights);
                    shares.start(&mut random);
                    serve(&shares, |_| true, requests)[1]
                })
                .sum();
            let due = 2000 * requests * weights[1] as usize / (weights[0] + weights[1]) as usize;
            assert!(light.abs_diff(due) * 10 < due, "{weights:?}: {light} requests, {due} due");
        }
    }

    #[test]
    fn starting_points_differ_by_less_than_a_step() {
        for seed in [0, 1, u64::MAX / 3, u64::MAX] {
            let shares = FairShares::new(&[9, 1]);
            shares.start(|| seed);
            let counts = serve(&shares, |_| true, 10);
            assert!((8..=10).contains(&counts[0]), "{seed}: {counts:?}");
        }
    }
}
