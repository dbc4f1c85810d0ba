//! The order of servers in a weighted round robin. Pure; used by `balance`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of turns of all servers. Weights that need more are rounded, to at least 1.
const TURNS_MAX: u64 = 4096;

/// Servers of equal weight, which take turns among themselves.
struct EqualServers {
    weight: i64,
    servers: Vec<usize>,
    /// Index in `servers` of the next one.
    next: usize,
    /// How far the next one is behind its share.
    credit: i64,
}

/// Smooth weighted round robin: each turn goes to the server that is furthest behind its share, and to the first of
/// equals. Returns the servers in the order of their turns.
///
/// Only one server of each weight can be next, so only that one is compared. There are at most about 90 different
/// weights, because together they have at most `TURNS_MAX` turns.
pub fn compute_turns(weights: &[u32]) -> Vec<usize> {
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
        // All servers of this weight have had their turn.
        if equals.next == 0 {
            equals.credit -= total;
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation, which compares every server for every turn.
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
    fn the_server_that_is_furthest_behind_is_next() {
        let mut seed = 0_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        for most in [1, 2, 3, 7, 50] {
            for count in 0..40 {
                let weights: Vec<u32> = (0..count).map(|_| u32::try_from(random() % (most + 1)).unwrap()).collect();
                assert_eq!(compute_turns(&weights), turns_one_by_one(&weights), "{weights:?}");
            }
        }
        let all_differ: Vec<u32> = (1..=90).rev().collect();
        assert_eq!(compute_turns(&all_differ), turns_one_by_one(&all_differ));
    }
}
