//! Hash slots of Redis Cluster: the slot of a key, and which node has which slots as CLUSTER SLOTS
//! tells it. Called by all that send to a cluster; nothing here does I/O.

use redis::Value;

use super::address::Addr;
use crate::limit::decision::Check;

pub const SLOTS: usize = 16384;

/// The slot of checks that share one: that of the first.
pub fn slot_of(checks: &[Check]) -> usize {
    checks.first().map_or(0, |check| slot(&check.key))
}

/// Of the part between the first `{` and the next `}`, or of the whole key if there is none.
pub fn slot(key: &str) -> usize {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key);
    usize::from(crc16(tag.as_bytes())) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

/// Some slots in a row, and the node that has them.
#[derive(Debug, PartialEq)]
pub struct Range {
    pub first: usize,
    pub last: usize,
    pub master: Addr,
    pub replicas: Vec<Addr>,
}

/// The reply of CLUSTER SLOTS; `asked` is who gave it, which may not know its own name. `None` if
/// it is something else.
pub fn ranges(reply: &Value, asked: &Addr) -> Option<Vec<Range>> {
    array(reply)?
        .iter()
        .map(|range| {
            let [first, last, master, replicas @ ..] = array(range)? else { return None };
            let (first, last) = (int(first)?, int(last)?);
            (first <= last && last < SLOTS).then_some(())?;
            let replicas = replicas.iter().filter_map(|replica| node(replica, asked)).collect();
            Some(Range { first, last, master: node(master, asked)?, replicas })
        })
        .collect()
}

fn node(value: &Value, asked: &Addr) -> Option<Addr> {
    let [host, port, ..] = array(value)? else { return None };
    let host = match host {
        Value::BulkString(host) => str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => "",
    };
    Some(Addr::Tcp(host_or(host, asked)?, u16::try_from(int(port)?).ok()?))
}

/// The node in a redirection, `HOST:PORT`.
pub fn redirected(node: &str, asked: &Addr) -> Option<Addr> {
    let (host, port) = node.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(Addr::Tcp(host_or(host, asked)?, port.parse().ok()?))
}

/// An empty host stands for the node that was asked.
fn host_or(host: &str, asked: &Addr) -> Option<String> {
    match (host, asked) {
        ("", Addr::Tcp(asked, _)) => Some(asked.clone()),
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
        // From CLUSTER KEYSLOT.
        for (key, expected) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("sg:{foo}:limit:gcra", 12182),
            ("{foo}{bar}", 12182),
            ("a{}b", slot("a{}b")),
            ("", 0),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
        assert_eq!(slot("a{}foo"), usize::from(crc16(b"a{}foo")) % SLOTS);
        assert_ne!(slot("a{foo"), slot("foo"));
    }

    #[test]
    fn a_map_is_read_whole_or_not_at_all() {
        let asked = Addr::Tcp("h".to_owned(), 1);
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last| {
            let (master, replica) = (node(text("a"), 7), node(Value::Nil, 8));
            Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
        };
        let read = ranges(&Value::Array(vec![range(0, 5), range(7, 16383)]), &asked).unwrap();
        assert_eq!((read[0].first, read[0].last, read[1].last), (0, 5, 16383));
        assert_eq!(read[0].master, Addr::Tcp("a".to_owned(), 7));
        assert_eq!(read[0].replicas, [Addr::Tcp("h".to_owned(), 8)]);
        for bad in [range(0, 16384), range(5, 4), range(-1, 4), Value::Nil, Value::Array(vec![])] {
            assert_eq!(ranges(&Value::Array(vec![range(0, 5), bad]), &asked), None);
        }
        assert_eq!(ranges(&Value::Okay, &asked), None);
    }

    #[test]
    fn redirections_name_a_node() {
        let asked = Addr::Tcp("h".to_owned(), 1);
        let tcp = |host: &str, port| Some(Addr::Tcp(host.to_owned(), port));
        assert_eq!(redirected("10.0.0.1:6379", &asked), tcp("10.0.0.1", 6379));
        assert_eq!(redirected("::1:6379", &asked), tcp("::1", 6379));
        assert_eq!(redirected("[::1]:6379", &asked), tcp("::1", 6379));
        assert_eq!(redirected(":6379", &asked), tcp("h", 6379));
        assert_eq!(redirected("?:6379", &asked), None);
        assert_eq!(redirected("10.0.0.1:x", &asked), None);
    }
}
