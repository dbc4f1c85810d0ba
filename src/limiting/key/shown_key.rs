//! Format of limit keys for people: in the access log, in spans, and over the admin API. Addresses are shown
//! unchanged, and secrets as hashes. The config compiler creates the settings, `proxy` writes shown keys, and the
//! replay reads them from a log.
//!
//! A shown key has the form of a state key: `NAME=VALUE`, `NAME#HASH`, `NAME=***` if it is hidden, `NAME!` if the
//! request has no value, and `all`, separated by `,`.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use aws_lc_rs::hmac;
use percent_encoding::percent_decode_str;

use crate::labels::labels;
use crate::limiting::key::SourceValues;
use crate::limiting::key::state_key::{DIGEST_MARK, PartNames};
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::source::{Ambiguous, Repeated, Source, SourceKind, SourceValue};
use crate::names::TextFault;

labels! {
    /// How a part of a key is shown.
    KeyVisibility:
    /// The value is shown as it is.
    Plain = "plain",
    /// A hash is shown: equal values have equal hashes, and nobody without the secret can test a guess.
    Hashed = "hashed",
    /// Nothing is shown.
    Hidden = "hidden",
}

/// Longer plain values, in their escaped form, are shown as a hash, so that shown keys have bounded length and
/// different keys look different.
const PLAIN_MAX: usize = 128;
/// Text instead of a hidden value. Shown values never contain a star.
const HIDDEN: &str = "***";
/// Number of hexadecimal digits of a [`KeyHash`].
const DIGITS: usize = 16;

/// Secret of this process, used if the config has none.
static PROCESS_SECRET: LazyLock<[u8; 32]> = LazyLock::new(rand::random);

/// The first 64 bits of the HMAC-SHA-256 of a part of a state key, `NAME=VALUE` or `NAME#HASH`. The name is included,
/// so a value in another header or parameter has another hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Parses 16 hexadecimal digits, in lower case as they are shown.
    pub fn parse(text: &str) -> Option<KeyHash> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_hash = text.len() == DIGITS && text.bytes().all(is_digit);
        is_hash.then(|| u64::from_str_radix(text, 16).ok().map(KeyHash)).flatten()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Hashes parts of keys with a secret.
#[derive(Clone, Debug)]
pub struct KeyHasher {
    secret: hmac::Key,
    /// The secret comes from the config: hashes are the same after a restart, and at every gateway with this secret.
    pub is_lasting: bool,
}

impl KeyHasher {
    /// Creates a hasher with the secret of the config.
    pub fn from_secret(secret: &str) -> KeyHasher {
        KeyHasher { secret: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), is_lasting: true }
    }

    /// Creates a hasher with the random secret of this process.
    pub fn of_process() -> KeyHasher {
        KeyHasher { secret: hmac::Key::new(hmac::HMAC_SHA256, &*PROCESS_SECRET), is_lasting: false }
    }

    /// Hashes a part as a state key has it.
    pub fn hash(&self, part: &str) -> KeyHash {
        let tag = hmac::sign(&self.secret, part.as_bytes());
        KeyHash(tag.as_ref().iter().take(DIGITS / 2).fold(0, |hash, byte| hash << 8 | u64::from(*byte)))
    }

    /// Signs a text. Signatures for another `purpose`, and hashes of keys, are not signatures of it.
    pub fn sign(&self, purpose: &str, text: &[u8]) -> [u8; 32] {
        let mut signature = [0; 32];
        let tag = hmac::sign(&self.key_for(purpose), text);
        signature.iter_mut().zip(tag.as_ref()).for_each(|(byte, signed)| *byte = *signed);
        signature
    }

    /// Returns whether [`sign`](Self::sign) made the signature. Takes the same time for each wrong one.
    pub fn has_signed(&self, purpose: &str, text: &[u8], signature: &[u8]) -> bool {
        hmac::verify(&self.key_for(purpose), text, signature).is_ok()
    }

    fn key_for(&self, purpose: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&self.secret, format!("for {purpose}").as_bytes()).as_ref())
    }
}

/// Compares the secrets, by what they make of the same text.
impl PartialEq for KeyHasher {
    fn eq(&self, other: &KeyHasher) -> bool {
        self.is_lasting == other.is_lasting
            && hmac::sign(&self.secret, b"").as_ref() == hmac::sign(&other.secret, b"").as_ref()
    }
}

/// Which sources a setting is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceSelector {
    Kind(SourceKind),
    One(Source),
}

impl SourceSelector {
    /// Parses the name of a kind of sources, such as `header`, or of one source, such as `header:x-api-key`.
    pub fn parse(name: &str) -> Option<Result<SourceSelector, TextFault>> {
        match SourceKind::ALL.iter().find(|kind| kind.word() == name) {
            Some(kind) => Some(Ok(SourceSelector::Kind(*kind))),
            None => Source::parse(name, SourceKind::ALL).map(|source| source.map(SourceSelector::One)),
        }
    }
}

/// How keys are shown: the settings `keys` and `keys_secret`.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyDisplay {
    pub rules: Vec<(SourceSelector, KeyVisibility)>,
    /// Setting of sources without a rule; `None` decides by kind.
    pub default: Option<KeyVisibility>,
    pub hasher: KeyHasher,
}

impl Default for KeyDisplay {
    fn default() -> KeyDisplay {
        KeyDisplay { rules: Vec::new(), default: None, hasher: KeyHasher::of_process() }
    }
}

impl KeyDisplay {
    /// Returns how `part` is shown; of several alternatives, the strictest setting counts.
    pub fn visibility(&self, part: &KeyPart) -> KeyVisibility {
        let all = part.sources().iter().map(|source| self.source_visibility(source));
        all.max_by_key(|visibility| *visibility as usize).unwrap_or(KeyVisibility::Plain)
    }

    /// Returns whether the value of at least one of the sources is hidden completely.
    pub fn hides_any<'s>(&self, mut sources: impl Iterator<Item = &'s Source>) -> bool {
        sources.any(|source| self.source_visibility(source) == KeyVisibility::Hidden)
    }

    fn source_visibility(&self, source: &Source) -> KeyVisibility {
        let own = self.find_rule(&SourceSelector::One(source.clone()));
        own.unwrap_or_else(|| self.kind_visibility(source.kind()))
    }

    fn kind_visibility(&self, kind: SourceKind) -> KeyVisibility {
        let own = self.find_rule(&SourceSelector::Kind(kind));
        own.or(self.default).unwrap_or_else(|| default_visibility(kind))
    }

    fn find_rule(&self, wanted: &SourceSelector) -> Option<KeyVisibility> {
        self.rules.iter().find(|(selector, _)| selector == wanted).map(|(_, visibility)| *visibility)
    }

    /// Returns whether less was shown of the values that the setting `name` is for under `before`.
    pub fn shows_more_than(&self, before: &KeyDisplay, name: &str) -> bool {
        let selectors = match SourceSelector::parse(name) {
            Some(Ok(selector)) => vec![selector],
            // The setting of all sources without another one.
            _ => SourceKind::ALL.iter().map(|kind| SourceSelector::Kind(*kind)).collect(),
        };
        let visibility = |display: &KeyDisplay, selector: &SourceSelector| match selector {
            SourceSelector::One(source) => display.source_visibility(source),
            SourceSelector::Kind(kind) => display.kind_visibility(*kind),
        };
        selectors.iter().any(|selector| (visibility(self, selector) as usize) < visibility(before, selector) as usize)
    }

    /// Appends the shown key of a request or an admin call.
    ///
    /// # Errors
    /// A part has several values, and `repeated` does not choose one.
    pub fn write_key(
        &self,
        text: &mut String,
        key: &Key,
        values: &impl SourceValues,
        repeated: Repeated,
    ) -> Result<(), Ambiguous> {
        for (place, part) in key.0.iter().enumerate() {
            if place > 0 {
                text.push(',');
            }
            self.write_part(text, part, values, repeated)?;
        }
        Ok(())
    }

    /// Returns the shown key for the parts of a state key. A value of which the state key contains only a digest is
    /// shown as a hash.
    pub fn show_state_parts<'s>(&self, key: &Key, parts: impl Iterator<Item = &'s str>) -> String {
        parts.zip(&key.0).map(|(state, part)| self.show_state_part(part, state)).collect::<Vec<_>>().join(",")
    }

    /// Returns one part of a shown key for the same part of a state key.
    pub fn show_state_part(&self, part: &KeyPart, state: &str) -> String {
        let Some((name, value)) = state.find(['=', '#']).map(|mark| state.split_at(mark)) else {
            return state.to_owned();
        };
        match self.visibility(part) {
            KeyVisibility::Hidden => format!("{name}={HIDDEN}"),
            KeyVisibility::Plain if value.starts_with('=') => state.to_owned(),
            KeyVisibility::Plain | KeyVisibility::Hashed => format!("{name}#{}", self.hasher.hash(state)),
        }
    }

    /// Appends one part of a shown key.
    ///
    /// # Errors
    /// The part has several values, and `repeated` does not choose one.
    pub fn write_part(
        &self,
        text: &mut String,
        part: &KeyPart,
        values: &impl SourceValues,
        repeated: Repeated,
    ) -> Result<(), Ambiguous> {
        let PartNames { state, name_len, value } = part.part_names(values, repeated)?;
        let Some(value) = value.filter(|_| *part != KeyPart::All) else {
            text.push_str(&state);
            text.push_str(if *part == KeyPart::All { "" } else { "!" });
            return Ok(());
        };
        text.push_str(&state[..name_len]);
        match self.visibility(part) {
            KeyVisibility::Hidden => text.extend(["=", HIDDEN]),
            KeyVisibility::Plain if value.len() <= PLAIN_MAX && !is_digest(&value) => text.extend(["=", &value]),
            KeyVisibility::Plain | KeyVisibility::Hashed => {
                text.push('#');
                text.push_str(&self.hasher.hash(&state).to_string());
            }
        }
        Ok(())
    }
}

/// Returns whether the value is only known by its digest.
fn is_digest(value: &str) -> bool {
    value.starts_with(DIGEST_MARK)
}

/// Returns how a kind of source is shown without any setting: what access logs contain anyway is plain.
fn default_visibility(kind: SourceKind) -> KeyVisibility {
    match kind {
        SourceKind::Ip
        | SourceKind::Country
        | SourceKind::Host
        | SourceKind::Path
        | SourceKind::Method
        | SourceKind::Route
        | SourceKind::JsonRpcMethod
        | SourceKind::Param
        | SourceKind::Tls
        | SourceKind::User => KeyVisibility::Plain,
        SourceKind::Header
        | SourceKind::Credential
        | SourceKind::Cookie
        | SourceKind::Query
        | SourceKind::Target
        | SourceKind::QueryString
        | SourceKind::Claim
        | SourceKind::Form
        | SourceKind::Json
        | SourceKind::McpTool
        | SourceKind::GraphqlOperation
        | SourceKind::Descriptor => KeyVisibility::Hashed,
    }
}

/// One part of a shown key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPart {
    pub name: String,
    pub value: ShownValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownValue {
    Plain(Vec<u8>),
    Hash(KeyHash),
    /// The request has no value.
    Absent,
}

/// Parses a shown key from a log. Leaves out parts without a readable value.
pub fn parse_shown_key(text: &str) -> impl Iterator<Item = ShownPart> {
    text.split(',').filter_map(|part| {
        let mark = part.find(['=', '#', '!'])?;
        let (name, rest) = part.split_at(mark);
        let value = match (rest.as_bytes().first()?, &rest[1..]) {
            (b'=', HIDDEN) => return None,
            (b'=', plain) => ShownValue::Plain(percent_decode_str(plain).collect()),
            (b'#', digits) => ShownValue::Hash(KeyHash::parse(digits)?),
            (_, "") => ShownValue::Absent,
            _ => return None,
        };
        Some(ShownPart { name: name.to_owned(), value })
    })
}

impl ShownValue {
    /// Returns the value as the source of a key; `None` if the request had none.
    pub fn to_source_value(&self) -> Option<SourceValue<'_>> {
        match self {
            ShownValue::Plain(bytes) => Some(SourceValue::Bytes(Cow::Borrowed(bytes))),
            ShownValue::Hash(hash) => Some(SourceValue::Digest(hash.to_string().into())),
            ShownValue::Absent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;
    use crate::limiting::source::Facts;

    const A: HeaderName = HeaderName::from_static("x-a");

    fn display(visibility: KeyVisibility) -> KeyDisplay {
        let hasher = KeyHasher::from_secret("0123456789abcdef0123456789abcdef");
        KeyDisplay { rules: Vec::new(), default: Some(visibility), hasher }
    }

    fn shown(display: &KeyDisplay, parts: Vec<KeyPart>, value: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(A, value);
        }
        let mut text = String::new();
        display.write_key(&mut text, &Key(parts), &Facts::of(&headers), Repeated::Refuse).unwrap();
        text
    }

    fn header(name: HeaderName) -> KeyPart {
        KeyPart::Source(Source::Header(name))
    }

    fn hash(text: &str) -> String {
        text.split_once('#').unwrap().1.to_owned()
    }

    #[test]
    fn secrets_are_hashed_and_the_rest_is_as_in_the_log() {
        let parts = || vec![KeyPart::Source(Source::Ip(Default::default())), header(A), KeyPart::All];
        let by_default = shown(&KeyDisplay::default(), parts(), b"acme");
        let rest = by_default.strip_prefix("ip=127.0.0.1,header:x-a#").unwrap();
        assert!(KeyHash::parse(rest.strip_suffix(",all").unwrap()).is_some(), "{by_default}");
        assert_eq!(shown(&display(KeyVisibility::Plain), parts(), b"a cme"), "ip=127.0.0.1,header:x-a=a%20cme,all");
        assert_eq!(shown(&display(KeyVisibility::Hidden), parts(), b"acme"), "ip=***,header:x-a=***,all");
        let absent = header(HeaderName::from_static("x-b"));
        assert_eq!(shown(&display(KeyVisibility::Hashed), vec![absent], b"acme"), "header:x-b!");
    }

    #[test]
    fn a_hash_depends_on_name_value_and_secret() {
        let display = display(KeyVisibility::Hashed);
        let of = |display: &KeyDisplay, value: &[u8]| hash(&shown(display, vec![header(A)], value));
        let acme = of(&display, b"acme");
        assert_eq!(acme, of(&display, b"acme"));
        assert_ne!(acme, of(&display, b"acmf"));
        assert_ne!(acme, of(&KeyDisplay::default(), b"acme"));
        assert_eq!(of(&KeyDisplay::default(), b"acme"), of(&KeyDisplay::default(), b"acme"), "one secret per process");
        // HMAC-SHA-256 of `header:x-a=acme`, computed with Python's hmac module.
        assert_eq!(acme, "b3b35e48ec86c20b");
        assert_eq!(KeyHash::parse(&acme).unwrap().to_string(), acme);
        for odd in ["", "0123", "0123456789ABCDEF", "+123456789abcdef", "0123456789abcdef0"] {
            assert_eq!(KeyHash::parse(odd), None, "{odd}");
        }
        assert!(!format!("{display:?}").contains("0123456789abcdef"), "the secret is not printed");
    }

    #[test]
    fn one_setting_beats_its_kind_and_the_strictest_alternative_counts() {
        let (b, query) = (HeaderName::from_static("x-b"), Source::Query("k".to_owned()));
        let rules = vec![
            (SourceSelector::Kind(SourceKind::Header), KeyVisibility::Plain),
            (SourceSelector::One(Source::Header(b.clone())), KeyVisibility::Hidden),
        ];
        let display = KeyDisplay { rules, ..KeyDisplay::default() };
        let visibility = |sources: &[Source]| display.visibility(&KeyPart::Alternatives(sources.to_vec()));
        let [a, b] = [A, b].map(Source::Header);
        assert_eq!(visibility(std::slice::from_ref(&a)), KeyVisibility::Plain);
        assert_eq!(visibility(std::slice::from_ref(&b)), KeyVisibility::Hidden);
        assert_eq!(visibility(&[a.clone(), query]), KeyVisibility::Hashed);
        assert_eq!(visibility(&[a, b]), KeyVisibility::Hidden);
    }

    proptest! {
        #[test]
        fn a_shown_key_is_read_back_and_bounded(value in prop::collection::vec(0x20_u8..0x7f, 1..300)) {
            let value = value.trim_ascii();
            let plain = shown(&display(KeyVisibility::Plain), vec![header(A)], value);
            prop_assert!(plain.len() <= "header:x-a=".len() + PLAIN_MAX, "{plain}");
            let parts: Vec<ShownPart> = parse_shown_key(&plain).collect();
            prop_assert_eq!(parts.len(), 1);
            prop_assert_eq!(&parts[0].name, "header:x-a");
            match &parts[0].value {
                ShownValue::Plain(read) => prop_assert_eq!(read, value),
                ShownValue::Hash(_) => prop_assert!(value.len() > PLAIN_MAX / 3),
                ShownValue::Absent => prop_assert!(false, "{}", plain),
            }
        }

        #[test]
        fn any_text_of_a_log_is_read(text: String) {
            let _ = parse_shown_key(&text).count();
        }
    }
}
