//! What the gateway verifies of the clients of a route: whether requests may have claims or a user, and headers whose
//! value no request can have.

use crate::auth::{AuthMethod, RouteAuth};
use crate::config::compile::routes::RouteContext;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::limiting::source::{Source, SourceOrigin};
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
    for (name, text) in &edit.stated {
        let reason = text.placeholders().find_map(|fact| match fact {
            ClientFact::Source(Source::User) if !has_user(auth) => Some("the route has no `auth` that finds a user"),
            ClientFact::Source(Source::Country) if !context.keys.has_geo => Some("there is no [geo]"),
            ClientFact::Source(source)
                if source.kind().origin() == SourceOrigin::Token && !has_token(auth, context) =>
            {
                Some("nothing verifies the tokens of this route: there is no [jwt]")
            }
            ClientFact::Certificate(_) | ClientFact::Source(Source::Tls(_)) if !context.keys.requests_client_certs => {
                Some("no listener has a `client_ca`")
            }
            _ => None,
        });
        let Some(reason) = reason else { continue };
        let what = format!("no request has a value for the header `{name}`: {reason}");
        let warning = Diagnostic::new(node.place, what).with_help("the gateway removes the header from all requests");
        section.sources.add_warning(DiagnosticCode::NeverStated, warning);
    }
}
