//! `split`: which of several upstreams gets a request, in proportion to their weights.
//!
//! Input: the branches, and a number that is random or the hash of the request's `split_by` key. Output: a branch.
//! Weighted rendezvous hashing: each branch draws a time from the number and its own name, and the first wins. A
//! changed weight moves only keys to or from that branch, and all gateways with equal branches choose the same, also
//! after a restart.

use crate::limiting::key::Key;
use crate::upstream::balance::{HASH_START, fnv1a};

/// A compiled `split`.
#[derive(Debug, PartialEq)]
pub struct Split {
    /// The upstreams, of which at least one has a weight above 0.
    pub branches: Vec<Branch>,
    /// The key whose requests all get the same branch. `None`: each request gets a random one.
    pub key: Option<Key>,
}

/// An upstream of a split.
#[derive(Debug, PartialEq, Eq)]
pub struct Branch {
    /// Index into `Config::upstreams`.
    pub upstream: usize,
    pub weight: u32,
    /// Hash of the name of the upstream.
    pub name_hash: u64,
}

impl Branch {
    pub fn new(upstream: usize, name: &str, weight: u32) -> Branch {
        Branch { upstream, weight, name_hash: fnv1a(HASH_START, name.as_bytes()) }
    }

    /// Returns the time that the branch draws for `number`: exponentially distributed, with the weight as its rate.
    fn draw(&self, number: u64) -> f64 {
        let bits = u32::try_from(mix(number ^ mix(self.name_hash)) >> 32).unwrap_or(u32::MAX);
        // From above 0 to 1.
        let uniform = (f64::from(bits) + 1.0) / (f64::from(u32::MAX) + 1.0);
        -uniform.ln() / f64::from(self.weight)
    }
}

impl Split {
    /// Returns the index of the branch for a number.
    pub fn choose(&self, number: u64) -> Option<usize> {
        let weighted = self.branches.iter().enumerate().filter(|(_, branch)| branch.weight > 0);
        let first = weighted.min_by(|(_, one), (_, other)| one.draw(number).total_cmp(&other.draw(number)));
        first.map(|(index, _)| index)
    }

    /// Returns the branches and their shares of all requests, in percent.
    pub fn shares(&self) -> impl Iterator<Item = (usize, f64)> {
        let sum: f64 = self.branches.iter().map(|branch| f64::from(branch.weight)).sum();
        self.branches.iter().map(move |branch| (branch.upstream, 100.0 * f64::from(branch.weight) / sum))
    }
}

/// Spreads the bits of a number (SplitMix64).
fn mix(mut number: u64) -> u64 {
    number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 100_000;

    fn split(weights: &[(&str, u32)]) -> Split {
        let branches = weights.iter().enumerate().map(|(index, (name, weight))| Branch::new(index, name, *weight));
        Split { branches: branches.collect(), key: None }
    }

    fn choices(split: &Split) -> Vec<usize> {
        (0..u64::from(KEYS)).map(|number| split.choose(fnv1a(HASH_START, &number.to_le_bytes())).unwrap()).collect()
    }

    fn share(choices: &[usize], branch: usize) -> f64 {
        let chosen = choices.iter().filter(|chosen| **chosen == branch).count();
        100.0 * f64::from(u32::try_from(chosen).unwrap()) / f64::from(KEYS)
    }

    #[test]
    fn branches_get_their_shares() {
        for weights in [&[95, 5][..], &[1, 1, 2], &[0, 3], &[1_000_000, 1]] {
            let names = ["app", "next", "third"];
            let pairs: Vec<(&str, u32)> = names.into_iter().zip(weights.iter().copied()).collect();
            let split = split(&pairs);
            let choices = choices(&split);
            for (branch, expected) in split.shares() {
                let found = share(&choices, branch);
                assert!((found - expected).abs() < 0.6, "{weights:?}: {branch} got {found} %, not {expected} %");
                assert!(expected > 0.0 || found == 0.0);
            }
        }
    }

    #[test]
    fn a_changed_weight_moves_only_the_keys_that_must_move() {
        let before = choices(&split(&[("app", 90), ("next", 5), ("third", 5)]));
        let after = choices(&split(&[("app", 80), ("next", 15), ("third", 5)]));
        let added = choices(&split(&[("app", 90), ("next", 5), ("third", 5), ("fourth", 100)]));
        for (before, (after, added)) in before.iter().zip(after.iter().zip(&added)) {
            assert!(before == after || *after == 1 || *before == 0, "{before} to {after}");
            assert!(before == added || *added == 3, "{before} to {added}");
        }
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!(moved < 12_500, "{moved}");
        // The order of the branches has no meaning.
        let reversed = choices(&split(&[("third", 5), ("next", 5), ("app", 90)]));
        assert!(before.iter().zip(&reversed).all(|(before, reversed)| before + reversed == 2));
    }

    /// Other gateways, and this one in its next version, must choose the same.
    #[test]
    fn choices_are_for_good() {
        let split = split(&[("app", 60), ("next", 40)]);
        let first: Vec<usize> = choices(&split).into_iter().take(24).collect();
        // Computed apart from this program.
        assert_eq!(first, [0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1]);
    }
}
