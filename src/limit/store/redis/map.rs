//! The map of a cluster: which node has which slots, and a lane to each. Kept by `nodes.rs`.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::address::Addr;
use super::lane::{Lane, LaneContext};
use super::sentinel::Target;
use super::slot::{Range, SLOTS};

#[derive(Default)]
pub struct Map {
    /// The owner of each slot; empty until the map is known.
    pub slots: Vec<Option<Rc<ClusterNode>>>,
    pub nodes: HashMap<Addr, Rc<ClusterNode>>,
    /// Masters and replicas: whom to ask for the map.
    pub known: Vec<Addr>,
}

pub struct ClusterNode {
    pub addr: Addr,
    pub lane: Lane,
}

impl Map {
    pub fn node(&mut self, addr: Addr, context: &LaneContext) -> Rc<ClusterNode> {
        let open = || {
            let lane = Lane::open(Target::Fixed(addr.clone()), true, context);
            Rc::new(ClusterNode { addr: addr.clone(), lane })
        };
        self.nodes.entry(addr.clone()).or_insert_with(open).clone()
    }

    pub fn replace(&mut self, ranges: Vec<Range>, context: &LaneContext) {
        self.slots = vec![None; SLOTS];
        let (mut owners, mut known) = (HashSet::new(), HashSet::new());
        for range in ranges {
            let node = self.node(range.master.clone(), context);
            self.slots[range.first..=range.last].fill(Some(node));
            known.insert(range.master.clone());
            known.extend(range.replicas);
            owners.insert(range.master);
        }
        // A node without slots may be about to get its first: its lane stays while it works.
        self.nodes.retain(|addr, node| owners.contains(addr) || !node.lane.is_down());
        self.known = known.into_iter().collect();
    }

    pub fn is_well(&self) -> bool {
        self.slots.iter().all(Option::is_some) && self.nodes.values().all(|node| !node.lane.is_down())
    }
}
