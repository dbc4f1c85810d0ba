//! Option `ban` of limits. Called by `limits`.

use std::time::Duration;

use crate::config::compile::limits::lease::has_lease_table;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::limiting::algorithm::ban::Ban;
use crate::limiting::limit::ban::LimitBan;

/// The longest ban if the limit does not say otherwise: a day.
const AT_MOST_MS: i64 = 86_400_000;

/// Compiles the option for the limit called `name`. `None` means a mistake; `Some(None)` means that it is not set.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is an error")]
pub fn compile_ban(section: &Section, name: &str) -> Option<Option<Box<LimitBan>>> {
    let Some(node) = section.node(&limit::BAN) else { return Some(None) };
    let table = section.read_section(&limit::BAN)?;
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let (after, grow) = (table.get(&limit::ban::AFTER), table.get(&limit::ban::GROW));
    let [within_ms, for_ms, at_most] =
        [&limit::ban::WITHIN, &limit::ban::FOR, &limit::ban::AT_MOST].map(|option| table.get(option).map(ms));
    for option in [&limit::ban::AFTER.option, &limit::ban::WITHIN.option, &limit::ban::FOR.option] {
        if table.node(option).is_none() {
            let help = "write ban = { after = 20, within = \"1m\", for = \"1h\" }";
            table.report_missing::<()>(format!("`ban` of {} has no `{}`", section.title, option.name), help);
        }
    }
    let is_wrong = at_most.is_none() && table.node(&limit::ban::AT_MOST).is_some();
    let at_most_node = table.node(&limit::ban::AT_MOST);
    let (after, within_ms, for_ms) = (after, within_ms, for_ms);
    if let (Some(at_most), Some(for_ms), Some(node)) = (at_most, for_ms, at_most_node)
        && at_most < for_ms
    {
        let what = "it is shorter than `for`, the first ban";
        return table.report_fault(limit::ban::AT_MOST.name, node, what, "raise at_most, or shorten for");
    }
    table.report_unread_keys();
    if is_wrong {
        return None;
    }
    if has_lease_table(section) {
        let what = "cannot be combined with lease: a gateway would admit a banned key until its units are spent";
        return section.report_fault(limit::BAN.name, node, what, "remove one of the two");
    }
    if section.node(&limit::FAIR).is_some() {
        let what = "cannot be combined with fair: one tenant could ban all the others";
        return section.report_fault(limit::BAN.name, node, what, "remove one of the two");
    }
    let (after, within_ms, for_ms) = (after?, within_ms?, for_ms?);
    let at_most_ms = at_most.unwrap_or(AT_MOST_MS.max(for_ms));
    Some(Some(Box::new(LimitBan::new(name, Ban { after, within_ms, for_ms, grow, at_most_ms }))))
}
