//! Hash slots of Redis Cluster: computes the slot of a key, and parses the replies of CLUSTER SLOTS and redirections.
//! Nothing here does I/O.

use redis::Value;

use crate::limiting::decision::Check;
use crate::limiting::store::address::ServerAddr;

pub const SLOTS: usize = 16384;

/// Returns the slot of checks that share one.
pub fn slot_of(checks: &[Check]) -> usize {
    checks.first().map_or(0, |check| key_slot(&check.key))
}

/// Returns the slot of a key: the hash of the part between the first `{` and the next `}`, or of the whole key if it
/// has no such part.
pub fn key_slot(key: &str) -> usize {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key);
    usize::from(crc16(tag.as_bytes())) % SLOTS
}

/// Computes the CRC-16/XMODEM checksum.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

/// A range of slots, and the nodes that have them.
#[derive(Debug, PartialEq)]
pub struct SlotRange {
    pub first: usize,
    pub last: usize,
    pub master: ServerAddr,
    pub replicas: Vec<ServerAddr>,
}

/// Parses the reply of CLUSTER SLOTS. `sender` is the node that sent it, which may not know its own name. Returns
/// `None` if it is malformed.
pub fn parse_ranges(reply: &Value, sender: &ServerAddr) -> Option<Vec<SlotRange>> {
    array(reply)?
        .iter()
        .map(|range| {
            let [first, last, master, replicas @ ..] = array(range)? else { return None };
            let (first, last) = (int(first)?, int(last)?);
            (first <= last && last < SLOTS).then_some(())?;
            let replicas = replicas.iter().filter_map(|replica| parse_node(replica, sender)).collect();
            Some(SlotRange { first, last, master: parse_node(master, sender)?, replicas })
        })
        .collect()
}

fn parse_node(value: &Value, sender: &ServerAddr) -> Option<ServerAddr> {
    let [host, port, ..] = array(value)? else { return None };
    let host = match host {
        Value::BulkString(host) => str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => "",
    };
    Some(ServerAddr::Tcp(host_or(host, sender)?, u16::try_from(int(port)?).ok()?))
}

/// Parses the node of a redirection, `HOST:PORT`.
pub fn parse_redirect_node(node: &str, sender: &ServerAddr) -> Option<ServerAddr> {
    let (host, port) = node.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(ServerAddr::Tcp(host_or(host, sender)?, port.parse().ok()?))
}

/// Returns the host. An empty one stands for the node that sent the reply.
fn host_or(host: &str, sender: &ServerAddr) -> Option<String> {
    match (host, sender) {
        ("", ServerAddr::Tcp(sender, _)) => Some(sender.clone()),
        ("" | "?", _) => None,
        _ => Some(host.to_owned()),
    }
}

fn array(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn int(value: &Value) -> Option<usize> {
    match value {
        Value::Int(int) => usize::try_from(*int).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn slots_are_those_of_redis() {
        // Results of CLUSTER KEYSLOT.
        for (key, expected) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("sg:{foo}:limit:gcra", 12182),
            ("{foo}{bar}", 12182),
            ("a{}b", key_slot("a{}b")),
            ("", 0),
        ] {
            assert_eq!(key_slot(key), expected, "{key}");
        }
        assert_eq!(key_slot("a{}foo"), usize::from(crc16(b"a{}foo")) % SLOTS);
        assert_ne!(key_slot("a{foo"), key_slot("foo"));
    }

    #[test]
    fn a_map_is_read_whole_or_not_at_all() {
        let sender = ServerAddr::Tcp("h".to_owned(), 1);
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last| {
            let (master, replica) = (node(text("a"), 7), node(Value::Nil, 8));
            Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
        };
        let read = parse_ranges(&Value::Array(vec![range(0, 5), range(7, 16383)]), &sender).unwrap();
        assert_eq!((read[0].first, read[0].last, read[1].last), (0, 5, 16383));
        assert_eq!(read[0].master, ServerAddr::Tcp("a".to_owned(), 7));
        assert_eq!(read[0].replicas, [ServerAddr::Tcp("h".to_owned(), 8)]);
        for bad in [range(0, 16384), range(5, 4), range(-1, 4), Value::Nil, Value::Array(vec![])] {
            assert_eq!(parse_ranges(&Value::Array(vec![range(0, 5), bad]), &sender), None);
        }
        assert_eq!(parse_ranges(&Value::Okay, &sender), None);
    }

    #[test]
    fn redirections_name_a_node() {
        let sender = ServerAddr::Tcp("h".to_owned(), 1);
        let tcp = |host: &str, port| Some(ServerAddr::Tcp(host.to_owned(), port));
        assert_eq!(parse_redirect_node("10.0.0.1:6379", &sender), tcp("10.0.0.1", 6379));
        assert_eq!(parse_redirect_node("::1:6379", &sender), tcp("::1", 6379));
        assert_eq!(parse_redirect_node("[::1]:6379", &sender), tcp("::1", 6379));
        assert_eq!(parse_redirect_node(":6379", &sender), tcp("h", 6379));
        assert_eq!(parse_redirect_node("?:6379", &sender), None);
        assert_eq!(parse_redirect_node("10.0.0.1:x", &sender), None);
    }
}
