//! Reads the SRV records of a service (RFC 2782): which hosts serve it, at which ports, and how much each of them gets.
//! Called by `lookup`.

use std::net::IpAddr;
use std::time::Duration;

use hickory_resolver::proto::rr::{Name, RData, Record};

use crate::upstream::hostname::{ADDRESSES_MAX, NamedAddress};

/// Weight per unit of a record's weight, so that a weight of 0 is a small share, as the standard says.
const UNIT: u32 = 100;
/// Addresses of one host among which its weight is divided exactly: up to 4, and 6, 10, 12, 15, 20, 30 and 60.
const DIVISIBLE: u32 = 60;

/// The response to a query for SRV records.
pub struct ServiceAnswer {
    /// The records by priority, in ascending order.
    targets: Vec<Target>,
    /// Addresses that the response contains besides.
    addresses: Vec<(Name, IpAddr)>,
    /// How long the records are valid.
    pub ttl: Duration,
}

/// A host that serves the service.
pub struct Target {
    pub host: String,
    name: Name,
    priority: u16,
    weight: u16,
    port: u16,
}

impl ServiceAnswer {
    /// Reads all records of a response. Further hosts than an upstream can use are ignored.
    pub fn new<'r>(records: impl Iterator<Item = &'r Record>) -> ServiceAnswer {
        let (mut targets, mut addresses, mut ttl) = (Vec::new(), Vec::new(), u32::MAX);
        for record in records {
            match &record.data {
                // A root name means that there is no server, and nobody can connect to port 0.
                RData::SRV(srv) if !srv.target.is_root() && srv.port > 0 && targets.len() < ADDRESSES_MAX => {
                    targets.push(Target {
                        host: srv.target.to_ascii(),
                        name: srv.target.clone(),
                        priority: srv.priority,
                        weight: srv.weight,
                        port: srv.port,
                    });
                    ttl = ttl.min(record.ttl);
                }
                data => addresses.extend(data.ip_addr().map(|ip| (record.name.clone(), ip))),
            }
        }
        targets.sort_by_key(|target| target.priority);
        ServiceAnswer { targets, addresses, ttl: Duration::from_secs(ttl.into()) }
    }

    /// Returns the hosts of each priority, the best priority first.
    pub fn groups(&self) -> impl Iterator<Item = &[Target]> {
        self.targets.chunk_by(|one, next| one.priority == next.priority)
    }

    /// Returns the addresses of a host that came with the response.
    pub fn known_addresses(&self, target: &Target) -> Vec<IpAddr> {
        self.addresses.iter().filter(|(name, _)| *name == target.name).map(|(_, ip)| *ip).collect()
    }
}

impl Target {
    /// Returns the addresses of the host, which share its weight.
    pub fn weigh_addresses(&self, ips: &[IpAddr]) -> impl Iterator<Item = NamedAddress> {
        let whole = (u32::from(self.weight) * UNIT).max(1) * DIVISIBLE;
        let count = u32::try_from(ips.len()).unwrap_or(u32::MAX).max(1);
        let weight = (whole / count).max(1);
        ips.iter().map(move |ip| NamedAddress { ip: *ip, port: Some(self.port), weight })
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::rr::rdata::{A, SRV};

    use super::*;

    fn record(ttl: u32, srv: SRV) -> Record {
        Record::from_rdata(Name::from_ascii("_http._tcp.app.test.").unwrap(), ttl, RData::SRV(srv))
    }

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    #[test]
    fn hosts_are_grouped_by_priority_and_weighed() {
        let records = [
            record(30, SRV::new(20, 1, 8082, name("spare.test."))),
            record(60, SRV::new(10, 3, 8080, name("One.test."))),
            record(60, SRV::new(10, 0, 8081, name("two.test."))),
            record(60, SRV::new(10, 1, 0, name("three.test."))),
            record(60, SRV::new(10, 1, 80, Name::root())),
            Record::from_rdata(name("one.test."), 60, RData::A(A::new(10, 0, 0, 1))),
        ];
        let answer = ServiceAnswer::new(records.iter());
        assert_eq!(answer.ttl, Duration::from_secs(30));
        let groups: Vec<Vec<&str>> =
            answer.groups().map(|group| group.iter().map(|target| target.host.as_str()).collect()).collect();
        assert_eq!(groups, [vec!["One.test.", "two.test."], vec!["spare.test."]]);
        let best = answer.groups().next().unwrap();
        let ips = answer.known_addresses(&best[0]);
        assert_eq!((&ips[..], answer.known_addresses(&best[1]).len()), (&[IpAddr::from([10, 0, 0, 1])][..], 0));
        let two = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let weights = |target: &Target| target.weigh_addresses(&two).map(|address| address.weight).collect::<Vec<_>>();
        assert_eq!((weights(&best[0]), weights(&best[1])), (vec![9000, 9000], vec![30, 30]));
    }

    #[test]
    fn the_number_of_hosts_is_bounded() {
        let records: Vec<Record> =
            (0..10_000).map(|i| record(60, SRV::new(1, 1, 80, name(&format!("h{i}.test."))))).collect();
        assert_eq!(ServiceAnswer::new(records.iter()).targets.len(), ADDRESSES_MAX);
    }
}
