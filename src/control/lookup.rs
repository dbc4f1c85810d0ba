//! Looks up a hostname: in /etc/hosts, then with the DNS servers of /etc/resolv.conf or of the config. Or a service, by
//! its SRV records. Called by `resolve`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt};
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts, ServerOrderingStrategy,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{Hosts, TokioResolver};
use tokio::time::timeout;

use crate::control::service::ServiceAnswer;
use crate::descriptors;
use crate::file_stamp::FileStamp;
use crate::upstream::SERVICE_PREFIX;
use crate::upstream::hostname::{LookupOutcome, NamedAddress, usable_addresses};

/// Time limit for all servers and search domains together.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the addresses of one family.
const FAMILY_TIMEOUT: Duration = Duration::from_secs(4);
/// Time limit for the second family once the first is complete: many servers and middleboxes never answer AAAA
/// queries.
const OTHER_FAMILY_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit per DNS server of the config, and at most per server of the system, which is tried twice.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
const SYSTEM_QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
/// Hosts of a service that are looked up at once.
const TARGETS_AT_ONCE: usize = 8;
/// Time to live of entries in local files, which may change at any time.
const FILE_TTL: Duration = Duration::ZERO;

/// Files that configure the lookup.
const FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

pub struct HostResolver {
    resolver: Option<TokioResolver>,
    /// Search domains for names without a trailing dot, in order.
    search: Vec<Name>,
    /// A name with at least this many dots is first tried as it is.
    ndots: usize,
    hosts: Hosts,
    stamps: [Option<FileStamp>; 2],
}

/// Result of a lookup.
pub struct LookupResult {
    /// Usable addresses, in ascending order.
    pub addresses: Vec<NamedAddress>,
    /// Number of addresses in the response.
    pub answer_count: usize,
    pub ttl: Duration,
}

/// Addresses of one family.
struct FamilyResult {
    found: Result<(Vec<IpAddr>, Duration), LookupOutcome>,
    /// True if the response also shows that the name exists.
    shows_existence: bool,
}

impl HostResolver {
    /// Creates a resolver. `servers` replace the system's DNS servers unless the list is empty.
    pub fn new(servers: &[SocketAddr]) -> HostResolver {
        // Read first, so that a concurrent change of the files is noticed.
        let stamps = read_stamps();
        let (config, mut options) = if servers.is_empty() { system_resolver() } else { configured_resolver(servers) };
        // Responses are cached by the caller.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let mut search: Vec<Name> = config.domain().into_iter().chain(config.search()).cloned().collect();
        search.dedup();
        let ndots = options.ndots;
        let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let resolver = builder.with_options(options).build();
        let resolver = resolver.inspect_err(|error| tracing::error!(%error, "names cannot be looked up"));
        let hosts = Hosts::from_system().unwrap_or_default();
        HostResolver { resolver: resolver.ok(), search, ndots, hosts, stamps }
    }

    /// Returns whether the files are unchanged.
    pub fn is_current(&self) -> bool {
        self.stamps == read_stamps()
    }

    /// Looks up a hostname, or a service whose name begins with `srv:`. For an address family of a hostname that cannot
    /// be queried now, returns the addresses in `before`.
    pub async fn resolve(&self, name: &str, before: &[NamedAddress]) -> Result<LookupResult, LookupOutcome> {
        let lookup = async {
            match name.strip_prefix(SERVICE_PREFIX) {
                Some(service) => self.resolve_service(service).await,
                None => {
                    let ips: Vec<IpAddr> = before.iter().map(|address| address.ip).collect();
                    let (found, ttl) = self.resolve_host(name, &ips).await?;
                    Ok((found.into_iter().map(NamedAddress::from).collect(), ttl))
                }
            }
        };
        let (answer, ttl) = timeout(LOOKUP_TIMEOUT, lookup).await.map_err(|_| LookupOutcome::TimedOut)??;
        let answer_count = answer.len();
        match usable_addresses(answer, before) {
            none if none.is_empty() => Err(LookupOutcome::NoAddress),
            some => Ok(LookupResult { addresses: filter_reachable(some), answer_count, ttl }),
        }
    }

    /// Looks up the addresses of a hostname.
    async fn resolve_host(&self, name: &str, before: &[IpAddr]) -> Result<(Vec<IpAddr>, Duration), LookupOutcome> {
        match self.find_in_hosts(name) {
            Some(found) => Ok(found),
            None => self.query_dns(name, before).await,
        }
    }

    /// Looks up the SRV records of a service, and the addresses of the hosts that they name.
    async fn resolve_service(&self, name: &str) -> Result<(Vec<NamedAddress>, Duration), LookupOutcome> {
        let resolver = self.resolver.as_ref().ok_or(LookupOutcome::Failed)?;
        resolver.clear_cache();
        let mut failure = LookupOutcome::NoAddress;
        for name in self.candidate_names(parse_name(name).ok_or(LookupOutcome::Failed)?) {
            let answer = match timeout(FAMILY_TIMEOUT, resolver.lookup(name, RecordType::SRV)).await {
                Ok(answer) => answer.map_err(|error| classify_error(&error)),
                Err(_) => Err(LookupOutcome::TimedOut),
            };
            match answer {
                Ok(answer) => return self.resolve_targets(ServiceAnswer::new(answer.message().all_sections())).await,
                Err(LookupOutcome::NoAddress) => {}
                Err(outcome) => failure = outcome,
            }
        }
        Err(failure)
    }

    /// Returns the addresses of the hosts with the best priority for which there are addresses.
    async fn resolve_targets(&self, answer: ServiceAnswer) -> Result<(Vec<NamedAddress>, Duration), LookupOutcome> {
        let mut failure = LookupOutcome::NoAddress;
        for group in answer.groups() {
            let lookups = stream::iter(group).map(async |target| match answer.known_addresses(target) {
                some if !some.is_empty() => (target, Ok((some, answer.ttl))),
                _ => (target, self.resolve_host(&target.host, &[]).await),
            });
            let results: Vec<_> = lookups.buffered(TARGETS_AT_ONCE).collect().await;
            let (mut addresses, mut ttl) = (Vec::new(), answer.ttl);
            for (target, result) in results {
                match result {
                    Ok((ips, its_ttl)) => {
                        addresses.extend(target.weigh_addresses(&ips));
                        ttl = ttl.min(its_ttl);
                    }
                    Err(outcome) => failure = outcome,
                }
            }
            if !addresses.is_empty() {
                return Ok((addresses, ttl));
            }
        }
        Err(failure)
    }

    /// Searches the hosts file. If it has an entry for a name, DNS is asked for neither address family.
    fn find_in_hosts(&self, name: &str) -> Option<(Vec<IpAddr>, Duration)> {
        let name = parse_name(name)?;
        let of_type = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let lookups = [RecordType::A, RecordType::AAAA].map(of_type);
        let addresses: Vec<IpAddr> =
            lookups.iter().flatten().flat_map(|lookup| list_addresses(lookup.answers())).collect();
        (!addresses.is_empty()).then_some((addresses, FILE_TTL))
    }

    async fn query_dns(&self, name: &str, before: &[IpAddr]) -> Result<(Vec<IpAddr>, Duration), LookupOutcome> {
        let resolver = self.resolver.as_ref().ok_or(LookupOutcome::Failed)?;
        resolver.clear_cache();
        let mut failure = LookupOutcome::NoAddress;
        for name in self.candidate_names(parse_name(name).ok_or(LookupOutcome::Failed)?) {
            match combine_families(query_both_families(resolver, &name).await, before) {
                Err(LookupOutcome::NoAddress) => {}
                Err(outcome) => failure = outcome,
                found => return found,
            }
        }
        Err(failure)
    }

    /// Returns the full names to try, in order.
    fn candidate_names(&self, name: Name) -> Vec<Name> {
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

/// Returns the name as it is written, label by label. The rules for registered names, which `web_1` and `a--b` break,
/// do not apply to names of containers and services: the DNS server decides which names exist.
fn parse_name(text: &str) -> Option<Name> {
    let (labels, is_complete) = text.strip_suffix('.').map_or((text, false), |labels| (labels, true));
    let mut name = Name::from_labels(labels.split('.').map(str::as_bytes)).ok()?;
    name.set_fqdn(is_complete);
    Some(name)
}

/// Queries both families concurrently; a missing response of one does not delay the other for long.
async fn query_both_families(resolver: &TokioResolver, name: &Name) -> [FamilyResult; 2] {
    let [v4, v6] = FAMILIES.map(|(kind, _)| Box::pin(query_family(resolver, name, kind)));
    match select(v4, v6).await {
        Either::Left((v4, v6)) => {
            let v6 = wait_for_other_family(&v4, v6).await;
            [v4, v6]
        }
        Either::Right((v6, v4)) => [wait_for_other_family(&v6, v4).await, v6],
    }
}

/// Waits for the second response, for a limited time.
async fn wait_for_other_family(first: &FamilyResult, other: impl Future<Output = FamilyResult>) -> FamilyResult {
    if !first.shows_existence {
        return other.await;
    }
    timeout(OTHER_FAMILY_TIMEOUT, other).await.unwrap_or(FamilyResult::LATE)
}

async fn query_family(resolver: &TokioResolver, name: &Name, kind: RecordType) -> FamilyResult {
    match timeout(FAMILY_TIMEOUT, resolver.lookup(name.clone(), kind)).await {
        Err(_) => FamilyResult::LATE,
        Ok(Err(error)) => {
            // The name does not exist with any record type.
            let is_nonexistent = matches!(
                &error,
                NetError::Dns(DnsError::NoRecordsFound(none)) if none.response_code == ResponseCode::NXDomain
            );
            FamilyResult { found: Err(classify_error(&error)), shows_existence: is_nonexistent }
        }
        Ok(Ok(lookup)) => {
            let addresses: Vec<IpAddr> = list_addresses(lookup.answers()).collect();
            let ttl = lookup.answers().iter().map(|record| record.ttl).min().unwrap_or(0);
            let has_some = !addresses.is_empty();
            let result = (addresses, Duration::from_secs(ttl.into()));
            FamilyResult {
                found: has_some.then_some(result).ok_or(LookupOutcome::NoAddress),
                shows_existence: has_some,
            }
        }
    }
}

impl FamilyResult {
    const LATE: FamilyResult = FamilyResult { found: Err(LookupOutcome::TimedOut), shows_existence: false };
}

/// Combines both families. One that cannot be queried now keeps its previous addresses.
fn combine_families(answers: [FamilyResult; 2], before: &[IpAddr]) -> Result<(Vec<IpAddr>, Duration), LookupOutcome> {
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

fn list_addresses(records: &[Record]) -> impl Iterator<Item = IpAddr> {
    records.iter().filter_map(|record| record.data.ip_addr())
}

fn system_resolver() -> (ResolverConfig, ResolverOpts) {
    let (config, mut options) = read_system_conf().unwrap_or_else(|error| {
        tracing::debug!(%error, "/etc/resolv.conf lists no server: using this machine");
        configured_resolver(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 53))])
    });
    // A longer wait would exceed the time limit anyway.
    (options.timeout, options.attempts) = (options.timeout.min(SYSTEM_QUERY_TIMEOUT), options.attempts.min(ATTEMPTS));
    (config, options)
}

fn configured_resolver(servers: &[SocketAddr]) -> (ResolverConfig, ResolverOpts) {
    let server = |address: &SocketAddr| {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = address.port();
            connection
        });
        NameServerConfig::new(address.ip(), true, connections.into())
    };
    let mut options = ResolverOpts::default();
    (options.timeout, options.attempts) = (QUERY_TIMEOUT, ATTEMPTS);
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    (ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(server).collect()), options)
}

fn classify_error(error: &NetError) -> LookupOutcome {
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

fn read_stamps() -> [Option<FileStamp>; 2] {
    FILES.map(|file| FileStamp::read(Path::new(file)).ok())
}

/// Returns the addresses that this machine has a route to, or all if it has none: of a name with both families, one is
/// often unreachable. Sends nothing.
fn filter_reachable(addresses: Vec<NamedAddress>) -> Vec<NamedAddress> {
    let reachable: Vec<_> = addresses.iter().copied().filter(|address| has_route(&address.ip)).collect();
    if reachable.is_empty() { addresses } else { reachable }
}

/// Uses a new socket per address: a connected one keeps its source address.
fn has_route(ip: &IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let attempt = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((*ip, 9)));
    // Without a descriptor nothing was tested.
    attempt.map_or_else(|error| descriptors::is_shortage(&error), |()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn whether_there_is_a_way_does_not_depend_on_other_addresses() {
        // The documentation network is unreachable without a default route.
        let far = ip("192.0.2.77");
        for near in ["127.0.0.1", "127.0.0.2"].map(ip) {
            let mut reached = filter_reachable(vec![near.into(), far.into()]);
            reached.sort();
            assert_eq!(reached.len(), 1 + usize::from(has_route(&far)), "{reached:?}");
            assert_eq!(reached[0].ip, near);
        }
    }

    #[test]
    fn a_failed_address_family_keeps_its_addresses_and_the_other_is_used() {
        let second = Duration::from_secs(1);
        let v4 = || FamilyResult { found: Ok((vec![ip("10.0.0.1")], second)), shows_existence: true };
        let none = || FamilyResult { found: Err(LookupOutcome::NoAddress), shows_existence: false };
        let before = [ip("10.0.0.9"), ip("::9")];
        assert_eq!(combine_families([v4(), FamilyResult::LATE], &[]), Ok((vec![ip("10.0.0.1")], second)));
        assert_eq!(
            combine_families([v4(), FamilyResult::LATE], &before),
            Ok((vec![ip("10.0.0.1"), ip("::9")], second))
        );
        assert_eq!(combine_families([v4(), none()], &before), Ok((vec![ip("10.0.0.1")], second)));
        assert_eq!(combine_families([none(), FamilyResult::LATE], &before), Err(LookupOutcome::TimedOut));
        assert_eq!(combine_families([none(), none()], &before), Err(LookupOutcome::NoAddress));
    }

    #[test]
    fn names_are_searched_for_in_the_order_of_the_system() {
        let mut resolver = HostResolver::new(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 53))]);
        (resolver.search, resolver.ndots) =
            (["prod.test.", "test."].map(|name| Name::from_utf8(name).unwrap()).into(), 1);
        let wholes = |name| -> Vec<String> {
            resolver.candidate_names(parse_name(name).unwrap()).iter().map(Name::to_string).collect()
        };
        assert_eq!(wholes("app"), ["app.prod.test.", "app.test.", "app."]);
        assert_eq!(wholes("app.org"), ["app.org.", "app.org.prod.test.", "app.org.test."]);
        assert_eq!(wholes("app."), ["app."]);
    }

    #[test]
    fn names_are_looked_up_as_they_are_written() {
        for name in ["web_1", "_a.test", "a_b.test.", "xn--bcher-kva.test", "xn--a.test", "r3---sn-x.test", "-a-.test"]
        {
            let parsed = parse_name(name).unwrap();
            let labels: Vec<&[u8]> = parsed.iter().collect();
            assert_eq!(labels.join(&b'.'), name.trim_end_matches('.').as_bytes(), "{name}");
            assert_eq!(parsed.is_fqdn(), name.ends_with('.'), "{name}");
        }
        assert_eq!([parse_name("a..b"), parse_name(&"a".repeat(64))], [None, None]);
    }

    #[test]
    fn names_of_the_hosts_file_may_have_underscores() {
        let mut resolver = HostResolver::new(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 53))]);
        resolver.hosts.read_hosts_conf(&b"10.0.0.1 web_1 a_b.test xn--a\n"[..]).unwrap();
        for name in ["web_1", "a_b.test", "xn--a"] {
            let (addresses, _) = resolver.find_in_hosts(name).unwrap_or_default();
            assert_eq!(addresses, [ip("10.0.0.1")], "{name}");
        }
    }
}
