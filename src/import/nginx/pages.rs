//! Translates `error_page` and `proxy_intercept_errors` to `error_pages` and `intercept`, where the pages are files.

use std::path::Path;

use crate::import::model::{ImportedConfig, RouteBody};
use crate::import::nginx::directives::is_protection;
use crate::import::nginx::scope::Scope;
use crate::import::paths::LocationMatcher;
use crate::import::syntax::Directive;
use crate::text::quote_literal;

/// How error pages differ.
const ACCEPTED: &str = "clients that accept the type of the page get it, as browsers do; others get a problem document, where \
                        nginx sends the page to all; headers of a server whose response is replaced stay";

/// Adds the error pages of a block to its route. `site`: the directives of the server, with the scope `outer`.
pub fn translate_error_pages(
    scope: &Scope,
    site: &[Directive],
    outer: &Scope,
    out: &mut ImportedConfig,
    body: &mut RouteBody,
) {
    let mut pages: Vec<(u16, String)> = Vec::new();
    for directive in scope.list("error_page") {
        match read_page(directive, site, outer) {
            Ok((statuses, file)) => {
                body.add_remark(out.remarks.add(directive, ACCEPTED));
                for status in statuses {
                    // As in nginx, the first page of a status counts.
                    if !pages.iter().any(|(known, _)| *known == status) {
                        pages.push((status, file.clone()));
                    }
                }
            }
            Err(why) => body.add_remark(out.remarks.add(directive, why)),
        }
    }
    if pages.is_empty() {
        return;
    }
    let pages: Vec<String> = pages.iter().map(|(status, file)| format!("{status} = {}", quote_literal(file))).collect();
    body.lines.push(format!("error_pages = {{ {} }}", pages.join(", ")));
    if scope.is_on("proxy_intercept_errors") {
        body.lines.push("intercept = true".to_owned());
    }
}

/// Adds comments on the error pages of a status that the route itself sends, as such a response has no page.
pub fn note_lost_pages(scope: &Scope, status: u16, out: &mut ImportedConfig, body: &mut RouteBody) {
    let status = status.to_string();
    for directive in scope.list("error_page").iter().filter(|at| at.args.contains(&status)) {
        let why =
            "left out where a route itself sends the status: such a response has no page; write `body` of `respond`";
        body.add_remark(out.remarks.add(directive, why));
    }
}

/// Returns whether a location only has a file that is the page of a translated `error_page` of the server.
pub fn has_page_at(matcher: &LocationMatcher, site: &[Directive], outer: &Scope) -> bool {
    let leads_here = |uri: &str| match matcher {
        LocationMatcher::Exact(path) => uri == path,
        LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => uri.starts_with(path.as_str()),
        LocationMatcher::Regex { .. } | LocationMatcher::Server { .. } => false,
    };
    let is_page =
        |at: &&Directive| at.args.last().is_some_and(|uri| leads_here(uri)) && read_page(at, site, outer).is_ok();
    let in_locations = site.iter().filter(|at| at.name == "location").flat_map(Directive::inner);
    outer
        .list("error_page")
        .iter()
        .copied()
        .chain(in_locations.filter(|at| at.name == "error_page"))
        .any(|at| is_page(&at))
}

/// Returns the statuses of an `error_page` and its file, or why it is left out.
fn read_page(at: &Directive, site: &[Directive], outer: &Scope) -> Result<(Vec<u16>, String), &'static str> {
    let Some((uri, statuses)) = at.args.split_last() else { return Err("this has no page, so it is left out") };
    if statuses.iter().any(|status| status.starts_with('=')) {
        return Err("an error page keeps the status of its error in Sluicegate, so this is left out");
    }
    if !uri.starts_with('/') {
        return Err("only a file can be an error page, so this is left out; see `error_pages`");
    }
    let parse = |status: &String| status.parse::<u16>().ok().filter(|status| (400..=599).contains(status));
    let Some(statuses) = statuses.iter().map(parse).collect::<Option<Vec<u16>>>() else {
        return Err("only statuses from 400 to 599 can have a page, so this is left out");
    };
    let missing =
        "the import cannot find a file for this page, so it is left out; write error_pages = { STATUS = \"FILE\" }";
    let file = find_file(uri, site, outer).ok_or(missing)?;
    let path = Path::new(&file);
    let is_page = path.extension().is_some_and(|kind| ["html", "htm", "json", "txt"].iter().any(|own| kind == *own));
    match path.is_absolute() && path.is_file() {
        true if is_page => Ok((statuses, file)),
        true => Err("an error page is a file with the extension html, json or txt, so this is left out"),
        false => Err(missing),
    }
}

/// Returns the path of the file that nginx sends for a URI. Returns `None` if anything but a file answers it.
fn find_file(uri: &str, site: &[Directive], outer: &Scope) -> Option<String> {
    if uri.contains(['$', '?', '%']) || uri.split('/').any(|part| part == "..") {
        return None;
    }
    let locations = || site.iter().filter(|directive| directive.name == "location");
    let prefix = |location: &Directive| match location.args.as_slice() {
        [path] => Some(path.clone()).filter(|path| path.starts_with('/')),
        [kind, path] if kind == "^~" => Some(path.clone()),
        _ => None,
    };
    let exact = locations().find(|location| location.arg(0) == "=" && location.arg(1) == uri);
    if exact.is_none() && locations().any(|location| location.arg(0).starts_with('~')) {
        return None;
    }
    let longest = || {
        let matching = locations().filter(|location| prefix(location).is_some_and(|path| uri.starts_with(&path)));
        matching.max_by_key(|location| prefix(location).map(|path| path.len()))
    };
    let root = outer.get("root").map(|root| root.arg(0));
    // nginx checks the client again before it sends the page.
    let has_rules = |block: &[Directive]| block.iter().any(|at| matches!(at.name.as_str(), "allow" | "deny"));
    let location = exact.or_else(longest);
    if location.is_some_and(|location| has_rules(location.inner())) || !outer.list("allow").is_empty() {
        return None;
    }
    let Some(location) = location else { return root.map(|root| join_root(root, uri)) };
    let is_answered = |directive: &Directive| {
        matches!(directive.name.as_str(), "proxy_pass" | "grpc_pass" | "return" | "rewrite" | "if" | "location")
            || is_protection(directive) && directive.name != "alias"
    };
    if location.inner().iter().any(is_answered) {
        return None;
    }
    let own =
        |name: &str| location.inner().iter().find(|directive| directive.name == name).map(|directive| directive.arg(0));
    match (own("alias"), own("root").or(root)) {
        (Some(alias), _) if exact.is_some() => Some(alias.to_owned()),
        (Some(alias), _) => Some(format!("{alias}{}", uri.strip_prefix(&prefix(location)?)?)),
        (None, root) => root.map(|root| join_root(root, uri)),
    }
}

fn join_root(root: &str, uri: &str) -> String {
    format!("{}{uri}", root.trim_end_matches('/'))
}
