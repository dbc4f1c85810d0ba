//! Listen addresses, sets of networks and strings for `allow`, `deny`, `when` and `trusted_proxies`, the network of a
//! client, IPv4 clients behind translators (NAT64), and keepalive of sockets. The config compiler builds the sets, and
//! requests look up addresses in them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use ipnet::{IpNet, Ipv6Net};
use nix::unistd;
use socket2::{SockRef, TcpKeepalive};

/// TCP keepalive of clients and upstream servers: a peer that has vanished, such as a phone or a laptop that sleeps, is
/// noticed two minutes after its last packet. Otherwise its tunnel would keep a slot and two connections for an hour.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);

/// Enables TCP keepalive. Without it the connection still works, so errors are ignored.
pub fn enable_keepalive(socket: &SockRef<'_>) {
    let _ = socket.set_tcp_keepalive(&KEEPALIVE);
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddr {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The permissions of a listener's Unix socket, which decide who may connect. They do not concern TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits. To connect, a process needs the permission to write.
    pub mode: u32,
    /// Name or number of the user who owns the file. `None`: the user of the gateway.
    pub owner: Option<String>,
    /// Name or number of the group of the file. `None`: the group of the gateway.
    pub group: Option<String>,
}

impl SocketAccess {
    /// Every user of the machine, as with a TCP port of the loopback address.
    pub const ALL_USERS: SocketAccess = SocketAccess { mode: 0o666, owner: None, group: None };
    /// The user of the gateway.
    pub const OWN_USER: SocketAccess = SocketAccess { mode: 0o600, owner: None, group: None };

    /// Returns the number of the owner, if there is a name.
    ///
    /// # Errors
    /// This machine has no such user.
    pub fn find_owner(&self) -> io::Result<Option<u32>> {
        let find = |name: &str| Ok(unistd::User::from_name(name)?.map(|user| user.uid.as_raw()));
        find_number("user", self.owner.as_deref(), find)
    }

    /// Returns the number of the group, if there is a name.
    ///
    /// # Errors
    /// This machine has no such group.
    pub fn find_group(&self) -> io::Result<Option<u32>> {
        let find = |name: &str| Ok(unistd::Group::from_name(name)?.map(|group| group.gid.as_raw()));
        find_number("group", self.group.as_deref(), find)
    }
}

/// Returns the number that a text is or that `find` finds by it.
fn find_number(
    noun: &str,
    name: Option<&str>,
    find: impl Fn(&str) -> io::Result<Option<u32>>,
) -> io::Result<Option<u32>> {
    let Some(name) = name else { return Ok(None) };
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    find(name)?.map(Some).ok_or_else(|| io::Error::other(format!("there is no {noun} `{name}`")))
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(addr) => addr.fmt(f),
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ListenAddr {
    /// Returns whether only this machine reaches the address.
    pub fn is_local(&self) -> bool {
        match self {
            ListenAddr::Tcp(addr) => addr.ip().is_loopback(),
            ListenAddr::Unix(_) => true,
        }
    }

    /// Returns true if the system refuses to bind one of the addresses while the other is bound. Port 0 is a new port
    /// each time. Whether `[::]` includes the IPv4 addresses depends on a system setting, so that case is not
    /// recognized.
    pub fn conflicts_with(&self, other: &ListenAddr) -> bool {
        match (self, other) {
            (ListenAddr::Tcp(a), ListenAddr::Tcp(b)) => {
                let any = a.ip().is_unspecified() || b.ip().is_unspecified();
                a.port() == b.port() && a.port() != 0 && a.is_ipv4() == b.is_ipv4() && (any || a.ip() == b.ip())
            }
            (a, b) => a == b,
        }
    }
}

/// A set of networks. A lookup costs one hash probe per distinct prefix length in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpSet {
    /// Networks by prefix length, sorted by length, so that equal sets compare equal.
    by_prefix: Vec<(u8, HashSet<IpAddr>)>,
}

impl IpSet {
    pub fn is_empty(&self) -> bool {
        self.by_prefix.is_empty()
    }

    /// Returns true if any network of the set contains `ip`, or the IPv4 address that `ip` maps.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.by_prefix.iter().any(|(len, nets)| IpNet::new(ip, *len).is_ok_and(|net| nets.contains(&net.network())))
    }

    /// Returns whether this network itself is in the set.
    pub fn has_network(&self, network: IpNet) -> bool {
        let slot = self.by_prefix.binary_search_by_key(&network.prefix_len(), |(len, _)| *len);
        slot.is_ok_and(|slot| self.by_prefix[slot].1.contains(&network.network()))
    }

    pub fn iter(&self) -> impl Iterator<Item = IpNet> + '_ {
        let nets = self.by_prefix.iter().flat_map(|(len, nets)| nets.iter().map(|net| IpNet::new(*net, *len)));
        nets.filter_map(Result::ok)
    }

    pub fn extend(&mut self, other: &IpSet) {
        for (len, nets) in &other.by_prefix {
            for ip in nets {
                if let Ok(net) = IpNet::new(*ip, *len) {
                    self.insert(net);
                }
            }
        }
    }

    fn insert(&mut self, net: IpNet) {
        let len = net.prefix_len();
        let slot = self.by_prefix.binary_search_by_key(&len, |(len, _)| *len).unwrap_or_else(|slot| {
            self.by_prefix.insert(slot, (len, HashSet::new()));
            slot
        });
        self.by_prefix[slot].1.insert(net.network());
    }
}

/// A named set of the config (`[set.NAME]`).
#[derive(Debug, Default, PartialEq)]
pub struct NamedSet {
    /// All items as written.
    pub strings: HashSet<String>,
}

impl FromIterator<IpNet> for IpSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> IpSet {
        let mut set = IpSet::default();
        nets.into_iter().for_each(|net| set.insert(net));
        set
    }
}

/// Replaces the unspecified address, which can be listened on but not connected to.
pub fn to_reachable(mut addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    addr
}

/// Parses `10.0.0.1`, `10.0.0.0/8` or `2001:db8::/32`. A network of mapped addresses, such as `::ffff:10.0.0.0/104`, is
/// an IPv4 network, as their clients have IPv4 addresses. Returns `None` if there are host bits after the prefix.
pub fn parse_network(text: &str) -> Option<IpNet> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(IpNet::from(ip.to_canonical()));
    }
    let net = text.parse::<IpNet>().ok().filter(|net| net.addr() == net.network())?;
    match (net.addr().to_canonical(), net.prefix_len().checked_sub(MAPPED_LEN)) {
        (ip @ IpAddr::V4(_), Some(len)) => IpNet::new(ip, len).ok(),
        _ => Some(net),
    }
}

/// Length of the prefix of mapped addresses, `::ffff:0:0/96`.
const MAPPED_LEN: u8 = 96;

/// Returns the address under which the gateway counts a client, whichever address it has at the moment: its IPv4
/// address, or the /64 network in which an IPv6 client chooses its addresses.
pub fn client_network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        ip => ip,
    }
}

/// Prefixes under which translators between IPv4 and IPv6 show IPv4 clients (NAT64 and SIIT, RFC 6052). Otherwise all
/// clients behind a translator would be one /64 network, and no list of IPv4 networks would have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nat64(Vec<Nat64Prefix>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat64Prefix(Ipv6Net);

/// The well-known prefix, `64:ff9b::/96`.
const WELL_KNOWN: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

impl Default for Nat64 {
    fn default() -> Nat64 {
        Nat64(vec![Nat64Prefix(WELL_KNOWN)])
    }
}

impl Nat64 {
    /// Returns the well-known prefix and others; without others, none at all.
    pub fn with_prefixes(others: impl IntoIterator<Item = Nat64Prefix>) -> Nat64 {
        let mut prefixes: Vec<Nat64Prefix> = others.into_iter().collect();
        let well_known = Nat64Prefix(WELL_KNOWN);
        if !prefixes.is_empty() && !prefixes.contains(&well_known) {
            prefixes.push(well_known);
        }
        Nat64(prefixes)
    }

    /// Returns the address of the client that `ip` stands for: the IPv4 address that it contains, or itself.
    pub fn client_of(&self, ip: IpAddr) -> IpAddr {
        match ip.to_canonical() {
            IpAddr::V6(ip) => self.0.iter().find_map(|prefix| prefix.find_ipv4(ip)).map_or(ip.into(), IpAddr::V4),
            ip => ip,
        }
    }

    /// Returns whether the clients in this network have IPv4 addresses, so that no request comes from it.
    pub fn has_translated(&self, net: &IpNet) -> bool {
        match net {
            IpNet::V6(net) if net.prefix_len() == net.max_prefix_len() => self.client_of(net.addr().into()).is_ipv4(),
            IpNet::V6(net) => self.0.iter().any(|Nat64Prefix(prefix)| prefix.contains(net)),
            IpNet::V4(_) => false,
        }
    }
}

impl Nat64Prefix {
    /// Parses `64:ff9b::/96`. Returns `None` if translators cannot use the prefix (RFC 6052, section 2.2).
    pub fn parse(text: &str) -> Option<Nat64Prefix> {
        let net: Ipv6Net = text.parse().ok()?;
        let is_valid = net.addr() == net.network() && matches!(net.prefix_len(), 32 | 40 | 48 | 56 | 64 | 96);
        // The ninth byte of an address is zero, hence also that of a prefix.
        (is_valid && net.addr().octets()[8] == 0).then_some(Nat64Prefix(net))
    }

    /// Returns the IPv4 address that an address with this prefix contains.
    fn find_ipv4(self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        let octets = ip.octets();
        if !self.0.contains(&ip) || octets[8] != 0 {
            return None;
        }
        let first = usize::from(self.0.prefix_len() / 8);
        let mut bytes = (first..16).filter(|at| *at != 8).map(|at| octets[at]);
        let found = Ipv4Addr::new(bytes.next()?, bytes.next()?, bytes.next()?, bytes.next()?);
        self.may_contain(found).then_some(found)
    }

    /// Returns whether a translator may put this address behind the prefix. Others are forged: no peer becomes a
    /// loopback address in this way, nor a private one under the well-known prefix (RFC 6052, section 3.1).
    fn may_contain(self, ip: Ipv4Addr) -> bool {
        let [first, ..] = ip.octets();
        let is_global = !ip.is_private() && !is_shared(ip);
        (1..224).contains(&first) && !ip.is_loopback() && !ip.is_link_local() && (is_global || self.0 != WELL_KNOWN)
    }
}

/// Returns the address that a host in a URL is; IPv6 is in brackets there.
pub fn host_address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(ip) => ip.parse().ok().filter(IpAddr::is_ipv6),
        None => host.parse().ok().filter(IpAddr::is_ipv4),
    }
}

/// Returns whether the address belongs to this machine or to a private network.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared(ip),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

/// Returns whether the address is one of those that providers share among customers, 100.64.0.0/10 (RFC 6598).
fn is_shared(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    first == 100 && second & 0b1100_0000 == 64
}

/// Returns whether packets to this host never leave the machine.
pub fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host_address(host).is_some_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contains_asks_every_prefix_length_and_unmaps_ipv4() {
        let set: IpSet = ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"].iter().filter_map(|t| parse_network(t)).collect();
        for (ip, inside) in [
            ("10.255.0.1", true),
            ("::ffff:10.1.2.3", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("2001:db8:1::1", true),
            ("2001:db9::1", false),
        ] {
            assert_eq!(set.contains(ip.parse().unwrap()), inside, "{ip}");
        }
    }

    #[test]
    fn sets_of_the_same_networks_are_equal() {
        let set = |texts: [&str; 3]| texts.iter().filter_map(|text| parse_network(text)).collect::<IpSet>();
        let one = set(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]);
        assert_eq!(one, set(["2001:db8::/32", "192.0.2.7", "10.0.0.0/8"]));
        assert_ne!(one, set(["2001:db8::/32", "192.0.2.8", "10.0.0.0/8"]));
        assert_ne!(one, set(["2001:db8::/33", "192.0.2.7", "10.0.0.0/8"]));
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let client = |ip: &str| client_network(ip.parse().unwrap());
        assert_eq!(client("2001:db8::1"), client("2001:db8::2"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    }

    #[test]
    fn networks_of_mapped_addresses_are_ipv4() {
        for (written, network) in [
            ("::ffff:1.2.3.0/120", Some("1.2.3.0/24")),
            ("::ffff:0:0/96", Some("0.0.0.0/0")),
            ("::ffff:1.2.3.4", Some("1.2.3.4/32")),
            ("::ffff:1.2.3.4/128", Some("1.2.3.4/32")),
            ("::ffff:1.2.3.4/120", None),
            ("::/0", Some("::/0")),
            ("::fffe:0:0/95", Some("::fffe:0:0/95")),
            ("2001:db8::/96", Some("2001:db8::/96")),
        ] {
            let found = parse_network(written).map(|net| net.to_string());
            assert_eq!(found.as_deref(), network, "{written}");
        }
    }

    #[test]
    fn networks_behind_a_translator_have_no_client_of_their_own() {
        let has = |net: &str| Nat64::default().has_translated(&parse_network(net).unwrap());
        for net in ["64:ff9b::1.2.3.4", "64:ff9b::/96", "64:ff9b::102:300/120"] {
            assert!(has(net), "{net}");
        }
        // A peer with a forged address keeps it.
        for net in ["64:ff9b::10.0.0.1", "64:ff9b::/64", "::/0", "1.2.3.4", "2001:db8::/96"] {
            assert!(!has(net), "{net}");
        }
    }

    /// The addresses are those of RFC 6052, section 2.4.
    #[test]
    fn a_translated_address_is_the_ipv4_client_behind_it() {
        for (prefix, ip) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
        ] {
            let nat64 = Nat64::with_prefixes(Nat64Prefix::parse(prefix));
            assert_eq!(nat64.client_of(ip.parse().unwrap()).to_string(), "192.0.2.33", "{prefix}");
        }
        let other = Nat64::with_prefixes(Nat64Prefix::parse("2001:db8::/32"));
        assert_eq!(other.client_of("64:ff9b::192.0.2.33".parse().unwrap()).to_string(), "192.0.2.33");
        let none = Nat64::with_prefixes([]);
        assert!(none.client_of("64:ff9b::192.0.2.33".parse().unwrap()).is_ipv6());
        let client = |ip: &str| Nat64::default().client_of(ip.parse().unwrap()).to_string();
        assert_eq!(client("::ffff:192.0.2.33"), "192.0.2.33");
        for other in ["2001:db8::1", "64:ff9b:1::192.0.2.33", "64:ff9b::1:192.0.2.33"] {
            assert_eq!(client(other).parse::<Ipv6Addr>(), other.parse(), "{other}");
        }
    }

    #[test]
    fn no_peer_becomes_an_address_that_is_not_behind_a_translator() {
        let local = Nat64::with_prefixes(Nat64Prefix::parse("64:ff9b:1::/96"));
        for (ip, is_behind_local) in [
            ("127.0.0.1", false),
            ("0.0.0.0", false),
            ("169.254.1.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("10.0.0.1", true),
            ("100.64.0.1", true),
        ] {
            let well_known: IpAddr = format!("64:ff9b::{ip}").parse().unwrap();
            assert_eq!(Nat64::default().client_of(well_known), well_known, "{ip}");
            let own: IpAddr = format!("64:ff9b:1::{ip}").parse().unwrap();
            assert_eq!(local.client_of(own).is_ipv4(), is_behind_local, "{ip}");
        }
        for wrong in ["64:ff9b::/95", "64:ff9b::1/96", "10.0.0.0/8", "64:ff9b::", "2001:db8:0:0:ff00::/96"] {
            assert!(Nat64Prefix::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn host_bits_after_the_prefix_are_refused() {
        assert!(parse_network("10.0.0.1/8").is_none());
        assert!(parse_network("10.0.0.0/33").is_none());
    }

    #[test]
    fn all_addresses_means_this_machine() {
        assert_eq!(to_reachable("0.0.0.0:1".parse().unwrap()), "127.0.0.1:1".parse().unwrap());
        assert_eq!(to_reachable("[::]:1".parse().unwrap()), "[::1]:1".parse().unwrap());
    }
}
