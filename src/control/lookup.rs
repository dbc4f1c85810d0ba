//! One lookup of a name: in /etc/hosts, then with the DNS servers of /etc/resolv.conf, or with those of the
//! config. Called by `resolve`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

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

use crate::upstream::names::LookupOutcome;

/// For all servers and search domains together.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// For one server that the config names, asked twice.
const ASK: Duration = Duration::from_secs(1);
/// What a file on this machine says may change at any time.
const FILE_TTL: Duration = Duration::ZERO;

/// The files that say who is asked.
const FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

pub struct Finder {
    resolver: Option<TokioResolver>,
    hosts: Hosts,
    changed: [Option<SystemTime>; 2],
}

/// What a name has.
pub struct Found {
    pub addresses: Vec<IpAddr>,
    pub ttl: Duration,
}

impl Finder {
    /// `servers`: in place of those of the system, if there are any.
    pub fn new(servers: &[SocketAddr]) -> Finder {
        let (config, mut options) = if servers.is_empty() { of_system() } else { of_config(servers) };
        // Answers are kept by who asks for them.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let resolver = builder.with_options(options).build();
        let resolver = resolver.inspect_err(|error| tracing::error!(%error, "names cannot be looked up"));
        let hosts = Hosts::from_system().unwrap_or_default();
        Finder { resolver: resolver.ok(), hosts, changed: changed() }
    }

    /// The files are still as they were.
    pub fn is_current(&self) -> bool {
        self.changed == changed()
    }

    /// The addresses of `name`. Those of a family that cannot be asked for now are taken from `before`.
    pub async fn find(&self, name: &str, before: &[IpAddr]) -> Result<Found, LookupOutcome> {
        let answer = match self.in_hosts(name) {
            Some(found) => found,
            None => timeout(LOOKUP_MAX, self.ask(name, before)).await.map_err(|_| LookupOutcome::TimedOut)??,
        };
        Ok(Found { addresses: reachable(answer.addresses), ttl: answer.ttl })
    }

    /// What stands there is all there is, whichever family it is of.
    fn in_hosts(&self, name: &str) -> Option<Found> {
        let name = Name::from_utf8(name).ok()?;
        let of_type = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let lookups = [RecordType::A, RecordType::AAAA].map(of_type);
        let addresses: Vec<IpAddr> = lookups.iter().flatten().flat_map(|lookup| addresses(lookup.answers())).collect();
        (!addresses.is_empty()).then_some(Found { addresses, ttl: FILE_TTL })
    }

    async fn ask(&self, name: &str, before: &[IpAddr]) -> Result<Found, LookupOutcome> {
        let resolver = self.resolver.as_ref().ok_or(LookupOutcome::Failed)?;
        resolver.clear_cache();
        let answer = resolver.lookup_ip(name).await.map_err(|error| outcome(&error))?;
        let lookup = answer.as_lookup();
        let mut found = addresses(lookup.answers()).collect::<Vec<_>>();
        if found.is_empty() {
            return Err(LookupOutcome::NoAddress);
        }
        let ttl = lookup.answers().iter().map(|record| record.ttl).min().unwrap_or(0);
        for (kind, is_its) in FAMILIES {
            // It may have none any more, or the answer is missing.
            let is_missing = before.iter().any(is_its) && !found.iter().any(is_its);
            if is_missing
                && resolver
                    .lookup(lookup.query().name().clone(), kind)
                    .await
                    .is_err_and(|error| outcome(&error) != LookupOutcome::NoAddress)
            {
                found.extend(before.iter().filter(|ip| is_its(ip)));
            }
        }
        Ok(Found { addresses: found, ttl: Duration::from_secs(u64::from(ttl)) })
    }
}

type IsOfFamily = fn(&IpAddr) -> bool;
const FAMILIES: [(RecordType, IsOfFamily); 2] = [(RecordType::A, IpAddr::is_ipv4), (RecordType::AAAA, IpAddr::is_ipv6)];

fn addresses(records: &[Record]) -> impl Iterator<Item = IpAddr> {
    records.iter().filter_map(|record| record.data.ip_addr())
}

fn of_system() -> (ResolverConfig, ResolverOpts) {
    read_system_conf().unwrap_or_else(|error| {
        tracing::debug!(%error, "/etc/resolv.conf names no server: this machine is asked");
        of_config(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 53))])
    })
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
    (options.timeout, options.attempts) = (ASK, 2);
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

fn changed() -> [Option<SystemTime>; 2] {
    FILES.map(|file| fs::metadata(file).and_then(|file| file.modified()).ok())
}

/// Those to which this machine has a way, or all where it has to none: of a name with addresses of both
/// families, one family is often out of reach. Nothing is sent.
fn reachable(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    if addresses.len() < 2 {
        return addresses;
    }
    let sockets = [UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)), UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))];
    let has_way = |ip: &IpAddr| {
        let socket = &sockets[usize::from(ip.is_ipv6())];
        socket.as_ref().is_ok_and(|socket| socket.connect((*ip, 9)).is_ok())
    };
    let reached: Vec<IpAddr> = addresses.iter().copied().filter(has_way).collect();
    if reached.is_empty() { addresses } else { reached }
}
