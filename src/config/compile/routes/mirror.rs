//! Option `mirror` of a route. Called by `routes`.

use crate::config::compile::routes::action::find_upstream;
use crate::config::compile::upstreams::Upstreams;
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::route::mirror::Mirror;

const HELP: &str = "write mirror = { upstream = \"shadow\", percent = 10 }";

pub fn compile_mirror(section: &Section, upstreams: &mut Upstreams) -> Option<Mirror> {
    let node = section.node(&route::MIRROR)?;
    if section.node(&route::UPSTREAM).is_none() && section.node(&route::SPLIT).is_none() {
        let what = "the route forwards nothing that could be copied";
        return section.report_fault(route::MIRROR.name, node, what, "remove it, or give the route an upstream");
    }
    let mirror = section.read_section(&route::MIRROR)?;
    let upstream = match mirror.node(&route::mirror::UPSTREAM) {
        Some(node) => find_upstream(&mirror, &route::mirror::UPSTREAM, node, upstreams),
        None => mirror.report_missing("`mirror` has no upstream", HELP),
    };
    let percent = mirror.get(&route::mirror::PERCENT);
    let max_body = mirror.get(&route::mirror::MAX_BODY);
    mirror.report_unread_keys();
    Some(Mirror { upstream: upstream?, percent: u8::try_from(percent).unwrap_or(100), max_body })
}
