//! Turns lists of `allow` and `deny` into sets of networks. In nginx, the first rule that matches decides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Maximum number of rules of one list. The time to combine them grows with the square of their number.
pub const RULES_MAX: usize = 256;

/// The networks that a list of rules allows and denies. Together they cover all addresses.
#[derive(Debug, Default)]
pub struct ClientAccess {
    pub allowed: Vec<IpNet>,
    pub denied: Vec<IpNet>,
}

impl ClientAccess {
    /// Combines rules in order; `true` allows. An address that no rule matches is allowed.
    pub fn new(rules: &[(bool, IpNet)]) -> ClientAccess {
        let mut access = ClientAccess::default();
        let mut earlier: Vec<IpNet> = Vec::new();
        let rest = all_networks().map(|net| (true, net));
        for (allow, net) in rules.iter().copied().chain(rest) {
            let list = if allow { &mut access.allowed } else { &mut access.denied };
            subtract(net.trunc(), &earlier, list);
            earlier.push(net.trunc());
        }
        access.allowed = IpNet::aggregate(&access.allowed);
        access.denied = IpNet::aggregate(&access.denied);
        access
    }
}

/// Returns the networks of all IPv4 and all IPv6 addresses.
pub fn all_networks() -> [IpNet; 2] {
    [Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into(), Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0).into()]
}

/// Parses an address, a network, or `all`.
pub fn parse_networks(text: &str) -> Option<Vec<IpNet>> {
    if text == "all" {
        return Some(all_networks().to_vec());
    }
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>().ok().or_else(address).map(|net| vec![net.trunc()])
}

/// Formats a network as a config writes it. A single address has no prefix length.
pub fn format_network(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

/// Adds the part of `net` outside of `others` to `left`.
fn subtract(net: IpNet, others: &[IpNet], left: &mut Vec<IpNet>) {
    if others.iter().any(|other| other.contains(&net)) {
        return;
    }
    let inside: Vec<IpNet> = others.iter().filter(|other| net.contains(*other)).copied().collect();
    if inside.is_empty() {
        left.push(net);
        return;
    }
    for half in net.subnets(net.prefix_len() + 1).into_iter().flatten() {
        subtract(half, &inside, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(rules: &[(bool, &str)]) -> (Vec<String>, Vec<String>) {
        let rules: Vec<_> = rules
            .iter()
            .flat_map(|(allow, text)| parse_networks(text).unwrap_or_default().into_iter().map(|net| (*allow, net)))
            .collect();
        let ClientAccess { allowed, denied } = ClientAccess::new(&rules);
        let texts = |nets: Vec<IpNet>| nets.iter().map(format_network).collect();
        (texts(allowed), texts(denied))
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        assert_eq!(access(&[(false, "192.0.2.9")]).1, ["192.0.2.9"]);
        assert_eq!(access(&[(true, "10.0.0.0/8"), (false, "all")]).0, ["10.0.0.0/8"]);
        let (allowed, denied) = access(&[(false, "10.0.0.0/9"), (true, "10.0.0.0/8"), (false, "all")]);
        assert_eq!(allowed, ["10.128.0.0/9"]);
        assert!(denied.contains(&"::/0".to_owned()));
        assert_eq!(access(&[(true, "all"), (false, "all")]).1, Vec::<String>::new());
        assert_eq!(access(&[(false, "all")]).1, ["0.0.0.0/0", "::/0"]);
    }
}
