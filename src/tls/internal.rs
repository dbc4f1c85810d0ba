//! Development certificates of a listener (`tls = { internal = true }`): the options, and the names that the local CA
//! may sign. The CA certificate contains the same list as name constraints (RFC 5280, section 4.2.1.10), so that a
//! stolen key cannot impersonate public sites.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::IpNet;

/// Development certificates of one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalTls {
    /// Directory of the CA.
    pub state: PathBuf,
    /// Lower-case names and addresses for the certificate, besides the hosts of routes.
    pub names: Vec<String>,
}

/// Domains that the CA may sign, with everything below them. All are reserved: no public site has such a name.
pub const DOMAINS: [&str; 9] =
    ["localhost", "test", "internal", "local", "home.arpa", "example", "example.com", "example.net", "example.org"];

/// Networks whose addresses the CA may sign: loopback, private and link-local.
pub const NETWORKS: [(IpAddr, u8); 8] = [
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// Names of every development certificate. The first one is always there.
pub const DEFAULT_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Returns whether the CA may sign this lower-case name, wildcard or address. A name that some clients call malformed
/// would make them refuse the whole certificate: a wildcard below a single label, or a label with a hyphen at its end.
pub fn is_signable(name: &str) -> bool {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return NETWORKS.iter().any(|(network, len)| IpNet::new(*network, *len).is_ok_and(|net| net.contains(&ip)));
    }
    let (name, is_wildcard) = name.strip_prefix("*.").map_or((name, false), |name| (name, true));
    let is_label = |label: &str| !label.starts_with('-') && !label.ends_with('-') && !["", "*"].contains(&label);
    if is_wildcard && !name.contains('.') || !name.split('.').all(is_label) {
        return false;
    }
    DOMAINS.iter().any(|domain| name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reserved_names_and_private_addresses_can_be_signed() {
        for name in
            ["localhost", "a.localhost", "*.app.test", "*.example.com", "a_b.test", "www.example.com", "x.home.arpa"]
        {
            assert!(is_signable(name), "{name}");
        }
        for name in [
            "com",
            "google.com",
            "notlocalhost",
            "*.com",
            "home.arpa.com",
            "arpa",
            "examplexcom",
            "",
            "*.localhost",
            "-a.test",
            "a-.test",
            "a..test",
            "*.*.test",
        ] {
            assert!(!is_signable(name), "{name}");
        }
        for ip in ["127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "172.31.0.1", "192.168.0.7", "fd00::1", "fe80::1"] {
            assert!(is_signable(ip), "{ip}");
        }
        for ip in ["8.8.8.8", "172.32.0.1", "2001:db8::1", "::2", "0.0.0.0", "::"] {
            assert!(!is_signable(ip), "{ip}");
        }
        assert!(DEFAULT_NAMES.iter().all(|name| is_signable(name)));
    }
}
