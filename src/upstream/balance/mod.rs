//! The balancers: select one server of an upstream for each request. Pure: randomness and loads are arguments. Called
//! by `proxy::outbound::select::selector`.
//!
//! Input is what [`Candidates`] says of each server; output is the index of a server. To add a balancer, add a variant
//! to [`Balance`], an arm to [`Balancer::select`], and a row to the table of loads in `tests`.

#[cfg(test)]
mod tests;

use std::cell::Cell;

use crate::limiting::key::{Key, KeyPart};
use crate::limiting::source::{Facts, Repeated, SourceValue};
use crate::upstream::Balance;
use crate::upstream::fair_shares::{FULL_RAMP, FairShares};
use crate::upstream::round_robin::compute_turns;

/// The balancer of one worker for one list of servers.
#[derive(Debug)]
pub struct Balancer {
    balance: Balance,
    weights: Vec<u32>,
    /// Hash of each server's name; the same in every gateway.
    names: Vec<u64>,
    /// Server indices for round robin: each as often as its weight, spread evenly. Without servers of weight 0.
    turns: Vec<usize>,
    /// The next index in `turns`.
    next: Cell<usize>,
    /// How many requests each server has had for its weight.
    shares: FairShares,
    /// Requests in flight below which `consistent_hash` passes over no server.
    spread_above: u32,
}

/// Facts about each server that the balancer needs, by index.
pub trait Candidates {
    /// Returns whether the server may be selected.
    fn is_permitted(&self, server: usize) -> bool;
    /// Returns the requests in flight at the server.
    fn in_flight(&self, server: usize) -> u32;
    /// Returns the part of its weight that counts, in thousandths from 1. It is less than 1000 during the slow start.
    fn ramp(&self, server: usize) -> u32;
}

/// Random draws before the weights of all servers are added up.
const RANDOM_DRAWS: usize = 8;

impl Balancer {
    /// `servers`: the weight and name of each; the names are the same in every gateway. `spread_above`: see
    /// [`Upstream`](super::Upstream).
    pub fn new(balance: Balance, spread_above: u32, servers: impl Iterator<Item = (u32, String)>) -> Balancer {
        let (weights, names): (Vec<u32>, Vec<u64>) =
            servers.map(|(weight, name)| (weight, fnv1a(HASH_START, name.as_bytes()))).unzip();
        let divisor = weights.iter().copied().fold(0, gcd).max(1);
        let weights: Vec<u32> = weights.into_iter().map(|weight| weight / divisor).collect();
        let shares = FairShares::new(&weights);
        Balancer { balance, spread_above, turns: compute_turns(&weights), shares, weights, names, next: Cell::new(0) }
    }

    /// Selects one of the permitted servers, if there is any. `hash` is the hash of the `hash_on` key.
    pub fn select(&self, random: impl FnMut() -> u64, hash: Option<u64>, servers: &impl Candidates) -> Option<usize> {
        // With one server, as most upstreams have, there is nothing to balance.
        if let [weight] = self.weights[..] {
            return (weight > 0 && servers.is_permitted(0)).then_some(0);
        }
        match (self.balance, hash) {
            (Balance::RoundRobin, _) => self.select_round_robin(random, servers),
            (Balance::LeastRequests, _) => self.select_least_loaded(0..self.weights.len(), random, servers),
            (Balance::ConsistentHash, Some(hash)) => self.select_by_hash(hash, servers),
            // A request without the key can go to any server.
            (Balance::P2c | Balance::ConsistentHash, _) => self.select_p2c(random, servers),
        }
    }

    /// Round robin.
    fn select_round_robin(&self, mut random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        let (start, count) = (self.next.get(), self.turns.len());
        let turn = |i: usize| self.turns[(start + i) % count];
        let mut first = |ready: bool| (0..count).find(|i| is_free(turn(*i), ready, servers, &mut random));
        let offset = first(true).or_else(|| first(false))?;
        self.next.set((start + offset + 1) % count);
        Some(turn(offset))
    }

    /// Power of two choices: the better of two random servers, drawn by weight.
    fn select_p2c(&self, mut random: impl FnMut() -> u64, servers: &impl Candidates) -> Option<usize> {
        if self.weights.len() <= 2 {
            return self.select_least_loaded(0..self.weights.len(), random, servers);
        }
        let one = self.random_server(&mut random, servers, |server| servers.is_permitted(server))?;
        let other = self.random_server(&mut random, servers, |server| server != one && servers.is_permitted(server));
        self.select_least_loaded([one].into_iter().chain(other), random, servers)
    }

    /// Returns the best of `among`. A server is overloaded if it has more requests for its weight than another one
    /// would have with this request added. Of the servers that are not overloaded, the best is the one that has had the
    /// fewest requests for its weight.
    ///
    /// Loads alone cannot decide between servers of unequal weight: with weights 9 and 1 and four requests in flight,
    /// the light server has either too many or none.
    fn select_least_loaded(
        &self,
        among: impl Iterator<Item = usize> + Clone,
        random: impl FnMut() -> u64,
        servers: &impl Candidates,
    ) -> Option<usize> {
        let loads = || {
            let may = among.clone().filter(|server| self.weights[*server] > 0 && servers.is_permitted(*server));
            may.map(|server| ServerLoad {
                server,
                requests: u128::from(servers.in_flight(server)),
                weight: u128::from(self.ramped_weight(server, servers)),
            })
        };
        let idlest = loads().reduce(|best, next| if next.would_be_below(&best) { next } else { best })?;
        self.shares.randomize_start(random);
        let due = |load: &ServerLoad| self.shares.next_position(load.server, servers.ramp(load.server));
        let best = loads().filter(|load| !load.is_overloaded_beside(&idlest)).min_by_key(due);
        // Other workers may have changed all loads in the meantime.
        let best = best.map_or(idlest.server, |best| best.server);
        self.shares.record_request(best, servers.ramp(best));
        Some(best)
    }

    /// Rendezvous hashing: each server bids a number for the hash, and the highest bid wins. If a server is removed,
    /// only its own keys move. A server with `spread_above` requests in flight is left out if it has its share of all
    /// requests and a quarter more.
    fn select_by_hash(&self, hash: u64, servers: &impl Candidates) -> Option<usize> {
        let may =
            || (0..self.weights.len()).filter(|server| self.weights[*server] > 0 && servers.is_permitted(*server));
        let (mut load, mut weight) = (1_u64, 0_u64);
        for server in may() {
            load += u64::from(servers.in_flight(server));
            weight += self.ramped_weight(server, servers);
        }
        let has_room = |server: &usize| {
            let share = load.saturating_mul(self.ramped_weight(*server, servers) * 5).div_ceil(weight.max(1) * 4);
            u64::from(servers.in_flight(*server)) < share.max(u64::from(self.spread_above))
        };
        let bids = may().filter(has_room).map(|server| (server, self.bid(hash, server, servers)));
        bids.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(server, _)| server)
    }

    /// Returns the bid of a server for a hash. A server wins in proportion to its weight.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a number between 0 and 1")]
    fn bid(&self, hash: u64, server: usize, servers: &impl Candidates) -> f64 {
        let mixed = splitmix64(hash ^ splitmix64(self.names[server]));
        let part = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -(self.ramped_weight(server, servers) as f64) / part.ln()
    }

    fn ramped_weight(&self, server: usize, servers: &impl Candidates) -> u64 {
        u64::from(self.weights[server]) * u64::from(servers.ramp(server))
    }

    /// Returns a random server among those that `may` be selected, with a probability proportional to its weight.
    fn random_server(
        &self,
        random: &mut impl FnMut() -> u64,
        servers: &impl Candidates,
        may: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        // Rejecting a draw and drawing again does not change the proportions of the others.
        for _ in 0..RANDOM_DRAWS.min(self.turns.len()) {
            let server = self.turns[random_below(self.turns.len(), random())];
            if may(server) && is_ready(server, servers, random) {
                return Some(server);
            }
        }
        // Few are permitted: draw by the sum of their weights.
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

/// The load of one server.
struct ServerLoad {
    server: usize,
    /// Requests in flight.
    requests: u128,
    weight: u128,
}

impl ServerLoad {
    /// Returns whether this server would have fewer requests per weight than `other`, with one more request each.
    fn would_be_below(&self, other: &ServerLoad) -> bool {
        (self.requests + 1) * other.weight < (other.requests + 1) * self.weight
    }

    /// Returns whether this server has at least as many requests for its weight as `other` would have with one more.
    fn is_overloaded_beside(&self, other: &ServerLoad) -> bool {
        self.requests * other.weight >= (other.requests + 1) * self.weight
    }
}

/// Returns whether the server may be selected. With `ready`, a server in its slow start is selected only as often as
/// its ramp says, at random.
fn is_free(server: usize, ready: bool, servers: &impl Candidates, random: &mut impl FnMut() -> u64) -> bool {
    servers.is_permitted(server) && (!ready || is_ready(server, servers, random))
}

/// Returns true with the probability of the server's ramp.
fn is_ready(server: usize, servers: &impl Candidates, random: &mut impl FnMut() -> u64) -> bool {
    let ramp = servers.ramp(server);
    ramp >= FULL_RAMP || (random() >> 32) % u64::from(FULL_RAMP) < u64::from(ramp)
}

/// The hash of nothing.
pub const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues `hash` with one more value (FNV-1a).
pub fn fnv1a(hash: u64, value: &[u8]) -> u64 {
    let length = (value.len() as u64).to_be_bytes();
    let bytes = length.iter().chain(value);
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns a number from 0 to `count` - 1, or 0 if `count` is 0.
fn random_below(count: usize, random: u64) -> usize {
    (random >> 32).checked_rem(count as u64).and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

/// Mixes the bits of a number (splitmix64), so that similar numbers have unrelated results.
fn splitmix64(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the hash of `key`, or `None` if the request lacks a part of it. Of a repeated header or parameter the first
/// value counts, because every server can serve the request.
pub fn hash_key(key: &Key, facts: &Facts) -> Option<u64> {
    key.0.iter().try_fold(HASH_START, |hash, part| match part {
        KeyPart::All => Some(hash),
        KeyPart::Source(source) => Some(fnv1a(hash, &facts.text(source, Repeated::First).ok()??)),
        KeyPart::Alternatives(sources) => {
            let value = sources.iter().find_map(|source| facts.text(source, Repeated::First).ok()?);
            Some(fnv1a(hash, &value?))
        }
        KeyPart::Normalized(_) => match part.value(facts, Repeated::First).ok()?? {
            SourceValue::Bytes(value) => Some(fnv1a(hash, &value)),
            SourceValue::Ip(_) | SourceValue::Digest(_) => None,
        },
    })
}
