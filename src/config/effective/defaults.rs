//! Defaults of options that a section does not have, from the table of the schema. Defaults that depend on other
//! options, and those of algorithms and within tables that are not written, are not listed.

use std::collections::HashSet;

use serde_json::Value as Json;

use crate::config::effective::{WrittenConfig, WrittenSection};
use crate::config::schema::row::DefaultValue;
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{self, Schema};

/// Returns the sections that have effect even if no file has them: single ones without an option that they need.
fn list_permanent() -> impl Iterator<Item = &'static Schema> {
    let has_required = |table: &Schema| table.options.iter().any(|option| option.default == DefaultValue::Required);
    let sections = schema::root::TABLE.options.iter().filter_map(|option| match option.value_type() {
        ValueType::Table(table) => Some(table),
        _ => None,
    });
    sections.filter(move |table| !has_required(table))
}

impl WrittenConfig {
    /// Returns all sections, also those that only have defaults.
    pub(super) fn sections_with_defaults(&self) -> Vec<WrittenSection<'_>> {
        let mut sections = self.sections();
        for Schema { name: kind, .. } in list_permanent() {
            if !sections.iter().any(|section| section.kind == *kind) {
                sections.push(WrittenSection { kind, name: String::new(), is_listed: false, options: Vec::new() });
            }
        }
        sections
    }
}

impl WrittenSection<'_> {
    /// Returns the options that are not written, with their defaults.
    pub(super) fn list_defaults(&self) -> Vec<(&'static str, Json)> {
        let Some(schema) = schema::ALL.iter().find(|schema| schema.name == self.kind) else { return Vec::new() };
        let names: HashSet<&str> = self.options.iter().filter_map(|option| option.keys.first().copied()).collect();
        let absent = schema.options.iter().filter(|option| !names.contains(option.name) && !option.is_of_algorithm());
        let defaults = absent.filter_map(|option| match option.default {
            DefaultValue::Value(text) => Some((option.name, serde_json::from_str(text).ok()?)),
            _ => None,
        });
        defaults.collect()
    }
}
