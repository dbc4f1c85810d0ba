//! Reads the `rewrite` of a location: a redirect, or another path for the server.

use crate::import::model::ImportedRedirect;
use crate::import::nginx::captures::{CapturedRedirect, JOINED, read_captured_redirect, translate_captures};
use crate::import::nginx::conditions::{PrefixRewrite, PrefixTarget, read_prefix_rewrite, read_segment_rewrite};
use crate::import::paths::LocationMatcher;
use crate::import::syntax::Directive;
use crate::text::quote_literal;

/// What the only `rewrite` of a location does.
pub enum LocationRewrite {
    Redirect(LocationRedirect),
    /// The options of `rewrite`, and why nginx sends another path for some requests.
    Forward(Vec<String>, Option<&'static str>),
}

/// How a redirect such as `rewrite ^/old(.*)$ /new/$1` differs.
const DOUBLE: &str = "nginx writes two slashes before what follows the prefix, Sluicegate one";

/// A redirect of all requests of a location.
pub struct LocationRedirect {
    pub redirect: ImportedRedirect,
    /// The option of `rewrite` that makes its `{path}`.
    pub option: Option<String>,
    /// The expression with the groups of that option, which all paths of the location match.
    pub pattern: Option<String>,
    /// Why nginx redirects elsewhere for some requests.
    pub differs: Option<&'static str>,
}

impl LocationRedirect {
    fn by_groups(CapturedRedirect { redirect, path, joins_queries }: CapturedRedirect) -> LocationRedirect {
        let option = path.map(|path| format!("path = {}", quote_literal(&path)));
        LocationRedirect { redirect, option, pattern: None, differs: joins_queries.then_some(JOINED) }
    }
}

/// Reads the only `rewrite` of a location, if it applies to all its requests.
pub fn read_location_rewrite(
    at: &Directive,
    block: &[Directive],
    matcher: &LocationMatcher,
) -> Option<LocationRewrite> {
    const NO_SLASH: &str =
        "for the path itself, and for paths that continue without a slash, nginx sends no valid request";
    // The path of `proxy_pass` would replace a path that is already rewritten.
    let has_path = |pass: &Directive| pass.arg(0).split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    let has_path = block.iter().any(|at| at.name == "proxy_pass" && has_path(at));
    let replace_prefix = |strip: &str, add: &str, differs| {
        let options = [("strip_prefix", strip), ("add_prefix", add)].into_iter().filter(|(_, path)| !path.is_empty());
        let options = options.map(|(name, path)| format!("{name} = {}", quote_literal(path))).collect();
        (!has_path).then_some(LocationRewrite::Forward(options, differs))
    };
    if let LocationMatcher::Regex { pattern, ignore_case: false } = matcher {
        // The groups of the location are those of the `rewrite`.
        if at.arg(0) != pattern {
            return None;
        }
        if let Some(found) = read_captured_redirect(at) {
            return Some(LocationRewrite::Redirect(LocationRedirect::by_groups(found)));
        }
        let path = translate_captures(at.arg(1), pattern, false).filter(|_| at.arg(2) == "break" && !has_path)?;
        return Some(LocationRewrite::Forward(vec![format!("path = {}", quote_literal(&path))], None));
    }
    let (LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. }) = matcher else { return None };
    if let Some((strip, add, ends)) = read_segment_rewrite(at, path) {
        return replace_prefix(strip, add, ends.then_some(NO_SLASH));
    }
    let Some(PrefixRewrite { prefix, target }) = read_prefix_rewrite(at).filter(|found| path.starts_with(found.prefix))
    else {
        let pattern = at.arg(0);
        let is_prefix = matches!(matcher, LocationMatcher::Prefix { .. });
        let found = read_captured_redirect(at).filter(|_| is_prefix && matches_below(pattern, path))?;
        // Only an expression has groups. What follows the prefix begins with a slash.
        let pattern = found.path.as_ref().map(|_| pattern.to_owned());
        let is_double = pattern.as_ref().is_some_and(|pattern| !pattern.contains("/(.*)")) && at.arg(1).contains("/$1");
        let redirect = LocationRedirect { pattern, ..LocationRedirect::by_groups(found) };
        let differs = is_double.then_some(DOUBLE).or(redirect.differs);
        return Some(LocationRewrite::Redirect(LocationRedirect { differs, ..redirect }));
    };
    let strip = prefix.trim_end_matches('/');
    match target {
        PrefixTarget::Redirect(redirect) => {
            let option = Some(format!("strip_prefix = {}", quote_literal(strip)));
            Some(LocationRewrite::Redirect(LocationRedirect { redirect, option, pattern: None, differs: None }))
        }
        PrefixTarget::Forward(add) => replace_prefix(strip, add.trim_end_matches('/'), None),
    }
}

/// Returns whether an expression such as `^/old(.*)$` matches all paths that start with `path`.
fn matches_below(pattern: &str, path: &str) -> bool {
    let literal = pattern.strip_prefix('^').map(|rest| rest.strip_suffix('$').unwrap_or(rest));
    let literal = literal.and_then(|rest| rest.strip_suffix("(.*)"));
    literal.is_some_and(|literal| {
        path.starts_with(literal) && literal.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/".contains(&byte))
    })
}
