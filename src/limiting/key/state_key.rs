//! The names of a budget: the values of its key, written as the state key that stores use, and as the field that
//! overrides use. Each value is read only once.

use std::fmt::Write;
use std::net::IpAddr;

use memchr::{memchr, memrchr};

use crate::limiting::key::SourceValues;
use crate::limiting::key::{Key, KeyPart, Missing};
use crate::limiting::source::{Ambiguous, Repeated, SourceValue, append_hash};

/// Longer values are hashed in the state key.
const VALUE_MAX: usize = 64;

/// Mark of a digest in the values of a key. An escaped value never contains it.
pub const DIGEST_MARK: &str = "%#";

/// Names of a budget.
#[derive(Debug, PartialEq, Eq)]
pub struct BudgetNames {
    /// The state key.
    pub state: String,
    /// The values as a field of the overrides, if requested.
    pub values: Option<String>,
}

/// Names of one part of a key.
#[derive(Debug, PartialEq, Eq)]
pub struct PartNames {
    /// The part as in a state key: its name and, if there is one, its value.
    pub state: String,
    /// Length of the name in bytes.
    pub name_len: usize,
    /// The value as a field of the overrides has it; `None` if the request has none.
    pub value: Option<String>,
}

/// Why the budget of a request has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The part with that index is absent.
    Missing(usize),
    /// The request contains several values of a part.
    Ambiguous,
}

/// The parts that all state keys of a limit share.
#[derive(Clone, Copy, Debug)]
pub struct StateKeyFrame<'a> {
    pub prefix: &'a str,
    pub limit: &'a str,
    pub algorithm: &'a str,
}

impl Key {
    /// Writes the state key and, if `wanted`, the values.
    ///
    /// Format of a state key: `PREFIX:{NAME=VALUE,NAME|NAME=VALUE}:LIMIT:ALGORITHM`, with a `|` between alternatives.
    /// The braces make the key parts the hash tag of Redis Cluster, so limits with the same key parts share a slot.
    /// A value that is empty, longer than 64 bytes or has bytes outside `A-Za-z0-9._:/@-` is written as `NAME#HASH`
    /// instead (128 bits of SHA-256). Different values, or lists of values, never have the same key.
    ///
    /// Format of the values: separated by `,`, with a star for one that is absent. `%`, `,`, `*` and bytes other than
    /// visible ASCII are written `%XX`.
    ///
    /// # Errors
    /// A part is absent and `missing` is not `Shared`, or it is ambiguous.
    pub fn budget_names(
        &self,
        frame: StateKeyFrame,
        facts: &impl SourceValues,
        missing: Missing,
        repeated: Repeated,
        wanted: bool,
    ) -> Result<BudgetNames, KeyError> {
        let mut names =
            BudgetNames { state: String::with_capacity(96), values: wanted.then(|| String::with_capacity(64)) };
        names.state.push_str(frame.prefix);
        names.state.push_str(":{");
        for (i, part) in self.0.iter().enumerate() {
            if i > 0 {
                names.state.push(',');
                names.write_values(|values| values.push(','));
            }
            if part.write_names(&mut names, facts, repeated).map_err(|Ambiguous| KeyError::Ambiguous)? {
                continue;
            }
            if missing != Missing::Shared {
                return Err(KeyError::Missing(i));
            }
            names.state.push('!');
            names.write_values(|values| values.push('*'));
        }
        for piece in ["}:", frame.limit, ":", frame.algorithm] {
            names.state.push_str(piece);
        }
        Ok(names)
    }
}

impl BudgetNames {
    fn write_values(&mut self, write: impl FnOnce(&mut String)) {
        if let Some(values) = &mut self.values {
            write(values);
        }
    }
}

impl KeyPart {
    /// Returns the names of the part alone.
    ///
    /// # Errors
    /// The part has several values, and `repeated` does not choose one.
    pub fn part_names(&self, facts: &impl SourceValues, repeated: Repeated) -> Result<PartNames, Ambiguous> {
        let mut names = BudgetNames { state: String::with_capacity(64), values: Some(String::with_capacity(64)) };
        let has_value = self.write_names(&mut names, facts, repeated)?;
        // Names contain none of these characters.
        let name_len = names.state.find(['=', '#']).unwrap_or(names.state.len());
        Ok(PartNames { state: names.state, name_len, value: names.values.filter(|_| has_value) })
    }

    /// Appends the name and the value. Without a value it appends only the name and returns false.
    fn write_names(
        &self,
        names: &mut BudgetNames,
        facts: &impl SourceValues,
        repeated: Repeated,
    ) -> Result<bool, Ambiguous> {
        self.write_name(&mut names.state);
        if *self == KeyPart::All {
            names.write_values(|values| values.push_str(KeyPart::ALL));
            return Ok(true);
        }
        match facts.part_value(self, repeated)? {
            None => return Ok(false),
            Some(SourceValue::Digest(digits)) => {
                for (text, mark) in [(Some(&mut names.state), "#"), (names.values.as_mut(), DIGEST_MARK)] {
                    text.into_iter().for_each(|text| text.extend([mark, &digits]));
                }
            }
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
                names.write_values(|values| write_escaped(values, &value));
            }
        }
        Ok(true)
    }
}

/// Writes an address like its `Display`, which takes twice as long for IPv4.
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

/// Appends `=VALUE`, or `#HASH` if the value is long or has other bytes than state keys contain.
pub fn write_value(text: &mut String, value: &[u8]) {
    match str::from_utf8(value) {
        Ok(plain) if !plain.is_empty() && plain.len() <= VALUE_MAX && plain.bytes().all(is_plain) => {
            text.push('=');
            text.push_str(plain);
        }
        _ => {
            text.push('#');
            append_hash(text, value);
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'/' | b'@' | b'-')
}

/// Appends a value as it is written in a field of the overrides.
pub fn write_escaped(field: &mut String, value: &[u8]) {
    for byte in value {
        match byte {
            b'%' | b',' | b'*' => drop(write!(field, "%{byte:02X}")),
            byte if byte.is_ascii_graphic() => field.push(char::from(*byte)),
            byte => drop(write!(field, "%{byte:02X}")),
        }
    }
}

/// Returns the parts of a state key, such as `ip=::1,path=/a`; an empty text if the text is not a state key.
pub fn state_key_parts(state_key: &str) -> &str {
    // Neither the prefix nor the parts nor the name of the limit contain braces. Called for every refusal, so it
    // searches for single bytes.
    let bytes = state_key.as_bytes();
    let braces = memchr(b'{', bytes).zip(memrchr(b'}', bytes));
    braces.and_then(|(open, close)| state_key.get(open + 1..close)).unwrap_or_default()
}
