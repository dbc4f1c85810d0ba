//! Reports limits that forward what exceeds them (`over`) on routes that forward nothing.

use std::sync::Arc;

use crate::config::compile::limits::list::place_of;
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::limiting::limit::Limit;
use crate::limiting::limit::over::Over;
use crate::route::Action;

/// Reports limits whose `over` has no effect on a route with this action.
pub fn check_forwarding(section: &Section, limits: &[Arc<Limit>], action: &Action) -> Option<()> {
    let is_possible = |limit: &Limit| match (&limit.over, action) {
        (Over::Refuse | Over::Delay, _) | (_, Action::Upstream(_)) | (Over::Annotate, Action::Echo) => true,
        (Over::Annotate | Over::Divert(_), _) => false,
    };
    let Some(limit) = limits.iter().find(|limit| !is_possible(limit)) else { return Some(()) };
    let place = place_of(section, &limit.name);
    let what = format!("`{}` forwards requests over it, but this route has no upstream", limit.name);
    section.report_fault_at(
        route::LIMITS.name,
        place,
        &what,
        "give this route a limit with over = \"refuse\", or an upstream",
    )
}
