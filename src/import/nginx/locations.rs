//! Translates the locations of a server to routes.

use std::collections::HashSet;

use ipnet::IpNet;

use crate::import::access::{RULES_MAX, parse_networks};
use crate::import::error::Result;
use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::nginx::compression::translate_gzip;
use crate::import::nginx::hsts::{PARTIAL, is_hsts};
use crate::import::nginx::keys::find_variables;
use crate::import::nginx::limits::Zones;
use crate::import::nginx::pages::translate_error_pages;
use crate::import::nginx::passwords::{PasswordGuard, read_password_guard, require_passwords};
use crate::import::nginx::redirects::{is_response, translate_rewrite, translate_target};
use crate::import::nginx::scope::{GUARDS, Scope, is_closing, is_content, is_off, is_redirect, is_scoped, is_tuning};
use crate::import::nginx::sizes::translate_size;
use crate::import::nginx::upstreams::{UpstreamBlocks, parse_duration_ms, translate_pass};
use crate::import::paths::{Location, LocationMatcher};
use crate::import::syntax::{Directive, shorten};
use crate::import::text::{format_duration, format_list, quote_string};

/// State that all locations of a server share.
pub struct Context<'a, 'o> {
    pub out: &'o mut ImportedConfig,
    pub zones: &'o mut Zones,
    pub upstreams: &'o UpstreamBlocks<'a>,
    /// The index of the server, which names it in limits per server.
    pub server: usize,
    /// The remark about a directive of the server that protects all of its locations.
    pub closed: Option<usize>,
    /// The directives of the server, and those in force there.
    pub site: &'a [Directive],
    pub outer: &'o Scope<'a>,
    /// The `compress` of the gateway.
    pub compress: Option<&'o str>,
    /// The value of `Strict-Transport-Security` that the listener sends, so the routes need not.
    pub hsts: Option<&'o str>,
    /// The locations so far, without regular expressions.
    pub seen: HashSet<(bool, String)>,
}

impl<'a> Context<'a, '_> {
    /// Translates a `location` and the locations inside it, and adds them to `found`.
    pub fn translate_location(
        &mut self,
        at: &'a Directive,
        outer: &Scope<'a>,
        found: &mut Vec<Location>,
    ) -> Result<()> {
        let matcher = match at.args.as_slice() {
            [path] if path.starts_with('@') => {
                self.out.remarks.add(at, "named locations are not available");
                return Ok(());
            }
            [path] => LocationMatcher::Prefix { path: path.clone(), first: false },
            [kind, path] => match kind.as_str() {
                "=" => LocationMatcher::Exact(path.clone()),
                "^~" => LocationMatcher::Prefix { path: path.clone(), first: true },
                "~" => LocationMatcher::Regex { pattern: path.clone(), ignore_case: false },
                "~*" => LocationMatcher::Regex { pattern: path.clone(), ignore_case: true },
                _ => return Err(at.error(format!("`{}` is not a modifier of `location`", shorten(kind)))),
            },
            _ => return Err(at.error("`location` takes a path, and one of = ~ ~* ^~ before it")),
        };
        // Each location may appear once, as in nginx.
        if !matches!(matcher, LocationMatcher::Regex { .. }) && !self.seen.insert(location_identity(&matcher)) {
            return Err(at.error("this location appears twice"));
        }
        let scope = outer.enter_block(at.inner());
        let mut body = self.translate_body(at, at.inner(), &scope, &matcher)?;
        if !self.out.reserve_route(&body) {
            return Err(at.error("the config would be larger than 16 MiB; import fewer files at once"));
        }
        for inner in at.inner().iter().filter(|inner| inner.name == "location") {
            if inner.arg(0).starts_with('~') {
                let number =
                    self.out.remarks.add(inner, "a regular expression inside another location is not available");
                body.close(number);
                continue;
            }
            self.translate_location(inner, &scope, found)?;
        }
        found.push(Location { matcher, body });
        Ok(())
    }

    /// Translates the directives of a location, or a server's `return`, to a route.
    pub fn translate_body(
        &mut self,
        at: &Directive,
        block: &[Directive],
        scope: &Scope,
        matcher: &LocationMatcher,
    ) -> Result<RouteBody> {
        let origin = match at.name.as_str() {
            "location" => shorten(&format!("{}:{}: location {}", at.file, at.line, at.args.join(" "))),
            _ => shorten(&format!("{}:{}: {}", at.file, at.line, at.name)),
        };
        let mut body = RouteBody::with_status(origin, 404);
        if let Some(number) = self.closed {
            body.close(number);
        }
        if block.iter().any(|directive| directive.name == "internal") {
            return Ok(body);
        }
        let returned = block.iter().find(|directive| is_response(directive));
        let mut has_content = returned.is_some();
        for directive in
            block.iter().filter(|directive| !returned.is_some_and(|returned| std::ptr::eq(returned, *directive)))
        {
            let name = directive.name.as_str();
            if is_closing(directive) || is_content(name) {
                has_content = true;
                let why = if is_content(name) { "Sluicegate only proxies requests" } else { "not available" };
                let number = self.out.remarks.add(directive, why);
                body.close(number);
            } else if matches!(name, "proxy_pass" | "grpc_pass") {
                has_content = true;
            } else if !is_known(name)
                && !is_scoped(name)
                && !is_tuning(name)
                && name != "proxy_redirect"
                && !is_off(directive)
            {
                body.add_remark(self.out.remarks.add(directive, "not available, so it is left out"));
            } else if name == "proxy_redirect" && !matches!(directive.arg(0), "off" | "default") {
                body.add_remark(
                    self.out.remarks.add(directive, "Sluicegate does not rewrite the Location of responses"),
                );
            }
        }
        let passwords = self.check_guards(scope, &mut body);
        if let Some(directive) = returned {
            // nginx responds before it checks limits, passwords, `allow` and `deny`.
            self.respond(directive, scope, &mut body);
            return Ok(body);
        }
        let mut rewrite = Vec::new();
        if let Some(directive) =
            block.iter().find(|directive| matches!(directive.name.as_str(), "proxy_pass" | "grpc_pass"))
        {
            rewrite.extend(translate_pass(directive, matcher, self.upstreams, scope, self.out, &mut body));
            self.translate_headers(scope, &mut rewrite, &mut body);
        }
        if !has_content {
            let number = self.out.remarks.add(at, "nginx serves files here, which Sluicegate does not");
            body.close(number);
        }
        if !rewrite.is_empty() {
            body.lines.push(format!("rewrite = {{ {} }}", rewrite.join(", ")));
        }
        self.zones.apply_limits(scope, self.server, self.out, &mut body)?;
        self.restrict_access(scope, &mut body)?;
        require_passwords(&passwords, scope, self.out, &mut body);
        self.translate_settings(scope, &mut body)?;
        translate_error_pages(scope, self.site, self.outer, self.out, &mut body);
        Ok(body)
    }

    /// Closes a route if it would lose its protection. Returns the passwords that it needs.
    fn check_guards<'s>(&mut self, scope: &Scope<'s>, body: &mut RouteBody) -> PasswordGuard<'s> {
        for guard in GUARDS.iter().filter_map(|name| scope.get(name)) {
            if guard.arg(0) == "off" || guard.name == "satisfy" && guard.arg(0) == "all" {
                continue;
            }
            let why = match guard.name.as_str() {
                "auth_request" => {
                    "write auth = { forward = \"URL\" } with the URL of the auth server; until then, the routes that it protects \
                     are closed"
                }
                _ => "not available, so the routes that it protects are closed",
            };
            let number = self.out.remarks.add(guard, why);
            body.close(number);
        }
        let passwords = read_password_guard(scope, self.out);
        if let PasswordGuard::Unavailable { at, why } = &passwords {
            body.close(self.out.remarks.add(at, why));
        }
        passwords
    }

    fn respond(&mut self, at: &Directive, scope: &Scope, body: &mut RouteBody) {
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
        let status = code.parse::<u16>().ok().filter(|status| (200..=599).contains(status));
        let why = match status {
            None => Some("this status is not available"),
            Some(444) => Some("Sluicegate does not close the connection; it responds with status 444"),
            Some(status) if is_url && text.is_some_and(|text| !find_variables(text).is_empty()) => {
                match text.and_then(|text| translate_target(text, status)) {
                    Some(redirect) => {
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
            let number = self.out.remarks.add(at, why);
            if status == Some(444) { body.add_remark(number) } else { body.close(number) }
        }
        let kind = scope.get("default_type").map_or("text/plain", |directive| directive.arg(0));
        let kind =
            Some(kind).filter(|kind| kind.contains('/') && kind.bytes().all(|byte| (b'!'..=b'~').contains(&byte)));
        body.action = RouteAction::Respond {
            status: status.unwrap_or(501),
            body: text.filter(|_| !is_url).cloned(),
            content_type: text.and(kind).filter(|_| !is_url).map(str::to_owned),
            location: text.filter(|_| is_url).cloned(),
        };
    }

    /// Translates the edits of request and response headers.
    fn translate_headers(&mut self, scope: &Scope, rewrite: &mut Vec<String>, body: &mut RouteBody) {
        let mut host = None;
        let mut edited = HashSet::new();
        let (mut set, mut remove) = (Vec::new(), Vec::new());
        for directive in scope.list("proxy_set_header").iter().chain(scope.list("grpc_set_header")) {
            let (name, value) = (directive.arg(0).to_ascii_lowercase(), directive.arg(1));
            match (name.as_str(), value) {
                ("host", value) => host = Some((*directive, value)),
                ("upgrade" | "connection" | "te", _) => {}
                ("x-real-ip", "$remote_addr" | "$realip_remote_addr") | ("x-request-id", "$request_id") => {}
                ("x-forwarded-for", "$proxy_add_x_forwarded_for" | "$remote_addr") => {}
                ("x-forwarded-proto" | "x-forwarded-scheme" | "x-scheme", "$scheme" | "$http_x_forwarded_proto") => {}
                ("x-forwarded-host", "$host" | "$http_host") | ("x-forwarded-port", "$server_port") => {}
                (_, "") if is_header(&name) && edited.insert(name.clone()) => remove.push(name),
                (_, value) if is_header(&name) && is_value(value) && edited.insert(name.clone()) => {
                    set.push((name, value))
                }
                _ => body
                    .add_remark(self.out.remarks.add(directive, "this header is not set: the value is not available")),
            }
        }
        match host {
            None | Some((_, "$proxy_host")) => rewrite.push("upstream_host = true".to_owned()),
            Some((_, "$host" | "$http_host" | "$host:$server_port")) => {}
            Some((directive, _)) => {
                body.add_remark(self.out.remarks.add(directive, "the upstream server gets the client's Host instead"));
            }
        }
        body.lines.extend(format_edits("request_headers", set, remove));
        let (mut set, mut remove) = (Vec::new(), Vec::new());
        let mut names = HashSet::new();
        for directive in scope.list("proxy_hide_header") {
            let name = directive.arg(0).to_ascii_lowercase();
            if is_header(&name) && names.insert(name.clone()) {
                remove.push(name);
            }
        }
        let is_sent = |at: &Directive| is_hsts(at) && self.hsts == Some(at.arg(1));
        for directive in scope.list("add_header").iter().filter(|directive| !is_sent(directive)) {
            if is_hsts(directive) {
                body.add_remark(self.out.remarks.add(directive, PARTIAL));
            }
            let (name, value) = (directive.arg(0).to_ascii_lowercase(), directive.arg(1));
            let can_be_set = is_header(&name) && is_value(value) && name != "set-cookie";
            match can_be_set && names.insert(name.clone()) {
                true => set.push((name, value)),
                false => body
                    .add_remark(self.out.remarks.add(directive, "this header is not set: the value is not available")),
            }
        }
        body.lines.extend(format_edits("response_headers", set, remove));
    }

    fn restrict_access(&mut self, scope: &Scope, body: &mut RouteBody) -> Result<()> {
        let mut rules: Vec<(bool, IpNet)> = Vec::new();
        for directive in scope.list("allow") {
            if directive.arg(0) == "unix:" {
                continue;
            }
            let Some(found) = parse_networks(directive.arg(0)) else {
                return Err(directive.error(format!("`{}` is not an address or a network", shorten(directive.arg(0)))));
            };
            rules.extend(found.into_iter().map(|net| (directive.name == "allow", net)));
            if rules.len() > RULES_MAX {
                let number = self
                    .out
                    .remarks
                    .add(directive, &format!("more than {RULES_MAX} rules; write them to a [set.NAME]"));
                body.close(number);
                return Ok(());
            }
        }
        self.out.restrict_clients(body, &rules);
        Ok(())
    }

    fn translate_settings(&mut self, scope: &Scope, body: &mut RouteBody) -> Result<()> {
        if let Some(directive) = scope.get("client_max_body_size") {
            body.lines.push(format!("max_body = {}", translate_size(directive)?));
        }
        let compress = translate_gzip(scope, self.out)?;
        if compress.as_deref() != self.compress {
            body.lines.push(compress.unwrap_or_else(|| "compress = false".to_owned()));
        }
        let times = [
            ("proxy_connect_timeout", ["connect_timeout", "", ""]),
            ("grpc_connect_timeout", ["connect_timeout", "", ""]),
            ("proxy_read_timeout", ["response_timeout", "stream_timeout", "tunnel_timeout"]),
            ("grpc_read_timeout", ["response_timeout", "stream_timeout", ""]),
            ("client_body_timeout", ["body_timeout", "", ""]),
        ];
        let mut done: Vec<&str> = Vec::new();
        for (theirs, ours) in times {
            let Some(directive) = scope.get(theirs) else { continue };
            let Some(ms) = parse_duration_ms(directive.arg(0)).filter(|ms| *ms > 0) else {
                body.add_remark(self.out.remarks.add(directive, "Sluicegate does not accept this time"));
                continue;
            };
            for name in ours.into_iter().filter(|name| !name.is_empty()) {
                if !done.contains(&name) {
                    done.push(name);
                    body.lines.push(format!("{name} = {}", format_duration(ms)));
                }
            }
        }
        Ok(())
    }
}

/// Returns the identity of a location. Locations with the same path, both exact or both not, are duplicates.
fn location_identity(matcher: &LocationMatcher) -> (bool, String) {
    match matcher {
        LocationMatcher::Exact(path) => (true, path.clone()),
        LocationMatcher::Prefix { path, .. }
        | LocationMatcher::Segments(path)
        | LocationMatcher::Regex { pattern: path, .. } => (false, path.clone()),
    }
}

/// Returns true for directives of locations that the import reads by name.
pub fn is_known(name: &str) -> bool {
    matches!(name, "location" | "return" | "internal" | "proxy_pass" | "grpc_pass")
}

fn format_edits(key: &str, set: Vec<(String, &str)>, remove: Vec<String>) -> Option<String> {
    let mut parts = Vec::new();
    if !set.is_empty() {
        let set: Vec<String> =
            set.iter().map(|(name, value)| format!("{} = {}", quote_string(name), quote_string(value))).collect();
        parts.push(format!("set = {{ {} }}", set.join(", ")));
    }
    if !remove.is_empty() {
        parts.push(format!("remove = {}", format_list(&remove)));
    }
    (!parts.is_empty()).then(|| format!("{key} = {{ {} }}", parts.join(", ")))
}

/// Returns true for headers that a config can set. Headers of the connection and of message framing are excluded.
fn is_header(name: &str) -> bool {
    const OWN: [&str; 10] = [
        "host",
        "connection",
        "upgrade",
        "te",
        "trailer",
        "transfer-encoding",
        "content-length",
        "keep-alive",
        "proxy-connection",
        "expect",
    ];
    !name.is_empty()
        && !OWN.contains(&name)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn is_value(value: &str) -> bool {
    !value.contains('$') && value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value
}
