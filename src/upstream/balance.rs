//! Picking a server of an upstream. Pure: randomness and loads are passed in. Called by the
//! forwarder through `http::pool`.

use std::cell::Cell;

use super::{Balance, Server};

/// One worker's balancer for one roster.
#[derive(Debug)]
pub struct Balancer {
    balance: Balance,
    weights: Vec<u32>,
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
}

/// Random turns looked at before all are.
const THROWS: usize = 8;

impl Balancer {
    pub fn new<'s>(balance: Balance, servers: impl Iterator<Item = &'s Server>) -> Balancer {
        let weights: Vec<u32> = servers.map(|server| server.weight).collect();
        Balancer { balance, turns: turns(&weights), weights, next: Cell::new(0) }
    }

    /// One of the servers that may be picked, if there is any.
    pub fn pick(&self, random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        match self.balance {
            Balance::RoundRobin => self.in_turn(servers),
            Balance::P2c => self.less_loaded_of_two(random, servers),
        }
    }

    fn in_turn(&self, servers: &impl Candidates) -> Option<usize> {
        let (start, count) = (self.next.get(), self.turns.len());
        let offset = (0..count).find(|i| servers.may(self.turns[(start + i) % count]))?;
        self.next.set((start + offset + 1) % count);
        Some(self.turns[(start + offset) % count])
    }

    fn less_loaded_of_two(&self, mut random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        let a = self.any(random(), |server| servers.may(server))?;
        let b = self.any(random(), |server| server != a && servers.may(server));
        let lighter = b.filter(|b| self.weighted_load(*b, servers) < self.weighted_load(a, servers));
        Some(lighter.unwrap_or(a))
    }

    /// A random one, by weight.
    fn any(&self, random: u64, may: impl Fn(usize) -> bool) -> Option<usize> {
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
        (u64::from(servers.load(server)) + 1) * u64::from(WEIGHT_SCALE) / u64::from(self.weights[server].max(1))
    }
}

const WEIGHT_SCALE: u32 = 1 << 16;

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

/// Smooth weighted round robin: each turn goes to the server furthest behind its share.
fn turns(weights: &[u32]) -> Vec<usize> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let weights: Vec<i64> = weights.iter().map(|weight| i64::from(weight / divisor)).collect();
    let total: i64 = weights.iter().sum();
    let mut credit = vec![0; weights.len()];
    (0..total)
        .map(|_| {
            credit.iter_mut().zip(&weights).for_each(|(credit, weight)| *credit += weight);
            let chosen = (0..credit.len()).rev().max_by_key(|i| credit[*i]).unwrap_or(0);
            credit[chosen] -= total;
            chosen
        })
        .collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, Scheme};
    use super::*;

    /// Loads, and who may be picked.
    struct Field<'f>(&'f [u32], &'f dyn Fn(usize) -> bool);

    impl Candidates for Field<'_> {
        fn may(&self, server: usize) -> bool {
            self.1(server)
        }

        fn load(&self, server: usize) -> u32 {
            self.0.get(server).copied().unwrap_or(0)
        }
    }

    const ALL: Field = Field(&[], &|_| true);

    fn balancer(balance: Balance, weights: &[u32]) -> Balancer {
        let origin = Origin { scheme: Scheme::Http, authority: String::new() };
        let servers: Vec<Server> =
            weights.iter().map(|weight| Server { origin: origin.clone(), weight: *weight }).collect();
        Balancer::new(balance, servers.iter())
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
        (0..picks).filter_map(|_| balancer.pick(&mut random, field)).for_each(|server| counts[server] += 1);
        counts
    }

    #[test]
    fn round_robin_gives_each_server_its_share_evenly() {
        let b = balancer(Balance::RoundRobin, &[4, 2, 2]);
        let picks: Vec<_> = (0..8).filter_map(|_| b.pick(|| 0, &ALL)).collect();
        assert_eq!(picks, [0, 1, 2, 0, 0, 1, 2, 0]);
    }

    #[test]
    fn round_robin_passes_over_an_unusable_server() {
        let b = balancer(Balance::RoundRobin, &[1, 1, 1]);
        let picks: Vec<_> = (0..4).filter_map(|_| b.pick(|| 0, &Field(&[], &|server| server != 1))).collect();
        assert_eq!(picks, [0, 2, 0, 2]);
    }

    #[test]
    fn two_choices_take_the_less_loaded_and_never_compare_a_server_with_itself() {
        let b = balancer(Balance::P2c, &[1, 1]);
        for random in [0, 1, 1 << 32, u64::MAX] {
            assert_eq!(b.pick(|| random, &Field(&[9, 3], &|_| true)), Some(1));
        }
    }

    #[test]
    fn two_choices_weigh_the_load() {
        let b = balancer(Balance::P2c, &[1, 4]);
        assert_eq!(b.pick(|| 7, &Field(&[2, 5], &|_| true)), Some(1));
        assert_eq!(b.pick(|| 7, &Field(&[0, 9], &|_| true)), Some(0));
    }

    #[test]
    fn who_may_not_be_picked_is_not_however_few_are_left() {
        let weights = [1000, 1, 999, 1000, 7];
        for balance in [Balance::P2c, Balance::RoundRobin] {
            assert_eq!(shares(balance, &weights, &Field(&[], &|server| server == 1), 50), [0, 50, 0, 0, 0]);
            assert_eq!(shares(balance, &weights, &Field(&[], &|_| false), 50), [0; 5]);
            assert_eq!(shares(balance, &[0, 3, 0], &ALL, 50), [0, 50, 0]);
            assert_eq!(shares(balance, &[0, 0], &ALL, 50), [0, 0]);
        }
    }
}
