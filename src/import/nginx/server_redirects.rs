//! Translates a `rewrite` of a server, which comes before its locations, to a route.

use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::nginx::captures::{CapturedRedirect, JOINED, read_captured_redirect};
use crate::import::nginx::conditions::{PrefixRewrite, PrefixTarget, read_prefix_rewrite};
use crate::import::nginx::headers::translate_added_headers;
use crate::import::nginx::nesting::has_location_below;
use crate::import::nginx::scope::Scope;
use crate::import::paths::{Location, LocationMatcher};
use crate::import::syntax::{Directive, shorten};
use crate::text::quote_literal;

/// Translates a `rewrite` of a server that redirects: from one prefix to another, or by the groups of its expression.
/// Returns `None` for any other one.
pub fn translate_server_redirect(
    server: &Directive,
    at: &Directive,
    scope: &Scope,
    out: &mut ImportedConfig,
) -> Option<Location> {
    let origin = shorten(&format!("{}:{}: rewrite {}", at.file, at.line, at.arg(0)));
    // Several expressions are tried in their order.
    let is_only = server.inner().iter().filter(|at| at.name == "rewrite").count() == 1;
    let prefix = read_prefix_rewrite(at).filter(|rewrite| is_only && !has_location_below(server, rewrite.prefix));
    let (matcher, redirect, line, differs) = match prefix {
        Some(PrefixRewrite { prefix, target: PrefixTarget::Redirect(redirect) }) => {
            let matcher = LocationMatcher::Prefix { path: prefix.to_owned(), first: true };
            let strip = quote_literal(prefix.trim_end_matches('/'));
            (matcher, redirect, Some(format!("rewrite = {{ strip_prefix = {strip} }}")), false)
        }
        _ => {
            let CapturedRedirect { redirect, path, joins_queries } = read_captured_redirect(at)?;
            let matcher = LocationMatcher::Server { pattern: at.arg(0).to_owned(), ignore_case: false };
            let line = path.map(|path| format!("rewrite = {{ path = {} }}", quote_literal(&path)));
            (matcher, redirect, line, joins_queries)
        }
    };
    let mut body = RouteBody::new(origin, RouteAction::Redirect(redirect));
    if differs {
        body.add_remark(out.remarks.add(at, JOINED));
    }
    body.lines.extend(line);
    translate_added_headers(scope, out, &mut body);
    Some(Location { matcher, body })
}

/// Closes only the paths of a `rewrite` below one prefix whose condition is not available.
pub fn close_prefix(server: &Directive, condition: &Directive, out: &mut ImportedConfig) -> Option<Location> {
    let [at] = condition.inner() else { return None };
    if server.inner().iter().any(|at| at.name == "rewrite") {
        return None;
    }
    let rewrite = read_prefix_rewrite(at).filter(|rewrite| !has_location_below(server, rewrite.prefix))?;
    let origin = shorten(&format!("{}:{}: rewrite {}", at.file, at.line, rewrite.prefix));
    let mut body = RouteBody::with_status(origin, 501);
    body.close(out.remarks.add(condition, "this condition is not available, so the paths of its `rewrite` are closed"));
    Some(Location { matcher: LocationMatcher::Prefix { path: rewrite.prefix.to_owned(), first: true }, body })
}
