//! Whose budget: the parts of a limit's key; and what a request costs. What the budget is called then is
//! in `names`.

use std::borrow::Cow;
use std::fmt;

use super::integers::{NotInteger, Unclear, integer};
use super::source::{
    Ambiguous, BodyFacts, Facts, Repeated, Source, SourceKind, SourceOrigin, SourceValue, SourceValues, UnreadableBody,
};
use crate::labels::labels;

/// The parts, in config order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub Vec<KeyPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The same for every request.
    All,
    Source(Source),
    /// Two or more sources of the same thing, none of which every request has. The first that the request has counts;
    /// where it has others, they must say the same.
    Alternatives(Vec<Source>),
}

labels! {
    /// What happens when a part of the key is absent from the request.
    Missing:
    /// The limit does not apply.
    Skip = "skip",
    /// All such requests share one budget.
    Shared = "shared",
    /// The request is refused.
    Refuse = "refuse",
}

/// Cost of one request in units of the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    Fixed(i64),
    /// The request states it.
    Stated(Source),
}

/// The cost of a request that states none.
const COST_DEFAULT: i64 = 1;
/// Larger stated costs count as this much, which keeps every product below 2^53.
pub const COST_MAX: i64 = 1_000_000_000;

impl Key {
    /// What a key may go by.
    pub const SOURCES: &[SourceKind] = SourceKind::ALL;

    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().flat_map(KeyPart::sources)
    }

    /// Whether it goes by the body.
    pub fn reads_body(&self) -> bool {
        self.sources().any(|source| source.kind().origin() == SourceOrigin::Body)
    }

    /// Why it cannot be told what a server makes of a body that the key goes by. A body of another kind than
    /// it reads is no better than one without a kind: some servers look at the bytes alone.
    pub fn unreadable(&self, body: &BodyFacts) -> Option<UnreadableBody> {
        let read = match body {
            BodyFacts::None => return None,
            BodyFacts::UnreadableBody(why) => return self.reads_body().then_some(*why),
            BodyFacts::Form(_) => SourceKind::Form,
            BodyFacts::Json(_) => SourceKind::Json,
        };
        (self.reads_body() && !self.sources().any(|source| source.kind() == read)).then_some(UnreadableBody::Type)
    }
}

impl KeyPart {
    /// What [`KeyPart::All`] is called.
    pub const ALL: &str = "all";
    /// What stands between alternatives.
    pub const OR: &str = " | ";

    pub fn sources(&self) -> &[Source] {
        match self {
            KeyPart::All => &[],
            KeyPart::Source(source) => std::slice::from_ref(source),
            KeyPart::Alternatives(sources) => sources,
        }
    }

    /// The source that `name` means: that of its own name, or the first where it is the name of the whole part.
    pub fn called(&self, name: &str) -> Option<&Source> {
        let own = self.sources().iter().find(|source| source.is_called(name));
        own.or_else(|| self.sources().first().filter(|_| self.to_string() == name))
    }

    /// What tells budgets apart of the value that a request has; `None` when it has none.
    ///
    /// # Errors
    /// The request has more than one value, and `repeated` chooses none.
    pub fn value<'v>(
        &self,
        facts: &'v impl SourceValues,
        repeated: Repeated,
    ) -> Result<Option<SourceValue<'v>>, Ambiguous> {
        match self {
            KeyPart::All => Ok(None),
            KeyPart::Source(source) => Ok(facts.value(source, repeated)?.map(|value| match value {
                SourceValue::Ip(ip) => SourceValue::Ip(source.network(ip)),
                SourceValue::Bytes(value) => SourceValue::Bytes(source.counted(value)),
            })),
            KeyPart::Alternatives(sources) => {
                let mut found: Option<Cow<[u8]>> = None;
                for source in sources {
                    let Some(value) = facts.value(source, repeated)? else { continue };
                    let value = self.counted(source.text(value));
                    match (&found, repeated) {
                        (Some(first), Repeated::Refuse) if *first != value => return Err(Ambiguous),
                        (Some(_), Repeated::Refuse) => {}
                        (None | Some(_), _) => found = Some(value),
                    }
                    if repeated == Repeated::First {
                        break;
                    }
                }
                Ok(found.map(SourceValue::Bytes))
            }
        }
    }

    /// As [`Source::counted`]. Alternatives have one form of a value, whichever of them has it.
    fn counted<'v>(&self, value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        self.sources().iter().fold(value, |value, source| source.counted(value))
    }

    /// Appends what it is called in state keys.
    pub fn write(&self, text: &mut String) {
        if *self == KeyPart::All {
            text.push_str(KeyPart::ALL);
        }
        for (place, source) in self.sources().iter().enumerate() {
            if place > 0 {
                text.push('|');
            }
            source.write(text);
        }
    }

    /// What it is called in messages to clients.
    pub fn told(&self) -> String {
        match self {
            KeyPart::All => KeyPart::ALL.to_owned(),
            KeyPart::Source(source) => source.told(),
            KeyPart::Alternatives(sources) => sources.iter().map(Source::told).collect::<Vec<_>>().join(" or "),
        }
    }

    /// A value that somebody wrote, as it stands in the names of budgets.
    ///
    /// # Errors
    /// It is no value that the part can have.
    pub fn canonical(&self, written: Vec<u8>) -> Result<Vec<u8>, String> {
        match self {
            KeyPart::All => Ok(written),
            KeyPart::Source(source) => match source.written(written) {
                Ok(value) => Ok(source.text(value).into_owned()),
                Err(text) => Err(format!("`{text}` is not an address")),
            },
            KeyPart::Alternatives(_) => Ok(self.counted(written.into()).into_owned()),
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::All => f.write_str(KeyPart::ALL),
            KeyPart::Source(source) => source.fmt(f),
            KeyPart::Alternatives(sources) => {
                f.write_str(&sources.iter().map(Source::to_string).collect::<Vec<_>>().join(KeyPart::OR))
            }
        }
    }
}

impl Cost {
    /// Where a cost may be stated.
    pub const SOURCES: &[SourceKind] = &[SourceKind::Header, SourceKind::Query];

    pub fn source(&self) -> Option<&Source> {
        match self {
            Cost::Fixed(_) => None,
            Cost::Stated(source) => Some(source),
        }
    }

    /// What a request can cost.
    pub fn most(&self) -> i64 {
        match self {
            Cost::Fixed(cost) => *cost,
            Cost::Stated(_) => COST_MAX,
        }
    }

    /// # Errors
    /// The request states more than one, and `repeated` chooses none, or something that is no integer from 0.
    pub fn of(&self, facts: &Facts, repeated: Repeated, not_integer: NotInteger) -> Result<i64, Unclear> {
        match self {
            Cost::Fixed(cost) => Ok(*cost),
            Cost::Stated(source) => {
                let Some(stated) = facts.text(source, repeated)? else { return Ok(COST_DEFAULT) };
                Ok(not_integer.judged(units(&stated))?.unwrap_or(COST_DEFAULT))
            }
        }
    }
}

/// As in the config.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cost::Fixed(cost) => cost.fmt(f),
            Cost::Stated(source) => source.fmt(f),
        }
    }
}

/// A stated cost, [`COST_MAX`] at most; `None` for what is no integer, or has a sign.
pub fn units(digits: &[u8]) -> Option<i64> {
    integer(digits).filter(|_| !digits.starts_with(b"-")).map(|cost| cost.min(COST_MAX))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;
    use crate::limit::jwt::{Claims, TokenClaims};
    use crate::limit::names::{Frame, Unnamed};
    use crate::limit::source::{PathParam, Prefixes};

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
                certificate: None,
                body: BodyFacts::None,
            }
        }
    }

    fn token(claims: [(String, String); 1]) -> TokenClaims {
        TokenClaims::One(Arc::new(Claims::from_iter(claims)))
    }

    fn key(sources: &[Source]) -> Key {
        Key(sources.iter().cloned().map(KeyPart::Source).collect())
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
        let claims = text.clone().map(|text| token([("sub".to_owned(), text)]));
        let facts = Facts { host, path, query: query.as_deref(), claims, ..Facts::of(&headers) };
        let [a, b] = NAMES;
        let key = key(&[
            Source::Host,
            Source::Header(a),
            Source::Query("a,b".to_owned()),
            Source::Path,
            Source::Header(b),
            Source::Claim("sub".to_owned()),
            Source::Cookie("sid".to_owned()),
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

    fn ip_key(client: &str, part: Source) -> String {
        let headers = HeaderMap::new();
        let client = client.parse().unwrap();
        let facts = Facts { client, ..Facts::of(&headers) };
        state_key(["sg", "l", "gcra"], &key(&[part]), Missing::Skip, &facts).unwrap()
    }

    #[test]
    fn parameters_cookies_and_claims_name_the_key() {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", HeaderValue::from_static("sid=\"7\""));
        let params = [PathParam { name: "post".to_owned(), segment: 1 }];
        let claims = Some(token([("sub".to_owned(), "anna".to_owned())]));
        let facts = Facts { query: Some("uid=4+2"), path: "/posts/5", params: &params, claims, ..Facts::of(&headers) };
        let key = key(&[
            Source::Cookie("sid".into()),
            Source::Query("uid".into()),
            Source::Claim("sub".into()),
            Source::Query("x,y".into()),
            Source::Param("post".into()),
        ]);
        let text = state_key(["sg", "l", "gcra"], &key, Missing::Shared, &facts).unwrap();
        assert!(text.starts_with("sg:{cookie:sid=7,query:uid#"), "{text}");
        assert!(text.contains(",jwt:sub=anna,query:") && text.ends_with("!,param:post=5}:l:gcra"), "{text}");
        assert_eq!(text.matches(',').count(), 4, "{text}");
        assert_eq!(state_key(["sg", "l", "gcra"], &key, Missing::Skip, &facts), Err(Unnamed::Missing(3)));
    }

    #[test]
    fn a_plus_in_a_cookie_is_one_with_what_servers_make_of_it() {
        let source = Source::Cookie("sid".into());
        let of = |value: &str| {
            let cookie = HeaderValue::from_str(&format!("sid={value}")).unwrap();
            let headers = HeaderMap::from_iter([(http::header::COOKIE, cookie)]);
            state_key(["sg", "l", "gcra"], &key(std::slice::from_ref(&source)), Missing::Shared, &Facts::of(&headers))
                .unwrap()
        };
        assert_eq!([of("a%20b"), of("a%2Bb"), of("a%2bb")], [of("a+b"), of("a+b"), of("a+b")]);
        assert!(of("a+b") != of("ab") && of("a+b") != of("a_b"));
        assert_eq!(KeyPart::Source(source).canonical(b"a b".to_vec()).as_deref(), Ok(&b"a+b"[..]));
    }

    /// Other gateways find the same budget under the same bytes.
    #[test]
    fn what_cannot_stand_in_a_key_is_half_a_sha_256() {
        let headers = HeaderMap::from_iter([(NAMES[0].clone(), HeaderValue::from_static("abc def"))]);
        let of = |source| state_key(["sg", "l", "gcra"], &key(&[source]), Missing::Shared, &Facts::of(&headers));
        let header = of(Source::Header(NAMES[0].clone())).unwrap();
        assert_eq!(header, "sg:{header:x-a#010971ea0013a09d91df437de2cd6f66}:l:gcra");
        assert_eq!(of(Source::Query("a,b".into())).unwrap(), "sg:{query:1eb7c54d52831bbfe8942af0b1c56b74!}:l:gcra");
    }

    #[test]
    fn clients_are_networks() {
        let site = Source::Ip(Prefixes::default());
        let wide = Source::Ip(Prefixes { v4: 24, v6: 56 });
        assert_eq!(ip_key("10.1.2.3", site.clone()), "sg:{ip=10.1.2.3}:l:gcra");
        assert_eq!(ip_key("::ffff:10.1.2.3", site.clone()), "sg:{ip=10.1.2.3}:l:gcra");
        assert_eq!(ip_key("0.99.100.255", site.clone()), "sg:{ip=0.99.100.255}:l:gcra");
        assert_eq!(ip_key("2001:db8::1:2:3:4", site), "sg:{ip=2001:db8::}:l:gcra");
        assert_eq!(ip_key("10.1.2.3", wide.clone()), "sg:{ip/24/56=10.1.2.0}:l:gcra");
        assert_eq!(ip_key("2001:db8:0:1ff::1", wide), "sg:{ip/24/56=2001:db8:0:100::}:l:gcra");
    }
}
