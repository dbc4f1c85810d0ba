//! Translates the targets of `return 301 URL` with variables, and of a `rewrite` that redirects every request.

use crate::import::model::ImportedRedirect;
use crate::import::syntax::Directive;

/// Translates a target with variables. `$request_uri` is the path with the query, and `$uri` the path alone. Returns
/// `None` if a redirect cannot have this target.
pub fn translate_target(text: &str, status: u16) -> Option<ImportedRedirect> {
    if text.contains(['{', '}', '\\', '"', '<', '>', '^', '`', '|', '#']) || !text.bytes().all(|b| b.is_ascii_graphic())
    {
        return None;
    }
    let (before_query, keeps_query) = match text {
        _ if text.ends_with("$request_uri") => (text.strip_suffix("$request_uri")?, true),
        _ if text.ends_with("$is_args$args") => (text.strip_suffix("$is_args$args")?, true),
        _ if text.ends_with("?$args") => (text.strip_suffix("?$args")?, true),
        _ => (text, false),
    };
    let mut to = before_query.to_owned();
    if text.ends_with("$request_uri") {
        to.push_str("$uri");
    }
    if let Some(rest) = to.strip_prefix("$scheme://") {
        to = format!("{{scheme}}://{rest}");
    }
    let after_scheme = ["https://", "http://", "{scheme}://"].iter().find_map(|scheme| to.strip_prefix(scheme));
    if let Some(rest) = after_scheme {
        let start = to.len() - rest.len();
        let host = rest.strip_prefix("$host").or_else(|| rest.strip_prefix("$http_host"));
        let rest = host.map_or_else(|| rest.to_owned(), |rest| format!("{{host}}{rest}"));
        // The host must end where nginx would end it.
        let end = rest.find(['/', '$', '?']).unwrap_or(rest.len());
        let authority = &rest[..end];
        let is_name = |name: &str| {
            let bytes = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            !name.is_empty() && name.bytes().all(bytes) && name.split('.').all(|label| !label.is_empty())
        };
        let (name, port) = authority.split_once(':').map_or((authority, "443"), |(name, port)| (name, port));
        if !(name == "{host}" || is_name(name)) || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return None;
        }
        to = format!("{}{rest}", &to[..start]);
    } else if !to.starts_with('/') && !to.starts_with("$uri") || to.starts_with("//") {
        return None;
    }
    let is_longer_name = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if to.split("$uri").skip(1).any(is_longer_name) {
        return None;
    }
    let to = to.replace("$uri", "{path}");
    let is_loop = matches!(to.as_str(), "{path}" | "{scheme}://{host}{path}");
    (!to.contains(['$', '?']) && to.matches("{path}").count() <= 1 && !is_loop).then_some(ImportedRedirect {
        to,
        status,
        keeps_query,
    })
}

/// Returns whether a directive responds to every request.
pub fn is_response(directive: &Directive) -> bool {
    directive.name == "return" || translate_rewrite(directive).is_some()
}

/// Translates a `rewrite` that redirects every request, such as `rewrite ^ https://example.com$request_uri? permanent`.
/// nginx appends the query unless the target ends with `?`.
pub fn translate_rewrite(directive: &Directive) -> Option<ImportedRedirect> {
    let [pattern, target, flag] = directive.args.as_slice() else { return None };
    let status = match (directive.name.as_str(), flag.as_str()) {
        ("rewrite", "permanent") => 301,
        ("rewrite", "redirect") => 302,
        _ => return None,
    };
    let target = match pattern.as_str() {
        "^" | "^/" | ".*" | "^.*$" | "^.*" if !target.contains("$1") => target.clone(),
        "^(.*)$" | "^(.*)" | "(.*)" => target.replace("$1", "$uri"),
        "^/(.*)$" | "^/(.*)" => match target.contains("$1") {
            true if !target.contains("/$1") => return None,
            _ => target.replace("/$1", "$uri"),
        },
        _ => return None,
    };
    match target.strip_suffix('?') {
        Some(target) => translate_target(target, status),
        // nginx would append the query a second time.
        None if target.contains("$request_uri") || target.contains("$args") => None,
        None => translate_target(&target, status).map(|redirect| ImportedRedirect { keeps_query: true, ..redirect }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Option<(String, bool)> {
        translate_target(text, 301).map(|redirect| (redirect.to, redirect.keeps_query))
    }

    #[test]
    fn common_targets_are_translated() {
        for (text, to, keeps_query) in [
            ("https://example.com$request_uri", "https://example.com{path}", true),
            ("https://$host$request_uri", "https://{host}{path}", true),
            ("$scheme://www.example.com$request_uri", "{scheme}://www.example.com{path}", true),
            ("https://example.com:8443$uri", "https://example.com:8443{path}", false),
            ("https://example.com/new$uri$is_args$args", "https://example.com/new{path}", true),
            ("/new$uri?$args", "/new{path}", true),
            ("https://$host/login", "https://{host}/login", false),
        ] {
            assert_eq!(target(text), Some((to.to_owned(), keeps_query)), "{text}");
        }
        let rewrite = |args: &str| {
            let args: Vec<&str> = args.split(' ').collect();
            let directive = Directive::written("rewrite", &args);
            translate_rewrite(&directive).map(|redirect| (redirect.to, redirect.status, redirect.keeps_query))
        };
        for (args, to, status, keeps_query) in [
            ("^ https://example.com$request_uri? permanent", "https://example.com{path}", 301, true),
            ("^/(.*)$ https://example.com/$1 redirect", "https://example.com{path}", 302, true),
            ("^(.*)$ https://example.com$1? permanent", "https://example.com{path}", 301, false),
            ("^ /maintenance redirect", "/maintenance", 302, true),
        ] {
            assert_eq!(rewrite(args), Some((to.to_owned(), status, keeps_query)), "{args}");
        }
        for args in [
            "^ https://example.com$request_uri permanent",
            "^/a /b last",
            "^/a(.*)$ /b$1 permanent",
            "^/(.*)$ /x$1 redirect",
        ] {
            assert_eq!(rewrite(args), None, "{args}");
        }
        for text in [
            "https://$http_x_target$request_uri",
            "https://$arg_to",
            "https://example.com$http_x",
            "https://example.com.$host/",
            "https://$host.evil.com/",
            "https://$hostname/",
            "$request_uri",
            "//example.com$uri",
            "https://example.com{path}$uri",
            "https://example.com$uri$uri",
            "https://example.com@$host/",
            "$arg_next",
            "/new$uri_x",
        ] {
            assert_eq!(target(text), None, "{text}");
        }
    }
}
