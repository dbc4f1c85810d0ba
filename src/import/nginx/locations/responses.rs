//! Translates the `return` of a location.

use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::nginx::captures::{CapturedRedirect, translate_captured_target};
use crate::import::nginx::limits::keys::find_variables;
use crate::import::nginx::pages::note_lost_pages;
use crate::import::nginx::redirects::{translate_rewrite, translate_target};
use crate::import::nginx::scope::{Scope, is_redirect};
use crate::import::nginx::types::{find_type, has_extension};
use crate::import::paths::LocationMatcher;
use crate::import::syntax::Directive;
use crate::text::quote_literal;

/// Translates a `return` to the action of a route.
pub fn respond(
    at: &Directive,
    matcher: &LocationMatcher,
    scope: &Scope,
    out: &mut ImportedConfig,
    body: &mut RouteBody,
) {
    if let Some(redirect) = translate_rewrite(at) {
        body.action = RouteAction::Redirect(redirect);
        return;
    }
    let (code, text) = match at.args.as_slice() {
        [url] if url.parse::<u16>().is_err() => ("302", Some(url)),
        [code] => (code.as_str(), None),
        [code, text] => (code.as_str(), Some(text)),
        _ => ("", None),
    };
    let is_url = is_redirect(at) || at.args.len() == 1 && text.is_some();
    // Clients ignore spaces around the value of a header.
    let trimmed = text.map(|text| text.trim_matches(' ').to_owned()).filter(|_| is_url);
    let text = trimmed.as_ref().or(text);
    let status = code.parse::<u16>().ok().filter(|status| (200..=599).contains(status));
    let why = match status {
        None => Some("this status is not available"),
        Some(444) => Some("Sluicegate does not close the connection; it responds with status 444"),
        Some(205) if text.is_some() => Some("a response with this status has no body"),
        _ if is_url && text.is_some_and(|text| text.starts_with("//")) => {
            Some("nginx sends this as a path of its own host")
        }
        Some(status) if is_url && text.is_some_and(|text| !find_variables(text).is_empty()) => {
            match text.and_then(|text| translate_location_target(text, status, matcher)) {
                Some(CapturedRedirect { redirect, path, .. }) => {
                    let path = path.map(|path| format!("rewrite = {{ path = {} }}", quote_literal(&path)));
                    body.lines.extend(path);
                    body.action = RouteAction::Redirect(redirect);
                    return;
                }
                None => Some("these variables are not available here"),
            }
        }
        _ if text.is_some_and(|text| !find_variables(text).is_empty()) => Some("variables are not available here"),
        _ if text.is_some_and(|text| text.chars().any(char::is_control) && is_url) => Some("not a URL"),
        _ => None,
    };
    if let Some(why) = why {
        let number = out.remarks.add(at, why);
        if status == Some(444) { body.add_remark(number) } else { body.close(number) }
    }
    let kind = find_type(scope, matcher);
    // Errors have a page of the gateway.
    let has_empty_body = text.is_none() && status.is_some_and(|status| (200..300).contains(&status) && status != 204);
    if (text.is_some() || has_empty_body) && !is_url && has_extension(matcher) {
        let why = "nginx chooses the type by the extension of the path, the gateway has one for all";
        body.add_remark(out.remarks.add(at, why));
    }
    body.action = RouteAction::Respond {
        status: status.unwrap_or(501),
        body: text.filter(|_| !is_url && !matches!(status, Some(204 | 205 | 304))).cloned(),
        content_type: kind.filter(|_| !is_url && (text.is_some() || has_empty_body)),
        location: text.filter(|_| is_url).cloned(),
    };
    if let RouteAction::Respond { status, body: None, .. } = body.action {
        note_lost_pages(scope, status, out, body);
    }
}

/// Translates the target of `return 301`, also one with groups of the location.
fn translate_location_target(text: &str, status: u16, matcher: &LocationMatcher) -> Option<CapturedRedirect> {
    if let Some(redirect) = translate_target(text, status) {
        return Some(CapturedRedirect { redirect, path: None, joins_queries: false });
    }
    let LocationMatcher::Regex { pattern, ignore_case } = matcher else { return None };
    let with_query = ["$is_args$args", "?$args", "?$query_string"].iter().find_map(|query| text.strip_suffix(query));
    let target = with_query.unwrap_or(text);
    translate_captured_target(target, status, with_query.is_some(), (pattern, *ignore_case))
}
