//! Whose budget: the parts of a limit's key, read from a request and written as a state key, and
//! the cost of a request. Every store uses the same keys.

use std::fmt::Write;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use super::rule::Missing;

/// The parts, in config order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub Vec<KeyPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's network: addresses with the same leading bits share a budget.
    Ip {
        v4: u8,
        v6: u8,
    },
    Host,
    Path,
    Method,
    Route,
    Header(HeaderName),
    All,
}

/// What a request shows to keys and costs: the canonical forms that also route and forward it.
pub struct Facts<'a> {
    pub client: IpAddr,
    pub method: &'a str,
    pub host: &'a str,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub route: &'a str,
}

/// Cost of one request in units of the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    Fixed(i64),
    Header(HeaderName),
    Query(String),
}

/// The cost of a request whose header or query states none, or states no number.
const COST_DEFAULT: i64 = 1;
/// Larger stated costs count as this much, which keeps every product below 2^53.
pub const COST_MAX: i64 = 1_000_000_000;
/// Longer values enter the state key as a hash.
const VALUE_MAX: usize = 64;

/// The state key, or `None` when a part is absent and `missing` is not `Shared`.
///
/// Form: `PREFIX:{NAME=VALUE,NAME=VALUE}:LIMIT:ALGORITHM`. The braces make the client part the
/// hash tag of Redis Cluster, so limits with the same key parts share a slot. A value with bytes
/// outside `A-Za-z0-9._:/@-`, an empty one or a long one is written `NAME#HASH` instead (128 bits
/// of SHA-256): no two values, and no two lists of values, give the same key.
pub fn state_key(
    prefix: &str,
    limit: &str,
    algorithm: &str,
    key: &Key,
    missing: Missing,
    facts: &Facts,
) -> Option<String> {
    let mut text = String::with_capacity(96);
    text.push_str(prefix);
    text.push_str(":{");
    for (i, part) in key.0.iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        if !part.write(&mut text, facts) {
            if missing != Missing::Shared {
                return None;
            }
            text.push('!');
        }
    }
    text.push_str("}:");
    text.push_str(limit);
    text.push(':');
    text.push_str(algorithm);
    Some(text)
}

impl KeyPart {
    /// Appends name and value; false when the request has no value, the name is then written.
    fn write(&self, text: &mut String, facts: &Facts) -> bool {
        match self {
            KeyPart::Ip { v4, v6 } => {
                text.push_str("ip");
                if (*v4, *v6) != IP_DEFAULT {
                    let _ = write!(text, "/{v4}/{v6}");
                }
                // Debug-free formatting: an address is always within the plain bytes.
                let _ = write!(text, "={}", network(facts.client, *v4, *v6));
            }
            KeyPart::Host => write_value(text, "host", facts.host.as_bytes()),
            KeyPart::Path => write_value(text, "path", facts.path.as_bytes()),
            KeyPart::Method => write_value(text, "method", facts.method.as_bytes()),
            KeyPart::Route => write_value(text, "route", facts.route.as_bytes()),
            KeyPart::All => text.push_str("all"),
            KeyPart::Header(name) => match facts.headers.get(name) {
                Some(value) => {
                    text.push_str("header:");
                    write_value(text, name.as_str(), value.as_bytes());
                }
                None => {
                    text.push_str("header:");
                    text.push_str(name.as_str());
                    return false;
                }
            },
        }
        true
    }
}

/// Prefix lengths of the key part `ip`: an IPv4 address, an IPv6 network of one site.
pub const IP_DEFAULT: (u8, u8) = (32, 64);

fn network(ip: IpAddr, v4: u8, v6: u8) -> IpAddr {
    let ip = ip.to_canonical();
    let prefix = if ip.is_ipv4() { v4 } else { v6 };
    IpNet::new(ip, prefix).map_or(ip, |net| net.network())
}

fn write_value(text: &mut String, name: &str, value: &[u8]) {
    text.push_str(name);
    match str::from_utf8(value) {
        Ok(plain) if !plain.is_empty() && plain.len() <= VALUE_MAX && plain.bytes().all(is_plain) => {
            text.push('=');
            text.push_str(plain);
        }
        _ => {
            text.push('#');
            for byte in &Sha256::digest(value)[..16] {
                let _ = write!(text, "{byte:02x}");
            }
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'/' | b'@' | b'-')
}

impl Cost {
    pub fn of(&self, facts: &Facts) -> i64 {
        let stated = match self {
            Cost::Fixed(cost) => return *cost,
            Cost::Header(name) => facts.headers.get(name).and_then(|value| value.to_str().ok()),
            Cost::Query(name) => facts.query.and_then(|query| {
                query.split('&').find_map(|pair| pair.strip_prefix(name.as_str())?.strip_prefix('='))
            }),
        };
        stated
            .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
            .map_or(COST_DEFAULT, |digits| digits.parse().map_or(COST_MAX, |cost: i64| cost.min(COST_MAX)))
    }
}
