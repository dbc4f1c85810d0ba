//! Reads the `rewrite` of a location: a redirect, or another path for the server.

use crate::import::model::ImportedRedirect;
use crate::import::nginx::captures::{CapturedRedirect, read_captured_redirect, translate_captures};
use crate::import::nginx::conditions::{PrefixRewrite, PrefixTarget, read_prefix_rewrite, read_segment_rewrite};
use crate::import::paths::LocationMatcher;
use crate::import::syntax::Directive;
use crate::text::quote_literal;

/// What the only `rewrite` of a location does.
pub enum LocationRewrite {
    /// A redirect, and the option of `rewrite` that makes its `{path}`.
    Redirect(ImportedRedirect, Option<String>),
    /// The options of `rewrite`, and why nginx sends another path for some requests.
    Forward(Vec<String>, Option<&'static str>),
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
        if let Some(CapturedRedirect { redirect, path }) = read_captured_redirect(at) {
            let path = path.map(|path| format!("path = {}", quote_literal(&path)));
            return Some(LocationRewrite::Redirect(redirect, path));
        }
        let path = translate_captures(at.arg(1), pattern, false).filter(|_| at.arg(2) == "break" && !has_path)?;
        return Some(LocationRewrite::Forward(vec![format!("path = {}", quote_literal(&path))], None));
    }
    let (LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. }) = matcher else { return None };
    if let Some((strip, add, ends)) = read_segment_rewrite(at, path) {
        return replace_prefix(strip, add, ends.then_some(NO_SLASH));
    }
    let PrefixRewrite { prefix, target } = read_prefix_rewrite(at).filter(|found| path.starts_with(found.prefix))?;
    let strip = prefix.trim_end_matches('/');
    match target {
        PrefixTarget::Redirect(redirect) => {
            Some(LocationRewrite::Redirect(redirect, Some(format!("strip_prefix = {}", quote_literal(strip)))))
        }
        PrefixTarget::Forward(add) => replace_prefix(strip, add.trim_end_matches('/'), None),
    }
}
