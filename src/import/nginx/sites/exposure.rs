//! Finds servers that clients could reach through the gateway, but not in nginx. In nginx a server belongs to its
//! addresses. Routes belong to all listeners, so a server behind client certificates, at a private address, or at a port
//! that a firewall may close, would be open at the other addresses. Such servers are closed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::import::nginx::scope::Scope;
use crate::import::nginx::sites::Site;
use crate::import::nginx::sites::listeners::{CertificateCheck, join_family, read_check};

/// Returns the check of each listener with TLS, by its address: that of its servers, if they agree.
pub fn agree_on_checks(sites: &[&Site], scopes: &[Scope]) -> HashMap<String, CertificateCheck> {
    let mut checks: HashMap<String, CertificateCheck> = HashMap::new();
    for (site, scope) in sites.iter().zip(scopes) {
        let own = read_check(scope);
        for listen in site.listens.iter().filter(|listen| listen.tls) {
            let check = checks.entry(join_family(&listen.address)).or_insert_with(|| own.clone());
            if *check != own {
                *check = CertificateCheck::None;
            }
        }
    }
    checks
}

/// Returns why a server must be closed, or `None` if nobody else can reach it.
pub fn find_exposure(
    site: &Site,
    scope: &Scope,
    sites: &[&Site],
    checks: &HashMap<String, CertificateCheck>,
) -> Option<String> {
    const REMEDY: &str = "routes apply to all listeners, so this server is closed; run it as a gateway of its own";
    let check = read_check(scope);
    let own: Vec<(String, bool)> =
        site.all_listens().map(|listen| (join_family(&listen.address), listen.tls)).collect();
    if check == CertificateCheck::Unavailable && own.iter().any(|(_, tls)| *tls) {
        return Some(
            "this server checks client certificates in a way that is not available, or the import cannot read the file of \
             their CA, so it is closed"
                .to_owned(),
        );
    }
    let is_required = matches!(check, CertificateCheck::Required(_)) && own.iter().all(|(_, tls)| *tls);
    let others = sites.iter().flat_map(|site| site.addresses()).map(str::to_owned);
    for address in others {
        let joined = join_family(&address);
        let is_own = own.iter().any(|(own, _)| *own == joined);
        if is_required && checks.get(&joined) != Some(&check) {
            return Some(format!(
                "clients reach {address} without the certificate that this server requires; {REMEDY}"
            ));
        }
        let wider: Vec<&str> =
            own.iter().map(|(own, _)| own.as_str()).filter(|own| is_own || is_wider(own, &address)).collect();
        if wider.is_empty() {
            return Some(format!("clients at {address} do not reach this server in nginx; {REMEDY}"));
        }
        if !is_own && !site.only_redirects && !wider.iter().any(|own| is_open(own, &address)) {
            return Some(format!(
                "clients at {address} may not reach this server in nginx, as a firewall can close its port to them; {REMEDY}"
            ));
        }
    }
    None
}

/// Returns whether clients that reach the second address can reach the first one, too.
fn is_wider(own: &str, other: &str) -> bool {
    let ((own_level, own_ip), (other_level, other_ip)) = (find_reach(own), find_reach(other));
    match own_level.cmp(&other_level) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => own_level != Reach::Private || own_ip == other_ip,
        std::cmp::Ordering::Less => false,
    }
}

/// Returns whether no firewall stands between clients that reach the second address and the port of the first one. Ports
/// besides those of websites may be closed to some of them.
fn is_open(own: &str, other: &str) -> bool {
    let port = |address: &str| address.parse::<SocketAddr>().ok().map(|socket| socket.port());
    find_reach(other).0 == Reach::Local || matches!(port(own), Some(80 | 443)) || port(own) == port(other)
}

/// Which clients reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// Those on this machine.
    Local,
    /// Those in a private network.
    Private,
    Any,
}

fn find_reach(address: &str) -> (Reach, Option<IpAddr>) {
    let Ok(socket) = address.parse::<SocketAddr>() else { return (Reach::Local, None) };
    let ip = socket.ip().to_canonical();
    let reach = match ip {
        IpAddr::V4(Ipv4Addr::LOCALHOST) | IpAddr::V6(Ipv6Addr::LOCALHOST) => Reach::Local,
        IpAddr::V4(ip) if ip.is_private() || ip.is_loopback() || ip.is_link_local() => Reach::Private,
        IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local() => Reach::Private,
        _ => Reach::Any,
    };
    (reach, Some(ip))
}

#[cfg(test)]
mod tests {
    use super::{is_open, is_wider};

    #[test]
    fn a_firewall_can_hide_ports_besides_those_of_websites() {
        for (own, other, expected) in [
            ("[::]:80", "[::]:8080", true),
            ("[::]:443", "[::]:80", true),
            ("[::]:8080", "[::]:80", false),
            ("[::]:8080", "[::]:8443", false),
            ("[::]:8080", "10.0.0.1:8080", true),
            ("[::]:8080", "10.0.0.1:80", false),
            ("[::]:8080", "127.0.0.1:80", true),
            ("127.0.0.1:8080", "unix:/run/x.sock", true),
        ] {
            assert_eq!(is_open(own, other), expected, "{own} {other}");
        }
    }

    #[test]
    fn wider_addresses_hide_nothing_from_narrower_ones() {
        for (own, other, expected) in [
            ("[::]:80", "10.0.0.1:80", true),
            ("[::]:80", "[::]:8080", true),
            ("127.0.0.1:80", "[::]:8080", false),
            ("unix:/run/x.sock", "127.0.0.1:80", true),
            ("unix:/run/x.sock", "[::]:80", false),
            ("10.0.0.1:80", "203.0.113.1:80", false),
            ("10.0.0.1:80", "10.1.0.1:80", false),
            ("10.0.0.1:80", "10.0.0.1:81", true),
            ("203.0.113.1:80", "198.51.100.1:80", true),
            ("203.0.113.1:80", "[::]:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.2:80", "127.0.0.1:80", true),
        ] {
            assert_eq!(is_wider(own, other), expected, "{own} {other}");
        }
    }
}
