//! Reads the annotations of an Ingress.

use ipnet::IpNet;

use crate::import::access::{all_networks, format_network};
use crate::import::error::Result;
use crate::import::ingress::controller::ControllerDefaults;
use crate::import::ingress::cors::CorsAnnotations;
use crate::import::ingress::table::{find_annotation, is_of_controller, sounds_protective};
use crate::import::ingress::values::{
    CONNECT_TIMEOUTS, CUT_TIMEOUT, READ_TIMEOUTS, format_timeouts, is_cut_timeout, parse_network_list, parse_number,
    translate_body_size,
};
use crate::import::ingress::{describe_node, format_exemptions};
use crate::import::model::{ImportedConfig, RouteBody};
use crate::import::nginx::limit_in_flight;
use crate::import::syntax::Directive;
use crate::import::verdict::Translation;
use crate::import::yaml::YamlNode;

pub const PREFIX: &str = "nginx.ingress.kubernetes.io/";
/// The prefix of old versions.
const OLD_PREFIX: &str = "ingress.kubernetes.io";
/// `burst` is this many times the rate if there is no `limit-burst-multiplier`.
const MULTIPLIER: u64 = 5;

/// The settings that an Ingress gives its routes.
pub struct Annotations {
    use_regex: bool,
    /// The target of its paths, and where it is written.
    rewrite_target: Option<(String, Directive)>,
    /// The `Host` that the services of the Ingress get, and the place of the annotation.
    pub upstream_vhost: Option<(String, Directive)>,
    cors: CorsAnnotations,
    /// Additional lines of its upstreams.
    pub upstream: Vec<String>,
    protocol: String,
    limits: Vec<String>,
    access: Vec<(bool, IpNet)>,
    lines: Vec<String>,
    remarks: Vec<usize>,
    closed: Option<usize>,
    /// The comment on an annotation that protects all routes of its hosts, even if they come from other Ingresses.
    pub closes_hosts: Option<usize>,
}

impl Annotations {
    /// Reads the annotations of an Ingress.
    pub fn read_annotations(
        ingress: &YamlNode,
        namespace: &str,
        name: &str,
        defaults: &ControllerDefaults,
        out: &mut ImportedConfig,
    ) -> Annotations {
        let mut annotations = Annotations {
            use_regex: false,
            rewrite_target: None,
            upstream_vhost: None,
            cors: CorsAnnotations::default(),
            upstream: Vec::new(),
            protocol: "HTTP".to_owned(),
            limits: Vec::new(),
            access: Vec::new(),
            lines: vec![format!("max_body = {}", defaults.max_body)],
            remarks: Vec::new(),
            closed: defaults.closed,
            closes_hosts: None,
        };
        let mut values = LimitAnnotations::default();
        for (key, node) in ingress.at(&["metadata", "annotations"]).map_or(&[][..], YamlNode::entries) {
            let value = node.text().unwrap_or("").trim();
            let Some(key) = key.strip_prefix(PREFIX) else {
                annotations.report_other_prefix(key, value, node, out);
                continue;
            };
            if annotations.cors.read_annotation(key, value) {
                continue;
            }
            let is_timeout = matches!(key, "proxy-connect-timeout" | "proxy-read-timeout");
            if is_timeout && value.parse::<u64>().is_ok_and(is_cut_timeout) {
                annotations.remarks.push(out.remarks.add(&describe_node(key, value, node), CUT_TIMEOUT));
            }
            let is_read = match values.read_annotation(key, value, node) {
                Ok(false) => annotations.read_annotation(key, value, node),
                is_read => is_read,
            };
            match is_read {
                Ok(true) => {}
                Ok(false) => annotations.report_annotation(key, value, node, out),
                Err(error) => {
                    let why = "ingress-nginx ignores the annotation or the whole Ingress, depending on its version, so \
                               the routes of this Ingress are closed";
                    let number =
                        out.remarks.add(&describe_node(key, value, node), &format!("{}; {why}", error.message));
                    annotations.closed.get_or_insert(number);
                }
            }
        }
        annotations.limits = values.define_limits((namespace, name), defaults, out);
        annotations.access = values.list_access_rules(defaults);
        annotations.apply_protocol(ingress, out);
        match annotations.cors.format_option() {
            Ok(option) => annotations.lines.extend(option),
            Err(why) => {
                let number = out.remarks.add(&describe_node("cors-allow-origin", "", ingress), &why);
                annotations.remarks.push(number);
            }
        }
        annotations
    }

    /// Reads an annotation about proxying. Returns false if it is not one that the import translates.
    fn read_annotation(&mut self, key: &str, value: &str, node: &YamlNode) -> Result<bool> {
        match key {
            "proxy-body-size" => self.lines[0] = format!("max_body = {}", translate_body_size(value, node)?),
            "proxy-connect-timeout" => {
                self.lines.extend(format_timeouts(&CONNECT_TIMEOUTS, parse_number(key, value, node)?));
            }
            "proxy-read-timeout" => {
                self.lines.extend(format_timeouts(&READ_TIMEOUTS, parse_number(key, value, node)?));
            }
            "backend-protocol" => value.clone_into(&mut self.protocol),
            "use-regex" => self.use_regex = value == "true",
            "rewrite-target" => self.rewrite_target = Some((value.to_owned(), describe_node(key, value, node))),
            "upstream-vhost" => self.upstream_vhost = Some((value.to_owned(), describe_node(key, value, node))),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds a remark about an annotation that is not translated. Closes the routes if it protected them.
    fn report_annotation(&mut self, key: &str, value: &str, node: &YamlNode, out: &mut ImportedConfig) {
        let at = describe_node(key, value, node);
        match find_annotation(key) {
            Some((Translation::Translated | Translation::NoEffect, _)) => {}
            Some(_) if value == "false" => {}
            Some((Translation::Protects, note)) => {
                let is_of_host = key == "server-snippet" || key.starts_with("auth-tls-");
                let what = if is_of_host { "all routes of its hosts" } else { "the routes of this Ingress" };
                let number = out.remarks.add(&at, &format!("{note}; until then, {what} are closed"));
                self.closed.get_or_insert(number);
                self.closes_hosts = self.closes_hosts.or(Some(number).filter(|_| is_of_host));
            }
            Some((Translation::Differs, note)) => self.remarks.push(out.remarks.add(&at, &format!("left out: {note}"))),
            None => self.leave_out(&at, "the import does not know this annotation", key, value, out),
        }
    }

    /// Adds a remark about an annotation of another controller, or of ingress-nginx with another prefix.
    fn report_other_prefix(&mut self, key: &str, value: &str, node: &YamlNode, out: &mut ImportedConfig) {
        let Some((prefix, name)) = key.split_once('/').filter(|(prefix, name)| is_of_controller(prefix, name)) else {
            return;
        };
        let why = match prefix == OLD_PREFIX {
            true => "ingress-nginx ignores annotations with this prefix by default, and so does the import",
            false => "the import reads annotations of ingress-nginx only",
        };
        self.leave_out(&describe_node(key, value, node), why, name, value, out);
    }

    /// Adds a remark about an annotation that is left out. Closes the routes if its name is the name of a protection.
    fn leave_out(&mut self, at: &Directive, why: &str, name: &str, value: &str, out: &mut ImportedConfig) {
        let is_on = !value.eq_ignore_ascii_case("false") && value != "off";
        let is_guard = sounds_protective(name) || matches!(find_annotation(name), Some((Translation::Protects, _)));
        if is_on && is_guard {
            let why =
                format!("{why}, and it may decide which clients are served, so the routes of this Ingress are closed");
            self.closed.get_or_insert(out.remarks.add(at, &why));
        } else {
            self.remarks.push(out.remarks.add(at, &format!("{why}, so it is left out")));
        }
    }

    /// Adds the upstream lines of `backend-protocol`. Closes the routes if Sluicegate lacks the protocol.
    fn apply_protocol(&mut self, ingress: &YamlNode, out: &mut ImportedConfig) {
        match self.protocol.as_str() {
            "HTTP" | "GRPC" => {}
            "HTTPS" | "GRPCS" => {
                self.upstream.push("tls = { verify = false }".to_owned());
                if self.protocol == "GRPCS" {
                    self.upstream.push("protocol = \"http2\"".to_owned());
                }
                out.add_note(
                    "ingress-nginx does not verify the certificates of backends by default, so `verify = false` stands \
                     here. Remove it where the backends have valid certificates.",
                );
            }
            other => {
                let number = out.remarks.add(&describe_node("backend-protocol", other, ingress), "not available");
                self.closed.get_or_insert(number);
            }
        }
    }

    /// Returns the scheme of server URLs.
    pub fn scheme(&self) -> &'static str {
        match self.protocol.as_str() {
            "HTTPS" | "GRPCS" => "https",
            "GRPC" => "h2c",
            _ => "http",
        }
    }

    /// Returns the end of an upstream's name, so that upstreams of one service with different protocols differ.
    pub fn suffix(&self) -> String {
        if self.protocol == "HTTP" { String::new() } else { format!("-{}", self.protocol.to_ascii_lowercase()) }
    }

    /// Returns whether ingress-nginx makes all paths of the host regular expressions because of this path.
    pub fn makes_regexes(&self, path: &str) -> bool {
        self.use_regex || self.find_target(path).is_some()
    }

    pub fn find_target(&self, path: &str) -> Option<&(String, Directive)> {
        self.rewrite_target.as_ref().filter(|(target, _)| !target.is_empty() && target != path)
    }

    /// Applies the settings to a route.
    pub fn apply_to_route(&self, out: &mut ImportedConfig, body: &mut RouteBody) {
        body.limits.clone_from(&self.limits);
        body.lines.extend(self.lines.iter().cloned());
        for number in &self.remarks {
            body.add_remark(*number);
        }
        if let Some(number) = self.closed {
            body.close(number);
        }
        out.restrict_clients(body, &self.access);
    }
}

/// Annotations about limits and access, which depend on one another.
struct LimitAnnotations<'a> {
    /// `limit-rps`, `limit-rpm` and `limit-connections` with their numbers.
    wanted: Vec<(&'a str, u64)>,
    multiplier: u64,
    /// Networks that the limits skip.
    exempt: Vec<IpNet>,
    allowed: Vec<IpNet>,
    denied: Vec<IpNet>,
}

impl Default for LimitAnnotations<'_> {
    fn default() -> Self {
        LimitAnnotations {
            wanted: Vec::new(),
            multiplier: MULTIPLIER,
            exempt: Vec::new(),
            allowed: Vec::new(),
            denied: Vec::new(),
        }
    }
}

impl<'a> LimitAnnotations<'a> {
    /// Reads an annotation about limits or access. Returns false for every other annotation.
    fn read_annotation(&mut self, key: &'a str, value: &str, node: &YamlNode) -> Result<bool> {
        match key {
            "limit-rps" | "limit-rpm" | "limit-connections" => {
                self.wanted.push((key, parse_number(key, value, node)?));
            }
            "limit-burst-multiplier" => self.multiplier = parse_number(key, value, node)?.clamp(1, 1000),
            "limit-whitelist" | "limit-allowlist" => self.exempt = parse_network_list(value, node)?,
            "whitelist-source-range" | "allowlist-source-range" => self.allowed = parse_network_list(value, node)?,
            "denylist-source-range" => self.denied = parse_network_list(value, node)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Defines the limits of an Ingress and returns their names. The number 0 means no limit.
    fn define_limits(
        &self,
        (namespace, name): (&str, &str),
        defaults: &ControllerDefaults,
        out: &mut ImportedConfig,
    ) -> Vec<String> {
        let limits = self.wanted.iter().filter(|(_, number)| *number > 0);
        limits
            .map(|(key, number)| {
                define_limit(key, *number, self.multiplier, &self.exempt, (namespace, name), defaults, out)
            })
            .collect()
    }

    /// Lists the access rules in nginx's order. Without an allowlist of the Ingress, the controller's applies.
    fn list_access_rules(self, defaults: &ControllerDefaults) -> Vec<(bool, IpNet)> {
        let mut rules: Vec<(bool, IpNet)> = self.denied.into_iter().map(|net| (false, net)).collect();
        if self.allowed.is_empty() {
            rules.extend(defaults.access.iter().copied());
        } else {
            rules.extend(self.allowed.into_iter().map(|net| (true, net)));
            rules.extend(all_networks().map(|net| (false, net)));
        }
        rules
    }
}

/// Defines the limit of one annotation and returns its name.
fn define_limit(
    key: &str,
    number: u64,
    multiplier: u64,
    exempt: &[IpNet],
    (namespace, name): (&str, &str),
    defaults: &ControllerDefaults,
    out: &mut ImportedConfig,
) -> String {
    let (mut lines, status, kind) = match key {
        "limit-connections" => (limit_in_flight(number), defaults.connection_status, "connections"),
        "limit-rps" => (format_rate(number, "s", multiplier), defaults.request_status, "rps"),
        _ => (format_rate(number, "min", multiplier), defaults.request_status, "rpm"),
    };
    lines.push("key = \"ip/32/128\"".to_owned());
    if !exempt.is_empty() {
        let exempt: Vec<String> = exempt.iter().map(format_network).collect();
        lines.push(format!("when = {{ client = {} }}", format_exemptions(&exempt)));
    }
    let limit_name = format!("{namespace}-{name}-{kind}");
    out.define_limit(format!("{namespace}/{name}/{kind}"), &limit_name, lines, status).0
}

fn format_rate(number: u64, unit: &str, multiplier: u64) -> Vec<String> {
    // nginx counts `burst` on top of the current request; Sluicegate counts all requests.
    vec![format!("rate = \"{number}/{unit}\""), format!("burst = {}", number * multiplier + 1)]
}
