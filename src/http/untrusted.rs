//! Forwarding fields from peers that `trusted_proxies` does not name. They are dropped, as any client could
//! make them up; but where such a peer is a proxy after all, its clients are one to the limits, and nobody
//! would know why. So it is counted, and told with the line of the config that mends it. Called by the page.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderMap;

use crate::http::complaints::Complaints;
use crate::metrics::{Counter, Metrics};
use crate::net::IpSet;
use crate::sampled::Sampled;

/// Between two lines of one listener.
const PERIOD_MS: u64 = 600_000;
/// Longer lists are not repeated.
const NETWORKS_MAX: usize = 16;

/// Of one listener.
pub struct UntrustedForwarding {
    listener: Rc<str>,
    sample: Arc<Sampled>,
    count: Counter,
}

impl UntrustedForwarding {
    pub fn new(listener: &Rc<str>, complaints: &Complaints, metrics: &Metrics) -> UntrustedForwarding {
        UntrustedForwarding {
            listener: listener.clone(),
            sample: complaints.forwarding(listener),
            count: metrics.forwarding_ignored(listener),
        }
    }

    /// Looks at the fields of a request from `peer`, which is none of `trusted`. `told`: whether that is known of its
    /// connection, which is one peer all along.
    pub fn look(&self, headers: &HeaderMap, peer: IpAddr, trusted: &IpSet, told: &Cell<bool>) {
        let Some(field) = headers.keys().map(http::HeaderName::as_str).find(|name| is_forwarding(name)) else { return };
        self.count.inc();
        if told.replace(true) {
            return;
        }
        if let Some(left_out) = self.sample.due_every(PERIOD_MS) {
            let left_out = Some(left_out).filter(|left_out| *left_out > 0);
            let peer = peer.to_canonical();
            tracing::warn!(
                listener = &*self.listener,
                %peer,
                field,
                left_out,
                "a request says for whom it is forwarded, but `trusted_proxies` does not name its peer: such fields are \
                 dropped, and all clients behind that peer count as one. If it is a proxy of yours, write under \
                 [server]: {}; if it is a client, nothing is to be done",
                remedy(peer, trusted)
            );
        }
    }
}

/// `X-Request-ID` alone says nothing of a client, and many of them send one.
fn is_forwarding(name: &str) -> bool {
    name.starts_with("x-forwarded-") || matches!(name, "x-real-ip" | "forwarded")
}

fn remedy(peer: IpAddr, trusted: &IpSet) -> String {
    let mut networks: Vec<String> = trusted.iter().map(|net| net.to_string()).collect();
    if networks.len() > NETWORKS_MAX {
        return format!("\"{peer}\" in trusted_proxies, besides what stands there");
    }
    networks.sort();
    networks.push(peer.to_string());
    format!("trusted_proxies = {networks:?}")
}

#[cfg(test)]
mod tests {
    use crate::net::parse_network;

    use super::*;

    #[test]
    fn the_remedy_keeps_what_is_trusted_already() {
        let set = |texts: &[&str]| texts.iter().filter_map(|text| parse_network(text)).collect::<IpSet>();
        let peer = "192.0.2.7".parse().unwrap();
        assert_eq!(remedy(peer, &IpSet::default()), "trusted_proxies = [\"192.0.2.7\"]");
        let some = set(&["10.0.0.0/8", "2001:db8::/32"]);
        assert_eq!(remedy(peer, &some), "trusted_proxies = [\"10.0.0.0/8\", \"2001:db8::/32\", \"192.0.2.7\"]");
        let many: Vec<String> = (0..=NETWORKS_MAX).map(|i| format!("10.0.0.{i}")).collect();
        let many = set(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(remedy(peer, &many).starts_with("\"192.0.2.7\" in trusted_proxies"));
    }
}
