//! Budgets of limits as they are written, which is how their authors recognize them.

use crate::config::Config;
use crate::config::effective::WrittenConfig;
use crate::config::schema::limit;
use crate::config::tree::{Table, Value};

/// The options that a budget consists of, with the words after or before their values.
const PARTS: [(&str, &str, &str); 6] = [
    (limit::RATE.option.name, "", ""),
    (limit::BURST.option.name, "burst ", ""),
    (limit::DEBT.option.name, "debt ", ""),
    (limit::QUEUE.option.name, "queue ", ""),
    (limit::RESETS_ON.option.name, "resets on day ", ""),
    (limit::IN_FLIGHT.option.name, "", " at a time"),
];

impl Config {
    /// Returns the budget of a limit, such as `60/min, burst 20`. `None` if the limit has no section of this name, as
    /// the tiers of another one.
    pub fn written_budget(&self, name: &str) -> Option<String> {
        let section = self.written.find_limit(name)?;
        let text = describe_budget(|name| Some(&section.get(name)?.node.value));
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Describes a budget, such as `60/min, burst 20`, by the values of its options as they are written.
pub fn describe_budget<'v>(find: impl Fn(&str) -> Option<&'v Value>) -> String {
    let parts = PARTS.iter().filter_map(|(name, before, after)| {
        let value = find(name)?;
        Some(format!("{before}{}{after}", show_value(value)?))
    });
    parts.collect::<Vec<_>>().join(", ")
}

impl WrittenConfig {
    fn find_limit(&self, name: &str) -> Option<&Table> {
        self.documents.iter().find_map(|document| {
            let Value::Table(limits) = &document.get(limit::TABLE.name)?.node.value else { return None };
            let Value::Table(section) = &limits.get(name)?.node.value else { return None };
            Some(section)
        })
    }
}

/// Returns a text or a number as it is.
fn show_value(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value.clone()),
        Value::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}
