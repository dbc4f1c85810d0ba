//! Stride scheduling: gives each server its share of the requests by weight. Every request moves a server ahead by a
//! step, and the larger its weight, the shorter the step. The server that is least far ahead is due. Pure; used by
//! `balance`.

use std::cell::Cell;

/// The ramp of a server that has its whole weight, in thousandths.
pub const FULL_RAMP: u32 = 1000;
/// The step of a server with weight 1.
const STEP_MAX: u64 = 1 << 50;
/// Steps that a server may lag behind the others and catch up later.
///
/// A server lags while it is overloaded. Afterwards it gets up to this many requests more than its share. A longer lag
/// is forgotten: catching up would be a burst.
const CREDIT_STEPS: u64 = 8;

/// The progress of all servers of an upstream in one worker.
#[derive(Debug)]
pub struct FairShares {
    servers: Vec<ServerProgress>,
    /// The furthest position that any server had when it was selected.
    front: Cell<u128>,
    /// True if the servers have their random starting points.
    started: Cell<bool>,
}

#[derive(Debug)]
struct ServerProgress {
    /// Step per request; never 0. A server of weight 0 has the same step as one of weight 1.
    step: u64,
    at: Cell<u128>,
}

impl FairShares {
    pub fn new(weights: &[u32]) -> FairShares {
        let step = |weight: &u32| STEP_MAX / u64::from((*weight).max(1));
        let servers = weights.iter().map(|weight| ServerProgress { step: step(weight), at: Cell::default() }).collect();
        FairShares { servers, front: Cell::default(), started: Cell::default() }
    }

    /// Before the first selection, puts each server at a random point within its first step. Shares are then right on
    /// average even if few requests come between two reloads, and workers do not all begin with the same server.
    pub fn randomize_start(&self, mut random: impl FnMut() -> u64) {
        if !self.started.replace(true) {
            let mut start = |step: u64| u128::from(STEP_MAX - step + random() % step);
            self.servers.iter().for_each(|server| server.at.set(start(server.step)));
        }
    }

    /// Returns the position of the server after one more request; the server with the lowest is due. `ramp`: the part
    /// of its weight that counts, in thousandths.
    pub fn next_position(&self, server: usize, ramp: u32) -> u128 {
        let (server, front) = (&self.servers[server], self.front.get());
        let step = server.ramped_step(ramp);
        let credit = step.max(server.step * CREDIT_STEPS);
        if server.at.get() + u128::from(credit) < front {
            server.at.set(front);
        }
        server.at.get() + u128::from(step)
    }

    /// Records that the server gets a request.
    pub fn record_request(&self, server: usize, ramp: u32) {
        let server = &self.servers[server];
        self.front.set(self.front.get().max(server.at.get()));
        server.at.set(server.at.get() + u128::from(server.ramped_step(ramp)));
    }
}

impl ServerProgress {
    fn ramped_step(&self, ramp: u32) -> u64 {
        if ramp >= FULL_RAMP { self.step } else { self.step * u64::from(FULL_RAMP) / u64::from(ramp.max(1)) }
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
            let Some(due) = servers.clone().filter(|i| may(*i)).min_by_key(|i| shares.next_position(*i, FULL_RAMP))
            else {
                break;
            };
            shares.record_request(due, FULL_RAMP);
            counts[due] += 1;
        }
        counts
    }

    #[test]
    fn requests_follow_the_weights_exactly() {
        let shares = FairShares::new(&[95, 4, 1]);
        shares.randomize_start(|| 1 << 40);
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
                    shares.randomize_start(&mut random);
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
            shares.randomize_start(|| seed);
            let counts = serve(&shares, |_| true, 10);
            assert!((8..=10).contains(&counts[0]), "{seed}: {counts:?}");
        }
    }
}
