//! One lookup of a name: in /etc/hosts, then with the DNS servers of /etc/resolv.conf, or with those of the
//! config. Called by `resolve`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use futures_util::future::{Either, select};
use hickory_resolver::Hosts;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts, ServerOrderingStrategy,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use tokio::time::timeout;

use crate::descriptors;
use crate::upstream::names::{LookupOutcome, usable};

/// For all servers and search domains together.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// For the addresses of one family.
const FAMILY_MAX: Duration = Duration::from_secs(4);
/// For those of the other once one has told all: many servers and what stands before them never answer to AAAA.
const OTHER_FAMILY: Duration = Duration::from_millis(500);
/// For one server that the config names, and for one of the system at most, asked twice.
const ASK: Duration = Duration::from_secs(1);
const ASK_OF_SYSTEM: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
/// What a file on this machine says may change at any time.
const FILE_TTL: Duration = Duration::ZERO;

/// The files that say who is asked.
const FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

pub struct Finder {
    resolver: Option<TokioResolver>,
    /// Where a name may lie that does not end in a dot, in order.
    search: Vec<Name>,
    /// A name with more labels is first asked for as it is.
    ndots: usize,
    hosts: Hosts,
    changed: [Option<SystemTime>; 2],
}

/// What a name has.
pub struct Found {
    /// Those that are of use, in ascending order.
    pub addresses: Vec<IpAddr>,
    /// How many the answer held.
    pub answered: usize,
    pub ttl: Duration,
}

/// What a name has of one family.
struct FamilyAnswer {
    found: Result<(Vec<IpAddr>, Duration), LookupOutcome>,
    /// Whether the name exists is known by it.
    tells_all: bool,
}

impl Finder {
    /// `servers`: in place of those of the system, if there are any.
    pub fn new(servers: &[SocketAddr]) -> Finder {
        // Whoever writes to the files meanwhile is noticed.
        let changed = changed();
        let (config, mut options) = if servers.is_empty() { of_system() } else { of_config(servers) };
        // Answers are kept by who asks for them.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let mut search: Vec<Name> = config.domain().into_iter().chain(config.search()).cloned().collect();
        search.dedup();
        let ndots = options.ndots;
        let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let resolver = builder.with_options(options).build();
        let resolver = resolver.inspect_err(|error| tracing::error!(%error, "names cannot be looked up"));
        let hosts = Hosts::from_system().unwrap_or_default();
        Finder { resolver: resolver.ok(), search, ndots, hosts, changed }
    }

    /// The files are still as they were.
    pub fn is_current(&self) -> bool {
        self.changed == changed()
    }

    /// The addresses of `name`. Those of a family that cannot be asked for now are taken from `before`.
    pub async fn find(&self, name: &str, before: &[IpAddr]) -> Result<Found, LookupOutcome> {
        let (answer, ttl) = match self.in_hosts(name) {
            Some(found) => found,
            None => timeout(LOOKUP_MAX, self.ask(name, before)).await.map_err(|_| LookupOutcome::TimedOut)??,
        };
        let answered = answer.len();
        match usable(answer, before) {
            none if none.is_empty() => Err(LookupOutcome::NoAddress),
            some => Ok(Found { addresses: reachable(some), answered, ttl }),
        }
    }

    /// What stands there is all there is, whichever family it is of.
    fn in_hosts(&self, name: &str) -> Option<(Vec<IpAddr>, Duration)> {
        let name = Name::from_utf8(name).ok()?;
        let of_type = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let lookups = [RecordType::A, RecordType::AAAA].map(of_type);
        let addresses: Vec<IpAddr> = lookups.iter().flatten().flat_map(|lookup| addresses(lookup.answers())).collect();
        (!addresses.is_empty()).then_some((addresses, FILE_TTL))
    }

    async fn ask(&self, name: &str, before: &[IpAddr]) -> Result<(Vec<IpAddr>, Duration), LookupOutcome> {
        let resolver = self.resolver.as_ref().ok_or(LookupOutcome::Failed)?;
        resolver.clear_cache();
        let mut failure = LookupOutcome::NoAddress;
        for name in self.wholes(Name::from_utf8(name).map_err(|_| LookupOutcome::Failed)?) {
            match together(both(resolver, &name).await, before) {
                Err(LookupOutcome::NoAddress) => {}
                Err(outcome) => failure = outcome,
                found => return found,
            }
        }
        Err(failure)
    }

    /// The names that one may stand for, in the order in which they are tried.
    fn wholes(&self, name: Name) -> Vec<Name> {
        if name.is_fqdn() {
            return vec![name];
        }
        let mut wholes: Vec<Name> =
            self.search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
        let first = usize::from(name.num_labels()) > self.ndots || name.is_localhost();
        let place = if first { 0 } else { wholes.len() };
        let mut whole = name;
        whole.set_fqdn(true);
        wholes.insert(place, whole);
        wholes
    }
}

/// Both families are asked for at once, each by itself: one that never comes does not hold up the other for long.
async fn both(resolver: &TokioResolver, name: &Name) -> [FamilyAnswer; 2] {
    let [v4, v6] = FAMILIES.map(|(kind, _)| Box::pin(family(resolver, name, kind)));
    match select(v4, v6).await {
        Either::Left((v4, v6)) => {
            let v6 = other(&v4, v6).await;
            [v4, v6]
        }
        Either::Right((v6, v4)) => [other(&v6, v4).await, v6],
    }
}

/// What comes after the first.
async fn other(first: &FamilyAnswer, other: impl Future<Output = FamilyAnswer>) -> FamilyAnswer {
    if !first.tells_all {
        return other.await;
    }
    timeout(OTHER_FAMILY, other).await.unwrap_or(FamilyAnswer::LATE)
}

async fn family(resolver: &TokioResolver, name: &Name, kind: RecordType) -> FamilyAnswer {
    match timeout(FAMILY_MAX, resolver.lookup(name.clone(), kind)).await {
        Err(_) => FamilyAnswer::LATE,
        Ok(Err(error)) => FamilyAnswer { found: Err(outcome(&error)), tells_all: is_no_name(&error) },
        Ok(Ok(lookup)) => {
            let addresses: Vec<IpAddr> = addresses(lookup.answers()).collect();
            let ttl = lookup.answers().iter().map(|record| record.ttl).min().unwrap_or(0);
            let has_some = !addresses.is_empty();
            let found = (addresses, Duration::from_secs(ttl.into()));
            FamilyAnswer { found: has_some.then_some(found).ok_or(LookupOutcome::NoAddress), tells_all: has_some }
        }
    }
}

impl FamilyAnswer {
    const LATE: FamilyAnswer = FamilyAnswer { found: Err(LookupOutcome::TimedOut), tells_all: false };
}

/// Where one family cannot be asked for now, its addresses are those of before.
fn together(answers: [FamilyAnswer; 2], before: &[IpAddr]) -> Result<(Vec<IpAddr>, Duration), LookupOutcome> {
    let (mut found, mut kept) = (Vec::new(), Vec::<IpAddr>::new());
    let (mut ttl, mut failure) = (Duration::MAX, LookupOutcome::NoAddress);
    for (answer, (_, is_its)) in answers.into_iter().zip(FAMILIES) {
        match answer.found {
            Ok((addresses, of)) => {
                found.extend(addresses);
                ttl = of.min(ttl);
            }
            Err(LookupOutcome::NoAddress) => {}
            Err(outcome) => {
                failure = outcome;
                kept.extend(before.iter().filter(|ip| is_its(ip)));
            }
        }
    }
    if found.is_empty() {
        return Err(failure);
    }
    found.extend(kept);
    Ok((found, ttl))
}

type IsOfFamily = fn(&IpAddr) -> bool;
const FAMILIES: [(RecordType, IsOfFamily); 2] = [(RecordType::A, IpAddr::is_ipv4), (RecordType::AAAA, IpAddr::is_ipv6)];

fn addresses(records: &[Record]) -> impl Iterator<Item = IpAddr> {
    records.iter().filter_map(|record| record.data.ip_addr())
}

fn of_system() -> (ResolverConfig, ResolverOpts) {
    let (config, mut options) = read_system_conf().unwrap_or_else(|error| {
        tracing::debug!(%error, "/etc/resolv.conf names no server: this machine is asked");
        of_config(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 53))])
    });
    // What takes longer is cut before it can be answered.
    (options.timeout, options.attempts) = (options.timeout.min(ASK_OF_SYSTEM), options.attempts.min(ATTEMPTS));
    (config, options)
}

fn of_config(servers: &[SocketAddr]) -> (ResolverConfig, ResolverOpts) {
    let server = |address: &SocketAddr| {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = address.port();
            connection
        });
        NameServerConfig::new(address.ip(), true, connections.into())
    };
    let mut options = ResolverOpts::default();
    (options.timeout, options.attempts) = (ASK, ATTEMPTS);
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    (ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(server).collect()), options)
}

fn outcome(error: &NetError) -> LookupOutcome {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none))
            if matches!(none.response_code, ResponseCode::NoError | ResponseCode::NXDomain) =>
        {
            LookupOutcome::NoAddress
        }
        NetError::Timeout => LookupOutcome::TimedOut,
        _ => LookupOutcome::Failed,
    }
}

/// It does not exist, whatever is asked for.
fn is_no_name(error: &NetError) -> bool {
    matches!(error, NetError::Dns(DnsError::NoRecordsFound(none)) if none.response_code == ResponseCode::NXDomain)
}

fn changed() -> [Option<SystemTime>; 2] {
    FILES.map(|file| fs::metadata(file).and_then(|file| file.modified()).ok())
}

/// Those to which this machine has a way, or all where it has to none: of a name with addresses of both
/// families, one family is often out of reach. Nothing is sent.
fn reachable(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let reached: Vec<IpAddr> = addresses.iter().copied().filter(has_way).collect();
    if reached.is_empty() { addresses } else { reached }
}

/// By a socket of its own: one that was connected before keeps the address that it sends from.
fn has_way(ip: &IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let tried = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((*ip, 9)));
    // Without a descriptor nothing was tried.
    tried.map_or_else(|error| descriptors::are_short(&error), |()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn whether_there_is_a_way_does_not_depend_on_other_addresses() {
        // The documentation's network is out of reach without a default route; it has no way then, in any order.
        let far = ip("192.0.2.77");
        for near in ["127.0.0.1", "127.0.0.2"].map(ip) {
            let mut reached = reachable(vec![near, far]);
            reached.sort();
            assert_eq!(reached.len(), 1 + usize::from(has_way(&far)), "{reached:?}");
            assert_eq!(reached[0], near);
        }
    }

    #[test]
    fn a_family_that_does_not_come_keeps_what_it_had_and_the_other_is_used() {
        let second = Duration::from_secs(1);
        let v4 = || FamilyAnswer { found: Ok((vec![ip("10.0.0.1")], second)), tells_all: true };
        let none = || FamilyAnswer { found: Err(LookupOutcome::NoAddress), tells_all: false };
        let before = [ip("10.0.0.9"), ip("::9")];
        assert_eq!(together([v4(), FamilyAnswer::LATE], &[]), Ok((vec![ip("10.0.0.1")], second)));
        assert_eq!(together([v4(), FamilyAnswer::LATE], &before), Ok((vec![ip("10.0.0.1"), ip("::9")], second)));
        assert_eq!(together([v4(), none()], &before), Ok((vec![ip("10.0.0.1")], second)));
        assert_eq!(together([none(), FamilyAnswer::LATE], &before), Err(LookupOutcome::TimedOut));
        assert_eq!(together([none(), none()], &before), Err(LookupOutcome::NoAddress));
    }

    #[test]
    fn names_are_searched_for_in_the_order_of_the_system() {
        let mut finder = Finder::new(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 53))]);
        (finder.search, finder.ndots) = (["prod.test.", "test."].map(|name| Name::from_utf8(name).unwrap()).into(), 1);
        let wholes = |name| -> Vec<String> {
            finder.wholes(Name::from_utf8(name).unwrap()).iter().map(Name::to_string).collect()
        };
        assert_eq!(wholes("app"), ["app.prod.test.", "app.test.", "app."]);
        assert_eq!(wholes("app.org"), ["app.org.", "app.org.prod.test.", "app.org.test."]);
        assert_eq!(wholes("app."), ["app."]);
    }
}
