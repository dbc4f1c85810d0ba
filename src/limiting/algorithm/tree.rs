//! A sorted map whose entries have weights, for states with single charges or leases. It is persistent: a copy is free
//! and shares all unchanged nodes. A change, the weight of a range and the entry at a given weight take logarithmic
//! time. No library for persistent maps offers the last two.

use std::sync::Arc;

/// Maximum number of entries of one key, for algorithms with an entry for each unit.
pub const ENTRIES_MAX: i64 = 100_000;

/// Maximum number of entries of a leaf, and most children of any other node.
const CHILDREN_MAX: usize = 64;

/// A sorted map from keys to positive weights.
#[derive(Clone, Debug)]
pub struct Tree<K>(TreeNode<K>);

#[derive(Clone, Debug)]
enum TreeNode<K> {
    Leaf(Arc<[(K, i64)]>),
    Inner(Arc<[Child<K>]>),
}

#[derive(Clone, Debug)]
struct Child<K> {
    last: K,
    sum: i64,
    node: TreeNode<K>,
}

impl<K> Default for Tree<K> {
    fn default() -> Tree<K> {
        Tree(TreeNode::Leaf(Arc::new([])))
    }
}

impl<K: Copy + Ord> PartialEq for Tree<K> {
    fn eq(&self, other: &Tree<K>) -> bool {
        self.entries() == other.entries()
    }
}

impl<K: Copy + Ord> Tree<K> {
    /// Returns the sum of all weights.
    pub fn sum(&self) -> i64 {
        self.0.sum()
    }

    /// Returns the weight of `key`, 0 if it is absent.
    pub fn weight(&self, key: K) -> i64 {
        self.ceiling(key).filter(|(found, _)| *found == key).map_or(0, |(_, weight)| weight)
    }

    /// Returns the weight of `key` and all larger keys.
    pub fn weight_since(&self, key: K) -> i64 {
        let (mut node, mut sum) = (&self.0, 0);
        loop {
            match node {
                TreeNode::Leaf(entries) => {
                    let index = entries.partition_point(|(known, _)| *known < key);
                    return sum + entries[index..].iter().map(|(_, weight)| weight).sum::<i64>();
                }
                TreeNode::Inner(children) => {
                    let index = children.partition_point(|child| child.last < key);
                    let Some((child, behind)) = children[index..].split_first() else { return sum };
                    sum += behind.iter().map(|child| child.sum).sum::<i64>();
                    node = &child.node;
                }
            }
        }
    }

    /// Returns the key that contains the unit number `units`, counted from the end and from 0.
    pub fn key_at(&self, mut units: i64) -> Option<K> {
        let mut node = &self.0;
        loop {
            match node {
                TreeNode::Leaf(entries) => {
                    return find_unit(entries.iter(), &mut units, |entry| entry.1).map(|entry| entry.0);
                }
                TreeNode::Inner(children) => node = &find_unit(children.iter(), &mut units, |child| child.sum)?.node,
            }
        }
    }

    /// Returns the first entry at or after `key`.
    pub fn ceiling(&self, key: K) -> Option<(K, i64)> {
        let mut node = &self.0;
        loop {
            match node {
                TreeNode::Leaf(entries) => {
                    return entries.get(entries.partition_point(|(known, _)| *known < key)).copied();
                }
                TreeNode::Inner(children) => {
                    node = &children.get(children.partition_point(|child| child.last < key))?.node;
                }
            }
        }
    }

    /// Returns the last key at or before `key`.
    pub fn floor(&self, key: K) -> Option<K> {
        let (mut node, mut before) = (&self.0, None);
        loop {
            match node {
                TreeNode::Leaf(entries) => {
                    let index = entries.partition_point(|(known, _)| *known <= key);
                    return index.checked_sub(1).map(|index| entries[index].0).or(before);
                }
                TreeNode::Inner(children) => {
                    let index = children.partition_point(|child| child.last <= key);
                    before = index.checked_sub(1).map(|index| children[index].last).or(before);
                    match children.get(index) {
                        Some(child) => node = &child.node,
                        None => return before,
                    }
                }
            }
        }
    }

    pub fn first(&self) -> Option<(K, i64)> {
        let mut node = &self.0;
        loop {
            match node {
                TreeNode::Leaf(entries) => return entries.first().copied(),
                TreeNode::Inner(children) => node = &children.first()?.node,
            }
        }
    }

    pub fn last(&self) -> Option<K> {
        match &self.0 {
            TreeNode::Leaf(entries) => entries.last().map(|(key, _)| *key),
            TreeNode::Inner(children) => children.last().map(|child| child.last),
        }
    }

    /// Sets the weight of `key`; 0 removes it.
    pub fn set(&mut self, key: K, weight: i64) {
        let mut nodes = self.0.replace_entry(key, weight);
        self.0 = match (nodes.pop(), nodes.is_empty()) {
            (Some(only), true) => only.node,
            (Some(last), false) => {
                nodes.push(last);
                TreeNode::Inner(nodes.into())
            }
            (None, _) => return *self = Tree::default(),
        };
        while let TreeNode::Inner(children) = &self.0
            && let [only] = &**children
        {
            self.0 = only.node.clone();
        }
    }

    /// Removes `key` and all larger keys.
    pub fn remove_from(&mut self, key: K) {
        let kept = self.0.keep_before(key);
        *self = kept.map_or_else(Tree::default, |child| Tree(child.node));
        while let TreeNode::Inner(children) = &self.0
            && let [only] = &**children
        {
            self.0 = only.node.clone();
        }
    }

    /// Returns all entries in order.
    pub fn entries(&self) -> Vec<(K, i64)> {
        let mut entries = Vec::new();
        self.0.collect_entries(&mut entries);
        entries
    }
}

/// Returns the item that contains the unit number `units` from the end; `units` becomes its number within the item.
fn find_unit<'a, T>(
    items: impl DoubleEndedIterator<Item = &'a T>,
    units: &mut i64,
    weight: impl Fn(&T) -> i64,
) -> Option<&'a T> {
    for item in items.rev() {
        if *units < weight(item) {
            return Some(item);
        }
        *units -= weight(item);
    }
    None
}

impl<K: Copy + Ord> TreeNode<K> {
    fn sum(&self) -> i64 {
        match self {
            TreeNode::Leaf(entries) => entries.iter().map(|(_, weight)| weight).sum(),
            TreeNode::Inner(children) => children.iter().map(|child| child.sum).sum(),
        }
    }

    fn len(&self) -> usize {
        match self {
            TreeNode::Leaf(entries) => entries.len(),
            TreeNode::Inner(children) => children.len(),
        }
    }

    fn collect_entries(&self, entries: &mut Vec<(K, i64)>) {
        match self {
            TreeNode::Leaf(own) => entries.extend(own.iter()),
            TreeNode::Inner(children) => children.iter().for_each(|child| child.node.collect_entries(entries)),
        }
    }

    /// Returns the node without `key` and all larger keys; `None` if nothing is left.
    fn keep_before(&self, key: K) -> Option<Child<K>> {
        match self {
            TreeNode::Leaf(entries) => {
                let index = entries.partition_point(|(known, _)| *known < key);
                Child::new(TreeNode::Leaf(entries[..index].into()))
            }
            TreeNode::Inner(children) => {
                let index = children.partition_point(|child| child.last < key);
                let mut kept = children[..index].to_vec();
                kept.extend(children.get(index).and_then(|child| child.node.keep_before(key)));
                let last = kept.len().saturating_sub(1);
                merge_small(&mut kept, last);
                Child::new(TreeNode::Inner(kept.into()))
            }
        }
    }

    /// Returns the nodes that replace this one: none if it becomes empty, two if it becomes too large.
    fn replace_entry(&self, key: K, weight: i64) -> Vec<Child<K>> {
        match self {
            TreeNode::Leaf(entries) => {
                let index = entries.partition_point(|(known, _)| *known < key);
                let known = entries.get(index).is_some_and(|(known, _)| *known == key);
                let new = (weight > 0).then_some((key, weight));
                split_node(splice_copy(entries, index, usize::from(known), new), |entries| {
                    TreeNode::Leaf(entries.into())
                })
            }
            TreeNode::Inner(children) => {
                let index = children.partition_point(|child| child.last < key).min(children.len() - 1);
                let mut children = splice_copy(children, index, 1, children[index].node.replace_entry(key, weight));
                merge_small(&mut children, index);
                split_node(children, |children| TreeNode::Inner(children.into()))
            }
        }
    }

    /// Joins two nodes of the same height.
    fn join_with(&self, behind: &TreeNode<K>) -> Option<TreeNode<K>> {
        match (self, behind) {
            (TreeNode::Leaf(one), TreeNode::Leaf(two)) => {
                Some(TreeNode::Leaf(one.iter().chain(two.iter()).copied().collect()))
            }
            (TreeNode::Inner(one), TreeNode::Inner(two)) => {
                Some(TreeNode::Inner(one.iter().chain(two.iter()).cloned().collect()))
            }
            _ => None,
        }
    }
}

impl<K: Copy + Ord> Child<K> {
    fn new(node: TreeNode<K>) -> Option<Child<K>> {
        let last = match &node {
            TreeNode::Leaf(entries) => entries.last().map(|(key, _)| *key),
            TreeNode::Inner(children) => children.last().map(|child| child.last),
        };
        last.map(|last| Child { last, sum: node.sum(), node })
    }
}

/// Copies the items, with `count` of them from `index` on replaced by `new`.
fn splice_copy<T: Clone>(items: &[T], index: usize, count: usize, new: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all = Vec::with_capacity(items.len() + 1);
    all.extend_from_slice(&items[..index]);
    all.extend(new);
    all.extend_from_slice(&items[index + count..]);
    all
}

/// Splits a node that is too large. The last part is small, because most new entries come last.
fn split_node<K: Copy + Ord, T: Clone>(mut items: Vec<T>, node: impl Fn(Vec<T>) -> TreeNode<K>) -> Vec<Child<K>> {
    let behind = if items.len() > CHILDREN_MAX { items.split_off(items.len() * 7 / 8) } else { Vec::new() };
    [items, behind].into_iter().filter_map(|items| Child::new(node(items))).collect()
}

/// Merges a child that has become small with its neighbour.
fn merge_small<K: Copy + Ord>(children: &mut Vec<Child<K>>, index: usize) {
    let one = index.min(children.len().saturating_sub(2));
    let Some([before, behind]) = children.get(one..one + 2) else { return };
    if before.node.len() + behind.node.len() > CHILDREN_MAX / 2 {
        return;
    }
    if let Some(child) = before.node.join_with(&behind.node).and_then(Child::new) {
        children.splice(one..one + 2, [child]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Compares the tree with a plain map while it grows to thousands of entries and shrinks to none.
    #[test]
    fn a_tree_is_a_sorted_map() {
        let mut rng = StdRng::seed_from_u64(1);
        let (mut tree, mut map) = (Tree::default(), BTreeMap::new());
        for step in 0..60_000 {
            let key = rng.random_range(0..6000_i64);
            let leaves = if step < 30_000 { 0.3 } else { 0.8 };
            let weight = if rng.random_bool(leaves) { 0 } else { rng.random_range(1..1000) };
            let before = tree.clone();
            tree.set(key, weight);
            let _ = if weight == 0 { map.remove(&key) } else { map.insert(key, weight) };
            if step % 500 == 0 {
                assert_ne!(before == tree, weight > 0 || before.weight(key) > 0, "a copy is its own");
                assert_eq!(tree.entries(), map.iter().map(|(key, weight)| (*key, *weight)).collect::<Vec<_>>());
            }
            let probe = rng.random_range(-1..6001);
            if step % 1000 == 0 {
                let mut cut = tree.clone();
                cut.remove_from(probe);
                let kept: Vec<_> = map.range(..probe).map(|(key, weight)| (*key, *weight)).collect();
                assert_eq!((cut.sum(), cut.entries()), (kept.iter().map(|(_, weight)| weight).sum(), kept));
            }
            if step % 50 == 0 {
                assert_eq!(tree.weight_since(probe), map.range(probe..).map(|(_, weight)| weight).sum::<i64>());
            }
            assert_eq!(tree.weight(probe), map.get(&probe).copied().unwrap_or(0));
            assert_eq!(tree.ceiling(probe), map.range(probe..).next().map(|(key, weight)| (*key, *weight)));
            assert_eq!(tree.floor(probe), map.range(..=probe).next_back().map(|(key, _)| *key));
            assert_eq!(tree.first(), map.first_key_value().map(|(key, weight)| (*key, *weight)));
            assert_eq!(tree.last(), map.last_key_value().map(|(key, _)| *key));
            let units = rng.random_range(0..=tree.sum());
            let found = tree.key_at(units);
            assert_eq!(found.is_none(), units == tree.sum());
            assert!(
                found.is_none_or(|found| tree.weight_since(found + 1) <= units && units < tree.weight_since(found))
            );
        }
        map.keys().for_each(|key| tree.set(*key, 0));
        assert_eq!((tree.sum(), tree.last(), tree.0.len()), (0, None, 0));
    }

    /// Nodes remain wide in any order of changes, so that paths are short.
    #[test]
    fn a_path_is_short() {
        fn height(node: &TreeNode<i64>) -> usize {
            match node {
                TreeNode::Leaf(_) => 1,
                TreeNode::Inner(children) => 1 + height(&children[0].node),
            }
        }
        let mut tree = Tree::default();
        (0..50_000).for_each(|key| tree.set(key, 1));
        assert!(height(&tree.0) <= 3, "{}", height(&tree.0));
        // A log removes the oldest entries as new ones arrive.
        (50_000..100_000).for_each(|key| {
            tree.set(key, 1);
            tree.set(key - 50_000, 0);
        });
        assert!(tree.sum() == 50_000 && height(&tree.0) <= 4, "{}", height(&tree.0));
        (50_000..99_900).for_each(|key| tree.set(key * 7 % 49_900 + 50_000, 0));
        assert!(tree.sum() <= 100 + 49_900 && height(&tree.0) <= 4);
        (50_000..99_990).for_each(|key| tree.set(key, 0));
        assert!(tree.sum() == 10 && height(&tree.0) <= 1, "{}", height(&tree.0));
    }
}
