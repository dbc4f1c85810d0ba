//! The directives in effect in a block, including those that it inherits from the blocks around it.

use std::collections::HashMap;

use crate::import::model::ImportedConfig;
use crate::import::nginx::directives::{find_row, is_protection};
use crate::import::syntax::Directive;

/// The directives in effect in one block.
#[derive(Clone, Default)]
pub struct Scope<'a> {
    /// Directives that a block may contain several times. A single one replaces the entire inherited list.
    lists: HashMap<&'a str, Vec<&'a Directive>>,
    /// Directives with one value. The innermost block that has one decides.
    single: HashMap<&'a str, &'a Directive>,
}

impl<'a> Scope<'a> {
    /// Returns the scope of a block inside this one.
    pub fn enter_block(&self, block: &'a [Directive]) -> Scope<'a> {
        let mut scope = self.clone();
        scope.single.retain(|name, _| find_row(name).is_some_and(|row| row.is_inherited()));
        let mut own: HashMap<&str, Vec<&Directive>> = HashMap::new();
        // Only files that nginx itself serves need this file.
        let is_mime_types = |at: &Directive| at.name == "include" && at.arg(0).ends_with("mime.types");
        for directive in block.iter().filter(|directive| !is_mime_types(directive)) {
            let Some(row) = find_row(&directive.name) else { continue };
            if row.is_list {
                // `allow` and `deny` share a list.
                let name = if directive.name == "deny" { "allow" } else { &directive.name };
                own.entry(name).or_default().push(directive);
            } else {
                // The inner one of `root` and `alias` counts.
                let name = if directive.name == "alias" { "root" } else { &directive.name };
                scope.single.insert(name, directive);
            }
        }
        scope.lists.extend(own);
        scope
    }

    /// Returns the directives of a list in effect.
    pub fn list(&self, name: &str) -> &[&'a Directive] {
        self.lists.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the directive in effect, if any.
    pub fn get(&self, name: &str) -> Option<&'a Directive> {
        self.single.get(name).copied()
    }

    /// Returns true if the directive in effect has the value `on`.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|directive| directive.arg(0) == "on")
    }

    /// Adds comments on the directives in effect that may decide which clients are served, and cannot be translated.
    /// Returns the number of the first: a route without them must be closed.
    pub fn find_closing(&self, out: &mut ImportedConfig) -> Option<usize> {
        let mut directives: Vec<&Directive> = self.single.values().copied().filter(|at| is_protection(at)).collect();
        directives.sort_by_key(|directive| (&directive.file, directive.line, &directive.name));
        let close = |directive: &Directive| {
            let note = find_row(&directive.name).map_or("", |row| row.note);
            let note = if directive.name == "include" { "this file does not exist" } else { note };
            out.remarks.add(directive, &format!("{note}; until then, its routes are closed"))
        };
        directives.into_iter().map(close).collect::<Vec<_>>().first().copied()
    }
}

/// Returns true for directives of the rewrite module that change what a block does, and that a route cannot have.
pub fn is_rewriting(directive: &Directive) -> bool {
    match directive.name.as_str() {
        "if" => !directive.inner().iter().all(|inner| inner.name == "set" && !sets_request(inner)),
        name => name == "rewrite" || sets_request(directive),
    }
}

/// Returns whether a `set` changes what variables say about the request, such as `$args`.
pub fn sets_request(directive: &Directive) -> bool {
    matches!(directive.name.as_str(), "set" | "auth_request_set") && is_of_request(directive.arg(0))
}

/// Returns whether a variable describes the request. In nginx, a directive such as `set` can give it another value.
pub fn is_of_request(variable: &str) -> bool {
    let name = variable.trim_start_matches('$').to_ascii_lowercase();
    name == "args" || ["http_", "arg_", "cookie_"].iter().any(|start| name.starts_with(start))
}

/// Returns true for a `return` that redirects, such as `return 301 URL`.
pub fn is_redirect(directive: &Directive) -> bool {
    directive.name == "return" && matches!(directive.arg(0), "301" | "302" | "303" | "307" | "308")
}

/// Returns the words of a condition without its parentheses and without empty words.
pub fn read_words(condition: &Directive) -> Vec<String> {
    let mut words = condition.args.clone();
    if let Some(first) = words.first_mut().filter(|word| word.starts_with('(')) {
        first.remove(0);
    }
    if let Some(last) = words.last_mut().filter(|word| word.ends_with(')')) {
        last.pop();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_without_parentheses() {
        for args in
            [&["($host", "=", "a.test)"][..], &["(", "$host", "=", "a.test", ")"], &["($host", "=", "a.test", ")"]]
        {
            assert_eq!(read_words(&Directive::written("if", args)), ["$host", "=", "a.test"]);
        }
    }
}
