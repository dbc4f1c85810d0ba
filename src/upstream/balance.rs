//! Picking a server of an upstream. Pure: randomness and loads are passed in. Called by the
//! forwarder through `http::upstream::servers`.

use std::cell::Cell;

use super::Balance;
use super::fair_shares::{FairShares, RAMPED};
use super::rotation::turns;

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
    /// How many requests each server has had for its weight.
    had: FairShares,
    /// Requests in flight below which `consistent_hash` passes over no server.
    spread_above: u32,
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

/// Random turns that are tried before the weights of all servers are added up.
const THROWS: usize = 8;

impl Balancer {
    /// `servers`: the weight of each, and what it is called in every gateway. `spread_above`: see
    /// [`Upstream`](super::Upstream).
    pub fn new(balance: Balance, spread_above: u32, servers: impl Iterator<Item = (u32, String)>) -> Balancer {
        let (weights, names): (Vec<u32>, Vec<u64>) =
            servers.map(|(weight, name)| (weight, digest(START, name.as_bytes()))).unzip();
        let divisor = weights.iter().copied().fold(0, gcd).max(1);
        let weights: Vec<u32> = weights.into_iter().map(|weight| weight / divisor).collect();
        let had = FairShares::new(&weights);
        Balancer { balance, spread_above, turns: turns(&weights), had, weights, names, next: Cell::new(0) }
    }

    /// One of the servers that may be picked, if there is any. `hash`: of what requests are told apart by.
    pub fn pick(&self, random: impl FnMut() -> u64, hash: Option<u64>, servers: &impl Candidates) -> Option<usize> {
        // With one server, as most upstreams have, there is nothing to balance.
        if let [weight] = self.weights[..] {
            return (weight > 0 && servers.may(0)).then_some(0);
        }
        match (self.balance, hash) {
            (Balance::RoundRobin, _) => self.in_turn(random, servers),
            (Balance::LeastRequests, _) => self.best(0..self.weights.len(), random, servers),
            (Balance::ConsistentHash, Some(hash)) => self.hashed(hash, servers),
            // What a request lacks cannot tell where it goes.
            (Balance::P2c | Balance::ConsistentHash, _) => self.better_of_two(random, servers),
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

    /// Power of two choices. The two are random, the more weight the more often.
    fn better_of_two(&self, mut random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        if self.weights.len() <= 2 {
            return self.best(0..self.weights.len(), random, servers);
        }
        let one = self.random_server(&mut random, servers, |server| servers.may(server))?;
        let other = self.random_server(&mut random, servers, |server| server != one && servers.may(server));
        self.best([one].into_iter().chain(other), random, servers)
    }

    /// The best of `among`. A server is overloaded if it has more requests for its weight than another one would have
    /// with this request added. Of those that are not overloaded, the best is the one that has had the fewest requests
    /// for its weight.
    ///
    /// Loads alone cannot decide between servers of unequal weight: with weights 9 and 1 and four requests in flight,
    /// the light server has either too many or none.
    fn best(
        &self,
        among: impl Iterator<Item = usize> + Clone,
        random: impl FnMut() -> u64,
        servers: &impl Candidates,
    ) -> Option<usize> {
        let loads = || {
            let may = among.clone().filter(|server| self.weights[*server] > 0 && servers.may(*server));
            may.map(|server| ServerLoad {
                server,
                requests: u128::from(servers.load(server)),
                weight: u128::from(self.ramped_weight(server, servers)),
            })
        };
        let idlest = loads().reduce(|best, next| if next.would_be_below(&best) { next } else { best })?;
        self.had.start(random);
        let due = |load: &ServerLoad| self.had.due(load.server, servers.ramp(load.server));
        let best = loads().filter(|load| !load.is_overloaded_beside(&idlest)).min_by_key(due);
        // Other workers may have changed all loads meanwhile.
        let best = best.map_or(idlest.server, |best| best.server);
        self.had.serve(best, servers.ramp(best));
        Some(best)
    }

    /// Rendezvous hashing: of the servers each of which gives the hash a number, the one with the largest. When
    /// one goes, only what it had goes elsewhere. A server with `spread_above` requests in flight is passed over if it
    /// has its share of all requests and a quarter more.
    fn hashed(&self, hash: u64, servers: &impl Candidates) -> Option<usize> {
        let may = || (0..self.weights.len()).filter(|server| self.weights[*server] > 0 && servers.may(*server));
        let (mut load, mut weight) = (1_u64, 0_u64);
        for server in may() {
            load += u64::from(servers.load(server));
            weight += self.ramped_weight(server, servers);
        }
        let has_room = |server: &usize| {
            let share = load.saturating_mul(self.ramped_weight(*server, servers) * 5).div_ceil(weight.max(1) * 4);
            u64::from(servers.load(*server)) < share.max(u64::from(self.spread_above))
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

    /// A random server out of those that `may` be picked: the probability of each is its part of their weight.
    fn random_server(
        &self,
        random: &mut impl FnMut() -> u64,
        servers: &impl Candidates,
        may: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        // Rejecting a throw and throwing again does not change the probabilities of the others.
        for _ in 0..THROWS.min(self.turns.len()) {
            let server = self.turns[below(self.turns.len(), random())];
            if may(server) && is_ready(server, servers, random) {
                return Some(server);
            }
        }
        // Few may be picked: by the sum of their weights.
        let candidates = || (0..self.weights.len()).filter(|server| self.weights[*server] > 0 && may(*server));
        let total: u64 = candidates().map(|server| self.ramped_weight(server, servers)).sum();
        let mut left = (random() >> 8).checked_rem(total)?;
        let mut last = None;
        for server in candidates() {
            last = Some(server);
            let Some(rest) = left.checked_sub(self.ramped_weight(server, servers)) else { break };
            left = rest;
        }
        last
    }
}

/// How loaded a server is.
struct ServerLoad {
    server: usize,
    /// Requests in flight.
    requests: u128,
    weight: u128,
}

impl ServerLoad {
    /// With one more request, it would have fewer for its weight than `other` would have with one more.
    fn would_be_below(&self, other: &ServerLoad) -> bool {
        (self.requests + 1) * other.weight < (other.requests + 1) * self.weight
    }

    /// It has at least as many requests for its weight as `other` would have with one more.
    fn is_overloaded_beside(&self, other: &ServerLoad) -> bool {
        self.requests * other.weight >= (other.requests + 1) * self.weight
    }
}

/// Whether the server may be picked. With `ready`, a server that starts slowly may be picked only as often as its
/// ramp says, at random.
fn is_free(server: usize, ready: bool, servers: &impl Candidates, random: &mut impl FnMut() -> u64) -> bool {
    servers.may(server) && (!ready || is_ready(server, servers, random))
}

/// True with the probability that the server's ramp says.
fn is_ready(server: usize, servers: &impl Candidates, random: &mut impl FnMut() -> u64) -> bool {
    let ramp = servers.ramp(server);
    ramp >= RAMPED || (random() >> 32) % u64::from(RAMPED) < u64::from(ramp)
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

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
