//! Translates Kubernetes Ingresses with the annotations of ingress-nginx.
//!
//! Input: YAML documents. Ingresses become routes; Services give the numbers of named ports; the ConfigMap of the
//! controller gives its settings. Other kinds are skipped. Output: routes, limits and upstreams in an
//! [`ImportedConfig`], and a remark about each annotation that is not translated.
//!
//! - `table`: every annotation, and what the import does with it.
//! - `controller`: the settings of the ConfigMap; `classes`: which Ingresses are those of one controller.
//! - `annotations`: the annotations of an Ingress; `cors`, `rewrites`: those of one subject.
//! - `canary`: Ingresses that get a part of the requests of others.
//!
//! To add an annotation, add its row to `table`. One that is translated is read in `Annotations::read_annotation`, or in
//! `LimitAnnotations::read_annotation` if it concerns limits or access.

mod annotations;
mod canary;
mod classes;
mod controller;
mod cors;
mod rewrites;
mod table;
mod values;

pub use table::write_table;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use indexmap::IndexMap;

use crate::import::error::{ImportError, Result};
use crate::import::ingress::annotations::Annotations;
use crate::import::ingress::canary::Canary;
use crate::import::ingress::classes::{Classes, Membership};
use crate::import::ingress::controller::ControllerDefaults;
use crate::import::ingress::rewrites::{format_regex, rewrite_path};
use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::paths::{Location, LocationMatcher, order_routes};
use crate::import::syntax::{Directive, shorten};
use crate::import::text::format_array;
use crate::import::yaml::YamlNode;
use crate::text::quote_literal;

/// The port numbers of services, by namespace, service name and port name.
type Ports<'a> = HashMap<(&'a str, &'a str, &'a str), &'a str>;

/// Describes a node of a manifest as a directive, for a remark.
fn describe_node(what: &str, value: &str, node: &YamlNode) -> Directive {
    let args = if value.is_empty() { Vec::new() } else { vec![value.to_owned()] };
    Directive {
        name: what.to_owned(),
        args,
        block: None,
        file: Rc::clone(&node.file),
        line: node.line,
        base: Path::new("").into(),
        is_expanded: false,
    }
}

/// Translates the Ingresses among the documents.
pub fn translate_ingresses(documents: &[YamlNode], out: &mut ImportedConfig) -> Result<()> {
    let of = |kind: &'static str| documents.iter().filter(move |document| document.text_at(&["kind"]) == Some(kind));
    let defaults = ControllerDefaults::read_config_maps(of("ConfigMap"), out);
    defaults.write_trusted_proxies(out);
    defaults.write_timeouts(out);
    let classes = Classes::read_classes(of("Ingress"), of("IngressClass"));
    let mut ports = Ports::new();
    for service in of("Service") {
        let at = |key| service.text_at(&["metadata", key]);
        for port in service.at(&["spec", "ports"]).map_or(&[][..], YamlNode::list) {
            if let (Some(name), Some(number)) = (port.text_at(&["name"]), port.text_at(&["port"])) {
                ports.insert((at("namespace").unwrap_or("default"), at("name").unwrap_or(""), name), number);
            }
        }
    }
    let mut hosts = Hosts::default();
    let mut canaries = Vec::new();
    let mut ingresses: Vec<&YamlNode> = of("Ingress").collect();
    let any = !ingresses.is_empty();
    // The order of the controller: of two with the same path, it takes the one that was created first.
    ingresses.sort_by_key(|ingress| ingress.text_at(&["metadata", "creationTimestamp"]));
    for ingress in ingresses {
        let mut one = Ingress::new(ingress, &defaults, &ports);
        if !one.has_class(&classes, out) {
            continue;
        }
        match Canary::read_canary(ingress, out)? {
            // It may be for the routes of another controller.
            Some(_) if one.closed.is_some() => {}
            Some(canary) => canaries.push((one, canary)),
            None => one.translate_ingress(out, &mut hosts)?,
        }
    }
    hosts.add_default_backends();
    // They change the routes of the other Ingresses, whatever the order of the documents.
    for (ingress, canary) in canaries {
        ingress.translate_canary(&canary, out, &mut hosts.locations);
    }
    if !any {
        let file = documents.first().map_or("the files", |document| &*document.file);
        return Err(ImportError::new(file, 0, "there is no Ingress in these files"));
    }
    out.server.insert(0, "listen = \"0.0.0.0:8080\"".to_owned());
    out.add_note(
        "Each gateway counts its own requests, as each ingress-nginx controller did. With several gateways and one \
              budget for all, set `url` of [store] to a Redis.",
    );
    out.add_note(
        "Requests go to the services, whose cluster address chooses a pod for each connection. For `balance` over \
              pods, name a headless service.",
    );
    for (host, mut locations) in hosts.locations {
        if let Some(number) = hosts.closed.get(&host) {
            locations.iter_mut().for_each(|location| location.body.close(*number));
        }
        if hosts.with_regexes.contains(&host) {
            become_regexes(&mut locations);
        } else {
            find_slash_redirects(&mut locations);
        }
        let fallback = RouteBody::with_status(
            format!("host {}: what no path matches", if host.is_empty() { "*" } else { &host }),
            404,
        );
        let names: Vec<String> = if host.is_empty() { Vec::new() } else { vec![host] };
        for (path, body) in order_routes(locations, fallback, out) {
            if !out.write_route(&names, &path, body) {
                return Err(ImportError::new(
                    "the files",
                    0,
                    "the config would be larger than 16 MiB; import fewer at once",
                ));
            }
        }
    }
    Ok(())
}

/// The locations of all hosts. The host without a name is for requests to all others.
#[derive(Default)]
struct Hosts<'a> {
    locations: IndexMap<String, Vec<Location>>,
    /// The Ingress of each location, by host, path and whether the path is exact.
    owners: HashMap<(String, String, bool), Owner<'a>>,
    /// Hosts whose paths are regular expressions.
    with_regexes: HashSet<String>,
    /// The comments on why all routes of a host are closed.
    closed: HashMap<String, usize>,
    /// The locations of `defaultBackend`: for the paths of a host that no rule has.
    defaults: HashMap<String, Location>,
}

/// An Ingress by its namespace and name, and when it was created, if the manifest says so.
#[derive(Clone, Copy)]
struct Owner<'a> {
    name: (&'a str, &'a str),
    created: Option<&'a str>,
}

impl Hosts<'_> {
    /// Adds the default backends of hosts without a rule for all paths.
    fn add_default_backends(&mut self) {
        for (host, default) in self.defaults.drain() {
            let locations = self.locations.entry(host).or_default();
            if !locations.iter().any(|location| is_same(&location.matcher, &default.matcher)) {
                locations.push(default);
            }
        }
    }
}

/// Finds the paths that nginx redirects to a path with a slash at its end.
fn find_slash_redirects(locations: &mut [Location]) {
    let paths: HashSet<String> = locations.iter().map(|location| path_text(&location.matcher).to_owned()).collect();
    for location in locations {
        let bare = location.matcher.find_bare_path();
        location.body.redirects_to_slash = bare.is_some_and(|bare| !paths.contains(bare));
    }
}

/// Turns all paths of a host into regular expressions without case, the longest first, as ingress-nginx does.
fn become_regexes(locations: &mut [Location]) {
    let exact =
        |location: &Location| Some(path_text(&location.matcher).to_owned()).filter(|_| location.matcher.is_exact());
    let exact: HashSet<String> = locations.iter().filter_map(exact).collect();
    for location in locations.iter_mut() {
        let text = path_text(&location.matcher);
        // A `Prefix` beside an `Exact` of the same path has a slash at its end.
        let slash = match &location.matcher {
            LocationMatcher::Segments(path) if exact.contains(path) && !path.ends_with('/') => "/",
            _ => "",
        };
        let pattern = format_regex(text, slash);
        location.matcher = LocationMatcher::Regex { pattern, ignore_case: true };
    }
    let order = |location: &Location| {
        let text = path_text(&location.matcher);
        std::cmp::Reverse((text.len(), text.to_owned()))
    };
    locations.sort_by_cached_key(order);
}

fn path_text(matcher: &LocationMatcher) -> &str {
    match matcher {
        LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => path,
        LocationMatcher::Regex { pattern, .. } | LocationMatcher::Server { pattern, .. } => pattern,
    }
}

struct Ingress<'a> {
    node: &'a YamlNode,
    namespace: &'a str,
    name: &'a str,
    created: Option<&'a str>,
    defaults: &'a ControllerDefaults,
    ports: &'a Ports<'a>,
    /// The comment on a class that may belong to another controller.
    closed: Option<usize>,
}

impl<'a> Ingress<'a> {
    fn new(node: &'a YamlNode, defaults: &'a ControllerDefaults, ports: &'a Ports<'a>) -> Ingress<'a> {
        let at = |key| node.text_at(&["metadata", key]);
        let (namespace, name) = (at("namespace").unwrap_or("default"), at("name").unwrap_or("unnamed"));
        Ingress { node, namespace, name, created: at("creationTimestamp"), defaults, ports, closed: None }
    }

    fn translate_ingress(&mut self, out: &mut ImportedConfig, hosts: &mut Hosts<'a>) -> Result<()> {
        let annotations = Annotations::read_annotations(self.node, self.namespace, self.name, self.defaults, out);
        for tls in self.node.at(&["spec", "tls"]).map_or(&[][..], YamlNode::list) {
            let secret = tls.text_at(&["secretName"]).unwrap_or("");
            let why = "mount the certificate and add a [[listener]] with tls, and redirect_http of [server] where it redirects";
            out.remarks.add(&describe_node("tls", secret, tls), why);
        }
        let rules = self.node.at(&["spec", "rules"]).map_or(&[][..], YamlNode::list);
        let mut new_hosts: Vec<String> = Vec::new();
        for rule in rules {
            let host = rule.text_at(&["host"]).unwrap_or("").to_ascii_lowercase();
            if !is_host(&host) {
                return Err(self.error(rule, &format!("`{}` is not a host", shorten(&host))));
            }
            if let Some(number) = annotations.closes_hosts {
                hosts.closed.entry(host.clone()).or_insert(number);
            }
            if !hosts.locations.contains_key(&host) {
                hosts.locations.insert(host.clone(), Vec::new());
                new_hosts.push(host.clone());
            }
            for path in rule.at(&["http", "paths"]).map_or(&[][..], YamlNode::list) {
                let text = path.text_at(&["path"]).filter(|text| !text.is_empty()).unwrap_or("/").to_owned();
                let matcher = read_matcher(path, text)
                    .map_err(|other| self.error(path, &format!("`{}` is not a pathType", shorten(&other))))?;
                let backend = path.get("backend");
                let locations = hosts.locations.entry(host.clone()).or_default();
                let owner = (host.clone(), path_text(&matcher).to_owned(), matcher.is_exact());
                if let Some(owner) = hosts.owners.get(&owner) {
                    let kept = locations.iter_mut().find(|other| is_same(&other.matcher, &matcher));
                    self.leave_out_path(path, *owner, kept, out);
                    continue;
                }
                hosts.owners.insert(owner, Owner { name: (self.namespace, self.name), created: self.created });
                if self.closed.is_none() && annotations.makes_regexes(path_text(&matcher)) {
                    hosts.with_regexes.insert(host.clone());
                }
                locations.push(self.translate_path(path, backend, matcher, &annotations, out));
            }
        }
        if let Some(backend) = self.node.at(&["spec", "defaultBackend"]) {
            // With rules, it is for the hosts that no Ingress before this one has; without, for all other hosts.
            let hosts_of = if rules.is_empty() { vec![String::new()] } else { new_hosts };
            for host in hosts_of {
                if hosts.defaults.contains_key(&host) {
                    continue;
                }
                let matcher = LocationMatcher::Segments("/".to_owned());
                hosts.defaults.insert(host, self.translate_path(backend, Some(backend), matcher, &annotations, out));
            }
        }
        Ok(())
    }

    /// Returns whether the Ingress is one of ingress-nginx. If it may be for another controller than the first Ingress, its
    /// routes are closed.
    fn has_class(&mut self, classes: &Classes, out: &mut ImportedConfig) -> bool {
        let at = describe_node("Ingress", self.name, self.node);
        match classes.find_membership(self.node) {
            Membership::Same => true,
            Membership::Unclear(why) => {
                self.closed = Some(out.remarks.add(&at, &why));
                true
            }
            Membership::Other(why) => {
                out.remarks.add(&at, &why);
                false
            }
        }
    }

    /// Gives the services of a canary their part of the routes with the same hosts and paths.
    fn translate_canary(&self, canary: &Canary, out: &mut ImportedConfig, hosts: &mut IndexMap<String, Vec<Location>>) {
        for rule in self.node.at(&["spec", "rules"]).map_or(&[][..], YamlNode::list) {
            let host = rule.text_at(&["host"]).unwrap_or("").to_ascii_lowercase();
            for path in rule.at(&["http", "paths"]).map_or(&[][..], YamlNode::list) {
                let text = path.text_at(&["path"]).filter(|text| !text.is_empty()).unwrap_or("/").to_owned();
                let Ok(matcher) = read_matcher(path, text.clone()) else { continue };
                let locations = hosts.entry(host.clone()).or_default();
                let found = locations.iter_mut().find(|location| is_same(&location.matcher, &matcher));
                let server = path.get("backend").map_or(Err("it has no backend"), |backend| self.find_server(backend));
                let why = match (found, server) {
                    (Some(location), Ok((service, port))) if !Canary::is_diverted(&location.body) => {
                        let main = match &location.body.action {
                            RouteAction::Upstream(main) => out.find_upstream(main),
                            _ => None,
                        };
                        let Some(main) = main else { continue };
                        let upstream = define_like(&main, (&service, &port), out);
                        let more = canary.divert(location, &upstream);
                        locations.extend(more);
                        continue;
                    }
                    (Some(_), Ok(_)) => "another canary has this path, so this one is left out",
                    (None, _) => "no other Ingress has this host and path, so the canary is left out",
                    (_, Err(why)) => why,
                };
                out.remarks.add(&describe_node("path", &text, path), why);
            }
        }
    }

    /// Leaves out a path that another Ingress or rule has, too. Closes the kept location if the files do not say which of the
    /// two Ingresses the controller takes: the other one may protect the path.
    fn leave_out_path(&self, at: &YamlNode, owner: Owner<'_>, kept: Option<&mut Location>, out: &mut ImportedConfig) {
        let path = describe_node("path", at.text_at(&["path"]).unwrap_or("/"), at);
        if owner.name == (self.namespace, self.name) {
            out.remarks.add(&path, "a rule of this Ingress before this one has the same path, so this one is left out");
        } else if owner.created.is_some() && owner.created != self.created {
            out.remarks.add(&path, "an older Ingress has the same path, so this one is left out");
        } else {
            let why = format!(
                "Ingress {}/{} has the same path. The controller takes the one that was created first, and these files do \
                 not say which one that is. Leave one of them out, or import them with their creationTimestamp",
                shorten(owner.name.0),
                shorten(owner.name.1)
            );
            let number = out.remarks.add(&path, &why);
            if let Some(kept) = kept {
                kept.body.close(number);
            }
        }
    }

    /// Translates a path to a location.
    fn translate_path(
        &self,
        at: &YamlNode,
        backend: Option<&YamlNode>,
        matcher: LocationMatcher,
        annotations: &Annotations,
        out: &mut ImportedConfig,
    ) -> Location {
        let path = path_text(&matcher).to_owned();
        let origin =
            shorten(&format!("{}:{}: Ingress {}/{}, path {path}", at.file, at.line, self.namespace, self.name));
        let mut body = RouteBody::with_status(origin, 503);
        match backend.map_or(Err("it has no backend"), |backend| self.find_server(backend)) {
            Ok((host, port)) => {
                let servers = quote_literal(&format!("{}://{host}.svc:{port}", annotations.scheme()));
                let mut lines = vec![format!("servers = {servers}")];
                lines.extend(annotations.upstream.iter().cloned());
                let (upstream, _) = out.define_upstream(&format!("{host}-{port}{}", annotations.suffix()), lines);
                body.action = RouteAction::Upstream(upstream);
            }
            Err(why) => {
                let number = out.remarks.add(&describe_node("path", &path, at), why);
                body.close(number);
            }
        }
        annotations.apply_to_route(out, &mut body);
        if let Some(number) = self.closed {
            body.close(number);
        }
        rewrite_path(annotations, &path, out, &mut body);
        Location { matcher, body }
    }

    /// Finds the service of a backend. Returns `SERVICE.NAMESPACE` and the port, or the reason why there is none.
    fn find_server(&self, backend: &YamlNode) -> std::result::Result<(String, String), &'static str> {
        // API versions before networking.k8s.io/v1 use `serviceName` and `servicePort`.
        let service = backend.text_at(&["service", "name"]).or_else(|| backend.text_at(&["serviceName"]));
        let service = service.filter(|name| is_label(name)).ok_or("its backend is not a service")?;
        let port =
            backend.text_at(&["service", "port", "number"]).or_else(|| backend.text_at(&["service", "port", "name"]));
        let port = port.or_else(|| backend.text_at(&["servicePort"])).ok_or("its backend has no port")?;
        let port = match port.parse::<u16>() {
            Ok(_) => port,
            Err(_) => self
                .ports
                .get(&(self.namespace, service, port))
                .ok_or("its port has a name; import the Service, too")?,
        };
        match port.parse::<u16>() {
            Ok(port @ 1..) if is_label(self.namespace) => {
                Ok((format!("{service}.{}", self.namespace), port.to_string()))
            }
            _ => Err("the port is not a number"),
        }
    }

    fn error(&self, at: &YamlNode, message: &str) -> ImportError {
        ImportError::new(&at.file, at.line, format!("Ingress {}: {message}", shorten(self.name)))
    }
}

/// Reads the path of a rule. The error is the `pathType` that is not known.
fn read_matcher(path: &YamlNode, text: String) -> std::result::Result<LocationMatcher, String> {
    match path.text_at(&["pathType"]) {
        Some("Exact") => Ok(LocationMatcher::Exact(text)),
        Some("Prefix") => Ok(LocationMatcher::Segments(text)),
        Some("ImplementationSpecific") | None => Ok(LocationMatcher::Prefix { path: text, first: false }),
        Some(other) => Err(other.to_owned()),
    }
}

/// Defines the upstream of a canary with the protocol of the route that it diverts. `main`: the lines of that one's
/// upstream.
fn define_like(main: &[String], (service, port): (&str, &str), out: &mut ImportedConfig) -> String {
    let has = |scheme: &&str| main.first().is_some_and(|servers| servers.contains(&format!("{scheme}://")));
    let scheme = ["https", "h2c"].into_iter().find(has).unwrap_or("http");
    let mut lines = vec![format!("servers = {}", quote_literal(&format!("{scheme}://{service}.svc:{port}")))];
    lines.extend(main.iter().skip(1).cloned());
    let suffix = if scheme == "http" { String::new() } else { format!("-{scheme}") };
    out.define_upstream(&format!("{service}-{port}{suffix}"), lines).0
}

fn is_same(a: &LocationMatcher, b: &LocationMatcher) -> bool {
    path_text(a) == path_text(b) && matches!(a, LocationMatcher::Exact(_)) == matches!(b, LocationMatcher::Exact(_))
}

/// Returns true for a valid name of a service or a namespace.
fn is_label(name: &str) -> bool {
    (1..=63).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_host(host: &str) -> bool {
    host.is_empty() || host.strip_prefix("*.").unwrap_or(host).split('.').all(is_label)
}

/// Formats networks as a `client` condition that excludes them.
fn format_exemptions(networks: &[String]) -> String {
    format_array(&networks.iter().map(|network| format!("!{network}")).collect::<Vec<_>>())
}
