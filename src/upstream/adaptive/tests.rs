//! The adaptive limit against simulated servers: `slots` of them work on one request each, and the rest waits there.
//! More requests arrive, at random, than the limit lets pass, unless the load is below the capacity.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "times and counts of a simulation are small"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::*;

const RULE: AdaptiveRule = AdaptiveRule { min: 3, max: 1000, start: 20, fixed_baseline_us: None };

/// One interval of the simulation.
#[derive(Clone, Copy)]
struct Phase {
    seconds: f64,
    slots: usize,
    service_ms: f64,
    /// Added to each response, on the way to the client.
    delay_ms: f64,
    /// Requests per second, as a multiple of the capacity.
    load: f64,
}

impl Phase {
    const fn new(slots: usize, service_ms: f64, load: f64) -> Phase {
        Phase { seconds: 20.0, slots, service_ms, delay_ms: 0.0, load }
    }

    fn capacity(&self) -> f64 {
        self.slots as f64 * 1e3 / self.service_ms
    }
}

/// The result of the second half of a phase.
#[derive(Debug, Default)]
struct PhaseResult {
    /// Responses per response that servers with these slots could send at most, or that were requested.
    goodput: f64,
    refused: u32,
    limit: u32,
    baseline_ms: f64,
    /// Responses per request that arrived, in each second of the whole phase.
    by_second: Vec<f64>,
}

/// A small generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.next().ln()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    Served(u64),
    Responded(u64),
}

struct Simulation {
    controller: Controller,
    random: Random,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    waiting: VecDeque<u64>,
    sent: HashMap<u64, u64>,
    at_server: VecDeque<(u64, u64)>,
    busy: usize,
    in_flight: u32,
    next: u64,
    now_us: u64,
    /// Service times are random; otherwise all are equal.
    is_random: bool,
}

/// Requests that wait at the gateway, and for how long.
const WAITING_MAX: usize = 100;
const WAIT_MAX_US: u64 = 100_000;

impl Simulation {
    fn new(rule: AdaptiveRule, seed: u64, is_random: bool) -> Simulation {
        let mut simulation = Simulation {
            controller: Controller::new(rule, 0),
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            events: BinaryHeap::new(),
            waiting: VecDeque::new(),
            sent: HashMap::new(),
            at_server: VecDeque::new(),
            busy: 0,
            in_flight: 0,
            next: 0,
            now_us: 0,
            is_random,
        };
        simulation.add(0, Event::Arrival);
        simulation
    }

    fn add(&mut self, after_us: u64, event: Event) {
        self.events.push(Reverse((self.now_us + after_us, event)));
    }

    fn run(&mut self, phase: Phase) -> PhaseResult {
        let (begun, ends) = (self.now_us, self.now_us + (phase.seconds * 1e6) as u64);
        let (half, mut responses, mut refused) = (begun.midpoint(ends), 0_u32, 0_u32);
        let mut arrived = vec![0_u32; phase.seconds.ceil() as usize];
        let mut by_second = vec![0_u32; phase.seconds.ceil() as usize];
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now_us = at;
            let counts = u32::from(at > half);
            match event {
                Event::Arrival => {
                    let gap = self.random.exponential(1e6 / (phase.capacity() * phase.load));
                    self.add(gap as u64, Event::Arrival);
                    if let Some(second) = arrived.get_mut(((at - begun) / 1_000_000) as usize) {
                        *second += 1;
                    }
                    if self.waiting.len() < WAITING_MAX { self.waiting.push_back(at) } else { refused += counts }
                }
                Event::Served(id) => {
                    self.busy -= 1;
                    self.add((phase.delay_ms * 1e3) as u64, Event::Responded(id));
                }
                Event::Responded(id) => {
                    responses += counts;
                    if let Some(second) = by_second.get_mut(((at - begun) / 1_000_000) as usize) {
                        *second += 1;
                    }
                    let response_us = at - self.sent.remove(&id).unwrap();
                    let at_limit = self.in_flight >= self.controller.limit() || !self.waiting.is_empty();
                    let sample =
                        ResponseSample { kind: SampleKind::Response, response_us, in_flight: self.in_flight, at_limit };
                    self.in_flight -= 1;
                    self.controller.record(sample, at);
                }
            }
            while self.waiting.front().is_some_and(|since| at - since > WAIT_MAX_US) {
                self.waiting.pop_front();
                refused += counts;
            }
            self.send_waiting(phase);
            if at >= ends {
                break;
            }
        }
        let ideal = phase.capacity() * phase.load.min(1.0) * phase.seconds / 2.0;
        let ratio = |(count, all): (u32, u32)| f64::from(count) / f64::from(all.max(1)).min(phase.capacity());
        let by_second = by_second.into_iter().zip(arrived).map(ratio).collect();
        let baseline_ms = self.controller.baseline_us() / 1e3;
        PhaseResult {
            goodput: f64::from(responses) / ideal,
            refused,
            limit: self.controller.limit(),
            baseline_ms,
            by_second,
        }
    }

    fn send_waiting(&mut self, phase: Phase) {
        while self.in_flight < self.controller.limit() && self.waiting.pop_front().is_some() {
            let service_us = match self.is_random {
                true => self.random.exponential(phase.service_ms * 1e3),
                false => phase.service_ms * 1e3,
            };
            self.in_flight += 1;
            self.next += 1;
            self.sent.insert(self.next, self.now_us);
            self.at_server.push_back((self.next, service_us as u64));
        }
        while self.busy < phase.slots
            && let Some((id, service_us)) = self.at_server.pop_front()
        {
            self.busy += 1;
            self.add(service_us, Event::Served(id));
        }
    }
}

/// Runs the phases with equal and with random service times.
fn each_way(seed: u64, mut check: impl FnMut(&mut Simulation)) {
    for is_random in [false, true] {
        check(&mut Simulation::new(RULE, seed, is_random));
    }
}

#[test]
fn servers_are_busy_under_four_times_their_capacity_and_nobody_is_refused_below_it() {
    for (slots, seed) in [5, 20, 50].into_iter().flat_map(|slots| [(slots, 1), (slots, 2), (slots, 3)]) {
        each_way(seed, |simulation| {
            simulation.run(Phase::new(slots, 20.0, 0.8));
            let steady = simulation.run(Phase::new(slots, 20.0, 0.8));
            assert_eq!(steady.refused, 0, "{slots}: {steady:?}");
            let overloaded = simulation.run(Phase::new(slots, 20.0, 4.0));
            assert!(overloaded.goodput > 0.94 && overloaded.limit < 2 * slots as u32 + 15, "{slots}: {overloaded:?}");
            simulation.run(Phase::new(slots, 20.0, 0.8));
            let again = simulation.run(Phase::new(slots, 20.0, 0.8));
            assert_eq!(again.refused, 0, "{slots}: {again:?}");
        });
    }
}

#[test]
fn the_limit_follows_the_capacity() {
    each_way(7, |simulation| {
        let twice = |slots, service_ms| Phase { seconds: 30.0, ..Phase::new(slots, service_ms, 2.0) };
        let full = simulation.run(twice(40, 20.0));
        let half = simulation.run(twice(20, 20.0));
        let slower = simulation.run(twice(20, 40.0));
        let double = simulation.run(twice(80, 20.0));
        for result in [&full, &half, &slower, &double] {
            assert!(result.goodput > 0.9, "{result:?}");
        }
        assert!(half.limit < full.limit && double.limit > 2 * half.limit, "{full:?} {half:?} {double:?}");
    });
}

/// By the baseline, the response times look like a queue, but the servers have capacity.
#[test]
fn a_longer_way_to_the_servers_is_no_overload() {
    each_way(3, |simulation| {
        simulation.run(Phase::new(20, 20.0, 2.0));
        let far = Phase { seconds: 60.0, delay_ms: 50.0, ..Phase::new(20, 20.0, 2.0) };
        let result = simulation.run(far);
        assert!(result.goodput > 0.95 && result.limit > 50, "{result:?}");
    });
}

/// An attacker or a leak makes the servers slower by a fortieth each second: 4.4 times as slow after a minute.
#[test]
fn a_slow_poisoning_moves_the_baseline_by_a_tenth_in_a_minute() {
    let mut simulation = Simulation::new(RULE, 5, true);
    let before = simulation.run(Phase::new(20, 20.0, 0.6)).baseline_ms;
    for second in 1..=60 {
        let service_ms = 20.0 * 1.025_f64.powi(second);
        simulation.run(Phase { seconds: 1.0, ..Phase::new(20, service_ms, 0.6) });
    }
    let after = simulation.controller.baseline_us() / 1e3;
    assert!(after < before * 1.12 && after > before * 0.9, "{before} {after}");
    // In overload, it does not rise at all.
    let overloaded = simulation.run(Phase { seconds: 60.0, ..Phase::new(20, 90.0, 2.0) });
    assert!(overloaded.baseline_ms < after * 1.12 && overloaded.goodput > 0.85, "{after} {overloaded:?}");
    assert!(overloaded.limit < 60, "{overloaded:?}");
}

#[test]
fn a_fixed_baseline_stays() {
    let rule = AdaptiveRule { fixed_baseline_us: Some(30_000), ..RULE };
    let mut simulation = Simulation::new(rule, 9, true);
    let result = simulation.run(Phase { seconds: 40.0, ..Phase::new(20, 20.0, 4.0) });
    assert!((result.baseline_ms - 30.0).abs() < 0.01 && result.goodput > 0.9, "{result:?}");
}

/// Random samples of any kind: the limit keeps its bounds and never falls by more than a fifth at once.
#[test]
fn the_adaptive_limit_keeps_its_bounds_for_any_samples() {
    let mut random = Random(11);
    let rule = AdaptiveRule { min: 4, max: 60, start: 20, fixed_baseline_us: None };
    let mut controller = Controller::new(rule, 0);
    let (mut now_us, mut before) = (0, controller.limit());
    for _ in 0..300_000 {
        now_us += (random.next() * 20_000.0) as u64;
        let kind = match random.next() {
            part if part < 0.8 => SampleKind::Response,
            part if part < 0.9 => SampleKind::Timeout,
            _ => SampleKind::ClientLeft,
        };
        let response_us = if random.next() < 0.01 { u64::MAX } else { random.exponential(50_000.0) as u64 };
        let in_flight = (random.next() * 100.0) as u32;
        controller.record(ResponseSample { kind, response_us, in_flight, at_limit: random.next() < 0.7 }, now_us);
        let limit = controller.limit();
        assert!((4..=60).contains(&limit), "{limit}");
        assert!(f64::from(limit) >= f64::from(before) * 0.7 - 1.0, "{before} {limit}");
        before = limit;
        assert!(controller.baseline_us().is_finite() && controller.recent_us().is_finite());
    }
    controller.apply_rule(AdaptiveRule { min: 70, max: 80, ..rule });
    assert_eq!(controller.limit(), 70);
}

#[test]
fn places_are_never_more_than_the_limit_over_all_threads() {
    let limit = Arc::new(AdaptiveLimit::new(AdaptiveRule { start: 7, ..RULE }));
    let most = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    if let Some(_place) = limit.take_place() {
                        most.fetch_max(limit.in_flight.load(Ordering::SeqCst), Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 7);
    assert_eq!(limit.report().in_flight, 0);
}

#[test]
fn the_state_is_small() {
    assert!(size_of::<AdaptiveLimit>() < 2048, "{}", size_of::<AdaptiveLimit>());
}

/// The throughput of a window says nothing about the time in which nobody sent requests.
#[test]
fn a_pause_does_not_count_as_slow_servers() {
    let mut controller = Controller::new(RULE, 0);
    let sample = ResponseSample { kind: SampleKind::Response, response_us: 5000, in_flight: 1, at_limit: false };
    let mut now_us = 0;
    for _ in 0..15 {
        controller.record(sample, now_us);
        now_us += 10_000;
    }
    now_us += 3_600_000_000;
    for _ in 0..150 {
        controller.record(sample, now_us);
        let gap_us = controller.gap_us();
        assert!(gap_us <= 10_000, "{gap_us}");
        now_us += 10_000;
    }
    assert!(controller.gap_us() > 5000, "{}", controller.gap_us());
}

/// Servers get four times the capacity: after 3 s, the requests find it, whatever was learned before.
#[test]
fn a_fourfold_capacity_is_used_within_three_seconds() {
    let (mut runs, mut low) = (0, 0);
    for (slots, service_ms) in [(5, 40.0), (10, 40.0), (20, 20.0)] {
        for history in [vec![], vec![2.0], vec![2.0, 0.8], vec![3.2]] {
            for seed in 1..=4 {
                each_way(seed, |simulation| {
                    simulation.run(Phase::new(slots, service_ms, 0.8));
                    for load in &history {
                        simulation.run(Phase::new(slots, service_ms, *load));
                    }
                    let raised = simulation.run(Phase { seconds: 10.0, ..Phase::new(4 * slots, service_ms, 0.8) });
                    let goodput = raised.by_second[3..].iter().sum::<f64>() / 7.0;
                    assert!(goodput > 0.9, "{slots} slots of {service_ms} ms, {history:?}, {seed}: {raised:?}");
                    runs += 1;
                    low += u32::from(goodput < 0.95);
                });
            }
        }
    }
    assert!(low * 50 <= runs, "{low} of {runs}");
}
