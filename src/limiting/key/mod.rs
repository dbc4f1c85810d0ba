//! The key of a limit: the parts of a request that decide whose budget it uses. `state_key`
//! turns the values of a key into the name of the budget, and `shown_key` into text for logs and spans. `part` is one
//! part of a key, and `normalize` makes several spellings of a value one.
//!
//! Input: the parts of a compiled limit, and the values of a request (`SourceValues`). Output: names of budgets.
//! To add a kind of part, add a variant to `KeyPart`; a new source of values goes to `source`.

mod normalize;
mod part;
pub mod shown_key;
pub(crate) mod state_key;

use crate::labels::labels;
pub use crate::limiting::key::normalize::Normalization;
pub use crate::limiting::key::part::{KeyPart, NormalizedPart};
use crate::limiting::source::{
    Ambiguous, BodyFacts, Facts, Repeated, Source, SourceKind, SourceOrigin, SourceValue, UnreadableBody,
};

/// Parts of a key in config order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub Vec<KeyPart>);

labels! {
    /// Handling of a request that does not contain a part of the key.
    Missing:
    /// The limit does not apply.
    Skip = "skip",
    /// All such requests share one budget.
    Shared = "shared",
    /// The request is refused.
    Refuse = "refuse",
}

/// Provides the values of sources: the facts of a request, or a query to the admin API.
pub trait SourceValues {
    /// Returns the value of a source; `None` if it is absent.
    ///
    /// # Errors
    /// There are several values, and `repeated` does not choose one.
    fn value(&self, source: &Source, repeated: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous>;

    /// Returns the value of a part of a key; `None` if it is absent.
    ///
    /// # Errors
    /// There are several values, and `repeated` does not choose one.
    fn part_value<'v>(&'v self, part: &KeyPart, repeated: Repeated) -> Result<Option<SourceValue<'v>>, Ambiguous>
    where
        Self: Sized,
    {
        part.value(self, repeated)
    }
}

impl SourceValues for Facts<'_> {
    fn value(&self, source: &Source, repeated: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous> {
        Facts::value(self, source, repeated)
    }
}

impl Key {
    /// Sources that a key may use.
    pub const SOURCES: &[SourceKind] = SourceKind::ALL;

    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().flat_map(KeyPart::sources)
    }

    /// Returns whether the key reads the body.
    pub fn reads_body(&self) -> bool {
        self.sources().any(|source| source.kind().origin() == SourceOrigin::Body)
    }

    /// Returns whether everything that the key reads of a body are calls.
    pub fn reads_calls_only(&self) -> bool {
        self.sources().all(|source| source.kind().origin() != SourceOrigin::Body || source.reads_calls())
    }

    /// Returns why the key cannot use the body of a request; `None` if it can or does not need it. A body of another
    /// type than the key reads is refused too: some servers ignore the type and parse the bytes.
    pub fn unreadable_body(&self, body: &BodyFacts) -> Option<UnreadableBody> {
        let read = match body {
            BodyFacts::None => return None,
            BodyFacts::UnreadableBody(why) => return self.reads_body().then_some(*why),
            BodyFacts::Form(_) => SourceKind::Form,
            BodyFacts::Json(_) => SourceKind::Json,
        };
        let is_read = |source: &Source| source.kind() == read || source.reads_calls() && read == SourceKind::Json;
        (self.reads_body() && !self.sources().any(is_read)).then_some(UnreadableBody::Type)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;
    use crate::limiting::key::state_key::{KeyError, StateKeyFrame};
    use crate::limiting::source::jwt::{Claims, TokenClaims};
    use crate::limiting::source::{PathParam, Prefixes};

    const NAMES: [HeaderName; 2] = [HeaderName::from_static("x-a"), HeaderName::from_static("x-b")];

    impl<'a> Facts<'a> {
        /// A request with these headers.
        pub fn of(headers: &'a HeaderMap) -> Facts<'a> {
            let bare = Facts::new(IpAddr::from([127, 0, 0, 1]), "r", headers);
            Facts { method: "GET", host: "h", path: "/", body_length: Some(0), ..bare }
        }
    }

    fn token(claims: [(String, String); 1]) -> TokenClaims {
        TokenClaims::One(Arc::new(Claims::from_iter(claims)))
    }

    fn key(sources: &[Source]) -> Key {
        Key(sources.iter().cloned().map(KeyPart::Source).collect())
    }

    fn state_key(frame: [&str; 3], key: &Key, missing: Missing, facts: &Facts) -> Result<String, KeyError> {
        let [prefix, limit, algorithm] = frame;
        let frame = StateKeyFrame { prefix, limit, algorithm };
        let names = key.budget_names(frame, facts, missing, Repeated::Refuse, true)?;
        assert_eq!(key.budget_names(frame, facts, missing, Repeated::Refuse, false)?.state, names.state);
        Ok(names.state)
    }

    /// Host, path, two headers, and a text that is used as cookie, parameter and claim. All but the first two may be
    /// absent.
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

    /// Values that could be confused: empty ones, separators, braces, hashes, long ones.
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
            // No server trims a letter.
            prop::collection::vec(prop_oneof![0x20u8..0x7f, 0x80u8..], 0..4)
                .prop_map(|bytes| Some([b"x", &*bytes, b"x"].concat())),
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
        assert_eq!(state_key(["sg", "l", "gcra"], &key, Missing::Skip, &facts), Err(KeyError::Missing(3)));
    }

    #[test]
    fn a_plus_in_a_cookie_equals_an_encoded_space_and_plus() {
        let source = Source::Cookie("sid".into());
        let of = |value: &str| {
            let cookie = HeaderValue::from_str(&format!("sid={value}")).unwrap();
            let headers = HeaderMap::from_iter([(http::header::COOKIE, cookie)]);
            state_key(["sg", "l", "gcra"], &key(std::slice::from_ref(&source)), Missing::Shared, &Facts::of(&headers))
                .unwrap()
        };
        assert_eq!([of("a%20b"), of("a%2Bb"), of("a%2bb")], [of("a+b"), of("a+b"), of("a+b")]);
        assert!(of("a+b") != of("ab") && of("a+b") != of("a_b"));
        assert_eq!(KeyPart::Source(source).canonicalize_written(b"a b".to_vec()).as_deref(), Ok(&b"a+b"[..]));
    }

    /// State keys must not change between versions, because gateways share budgets by them.
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
