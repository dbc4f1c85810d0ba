//! Picking a server of an upstream. Pure: randomness and loads are passed in. Called by the
//! forwarder through `http::pool`.

use std::cell::Cell;

use super::{Balance, Server};

/// One worker's balancer for one upstream.
#[derive(Debug)]
pub struct Balancer {
    balance: Balance,
    weights: Vec<u32>,
    /// Server indices, each as often as its weight says, spread evenly.
    turns: Vec<usize>,
    next: Cell<usize>,
}

impl Balancer {
    pub fn new(balance: Balance, servers: &[Server]) -> Balancer {
        let weights: Vec<u32> = servers.iter().map(|server| server.weight).collect();
        Balancer { balance, turns: turns(&weights), weights, next: Cell::new(0) }
    }

    /// A usable server, or any server when none is usable: a wrong suspicion must not stop
    /// service. `load` is the requests in flight of a server.
    pub fn pick(&self, random: u64, load: impl Fn(usize) -> u32, usable: impl Fn(usize) -> bool) -> usize {
        if let [only] = self.turns.as_slice() {
            return *only;
        }
        match self.balance {
            Balance::RoundRobin => {
                let start = self.next.get();
                let offset = (0..self.turns.len()).find(|i| usable(self.turn(start + i))).unwrap_or(0);
                self.next.set((start + offset + 1) % self.turns.len());
                self.turn(start + offset)
            }
            Balance::P2c => {
                let usable_turns: Vec<usize> = self.turns.iter().copied().filter(|server| usable(*server)).collect();
                let turns = if usable_turns.is_empty() { &self.turns } else { &usable_turns };
                let (a, b) = two_of(turns, random);
                if self.weighted_load(b, &load) < self.weighted_load(a, &load) { b } else { a }
            }
        }
    }

    fn turn(&self, index: usize) -> usize {
        self.turns[index % self.turns.len()]
    }

    /// Comparable without division: the load a server would have per unit of weight.
    fn weighted_load(&self, server: usize, load: impl Fn(usize) -> u32) -> u64 {
        (u64::from(load(server)) + 1) * u64::from(WEIGHT_SCALE) / u64::from(self.weights[server].max(1))
    }
}

const WEIGHT_SCALE: u32 = 1 << 16;

/// Two entries of `turns`, of different servers where there are two.
fn two_of(turns: &[usize], random: u64) -> (usize, usize) {
    let len = turns.len() as u64;
    let first = (random >> 32) % len;
    let a = turns[first as usize];
    let others = turns.iter().filter(|server| **server != a).count() as u64;
    if others == 0 {
        return (a, a);
    }
    let second = (random & 0xffff_ffff) % others;
    let b = turns.iter().copied().filter(|server| *server != a).nth(second as usize).unwrap_or(a);
    (a, b)
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

    fn balancer(balance: Balance, weights: &[u32]) -> Balancer {
        let origin = Origin { scheme: Scheme::Http, authority: String::new() };
        let servers: Vec<Server> =
            weights.iter().map(|weight| Server { origin: origin.clone(), weight: *weight }).collect();
        Balancer::new(balance, &servers)
    }

    #[test]
    fn round_robin_gives_each_server_its_share_evenly() {
        let b = balancer(Balance::RoundRobin, &[4, 2, 2]);
        let picks: Vec<usize> = (0..8).map(|_| b.pick(0, |_| 0, |_| true)).collect();
        assert_eq!(picks, [0, 1, 2, 0, 0, 1, 2, 0]);
    }

    #[test]
    fn round_robin_passes_over_an_unusable_server() {
        let b = balancer(Balance::RoundRobin, &[1, 1, 1]);
        let picks: Vec<usize> = (0..4).map(|_| b.pick(0, |_| 0, |server| server != 1)).collect();
        assert_eq!(picks, [0, 2, 0, 2]);
    }

    #[test]
    fn two_choices_take_the_less_loaded_and_never_compare_a_server_with_itself() {
        let b = balancer(Balance::P2c, &[1, 1]);
        for random in [0, 1, 1 << 32, u64::MAX] {
            assert_eq!(b.pick(random, |server| if server == 0 { 9 } else { 3 }, |_| true), 1);
        }
    }

    #[test]
    fn two_choices_weigh_the_load() {
        let b = balancer(Balance::P2c, &[1, 4]);
        assert_eq!(b.pick(7, |server| if server == 0 { 2 } else { 5 }, |_| true), 1);
        assert_eq!(b.pick(7, |server| if server == 0 { 0 } else { 9 }, |_| true), 0);
    }

    #[test]
    fn when_no_server_is_usable_one_is_picked_all_the_same() {
        for balance in [Balance::P2c, Balance::RoundRobin] {
            assert!(balancer(balance, &[1, 1]).pick(3, |_| 0, |_| false) < 2);
        }
    }
}
