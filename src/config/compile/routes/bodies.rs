//! What limits of a route that read bodies mean for it: how much of a request is read, and which tunnels the route
//! opens.

use std::sync::Arc;

use crate::config::compile::server::Defaults;
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::values::invalid_text;
use crate::limiting::limit::refuse::Refuse;
use crate::limiting::limit::{Limit, Mode};
use crate::route::Upgrades;

/// The largest bodies of a route: all, those with a key, and those with a cost.
pub struct BodyBounds {
    pub max_body: u64,
    max_key_body: u64,
    max_cost_body: u64,
}

impl BodyBounds {
    /// Reads the bounds, which are inherited where the route has none.
    pub fn read(section: &Section, inherited: &Defaults) -> BodyBounds {
        BodyBounds {
            max_body: section.get(&route::MAX_BODY).unwrap_or(inherited.max_body),
            max_key_body: section.get(&route::MAX_KEY_BODY).unwrap_or(inherited.max_key_body),
            max_cost_body: section.get(&route::MAX_COST_BODY).unwrap_or(inherited.max_cost_body),
        }
    }

    /// Returns how many bytes of a body the limits of a route read; `None` if they read none. A key needs the whole
    /// body, so its bound applies as soon as one limit has such a key. Calls may be long, so theirs is that of costs.
    ///
    /// A response that names the calls of a refused request needs them as well; `refuse` is the option of the route.
    pub fn find_key_body(&self, limits: &[Arc<Limit>], refuse: &Refuse) -> Option<u32> {
        let is_read = limits.iter().any(|limit| limit.reads_body() || limit.refusal_response(refuse).names_calls());
        let is_key = limits.iter().any(|limit| limit.has_key_in_body() && !limit.counted_key().reads_calls_only());
        u32::try_from(if is_key { self.max_key_body } else { self.max_cost_body }).ok().filter(|_| is_read)
    }
}

/// Returns the protocols of a route that lists none: all, unless an enforced limit settles by what responses report in
/// their body, or reads calls. The gateway does not read tunnels, so whatever passes them would cost the estimate, or
/// nothing.
/// Candidates and limits in shadow mode refuse nothing.
pub fn default_upgrades(limits: &[Arc<Limit>]) -> Upgrades {
    match limits.iter().any(|limit| limit.mode == Mode::Enforce && (limit.settles_by_body() || limit.reads_calls())) {
        true => Upgrades::Refused,
        false => Upgrades::Any,
    }
}

/// Compiles `upgrades`: protocol names without versions. `None` if it is not set.
pub fn compile_upgrades(section: &Section) -> Option<Upgrades> {
    let names = section.read_strings(&route::UPGRADES, |text| {
        let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte));
        match text {
            "" => invalid_text("it names no protocol", "an empty list allows none; leave it out to allow all"),
            text if is_name => Ok(text.to_owned()),
            _ => invalid_text(
                format!("`{text}` is not the name of a protocol"),
                "write \"websocket\", without a version",
            ),
        }
    });
    names.map(|names| Upgrades::Only(names.into_iter().map(|at| at.value).collect()))
}
