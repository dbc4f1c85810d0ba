//! `overload` of `[server]`: when the process refuses requests. Called by `compile_server`.

use crate::config::compile::numbers::to_millis;
use crate::config::reader::Section;
use crate::config::schema;
use crate::overload::OverloadRule;

/// Compiles `overload`, which needs at least one condition.
pub fn compile_overload(server: &Section) -> Option<OverloadRule> {
    let node = server.node("overload")?;
    let section = server.read_section("overload", &schema::server::overload::TABLE)?;
    let count = |key| section.read_integer(key).and_then(|count| u64::try_from(count).ok());
    let rule = OverloadRule {
        qps: count("qps"),
        in_flight: count("in_flight"),
        latency_ms: section.read_duration("latency").map(to_millis),
        load_thousandths: section.read_thousandths("load"),
        cpu: section.read_fraction("cpu"),
    };
    let has_condition = schema::server::overload::TABLE.keys().any(|key| section.node(key).is_some());
    section.report_unread_keys();
    if !has_condition {
        let help = "add cpu = 0.9, in_flight = 2000, latency = \"2s\", qps = 5000 or load = 8";
        return server.report_fault("overload", node, "it has no condition", help);
    }
    Some(rule)
}
