//! Finds options by name: `limit.burst`, `burst`, `[limit.per-ip] burst`, or the anchor of the manual, `limit-burst`.

use crate::config::closest::find_closest;
use crate::config::schema::row::{ClientData, ConfigOption};
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{self, Schema};

/// An option with its place.
#[derive(Clone, Debug)]
pub struct OptionEntry {
    /// The section.
    pub section: &'static Schema,
    /// The table that has the option: the section, or a table within it.
    pub table: &'static Schema,
    /// Keys from the section to the option, like `spans.to`.
    pub key: String,
    pub option: &'static ConfigOption,
}

/// The option or section that a name denotes.
#[derive(Debug)]
pub enum FoundOption {
    One(OptionEntry),
    /// Several options have the name.
    Several(Vec<OptionEntry>),
    /// No option has this path. Contains the closest path, if one is close.
    Unknown(Option<String>),
}

impl OptionEntry {
    /// Returns the keys from the top level to the option, like `server.spans.to`.
    pub fn path(&self) -> String {
        self.section.path_of(&self.key)
    }

    /// Returns the anchor of the option in the manual, like `server-spans-to`.
    pub fn anchor(&self) -> String {
        self.path().replace('.', "-")
    }

    /// Returns the section that the option is, if it is one.
    pub fn as_section(&self) -> Option<&'static Schema> {
        self.option.value_type().tables().into_iter().find(|table| table.is_section())
    }
}

/// The option that a value belongs to.
#[derive(Clone, Copy, Debug)]
pub struct OptionPlace {
    pub option: &'static ConfigOption,
    /// The last key is the user's own, in the table that the option is.
    pub is_entry: bool,
    /// The value is one of clients or of their requests.
    pub is_of_clients: bool,
}

/// Finds the option that has the value at these keys, which start after the section and its name. Keys that no table
/// has are passed over, because messages show configs with mistakes.
pub fn locate_value(kind: &str, keys: &[&str]) -> Option<OptionPlace> {
    let mut tables: Vec<&Schema> = schema::ALL.iter().copied().filter(|schema| schema.name == kind).collect();
    let (mut found, mut is_own_key): (Option<OptionPlace>, bool) = (None, false);
    for key in keys {
        if std::mem::take(&mut is_own_key) {
            found.iter_mut().for_each(|place| place.is_entry = true);
            continue;
        }
        let Some(option) = tables.iter().find_map(|table| table.find(key)) else { continue };
        let inner = option.value_type().tables();
        if !inner.is_empty() {
            tables = inner;
        }
        is_own_key = option.value_type().has_own_keys();
        let is_of_clients = option.clients == ClientData::Values || found.is_some_and(|place| place.is_of_clients);
        found = Some(OptionPlace { option, is_entry: false, is_of_clients });
    }
    found
}

/// Returns every option once, in the order of the manual.
pub fn list_entries() -> Vec<OptionEntry> {
    let mut entries = Vec::new();
    for section in schema::ALL.iter().filter(|schema| schema.is_section()) {
        add_entries(section, section, "", &mut entries);
    }
    entries
}

/// Adds the options of `table` and of the tables within it. A table that sections share belongs to the one in its name,
/// and one that several options of a section share, to the first of them.
fn add_entries(section: &'static Schema, table: &'static Schema, prefix: &str, entries: &mut Vec<OptionEntry>) {
    for option in table.options {
        let key = format!("{prefix}{}", option.name);
        entries.push(OptionEntry { section, table, key: key.clone(), option });
        for inner in option.value_type().tables() {
            let is_own = inner.name.strip_prefix(section.name).is_some_and(|rest| rest.starts_with('.'));
            let is_new = entries.iter().all(|entry| !std::ptr::eq(entry.table, inner));
            if !inner.is_section() && is_own && is_new {
                add_entries(section, inner, &format!("{key}."), entries);
            }
        }
    }
}

/// Finds the options that `text` names.
pub fn find_option(text: &str) -> FoundOption {
    let entries = list_entries();
    let words = split_name(text);
    if let Some(option) = follow_keys(&words)
        && let Some(entry) = entries.iter().find(|entry| std::ptr::eq(entry.option, option))
    {
        return FoundOption::One(entry.clone());
    }
    let name = words.join(".");
    let suffix = format!(".{name}");
    let mut matches: Vec<OptionEntry> =
        entries.iter().filter(|entry| entry.path().ends_with(&suffix)).cloned().collect();
    // An option of a section is meant rather than those of tables within sections.
    let depth = |entry: &OptionEntry| entry.key.matches('.').count();
    let least = matches.iter().map(depth).min().unwrap_or_default();
    matches.retain(|entry| depth(entry) == least);
    match matches.len() {
        0 => FoundOption::Unknown(find_similar(&name, &entries)),
        1 => FoundOption::One(matches.remove(0)),
        _ => FoundOption::Several(matches),
    }
}

/// Splits a name into keys. Brackets, quotes and spaces are as in a config; `NAME` stands for any name.
fn split_name(text: &str) -> Vec<&str> {
    let is_separator = |c: char| !(c.is_alphanumeric() || c == '_');
    text.split(is_separator).filter(|word| !word.is_empty() && *word != "NAME").collect()
}

/// Follows keys from the top level. A word after a kind of named section may be a name.
fn follow_keys(words: &[&str]) -> Option<&'static ConfigOption> {
    let (first, rest) = words.split_first()?;
    let mut option = schema::root::TABLE.find(first)?;
    let mut may_be_name = is_named(option);
    for (at, word) in rest.iter().enumerate() {
        match option.value_type().tables().into_iter().find_map(|table| table.find(word)) {
            Some(inner) => (option, may_be_name) = (inner, false),
            // The last word is rather a misspelled option.
            None if may_be_name && at + 1 < rest.len() => {}
            None => return None,
        }
    }
    Some(option)
}

fn is_named(option: &ConfigOption) -> bool {
    matches!(option.value_type(), ValueType::Named(_) | ValueType::TableOrNamed(_))
}

/// Longer names resemble no option.
const NAME_MAX: usize = 128;

/// Returns the path that `name` probably misspells: a whole path, or a path with a last key like it.
fn find_similar(name: &str, entries: &[OptionEntry]) -> Option<String> {
    let paths: Vec<String> = entries.iter().map(OptionEntry::path).collect();
    let last = name.rsplit('.').next().unwrap_or(name);
    if name.len() > NAME_MAX {
        return None;
    }
    let key = find_closest(last, entries.iter().map(|entry| entry.option.name));
    let with_key: Vec<&str> = match key {
        Some(key) => {
            let ends = |path: &&String| path.rsplit('.').next() == Some(key);
            paths.iter().filter(ends).map(String::as_str).collect()
        }
        None => Vec::new(),
    };
    // An option of a section is meant rather than those of tables within sections.
    let outermost = || with_key.iter().copied().min_by_key(|path| path.matches('.').count());
    let near = find_closest(name, with_key.iter().copied()).or_else(outermost);
    near.or_else(|| find_closest(name, paths.iter().map(String::as_str))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_every_spelling() {
        for (text, path) in [
            ("limit.burst", "limit.burst"),
            ("burst", "limit.burst"),
            ("limit-burst", "limit.burst"),
            ("#limit-burst", "limit.burst"),
            ("[limit.NAME] burst", "limit.burst"),
            ("limit.per-ip.burst", "limit.burst"),
            ("limit.overrides.burst", "limit.overrides.burst"),
            ("upstream", "upstream"),
            ("[[route]]", "route"),
            ("limit.rate", "limit.rate"),
            ("server.spans.to", "server.spans.to"),
            ("spans.to", "server.spans.to"),
            ("limit.refuse.status", "route.refuse.status"),
            ("response_headers.remove", "route.response_headers.remove"),
            ("route.response_headers.remove", "route.response_headers.remove"),
            ("jwt.issuer", "jwt.issuer"),
            ("jwt.staff.issuer", "jwt.issuer"),
        ] {
            let FoundOption::One(entry) = find_option(text) else { panic!("{text}: {:?}", find_option(text)) };
            assert_eq!(entry.path(), path, "{text}");
        }
        let FoundOption::Several(found) = find_option("max_body") else { panic!("max_body") };
        assert_eq!(found.iter().map(OptionEntry::path).collect::<Vec<_>>(), ["server.max_body", "route.max_body"]);
        for (text, similar) in [
            ("limit.brust", Some("limit.burst")),
            ("brust", Some("limit.burst")),
            ("server.max_conections", Some("server.max_connections")),
            ("", None),
            ("...", None),
            ("\u{202e}\u{1b}[31m", None),
            ("qqqqqqqqqqqq", None),
        ] {
            let FoundOption::Unknown(found) = find_option(text) else { panic!("{text}") };
            assert_eq!(found.as_deref(), similar, "{text}");
        }
        let long = "limit.".repeat(100_000);
        assert!(matches!(find_option(&long), FoundOption::Unknown(None)));
    }

    #[test]
    fn every_entry_is_found_by_its_path_and_anchor() {
        for entry in list_entries() {
            for name in [entry.path(), entry.anchor()] {
                let FoundOption::One(found) = find_option(&name) else { panic!("{name}") };
                assert_eq!(found.path(), entry.path(), "{name}");
            }
        }
    }
}
