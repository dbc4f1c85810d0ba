//! Warns about limits and upstreams that no route names: with a forgotten `limits = [...]`, nothing would be throttled
//! unnoticed. Called by `compile` after everything else succeeded.

use std::collections::HashSet;
use std::sync::Arc;

use crate::auth::AuthMethod;
use crate::config::compile::names::Definitions;
use crate::config::compile::upstreams::Upstreams;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::source::SourceTexts;
use crate::limiting::limit::Limit;
use crate::limiting::limit::over::Over;
use crate::route::Route;

/// Warns about the sections that neither `routes` nor `others`, the routes of `[decide.NAME]` and `[[rls]]`, name.
pub fn warn_unused<'r>(
    sources: &SourceTexts,
    routes: &'r [Route],
    others: impl Iterator<Item = &'r Route>,
    limits: &Definitions<Arc<Limit>>,
    upstreams: &Upstreams,
) {
    let all = routes.iter().chain(others);
    let limits_in_use: HashSet<&str> = all.flat_map(|route| &route.limits).map(|limit| limit.name.as_str()).collect();
    let is_named = |name: &str| limits.get(name).is_none_or(|limit| !limit.is_wider_tier());
    for (name, place) in limits.places().filter(|(name, _)| !limits_in_use.contains(name) && is_named(name)) {
        let help = format!("add limits = [\"{name}\"] to the routes it is for, unless only POST /-/decide uses it");
        let what = format!("no route uses the limit `{name}`, so it throttles nothing");
        sources.add_warning(DiagnosticCode::UnusedLimit, unused_warning(place, what, &help));
    }
    let upstreams_in_use: HashSet<usize> = routes.iter().flat_map(upstreams_of).collect();
    for (name, place) in upstreams.names.places() {
        if upstreams.names.get(name).is_some_and(|index| !upstreams_in_use.contains(&index)) {
            let help = format!("write upstream = \"{name}\" in the routes it is for, or remove it");
            let what = format!("no route uses the upstream `{name}`");
            sources.add_warning(DiagnosticCode::UnusedUpstream, unused_warning(place, what, &help));
        }
    }
}

/// Returns the upstreams of the route: that of its action, its auth servers, that of its copies, and those to which
/// limits divert requests.
fn upstreams_of(route: &Route) -> impl Iterator<Item = usize> {
    let auth = match route.auth.as_ref().map(|auth| &auth.method) {
        Some(AuthMethod::Forward(rule)) => Some(rule.upstream),
        Some(AuthMethod::Basic(_) | AuthMethod::Jwt(_)) | None => None,
    };
    let diversions = route.limits.iter().filter_map(|limit| match &limit.over {
        Over::Divert(diversion) => Some(diversion.index),
        Over::Refuse | Over::Delay | Over::Annotate => None,
    });
    let mirror = route.mirror.as_ref().map(|mirror| mirror.upstream);
    route.upstreams().chain(auth).chain(diversions).chain(mirror)
}

fn unused_warning(place: Place, message: String, help: &str) -> Diagnostic {
    Diagnostic::new(place, message).with_label("not used").with_help(help)
}
