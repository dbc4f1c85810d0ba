//! Every option of the config in one table: a row says all that is to be known about an option.
//!
//! `row` has the form of a row. Each section is a file, in which a table within the section is a module. `reader` reads
//! the value of a row with its default and bounds, `json_schema` makes the JSON Schema, `lookup` finds the row of a
//! name for `sluicegate help`, and of a value for the effective config, the diff, masks and anonymized configs. Tests
//! generate `docs/reference/options.md` from the table, and load a config for each bound, word, default, type and mark,
//! so that it cannot differ from what the gateway does.
//!
//! To add an option, add a row to its section (the files of this directory) and read it in `compile`.

pub mod cases;
pub mod cors;
pub mod decide;
pub mod json_schema;
pub mod limit;
pub mod limit_list;
pub mod listener;
pub mod lookup;
mod once;
pub mod prices;
pub mod rewrite;
pub mod rls;
pub mod route;
pub mod row;
pub mod server;
mod shared;
pub mod upstream;
pub mod value_type;

pub use crate::config::schema::once::{acme, acme_dns, admin, admin_token, geo, headers, jwt, root, set, store};
use crate::config::schema::row::ConfigOption;
pub use crate::config::schema::shared::{key_part, refuse};

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

/// Every table, sections first.
pub const ALL: &[&Schema] = &[
    &root::TABLE,
    &server::TABLE,
    &server::redirect_http::TABLE,
    &server::overload::TABLE,
    &server::access_log::TABLE,
    &server::spans::TABLE,
    &server::compress::TABLE,
    &cors::TABLE,
    &listener::TABLE,
    &listener::hsts::TABLE,
    &listener::http3::TABLE,
    &listener::tls::TABLE,
    &listener::certificate::TABLE,
    &listener::internal::TABLE,
    &acme::TABLE,
    &admin::TABLE,
    &acme_dns::TABLE,
    &admin_token::TABLE,
    &store::TABLE,
    &headers::TABLE,
    &jwt::TABLE,
    &upstream::TABLE,
    &upstream::server::TABLE,
    &upstream::total::TABLE,
    &upstream::adaptive::TABLE,
    &upstream::eject::TABLE,
    &upstream::breaker::TABLE,
    &upstream::health::TABLE,
    &upstream::retry::TABLE,
    &upstream::tls::TABLE,
    &geo::TABLE,
    &set::TABLE,
    &limit::TABLE,
    &key_part::TABLE,
    &limit::ban::TABLE,
    &limit::lease::TABLE,
    &limit::when::TABLE,
    &limit::fair::TABLE,
    &limit::overrides::TABLE,
    &limit::override_key::TABLE,
    &rls::TABLE,
    &limit::cost::TABLE,
    &limit::graphql::TABLE,
    &limit::reserve::TABLE,
    &limit::weights::TABLE,
    &route::TABLE,
    &limit_list::TABLE,
    &route::auth::TABLE,
    &rewrite::TABLE,
    &rewrite::query::TABLE,
    &route::split::TABLE,
    &route::mirror::TABLE,
    &route::request_headers::TABLE,
    &route::response_headers::TABLE,
    &refuse::TABLE,
    &route::compress::TABLE,
    &route::respond::TABLE,
    &route::redirect::TABLE,
    &decide::TABLE,
];

impl Schema {
    pub fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.options.iter().map(|option| option.name)
    }

    pub fn find(&self, key: &str) -> Option<&'static ConfigOption> {
        self.options.iter().find(|option| option.name == key)
    }

    const fn title(mut self, title: &'static str) -> Schema {
        self.title = title;
        self
    }

    const fn intro(mut self, text: &'static str) -> Schema {
        self.intro = text;
        self
    }

    const fn notes(mut self, text: &'static str) -> Schema {
        self.notes = text;
        self
    }

    const fn with_options(mut self, options: &'static [ConfigOption]) -> Schema {
        self.options = options;
        self
    }

    /// Returns the keys from the top level to an option of the table.
    pub fn path_of(&self, key: &str) -> String {
        match self.name == root::TABLE.name {
            true => key.to_owned(),
            false => format!("{}.{key}", self.name),
        }
    }

    /// Returns whether the table is a section, not a table within one.
    pub fn is_section(&self) -> bool {
        !self.title.is_empty()
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
            assert!(
                limit::TABLE.find(param.name).is_some(),
                "src/config/schema/limit/mod.rs has no row `{}`",
                param.name
            );
            assert_eq!(
                limit::overrides::TABLE.find(param.name).is_some(),
                param.overridable,
                "`{}` of an override",
                param.name
            );
        }
    }

    #[test]
    fn every_table_is_listed_once() {
        let names: BTreeSet<&str> = ALL.iter().map(|schema| schema.name).collect();
        assert_eq!(names.len(), ALL.len());
        let within = |schema: &&Schema| schema.options.iter().flat_map(|option| option.value_type().tables()).collect();
        let nested: BTreeSet<&str> =
            ALL.iter().flat_map(|schema| -> Vec<&Schema> { within(schema) }).map(|schema| schema.name).collect();
        let missing: Vec<_> = nested.difference(&names).collect();
        assert!(missing.is_empty(), "not in ALL: {missing:?}");
        for schema in ALL.iter().filter(|schema| schema.name != root::TABLE.name) {
            assert!(nested.contains(schema.name), "no option has the table {}", schema.name);
        }
    }
}
