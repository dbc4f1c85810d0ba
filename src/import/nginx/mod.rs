//! Translates the directives of nginx configs.
//!
//! Input: the parsed directives of all files. Output: routes, limits, upstreams and listeners in an [`ImportedConfig`],
//! and a remark about each directive that is not translated.
//!
//! - `scope`: which directives a block inherits, and lists of directives by how they are handled.
//! - `locations`: `location` blocks as routes; `redirects`: the targets of their redirects.
//! - `https_redirects`: servers that only redirect to HTTPS; `sites`: the listeners and names of each server.
//! - `passwords`: `auth_basic`; `pages`: `error_page`; `compression`: `gzip`; `hsts`: Strict-Transport-Security.
//! - `limits`: `limit_req` and `limit_conn` with their zones.
//! - `sizes`: sizes such as `8m`.
//! - `keys`: the keys of zones, including `map` and `geo`.
//! - `upstreams`: `upstream` blocks and `proxy_pass`.
//! - `listeners`: `listen` and TLS.
//!
//! To add a directive that blocks inherit, add its name to `SINGLE` or `LISTS` in `scope` and read it where its subject
//! belongs, such as `locations`. To leave one out silently, add it to `TUNING`. A directive that protects a route and
//! cannot be translated must close the route: add it to `GUARDS` or `is_closing`.

mod compression;
mod hsts;
mod https_redirects;
mod keys;
mod limits;
mod listeners;
mod locations;
mod pages;
mod passwords;
mod redirects;
mod scope;
mod sites;
mod sizes;
mod upstreams;

pub use limits::limit_in_flight;
pub use sizes::translate_size;

use std::collections::HashSet;

use ipnet::IpNet;

use crate::import::error::Result;
use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::nginx::compression::translate_gzip;
use crate::import::nginx::hsts::{PARTIAL, agree_on_hsts, find_hsts};
use crate::import::nginx::https_redirects::{HttpsRedirect, split_https_target};
use crate::import::nginx::keys::Variables;
use crate::import::nginx::limits::Zones;
use crate::import::nginx::listeners::{ListenBlocks, join_family};
use crate::import::nginx::locations::{Context, is_known};
use crate::import::nginx::redirects::is_response;
use crate::import::nginx::scope::{Scope, is_closing, is_content, is_off, is_scoped, is_tuning};
use crate::import::nginx::sites::{Site, expand_name, find_default, read_sites};
use crate::import::nginx::upstreams::{UpstreamBlocks, parse_duration_ms};
use crate::import::paths::{Location, LocationMatcher, order_routes};
use crate::import::syntax::{Directive, shorten};
use crate::import::text::format_array;

/// Translates the directives of all files.
pub fn translate_directives(directives: &[Directive], out: &mut ImportedConfig) -> Result<()> {
    // Some files hold the content of `http { }` without the block around it.
    let mut http: Vec<&Directive> = Vec::new();
    for directive in directives {
        match directive.name.as_str() {
            "http" => http.extend(directive.inner()),
            "stream" | "mail" => {
                out.remarks.add(directive, "Sluicegate proxies HTTP only");
            }
            "location" => {
                return Err(
                    directive.error("a `location` must stand in a `server`; import the file that includes this one")
                );
            }
            _ => http.push(directive),
        }
    }
    let owned: Vec<Directive> =
        http.iter().filter(|directive| !is_block(&directive.name)).map(|one| (*one).clone()).collect();
    let scope = Scope::default().enter_block(&owned);
    let variables: Variables = http.iter().filter_map(|directive| find_variable(directive)).collect();
    let upstreams: UpstreamBlocks = http
        .iter()
        .filter(|directive| directive.name == "upstream")
        .map(|directive| (directive.arg(0), *directive))
        .collect();
    let mut zones = Zones::default();
    for directive in &http {
        match directive.name.as_str() {
            "limit_req_zone" | "limit_conn_zone" => zones.define_zone(directive, &variables)?,
            // Only files that nginx itself serves need these types.
            "include" if directive.arg(0).ends_with("mime.types") => {}
            "include" => {
                out.remarks.add(directive, "this file does not exist, so it is left out");
            }
            name if is_block(name)
                || name == "set_real_ip_from"
                || is_scoped(name)
                || is_tuning(name)
                || is_off(directive) => {}
            _ => {
                out.remarks.add(directive, "not available, so it is left out");
            }
        }
    }
    translate_client_settings(&http, &scope, out)?;
    let servers: Vec<&Directive> = http.iter().filter(|directive| directive.name == "server").copied().collect();
    if servers.is_empty() {
        let at = http.first().map(|directive| directive.error("there is no `server` block in these files"));
        return Err(at.unwrap_or_else(|| {
            crate::import::error::ImportError::new("the files", 0, "there is no `server` block in them")
        }));
    }
    let given = servers.iter().flat_map(|server| server.inner()).filter(|directive| directive.name == "server_name");
    let wildcards =
        given.flat_map(|directive| &directive.args).map(|name| name.trim_start_matches('*').to_ascii_lowercase());
    let wildcards = wildcards.filter(|name| name.starts_with('.')).collect();
    ServerBlocks { scope, upstreams, zones, out, names: HashSet::new(), wildcards }.translate_servers(&servers)
}

fn is_block(name: &str) -> bool {
    matches!(name, "server" | "upstream" | "map" | "geo" | "limit_req_zone" | "limit_conn_zone")
}

fn find_variable(directive: &Directive) -> Option<(&str, &Directive)> {
    match directive.name.as_str() {
        "map" | "geo" => Some((directive.args.last()?.strip_prefix('$')?, directive)),
        _ => None,
    }
}

/// Translates the settings of client connections: trusted proxies, timeouts and the largest body.
fn translate_client_settings(http: &[&Directive], scope: &Scope, out: &mut ImportedConfig) -> Result<()> {
    // nginx also accepts `set_real_ip_from` in a server. Sluicegate has one list for the whole gateway.
    let all = http.iter().flat_map(|directive| std::iter::once(*directive).chain(directive.inner()));
    let mut trusted: Vec<String> = Vec::new();
    for directive in all.filter(|directive| directive.name == "set_real_ip_from") {
        match directive
            .arg(0)
            .parse::<IpNet>()
            .map(|net| net.to_string())
            .or(directive.arg(0).parse().map(|ip: std::net::IpAddr| ip.to_string()))
        {
            Ok(text) if !trusted.contains(&text) => trusted.push(text),
            Ok(_) => {}
            Err(_) => {
                out.remarks.add(directive, "not an address or a network, so it is not trusted");
            }
        }
    }
    if !trusted.is_empty() {
        out.server.push(format!("trusted_proxies = {}", format_array(&trusted)));
        match scope.get("real_ip_header") {
            Some(header)
                if matches!(header.arg(0).to_ascii_lowercase().as_str(), "x-forwarded-for" | "proxy_protocol") => {}
            Some(header) => {
                out.remarks.add(header, "Sluicegate reads the client's address from X-Forwarded-For or Forwarded");
            }
            None => {
                out.remarks.add_text(
"set_real_ip_from without real_ip_header reads X-Real-IP; Sluicegate reads X-Forwarded-For or Forwarded"
.to_owned(),
);
            }
        }
    }
    for (theirs, ours) in [("client_header_timeout", "header_timeout"), ("keepalive_timeout", "keepalive_timeout")] {
        if let Some(directive) = scope.get(theirs) {
            match parse_duration_ms(directive.arg(0)).filter(|ms| *ms > 0) {
                Some(ms) => out.server.push(format!("{ours} = \"{ms}ms\"")),
                None => {
                    out.remarks.add(directive, "Sluicegate does not accept this time");
                }
            }
        }
    }
    out.server.push(match scope.get("client_max_body_size") {
        Some(directive) => format!("max_body = {}", translate_size(directive)?),
        None => "max_body = \"1MiB\"".to_owned(),
    });
    Ok(())
}

const IN_ORDER: &str = "`location /api` in nginx also matches /apix. Hosts with such locations have regular expressions \
                        here, in nginx's order. To match whole segments, write path = \"/api\", for all routes of that \
                        host: other paths are tried before regular expressions.";

struct ServerBlocks<'a, 'o> {
    scope: Scope<'a>,
    upstreams: UpstreamBlocks<'a>,
    zones: Zones,
    out: &'o mut ImportedConfig,
    /// Names of the servers translated so far.
    names: HashSet<String>,
    /// `.example.com` for each `*.example.com` of any server.
    wildcards: Vec<String>,
}

impl<'a> ServerBlocks<'a, '_> {
    fn translate_servers(mut self, servers: &[&'a Directive]) -> Result<()> {
        let mut listeners = ListenBlocks::default();
        let sites = read_sites(servers, self.out)?;
        let compress = translate_gzip(&self.scope, self.out)?;
        self.out.server.extend(compress.clone());
        let serving: Vec<&Site> = sites.iter().filter(|site| site.redirect.is_none()).collect();
        let default = find_default(&serving);
        let all: HashSet<&str> = serving.iter().flat_map(|site| site.addresses()).collect();
        let scopes: Vec<Scope> = serving.iter().map(|site| self.scope.enter_block(site.server.inner())).collect();
        let headers: Vec<_> =
            serving.iter().zip(&scopes).map(|(site, scope)| (site.listens.as_slice(), find_hsts(scope))).collect();
        let hsts = agree_on_hsts(&headers);
        for (index, (site, scope)) in serving.iter().zip(&scopes).enumerate() {
            let server = site.server;
            let own: HashSet<&str> = site.addresses().collect();
            if own != all {
                self.out
                    .remarks
                    .add(server, "routes apply to all listeners, so clients reach this server on all of them");
            }
            let is_sent =
                site.listens.iter().any(|listen| listen.tls && hsts.contains_key(&join_family(&listen.address)));
            let header = find_hsts(scope);
            if let Some(header) = header.filter(|_| !is_sent) {
                self.out.remarks.add(header, PARTIAL);
            }
            listeners.add_server(server, &site.listens, scope, self.out)?;
            let shared = ServerDefaults {
                compress: compress.as_deref(),
                hsts: header.filter(|_| is_sent).map(|header| header.arg(1)),
                has_tls: serving.iter().any(|site| site.has_tls()),
            };
            self.translate_server(index, index == default, site, scope, &shared)?;
        }
        for site in &sites {
            if let Some(redirect) = &site.redirect {
                listeners.add_redirect(&site.listens, redirect.port);
                self.translate_https_redirect(site, redirect);
            }
        }
        listeners.add_hsts(&hsts);
        listeners.write_listeners(self.out);
        Ok(())
    }

    /// Adds what `redirect_http` does not do for a server that redirects to HTTPS.
    fn translate_https_redirect(&mut self, site: &Site, redirect: &HttpsRedirect) {
        for location in &redirect.left_out {
            self.out
                .remarks
                .add(location, "redirect_http redirects these requests, too; for ACME challenges, see [acme]");
        }
        let Some(target) = &redirect.host else { return };
        let names = site.names();
        if names.iter().eq([target]) {
            return;
        }
        let text = format!(
            "redirect_http keeps the host of the request, where nginx redirects to `{target}`; other hosts need a certificate, too"
        );
        let number = self.out.remarks.add(redirect.at, &text);
        // Over HTTPS, hosts without a server of their own are then redirected to the target.
        let covers = |name: &String| name.strip_prefix('*').is_some_and(|suffix| target.ends_with(suffix));
        let is_free = |name: &String| {
            name != target
                && is_host(name)
                && !self.names.contains(name)
                && (!covers(name) || self.names.contains(target))
        };
        let free: Vec<String> = names.into_iter().filter(is_free).collect();
        if !free.is_empty() {
            let origin = shorten(&format!("{}:{}: server", site.server.file, site.server.line));
            let mut body = RouteBody::new(origin, RouteAction::Redirect(redirect.redirect.clone()));
            body.add_remark(number);
            self.out.write_route(&free, "/", body);
            self.names.extend(free);
        }
    }

    fn translate_server(
        &mut self,
        index: usize,
        is_default: bool,
        site: &Site<'a>,
        scope: &Scope<'a>,
        shared: &ServerDefaults,
    ) -> Result<()> {
        let server = site.server;
        // The default server claims its names, too, although its routes are for every host.
        let own = self.claim_hosts(site);
        let hosts = if is_default { Vec::new() } else { own.clone() };
        if hosts.is_empty() && !is_default {
            self.out.remarks.add(server, "no request can reach this server by name, so it is left out");
            return Ok(());
        }
        let returned = server.inner().iter().find(|directive| is_response(directive));
        let closed = self.remark_directives(server, returned);
        let mut context = Context {
            out: &mut *self.out,
            zones: &mut self.zones,
            upstreams: &self.upstreams,
            server: index,
            closed,
            site: server.inner(),
            outer: scope,
            compress: shared.compress,
            hsts: shared.hsts,
            seen: HashSet::new(),
        };
        let whole = LocationMatcher::Prefix { path: "/".to_owned(), first: false };
        let mut found = Vec::new();
        if let Some(directive) = returned {
            // A `return` of the server answers every request, whatever the location.
            let mut body = context.translate_body(directive, std::slice::from_ref(directive), scope, &whole)?;
            if shared.has_tls && is_loop(&body, &own) {
                let why = "routes apply to all listeners, so over HTTPS this redirect would lead to itself";
                body.close(context.out.remarks.add(directive, why));
            }
            found.push(Location { matcher: whole, body });
        } else {
            for directive in server.inner().iter().filter(|directive| directive.name == "location") {
                context.translate_location(directive, scope, &mut found)?;
            }
        }
        let origin = shorten(&format!("{}:{}: server", server.file, server.line));
        let mut fallback = RouteBody::with_status(format!("{origin}, what no location matches"), 404);
        if let Some(number) = closed {
            fallback.close(number);
        }
        let found = order_routes(found, fallback, self.out);
        if found.iter().any(|(path, _)| path.starts_with("~ ^")) {
            self.out.add_note(IN_ORDER);
        }
        // A wildcard of another server takes precedence over routes without a host.
        let covered: Vec<String> = match is_default {
            true => own
                .into_iter()
                .filter(|name| self.wildcards.iter().any(|wildcard| name.ends_with(wildcard.as_str())))
                .collect(),
            false => Vec::new(),
        };
        for (path, body) in found {
            let fits = covered.is_empty() || self.out.write_route(&covered, &path, body.clone());
            if !fits || !self.out.write_route(&hosts, &path, body) {
                return Err(server.error("the config would be larger than 16 MiB; import fewer files at once"));
            }
        }
        Ok(())
    }

    /// Adds remarks about the directives of a server that are not translated. `returned` is. Returns the remark about
    /// one that protects all locations.
    fn remark_directives(&mut self, server: &Directive, returned: Option<&Directive>) -> Option<usize> {
        let mut closed = None;
        let is_returned = |directive: &&Directive| returned.is_some_and(|returned| std::ptr::eq(returned, *directive));
        for directive in server.inner().iter().filter(|directive| !is_returned(directive)) {
            let name = directive.name.as_str();
            if is_closing(directive) || name == "if" {
                let number = self.out.remarks.add(directive, "not available");
                if is_closing(directive) {
                    closed = Some(number);
                }
            } else if is_content(name) && name != "try_files" && name != "autoindex" {
                self.out.remarks.add(directive, "Sluicegate only proxies requests");
            } else if matches!(name, "keepalive_timeout" | "client_header_timeout" | "real_ip_header") {
                self.out.remarks.add(directive, "Sluicegate has one setting for the whole gateway; write it in `http`");
            } else if !is_server_directive(name)
                && !is_scoped(name)
                && !is_tuning(name)
                && !is_known(name)
                && !is_off(directive)
            {
                self.out.remarks.add(directive, "not available, so it is left out");
            }
        }
        closed
    }

    /// Claims the names of a server, and returns those that no earlier server has.
    fn claim_hosts(&mut self, site: &Site) -> Vec<String> {
        let mut hosts = Vec::new();
        for directive in site.server.inner().iter().filter(|directive| directive.name == "server_name") {
            for arg in &directive.args {
                for name in expand_name(arg) {
                    match is_host(&name) {
                        true if site.deferred.contains(&name) => {
                            let why = "another server serves this name elsewhere, and routes apply to all listeners, so this \
                                       redirect is left out";
                            self.out.remarks.add(directive, why);
                        }
                        true if self.names.insert(name.clone()) => hosts.push(name),
                        true => {
                            self.out
                                .remarks
                                .add(directive, &format!("another server has the name `{}`", shorten(&name)));
                        }
                        // Catch-all servers usually have one of these names.
                        false if matches!(name.as_str(), "_" | "" | "-" | "*") => {}
                        false => {
                            self.out.remarks.add(directive, &format!("the name `{}` is not available", shorten(&name)));
                        }
                    }
                }
            }
        }
        hosts
    }
}

fn is_host(name: &str) -> bool {
    let bare = name.strip_prefix("*.").unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    bare.len() <= 253 && bare != "_" && bare.split('.').all(label)
}

fn is_server_directive(name: &str) -> bool {
    matches!(
        name,
        "listen"
            | "server_name"
            | "location"
            | "ssl"
            | "ssl_certificate"
            | "ssl_certificate_key"
            | "set_real_ip_from"
            | "if"
    )
}

/// Returns true if a redirect of all paths leads to one of the hosts that it applies to.
fn is_loop(body: &RouteBody, own: &[String]) -> bool {
    let RouteAction::Redirect(redirect) = &body.action else { return false };
    let host = split_https_target(redirect).map(|(host, _)| host);
    host.is_some_and(|host| host == "{host}" || own.iter().any(|name| name == host))
}

/// Settings that all routes of a server have in common.
struct ServerDefaults<'o> {
    /// The `compress` of the gateway.
    compress: Option<&'o str>,
    /// The value of `Strict-Transport-Security` that the listener sends.
    hsts: Option<&'o str>,
    /// A listener of the gateway has TLS.
    has_tls: bool,
}
