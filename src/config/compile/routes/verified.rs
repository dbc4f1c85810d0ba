//! What the gateway verifies of clients: whether requests may have claims or a user, and headers and fields of the
//! access log whose value no request can have.

use crate::auth::{AuthMethod, RouteAuth};
use crate::config::ServerSettings;
use crate::config::compile::context::LimitContext;
use crate::config::compile::routes::RouteContext;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::{route, server};
use crate::limiting::source::Source;
use crate::route::HeaderEdit;
use crate::route::client_facts::ClientFact;

/// Returns whether requests of a route may have verified claims.
pub fn has_token(auth: Option<&RouteAuth>, context: &RouteContext) -> bool {
    context.jwt.default.is_some()
        || context.jwt.is_default_broken
        || auth.is_some_and(|auth| matches!(auth.method, AuthMethod::Jwt(_)))
}

/// Returns whether `auth` may find out who the user is.
pub fn has_user(auth: Option<&RouteAuth>) -> bool {
    auth.is_some_and(|auth| !matches!(&auth.method, AuthMethod::Forward(rule) if rule.user.is_none()))
}

/// Warns of headers whose value no request has, because nothing verifies what they state.
pub fn warn_of_unverified(section: &Section, edit: &HeaderEdit, auth: Option<&RouteAuth>, context: &RouteContext) {
    let Some(node) = section.node(&route::REQUEST_HEADERS) else { return };
    let verifies = (has_user(auth), has_token(auth, context));
    for (name, text) in &edit.stated {
        let reason = text.placeholders().find_map(|fact| why_never_known(fact, verifies, context.keys));
        let Some(reason) = reason else { continue };
        let what = format!("no request has a value for the header `{name}`: {reason}");
        let warning = Diagnostic::new(node.place, what).with_help("the gateway removes the header from all requests");
        section.sources.add_warning(DiagnosticCode::NeverStated, warning);
    }
}

/// Warns of fields of the access log that never have a value, because nothing in the config verifies it.
pub fn warn_of_unlogged(section: &Section, server: &ServerSettings, keys: &LimitContext) {
    let (Some(node), Some(log)) = (section.node(&server::ACCESS_LOG), &server.access_log) else { return };
    for (name, fact) in log.facts.iter().zip(&server.log_facts) {
        let Some(reason) = why_never_known(fact, (true, keys.has_jwt), keys) else { continue };
        let warning = Diagnostic::new(node.place, format!("no line has a value for the field `{name}`: {reason}"))
            .with_help("leave out the field, or add what verifies its value");
        section.sources.add_warning(DiagnosticCode::NeverStated, warning);
    }
}

/// Returns why no request has a value for a fact. `verifies`: whether users and claims are verified.
fn why_never_known(fact: &ClientFact, verifies: (bool, bool), keys: &LimitContext) -> Option<&'static str> {
    let (has_user, has_token) = verifies;
    match fact {
        ClientFact::Source(Source::User) if !has_user => Some("the route has no `auth` that finds a user"),
        ClientFact::Source(Source::Country) if !keys.has_geo => Some("there is no [geo]"),
        claim if claim.is_claim() && !has_token => Some("nothing verifies tokens: there is no [jwt]"),
        ClientFact::Certificate(_) | ClientFact::Source(Source::Tls(_)) if !keys.requests_client_certs => {
            Some("no listener has a `client_ca`")
        }
        _ => None,
    }
}
