//! Reads `if` of a server, and `rewrite` from one prefix to another.
//!
//! - `hosts`: conditions on the host, by regular expressions.
//! - `guards`: conditions that refuse requests, and `limit_except`.
//! - `variants`: locations whose requests are treated differently by method, header or cookie.

pub mod guards;
pub mod hosts;
pub mod variants;

use crate::import::model::ImportedRedirect;
use crate::import::nginx::redirects::{is_response, translate_target};
use crate::import::nginx::scope::{read_words, sets_request};
use crate::import::syntax::Directive;

/// The meaning of an `if` of a server.
pub enum ServerCondition<'a> {
    Never,
    /// All requests get this response.
    Always(&'a Directive),
    /// Requests for this host get the response, or all others do.
    Host {
        name: String,
        is_host: bool,
        response: &'a Directive,
    },
    /// It only sets variables.
    SetsVariables,
}

/// Which listeners of a server have TLS.
#[derive(Clone, Copy)]
pub struct ListenTls {
    pub all: bool,
    pub any: bool,
}

/// Reads an `if` of a server. Returns `None` for conditions that routes cannot have.
pub fn read_condition(at: &Directive, tls: ListenTls) -> Option<ServerCondition<'_>> {
    if at.inner().iter().all(|inner| inner.name == "set" && !sets_request(inner)) {
        return Some(ServerCondition::SetsVariables);
    }
    let [response] = at.inner() else { return None };
    if !is_response(response) {
        return None;
    }
    let words = read_words(at);
    let is_https = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["$scheme", "=", "https"] | ["$scheme", "!=", "http"] | ["$https"] | ["$https", "=", "on"] => Some(true),
        ["$scheme", "=", "http"] | ["$scheme", "!=", "https"] | ["$https", "="] | ["$https", "!=", "on"] => Some(false),
        ["$host" | "$http_host", sign @ ("=" | "!="), name] if !name.contains('$') => {
            return Some(ServerCondition::Host { name: name.to_ascii_lowercase(), is_host: *sign == "=", response });
        }
        _ => None,
    };
    let ListenTls { all, any } = tls;
    match is_https? {
        is_https if all || !any => Some(match is_https == all {
            true => ServerCondition::Always(response),
            false => ServerCondition::Never,
        }),
        _ => None,
    }
}

/// A `rewrite` of all paths under a prefix.
pub struct PrefixRewrite<'a> {
    /// The prefix, which ends with a slash.
    pub prefix: &'a str,
    pub target: PrefixTarget,
}

/// The result of a `rewrite`.
pub enum PrefixTarget {
    Redirect(ImportedRedirect),
    /// `break`: the request is forwarded with the prefix replaced by this one.
    Forward(String),
}

/// Reads a `rewrite` with `break` that takes a prefix without its last slash, such as `/app(.*) $1` or `^/app(/.*)$ /v2$1`.
/// All paths of its location start with `path`. Returns the prefixes to strip and to add, and whether nginx would turn
/// a path that continues without a slash into something that is not a path.
pub fn read_segment_rewrite<'a>(at: &'a Directive, path: &str) -> Option<(&'a str, &'a str, bool)> {
    let [pattern, target, flag] = at.args.as_slice() else { return None };
    if at.name != "rewrite" || flag != "break" {
        return None;
    }
    let pattern = pattern.strip_suffix('$').unwrap_or(pattern);
    // The paths of the location start with the prefix, so the expression matches at the start first.
    let prefix = pattern.strip_prefix('^').unwrap_or(pattern);
    let (prefix, needs_slash) = match prefix.strip_suffix("(.*)") {
        Some(prefix) => (prefix, false),
        None => (prefix.strip_suffix("(/.*)")?, true),
    };
    let add = target.strip_suffix("$1")?;
    let is_plain = |text: &str| {
        text.starts_with('/')
            && !text.ends_with('/')
            && !text.contains("//")
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/".contains(&byte))
    };
    let rest = path.strip_prefix(prefix).filter(|_| is_plain(prefix) && (add.is_empty() || is_plain(add)))?;
    match (rest.starts_with('/'), needs_slash) {
        (true, _) => Some((prefix, add, false)),
        // Other paths than those with a slash stay as they are.
        (false, true) => None,
        (false, false) => rest.is_empty().then_some((prefix, add, true)),
    }
}

/// Reads a `rewrite` such as `^/old/(.*)$ /new/$1 permanent`.
pub fn read_prefix_rewrite(at: &Directive) -> Option<PrefixRewrite<'_>> {
    let [pattern, target, flag] = at.args.as_slice() else { return None };
    if at.name != "rewrite" {
        return None;
    }
    let prefix = pattern.strip_prefix('^')?;
    let prefix = prefix.strip_suffix('$').unwrap_or(prefix).strip_suffix("(.*)")?;
    let is_plain = |text: &str| {
        text.starts_with('/')
            && text.ends_with('/')
            && !text.contains("//")
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/".contains(&byte))
    };
    if !is_plain(prefix) || prefix == "/" {
        return None;
    }
    let (target, keeps_query) = match target.strip_suffix('?') {
        Some(target) => (target, false),
        None => (target.as_str(), true),
    };
    let start = target.strip_suffix("$1").filter(|start| start.ends_with('/') && !start.contains(['$', '?']))?;
    let target = match flag.as_str() {
        "permanent" | "redirect" => {
            let status = if flag == "permanent" { 301 } else { 302 };
            let text = format!("{}$uri", start.strip_suffix('/')?);
            // `{path}` is the path without the prefix, because the route strips it.
            let redirect = match text == "$uri" {
                true => ImportedRedirect { to: "{path}".to_owned(), status, keeps_query },
                false => ImportedRedirect { keeps_query, ..translate_target(&text, status)? },
            };
            PrefixTarget::Redirect(redirect)
        }
        "break" if keeps_query && (start == "/" || is_plain(start)) => PrefixTarget::Forward(start.to_owned()),
        _ => return None,
    };
    Some(PrefixRewrite { prefix, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_without_their_slash_are_rewritten() {
        for (args, path, expected) in [
            ("/app(.*) $1 break", "/app/", Some(("/app", "", false))),
            ("^/app(/.*)$ $1 break", "/app/", Some(("/app", "", false))),
            ("^/app(.*)$ /v2$1 break", "/app/x", Some(("/app", "/v2", false))),
            ("/app(.*) $1 break", "/app", Some(("/app", "", true))),
            ("/app(/.*) $1 break", "/app", None),
            ("/app(.*) $1 break", "/", None),
            ("/app(.*) $1 break", "/application", None),
            ("/app(.*) $1 break", "/x/app/", None),
            ("/app(.*) $1 last", "/app/", None),
            ("/app(.*) $1? break", "/app/", None),
            ("/app/(.*) $1 break", "/app/", None),
            ("/a.p(.*) $1 break", "/app/", None),
        ] {
            let at = Directive::written("rewrite", &args.split(' ').collect::<Vec<_>>());
            assert_eq!(read_segment_rewrite(&at, path), expected, "{args} {path}");
        }
    }

    #[test]
    fn prefixes_are_rewritten_to_prefixes() {
        let read = |args: &str| {
            let at = Directive::written("rewrite", &args.split(' ').collect::<Vec<_>>());
            read_prefix_rewrite(&at).map(|found| match found.target {
                PrefixTarget::Redirect(to) => format!("{} {} {} {}", found.prefix, to.to, to.status, to.keeps_query),
                PrefixTarget::Forward(to) => format!("{} {to}", found.prefix),
            })
        };
        for (args, expected) in [
            ("^/old/(.*)$ /new/$1 permanent", Some("/old/ /new{path} 301 true")),
            ("^/old/(.*) https://example.com/$1? redirect", Some("/old/ https://example.com{path} 302 false")),
            ("^/old/(.*)$ /$1 permanent", Some("/old/ {path} 301 true")),
            ("^/api/(.*)$ /$1 break", Some("/api/ /")),
            ("^/api/(.*)$ /v1/$1 break", Some("/api/ /v1/")),
            ("^/api/(.*)$ /v1/$1 last", None),
            ("^/api/(.*)$ /v1/$1? break", None),
            ("^/a.c/(.*)$ /$1 break", None),
            ("^/old/(.*)$ /new$1 permanent", None),
            ("/old/(.*)$ /new/$1 permanent", None),
            ("^/old/(.+)$ /new/$1 permanent", None),
            ("^/old/(.*)$ https://$host.evil/$1 permanent", None),
        ] {
            assert_eq!(read(args).as_deref(), expected, "{args}");
        }
    }
}
