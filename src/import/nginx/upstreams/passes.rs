//! Translates `proxy_pass` with its path, and finds what `proxy_redirect` maps.

use std::collections::HashSet;

use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::nginx::captures::translate_captures;
use crate::import::nginx::scope::Scope;
use crate::import::nginx::upstreams::{PassTarget, UpstreamBlocks, define_target, is_down};
use crate::import::paths::LocationMatcher;
use crate::import::syntax::Directive;
use crate::text::quote_literal;

/// Translates the `proxy_pass` of a location. Returns its target, and the rewrite to the path that nginx would send.
pub fn translate_pass(
    at: &Directive,
    matcher: &LocationMatcher,
    blocks: &UpstreamBlocks,
    scope: &Scope,
    out: &mut ImportedConfig,
    body: &mut RouteBody,
) -> Option<(PassTarget, Option<String>)> {
    let captured = split_captured_path(at, matcher);
    let pass = captured.as_ref().map_or(at, |(pass, _)| pass);
    let authority = pass.arg(0).split_once("://").map_or(pass.arg(0), |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    if let Some((_, block)) = blocks.iter().find(|(name, block)| name.eq_ignore_ascii_case(authority) && is_down(block))
    {
        body.add_remark(out.remarks.add(block, "all its servers are down, so its routes answer 502, as in nginx"));
        body.action = RouteAction::Respond { status: 502, body: None, content_type: None, location: None };
        return None;
    }
    let target = match define_target(pass, blocks, scope, out) {
        Ok(target) => target,
        Err(why) => {
            let number = out.remarks.add(at, &why);
            body.close(number);
            return None;
        }
    };
    body.action = RouteAction::Upstream(target.upstream.clone());
    if let Some((_, path)) = captured {
        return Some((target, Some(format!("path = {}", quote_literal(&path)))));
    }
    let Some(path) = target.path.as_deref() else { return Some((target, None)) };
    if target.is_fixed {
        if !is_plain_path(path) {
            let number = out.remarks.add(at, "with variables, nginx sends this path for every request; a route cannot");
            body.close(number);
            return None;
        }
        body.add_remark(out.remarks.add(at, "with variables, nginx sends no query to this path; Sluicegate sends it"));
        let path = format!("path = {}", quote_literal(path));
        return Some((target, Some(path)));
    }
    match translate_rewrite(matcher, path) {
        Ok(rewrite) => {
            if let Some(why) = rewrite.differs {
                body.add_remark(out.remarks.add(at, why));
            }
            let parts = [("strip_prefix", rewrite.strip), ("add_prefix", rewrite.add)];
            let parts = parts.iter().filter(|(_, path)| !path.is_empty());
            let parts: Vec<String> = parts.map(|(name, path)| format!("{name} = {}", quote_literal(path))).collect();
            Some((target, (!parts.is_empty()).then(|| parts.join(", "))))
        }
        Err(why) => {
            let number = out.remarks.add(at, why);
            body.close(number);
            None
        }
    }
}

/// Splits `proxy_pass http://app/$1$is_args$args` of a location with groups: a directive without the path, and the path of
/// `rewrite`. Returns `None` for any other one.
fn split_captured_path(at: &Directive, matcher: &LocationMatcher) -> Option<(Directive, String)> {
    let LocationMatcher::Regex { pattern, ignore_case } = matcher else { return None };
    let text = at.arg(0);
    let start = text.find("://")? + 3;
    let (authority, path) = text.split_at(start + text[start..].find('/')?);
    // Without them, nginx sends no query.
    let path = ["$is_args$args", "?$args", "?$query_string"].iter().find_map(|query| path.strip_suffix(query))?;
    let path = translate_captures(path, pattern, *ignore_case).filter(|path| path.contains('{'))?;
    let pass = Directive { args: vec![authority.to_owned()], is_expanded: true, ..at.clone() };
    (!authority.contains('$')).then_some((pass, path))
}

/// How the `Location` headers of a server start, and how they start for the client.
pub type RedirectPairs = Vec<(String, String)>;

/// Finds how nginx maps `Location` headers in a location: by its own `proxy_redirect`, or like the location around it,
/// or by a `proxy_redirect` of the server, or by its own `proxy_pass`. `inherited`: what the location around has. Returns
/// `None` if there is nothing of that, so that locations inside go by their own `proxy_pass`. `remark` gets each
/// directive that is left out.
pub fn find_redirects(
    block: &[Directive],
    matcher: &LocationMatcher,
    scope: &Scope,
    inherited: Option<&RedirectPairs>,
    mut remark: impl FnMut(&Directive),
) -> Option<RedirectPairs> {
    let pass = block.iter().find(|directive| directive.name == "proxy_pass");
    let by_pass = pass.and_then(|pass| map_by_pass(pass, matcher));
    let has_own = block.iter().any(|directive| directive.name == "proxy_redirect");
    if let Some(inherited) = inherited.filter(|_| !has_own) {
        return Some(inherited.clone());
    }
    let directives = scope.list("proxy_redirect");
    if directives.is_empty() {
        return by_pass.map(|pair| vec![pair]);
    }
    let mut pairs = RedirectPairs::new();
    for directive in directives {
        match directive.args.as_slice() {
            [word] if word == "off" => {
                pairs.clear();
                break;
            }
            [word] if word == "default" => pairs.extend(by_pass.clone()),
            [from, to] if is_start(from) && is_start(to) => pairs.push((from.clone(), to.clone())),
            _ => remark(directive),
        }
    }
    let mut earlier = HashSet::new();
    pairs.retain(|(from, _)| earlier.insert(from.clone()));
    Some(pairs)
}

/// Returns how nginx rewrites `Location` headers by default because of a `proxy_pass`.
fn map_by_pass(at: &Directive, matcher: &LocationMatcher) -> Option<(String, String)> {
    let text = at.arg(0);
    // nginx does not know the server before the request.
    if at.is_expanded || text.contains('$') {
        return None;
    }
    match (has_path(text), matcher) {
        (false, _) => Some((format!("{text}/"), "/".to_owned())),
        (true, LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. }) => {
            Some((text.to_owned(), path.clone()))
        }
        (true, _) => None,
    }
}

/// Returns whether the URL of a `proxy_pass` has a path.
fn has_path(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.strip_prefix("unix:").map_or_else(|| rest.contains('/'), |socket| socket.contains(':'))
}

/// Returns whether a text can be the start of a `Location`.
fn is_start(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('~')
        && !text.contains('$')
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns whether a path has only characters that nginx and a route read alike.
fn is_plain_path(text: &str) -> bool {
    text.starts_with('/')
        && !text.contains("//")
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte))
}

/// The prefixes that a route strips from a path and adds to it.
#[derive(Debug, Default, PartialEq)]
struct PathRewrite {
    strip: String,
    add: String,
    /// The reason why nginx sends another path for some requests.
    differs: Option<&'static str>,
}

/// Translates the path of a `proxy_pass`, which replaces the text of the location. The error says why a route cannot do
/// that.
fn translate_rewrite(matcher: &LocationMatcher, uri: &str) -> Result<PathRewrite, &'static str> {
    let (path, exact) = match matcher {
        LocationMatcher::Exact(path) => (path.as_str(), true),
        LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => (path.as_str(), false),
        LocationMatcher::Regex { .. } | LocationMatcher::Server { .. } => {
            return Err("`proxy_pass` cannot have a path if the location is a regular expression");
        }
    };
    if path == uri {
        return Ok(PathRewrite::default());
    }
    if !is_plain_path(uri) || !is_plain_path(path) {
        return Err("a rewrite between these two paths is not available");
    }
    // The last segments that both paths share stay.
    let (mut strip, mut add) = (path.trim_end_matches('/'), uri.trim_end_matches('/'));
    let mut has_common_end = path.ends_with('/') && uri.ends_with('/');
    while path.ends_with('/') == uri.ends_with('/')
        && let (Some((before, last)), Some((added, same))) = (strip.rsplit_once('/'), add.rsplit_once('/'))
        && last == same
    {
        (strip, add, has_common_end) = (before, added, true);
    }
    let differs = match () {
        () if has_common_end => None,
        () if exact && uri.ends_with('/') => None,
        () if exact => return Err("a route cannot replace its whole path; only prefixes are rewritten"),
        () if uri == "/" => Some("nginx sends two slashes at the start of the path, Sluicegate one"),
        () if path.ends_with('/') != uri.ends_with('/') => {
            return Err(
                "one of the two paths ends with a slash and the other does not, so nginx joins them without one",
            );
        }
        () => Some("for the path itself, and for paths that continue without a slash, nginx sends another path"),
    };
    Ok(PathRewrite { strip: strip.to_owned(), add: add.to_owned(), differs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_rewritten_as_nginx_joins_them() {
        let prefix = |path: &str| LocationMatcher::Prefix { path: path.to_owned(), first: false };
        let exact = |path: &str| LocationMatcher::Exact(path.to_owned());
        let found = |matcher, uri| {
            translate_rewrite(&matcher, uri).map(|rewrite| (rewrite.strip, rewrite.add, rewrite.differs.is_some()))
        };
        let pair = |strip: &str, add: &str, differs| Ok((strip.to_owned(), add.to_owned(), differs));
        assert_eq!(found(prefix("/v1/"), "/v2/"), pair("/v1", "/v2", false));
        assert_eq!(found(prefix("/v1/"), "/"), pair("/v1", "", false));
        assert_eq!(found(prefix("/"), "/base/"), pair("", "/base", false));
        assert_eq!(found(prefix("/api"), "/app/api"), pair("", "/app", false));
        assert_eq!(found(prefix("/api"), "/"), pair("/api", "", true));
        assert_eq!(found(exact("/a/x"), "/b/x"), pair("/a", "/b", false));
        assert_eq!(found(exact("/a"), "/b/"), pair("/a", "/b", false));
        assert!(found(exact("/a"), "/b").is_err());
        assert!(found(prefix("/"), "/base").is_err());
        assert!(found(prefix("/v1/"), "/v2").is_err());
        assert!(found(LocationMatcher::Regex { pattern: "x".to_owned(), ignore_case: false }, "/v2").is_err());
    }
}
