//! Translates the `server` blocks.

use std::collections::{HashMap, HashSet};

use crate::import::error::Result;
use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::nginx::compression::translate_gzip;
use crate::import::nginx::headers::{GatewayFacts, translate_added_headers};
use crate::import::nginx::limits::Zones;
use crate::import::nginx::limits::keys::Variables;
use crate::import::nginx::locations::Context;
use crate::import::nginx::nesting::LocationBlock;
use crate::import::nginx::review::review_block;
use crate::import::nginx::scope::Scope;
use crate::import::nginx::server_steps::{ServerSteps, match_all, read_steps};
use crate::import::nginx::sites::exposure::{agree_on_checks, find_exposure};
use crate::import::nginx::sites::hosts::{KnownNames, ServerHosts};
use crate::import::nginx::sites::https_redirects::{HttpsRedirect, split_https_target};
use crate::import::nginx::sites::listeners::{ListenBlocks, join_family};
use crate::import::nginx::sites::slashes::{SlashMerging, find_slash_merging};
use crate::import::nginx::sites::{Site, expand_name, find_default, is_host, read_sites};
use crate::import::nginx::upstreams::UpstreamBlocks;
use crate::import::paths::{Location, order_routes};
use crate::import::syntax::{Directive, shorten};

const IN_ORDER: &str = "`location /api` in nginx also matches /apix. Hosts with such locations have regular expressions \
                        here, in nginx's order. To match whole segments, write path = \"/api\", for all routes of that \
                        host: other paths are tried before regular expressions.";
const TOO_LARGE: &str = "the config would be larger than 16 MiB; import fewer files at once";

/// Translates the servers of all files.
pub struct ServerBlocks<'a, 'o> {
    scope: Scope<'a>,
    upstreams: UpstreamBlocks<'a>,
    zones: Zones,
    facts: &'o GatewayFacts,
    variables: &'o Variables<'a>,
    out: &'o mut ImportedConfig,
    /// Names of the servers translated so far.
    names: HashSet<String>,
    /// The names of all servers.
    known: KnownNames,
    /// Names that servers with different content have at different addresses.
    disputed: HashMap<String, usize>,
    /// The comment on a server that requests for unknown hosts may be meant for.
    unreachable: Option<usize>,
}

impl<'a, 'o> ServerBlocks<'a, 'o> {
    /// Creates the translation. `scope`: the directives of `http`.
    pub fn new(
        scope: Scope<'a>,
        upstreams: UpstreamBlocks<'a>,
        zones: Zones,
        (facts, variables): (&'o GatewayFacts, &'o Variables<'a>),
        servers: &[&Directive],
        out: &'o mut ImportedConfig,
    ) -> Self {
        let (known, names, disputed) = (KnownNames::read(servers), HashSet::new(), HashMap::new());
        ServerBlocks { scope, upstreams, zones, facts, variables, out, names, known, disputed, unreachable: None }
    }

    /// Translates the servers to routes and listeners.
    pub fn translate_servers(mut self, servers: &[&'a Directive]) -> Result<()> {
        let mut listeners = ListenBlocks::default();
        let sites = read_sites(servers, self.out)?;
        let compress = translate_gzip(&self.scope, self.out)?;
        self.out.server.extend(compress.clone());
        let serving: Vec<&Site> = sites.iter().filter(|site| site.redirect.is_none()).collect();
        let scopes: Vec<Scope> = serving.iter().map(|site| self.scope.enter_block(site.server.inner())).collect();
        let checks = agree_on_checks(&serving, &scopes);
        let mut remarks = Vec::new();
        for (site, scope) in serving.iter().zip(&scopes) {
            let why = find_exposure(site, scope, &serving, &checks);
            remarks.push(why.map(|why| self.out.remarks.add(site.server, &why)));
        }
        let is_closed = |at: usize| remarks.get(at).is_some_and(Option::is_some);
        let default = find_default(&serving, is_closed);
        self.find_disputed(&serving);
        self.find_unreachable(&serving, default);
        let slashes = find_slash_merging(&serving, &scopes, self.out);
        let all: HashSet<&str> = serving.iter().flat_map(|site| site.addresses()).collect();
        for (index, ((site, scope), remark)) in serving.iter().zip(&scopes).zip(&remarks).enumerate() {
            listeners.add_server(&site.listens, scope, &checks, self.out);
            if site.is_twin {
                continue;
            }
            let own: HashSet<&str> = site.all_listens().map(|listen| listen.address.as_str()).collect();
            if own != all && remark.is_none() {
                let why = "routes apply to all listeners, so clients reach this server on all of them";
                self.out.remarks.add(site.server, why);
            }
            let defaults = ServerDefaults {
                compress: compress.as_deref(),
                has_tls: serving.iter().any(|site| site.has_tls()),
                closed: *remark,
                slashes: slashes[index],
            };
            self.translate_server(index, index == default, site, scope, &defaults)?;
        }
        for site in &sites {
            if let Some(redirect) = &site.redirect {
                review_block(site.server.inner(), "S", self.out);
                listeners.add_redirect(&site.listens, redirect.port);
                if redirect.redirect.status != 308 && !listeners.covers(&site.listens) {
                    self.out.remarks.add(redirect.at, "redirect_http answers with status 308 instead");
                }
                self.translate_https_redirect(site, redirect);
            }
        }
        self.close_disputed()?;
        listeners.write_listeners(self.out);
        Ok(())
    }

    /// Finds names that several servers have at different addresses. nginx chooses by address, which routes cannot.
    fn find_disputed(&mut self, serving: &[&Site<'a>]) {
        let mut first: HashMap<String, &Site> = HashMap::new();
        for site in serving.iter().filter(|site| !site.is_twin) {
            for name in site.names().into_iter().filter(|name| is_host(name) && !site.deferred.contains(name)) {
                let Some(known) = first.get(&name) else {
                    first.insert(name, site);
                    continue;
                };
                let addresses: HashSet<String> =
                    known.all_listens().map(|listen| join_family(&listen.address)).collect();
                // At the same address, nginx ignores the second server.
                if site.all_listens().any(|listen| !addresses.contains(&join_family(&listen.address))) {
                    let why = format!(
                        "another server has the name `{}` at another address, and routes apply to all listeners, so this \
                         host is closed",
                        shorten(&name)
                    );
                    let number = self.out.remarks.add(site.server, &why);
                    self.disputed.insert(name, number);
                }
            }
        }
    }

    /// Finds a server whose requests cannot be told apart from those for unknown hosts.
    fn find_unreachable(&mut self, serving: &[&Site<'a>], default: usize) {
        for (index, site) in serving.iter().enumerate() {
            let names = site.names();
            let hosts: Vec<&String> = names.iter().filter(|name| is_host(name)).collect();
            let is_known = hosts.iter().any(|name| site.deferred.contains(*name)) || site.is_twin;
            let odd = names.iter().find(|name| !is_host(name) && !matches!(name.as_str(), "_" | "" | "-" | "*"));
            let has_own_address = site.all_listens().any(|listen| {
                let others = serving.iter().enumerate().filter(|(other, _)| *other < index).map(|(_, site)| site);
                let address = join_family(&listen.address);
                !others.flat_map(|site| site.all_listens()).any(|other| join_family(&other.address) == address)
            });
            // The first server of an address answers all its requests for unknown hosts.
            let is_default_elsewhere = has_own_address || site.all_listens().any(|listen| listen.is_default);
            let is_nameless = hosts.is_empty() && odd.is_none();
            if index != default && !is_known && (odd.is_some() || is_nameless && is_default_elsewhere) {
                let why = match odd {
                    Some(name) => format!("the name `{}` is not available", shorten(name)),
                    None => "this server has no name of its own, and routes apply to all listeners".to_owned(),
                };
                let why = format!("{why}, so requests for unknown hosts, which may be for this server, are closed");
                self.unreachable.get_or_insert(self.out.remarks.add(site.server, &why));
            }
        }
    }

    /// Writes a closed route for each disputed name.
    fn close_disputed(&mut self) -> Result<()> {
        let mut hosts: Vec<(String, usize)> = self.disputed.drain().collect();
        hosts.sort();
        for (name, number) in hosts {
            let mut body = RouteBody::with_status(format!("host {name}"), 501);
            body.close(number);
            self.write_route(&[name], "/", body, None)?;
        }
        Ok(())
    }

    fn write_route(&mut self, hosts: &[String], path: &str, body: RouteBody, at: Option<&Directive>) -> Result<()> {
        match self.out.write_route(hosts, path, body) {
            true => Ok(()),
            false => Err(at.map_or_else(
                || crate::import::error::ImportError::new("the files", 0, TOO_LARGE),
                |at| at.error(TOO_LARGE),
            )),
        }
    }

    /// Adds what `redirect_http` does not do for a server that redirects to HTTPS.
    fn translate_https_redirect(&mut self, site: &Site, redirect: &HttpsRedirect) {
        for location in &redirect.left_out {
            self.out
                .remarks
                .add(location, "redirect_http redirects these requests, too; for ACME challenges, see [acme]");
        }
        for header in self.scope.enter_block(site.server.inner()).list("add_header") {
            self.out.remarks.add(header, "left out at `redirect_http`, whose redirects have no headers of the config");
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
        let own = self.claim_hosts(site);
        let mut hosts = ServerHosts { hosts: if is_default { Vec::new() } else { own.clone() }, own, is_taken: false };
        if hosts.hosts.is_empty() && !is_default {
            self.out.remarks.add(server, "no request can reach this server by name, so it is left out");
            return Ok(());
        }
        self.review_server(server);
        let first_name = site.names().into_iter().find(|name| is_host(name));
        let mut context = Context {
            out: &mut *self.out,
            zones: &mut self.zones,
            upstreams: &self.upstreams,
            facts: self.facts,
            variables: self.variables,
            guards: Vec::new(),
            server: index,
            server_name: first_name.as_deref(),
            closed: shared.closed,
            site: server.inner(),
            outer: scope,
            compress: shared.compress,
            inner_regex: None,
            redirects: None,
        };
        let (known, unreachable) = (&self.known, &mut self.unreachable);
        let steps = read_steps(&mut context, site, scope, &mut hosts, is_default, known, unreachable)?;
        let ServerSteps { mut locations, by_host, answer } = steps;
        if let Some(directive) = answer {
            let body = translate_return(&mut context, directive, scope, shared.has_tls, &hosts.own)?;
            locations.push(Location { matcher: match_all(), body });
        } else {
            translate_locations(&mut context, server, scope, &mut locations)?;
        }
        let remark = context.closed;
        let fallback = match translate_unmatched(&mut context, server, scope, &locations)? {
            Some(files) => files,
            None => {
                let guards = std::mem::take(&mut context.guards);
                let mut fallback = self.translate_fallback(server, index, scope, remark, &locations)?;
                guards.iter().for_each(|guard| guard.apply(scope, self.out, &mut fallback));
                fallback
            }
        };
        for (hosts, locations) in by_host {
            for (path, mut body) in order_routes(locations, fallback.clone(), self.out) {
                shared.slashes.apply(&mut body);
                self.write_route(&hosts, &path, body, Some(server))?;
            }
        }
        let mut routes = order_routes(locations, fallback, self.out);
        routes.iter_mut().for_each(|(_, body)| shared.slashes.apply(body));
        self.write_routes(server, is_default, hosts, routes)
    }

    /// Adds comments on the directives of a server that are left out.
    fn review_server(&mut self, server: &Directive) {
        review_block(server.inner(), "S", self.out);
        let is_global = |at: &&Directive| matches!(at.name.as_str(), "keepalive_timeout" | "client_header_timeout");
        for directive in server.inner().iter().filter(is_global) {
            let why = "left out: the gateway has one setting for all servers; write it in `http`";
            self.out.remarks.add(directive, why);
        }
    }

    /// Translates what happens to requests that no location takes.
    fn translate_fallback(
        &mut self,
        server: &Directive,
        index: usize,
        scope: &Scope,
        closed: Option<usize>,
        found: &[Location],
    ) -> Result<RouteBody> {
        let origin = shorten(&format!("{}:{}: server", server.file, server.line));
        let mut fallback = RouteBody::with_status(format!("{origin}, what no location matches"), 404);
        translate_added_headers(scope, self.out, &mut fallback);
        self.zones.apply_limits(scope, index, self.out, &mut fallback)?;
        if !has_all_paths(found) {
            let why = "nginx serves files for paths that no location has; Sluicegate answers 404";
            fallback.add_remark(self.out.remarks.add(server, why));
        }
        for number in closed.into_iter().chain(scope.find_closing(self.out)) {
            fallback.close(number);
        }
        Ok(fallback)
    }

    /// Writes the routes of a server.
    fn write_routes(
        &mut self,
        server: &Directive,
        is_default: bool,
        ServerHosts { mut hosts, own, is_taken }: ServerHosts,
        found: Vec<(String, RouteBody)>,
    ) -> Result<()> {
        if is_taken {
            return Ok(());
        }
        // An `if` may leave one host to the default server.
        let is_default = is_default && hosts.is_empty();
        if found.iter().any(|(path, _)| path.starts_with("~ ^/")) {
            self.out.add_note(IN_ORDER);
        }
        hosts.retain(|host| !self.disputed.contains_key(host));
        if !is_default && hosts.is_empty() {
            return Ok(());
        }
        // A wildcard of another server takes precedence over routes without a host. Requests for unknown hosts may be
        // for another server.
        let is_covered = |name: &String| self.unreachable.is_some() || self.known.may_cover(name);
        // A redirect to the host of the request needs names, and the other routes stay in their order beside it.
        let needs_names = found.iter().any(|(_, body)| body.redirects_to_host());
        let named_hosts: Vec<String> = match is_default {
            true => own
                .into_iter()
                .filter(|name| !self.disputed.contains_key(name) && (needs_names || is_covered(name)))
                .collect(),
            false => Vec::new(),
        };
        for (path, mut body) in found {
            if !named_hosts.is_empty() {
                self.write_route(&named_hosts, &path, body.clone(), Some(server))?;
            }
            if let Some(number) = self.unreachable.filter(|_| is_default) {
                body.close(number);
            }
            self.write_route(&hosts, &path, body, Some(server))?;
        }
        Ok(())
    }

    /// Claims the names of a server, also of the default one. Returns those that no earlier server has.
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

/// Translates the locations of a server.
fn translate_locations<'a>(
    context: &mut Context<'a, '_>,
    server: &'a Directive,
    scope: &Scope<'a>,
    found: &mut Vec<Location>,
) -> Result<()> {
    let block = LocationBlock::read(server.inner(), None)?;
    for location in server.inner().iter().filter(|directive| directive.name == "location") {
        context.translate_location(location, &block, scope, found)?;
    }
    if let Some(number) = context.inner_regex {
        let is_regex = |location: &&mut Location| location.matcher.literal_path().is_none();
        found.iter_mut().filter(is_regex).for_each(|location| location.body.close(number));
    }
    Ok(())
}

/// Translates the files that a server with a `root` serves for paths that no location has. `None` if a route cannot.
fn translate_unmatched<'a>(
    context: &mut Context<'a, '_>,
    server: &'a Directive,
    scope: &Scope<'a>,
    found: &[Location],
) -> Result<Option<RouteBody>> {
    if has_all_paths(found) || scope.get("root").is_none() {
        return Ok(None);
    }
    let own: Vec<Directive> = server.inner().iter().filter(|at| at.name == "try_files").cloned().collect();
    let body = context.translate_body(server, &own, scope, &match_all())?;
    Ok(Some(body).filter(|body| body.closed.is_none()))
}

/// Returns whether the locations match all paths, so that no request is left for the server itself.
fn has_all_paths(found: &[Location]) -> bool {
    let is_whole = |location: &Location| location.matcher.literal_path() == Some("/") && !location.matcher.is_exact();
    found.iter().any(is_whole)
}

/// Translates a `return` of a server, which answers every request, whatever the location.
fn translate_return<'a>(
    context: &mut Context<'a, '_>,
    at: &Directive,
    scope: &Scope<'a>,
    has_tls: bool,
    own: &[String],
) -> Result<RouteBody> {
    let mut body = context.translate_body(at, std::slice::from_ref(at), scope, &match_all())?;
    if has_tls && is_loop(&body, own) {
        let why = "routes apply to all listeners, so over HTTPS this redirect would lead to itself";
        body.close(context.out.remarks.add(at, why));
    }
    Ok(body)
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
    /// A listener of the gateway has TLS.
    has_tls: bool,
    /// The comment on why the server is closed.
    closed: Option<usize>,
    slashes: SlashMerging,
}
