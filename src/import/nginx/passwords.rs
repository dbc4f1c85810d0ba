//! Translates `auth_basic` and `auth_basic_user_file` to `auth = { basic = FILE }`.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::import::model::{ImportedConfig, LIMITS_MAX, RouteBody};
use crate::import::nginx::scope::Scope;
use crate::import::syntax::Directive;
use crate::import::text::format_array;
use crate::text::quote_literal;

/// Maximum number of bytes of a file with passwords.
const BYTES_MAX: u64 = 16 << 20;
/// How the hashes that Sluicegate accepts start.
const HASHES: [&str; 6] = ["$2a$", "$2b$", "$2y$", "$argon2id$", "$5$", "$6$"];

/// The passwords that a block requires.
pub enum PasswordGuard<'a> {
    None,
    /// The file with the passwords, and what browsers show.
    File {
        path: String,
        realm: Option<String>,
    },
    /// The passwords cannot be translated, so the routes must be closed.
    Unavailable {
        at: &'a Directive,
        why: String,
    },
}

/// Reads the passwords that a block requires, its own or inherited ones.
pub fn read_password_guard<'a>(scope: &Scope<'a>, out: &mut ImportedConfig) -> PasswordGuard<'a> {
    let Some(basic) = scope.get("auth_basic").filter(|directive| directive.arg(0) != "off") else {
        return PasswordGuard::None;
    };
    if basic.arg(0).contains('$') {
        let why =
            "with a variable, some requests may need no password, so the routes that it protects are closed".to_owned();
        return PasswordGuard::Unavailable { at: basic, why };
    }
    let Some(file) = scope.get("auth_basic_user_file") else {
        let why = "there is no auth_basic_user_file, so the routes that it protects are closed".to_owned();
        return PasswordGuard::Unavailable { at: basic, why };
    };
    let path = file.resolve_path();
    let fault = out.password_files.entry(path.clone()).or_insert_with(|| find_fault(&path)).clone();
    match (fault, path.to_str()) {
        (None, Some(path)) => {
            let fits = |char: char| matches!(char, ' '..='~') && !"\"\\".contains(char);
            let realm = Some(basic.arg(0)).filter(|text| (1..=128).contains(&text.len()) && text.chars().all(fits));
            if realm.is_none() {
                out.remarks.add(basic, "this realm is not available, so browsers show the default one");
            }
            PasswordGuard::File { path: path.to_owned(), realm: realm.map(str::to_owned) }
        }
        (fault, _) => {
            let fault = fault.unwrap_or_else(|| "the path is not UTF-8".to_owned());
            PasswordGuard::Unavailable { at: file, why: format!("{fault}, so the routes that it protects are closed") }
        }
    }
}

/// Returns why Sluicegate would not accept a file. The text contains no hash.
fn find_fault(path: &Path) -> Option<String> {
    let mut text = String::new();
    let mut read = || File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    if !path.is_file() || read().is_err() {
        return Some("the import cannot read this file".to_owned());
    }
    let is_accepted = |line: &str| {
        let hash = line.split_once(':').map(|(_, hash)| hash).unwrap_or_default();
        HASHES.iter().any(|start| hash.starts_with(start))
    };
    let mut users = HashSet::new();
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.trim().starts_with('#'));
    for (line, number) in lines {
        if !is_accepted(line.trim()) {
            return Some(format!(
                "Sluicegate does not accept the hash in line {number} of the file; make it again with `htpasswd -B`, and \
                 import again"
            ));
        }
        if line.starts_with(char::is_whitespace) || !users.insert(line.split(':').next()) {
            return Some(format!(
                "line {number} of the file begins with a space or repeats a user; correct it, and import again"
            ));
        }
    }
    None
}

/// Adds the passwords to a route. nginx counts requests before it reads passwords, and refuses addresses too. So each
/// limit has a copy that is decided before the password.
pub fn require_passwords(guard: &PasswordGuard, scope: &Scope, out: &mut ImportedConfig, body: &mut RouteBody) {
    let PasswordGuard::File { path, realm } = guard else { return };
    let mut parts = vec![format!("basic = {}", quote_literal(path))];
    parts.extend(realm.as_ref().map(|realm| format!("realm = {}", quote_literal(realm))));
    parts.push("user_header = \"off\"".to_owned());
    let copies: Vec<String> = body.limits.iter().filter_map(|name| out.copy_limit(name, "passwords")).collect();
    if copies.len() + body.limits.len() + body.guards.len() > LIMITS_MAX {
        let text = format!("{}: a route and its `auth` have at most {LIMITS_MAX} limits together", body.origin);
        let number = out.remarks.add_text(text);
        body.close(number);
    } else if !copies.is_empty() {
        parts.push(format!("limits = {}", format_array(&copies)));
        let why = "passwords are verified before the limits of a route; limits whose names end in -passwords are copies for \
                   requests whose password is not verified yet, so guesses stay limited";
        body.add_remark(out.remarks.add_text(format!("{}: {why}", body.origin)));
    }
    if !body.guards.is_empty() {
        let why = "passwords are verified before the conditions that refuse requests, so a request may get 401 instead";
        body.add_remark(out.remarks.add_text(format!("{}: {why}", body.origin)));
    }
    let removes = |directive: &&Directive| {
        directive.arg(0).eq_ignore_ascii_case("authorization") && directive.arg(1) != "$http_authorization"
    };
    if !scope.list("proxy_set_header").iter().any(removes) {
        parts.push("forward_credentials = true".to_owned());
    }
    body.lines.push(format!("auth = {{ {} }}", parts.join(", ")));
}
