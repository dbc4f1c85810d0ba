//! Every option of the config in one table: its type with its bounds, its default, and what it means.
//!
//! `reader` checks keys and bounds against the table, `json_schema` makes the JSON Schema from it, `lookup` finds
//! entries by name for `sluicegate help`, and tests generate `docs/reference/options.md` from it. Tests also load a
//! config for each bound, word, default and type of the table, so that it cannot differ from what `compile` reads.
//!
//! To add an option, add a row to its section (the files of this directory) and read it in `compile`.

mod cases;
mod decide;
pub mod json_schema;
mod limit;
mod listener;
pub mod lookup;
mod once;
mod rls;
mod route;
mod server;
mod shared;
mod upstream;
pub mod value_type;

pub use crate::config::schema::cases::{CASE, CASE_FILE, EXPECT};
pub use crate::config::schema::decide::DECIDE;
pub use crate::config::schema::limit::{COST, FAIR, LEASE, LIMIT, OVERRIDE, OVERRIDE_KEY, RESERVE, WEIGHTS, WHEN};
pub use crate::config::schema::listener::{CERTIFICATE, HSTS, INTERNAL, LISTENER, LISTENER_TLS};
pub use crate::config::schema::once::{ACME, ADMIN, ADMIN_TOKEN, HEADERS, JWT, ROOT, SET, STORE};
pub use crate::config::schema::rls::RLS;
pub use crate::config::schema::route::{
    AUTH, HEADER_EDIT, REDIRECT, RESPOND, RESPONSE_HEADER_EDIT, REWRITE, ROUTE, ROUTE_COMPRESS,
};
pub use crate::config::schema::server::{ACCESS_LOG, OVERLOAD, REDIRECT_HTTP, SERVER, SERVER_COMPRESS, SPANS};
pub use crate::config::schema::shared::REFUSE;
pub use crate::config::schema::upstream::{
    ADAPTIVE, BREAKER, EJECT, HEALTH, RETRY, UPSTREAM, UPSTREAM_SERVER, UPSTREAM_TLS, UPSTREAM_TOTAL,
};
use crate::config::schema::value_type::ValueType;

/// The options of one kind of table.
#[derive(Debug)]
pub struct Schema {
    /// Path of the table, like `server.spans`.
    pub name: &'static str,
    /// How the section is written, like `[server]`; empty for tables within a section.
    pub title: &'static str,
    /// Markdown before the options of the section in the manual.
    pub intro: &'static str,
    /// Markdown after the options.
    pub notes: &'static str,
    pub options: &'static [ConfigOption],
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct ConfigOption {
    pub name: &'static str,
    written_type: ValueType,
    /// Markdown for the type in the manual, if the type itself says too little.
    pub type_text: &'static str,
    pub default: DefaultValue,
    /// Markdown after the default, such as the cases in which it does not apply.
    pub default_note: &'static str,
    /// Description of the option for its reference page, in Markdown.
    pub meaning: &'static str,
    /// Link to the part of the manual that explains it, relative to `docs/reference/`; empty if there is none.
    pub guide: &'static str,
    pub live_change: LiveChange,
    /// The metric that shows its effect; empty if there is none.
    pub metric: &'static str,
    /// `reason` in metrics and logs for requests that the option refuses; empty if there is none.
    pub reason: &'static str,
}

/// Meaning of a missing option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// The table needs the option.
    Required,
    /// Nothing.
    Absent,
    /// The option has this value, which is valid TOML and JSON.
    Value(&'static str),
    /// A value that depends on others, in Markdown.
    Described(&'static str),
}

/// Effect of a changed value on the running gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveChange {
    NextRequest,
    NewConnections,
    NextStart,
}

/// Every table, sections first.
pub const ALL: &[&Schema] = &[
    &ROOT,
    &SERVER,
    &REDIRECT_HTTP,
    &OVERLOAD,
    &ACCESS_LOG,
    &SPANS,
    &SERVER_COMPRESS,
    &LISTENER,
    &HSTS,
    &LISTENER_TLS,
    &CERTIFICATE,
    &INTERNAL,
    &ACME,
    &ADMIN,
    &ADMIN_TOKEN,
    &STORE,
    &HEADERS,
    &JWT,
    &UPSTREAM,
    &UPSTREAM_SERVER,
    &UPSTREAM_TOTAL,
    &ADAPTIVE,
    &EJECT,
    &BREAKER,
    &HEALTH,
    &RETRY,
    &UPSTREAM_TLS,
    &SET,
    &LIMIT,
    &LEASE,
    &WHEN,
    &FAIR,
    &OVERRIDE,
    &OVERRIDE_KEY,
    &RLS,
    &COST,
    &RESERVE,
    &WEIGHTS,
    &ROUTE,
    &AUTH,
    &REWRITE,
    &HEADER_EDIT,
    &RESPONSE_HEADER_EDIT,
    &REFUSE,
    &ROUTE_COMPRESS,
    &RESPOND,
    &REDIRECT,
    &DECIDE,
];

impl Schema {
    pub fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.options.iter().map(|option| option.name)
    }

    pub fn find(&self, key: &str) -> Option<&'static ConfigOption> {
        self.options.iter().find(|option| option.name == key)
    }

    /// Returns the keys from the top level to an option of the table.
    pub fn path_of(&self, key: &str) -> String {
        match self.name == ROOT.name {
            true => key.to_owned(),
            false => format!("{}.{key}", self.name),
        }
    }

    /// Returns whether the table is a section, not a table within one.
    pub fn is_section(&self) -> bool {
        !self.title.is_empty()
    }
}

/// Declares an option that applies to the next request.
const fn option(
    name: &'static str,
    written_type: ValueType,
    default: DefaultValue,
    meaning: &'static str,
) -> ConfigOption {
    ConfigOption {
        name,
        written_type,
        type_text: "",
        default,
        default_note: "",
        meaning,
        guide: "",
        live_change: LiveChange::NextRequest,
        metric: "",
        reason: "",
    }
}

impl ConfigOption {
    /// Returns the type, which algorithms declare for their own options.
    pub fn value_type(&self) -> ValueType {
        match self.written_type {
            ValueType::OfAlgorithm => value_type::type_of_param(self.name),
            other => other,
        }
    }

    /// Returns whether only some algorithms have the option.
    pub fn is_of_algorithm(&self) -> bool {
        matches!(self.written_type, ValueType::OfAlgorithm)
    }

    /// Returns the type in Markdown.
    pub fn describe_type(&self) -> String {
        if self.type_text.is_empty() { self.value_type().describe() } else { self.type_text.to_owned() }
    }

    /// Returns the default in Markdown; empty if the option is a section.
    pub fn describe_default(&self) -> String {
        let value = match self.default {
            DefaultValue::Required => "required".to_owned(),
            DefaultValue::Absent => "none".to_owned(),
            DefaultValue::Value(value) => format!("`{value}`"),
            DefaultValue::Described(text) => text.to_owned(),
        };
        value + self.default_note
    }

    /// Sets the text for the type, in Markdown.
    const fn shown_as(mut self, text: &'static str) -> ConfigOption {
        self.type_text = text;
        self
    }

    /// Sets the text after the default, in Markdown.
    const fn note(mut self, text: &'static str) -> ConfigOption {
        self.default_note = text;
        self
    }

    const fn guide(mut self, link: &'static str) -> ConfigOption {
        self.guide = link;
        self
    }

    /// Open connections keep the old value.
    const fn for_new_connections(mut self) -> ConfigOption {
        self.live_change = LiveChange::NewConnections;
        self
    }

    /// The value applies at the next start.
    const fn after_restart(mut self) -> ConfigOption {
        self.live_change = LiveChange::NextStart;
        self
    }

    const fn metric(mut self, name: &'static str) -> ConfigOption {
        self.metric = name;
        self
    }

    const fn reason(mut self, reason: &'static str) -> ConfigOption {
        self.reason = reason;
        self
    }
}

impl LiveChange {
    /// Returns a sentence about a change of the option.
    pub const fn describe(self) -> &'static str {
        match self {
            LiveChange::NextRequest => "applies to the next request",
            LiveChange::NewConnections => "applies to new connections; open ones keep the old value",
            LiveChange::NextStart => "applies at the next start; until then the log warns about it",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::limiting::algorithm::all_params;

    #[test]
    fn limits_have_a_row_for_each_option_of_an_algorithm() {
        for param in all_params() {
            assert!(LIMIT.find(param.name).is_some(), "src/config/schema/limit.rs has no row `{}`", param.name);
            assert_eq!(OVERRIDE.find(param.name).is_some(), param.overridable, "`{}` of an override", param.name);
        }
    }

    #[test]
    fn every_table_is_listed_once() {
        let names: BTreeSet<&str> = ALL.iter().map(|schema| schema.name).collect();
        assert_eq!(names.len(), ALL.len());
        let within = |schema: &&Schema| schema.options.iter().flat_map(|option| option.value_type().tables()).collect();
        let nested: BTreeSet<&str> =
            ALL.iter().flat_map(|schema| -> Vec<&Schema> { within(schema) }).map(|schema| schema.name).collect();
        let unlisted: Vec<_> = nested.difference(&names).collect();
        assert!(unlisted.is_empty(), "not in ALL: {unlisted:?}");
        for schema in ALL.iter().filter(|schema| schema.name != ROOT.name) {
            assert!(nested.contains(schema.name), "no option has the table {}", schema.name);
        }
    }
}
