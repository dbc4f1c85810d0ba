//! Splits a location whose directives depend on a method or on a header: each case becomes a route with a condition.

use crate::import::nginx::conditions::guards::read_refusal;
use crate::import::nginx::limits::entries::MapEntry;
use crate::import::nginx::limits::keys::{Variables, find_header, find_variables, read_header_name};
use crate::import::nginx::scope::{is_redirect, read_words};
use crate::import::syntax::Directive;
use crate::import::text::{format_array, format_cookie_pattern};
use crate::received_headers::{Visibility, find_visibility};
use crate::text::quote_literal;

/// The most routes that one location becomes.
const VARIANTS_MAX: usize = 16;
/// The entry of a `map` for values that are not empty.
const ANY: &str = "~.";

/// The directives of a location for some of its requests.
pub struct Variant {
    /// The line of the condition. `None` for all other requests.
    pub condition: Option<String>,
    pub block: Vec<Directive>,
    /// The block of the `if` that answers. Its directives count before those of the location.
    pub inner: Option<Directive>,
}

/// Splits a location. The last variant is for the requests that no other one takes.
pub fn split_location(block: &[Directive], variables: &Variables) -> Vec<Variant> {
    let mut by_method = Vec::new();
    let mut rest = block.to_vec();
    // The `if` beside a `limit_except` does not apply to the methods that this one is about.
    let has_exception = block.iter().any(|directive| directive.name == "limit_except");
    while let Some((at, condition)) =
        find_method(&rest, variables).filter(|_| !has_exception && by_method.len() < VARIANTS_MAX)
    {
        let inner = rest.remove(at);
        by_method.push((at, condition, inner));
    }
    let variant = |(at, condition, inner): (usize, String, Directive)| {
        let is_answer = inner.inner().iter().any(|directive| directive.name == "return");
        let block = match is_answer {
            // Conditions before it refuse first. `internal` is about all requests.
            true => {
                let refusals = rest[..at].iter().filter(|one| one.name == "if");
                let internal = rest.iter().filter(|one| one.name == "internal");
                refusals.chain(internal).chain(inner.inner()).cloned().collect()
            }
            false => copy_own(&rest),
        };
        Variant { condition: Some(condition), block, inner: Some(inner) }
    };
    let mut variants: Vec<Variant> = by_method.into_iter().map(variant).collect();
    match split_pass(&rest, variables) {
        Some(by_header) => variants.extend(by_header),
        None => variants.push(Variant { condition: None, block: rest, inner: None }),
    }
    variants
}

/// Copies the directives of a location without the locations inside of it.
fn copy_own(block: &[Directive]) -> Vec<Directive> {
    block.iter().filter(|directive| directive.name != "location").cloned().collect()
}

/// Finds an `if` that answers the requests of one method, or adds headers to their responses. Only conditions that refuse
/// may come before it.
fn find_method(block: &[Directive], variables: &Variables) -> Option<(usize, String)> {
    let is_step = |directive: &Directive| matches!(directive.name.as_str(), "if" | "rewrite" | "return" | "break");
    for (at, directive) in block.iter().enumerate().filter(|(_, directive)| is_step(directive)) {
        if read_refusal(directive, variables).is_some() {
            continue;
        }
        let words = read_words(directive);
        let ["$request_method", "=", method] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
            return None;
        };
        let (last, headers) = directive.inner().split_last()?;
        let is_header = |directive: &Directive| directive.name == "add_header";
        // Of what answers there, only `proxy_pass` is inherited by an `if`.
        let has_pass = block.iter().any(|other| other.name == "proxy_pass");
        let is_end = last.name == "return" || is_header(last) && has_pass;
        let is_whole = is_end && headers.iter().all(is_header);
        let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        return (directive.name == "if" && is_whole && is_method)
            .then(|| (at, format!("methods = {}", format_array(&[method]))));
    }
    None
}

/// Splits a location whose `proxy_pass` reads a `map` of a method, a host, a header or a cookie.
fn split_pass(block: &[Directive], variables: &Variables) -> Option<Vec<Variant>> {
    let url = block.iter().find(|directive| directive.name == "proxy_pass")?.arg(0);
    let names = find_variables(url);
    let known: Vec<(&str, &Directive)> =
        names.iter().filter_map(|name| variables.blocks.get(name.as_str()).map(|map| (name.as_str(), *map))).collect();
    let [(name, map)] = known.as_slice() else { return None };
    // The name of another variable may begin with this one.
    if names.iter().any(|other| other != name && other.starts_with(name)) {
        return None;
    }
    let replace = |value: &str| {
        let mut block = copy_own(block);
        for pass in block.iter_mut().filter(|directive| directive.name == "proxy_pass") {
            pass.args = vec![url.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)];
            pass.is_expanded = true;
        }
        block
    };
    let cases = read_cases(map)?;
    let variant =
        |(condition, value): (Option<String>, &str)| Variant { condition, block: replace(value), inner: None };
    Some(cases.into_iter().map(variant).collect())
}

/// Reads the cases of a `map` in nginx's order: texts, then expressions. The last one has no condition.
fn read_cases(map: &Directive) -> Option<Vec<(Option<String>, &str)>> {
    let source = map.arg(0).strip_prefix('$').filter(|_| map.name == "map" && map.args.len() == 2)?;
    let (mut default, mut empty) = ("", None);
    let (mut texts, mut expressions) = (Vec::new(), Vec::new());
    for line in map.inner() {
        let [value] = line.args.as_slice() else { return None };
        if !find_variables(value).is_empty() {
            return None;
        }
        match line.name.as_str() {
            "default" => default = value.as_str(),
            "" => empty = Some(value.as_str()),
            text if text.starts_with('~') => expressions.push((text, value.as_str())),
            text => texts.push((text, value.as_str())),
        }
    }
    texts.extend(expressions);
    if texts.len() > VARIANTS_MAX {
        return None;
    }
    let mut cases = Vec::new();
    for (text, value) in texts {
        cases.push((Some(format_condition(source, text, value)?), value));
    }
    if let Some(empty) = empty.filter(|empty| *empty != default) {
        // Values that are not empty and have no entry.
        cases.push((Some(format_condition(source, ANY, default)?), default));
        default = empty;
    }
    cases.push((None, default));
    Some(cases)
}

/// Formats the condition of a route on one value of a variable.
fn format_condition(source: &str, text: &str, value: &str) -> Option<String> {
    if source == "request_method" {
        let entry = MapEntry::translate(("method", ""), text, value).ok()?;
        return entry.pattern.strip_prefix("= ").map(|method| format!("methods = {}", format_array(&[method])));
    }
    let (header, pattern) = match source.strip_prefix("cookie_") {
        Some(name) => ("cookie".to_owned(), format_cookie(name, text)?),
        None if source == "host" => ("host".to_owned(), format_host(text)?),
        None => {
            let name = find_header(source)?;
            let entry = MapEntry::translate(("header", &name), text, value).ok()?;
            if entry.matches_empty() {
                return None;
            }
            (name, entry.pattern)
        }
    };
    Some(format!("header = {{ {} = {} }}", quote_literal(&header), quote_literal(&pattern)))
}

/// A server's `if` on a header that redirects.
pub struct HeaderRedirect<'a> {
    /// The line of the condition.
    pub condition: String,
    pub response: &'a Directive,
    /// The gateway sees the header only if a trusted proxy sent it.
    pub needs_trust: bool,
}

/// Reads an `if` of a server such as `if ($http_x_forwarded_proto = http) { return 301 ...; }`.
pub fn read_header_redirect(at: &Directive) -> Option<HeaderRedirect<'_>> {
    let [response] = at.inner() else { return None };
    let words = read_words(at);
    let [variable, sign, text] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] else { return None };
    let pattern = match sign {
        "=" => format!("~^{}$", regex::escape(text)),
        "~" | "~*" => format!("{sign}{text}"),
        _ => return None,
    };
    if at.name != "if" || !is_redirect(response) || sign == "=" && !find_variables(text).is_empty() {
        return None;
    }
    let name = read_header_name(variable.strip_prefix('$')?)?;
    let needs_trust = match find_visibility(&name) {
        Visibility::AsSent => false,
        Visibility::FromTrustedPeers => true,
        _ => return None,
    };
    let entry = MapEntry::translate(("header", &name), &pattern, "").ok().filter(|entry| !entry.matches_empty())?;
    let condition = format!("header = {{ {} = {} }}", quote_literal(&name), quote_literal(&entry.pattern));
    Some(HeaderRedirect { condition, response, needs_trust })
}

/// Formats the pattern of a `Cookie` header with one value of a cookie.
fn format_cookie(name: &str, text: &str) -> Option<String> {
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let value = match text {
        ANY => "[^;]".to_owned(),
        text if is_plain(text) => format!("{}(?:;|$)", regex::escape(text)),
        _ => return None,
    };
    is_plain(name).then(|| format!("~i {}", format_cookie_pattern(name, &value)))
}

/// Formats the pattern of a `Host` header with this host and any port.
fn format_host(text: &str) -> Option<String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    (is_name && !text.is_empty()).then(|| format!("~i ^{}\\.?(?::[0-9]*)?$", regex::escape(text)))
}
