//! Replaces names, hosts, addresses and paths by hashes, for bug reports. Only numbers, words of the config format and
//! the structure of values stay; everything else is replaced, so an unknown kind of value reveals nothing.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use ipnet::IpNet;

use crate::config::effective::secrets;
use crate::config::schema;
use crate::config::schema::lookup::locate_value;
use crate::config::schema::row::ClientData;
use crate::config::values;
use crate::limiting::key::KeyPart;
use crate::limiting::source::{CertificateName, SourceKind};

/// Replaces equal texts by equal hashes. The hash has a random key, so guessing a name and hashing it proves nothing.
#[derive(Default)]
pub struct Anonymizer(RandomState);

/// Words of values that have a meaning and identify nobody: those of the types and keywords of all options, and parts
/// of keys.
static WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let options = || schema::ALL.iter().flat_map(|section| section.options);
    let of_types = options().flat_map(|option| option.value_type().words());
    let keywords = options().flat_map(|option| option.keywords).copied();
    let parts = SourceKind::ALL.iter().map(|kind| kind.word());
    let names = CertificateName::ALL.iter().map(|name| name.label());
    of_types.chain(keywords).chain(parts).chain(names).chain([KeyPart::ALL, "*", secrets::MASK, ""]).collect()
});

/// Returns whether the keys of a table are values of clients.
pub fn has_client_keys(kind: &str, table: &[&str]) -> bool {
    locate_value(kind, table).is_some_and(|place| !place.is_entry && place.option.clients == ClientData::Keys)
}

/// Returns whether an option has values of clients.
pub fn has_client_values(kind: &str, keys: &[&str]) -> bool {
    locate_value(kind, keys).is_some_and(|place| place.is_of_clients)
}

/// Prefixes of values before a name.
const PREFIXES: &[&str] = &[
    "!",
    "param:",
    "header:",
    "cookie:",
    "query:",
    "jwt:",
    "tls:",
    "credential:",
    "form:",
    "json:",
    "trailer:",
    "set:",
    "grpc:",
    "sse:",
    "upstream:",
    "descriptor:",
    "mailto:",
    "unix:",
    "= ",
    "~ ",
    "~i ",
];

impl Anonymizer {
    /// Returns the hash of a text as a name.
    pub fn hash(&self, text: &str) -> String {
        format!("x{:08x}", self.0.hash_one(text) >> 32)
    }

    /// Replaces a key that the operator chose; keys of options stay.
    pub fn replace_key(&self, key: &str) -> String {
        match schema::ALL.iter().any(|section| section.keys().any(|known| known == key)) {
            true => key.to_owned(),
            false => self.replace_text(key),
        }
    }

    /// Replaces the parts of a text that identify somebody.
    pub fn replace_text(&self, text: &str) -> String {
        if WORDS.contains(text) || is_number(text) {
            return text.to_owned();
        }
        if text.contains(" | ") {
            return text.split(" | ").map(|part| self.replace_text(part)).collect::<Vec<_>>().join(" | ");
        }
        if let Some(prefix) = PREFIXES.iter().find(|prefix| text.starts_with(**prefix)) {
            return format!("{prefix}{}", self.replace_text(&text[prefix.len()..]));
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return self.replace_url(scheme, rest);
        }
        if let Some(address) = self.replace_address(text) {
            return address;
        }
        match text.strip_prefix('/') {
            Some(path) => format!("/{}", self.replace_path(path)),
            None => self.hash(text),
        }
    }

    /// Replaces a value of a client: everything but addresses, and the marks of patterns and sets.
    pub fn replace_client_value(&self, text: &str) -> String {
        if ["", "*"].contains(&text) {
            return text.to_owned();
        }
        if let Some(mark) = ["!", "set:", "~i ", "~ "].iter().find(|mark| text.starts_with(**mark)) {
            return format!("{mark}{}", self.replace_client_value(&text[mark.len()..]));
        }
        self.replace_address(text).unwrap_or_else(|| self.hash(text))
    }

    fn replace_url(&self, scheme: &str, rest: &str) -> String {
        const SCHEMES: [&str; 10] = [
            "http",
            "https",
            "h2c",
            "redis",
            "rediss",
            "redis+unix",
            "redis+cluster",
            "rediss+cluster",
            "redis+sentinel",
            "rediss+sentinel",
        ];
        if !SCHEMES.contains(&scheme) {
            return self.hash(rest);
        }
        let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("user:***@", rest));
        let (hosts, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let hosts: Vec<String> = hosts.split(',').map(|host| self.replace_host(host)).collect();
        let path = match path.strip_prefix('/') {
            Some(path) => format!("/{}", self.replace_path(path)),
            None if path.is_empty() => String::new(),
            None => self.hash(path),
        };
        format!("{scheme}://{login}{}{path}", hosts.join(","))
    }

    fn replace_host(&self, host: &str) -> String {
        if let Some(address) = self.replace_address(host) {
            return address;
        }
        match host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
            Some((name, port)) => format!("{}:{port}", self.replace_text(name)),
            None if host.is_empty() => String::new(),
            None => self.hash(host),
        }
    }

    fn replace_path(&self, path: &str) -> String {
        let segment = |part: &str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => format!("{{{}}}", self.hash(name)),
            None if part.is_empty() => String::new(),
            None => self.hash(part),
        };
        path.split('/').map(segment).collect::<Vec<_>>().join("/")
    }

    /// Replaces an address, a network, or an address with a port. Addresses of this machine, prefix lengths and ports
    /// stay.
    fn replace_address(&self, text: &str) -> Option<String> {
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            let ip = self.replace_ip(ip);
            return Some(if text.starts_with('[') { format!("[{ip}]") } else { ip.to_string() });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(SocketAddr::new(self.replace_ip(address.ip()), address.port()).to_string());
        }
        let net = text.parse::<IpNet>().ok()?;
        let ip = IpNet::new(self.replace_ip(net.addr()), net.prefix_len()).ok()?;
        Some(ip.trunc().to_string())
    }

    fn replace_ip(&self, ip: IpAddr) -> IpAddr {
        if ip.is_loopback() || ip.is_unspecified() {
            return ip;
        }
        let [_, a, b, c, ..] = self.0.hash_one(ip).to_le_bytes();
        match ip {
            IpAddr::V4(_) => Ipv4Addr::new(10, a, b, c).into(),
            IpAddr::V6(_) => Ipv6Addr::from([0x2001, 0xdb8, u16::from(a), u16::from(b), 0, 0, 0, u16::from(c)]).into(),
        }
    }
}

/// Returns whether a text is a quantity, a date, a status class or a pattern of integers.
fn is_number(text: &str) -> bool {
    let is_status = text.len() == 3 && text.ends_with("xx") && text.starts_with(|c: char| c.is_ascii_digit());
    let is_prefixed =
        text.strip_prefix("ip/").is_some_and(|lengths| lengths.bytes().all(|b| b.is_ascii_digit() || b == b'/'));
    let is_pattern = text.len() <= 24 && text.bytes().all(|b| b.is_ascii_digit() || b"<>=!-:".contains(&b));
    let is_rate = text.split_once('/').is_some_and(|(count, unit)| {
        count.parse::<u64>().is_ok() && ["week", "month", "year"].contains(&unit) || values::parse_rate(text).is_ok()
    });
    let is_quantity = values::parse_duration(text).is_ok() || values::parse_size(text).is_ok();
    // A number with many digits and without a unit may be the identifier of a customer.
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    match text.bytes().any(|b| b.is_ascii_alphabetic()) {
        true => digits <= 12 && (is_status || is_prefixed || is_rate || is_quantity),
        false => digits <= 4 && (is_pattern || is_quantity),
    }
}
