//! A DNS server whose responses a test can change. It serves UDP, and TCP for responses that are too long.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

/// Longest response over UDP, in bytes.
const UDP_MAX: usize = 512;

pub struct DnsServer {
    pub addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

struct Zone {
    reply: Reply,
    /// Queries so far, each as `name type`.
    queries: Vec<String>,
}

/// The response of the server to a query for any name.
pub enum Reply {
    /// Responds with these addresses of the queried family, and this time to live in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// The same, but `SERVFAIL` for the other address family.
    HalfFailing(Vec<IpAddr>),
    /// The same, but no response for the other address family.
    HalfSilent(Vec<IpAddr>),
    /// Depends on the number of the query.
    Flapping(fn(usize) -> Vec<IpAddr>),
    /// Responds to queries for SRV records with the first list, and to those for addresses with the second.
    /// `_http._tcp.alias.test` is an alias of `_http._tcp.app.test`.
    Service(Vec<SrvRecord>, Vec<(&'static str, IpAddr)>),
    NoSuchName,
    Empty,
    Failure,
    Silence,
    /// Bytes that are no DNS message.
    Garbage,
    /// Sends this many responses with the ID of another query, then a correct one with these addresses.
    OtherIds(u16, Vec<IpAddr>),
}

/// Priority, weight, port and host.
pub type SrvRecord = (u16, u16, u16, &'static str);

impl DnsServer {
    pub fn start(reply: Reply) -> DnsServer {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()) {
                break (udp, tcp);
            }
        };
        let addr = udp.local_addr().unwrap();
        let zone = Arc::new(Mutex::new(Zone { reply, queries: Vec::new() }));
        let udp_zone = zone.clone();
        std::thread::spawn(move || {
            let mut query = [0; 1500];
            while let Ok((count, from)) = udp.recv_from(&mut query) {
                let Some(mut response) = udp_zone.lock().unwrap().build_response(&query[..count]) else { continue };
                for number in 1..=udp_zone.lock().unwrap().false_response_count() {
                    let id = u16::from_be_bytes([response[0], response[1]]).wrapping_add(number).to_be_bytes();
                    let _ = udp.send_to(&[&id, &response[2..]].concat(), from);
                }
                if response.len() > UDP_MAX {
                    response.truncate(query_end(&response));
                    response[2] |= 2;
                    response[6..8].fill(0);
                }
                let _ = udp.send_to(&response, from);
            }
        });
        let tcp_zone = zone.clone();
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                let (Ok(mut stream), zone) = (stream, tcp_zone.clone()) else { continue };
                std::thread::spawn(move || -> std::io::Result<()> {
                    loop {
                        let mut length = [0; 2];
                        stream.read_exact(&mut length)?;
                        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                        stream.read_exact(&mut query)?;
                        let Some(response) = zone.lock().unwrap().build_response(&query) else { continue };
                        stream.write_all(&two_bytes(response.len()))?;
                        stream.write_all(&response)?;
                    }
                });
            }
        });
        DnsServer { addr, zone }
    }

    /// Sets the response to later queries.
    pub fn set_reply(&self, reply: Reply) {
        self.zone.lock().unwrap().reply = reply;
    }

    /// Returns the queries so far, each as `name type`.
    pub fn queries(&self) -> Vec<String> {
        self.zone.lock().unwrap().queries.clone()
    }

    /// Returns the line of `[server]` that makes the gateway use this server.
    pub fn line(&self) -> String {
        format!("resolver = [\"{}\"]", self.addr)
    }
}

impl Zone {
    /// Returns the number of responses with wrong IDs before each correct one.
    fn false_response_count(&self) -> u16 {
        if let Reply::OtherIds(count, _) = self.reply { count } else { 0 }
    }

    fn build_response(&mut self, query: &[u8]) -> Option<Vec<u8>> {
        let end = query_end(query);
        let kind = u16::from_be_bytes([query[end - 4], query[end - 3]]);
        self.queries.push(format!("{} {kind}", name(query)));
        if let Reply::Service(services, hosts) = &self.reply {
            if [SRV, CNAME].contains(&kind) && name(query).starts_with("_http._tcp.alias.") {
                let services = if kind == SRV { services.as_slice() } else { &[] };
                return Some(answer_alias(&query[..end], "_http._tcp.app.test", services));
            }
            let its = hosts.iter().filter(|(host, _)| format!("{host}.") == name(query)).map(|(_, ip)| *ip);
            let answers = match kind {
                SRV => services.iter().map(encode_srv).collect(),
                _ => its.filter(|ip| ip.is_ipv4() == (kind == 1)).map(encode_ip).collect(),
            };
            return Some(answer_query(&query[..end], 0, answers, 0));
        }
        let of_family = |addresses: &[IpAddr]| -> Vec<IpAddr> {
            addresses.iter().copied().filter(|ip| ip.is_ipv4() == (kind == 1)).collect()
        };
        let (code, addresses, ttl) = match &self.reply {
            Reply::Addresses(addresses, ttl) => (0, of_family(addresses), *ttl),
            Reply::OtherIds(_, addresses) => (0, of_family(addresses), 0),
            Reply::HalfFailing(addresses) => match of_family(addresses) {
                none if none.is_empty() => (2, none, 0),
                some => (0, some, 0),
            },
            Reply::HalfSilent(addresses) => match of_family(addresses) {
                none if none.is_empty() => return None,
                some => (0, some, 3600),
            },
            Reply::Flapping(of) => (0, of_family(&of(self.queries.len())), 0),
            Reply::Service(..) => return None,
            Reply::NoSuchName => (3, Vec::new(), 0),
            Reply::Empty => (0, Vec::new(), 0),
            Reply::Failure => (2, Vec::new(), 0),
            Reply::Silence => return None,
            Reply::Garbage => return Some(query[..2].iter().copied().chain([0x81, 0x80, 0, 1, 255, 255]).collect()),
        };
        Some(answer_query(&query[..end], code, addresses.into_iter().map(encode_ip).collect(), ttl))
    }
}

/// The types of SRV records and of aliases.
const SRV: u16 = 33;
const CNAME: u16 = 5;

fn encode_ip(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn encode_srv((priority, weight, port, host): &SrvRecord) -> Vec<u8> {
    let mut bytes = [priority, weight, port].map(|number| number.to_be_bytes()).concat();
    bytes.extend(encode_name(host));
    bytes
}

fn encode_name(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// Returns the query without additional records, then an alias of its name, and SRV records of that.
fn answer_alias(query: &[u8], target: &str, services: &[SrvRecord]) -> Vec<u8> {
    let mut response = answer_query(query, 0, Vec::new(), 0);
    response[6..8].copy_from_slice(&two_bytes(1 + services.len()));
    let mut add = |owner: usize, kind: u16, bytes: Vec<u8>| {
        response.extend(two_bytes(0xc000 | owner));
        response.extend([kind.to_be_bytes(), [0, 1], [0, 0], [0, 0], two_bytes(bytes.len())].concat());
        response.extend(bytes);
    };
    add(12, CNAME, encode_name(target));
    services.iter().for_each(|service| add(query.len() + 12, SRV, encode_srv(service)));
    response
}

/// Returns the query without additional records, then the answers, each with a pointer to the name.
fn answer_query(query: &[u8], code: u8, answers: Vec<Vec<u8>>, ttl: u32) -> Vec<u8> {
    let mut response = query.to_vec();
    response[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    response[6..8].copy_from_slice(&two_bytes(answers.len()));
    response[8..12].fill(0);
    for bytes in answers {
        response.extend([0xc0, 12]);
        response.extend(&query[query.len() - 4..]);
        response.extend(ttl.to_be_bytes());
        response.extend(two_bytes(bytes.len()));
        response.extend(bytes);
    }
    response
}

fn two_bytes(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap().to_be_bytes()
}

/// The index after the first query of a message.
fn query_end(message: &[u8]) -> usize {
    let mut at = 12;
    while message[at] != 0 {
        at += 1 + usize::from(message[at]);
    }
    at + 5
}

fn name(message: &[u8]) -> String {
    let (mut at, mut name) = (12, String::new());
    while message[at] != 0 {
        let end = at + 1 + usize::from(message[at]);
        name += &String::from_utf8_lossy(&message[at + 1..end]).to_lowercase();
        name.push('.');
        at = end;
    }
    name
}
