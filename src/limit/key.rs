//! Whose budget: the parts of a limit's key, read from a request and written as a state key, and
//! the cost of a request. Every store uses the same keys.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use super::inputs;
use super::jwt::Claims;

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
    Cookie(String),
    Query(String),
    /// A claim of a verified token.
    Claim(String),
    All,
}

/// What happens when a part of the key is absent from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The limit does not apply.
    Skip,
    /// All such requests share one budget.
    Shared,
    /// The request is refused.
    Refuse,
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
    /// Of the verified token, if there is one and a limit of the route asks for it.
    pub claims: Option<Arc<Claims>>,
}

/// Where the values of key parts come from: a request, or somebody who asks about one.
pub trait Parts {
    /// `None` when absent.
    fn value(&self, part: &KeyPart) -> Option<PartValue<'_>>;
}

pub enum PartValue<'a> {
    /// The client, of which the part says how much counts.
    Ip(IpAddr),
    Bytes(Cow<'a, [u8]>),
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
    parts: &impl Parts,
) -> Option<String> {
    let mut text = String::with_capacity(96);
    text.push_str(prefix);
    text.push_str(":{");
    for (i, part) in key.0.iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        if !part.write(&mut text, parts) {
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

impl Parts for Facts<'_> {
    fn value(&self, part: &KeyPart) -> Option<PartValue<'_>> {
        let bytes = match part {
            KeyPart::Ip { .. } => return Some(PartValue::Ip(self.client)),
            KeyPart::Host => self.host.as_bytes(),
            KeyPart::Path => self.path.as_bytes(),
            KeyPart::Method => self.method.as_bytes(),
            KeyPart::Route => self.route.as_bytes(),
            KeyPart::Header(name) => self.headers.get(name)?.as_bytes(),
            KeyPart::Cookie(name) => inputs::cookie(self.headers, name)?,
            KeyPart::Query(name) => return inputs::query(self.query, name).map(PartValue::Bytes),
            KeyPart::Claim(name) => self.claims.as_ref()?.get(name)?.as_bytes(),
            KeyPart::All => return None,
        };
        Some(PartValue::Bytes(Cow::Borrowed(bytes)))
    }
}

impl KeyPart {
    /// Appends name and value; false when there is no value, the name is then written.
    fn write(&self, text: &mut String, parts: &impl Parts) -> bool {
        self.write_name(text);
        if *self == KeyPart::All {
            return true;
        }
        let Some(value) = self.shown(parts) else { return false };
        write_value(text, &value);
        true
    }

    /// As in the config.
    fn write_name(&self, text: &mut String) {
        match self {
            KeyPart::Ip { v4, v6 } => {
                text.push_str("ip");
                if (*v4, *v6) != IP_DEFAULT {
                    let _ = write!(text, "/{v4}/{v6}");
                }
            }
            KeyPart::Host => text.push_str("host"),
            KeyPart::Path => text.push_str("path"),
            KeyPart::Method => text.push_str("method"),
            KeyPart::Route => text.push_str("route"),
            KeyPart::All => text.push_str("all"),
            KeyPart::Header(name) => write_name(text, "header:", name.as_str()),
            KeyPart::Cookie(name) => write_name(text, "cookie:", name),
            KeyPart::Query(name) => write_name(text, "query:", name),
            KeyPart::Claim(name) => write_name(text, "jwt:", name),
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        self.write_name(&mut name);
        f.write_str(&name)
    }
}

impl KeyPart {
    /// The value as it enters a state key, without its name.
    pub fn shown<'p>(&self, parts: &'p impl Parts) -> Option<Cow<'p, [u8]>> {
        Some(match (self, parts.value(self)) {
            (KeyPart::All, _) => Cow::Borrowed(b"all".as_slice()),
            (KeyPart::Ip { v4, v6 }, Some(PartValue::Ip(ip))) => {
                Cow::Owned(network(ip, *v4, *v6).to_string().into_bytes())
            }
            (_, Some(PartValue::Ip(ip))) => Cow::Owned(ip.to_string().into_bytes()),
            (_, Some(PartValue::Bytes(value))) => value,
            (_, None) => return None,
        })
    }

    /// A value that somebody wrote, as requests show it.
    pub fn canonical(&self, written: Vec<u8>) -> Result<Vec<u8>, String> {
        match self {
            KeyPart::Ip { v4, v6 } => {
                let text = String::from_utf8_lossy(&written);
                match text.parse::<IpAddr>() {
                    Ok(ip) => Ok(network(ip, *v4, *v6).to_string().into_bytes()),
                    Err(_) => Err(format!("`{text}` is not an address")),
                }
            }
            KeyPart::Host => Ok(written.to_ascii_lowercase()),
            _ => Ok(written),
        }
    }
}

/// A name that could be taken for more than a name is written as a hash.
fn write_name(text: &mut String, kind: &str, name: &str) {
    text.push_str(kind);
    match name.bytes().all(|byte| byte.is_ascii_graphic() && !b"{},=#!".contains(&byte)) {
        true => text.push_str(name),
        false => write_hash(text, name.as_bytes()),
    }
}

/// Prefix lengths of the key part `ip`: an IPv4 address, an IPv6 network of one site.
pub const IP_DEFAULT: (u8, u8) = (32, 64);

fn network(ip: IpAddr, v4: u8, v6: u8) -> IpAddr {
    let ip = ip.to_canonical();
    let prefix = if ip.is_ipv4() { v4 } else { v6 };
    IpNet::new(ip, prefix).map_or(ip, |net| net.network())
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

fn write_hash(text: &mut String, value: &[u8]) {
    for byte in &Sha256::digest(value)[..16] {
        let _ = write!(text, "{byte:02x}");
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'/' | b'@' | b'-')
}

impl Cost {
    pub fn of(&self, facts: &Facts) -> i64 {
        let stated = match self {
            Cost::Fixed(cost) => return *cost,
            Cost::Header(name) => facts.headers.get(name).map(|value| Cow::Borrowed(value.as_bytes())),
            Cost::Query(name) => inputs::query(facts.query, name),
        };
        let stated = stated.as_deref().and_then(|stated| str::from_utf8(stated).ok());
        stated
            .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
            .map_or(COST_DEFAULT, |digits| digits.parse().map_or(COST_MAX, |cost: i64| cost.min(COST_MAX)))
    }
}

/// As in the config.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cost::Fixed(cost) => write!(f, "{cost}"),
            Cost::Header(name) => write!(f, "header:{name}"),
            Cost::Query(name) => write!(f, "query:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const NAMES: [HeaderName; 2] = [HeaderName::from_static("x-a"), HeaderName::from_static("x-b")];

    impl<'a> Facts<'a> {
        /// A request with these headers.
        pub fn of(headers: &'a HeaderMap) -> Facts<'a> {
            Facts {
                client: IpAddr::from([127, 0, 0, 1]),
                method: "GET",
                host: "h",
                path: "/",
                query: None,
                headers,
                route: "r",
                claims: None,
            }
        }
    }

    /// Host, path, two headers, and a text that is cookie, parameter and claim; all but the first
    /// two may be absent.
    type Values = (String, String, Option<Vec<u8>>, Option<Vec<u8>>, Option<String>);

    fn key_of(values: &Values) -> String {
        let (host, path, a, b, text) = values;
        let mut headers = HeaderMap::new();
        for (name, value) in NAMES.into_iter().zip([a, b]) {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_bytes(value).unwrap());
            }
        }
        let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let query = text.as_deref().map(|text| format!("a,b={}", encoded(text)));
        let query = query.map(|query| query.replacen("a,b", "%61,b", 1));
        let claims = text.clone().map(|text| Arc::new(Claims::from_iter([("sub".to_owned(), text)])));
        let facts = Facts { host, path, query: query.as_deref(), claims, ..Facts::of(&headers) };
        let [a, b] = NAMES;
        let key = Key(vec![
            KeyPart::Host,
            KeyPart::Header(a),
            KeyPart::Query("a,b".to_owned()),
            KeyPart::Path,
            KeyPart::Header(b),
            KeyPart::Claim("sub".to_owned()),
            KeyPart::Cookie("sid".to_owned()),
        ]);
        state_key("sg", "limit", "token_bucket", &key, Missing::Shared, &facts).unwrap()
    }

    /// Values made to be taken for one another: empty, separators, braces, hashes, long ones.
    fn tricky() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            "[ab=,#!{}:]{0,4}",
            "[a-f0-9]{32}",
            "a{62,70}",
            Just("a,header:x-b=b".to_owned()),
            Just("!".to_owned()),
            Just("\u{e4}\u{4e2d}".to_owned()),
        ]
    }

    fn header() -> impl Strategy<Value = Option<Vec<u8>>> {
        prop_oneof![
            Just(None),
            tricky().prop_map(|text| Some(text.into_bytes())),
            prop::collection::vec(prop_oneof![0x20u8..0x7f, 0x80u8..], 0..4).prop_map(Some),
        ]
    }

    fn values() -> impl Strategy<Value = Values> {
        (tricky(), tricky(), header(), header(), prop::option::of(tricky()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn different_values_have_different_keys(one in values(), new in values(), same in [any::<bool>(); 5]) {
            let other = (
                if same[0] { one.0.clone() } else { new.0 },
                if same[1] { one.1.clone() } else { new.1 },
                if same[2] { one.2.clone() } else { new.2 },
                if same[3] { one.3.clone() } else { new.3 },
                if same[4] { one.4.clone() } else { new.4 },
            );
            prop_assert_eq!(key_of(&one) == key_of(&other), one == other);
        }

        #[test]
        fn a_key_is_short_plain_and_has_one_hash_tag(values in values()) {
            let key = key_of(&values);
            prop_assert!(key.len() < 600 && key.is_ascii());
            let framed = key.starts_with("sg:{host") && key.ends_with("}:limit:token_bucket");
            prop_assert!(framed, "{}", key);
            prop_assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1));
        }
    }

    fn ip_key(client: &str, part: KeyPart) -> String {
        let headers = HeaderMap::new();
        let client = client.parse().unwrap();
        let facts = Facts { client, ..Facts::of(&headers) };
        state_key("sg", "l", "gcra", &Key(vec![part]), Missing::Skip, &facts).unwrap()
    }

    #[test]
    fn parameters_cookies_and_claims_name_the_key() {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", HeaderValue::from_static("sid=\"7\""));
        let claims = Some(Arc::new(Claims::from_iter([("sub".to_owned(), "anna".to_owned())])));
        let facts = Facts { query: Some("uid=4+2"), claims, ..Facts::of(&headers) };
        let key = Key(vec![
            KeyPart::Cookie("sid".into()),
            KeyPart::Query("uid".into()),
            KeyPart::Claim("sub".into()),
            KeyPart::Query("x,y".into()),
        ]);
        let text = state_key("sg", "l", "gcra", &key, Missing::Shared, &facts).unwrap();
        assert!(text.starts_with("sg:{cookie:sid=7,query:uid#"), "{text}");
        assert!(text.contains(",jwt:sub=anna,query:") && text.ends_with("!}:l:gcra"), "{text}");
        assert_eq!(text.matches(',').count(), 3, "{text}");
        assert_eq!(state_key("sg", "l", "gcra", &key, Missing::Skip, &facts), None);
    }

    #[test]
    fn clients_are_networks() {
        let site = KeyPart::Ip { v4: 32, v6: 64 };
        let wide = KeyPart::Ip { v4: 24, v6: 56 };
        assert_eq!(ip_key("10.1.2.3", site.clone()), "sg:{ip=10.1.2.3}:l:gcra");
        assert_eq!(ip_key("::ffff:10.1.2.3", site.clone()), "sg:{ip=10.1.2.3}:l:gcra");
        assert_eq!(ip_key("2001:db8::1:2:3:4", site), "sg:{ip=2001:db8::}:l:gcra");
        assert_eq!(ip_key("10.1.2.3", wide.clone()), "sg:{ip/24/56=10.1.2.0}:l:gcra");
        assert_eq!(ip_key("2001:db8:0:1ff::1", wide), "sg:{ip/24/56=2001:db8:0:100::}:l:gcra");
    }
}
