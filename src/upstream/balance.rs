//! Picking a server of an upstream. Pure: randomness and loads are passed in. Called by the
//! forwarder through `http::upstream::servers`.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Balance;

/// One worker's balancer for one roster.
#[derive(Debug)]
pub struct Balancer {
    balance: Balance,
    weights: Vec<u32>,
    /// What each server is called, as a number; the same in every gateway.
    names: Vec<u64>,
    /// Server indices, each as often as its weight says, spread evenly; those of weight 0 not at all.
    turns: Vec<usize>,
    next: Cell<usize>,
}

/// What a pick goes by, by the index of a server.
pub trait Candidates {
    /// It may be picked.
    fn may(&self, server: usize) -> bool;
    /// Requests in flight there.
    fn load(&self, server: usize) -> u32;
    /// The part of its weight that counts, in thousandths from 1: less while it starts.
    fn ramp(&self, server: usize) -> u32;
}

/// The whole of a weight.
pub const RAMPED: u32 = 1000;

/// Random turns looked at before all are.
const THROWS: usize = 8;

impl Balancer {
    /// `servers`: the weight of each, and what it is called in every gateway.
    pub fn new(balance: Balance, servers: impl Iterator<Item = (u32, String)>) -> Balancer {
        let (weights, names): (Vec<u32>, Vec<u64>) =
            servers.map(|(weight, name)| (weight, digest(START, name.as_bytes()))).unzip();
        let divisor = weights.iter().copied().fold(0, gcd).max(1);
        let weights: Vec<u32> = weights.into_iter().map(|weight| weight / divisor).collect();
        Balancer { balance, turns: turns(&weights), weights, names, next: Cell::new(0) }
    }

    /// One of the servers that may be picked, if there is any. `hash`: of what requests are told apart by.
    pub fn pick(&self, random: impl FnMut() -> u64, hash: Option<u64>, servers: &impl Candidates) -> Option<usize> {
        match (self.balance, hash) {
            (Balance::RoundRobin, _) => self.in_turn(random, servers),
            (Balance::LeastRequests, _) => self.least_loaded(random, servers),
            (Balance::ConsistentHash, Some(hash)) => self.hashed(hash, servers),
            // What a request lacks cannot tell where it goes.
            (Balance::P2c | Balance::ConsistentHash, _) => self.less_loaded_of_two(random, servers),
        }
    }

    fn in_turn(&self, mut random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        let (start, count) = (self.next.get(), self.turns.len());
        let turn = |i: usize| self.turns[(start + i) % count];
        let mut first = |ready: bool| (0..count).find(|i| is_free(turn(*i), ready, servers, &mut random));
        let offset = first(true).or_else(|| first(false))?;
        self.next.set((start + offset + 1) % count);
        Some(turn(offset))
    }

    fn less_loaded_of_two(&self, mut random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        let mut throw = |ready: bool, other: Option<usize>| {
            let seed = random();
            self.any(seed, |server| Some(server) != other && is_free(server, ready, servers, &mut random))
        };
        let a = throw(true, None).or_else(|| throw(false, None))?;
        let lighter = throw(true, Some(a)).filter(|b| self.weighted_load(*b, servers) < self.weighted_load(a, servers));
        Some(lighter.unwrap_or(a))
    }

    /// Of equals, a random one.
    fn least_loaded(&self, mut random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        let all = self.weights.len();
        let from = below(all, random());
        let mut least = |ready: bool| {
            let free = |server: &usize| self.weights[*server] > 0 && is_free(*server, ready, servers, &mut random);
            let free = (from..all).chain(0..from).filter(free);
            free.min_by_key(|server| self.weighted_load(*server, servers))
        };
        least(true).or_else(|| least(false))
    }

    /// Rendezvous hashing: of the servers each of which gives the hash a number, the one with the largest. When
    /// one goes, only what it had goes elsewhere. One that has its share of all requests, and a quarter more,
    /// is passed over.
    fn hashed(&self, hash: u64, servers: &impl Candidates) -> Option<usize> {
        let may = || (0..self.weights.len()).filter(|server| self.weights[*server] > 0 && servers.may(*server));
        let (mut load, mut weight) = (1_u64, 0_u64);
        for server in may() {
            load += u64::from(servers.load(server));
            weight += self.ramped_weight(server, servers);
        }
        let has_room = |server: &usize| {
            let share = load.saturating_mul(self.ramped_weight(*server, servers) * 5).div_ceil(weight.max(1) * 4);
            u64::from(servers.load(*server)) < share
        };
        let bids = may().filter(has_room).map(|server| (server, self.bid(hash, server, servers)));
        bids.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(server, _)| server)
    }

    /// The larger the weight, the more often it is the largest, in the same proportion.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a number between 0 and 1")]
    fn bid(&self, hash: u64, server: usize, servers: &impl Candidates) -> f64 {
        let mixed = scrambled(hash ^ scrambled(self.names[server]));
        let part = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -(self.ramped_weight(server, servers) as f64) / part.ln()
    }

    fn ramped_weight(&self, server: usize, servers: &impl Candidates) -> u64 {
        u64::from(self.weights[server]) * u64::from(servers.ramp(server))
    }

    /// A random one, by weight.
    fn any(&self, random: u64, mut may: impl FnMut(usize) -> bool) -> Option<usize> {
        let mut seed = random;
        for _ in 0..THROWS.min(self.turns.len()) {
            let server = self.turns[below(self.turns.len(), seed)];
            if may(server) {
                return Some(server);
            }
            seed = scrambled(seed);
        }
        // Few may be picked: from a random place on.
        let start = below(self.turns.len(), seed);
        let places = (start..self.turns.len()).chain(0..start);
        places.map(|place| self.turns[place]).find(|server| may(*server))
    }

    /// Comparable without division: the load a server would have per unit of weight.
    fn weighted_load(&self, server: usize, servers: &impl Candidates) -> u64 {
        (u64::from(servers.load(server)) + 1).saturating_mul(WEIGHT_SCALE) / u64::from(self.weights[server].max(1))
    }
}

const WEIGHT_SCALE: u64 = 1 << 40;

/// Whether the server may be picked; where only those that are `ready` count, one that starts is, by chance,
/// as often as it is up to it.
fn is_free(server: usize, ready: bool, servers: &impl Candidates, random: &mut impl FnMut() -> u64) -> bool {
    let mut is_ready = || {
        let ramp = servers.ramp(server);
        ramp >= RAMPED || (random() >> 32) % u64::from(RAMPED) < u64::from(ramp)
    };
    servers.may(server) && (!ready || is_ready())
}

/// Of nothing.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Goes on from `hash` with one more value (FNV-1a).
pub fn digest(hash: u64, value: &[u8]) -> u64 {
    let length = (value.len() as u64).to_be_bytes();
    let bytes = length.iter().chain(value);
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A number from 0, less than `count` unless that is 0, too.
fn below(count: usize, random: u64) -> usize {
    (random >> 32).checked_rem(count as u64).and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

/// Another number that tells nothing of this one (splitmix64).
fn scrambled(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Turns of all servers. Where their weights need more they are rounded, to 1 at least.
const TURNS_MAX: u64 = 4096;

/// Servers of one weight, which take turns among themselves.
struct EqualServers {
    weight: i64,
    servers: Vec<usize>,
    /// Of `servers`, who is next,
    next: usize,
    /// and how far it is behind its share.
    credit: i64,
}

/// Smooth weighted round robin: each turn goes to the server furthest behind its share, of equals to the first.
///
/// Of each weight only one server can be next, so only that is looked at. Weights that differ are some 90 at most, for
/// together they have no more than `TURNS_MAX` turns.
fn turns(weights: &[u32]) -> Vec<usize> {
    let total: u64 = weights.iter().copied().map(u64::from).sum();
    let rounded = |weight: u32| match u64::from(weight) {
        weight if total > TURNS_MAX => ((weight * TURNS_MAX + total / 2) / total).max(1),
        weight => weight,
    };
    let (mut equals, mut total) = (BTreeMap::new(), 0);
    for (server, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0) {
        let weight = rounded(*weight).cast_signed();
        total += weight;
        let new = || EqualServers { weight, servers: Vec::new(), next: 0, credit: 0 };
        equals.entry(weight).or_insert_with(new).servers.push(server);
    }
    let mut equals: Vec<EqualServers> = equals.into_values().collect();
    let mut turns = Vec::new();
    for _ in 0..total {
        equals.iter_mut().for_each(|equals| equals.credit += equals.weight);
        let first = |equals: &&mut EqualServers| (equals.credit, Reverse(equals.servers[equals.next]));
        let Some(equals) = equals.iter_mut().max_by_key(first) else { break };
        turns.push(equals.servers[equals.next]);
        equals.next = (equals.next + 1) % equals.servers.len();
        // The others have had their turn as well.
        if equals.next == 0 {
            equals.credit -= total;
        }
    }
    turns
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads, who may be picked, and who starts.
    struct Field<'f>(&'f [u32], &'f dyn Fn(usize) -> bool, &'f [u32]);

    impl Candidates for Field<'_> {
        fn may(&self, server: usize) -> bool {
            self.1(server)
        }

        fn load(&self, server: usize) -> u32 {
            self.0.get(server).copied().unwrap_or(0)
        }

        fn ramp(&self, server: usize) -> u32 {
            self.2.get(server).copied().unwrap_or(RAMPED)
        }
    }

    const ALL: Field = Field(&[], &|_| true, &[]);

    fn balancer(balance: Balance, weights: &[u32]) -> Balancer {
        let servers = weights.iter().enumerate().map(|(i, weight)| (*weight, format!("10.0.0.{i}:80")));
        Balancer::new(balance, servers)
    }

    /// Numbers without a pattern.
    fn random() -> impl FnMut() -> u64 {
        let mut seed = 0;
        move || {
            seed += 1;
            scrambled(seed)
        }
    }

    fn shares(balance: Balance, weights: &[u32], field: &Field, picks: usize) -> Vec<usize> {
        let (balancer, mut random) = (balancer(balance, weights), random());
        let mut counts = vec![0; weights.len()];
        let keys = (0..picks as u64).map(|key| Some(digest(START, &key.to_be_bytes())));
        keys.filter_map(|key| balancer.pick(&mut random, key, field)).for_each(|server| counts[server] += 1);
        counts
    }

    #[test]
    fn round_robin_gives_each_server_its_share_evenly() {
        let b = balancer(Balance::RoundRobin, &[4, 2, 2]);
        let picks: Vec<_> = (0..8).filter_map(|_| b.pick(|| 0, None, &ALL)).collect();
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

    /// By looking at every server for every turn.
    fn turns_one_by_one(weights: &[u32]) -> Vec<usize> {
        let total: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
        let mut credit = vec![0; weights.len()];
        let next = |_| {
            credit.iter_mut().zip(weights).for_each(|(credit, weight)| *credit += i64::from(*weight));
            let chosen = (0..credit.len()).rev().max_by_key(|server| credit[*server]).unwrap();
            credit[chosen] -= total;
            chosen
        };
        (0..total).map(next).collect()
    }

    #[test]
    fn whoever_is_furthest_behind_is_next() {
        let mut random = random();
        for most in [1, 2, 3, 7, 50] {
            for count in 0..40 {
                let weights: Vec<u32> = (0..count).map(|_| u32::try_from(random() % (most + 1)).unwrap()).collect();
                assert_eq!(turns(&weights), turns_one_by_one(&weights), "{weights:?}");
            }
        }
        let all_differ: Vec<u32> = (1..=90).rev().collect();
        assert_eq!(turns(&all_differ), turns_one_by_one(&all_differ));
    }

    #[test]
    fn round_robin_passes_over_an_unusable_server() {
        let b = balancer(Balance::RoundRobin, &[1, 1, 1]);
        let picks: Vec<_> =
            (0..4).filter_map(|_| b.pick(|| 0, None, &Field(&[], &|server| server != 1, &[]))).collect();
        assert_eq!(picks, [0, 2, 0, 2]);
    }

    #[test]
    fn two_choices_take_the_less_loaded_and_never_compare_a_server_with_itself() {
        let b = balancer(Balance::P2c, &[1, 1]);
        for random in [0, 1, 1 << 32, u64::MAX] {
            assert_eq!(b.pick(|| random, None, &Field(&[9, 3], &|_| true, &[])), Some(1));
        }
    }

    #[test]
    fn two_choices_weigh_the_load() {
        let b = balancer(Balance::P2c, &[1, 4]);
        assert_eq!(b.pick(|| 7, None, &Field(&[2, 5], &|_| true, &[])), Some(1));
        assert_eq!(b.pick(|| 7, None, &Field(&[0, 9], &|_| true, &[])), Some(0));
    }

    #[test]
    fn who_may_not_be_picked_is_not_however_few_are_left() {
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
        assert_eq!(b.pick(|| 5, None, &Field(&[2, 1, 4, 0], &|_| true, &[])), Some(1));
        assert_eq!(b.pick(|| 5, None, &Field(&[2, 1, 2, 0], &|_| true, &[])), Some(2));
        let counts = shares(Balance::LeastRequests, &[1, 1, 1], &ALL, 3000);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn hashes_keep_their_server_and_follow_the_weights() {
        let weights = [1, 2, 1, 4];
        let counts = shares(Balance::ConsistentHash, &weights, &ALL, 8000);
        let expected = weights.map(|weight| weight as usize * 1000);
        assert!(counts.iter().zip(expected).all(|(count, due)| count.abs_diff(due) < due / 5), "{counts:?}");
        let b = balancer(Balance::ConsistentHash, &weights);
        let place = |key: u64, field: &Field| b.pick(|| 0, Some(digest(START, &key.to_be_bytes())), field);
        for key in 0..1000 {
            let without = Field(&[], &|server| server != 1, &[]);
            let (before, after) = (place(key, &ALL), place(key, &without));
            assert!(before == Some(1) || before == after, "{key} was nobody's who went");
        }
    }

    #[test]
    fn no_server_gets_much_more_than_its_share_of_what_is_hashed() {
        let b = balancer(Balance::ConsistentHash, &[1, 1, 1, 1]);
        let mut loads = [0_u32; 4];
        for _ in 0..400 {
            // All have one key.
            let server = b.pick(|| 0, Some(7), &Field(&loads, &|_| true, &[])).unwrap();
            loads[server] += 1;
        }
        assert!(loads.iter().all(|load| *load <= 126), "{loads:?}");
        assert!(loads.iter().filter(|load| **load > 120).count() >= 3, "and no sooner: {loads:?}");
    }

    #[test]
    fn a_server_that_starts_gets_a_part_of_its_share() {
        for balance in Balance::ALL.iter().copied() {
            let started = Field(&[4, 4], &|_| true, &[RAMPED, RAMPED]);
            let starting = Field(&[4, 4], &|_| true, &[RAMPED, 100]);
            let counts = [&started, &starting].map(|field| shares(balance, &[1, 1], field, 1000)[1]);
            assert!((400..600).contains(&counts[0]), "{balance:?}: {counts:?}");
            assert!(counts[1] < 200, "{balance:?}: {counts:?}");
        }
        assert_eq!(shares(Balance::RoundRobin, &[1, 1], &Field(&[], &|server| server == 1, &[0, 1]), 9), [0, 9]);
    }
}
