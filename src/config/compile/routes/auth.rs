//! `auth` of a route: the method by which clients prove their identity, and its limits. Called by `routes`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderName;

use crate::auth::user_table::{LineFault, UserTable};
use crate::auth::{AuthMethod, PasswordAuth, RouteAuth, TokenAuth};
use crate::config::compile::limits::list::compile_limit_list;
use crate::config::compile::routes::RouteContext;
use crate::config::compile::routes::forward_auth::compile_forward_auth;
use crate::config::compile::routes::identity_header::parse_identity_header;
use crate::config::compile::upstreams::Upstreams;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::source::PrivateFile;
use crate::config::tree::{Node, Value};
use crate::config::unreadable::UnreadableKind;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::limit::Limit;
use crate::limiting::source::SourceOrigin;
use crate::names::parse_input_name;

const METHODS: [&str; 3] =
    [route::auth::BASIC.option.name, route::auth::JWT.option.name, route::auth::FORWARD.option.name];
const METHOD_HELP: &str = "write auth = { basic = \"users.htpasswd\" } for passwords, auth = { jwt = \"NAME\" } for \
                           tokens that [jwt.NAME] verifies, or auth = { forward = \"URL\" } for an auth server";
const REALM_MAX: usize = 128;

/// `auth` with the limits that it lists.
pub struct CompiledAuth {
    pub auth: RouteAuth,
    pub limits: Vec<Arc<Limit>>,
}

/// Compiles `auth`. The outer `None` means that it is wrong.
pub fn compile_auth(
    route: &Section,
    context: &RouteContext,
    upstreams: &mut Upstreams,
    route_name: &str,
) -> Option<Option<CompiledAuth>> {
    if route.node(&route::AUTH).is_none() {
        return Some(None);
    }
    let section = route.read_section(&route::AUTH)?;
    let method = compile_method(&section, context, upstreams);
    let limits = compile_limit_list(&section, context.limits, context.companions)
        .filter(|limits| check_auth_limits(&section, limits));
    let realm = match section.node(&route::auth::REALM) {
        Some(_) => section.parse_string(&route::auth::REALM, parse_realm),
        None => Some(default_realm(route_name)),
    };
    let user_header = match section.node(&route::auth::USER_HEADER) {
        Some(_) => section.parse_string(&route::auth::USER_HEADER, parse_user_header),
        None => Some(Some(HeaderName::from_static(route::auth::USER_HEADER.default_str()))),
    };
    let forwards_credentials = section.read(&route::auth::FORWARD_CREDENTIALS);
    if let (Some(AuthMethod::Basic(_)), Some([])) = (&method, limits.as_deref()) {
        warn_of_unlimited_guesses(&section);
    }
    section.report_unread_keys();
    let (method, limits) = (method?, limits?);
    let forwards_credentials = forwards_credentials.unwrap_or(match method {
        AuthMethod::Basic(_) => false,
        AuthMethod::Jwt(_) | AuthMethod::Forward(_) => true,
    });
    // An auth server states the identity in `copy_headers`.
    let user_header = user_header.map(|name| name.filter(|_| !matches!(method, AuthMethod::Forward(_))));
    let auth =
        RouteAuth { method, limit_count: limits.len(), realm: realm?, user_header: user_header?, forwards_credentials };
    Some(Some(CompiledAuth { auth, limits }))
}

/// Warns of passwords that clients can guess without a limit.
fn warn_of_unlimited_guesses(section: &Section) {
    if let Some(node) = section.node(&route::auth::BASIC) {
        let what = "no limit bounds how many passwords a client can try";
        let help = "add a limit with key = \"ip\" and charge_on = [401], and list it in `limits` of `auth`, on every \
                    route with this file";
        section
            .sources
            .add_warning(DiagnosticCode::UnlimitedGuesses, Diagnostic::new(node.place, what).with_help(help));
    }
}

fn compile_method(section: &Section, context: &RouteContext, upstreams: &mut Upstreams) -> Option<AuthMethod> {
    let entries = &section.written_table().entries;
    let mut methods = entries.iter().filter(|entry| METHODS.contains(&entry.key.as_str()));
    let (first, second) = (methods.next(), methods.next());
    let password = compile_password_auth(section, context);
    let token = compile_token_auth(section, context);
    let forward = compile_forward_auth(section, upstreams);
    match (first, second) {
        (None, _) => section.report_missing("`auth` has no method", METHOD_HELP),
        (Some(first), Some(second)) => {
            let what = format!("the route already authenticates with `{}`", first.key);
            section.report_fault_at(&second.key, second.place, &what, "keep one of the two")
        }
        (Some(first), None) if first.key == route::auth::FORWARD.name => forward.map(AuthMethod::Forward),
        (Some(_), None) => password.map(AuthMethod::Basic).or(token.map(AuthMethod::Jwt)),
    }
}

fn compile_password_auth(section: &Section, context: &RouteContext) -> Option<PasswordAuth> {
    let max_age = section.get(&route::auth::CACHE);
    if let (Some(node), None) = (section.node(&route::auth::CACHE), section.node(&route::auth::BASIC)) {
        section.report_fault::<()>(
            route::auth::CACHE.name,
            node,
            "only passwords are cached",
            "use it together with `basic`, or remove it",
        );
    }
    let path = section.read_string(&route::auth::BASIC)?;
    let node = section.node(&route::auth::BASIC)?;
    let path = section.sources.resolve_path(node.place.file, &path);
    let users = context.users.get_or_read(&path, |path| read_users(section, node, path))?;
    Some(PasswordAuth { users, max_age })
}

/// Reads an htpasswd file, and watches it. Its lines are never shown, because they contain hashes.
fn read_users(section: &Section, node: &Node, path: &Path) -> Option<Arc<UserTable>> {
    let path_text = path.display();
    section.sources.add_private_file(path, PrivateFile::Passwords);
    let text = match section.sources.read_file(path) {
        Ok(text) => text,
        Err(error) => {
            let help = match error.kind {
                UnreadableKind::Missing => {
                    "create it: htpasswd -cB FILE USER; or correct its path (relative to this file)"
                }
                UnreadableKind::Directory | UnreadableKind::Content | UnreadableKind::Other => error.help(),
            };
            return section.report_fault(
                route::auth::BASIC.name,
                node,
                &format!("cannot read `{path_text}`: {error}"),
                help,
            );
        }
    };
    match UserTable::parse(&text) {
        Ok(table) => {
            if table.is_empty() {
                let message = format!("`{path_text}` contains no user, so nobody can use the route");
                let help = "add one: htpasswd -B FILE USER";
                section
                    .sources
                    .add_warning(DiagnosticCode::NoUsers, Diagnostic::new(node.place, message).with_help(help));
            }
            Some(Arc::new(table))
        }
        Err(faults) => {
            for LineFault { line, what, help } in faults {
                section.report_fault::<()>(
                    route::auth::BASIC.name,
                    node,
                    &format!("{path_text}:{line}: {what}"),
                    &help,
                );
            }
            None
        }
    }
}

/// The htpasswd files that were read, so that routes with the same file share its users.
#[derive(Default)]
pub struct UserFiles(RefCell<HashMap<PathBuf, Option<Arc<UserTable>>>>);

impl UserFiles {
    /// Returns the users in a file. Calls `read` only for the first route that names it.
    fn get_or_read(&self, path: &Path, read: impl FnOnce(&Path) -> Option<Arc<UserTable>>) -> Option<Arc<UserTable>> {
        if let Some(known) = self.0.borrow().get(path) {
            return known.clone();
        }
        let users = read(path);
        self.0.borrow_mut().insert(path.to_owned(), users.clone());
        users
    }
}

fn compile_token_auth(section: &Section, context: &RouteContext) -> Option<TokenAuth> {
    let claim = section.parse_at(&route::auth::USER_CLAIM, |text| parse_input_name(text, "claim"));
    let node = section.node(&route::auth::JWT);
    if let (Some(claim), None) = (&claim, node) {
        let what = "only tokens have claims";
        section.report_fault_at::<()>(
            route::auth::USER_CLAIM.name,
            claim.place,
            what,
            "use it together with `jwt`, or remove it",
        );
    }
    let node = node?;
    let verifier = match &node.value {
        Value::Bool(true) => match context.jwt.default.clone() {
            Some(verifier) => verifier,
            None if context.jwt.is_default_broken => return None,
            None => {
                let help = "add [jwt] with an `issuer`, or write jwt = \"NAME\" and add [jwt.NAME]";
                return section.report_fault(
                    route::auth::JWT.name,
                    node,
                    "there is no [jwt] section to verify tokens with",
                    help,
                );
            }
        },
        Value::String(text) => context.jwt.named.find(section.sources, node.place, &text.value)?,
        _ => {
            return section.report_wrong_type(
                route::auth::JWT.name,
                "the name of a [jwt.NAME], or true for [jwt]",
                node,
            );
        }
    };
    let user_claim = match (claim, section.node(&route::auth::USER_CLAIM)) {
        (Some(claim), _) => claim.value,
        (None, Some(_)) => return None,
        (None, None) => "sub".to_owned(),
    };
    Some(TokenAuth { verifier, user_claim })
}

/// Reports limits that read what is known only after the authentication.
fn check_auth_limits(section: &Section, limits: &[Arc<Limit>]) -> bool {
    let node = section.node(&route::auth::LIMITS);
    let fault = |limit: &Limit| {
        limit.sources().find_map(|source| match source.kind().origin() {
            SourceOrigin::Identity | SourceOrigin::Token => {
                Some(format!("`{}` reads {}, which is known only after the authentication", limit.name, source))
            }
            SourceOrigin::Body => {
                Some(format!("`{}` reads {}, but the body is read only after the authentication", limit.name, source))
            }
            _ => None,
        })
    };
    let faults = limits.iter().filter_map(|limit| fault(limit));
    let report = |node: &Node, what: &str| {
        let help = "give `auth` a limit with a key like \"ip\", and this one to the `limits` of the route";
        section.report_fault::<()>(route::auth::LIMITS.name, node, what, help);
    };
    faults.fold(true, |_, what| {
        node.iter().for_each(|node| report(node, &what));
        false
    })
}

/// Returns the name of the route as realm, without characters that a quoted string cannot contain.
fn default_realm(route_name: &str) -> String {
    let realm: String = route_name.chars().filter(|char| is_realm_char(*char)).collect();
    if realm.is_empty() { "restricted".to_owned() } else { realm }
}

fn is_realm_char(char: char) -> bool {
    matches!(char, ' '..='~') && char != '"' && char != '\\'
}

fn parse_realm(text: &str) -> Result<String, TextFault> {
    if text.is_empty() || text.len() > REALM_MAX || !text.chars().all(is_realm_char) {
        let help = format!("write 1 to {REALM_MAX} printable ASCII characters without quotes and backslashes");
        return invalid_text(format!("`{text}` cannot be a realm"), help);
    }
    Ok(text.to_owned())
}

/// Parses the name of the header with the identity; `None` for `off`.
fn parse_user_header(text: &str) -> Result<Option<HeaderName>, TextFault> {
    if text == "off" {
        return Ok(None);
    }
    parse_identity_header(text).map(Some)
}
