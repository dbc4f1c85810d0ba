//! `overload` of `[server]`: when the process refuses requests. Called by `compile_server`.

use crate::config::compile::to_millis;
use crate::config::reader::Section;
use crate::config::schema::server;
use crate::overload::OverloadRule;

/// Compiles `overload`, which needs at least one condition.
pub fn compile_overload(server: &Section) -> Option<OverloadRule> {
    let node = server.node(&server::OVERLOAD)?;
    let section = server.read_section(&server::OVERLOAD)?;
    let rule = OverloadRule {
        qps: section.get(&server::overload::QPS),
        in_flight: section.get(&server::overload::IN_FLIGHT),
        latency_ms: section.get(&server::overload::LATENCY).map(to_millis),
        load_thousandths: section.read_thousandths(&server::overload::LOAD),
        cpu: section.get(&server::overload::CPU),
    };
    let has_condition = server::overload::TABLE.options.iter().any(|option| section.node(option).is_some());
    section.report_unread_keys();
    if !has_condition {
        let help = "add cpu = 0.9, in_flight = 2000, latency = \"2s\", qps = 5000 or load = 8";
        return server.report_fault(server::OVERLOAD.name, node, "it has no condition", help);
    }
    Some(rule)
}
