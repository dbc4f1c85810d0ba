//! Describes how the client's address was found.

use std::net::IpAddr;

use http::HeaderMap;

use crate::config::Config;
use crate::explain::explanation::{ClientReport, HopReport};
use crate::proxy::head::identity::{ClientAddress, ReadHeader, identify_by_hops};

/// Longest text of a hop that is shown, in bytes.
const TEXT_MAX: usize = 100;

/// Returns the client's address, and how it was found.
pub fn find_client(peer: IpAddr, headers: &HeaderMap, config: &Config) -> (ClientAddress, ClientReport) {
    let rules = &config.server.client_address;
    let mut hops: Vec<HopReport> = Vec::new();
    let identity = identify_by_hops(peer, headers, rules, |hop| {
        hops.push(HopReport {
            header: hop.header.to_string(),
            text: String::from_utf8_lossy(&hop.text[..hop.text.len().min(TEXT_MAX)]).into_owned(),
            address: hop.address.map(|ip| ip.to_string()),
            trusted: hop.is_trusted,
        });
    });
    let detail = match (identity.read, hops.last()) {
        _ if !identity.trusted_peer => "the peer is not in trusted_proxies, so it is the client",
        (ReadHeader::None, _) => "the peer is a trusted proxy, but no forwarding header names a client",
        (ReadHeader::Single(_), _) if identity.is_named => "the trusted proxy names the client in this header",
        (ReadHeader::Single(_), _) => {
            "the header is not exactly one address, so the trusted proxy that sent it is the client"
        }
        (_, None) => "the peer is a trusted proxy, but no forwarding header names a client",
        (_, Some(HopReport { address: None, .. })) => {
            "a hop is not an address, so the trusted proxy that wrote it is the client"
        }
        (_, Some(HopReport { trusted: true, .. })) => "every hop is a trusted proxy, so the first one is the client",
        (_, Some(_)) => "the first hop that is not a trusted proxy is the client",
    };
    let report = ClientReport {
        address: identity.ip.to_string(),
        peer: rules.nat64.client_of(peer).to_string(),
        trusted_peer: identity.trusted_peer,
        hops,
        detail: detail.to_owned(),
    };
    (identity, report)
}

/// Returns the client's address that Envoy states in a check. Forwarding headers have no effect then.
pub fn describe_source(ip: IpAddr, config: &Config) -> (ClientAddress, ClientReport) {
    let identity = ClientAddress::of_peer(config.server.client_address.nat64.client_of(ip), false);
    let report = ClientReport {
        address: identity.ip.to_string(),
        peer: identity.ip.to_string(),
        trusted_peer: false,
        hops: Vec::new(),
        detail: "Envoy states the address of the client".to_owned(),
    };
    (identity, report)
}
