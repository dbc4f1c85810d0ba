use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::upstream::SPREAD_ABOVE;
use crate::upstream::balance::*;
use crate::upstream::state::ServerState;

/// Loads, which servers are permitted, and which are in their slow start.
struct Field<'f>(&'f [u32], &'f dyn Fn(usize) -> bool, &'f [u32]);

impl Candidates for Field<'_> {
    fn is_permitted(&self, server: usize) -> bool {
        self.1(server)
    }

    fn in_flight(&self, server: usize) -> u32 {
        self.0.get(server).copied().unwrap_or(0)
    }

    fn ramp(&self, server: usize) -> u32 {
        self.2.get(server).copied().unwrap_or(FULL_RAMP)
    }
}

const ALL: Field = Field(&[], &|_| true, &[]);

fn balancer(balance: Balance, weights: &[u32]) -> Balancer {
    let servers = weights.iter().enumerate().map(|(i, weight)| (*weight, format!("10.0.0.{i}:80")));
    Balancer::new(balance, SPREAD_ABOVE, servers)
}

/// Pseudorandom numbers.
fn random() -> impl FnMut() -> u64 {
    let mut seed = 0;
    move || {
        seed += 1;
        splitmix64(seed)
    }
}

fn shares(balance: Balance, weights: &[u32], field: &Field, picks: usize) -> Vec<usize> {
    let (balancer, mut random) = (balancer(balance, weights), random());
    let mut counts = vec![0; weights.len()];
    let keys = (0..picks as u64).map(|key| Some(fnv1a(HASH_START, &key.to_be_bytes())));
    keys.filter_map(|key| balancer.select(&mut random, key, field)).for_each(|server| counts[server] += 1);
    counts
}

#[test]
fn round_robin_gives_each_server_its_share_evenly() {
    let b = balancer(Balance::RoundRobin, &[4, 2, 2]);
    let picks: Vec<_> = (0..8).filter_map(|_| b.select(|| 0, None, &ALL)).collect();
    assert_eq!(picks, [0, 1, 2, 0, 0, 1, 2, 0]);
}

#[test]
fn weights_with_many_turns_are_rounded_and_nobody_is_left_out() {
    let mut weights = vec![720_720 / 7; 7];
    weights.extend([720_720 * 1000, 1, 0]);
    let b = balancer(Balance::RoundRobin, &weights);
    assert!(b.turns.len() < 5000, "{}", b.turns.len());
    let turns = |server| b.turns.iter().filter(|turn| **turn == server).count();
    assert_eq!((turns(0), turns(8), turns(9)), (1, 1, 0));
    assert!(turns(7) > 4000);
}

#[test]
fn round_robin_passes_over_an_unusable_server() {
    let b = balancer(Balance::RoundRobin, &[1, 1, 1]);
    let picks: Vec<_> = (0..4).filter_map(|_| b.select(|| 0, None, &Field(&[], &|server| server != 1, &[]))).collect();
    assert_eq!(picks, [0, 2, 0, 2]);
}

#[test]
fn two_choices_take_the_less_loaded_and_never_compare_a_server_with_itself() {
    let b = balancer(Balance::P2c, &[1, 1]);
    for random in [0, 1, 1 << 32, u64::MAX] {
        assert_eq!(b.select(|| random, None, &Field(&[9, 3], &|_| true, &[])), Some(1));
    }
}

#[test]
fn a_server_is_passed_over_when_another_would_have_fewer_requests_for_its_weight() {
    for balance in [Balance::P2c, Balance::LeastRequests] {
        for (loads, picked) in [([2, 3], 1), ([1, 12], 0), ([0, 4], 0)] {
            let b = balancer(balance, &[1, 4]);
            for _ in 0..20 {
                assert_eq!(b.select(|| 7, None, &Field(&loads, &|_| true, &[])), Some(picked), "{balance:?} {loads:?}");
            }
        }
        // Between the extremes, the weights decide.
        let counts = shares(balance, &[1, 4], &Field(&[0, 2], &|_| true, &[]), 100);
        assert!((19..=21).contains(&counts[0]), "{balance:?}: {counts:?}");
    }
}

#[test]
fn excluded_servers_are_never_selected() {
    let weights = [1000, 1, 999, 1000, 7];
    for balance in Balance::ALL.iter().copied() {
        assert_eq!(shares(balance, &weights, &Field(&[], &|server| server == 1, &[]), 50), [0, 50, 0, 0, 0]);
        assert_eq!(shares(balance, &weights, &Field(&[], &|_| false, &[]), 50), [0; 5]);
        assert_eq!(shares(balance, &[0, 3, 0], &ALL, 50), [0, 50, 0]);
        assert_eq!(shares(balance, &[0, 0], &ALL, 50), [0, 0]);
    }
}

#[test]
fn least_requests_goes_by_load_and_weight_and_spreads_equals() {
    let b = balancer(Balance::LeastRequests, &[1, 1, 2, 0]);
    assert_eq!(b.select(|| 5, None, &Field(&[2, 1, 4, 0], &|_| true, &[])), Some(1));
    assert_eq!(b.select(|| 5, None, &Field(&[2, 1, 1, 0], &|_| true, &[])), Some(2));
    let counts = shares(Balance::LeastRequests, &[1, 1, 1], &ALL, 3000);
    assert_eq!(counts, [1000; 3]);
}

#[test]
fn hashes_keep_their_server_and_follow_the_weights() {
    let weights = [1, 2, 1, 4];
    let counts = shares(Balance::ConsistentHash, &weights, &ALL, 8000);
    let expected = weights.map(|weight| weight as usize * 1000);
    assert!(counts.iter().zip(expected).all(|(count, due)| count.abs_diff(due) < due / 5), "{counts:?}");
    let b = balancer(Balance::ConsistentHash, &weights);
    let place = |key: u64, field: &Field| b.select(|| 0, Some(fnv1a(HASH_START, &key.to_be_bytes())), field);
    for key in 0..1000 {
        let without = Field(&[], &|server| server != 1, &[]);
        let (before, after) = (place(key, &ALL), place(key, &without));
        assert!(before == Some(1) || before == after, "{key} moved although its server stayed");
    }
}

#[test]
fn no_server_gets_much_more_than_its_share_of_what_is_hashed() {
    let b = balancer(Balance::ConsistentHash, &[1, 1, 1, 1]);
    let mut loads = [0_u32; 4];
    for _ in 0..400 {
        // All requests have the same key.
        let server = b.select(|| 0, Some(7), &Field(&loads, &|_| true, &[])).unwrap();
        loads[server] += 1;
    }
    assert!(loads.iter().all(|load| *load <= 126), "{loads:?}");
    assert!(loads.iter().filter(|load| **load > 120).count() >= 3, "fewer than three servers share the key: {loads:?}");
}

#[test]
fn a_server_that_starts_gets_a_part_of_its_share() {
    for balance in Balance::ALL.iter().copied() {
        let started = Field(&[4, 4], &|_| true, &[FULL_RAMP, FULL_RAMP]);
        let starting = Field(&[4, 4], &|_| true, &[FULL_RAMP, 100]);
        let counts = [&started, &starting].map(|field| shares(balance, &[1, 1], field, 1000)[1]);
        assert!((400..600).contains(&counts[0]), "{balance:?}: {counts:?}");
        assert!(counts[1] < 200, "{balance:?}: {counts:?}");
    }
    assert_eq!(shares(Balance::RoundRobin, &[1, 1], &Field(&[], &|server| server == 1, &[0, 1]), 9), [0, 9]);
}

/// Simulated clients. Each sends its next request when it has the response to the last one.
struct Simulation<'s> {
    weights: &'s [u32],
    clients: usize,
    /// Workers, each with a balancer of its own.
    workers: usize,
    /// Microseconds per request, by server.
    service: &'s [u64],
    seconds: usize,
    /// Slow start of the last server, which joins the others at 0.
    slow_start_ms: u64,
}

impl Simulation<'_> {
    /// Requests to each server, by second.
    fn run(&self, balance: Balance) -> Vec<Vec<usize>> {
        let (count, mut random) = (self.weights.len(), random());
        let balancers: Vec<_> = (0..self.workers).map(|_| balancer(balance, self.weights)).collect();
        let newcomer = ServerState::new_joining(0);
        let mut loads = vec![vec![0; count]; self.workers];
        let mut counts = vec![vec![0; count]; self.seconds];
        let mut times: BinaryHeap<_> = (0..self.clients).map(|client| (Reverse(client as u64), client, None)).collect();
        while let Some((Reverse(now), client, server)) = times.pop() {
            let worker = client % self.workers;
            if let Some(server) = server {
                loads[worker][server] -= 1;
            }
            let Some(counts) = counts.get_mut(usize::try_from(now / 1_000_000).unwrap()) else { break };
            // `p2c` sees the load of its own worker only.
            let own = balance == Balance::P2c;
            let seen: Vec<u32> = (0..count)
                .map(|server| {
                    loads.iter().enumerate().filter(|(at, _)| !own || *at == worker).map(|(_, l)| l[server]).sum()
                })
                .collect();
            let mut ramps = vec![FULL_RAMP; count];
            ramps[count - 1] = newcomer.ramp(self.slow_start_ms, now / 1000);
            let hash = Some(random());
            let picked = balancers[worker].select(&mut random, hash, &Field(&seen, &|_| true, &ramps)).unwrap();
            loads[worker][picked] += 1;
            counts[picked] += 1;
            // Varies by a tenth.
            let time = self.service[picked] * (90 + random() % 21) / 100;
            times.push((Reverse(now + time), client, Some(picked)));
        }
        counts
    }
}

/// Shares, in percent.
#[expect(clippy::cast_precision_loss, reason = "counts of a test")]
fn percent(counts: &[usize]) -> Vec<f64> {
    let total = counts.iter().sum::<usize>().max(1) as f64;
    counts.iter().map(|count| *count as f64 * 100.0 / total).collect()
}

#[test]
fn shares_follow_the_weights_at_every_load() {
    let all: [&[u32]; 6] = [&[1, 1], &[2, 1], &[9, 1], &[95, 5], &[5, 3, 2], &[7, 5, 5, 1, 1, 1]];
    for weights in all {
        let total: u32 = weights.iter().sum();
        for (clients, workers) in [(1, 1), (2, 1), (4, 1), (4, 3), (10, 1), (20, 2), (20, 4), (60, 4)] {
            for balance in [Balance::P2c, Balance::LeastRequests, Balance::RoundRobin] {
                let service = vec![20_000; weights.len()];
                let run = Simulation { weights, clients, workers, service: &service, seconds: 10, slow_start_ms: 0 };
                let got = percent(&run.run(balance).concat().chunks(weights.len()).fold(vec![0; weights.len()], add));
                for (weight, share) in weights.iter().zip(&got) {
                    let due = f64::from(*weight) * 100.0 / f64::from(total);
                    let case = format!("{balance:?} {weights:?}, {clients} clients, {workers} workers: {got:.1?}");
                    assert!((share - due).abs() < 1.5, "{case}");
                }
            }
        }
    }
}

fn add(mut sum: Vec<usize>, next: &[usize]) -> Vec<usize> {
    sum.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
    sum
}

#[test]
fn a_slow_server_gets_fewer_requests_than_its_weight() {
    let cases: [(&[u32], &[u64], usize, f64); 5] = [
        (&[1, 1], &[20_000, 200_000], 2, 12.0),
        (&[1, 1], &[20_000, 200_000], 40, 12.0),
        (&[1, 9], &[20_000, 200_000], 40, 60.0),
        (&[9, 1], &[20_000, 200_000], 40, 3.0),
        (&[1, 1, 1, 1, 1, 1], &[20_000, 20_000, 20_000, 20_000, 20_000, 400_000], 40, 4.0),
    ];
    for (weights, service, clients, most) in cases {
        for balance in [Balance::P2c, Balance::LeastRequests] {
            let run = Simulation { weights, clients, workers: 1, service, seconds: 10, slow_start_ms: 0 };
            let got = percent(&run.run(balance).concat().chunks(weights.len()).fold(vec![0; weights.len()], add));
            let slow = got[weights.len() - 1];
            assert!(slow < most && slow > 0.1, "{balance:?} {weights:?}, {clients} clients: {got:.1?}");
        }
    }
}

/// The ramp grows linearly from a twentieth to the whole.
#[test]
fn a_server_that_joins_gets_the_documented_share_in_each_second() {
    const SECONDS: u32 = 10;
    for weights in [[1, 1], [2, 3], [9, 10], [10, 9], [99, 100], [100, 99], [1, 1000], [1000, 1]] {
        for balance in Balance::ALL.iter().copied() {
            let run = Simulation {
                weights: &weights,
                clients: 12,
                workers: 2,
                service: &[10_000, 10_000],
                seconds: SECONDS as usize + 1,
                slow_start_ms: u64::from(SECONDS) * 1000,
            };
            for (second, counts) in (0_u32..).zip(run.run(balance)) {
                let part = |step: u32| {
                    let ramp = (f64::from(second * 100 + step) / f64::from(SECONDS * 100)).clamp(0.05, 1.0);
                    let weight = f64::from(weights[1]) * ramp;
                    weight * 100.0 / (weight + f64::from(weights[0]))
                };
                let due = (0..100).map(part).sum::<f64>() / 100.0;
                let got = percent(&counts)[1];
                // Hashes vary like random numbers.
                let most = if balance == Balance::ConsistentHash { 7.0 } else { 3.0 };
                assert!((got - due).abs() < most, "{balance:?} {weights:?} second {second}: {got:.1}, not {due:.1}");
            }
        }
    }
}

#[test]
fn a_key_stays_on_one_server_until_that_is_loaded() {
    let b = balancer(Balance::ConsistentHash, &[1; 10]);
    let mut loads = [0_u32; 10];
    for parallel in 1..=400 {
        let server = b.select(|| 0, Some(7), &Field(&loads, &|_| true, &[])).unwrap();
        loads[server] += 1;
        let used = loads.iter().filter(|load| **load > 0).count();
        assert!(parallel > SPREAD_ABOVE || used == 1, "{parallel} at once: {loads:?}");
    }
    assert!(loads.iter().all(|load| *load <= 51), "no server has more than its share and a quarter: {loads:?}");
}
