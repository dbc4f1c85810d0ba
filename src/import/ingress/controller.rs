//! Reads the ConfigMap of the controller, whose settings apply to every Ingress. A ConfigMap is one of a controller if it
//! has such settings: charts and administrators choose its name.
//!
//! To translate another setting, read it in `ControllerDefaults::read_setting`, and move its name in `SETTINGS`.

use ipnet::IpNet;

use crate::import::access::{all_networks, format_network};
use crate::import::error::{ImportError, Result};
use crate::import::ingress::describe_node;
use crate::import::ingress::table::{matches_name, sounds_protective};
use crate::import::ingress::values::{
    CONNECT_TIMEOUTS, CUT_TIMEOUT, READ_TIMEOUTS, format_timeouts, is_cut_timeout, parse_network_list, parse_number,
    translate_body_size,
};
use crate::import::model::ImportedConfig;
use crate::import::syntax::Directive;
use crate::import::text::format_array;
use crate::import::verdict::Translation::{self, Differs, NoEffect, Protects, Translated};
use crate::import::yaml::YamlNode;
use crate::text::quote_literal;

/// The settings of the controller by what the import does with them. A `*` at the end matches any suffix.
const SETTINGS: [(Translation, &[&str]); 4] = [
    (
        Translated,
        &[
            "limit-req-status-code",
            "limit-conn-status-code",
            "proxy-body-size",
            "whitelist-source-range",
            "proxy-real-ip-cidr",
            "use-forwarded-headers",
            "enable-real-ip",
            "use-proxy-protocol",
            "forwarded-for-header",
            "proxy-connect-timeout",
            "proxy-read-timeout",
            "client-body-timeout",
        ],
    ),
    (
        Protects,
        &[
            "global-auth-*",
            "block-cidrs",
            "block-user-agents",
            "block-referers",
            "denylist-source-range",
            "enable-modsecurity",
            "enable-owasp-*",
            "modsecurity-snippet",
            "main-snippet",
            "http-snippet",
            "server-snippet",
            "location-snippet",
            "stream-snippet",
            "limit-conn-zone-variable",
        ],
    ),
    (
        NoEffect,
        &[
            "proxy-buffer*",
            "proxy-busy-buffers-size",
            "proxy-request-buffering",
            "proxy-http-version",
            "proxy-send-timeout",
            "proxy-max-temp-file-size",
            "client-body-buffer-size",
            "worker-processes",
            "worker-cpu-affinity",
            "worker-shutdown-timeout",
            "worker-serial-reloads",
            "max-worker-connections",
            "max-worker-open-files",
            "keep-alive",
            "keep-alive-requests",
            "upstream-keepalive-*",
            "log-format-upstream",
            "log-format-stream",
            "log-format-escape-json",
            "log-format-escape-none",
            "error-log-path",
            "error-log-level",
            "access-log-path",
            "access-log-params",
            "ssl-ciphers",
            "ssl-ecdh-curve",
            "ssl-dh-param",
            "ssl-protocols",
            "ssl-session-*",
            "ssl-buffer-size",
            "ssl-early-data",
            "ssl-redirect",
            "use-gzip",
            "gzip-*",
            "brotli-*",
            "enable-brotli",
            "enable-rewrite-log",
            "enable-opentelemetry",
        ],
    ),
    (
        Differs,
        &[
            "add-headers",
            "allow-backend-server-header",
            "allow-cross-namespace-resources",
            "allow-snippet-annotations",
            "annotations-risk-level",
            "annotation-value-word-blocklist",
            "bind-address",
            "client-header-buffer-size",
            "client-header-timeout",
            "compute-full-forwarded-for",
            "custom-http-errors",
            "default-type",
            "disable-access-log",
            "disable-ipv6*",
            "disable-proxy-intercept-errors",
            "enable-access-log-for-default-backend",
            "enable-aio-write",
            "enable-multi-accept",
            "enable-ocsp",
            "enable-opentracing",
            "enable-syslog",
            "enable-underscores-in-headers",
            "force-ssl-redirect",
            "forwarded-for-proxy-protocol-header",
            "generate-request-id",
            "global-allowed-response-headers",
            "global-rate-limit-*",
            "hide-headers",
            "hsts",
            "hsts-*",
            "http-access-log-path",
            "http-redirect-code",
            "http2-max-*",
            "http2-push-preload",
            "ignore-invalid-headers",
            "large-client-header-buffers",
            "limit-rate",
            "limit-rate-after",
            "load-balance",
            "lua-shared-dicts",
            "map-hash-bucket-size",
            "merge-slashes",
            "nginx-status-ipv4-whitelist",
            "nginx-status-ipv6-whitelist",
            "no-auth-locations",
            "no-tls-redirect-locations",
            "proxy-add-original-uri-header",
            "proxy-cookie-domain",
            "proxy-cookie-path",
            "proxy-headers-hash-*",
            "proxy-next-upstream*",
            "proxy-protocol-header-timeout",
            "proxy-redirect-from",
            "proxy-redirect-to",
            "proxy-set-headers",
            "proxy-ssl-location-only",
            "proxy-stream-*",
            "retry-non-idempotent",
            "server-name-hash-*",
            "server-tokens",
            "skip-access-log-urls",
            "ssl-reject-handshake",
            "stream-access-log-path",
            "strict-validate-path-type",
            "use-geoip",
            "use-geoip2",
            "use-http2",
            "use-port-in-redirects",
            "variables-hash-*",
        ],
    ),
];

/// Returns what the import does with a setting of a ConfigMap. `None` for one that the controller does not have.
fn find_setting(key: &str) -> Option<Translation> {
    SETTINGS.iter().find(|(_, names)| matches_name(names, key)).map(|(verdict, _)| *verdict)
}

/// The settings of the controller, which apply to every Ingress.
pub struct ControllerDefaults {
    pub request_status: u16,
    pub connection_status: u16,
    pub access: Vec<(bool, IpNet)>,
    pub max_body: String,
    /// `proxy-real-ip-cidr`.
    proxies: Vec<IpNet>,
    /// `use-forwarded-headers`, and where it is written.
    reads_forwarded: Option<Directive>,
    /// `use-proxy-protocol` is on.
    has_proxy_protocol: bool,
    /// Timeouts in seconds.
    connect: u64,
    read: u64,
    body: u64,
    /// The comment on a setting that may decide which clients are served.
    pub closed: Option<usize>,
}

impl Default for ControllerDefaults {
    fn default() -> ControllerDefaults {
        ControllerDefaults {
            request_status: 503,
            connection_status: 503,
            access: Vec::new(),
            max_body: quote_literal("1MiB"),
            proxies: Vec::new(),
            reads_forwarded: None,
            has_proxy_protocol: false,
            connect: 5,
            read: 60,
            body: 60,
            closed: None,
        }
    }
}

impl ControllerDefaults {
    /// Reads the ConfigMaps that have settings of a controller. With several, it is unknown whose settings an Ingress has.
    pub fn read_config_maps<'a>(
        maps: impl Iterator<Item = &'a YamlNode>,
        out: &mut ImportedConfig,
    ) -> ControllerDefaults {
        let mut defaults = ControllerDefaults::default();
        let mut first: Option<&YamlNode> = None;
        for map in maps.filter(|map| has_settings(map) || is_called_like_one(map)) {
            match first.filter(|_| has_settings(map)) {
                None => {
                    defaults.read_config_map(map, out);
                    first = first.or(Some(map).filter(|map| has_settings(map)));
                }
                Some(first) if list_settings(first) == list_settings(map) => {}
                Some(_) => {
                    let why = "another ConfigMap has settings of a controller, too, and whose settings an Ingress has is \
                               unknown, so all routes are closed; import the Ingresses of one controller with its ConfigMap";
                    let name = map.text_at(&["metadata", "name"]).unwrap_or("");
                    defaults.closed.get_or_insert(out.remarks.add(&describe_node("ConfigMap", name, map), why));
                }
            }
        }
        defaults
    }

    /// Reads the `data` of a ConfigMap.
    fn read_config_map(&mut self, map: &YamlNode, out: &mut ImportedConfig) {
        for (key, node) in list_data(map) {
            let value = node.text().unwrap_or("");
            let at = describe_node(key, value, node);
            match self.read_setting(key, value, node, out) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    let why = format!(
                        "{}; the controller may take its default instead, so all routes are closed",
                        error.message
                    );
                    self.closed.get_or_insert(out.remarks.add(&at, &why));
                    continue;
                }
            }
            let verdict = find_setting(key);
            let is_guard = verdict == Some(Protects) || verdict.is_none() && sounds_protective(key);
            if verdict == Some(NoEffect) || value == "false" && key.starts_with("enable-") {
                continue;
            }
            if is_guard {
                let why = "it may decide which clients are served, so all routes are closed";
                self.closed.get_or_insert(out.remarks.add(&at, why));
            } else {
                out.remarks.add(&at, "not available, so it is left out");
            }
        }
    }

    /// Reads a setting that the import translates. Returns false for every other one.
    fn read_setting(&mut self, key: &str, value: &str, node: &YamlNode, out: &mut ImportedConfig) -> Result<bool> {
        let status = || {
            let status = value.parse::<u16>().ok().filter(|status| (400..=599).contains(status));
            status
                .ok_or_else(|| ImportError::new(&node.file, node.line, format!("{key}: not a status from 400 to 599")))
        };
        match key {
            "limit-req-status-code" => self.request_status = status()?,
            "limit-conn-status-code" => self.connection_status = status()?,
            "proxy-body-size" => self.max_body = translate_body_size(value, node)?,
            "whitelist-source-range" => {
                let allowed = parse_network_list(value, node)?.into_iter().map(|net| (true, net));
                self.access = allowed.chain(all_networks().map(|net| (false, net))).collect();
            }
            "proxy-connect-timeout" => self.connect = read_timeout(key, value, node, out)?,
            "proxy-read-timeout" => self.read = read_timeout(key, value, node, out)?,
            "client-body-timeout" => self.body = read_timeout(key, value, node, out)?,
            "proxy-real-ip-cidr" => self.proxies = parse_network_list(value, node)?,
            "use-forwarded-headers" | "enable-real-ip" => {
                if value == "true" {
                    self.reads_forwarded = Some(describe_node(key, value, node));
                }
            }
            "use-proxy-protocol" => {
                self.has_proxy_protocol = value == "true";
                if self.has_proxy_protocol {
                    let why = "write a [[listener]] with proxy_protocol = true";
                    out.remarks.add(&describe_node(key, value, node), why);
                }
            }
            "forwarded-for-header" if value.eq_ignore_ascii_case("X-Forwarded-For") => {}
            "forwarded-for-header" => {
                let why = "only X-Forwarded-For or Forwarded is read, and the client's address may decide who is served, so \
                           all routes are closed";
                self.closed.get_or_insert(out.remarks.add(&describe_node(key, value, node), why));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Writes the trusted proxies. ingress-nginx reads `X-Forwarded-For` only with `use-forwarded-headers`, and then, by
    /// default, that of every client.
    pub fn write_trusted_proxies(&self, out: &mut ImportedConfig) {
        let Some(at) = self.reads_forwarded.as_ref().filter(|_| !self.has_proxy_protocol) else { return };
        let networks: Vec<String> = match self.proxies.as_slice() {
            [] => {
                let why = "every client chooses its address, as in ingress-nginx; write the networks of your proxies to \
                           trusted_proxies";
                out.remarks.add(at, why);
                vec!["0.0.0.0/0".to_owned()]
            }
            proxies => proxies.iter().map(format_network).collect(),
        };
        out.server.push(format!("trusted_proxies = {}", format_array(&networks)));
    }

    /// Writes the timeouts that differ from those of a gateway. Annotations take precedence.
    pub fn write_timeouts(&self, out: &mut ImportedConfig) {
        out.server.extend(format_timeouts(&CONNECT_TIMEOUTS, self.connect));
        out.server.extend(format_timeouts(&["body_timeout"], self.body));
        if self.read != ControllerDefaults::default().read {
            out.server.extend(format_timeouts(&READ_TIMEOUTS, self.read));
        }
    }
}

/// Reads a timeout in seconds.
fn read_timeout(key: &str, value: &str, node: &YamlNode, out: &mut ImportedConfig) -> Result<u64> {
    let seconds = parse_number(key, value, node)?;
    if is_cut_timeout(seconds) {
        out.remarks.add(&describe_node(key, value, node), CUT_TIMEOUT);
    }
    Ok(seconds)
}

fn list_data(map: &YamlNode) -> &[(String, YamlNode)] {
    map.get("data").map_or(&[], YamlNode::entries)
}

/// Returns the settings of a ConfigMap in the order of their names.
fn list_settings(map: &YamlNode) -> Vec<(&str, &str)> {
    let mut settings: Vec<(&str, &str)> =
        list_data(map).iter().map(|(key, node)| (key.as_str(), node.text().unwrap_or(""))).collect();
    settings.sort_unstable();
    settings
}

/// Returns whether a ConfigMap has a setting that only a controller reads.
fn has_settings(map: &YamlNode) -> bool {
    list_data(map).iter().any(|(key, _)| find_setting(key).is_some())
}

/// Returns whether a ConfigMap has the name of one of a controller, and other data than files, whose names have a dot.
fn is_called_like_one(map: &YamlNode) -> bool {
    let name = map.text_at(&["metadata", "name"]).unwrap_or("");
    ["nginx", "ingress"].iter().any(|word| name.contains(word))
        && list_data(map).iter().any(|(key, _)| !key.contains('.'))
}
