//! The table of nginx's directives: where nginx accepts each one, and what the import does with it. The import and the
//! manual page read this table, and nothing else lists directives.
//!
//! - `core`, `access`, `proxy`: the rows, grouped as in the manual.
//!
//! To add a directive, add its row. `translated` needs code that reads the directive; the other three verdicts are
//! carried out by `review` and by `Scope::find_closing`.

mod access;
mod core;
mod proxy;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::OnceLock;

use crate::import::syntax::Directive;
use crate::import::verdict::Translation;

/// One directive of nginx.
#[derive(Debug)]
pub struct DirectiveRow {
    /// A `*` at the end matches any suffix.
    pub name: &'static str,
    /// The blocks that may contain the directive: `M`ain, `H`TTP, `S`erver, `L`ocation, `U`pstream, `limit_except` (`X`),
    /// and `if` in a location (`i`) or a server (`I`).
    contexts: &'static str,
    pub verdict: Translation,
    /// The reason, or the part that is not translated.
    pub note: &'static str,
    /// Values that have no effect.
    defaults: &'static [&'static str],
    /// A block may contain the directive several times. One of them replaces the inherited list.
    pub is_list: bool,
}

const fn row(name: &'static str, contexts: &'static str, verdict: Translation, note: &'static str) -> DirectiveRow {
    DirectiveRow { name, contexts, verdict, note, defaults: &[], is_list: false }
}

const fn translated(name: &'static str, contexts: &'static str, note: &'static str) -> DirectiveRow {
    row(name, contexts, Translation::Translated, note)
}

const fn no_effect(name: &'static str, contexts: &'static str, note: &'static str) -> DirectiveRow {
    row(name, contexts, Translation::NoEffect, note)
}

const fn differs(name: &'static str, contexts: &'static str, note: &'static str) -> DirectiveRow {
    row(name, contexts, Translation::Differs, note)
}

const fn protects(name: &'static str, contexts: &'static str, note: &'static str) -> DirectiveRow {
    row(name, contexts, Translation::Protects, note)
}

impl DirectiveRow {
    /// Returns a row for which these values have no effect.
    const fn unless(self, defaults: &'static [&'static str]) -> DirectiveRow {
        DirectiveRow { defaults, ..self }
    }

    const fn listed(self) -> DirectiveRow {
        DirectiveRow { is_list: true, ..self }
    }

    /// Returns whether nginx accepts the directive in one of these blocks.
    pub fn is_allowed_in(&self, contexts: &str) -> bool {
        contexts.chars().any(|context| self.contexts.contains(context))
    }

    /// Returns whether blocks inside of the one with the directive inherit it.
    pub fn is_inherited(&self) -> bool {
        self.is_allowed_in("HS")
    }

    /// Returns whether the value of a directive has an effect.
    pub fn has_effect(&self, directive: &Directive) -> bool {
        directive.args.len() != 1 || !self.defaults.contains(&directive.arg(0))
    }
}

fn groups() -> impl Iterator<Item = &'static (&'static str, &'static [DirectiveRow])> {
    core::GROUPS.iter().chain(&access::GROUPS).chain(&proxy::GROUPS)
}

/// Finds the row of a directive.
pub fn find_row(name: &str) -> Option<&'static DirectiveRow> {
    static ROWS: OnceLock<HashMap<&str, &DirectiveRow>> = OnceLock::new();
    static PREFIXES: OnceLock<Vec<(&str, &DirectiveRow)>> = OnceLock::new();
    let all = || groups().flat_map(|(_, rows)| rows.iter());
    let rows = ROWS.get_or_init(|| all().map(|row| (row.name, row)).collect());
    let prefixes = PREFIXES.get_or_init(|| all().filter_map(|row| Some((row.name.strip_suffix('*')?, row))).collect());
    let by_prefix = || prefixes.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, row)| *row);
    rows.get(name).copied().or_else(by_prefix)
}

/// Returns whether a directive may decide which clients are served, and is not translated.
pub fn is_protection(directive: &Directive) -> bool {
    find_row(&directive.name).is_some_and(|row| row.verdict == Translation::Protects && row.has_effect(directive))
}

/// Writes the table for the manual, in Markdown.
pub fn write_table() -> String {
    let mut text = String::new();
    for (title, rows) in groups() {
        let _ = write!(text, "\n**{title}**\n\n| directive | result | remark |\n|---|---|---|\n");
        let mut rest = *rows;
        while let Some(first) = rest.first() {
            let is_same = |row: &&DirectiveRow| {
                (row.verdict, row.note, row.defaults) == (first.verdict, first.note, first.defaults)
            };
            let count = rest.iter().take_while(is_same).count();
            let names: Vec<String> = rest[..count].iter().map(|row| format!("`{}`", row.name)).collect();
            let except: Vec<String> = first.defaults.iter().map(|value| format!("`{value}`")).collect();
            let except = match except.is_empty() {
                true => String::new(),
                false => format!(", except with {}", except.join(" or ")),
            };
            let _ = writeln!(text, "| {} | {}{except} | {} |", names.join(", "), first.verdict.label(), first.note);
            rest = &rest[count..];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_contexts_known() {
        let mut names = std::collections::HashSet::new();
        for row in groups().flat_map(|(_, rows)| rows.iter()) {
            assert!(names.insert(row.name), "{} occurs twice", row.name);
            assert!(row.contexts.chars().all(|context| "MHSLUXiI".contains(context)), "{}", row.name);
            assert!(
                matches!(row.verdict, Translation::Translated | Translation::NoEffect) || !row.note.is_empty(),
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn longer_names_are_found_by_their_prefix() {
        let verdict = |name| find_row(name).map(|row| row.verdict);
        assert_eq!(verdict("proxy_cache"), Some(Translation::Differs));
        assert_eq!(verdict("proxy_cache_valid"), Some(Translation::NoEffect));
        assert_eq!(verdict("auth_basic"), Some(Translation::Translated));
        assert_eq!(verdict("auth_ldap"), Some(Translation::Protects));
        assert_eq!(verdict("access_by_lua_block"), Some(Translation::Protects));
        assert_eq!(verdict("strange"), None);
    }
}
