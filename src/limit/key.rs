//! Whose budget: the parts of a limit's key, read from a request, and the cost of the request. What
//! the budget is called then is in `names`.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use super::inputs::{self, Ambiguous, Found, Repeated};
use super::jwt::Claims;
use super::names;

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
    /// What `{NAME}` of the route's template takes.
    Param(String),
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
    /// Of the route's template.
    pub params: &'a [Param],
    /// Of the verified token, if there is one and a limit of the route asks for it.
    pub claims: Option<Arc<Claims>>,
}

/// A `{NAME}` of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    pub name: String,
    /// The segment of the path that it takes, from 0.
    pub segment: usize,
}

/// Where the values of key parts come from: a request, or somebody who asks about one.
pub trait Parts {
    /// `None` when absent.
    ///
    /// # Errors
    /// There is more than one, and `repeated` chooses none.
    fn value(&self, part: &KeyPart, repeated: Repeated) -> Result<Option<PartValue<'_>>, Ambiguous>;
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

impl Parts for Facts<'_> {
    fn value(&self, part: &KeyPart, repeated: Repeated) -> Result<Option<PartValue<'_>>, Ambiguous> {
        let bytes = match part {
            KeyPart::Ip { .. } => return Ok(Some(PartValue::Ip(self.client))),
            KeyPart::Host => self.host.as_bytes(),
            KeyPart::Path => self.path.as_bytes(),
            KeyPart::Method => self.method.as_bytes(),
            KeyPart::Route => self.route.as_bytes(),
            KeyPart::Header(name) => return Ok(inputs::header(self.headers, name, repeated)?.map(PartValue::Bytes)),
            KeyPart::Cookie(name) => return Ok(inputs::cookie(self.headers, name, repeated)?.map(PartValue::Bytes)),
            KeyPart::Query(name) => return Ok(inputs::query(self.query, name, repeated)?.map(PartValue::Bytes)),
            KeyPart::Param(name) => return Ok(self.param(name, repeated)?.map(PartValue::Bytes)),
            KeyPart::Claim(name) => match self.claims.as_ref().and_then(|claims| claims.get(name)) {
                Some(claim) => claim.as_bytes(),
                None => return Ok(None),
            },
            KeyPart::All => return Ok(None),
        };
        Ok(Some(PartValue::Bytes(Cow::Borrowed(bytes))))
    }
}

impl Facts<'_> {
    /// What `{name}` of the route's template takes.
    pub fn param(&self, name: &str, repeated: Repeated) -> Found<'_> {
        match self.params.iter().find(|param| param.name == name) {
            Some(param) => inputs::segment(self.path, param.segment, repeated),
            None => Ok(None),
        }
    }
}

impl KeyPart {
    /// As in the config.
    pub fn write_name(&self, text: &mut String) {
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
            KeyPart::Param(name) => write_name(text, "param:", name),
            KeyPart::Claim(name) => write_name(text, "jwt:", name),
        }
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

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        self.write_name(&mut name);
        f.write_str(&name)
    }
}

/// A name that could be taken for more than a name is written as a hash.
fn write_name(text: &mut String, kind: &str, name: &str) {
    text.push_str(kind);
    match name.bytes().all(|byte| byte.is_ascii_graphic() && !b"{},=#!".contains(&byte)) {
        true => text.push_str(name),
        false => names::write_hash(text, name.as_bytes()),
    }
}

/// Prefix lengths of the key part `ip`: an IPv4 address, an IPv6 network of one site.
pub const IP_DEFAULT: (u8, u8) = (32, 64);

/// The network of which `ip` is a part.
pub fn network(ip: IpAddr, v4: u8, v6: u8) -> IpAddr {
    let ip = ip.to_canonical();
    let prefix = if ip.is_ipv4() { v4 } else { v6 };
    IpNet::new(ip, prefix).map_or(ip, |net| net.network())
}

impl Cost {
    /// What a request can cost.
    pub fn most(&self) -> i64 {
        match self {
            Cost::Fixed(cost) => *cost,
            Cost::Header(_) | Cost::Query(_) => COST_MAX,
        }
    }

    /// # Errors
    /// The request states more than one, and `repeated` chooses none.
    pub fn of(&self, facts: &Facts, repeated: Repeated) -> Result<i64, Ambiguous> {
        let stated = match self {
            Cost::Fixed(cost) => return Ok(*cost),
            Cost::Header(name) => inputs::header(facts.headers, name, repeated)?,
            Cost::Query(name) => inputs::query(facts.query, name, repeated)?,
        };
        let stated = stated.as_deref().and_then(|stated| str::from_utf8(stated).ok());
        let digits = stated.filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
        Ok(digits.map_or(COST_DEFAULT, |digits| digits.parse().map_or(COST_MAX, |cost: i64| cost.min(COST_MAX))))
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
    use crate::limit::names::{Frame, Unnamed};

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
                params: &[],
                claims: None,
            }
        }
    }

    fn state_key(frame: [&str; 3], key: &Key, missing: Missing, facts: &Facts) -> Result<String, Unnamed> {
        let [prefix, limit, algorithm] = frame;
        let frame = Frame { prefix, limit, algorithm };
        let names = key.names(frame, facts, missing, Repeated::Refuse, true)?;
        assert_eq!(key.names(frame, facts, missing, Repeated::Refuse, false)?.state, names.state);
        Ok(names.state)
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
        state_key(["sg", "limit", "token_bucket"], &key, Missing::Shared, &facts).unwrap()
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
        state_key(["sg", "l", "gcra"], &Key(vec![part]), Missing::Skip, &facts).unwrap()
    }

    #[test]
    fn parameters_cookies_and_claims_name_the_key() {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", HeaderValue::from_static("sid=\"7\""));
        let params = [Param { name: "post".to_owned(), segment: 1 }];
        let claims = Some(Arc::new(Claims::from_iter([("sub".to_owned(), "anna".to_owned())])));
        let facts = Facts { query: Some("uid=4+2"), path: "/posts/5", params: &params, claims, ..Facts::of(&headers) };
        let key = Key(vec![
            KeyPart::Cookie("sid".into()),
            KeyPart::Query("uid".into()),
            KeyPart::Claim("sub".into()),
            KeyPart::Query("x,y".into()),
            KeyPart::Param("post".into()),
        ]);
        let text = state_key(["sg", "l", "gcra"], &key, Missing::Shared, &facts).unwrap();
        assert!(text.starts_with("sg:{cookie:sid=7,query:uid#"), "{text}");
        assert!(text.contains(",jwt:sub=anna,query:") && text.ends_with("!,param:post=5}:l:gcra"), "{text}");
        assert_eq!(text.matches(',').count(), 4, "{text}");
        assert_eq!(state_key(["sg", "l", "gcra"], &key, Missing::Skip, &facts), Err(Unnamed::Missing));
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
