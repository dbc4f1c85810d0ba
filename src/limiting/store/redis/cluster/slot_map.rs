//! The slot map of a cluster: which node has which slots, with a lane to each node.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::limiting::store::address::ServerAddr;
use crate::limiting::store::redis::connection::sentinel::ConnectionTarget;
use crate::limiting::store::redis::pipeline::lane::{Lane, LaneContext};
use crate::limiting::store::redis::slot::{SLOTS, SlotRange};

/// Slots and nodes of a cluster.
#[derive(Default)]
pub struct SlotMap {
    /// The node of each slot; empty until the map is known.
    pub slots: Vec<Option<Rc<ClusterNode>>>,
    pub nodes: HashMap<ServerAddr, Rc<ClusterNode>>,
    /// Masters and replicas, any of which can return the map.
    pub known: Vec<ServerAddr>,
}

/// A node with the lane to it.
pub struct ClusterNode {
    pub addr: ServerAddr,
    pub lane: Lane,
}

impl SlotMap {
    /// Returns the node at `addr`; opens a lane to it if it is new.
    pub fn node(&mut self, addr: ServerAddr, context: &LaneContext) -> Rc<ClusterNode> {
        let open = || {
            let lane = Lane::open(ConnectionTarget::Fixed(addr.clone()), true, context);
            Rc::new(ClusterNode { addr: addr.clone(), lane })
        };
        self.nodes.entry(addr.clone()).or_insert_with(open).clone()
    }

    /// Replaces the map by the `ranges` of a reply.
    pub fn replace_ranges(&mut self, ranges: Vec<SlotRange>, context: &LaneContext) {
        self.slots = vec![None; SLOTS];
        let (mut owners, mut known) = (HashSet::new(), HashSet::new());
        for range in ranges {
            let node = self.node(range.master.clone(), context);
            self.slots[range.first..=range.last].fill(Some(node));
            known.insert(range.master.clone());
            known.extend(range.replicas);
            owners.insert(range.master);
        }
        // A node without slots may be about to get its first one, so its lane stays as long as it works.
        self.nodes.retain(|addr, node| owners.contains(addr) || !node.lane.is_down());
        self.known = known.into_iter().collect();
    }

    /// Returns whether every slot has a node and every lane is connected.
    pub fn is_healthy(&self) -> bool {
        self.slots.iter().all(Option::is_some) && self.nodes.values().all(|node| !node.lane.is_down())
    }
}
