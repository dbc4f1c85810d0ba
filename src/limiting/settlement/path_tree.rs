//! The paths of a JSON document that a scanner reads, as a tree of member names and array indexes.

use crate::limiting::settlement::readings::Target;

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep<'a> {
    /// Name of a member, or index of an item.
    Named(&'a str),
    /// Any item of an array.
    AnyItem,
}

/// Returns the steps of a path like `choices/*/text`.
pub fn steps(path: &str) -> impl Iterator<Item = PathStep<'_>> {
    path.split('/').map(|name| if name == "*" { PathStep::AnyItem } else { PathStep::Named(name) })
}

/// A set of paths with the meaning of the values at their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTree {
    /// The root is the first.
    nodes: Vec<PathNode>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PathNode {
    members: Vec<(Box<[u8]>, NodeId)>,
    any_item: Option<NodeId>,
    targets: Vec<Target>,
}

/// Index of a node.
pub type NodeId = u16;

impl Default for PathTree {
    fn default() -> PathTree {
        PathTree { nodes: vec![PathNode::default()] }
    }
}

impl PathTree {
    pub const ROOT: NodeId = 0;

    /// Adds a path. Paths beyond 2^16 nodes are ignored; the config allows far fewer.
    pub fn add_path<'a>(&mut self, steps: impl IntoIterator<Item = PathStep<'a>>, target: Target) {
        let mut node = usize::from(PathTree::ROOT);
        for step in steps {
            let Ok(new) = NodeId::try_from(self.nodes.len()) else { return };
            let next = match step {
                PathStep::Named(name) => {
                    let child = self.nodes[node].members.iter().find(|(known, _)| **known == *name.as_bytes());
                    child.map(|(_, next)| *next)
                }
                PathStep::AnyItem => self.nodes[node].any_item,
            };
            let next = next.unwrap_or_else(|| {
                self.nodes.push(PathNode::default());
                match step {
                    PathStep::Named(name) => self.nodes[node].members.push((name.as_bytes().into(), new)),
                    PathStep::AnyItem => self.nodes[node].any_item = Some(new),
                }
                new
            });
            node = usize::from(next);
        }
        if !self.nodes[node].targets.contains(&target) {
            self.nodes[node].targets.push(target);
        }
    }

    /// Returns whether the tree contains no path.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Returns whether a path continues below the node.
    pub fn continues(&self, node: NodeId) -> bool {
        let node = &self.nodes[usize::from(node)];
        !node.members.is_empty() || node.any_item.is_some()
    }

    pub fn member(&self, node: NodeId, name: &[u8]) -> Option<NodeId> {
        let members = &self.nodes[usize::from(node)].members;
        members.iter().find(|(known, _)| **known == *name).map(|(_, next)| *next)
    }

    /// Returns the node of an item of an array. A path with this index takes precedence over one with any index.
    pub fn item(&self, node: NodeId, index: u64) -> Option<NodeId> {
        let node = &self.nodes[usize::from(node)];
        let is_index = |name: &[u8]| {
            let digits = str::from_utf8(name).ok().filter(|digits| *digits == "0" || !digits.starts_with(['0', '+']));
            digits.and_then(|digits| digits.parse::<u64>().ok()) == Some(index)
        };
        node.members.iter().find(|(name, _)| is_index(name)).map(|(_, next)| *next).or(node.any_item)
    }

    pub fn targets(&self, node: NodeId) -> &[Target] {
        &self.nodes[usize::from(node)].targets
    }
}
