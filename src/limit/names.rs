//! What a budget is called: the values of a key, each read once and written as a state key, which every
//! store uses, and as a field of overrides. Called by the limiter.

use std::fmt::Write;
use std::net::IpAddr;

use super::key::{Key, KeyPart, Missing};
use super::source::{Ambiguous, Repeated, SourceValue, SourceValues, write_hash};

/// Longer values enter the state key as a hash.
const VALUE_MAX: usize = 64;

/// What names a budget.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitNames {
    /// The state key.
    pub state: String,
    /// The values as a field of the overrides, if they are asked for.
    pub values: Option<String>,
}

/// Why a request has no budget of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unnamed {
    /// The part at that place is absent.
    Missing(usize),
    /// A part stands there more than once.
    Ambiguous,
}

/// What the state keys of a limit have in common.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub prefix: &'a str,
    pub limit: &'a str,
    pub algorithm: &'a str,
}

impl Key {
    /// Reads each part once and writes the state key and, if `wanted`, the values.
    ///
    /// Form of a state key: `PREFIX:{NAME=VALUE,NAME|NAME=VALUE}:LIMIT:ALGORITHM`, a `|` between alternatives. The braces make the
    /// client's part the hash tag of Redis Cluster, so limits with the same key parts share a slot. A
    /// value with bytes outside `A-Za-z0-9._:/@-`, an empty one or a long one is written `NAME#HASH`
    /// instead (128 bits of SHA-256): no two values, and no two lists of values, give the same key.
    ///
    /// Form of the values: separated by `,`, a star for one that is absent. Bytes other than visible
    /// ASCII, and `%`, `,` and `*`, are written `%XX`.
    ///
    /// # Errors
    /// A part is absent and `missing` is not `Shared`, or it is ambiguous.
    pub fn names(
        &self,
        frame: Frame,
        facts: &impl SourceValues,
        missing: Missing,
        repeated: Repeated,
        wanted: bool,
    ) -> Result<LimitNames, Unnamed> {
        let mut names =
            LimitNames { state: String::with_capacity(96), values: wanted.then(|| String::with_capacity(64)) };
        names.state.push_str(frame.prefix);
        names.state.push_str(":{");
        for (i, part) in self.0.iter().enumerate() {
            if i > 0 {
                names.state.push(',');
                names.note(|values| values.push(','));
            }
            if part.name(&mut names, facts, repeated).map_err(|Ambiguous| Unnamed::Ambiguous)? {
                continue;
            }
            if missing != Missing::Shared {
                return Err(Unnamed::Missing(i));
            }
            names.state.push('!');
            names.note(|values| values.push('*'));
        }
        for piece in ["}:", frame.limit, ":", frame.algorithm] {
            names.state.push_str(piece);
        }
        Ok(names)
    }
}

impl LimitNames {
    fn note(&mut self, write: impl FnOnce(&mut String)) {
        if let Some(values) = &mut self.values {
            write(values);
        }
    }
}

impl KeyPart {
    /// Appends name and value; false when there is no value, the name is then written.
    fn name(&self, names: &mut LimitNames, facts: &impl SourceValues, repeated: Repeated) -> Result<bool, Ambiguous> {
        self.write(&mut names.state);
        if *self == KeyPart::All {
            names.note(|values| values.push_str(KeyPart::ALL));
            return Ok(true);
        }
        match self.value(facts, repeated)? {
            None => return Ok(false),
            Some(SourceValue::Ip(ip)) => {
                names.state.push('=');
                let start = names.state.len();
                write_ip(&mut names.state, ip);
                if let Some(values) = &mut names.values {
                    values.push_str(&names.state[start..]);
                }
            }
            Some(SourceValue::Bytes(value)) => {
                write_value(&mut names.state, &value);
                names.note(|values| write_escaped(values, &value));
            }
        }
        Ok(true)
    }
}

/// As its `Display`, which takes twice as long for IPv4.
fn write_ip(text: &mut String, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            text.push_str(itoa::Buffer::new().format(a));
            for octet in [b, c, d] {
                text.push('.');
                text.push_str(itoa::Buffer::new().format(octet));
            }
        }
        IpAddr::V6(ip) => drop(write!(text, "{ip}")),
    }
}

fn write_value(text: &mut String, value: &[u8]) {
    match str::from_utf8(value) {
        Ok(plain) if !plain.is_empty() && plain.len() <= VALUE_MAX && plain.bytes().all(is_plain) => {
            text.push('=');
            text.push_str(plain);
        }
        _ => {
            text.push('#');
            write_hash(text, value);
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'/' | b'@' | b'-')
}

/// A value as it stands in a field of the overrides.
pub fn write_escaped(field: &mut String, value: &[u8]) {
    for byte in value {
        match byte {
            b'%' | b',' | b'*' => drop(write!(field, "%{byte:02X}")),
            byte if byte.is_ascii_graphic() => field.push(char::from(*byte)),
            byte => drop(write!(field, "%{byte:02X}")),
        }
    }
}
