//! Finds servers that only redirect to HTTPS, such as `return 301 https://$host$request_uri` or
//! `https://example.com...`. Such a server becomes `redirect_http`.

use crate::import::model::ImportedRedirect;
use crate::import::nginx::directives::is_protection;
use crate::import::nginx::redirects::{is_response, translate_rewrite, translate_target};
use crate::import::nginx::scope::{is_redirect, read_words};
use crate::import::syntax::Directive;

/// The redirect to HTTPS of all requests of a server.
pub struct HttpsRedirect<'a> {
    pub port: u16,
    /// The host that the target names. `None` if it is the host of the request.
    pub host: Option<String>,
    pub redirect: ImportedRedirect,
    /// The directive that redirects.
    pub at: &'a Directive,
    /// Further locations of the server. `redirect_http` redirects their requests, too.
    pub left_out: Vec<&'a Directive>,
}

/// Finds the redirect of a server. `is_served_elsewhere`: a server with TLS has one of its names. Returns `None` if the
/// server does anything else.
pub fn find_https_redirect(server: &Directive, is_served_elsewhere: bool) -> Option<HttpsRedirect<'_>> {
    let block = server.inner();
    let is_obstacle = |directive: &Directive| match directive.name.as_str() {
        "if" => !directive.inner().iter().all(is_redirect),
        "rewrite" => translate_rewrite(directive).is_none(),
        _ => is_protection(directive),
    };
    if block.iter().any(is_obstacle) {
        return None;
    }
    let names = || block.iter().filter(|directive| directive.name == "server_name");
    let first = names().flat_map(|directive| &directive.args).next();
    let first = first.filter(|name| name.contains('.') && !name.contains(['*', '~']) && !name.starts_with('.'));
    let target = |at| read_https_target(at, first.map_or("$host", String::as_str));
    let locations = || block.iter().filter(|directive| directive.name == "location");
    let response = block.iter().find(|directive| is_response(directive));
    if let Some(found) = response.and_then(target) {
        return Some(found);
    }
    let is_name = |name: &str| names().flat_map(|directive| &directive.args).any(|own| own == name);
    match response {
        // Certbot writes one `if` for each name, and `return 404`.
        Some(other) if !is_redirect(other) && locations().next().is_none() => {
            let mut result = None;
            for condition in block.iter().filter(|directive| directive.name == "if") {
                let words = read_words(condition);
                let ([at], [variable, sign, host]) = (condition.inner(), words.as_slice()) else {
                    return None;
                };
                if variable != "$host" || sign != "=" || !is_name(host) {
                    return None;
                }
                // `$host` and the name that the condition requires are the same here.
                let redirect = target(at)?;
                if redirect.host.as_deref().is_some_and(|own| own != *host) {
                    return None;
                }
                result = Some(HttpsRedirect { host: None, ..redirect });
            }
            result
        }
        Some(_) => None,
        None => {
            let whole = locations().find(|location| location.args == ["/"])?;
            let [at] = whole.inner() else { return None };
            let others: Vec<&Directive> = locations().filter(|location| !std::ptr::eq(*location, whole)).collect();
            let is_acme = |location: &&Directive| {
                location.args.last().is_some_and(|path| path.starts_with("/.well-known/acme-challenge"))
            };
            let may_leave_out = is_served_elsewhere || others.iter().all(is_acme);
            target(at).filter(|_| may_leave_out).map(|found| HttpsRedirect { left_out: others, ..found })
        }
    }
}

/// Reads a redirect of all paths to HTTPS. `name`: the value of `$server_name`.
fn read_https_target<'a>(at: &'a Directive, name: &str) -> Option<HttpsRedirect<'a>> {
    let redirect = match at.args.as_slice() {
        [status, target] if is_redirect(at) => {
            translate_target(&target.trim_matches(' ').replace("$server_name", name), status.parse().ok()?)?
        }
        [target] if at.name == "return" => {
            translate_target(&target.trim_matches(' ').replace("$server_name", name), 302)?
        }
        _ => translate_rewrite(at)?,
    };
    let (host, port) = split_https_target(&redirect)?;
    let host = Some(host).filter(|host| *host != "{host}").map(str::to_owned);
    redirect.keeps_query.then(|| HttpsRedirect { port, host, redirect: redirect.clone(), at, left_out: Vec::new() })
}

/// Returns host and port of a redirect that keeps the path and leads to HTTPS.
pub fn split_https_target(redirect: &ImportedRedirect) -> Option<(&str, u16)> {
    let authority = redirect.to.strip_prefix("https://")?.strip_suffix("{path}")?;
    match authority.split_once(':') {
        Some((host, port)) => Some((host, port.parse().ok()?)),
        None => Some((authority, 443)).filter(|(host, _)| !host.contains('/')),
    }
}
