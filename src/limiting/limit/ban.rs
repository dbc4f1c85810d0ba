//! The option `ban` of a limit: a key that is refused often is refused for longer. `limiting::algorithm::ban` decides
//! it.

use std::sync::Arc;

use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::ban::Ban;
use crate::limiting::decision::{BanCheck, LimitRef};
use crate::limiting::limit::cost::Cost;

/// The bans of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitBan {
    pub rule: Arc<Rule>,
    /// The keys of bans in memory, which are counted like those of a further limit.
    pub store_ref: Arc<LimitRef>,
}

/// The last part of the keys of bans. The algorithm of the limit has this place in its own keys, so that another
/// algorithm keeps the bans.
const KEY_END: &str = "ban";

impl LimitBan {
    /// Creates the bans of the limit called `limit`.
    pub fn new(limit: &str, ban: Ban) -> LimitBan {
        // No name of a limit contains a colon.
        let store_ref = LimitRef::new(&format!("{limit}:{KEY_END}"), &Cost::Fixed(1), None, None);
        LimitBan { rule: Arc::new(Rule::Ban(ban)), store_ref }
    }

    /// Makes the check for the ban of a state key of the limit.
    pub fn check_of(&self, state_key: &str) -> BanCheck {
        let frame = state_key.rsplit_once(':').map_or(state_key, |(frame, _)| frame);
        let key = [frame, KEY_END].join(":");
        BanCheck { limit: self.store_ref.clone(), rule: self.rule.clone(), key }
    }
}
