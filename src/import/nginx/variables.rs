//! Replaces variables that `set` gives a constant value, such as `set $app web; proxy_pass http://$app:3000`. In nginx, the
//! names of variables have no case, so all are written in lower case first.

use std::collections::{HashMap, HashSet};

use crate::import::nginx::limits::keys::find_variables;
use crate::import::syntax::Directive;

/// The constant variables of a block by name. A variable that may have several values is `None`.
type Constants = HashMap<String, Option<String>>;

/// Directives in which constant variables are replaced.
const READERS: [&str; 12] = [
    "proxy_pass",
    "grpc_pass",
    "proxy_set_header",
    "grpc_set_header",
    "add_header",
    "return",
    "proxy_ssl_name",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "grpc_ssl_name",
    "grpc_ssl_certificate",
    "grpc_ssl_certificate_key",
];
/// Directives that give variables a value, other than `set`, `map` and `geo`.
const SETTERS: [&str; 7] = ["auth_request_set", "split_clients", "perl_set", "js_set", "js_var", "keyval", "geoip2"];
/// Variables that name a part of the request. Limits and servers may read it by the name as it is written.
const NAMING: [&str; 2] = ["arg_", "cookie_"];
/// The longest value of a variable.
const VALUE_MAX: usize = 4096;

/// Writes the names of all variables in lower case.
pub fn lower_names(directives: &mut [Directive]) {
    for directive in directives {
        for arg in &mut directive.args {
            *arg = lower_names_in(arg);
        }
        lower_names(directive.block.as_deref_mut().unwrap_or_default());
    }
}

fn lower_names_in(text: &str) -> String {
    let mut pieces = text.split('$');
    let mut output = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let start = usize::from(piece.starts_with('{'));
        let end = piece[start..]
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map_or(piece.len(), |length| start + length);
        let name = piece[start..end].to_ascii_lowercase();
        let kept = NAMING.iter().find(|naming| name.starts_with(**naming)).map_or(name.len(), |naming| naming.len());
        output.push('$');
        output.push_str(&piece[..start]);
        output.push_str(&name[..kept]);
        output.push_str(&piece[start + kept..]);
    }
    output
}

/// Lists the variables that a directive or a named group of an expression sets, in this block and those inside of it.
pub fn list_changed_variables(block: &[Directive]) -> Vec<&str> {
    let mut names = list_given_values(block, &["set"]);
    names.extend(list_given_values(block, &SETTERS));
    names.extend(list_groups(block));
    names
}

/// Lists the variables that one of `setters` gives a value.
fn list_given_values<'d>(block: &'d [Directive], setters: &[&str]) -> Vec<&'d str> {
    let mut names = Vec::new();
    for directive in block {
        if setters.contains(&directive.name.as_str()) {
            names.extend(directive.args.iter().filter_map(|arg| arg.strip_prefix('$')));
        }
        names.extend(list_given_values(directive.inner(), setters));
    }
    names
}

/// Lists the variables of named groups, and those of the rows of `geoip2`.
fn list_groups(block: &[Directive]) -> Vec<&str> {
    let mut names = Vec::new();
    for directive in block {
        names.extend(directive.name.strip_prefix('$'));
        let texts = directive.args.iter().chain([&directive.name]);
        names.extend(texts.flat_map(|text| list_named_groups(text)));
        names.extend(list_groups(directive.inner()));
    }
    names
}

/// Lists the names of the groups of a regular expression: `(?<name>`, `(?P<name>` or `(?'name'`.
fn list_named_groups(text: &str) -> impl Iterator<Item = &str> {
    let groups = text.split("(?").skip(1);
    groups.filter_map(|group| {
        let group = group.strip_prefix('P').unwrap_or(group);
        let name = group.strip_prefix(['<', '\''])?;
        name.split_once(['>', '\'']).map(|(name, _)| name)
    })
}

/// Replaces the constant variables in all servers of these directives. A variable that something other than `set` also
/// gives a value, such as the group of an expression, has no constant one.
pub fn replace_constants(directives: &mut [Directive]) {
    let others = list_given_values(directives, &SETTERS).into_iter().chain(list_groups(directives));
    let others: HashSet<String> = others.map(str::to_ascii_lowercase).collect();
    replace_in_servers(directives, &others);
}

fn replace_in_servers(directives: &mut [Directive], others: &HashSet<String>) {
    for directive in directives {
        match (directive.name.as_str(), &mut directive.block) {
            ("server", Some(block)) => replace_in_block(block, &Constants::new(), true, others),
            ("http", Some(block)) => replace_in_servers(block, others),
            _ => {}
        }
    }
}

/// Replaces variables in a server or a location. As in nginx, a location does not run the `set` of the one around it.
/// `others`: variables that have other values, too.
fn replace_in_block(block: &mut [Directive], server: &Constants, is_server: bool, others: &HashSet<String>) {
    let mut own = server.clone();
    // A `rewrite` may end the processing, so that the `set` after it has no effect.
    let mut may_have_ended = false;
    for directive in block.iter() {
        match directive.name.as_str() {
            "return" => break,
            "rewrite" | "break" => may_have_ended = true,
            "set" => {
                let value = directive.arg(1);
                let value = match find_variables(value).is_empty() {
                    true => Some(value.to_owned()),
                    false => replace_variables(value, &own).filter(|value| find_variables(value).is_empty()),
                };
                let value = value.filter(|value| value.len() <= VALUE_MAX);
                let name = variable_name(directive);
                let is_known = !others.contains(name) && (!may_have_ended || own.get(name) == Some(&value));
                own.insert(name.to_owned(), value.filter(|_| is_known));
            }
            "if" => {
                for inner in directive.inner().iter().filter(|inner| inner.name == "set") {
                    own.insert(variable_name(inner).to_owned(), None);
                }
            }
            _ => {}
        }
    }
    for directive in block.iter_mut() {
        let name = directive.name.clone();
        if READERS.contains(&name.as_str()) {
            for arg in &mut directive.args {
                if let Some(text) = replace_variables(arg, &own) {
                    *arg = text;
                    directive.is_expanded = true;
                }
            }
        }
        if let (true, Some(inner)) = (matches!(name.as_str(), "location" | "if"), &mut directive.block) {
            replace_in_block(inner, if is_server || name == "if" { &own } else { server }, false, others);
        }
    }
}

fn variable_name(set: &Directive) -> &str {
    set.arg(0).trim_start_matches('$')
}

/// Replaces the constant variables of a text. Returns `None` if it has none.
fn replace_variables(text: &str, constants: &Constants) -> Option<String> {
    let mut output = String::new();
    let mut has_constant = false;
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        output.push_str(before);
        let is_braced = after.get(1..2) == Some("{");
        let name_at = if is_braced { 2 } else { 1 };
        let name = &after[name_at.min(after.len())..];
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        let closing = usize::from(is_braced && name[end..].starts_with('}'));
        match constants.get(&name[..end]) {
            Some(Some(value)) if !is_braced || closing == 1 => {
                output.push_str(value);
                has_constant = true;
            }
            _ => output.push_str(&after[..name_at.min(after.len()) + end + closing]),
        }
        rest = &name[end + closing..];
    }
    output.push_str(rest);
    (has_constant && output.len() <= VALUE_MAX).then_some(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_variables_have_no_case() {
        for (text, expected) in [
            ("http://$App:80/A", "http://$app:80/A"),
            ("${App}X$HOST", "${app}X$host"),
            ("$HTTP_X_A", "$http_x_a"),
            ("$Arg_Token$COOKIE_Sid", "$arg_Token$cookie_Sid"),
            ("^/A$", "^/A$"),
            ("(A$|B)", "(A$|B)"),
            ("$", "$"),
            ("${A", "${a"),
            ("A$é", "A$é"),
        ] {
            assert_eq!(lower_names_in(text), expected, "{text}");
        }
    }

    #[test]
    fn constants_are_replaced_and_other_variables_stay() {
        let constants: Constants = [("a".to_owned(), Some("web".to_owned())), ("b".to_owned(), None)].into();
        for (text, expected) in [
            ("http://$a:80", Some("http://web:80")),
            ("${a}x$host", Some("webx$host")),
            ("$b", None),
            ("$ab", None),
            ("$", None),
            ("${a", None),
            ("$a$", Some("web$")),
        ] {
            assert_eq!(replace_variables(text, &constants).as_deref(), expected, "{text}");
        }
    }
}
