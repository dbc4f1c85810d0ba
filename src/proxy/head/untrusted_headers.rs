//! Reports forwarding headers from peers that are not in `trusted_proxies`. Such headers are dropped, because any
//! client could forge them. But if such a peer is a proxy, all its clients count as one client. So the gateway counts
//! requests with such headers, and logs the config line that would fix it.
//!
//! Likewise, reports trusted proxies that name no client: all their clients count as one, too. And counts headers that
//! are removed because servers could confuse their names with others.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use crate::config::client_address::ClientAddressRules;
use crate::net::IpSet;
use crate::proxy::words::failure_log::FailureLog;
use crate::telemetry::metrics::{Counter, Metrics};
use crate::telemetry::sampled::LogSampler;

/// Time between two log lines for one listener.
const PERIOD_MS: u64 = 600_000;
/// Maximum number of trusted networks that a log line lists.
const NETWORKS_MAX: usize = 16;

/// Counters and log lines of one listener.
pub struct UntrustedForwarding {
    listener: Rc<str>,
    sample: Arc<LogSampler>,
    count: Counter,
    unnamed_sample: Arc<LogSampler>,
    unnamed_count: Counter,
    ambiguous_count: Counter,
}

impl UntrustedForwarding {
    pub fn new(listener: &Rc<str>, failure_log: &FailureLog, metrics: &Metrics) -> UntrustedForwarding {
        UntrustedForwarding {
            listener: listener.clone(),
            sample: failure_log.forwarding_sample(listener),
            count: metrics.forwarding_ignored_counter(listener),
            unnamed_sample: failure_log.unnamed_sample(listener),
            unnamed_count: metrics.client_unnamed_counter(listener),
            ambiguous_count: metrics.ambiguous_headers_counter(listener),
        }
    }

    /// Reports the headers of a request from `peer`, which is not a trusted proxy. `is_reported`: whether this
    /// connection has been reported already; its peer never changes.
    pub fn report_headers(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        rules: &ClientAddressRules,
        is_reported: &Cell<bool>,
    ) {
        let is_read = |name: &&HeaderName| {
            is_forwarding_header(name.as_str()) || rules.headers.singles().any(|single| single == *name)
        };
        let Some(field) = headers.keys().find(is_read).map(HeaderName::as_str) else { return };
        self.count.inc();
        if is_reported.replace(true) {
            return;
        }
        if let Some(left_out) = self.sample.take_turn_every(PERIOD_MS) {
            let left_out = Some(left_out).filter(|left_out| *left_out > 0);
            let peer = peer.to_canonical();
            tracing::warn!(
                listener = &*self.listener,
                %peer,
                field,
                left_out,
                "ignoring forwarding headers from a peer that is not in `trusted_proxies`: all clients behind it count as \
                 one. If the peer is a proxy of yours, write under [server]: {}. If it is a client, nothing needs to be \
                 done",
                suggest_config(peer, &rules.trusted)
            );
        }
    }

    /// Counts headers whose names servers could confuse with others.
    pub fn count_ambiguous(&self, count: usize) {
        self.ambiguous_count.add(count as u64);
    }

    /// Reports a request from `peer`, which is a trusted proxy, that names no client.
    pub fn report_unnamed(
        &self,
        (headers, rules): (&HeaderMap, &ClientAddressRules),
        peer: IpAddr,
        is_reported: &Cell<bool>,
    ) {
        self.unnamed_count.inc();
        if is_reported.replace(true) {
            return;
        }
        if let Some(left_out) = self.unnamed_sample.take_turn_every(PERIOD_MS) {
            let left_out = Some(left_out).filter(|left_out| *left_out > 0);
            let peer = peer.to_canonical();
            tracing::warn!(
                listener = &*self.listener,
                %peer,
                left_out,
                "a trusted proxy names no client: all clients behind it count as one. {}. If the proxy sends requests of \
                 its own, such as health checks, nothing needs to be done",
                suggest_header(headers, rules)
            );
        }
    }
}

/// Headers in which proxies name the client: those of one address, then lists.
const ADDRESS_HEADERS: [&str; 9] = [
    "cf-connecting-ip",
    "fly-client-ip",
    "true-client-ip",
    "x-azure-clientip",
    "x-client-ip",
    "x-real-ip",
    "fastly-client-ip",
    "x-forwarded-for",
    "forwarded",
];

/// Returns how to have a proxy name its clients.
fn suggest_header(headers: &HeaderMap, rules: &ClientAddressRules) -> String {
    if let Some(name) = rules.headers.singles().find(|name| headers.contains_key(*name)) {
        return format!("Its header {name} is not exactly one address");
    }
    let is_read = |name: &str| rules.headers.iter().any(|header| header.name() == name);
    match ADDRESS_HEADERS.iter().find(|name| headers.contains_key(**name) && !is_read(name)) {
        Some(name) => {
            format!("If it writes the header {name} itself, write under [server]: client_address = \"{name}\"")
        }
        None if rules.headers.is_configured => {
            let names: Vec<&str> = rules.headers.iter().map(|header| header.name().as_str()).collect();
            format!("It does not name one in the headers of `client_address` ({})", names.join(", "))
        }
        None => "Have it send X-Forwarded-For, or name its header in `client_address` of [server]".to_owned(),
    }
}

/// Headers that proxies send about the client. `X-Request-ID` and headers with an identity, like `X-Forwarded-User`,
/// are none: many clients send the first, and a proxy that sends the others sends one of these as well.
const FORWARDING_HEADERS: [&str; 8] = [
    "forwarded",
    "x-real-ip",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
];

fn is_forwarding_header(name: &str) -> bool {
    FORWARDING_HEADERS.contains(&name)
}

/// Returns the config entry that would trust `peer`.
fn suggest_config(peer: IpAddr, trusted: &IpSet) -> String {
    let mut networks: Vec<String> = trusted.iter().map(|net| net.to_string()).collect();
    if networks.len() > NETWORKS_MAX {
        return format!("\"{peer}\" in trusted_proxies, in addition to the entries there");
    }
    networks.sort();
    networks.push(peer.to_string());
    format!("trusted_proxies = {networks:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::parse_network;

    #[test]
    fn an_identity_is_no_forwarding_header() {
        assert!(
            ["forwarded", "x-real-ip", "x-forwarded-for", "x-forwarded-proto"]
                .iter()
                .all(|name| is_forwarding_header(name))
        );
        assert!(!["x-forwarded-user", "x-request-id", "remote-user"].iter().any(|name| is_forwarding_header(name)));
    }

    #[test]
    fn the_remedy_keeps_what_is_trusted_already() {
        let set = |texts: &[&str]| texts.iter().filter_map(|text| parse_network(text)).collect::<IpSet>();
        let peer = "192.0.2.7".parse().unwrap();
        assert_eq!(suggest_config(peer, &IpSet::default()), "trusted_proxies = [\"192.0.2.7\"]");
        let some = set(&["10.0.0.0/8", "2001:db8::/32"]);
        assert_eq!(suggest_config(peer, &some), "trusted_proxies = [\"10.0.0.0/8\", \"2001:db8::/32\", \"192.0.2.7\"]");
        let many: Vec<String> = (0..=NETWORKS_MAX).map(|i| format!("10.0.0.{i}")).collect();
        let many = set(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(suggest_config(peer, &many).starts_with("\"192.0.2.7\" in trusted_proxies"));
    }
}
