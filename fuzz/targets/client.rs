//! Whatever forwarding fields say: the client is the last address in them that is no trusted proxy, and a peer that is
//! not trusted says nothing. Hops that the target has written are known to it; of a hop of any bytes it only knows
//! which addresses stand in it.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderValue};
use sluicegate::config::Config;
use sluicegate::fuzzing::identify;

const FRIEND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Hops looked at.
const HOPS_MAX: usize = 32;

enum Meaning {
    Client(IpAddr),
    /// Nobody: the walk ends at the one who wrote it.
    Nobody,
    /// Not a word.
    Empty,
    /// One of these addresses, or nobody.
    Any(Vec<IpAddr>),
}

/// A way to write a hop, and what it means.
fn hop(forwarded: bool, way: u8, bits: u128, raw: &[u8]) -> (Vec<u8>, Meaning) {
    let v4 = match way & 1 {
        // Among the trusted and just beside them.
        0 => Ipv4Addr::from(0x0a00_0000 | (bits as u32 & 0x01ff_ffff)),
        _ => Ipv4Addr::from(bits as u32),
    };
    let v6 = match way & 1 {
        0 => Ipv6Addr::from((bits >> 16) | 0xfd_u128 << 120),
        _ => Ipv6Addr::from(bits),
    };
    let port = bits as u16;
    let (text, ip) = match way >> 1 & 15 {
        0 | 1 => (v4.to_string(), IpAddr::V4(v4)),
        2 => (format!("{v4}:{port}"), IpAddr::V4(v4)),
        3 => (format!("::ffff:{v4}"), IpAddr::V4(v4)),
        4 => (format!("[{v6}]:{port}"), IpAddr::V6(v6)),
        5 => (format!("[{v6}]"), IpAddr::V6(v6)),
        6 => (v6.to_string().to_uppercase(), IpAddr::V6(v6)),
        7 => (format!("[::ffff:{v4}]:{port}"), IpAddr::V4(v4)),
        8 => return (b" \t".to_vec(), Meaning::Empty),
        9 => return (forwarded_pair(forwarded, way, "unknown"), Meaning::Nobody),
        10 => return (forwarded_pair(forwarded, way, &format!("[fe80::1%{port}]:80")), Meaning::Nobody),
        11 => return (forwarded_pair(forwarded, way, &format!("{v4}:80:80")), Meaning::Nobody),
        12 => return (forwarded_pair(forwarded, way, &format!("{v4} {v4}")), Meaning::Nobody),
        _ => {
            let raw: Vec<u8> = raw.iter().copied().take(48).filter(|byte| *byte != b',').collect();
            let meaning = if raw.trim_ascii().is_empty() { Meaning::Empty } else { Meaning::Any(addresses(&raw)) };
            return (raw, meaning);
        }
    };
    (forwarded_pair(forwarded, way, &text), Meaning::Client(ip.to_canonical()))
}

/// As it stands in the one field or the other.
fn forwarded_pair(forwarded: bool, way: u8, text: &str) -> Vec<u8> {
    match (forwarded, way >> 5) {
        (false, odd) => format!("{}{text}", if odd & 1 == 0 { "" } else { "  " }),
        (true, 0 | 1) => format!("for=\"{text}\""),
        (true, 2 | 3) => format!("By=10.0.0.9;FOR=\"{text}\";proto=https"),
        (true, 4 | 5) => format!(" proto=http; for=\"{text}\" "),
        (true, _) => format!("host=\"a.test:80\";for=\"{text}\""),
    }
    .into_bytes()
}

/// Every address that any part of these bytes is.
fn addresses(bytes: &[u8]) -> Vec<IpAddr> {
    let text = String::from_utf8_lossy(bytes);
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let parts =
        places.iter().enumerate().flat_map(|(number, from)| places[number..].iter().map(|to| &text[*from..*to]));
    parts.filter_map(|part| part.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()).collect()
}

fn trusted(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.octets()[0] == 10,
        IpAddr::V6(v6) => v6.segments()[0] >> 8 == 0xfd,
    }
}

/// Who the client may be, from the last hop to the first.
fn expected<'a>(meanings: impl Iterator<Item = &'a Meaning>) -> BTreeSet<IpAddr> {
    let (mut ends, mut walks) = (BTreeSet::new(), BTreeSet::from([FRIEND]));
    for meaning in meanings.take(HOPS_MAX) {
        let (next, stops): (Vec<IpAddr>, bool) = match meaning {
            Meaning::Empty => continue,
            Meaning::Nobody => (Vec::new(), true),
            Meaning::Client(ip) => (vec![*ip], false),
            Meaning::Any(ips) => (ips.clone(), true),
        };
        if stops {
            ends.extend(&walks);
        }
        let (on, end): (Vec<IpAddr>, Vec<IpAddr>) = next.into_iter().partition(|ip| trusted(*ip));
        ends.extend(end);
        walks = BTreeSet::from_iter(on);
        if walks.is_empty() {
            break;
        }
    }
    ends.extend(walks);
    ends
}

thread_local!(static CONFIG: OnceCell<Config> = const { OnceCell::new() });

pub type Input<'a> = (bool, Vec<(bool, u8, u128, &'a [u8])>);

pub fn run(input: Input<'_>) {
    let (forwarded, hops) = input;
    let name = if forwarded { "forwarded" } else { "x-forwarded-for" };
    let (mut lines, mut meanings) = (Vec::<Vec<u8>>::new(), Vec::new());
    for (number, (line_ends, way, bits, raw)) in hops.into_iter().enumerate() {
        let (text, meaning) = hop(forwarded, way, bits, raw);
        match line_ends || number == 0 {
            true => lines.push(Vec::new()),
            false => lines.last_mut().unwrap().push(b','),
        }
        lines.last_mut().unwrap().extend(text);
        meanings.push(meaning);
    }
    let mut headers = HeaderMap::new();
    for line in &lines {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        headers.append(name, value);
    }
    CONFIG.with(|config| {
        let rules = &config
            .get_or_init(|| {
                let text = "[server]\ntrusted_proxies = [\"10.0.0.0/8\", \"fd00::/8\"]\nnat64 = []\n\
                            [[route]]\nupstream = \"echo:\"\n";
                sluicegate::config::load_text("fuzz.toml", text).unwrap_or_else(|report| panic!("{report}"))
            })
            .server
            .client_address;
        assert_eq!(identify(STRANGER, &headers, rules).ip, STRANGER);
        let found = identify(FRIEND, &headers, rules).ip;
        let expected = expected(meanings.iter().rev());
        assert!(expected.contains(&found), "{found} is none of {expected:?}: {headers:?}");
    });
}
