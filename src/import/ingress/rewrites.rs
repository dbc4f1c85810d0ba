//! Translates `rewrite-target` and `upstream-vhost` to the `rewrite` of a route.

use crate::import::ingress::annotations::Annotations;
use crate::import::model::{ImportedConfig, RouteBody};
use crate::import::nginx::translate_captures;
use crate::text::quote_literal;

/// Returns the regular expression for a path, which ingress-nginx writes in quotes, where nginx reads two backslashes as one.
pub fn format_regex(path: &str, slash: &str) -> String {
    format!("^{path}{slash}").replace("\\\\", "\\")
}

/// Adds the `rewrite` of a route with this path.
pub fn rewrite_path(annotations: &Annotations, path: &str, out: &mut ImportedConfig, body: &mut RouteBody) {
    let mut parts = Vec::new();
    if let Some((target, at)) = annotations.find_target(path) {
        match find_prefix_rewrite(path, target) {
            Some((strip, add)) => {
                let both = [("strip_prefix", strip), ("add_prefix", add)];
                let both = both.iter().filter(|(_, prefix)| !prefix.is_empty());
                parts.extend(both.map(|(key, prefix)| format!("{key} = {}", quote_literal(prefix))));
                if strip.bytes().any(|byte| byte.is_ascii_alphabetic()) {
                    let why = format!("ingress-nginx ignores case; here, only {strip} as it is written is rewritten");
                    body.add_remark(out.remarks.add(at, &why));
                }
            }
            None => match translate_captures(target, &format_regex(path, ""), true) {
                // The groups of the path are those of the route.
                Some(target) => parts.push(format!("path = {}", quote_literal(&target))),
                None => {
                    let why = "this target or this expression is not available, so this route is closed";
                    body.close(out.remarks.add(at, why));
                }
            },
        }
    }
    if let Some((host, at)) = &annotations.upstream_vhost {
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        match !host.is_empty() && host.chars().all(is_host) {
            true => parts.push(format!("host = {}", quote_literal(host))),
            false => body.add_remark(out.remarks.add(at, "the service gets the client's Host instead")),
        }
    }
    body.add_rewrite(&parts);
}

/// Finds the prefixes that a route removes and adds for a path such as `/foo(/|$)(.*)` with the target `/bar/$2`.
fn find_prefix_rewrite<'t>(path: &'t str, target: &'t str) -> Option<(&'t str, &'t str)> {
    let group = |path: &'t str, end: &str, group: &str| {
        Some((path.strip_suffix(end)?, target.strip_suffix(group)?.strip_suffix('/')?))
    };
    let (strip, add) = group(path, "(/|$)(.*)", "$2").or_else(|| group(path, "/(.*)", "$1"))?;
    let is_prefix = |text: &str| {
        text.is_empty()
            || text.starts_with('/')
                && !text.ends_with('/')
                && text.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..")
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
    };
    (is_prefix(strip) && is_prefix(add)).then_some((strip, add))
}
