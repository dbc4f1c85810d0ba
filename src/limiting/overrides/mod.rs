//! Overrides: rules for single keys in place of the limit's own. They come from the config, and from a hash in Redis
//! that operators edit while the gateway runs (live overrides). The limiter looks keys up; the control thread
//! applies changes of the hash.
//!
//! `table` finds the override of a key. To add a number that overrides may set, parse it in `table::parse_field`.

pub mod table;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::limiting::clock;
use crate::limiting::key::Key;
use crate::limiting::key::shown_key::KeyHasher;
use crate::limiting::overrides::table::{
    OverrideEntry, OverrideTable, OverrideValue, PartHasher, join_values, parse_field,
};

/// Parses `rate=100/s;burst=5` like the config of the limit. An error says what is wrong.
pub type OverrideParser = dyn Fn(&str) -> Result<OverrideEntry, String> + Send + Sync;

/// The overrides of one limit.
pub struct Overrides {
    /// Overrides of the config.
    fixed: OverrideTable,
    /// Overrides of the config and live ones; a live one wins.
    all: ArcSwap<OverrideTable>,
    hasher: PartHasher,
    template: Arc<OverrideParser>,
}

/// Fields and values of the Redis hash.
pub type RawOverrides = BTreeMap<Vec<u8>, Vec<u8>>;

/// Result of reading a hash. The outer error means that the store did not respond, the inner one that the value is no
/// valid hash of overrides.
pub type HashResult = Result<Result<RawOverrides, String>, String>;

/// A change of a hash: one entry is set or removed.
pub struct HashChange<'a> {
    pub field: &'a str,
    /// `None` removes the entry.
    pub value: Option<&'a str>,
    /// Other spellings of the field, which are removed as well.
    pub spellings: Vec<Vec<u8>>,
}

/// Maximum number of overrides of one limit in the config, and of live ones that one command reads.
pub const ENTRIES_MAX: usize = 10_000;
/// Maximum number of live overrides of one limit.
pub const LIVE_ENTRIES_MAX: usize = 1_000_000;
/// Mistakes of a live set that are listed; further ones are only counted.
const MISTAKES_SHOWN: usize = 10;
/// Characters after which a key, or a key with its mistake, is cut in messages.
const SHOWN_MAX: usize = 200;
/// Message for a hash that would no longer match after a restart.
pub const HASH_NEEDS_SECRET: &str = "a hash matches only while the secret stays the same: set `keys_secret` in [admin]";

/// Cuts a text to `SHOWN_MAX` characters.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl Overrides {
    pub fn new(fixed: OverrideTable, hasher: PartHasher, template: Arc<OverrideParser>) -> Overrides {
        Overrides { all: ArcSwap::from_pointee(fixed.clone()), fixed, hasher, template }
    }

    /// Returns whether entries may have hashes in place of values: only if these remain valid.
    pub fn can_match_hashes(&self) -> bool {
        self.hasher.hasher.is_lasting
    }

    /// Returns whether there are any overrides.
    pub fn has_any(&self) -> bool {
        !self.all.load().is_empty()
    }

    /// Returns the overrides of the config, without live ones.
    pub fn fixed(&self) -> &OverrideTable {
        &self.fixed
    }

    /// Finds the entry of the key with these `values`, in the form that [`Key::budget_names`] writes, by the wall clock
    /// of this machine.
    pub fn find(&self, values: &str) -> Option<OverrideEntry> {
        self.find_at(values, clock::now_ms)
    }

    /// Finds the entry of a key at a time, in ms since 1970.
    pub fn find_at(&self, values: &str, now_ms: impl Fn() -> i64) -> Option<OverrideEntry> {
        self.all.load().find(values, &self.hasher, now_ms).cloned()
    }

    /// Returns the entry of the config for these `values`, without live ones.
    pub fn find_fixed(&self, values: &str) -> Option<OverrideEntry> {
        self.fixed.find(values, &self.hasher, clock::now_ms).cloned()
    }

    /// Reads a live entry alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_entry(&self, key: &Key, field: &str, value: &str) -> Result<OverrideEntry, String> {
        let (mut parsed, mut table) = (HashMap::new(), OverrideTable::default());
        self.read_entry(key, (field.as_bytes(), value.as_bytes()), &mut parsed, &mut table)?;
        parsed.remove(value.as_bytes()).ok_or_else(|| "the entry changes nothing".to_owned())
    }

    /// Returns the fields of `raw` that are spellings of `field`, which is canonical, apart from `field` itself.
    pub fn find_spellings(&self, key: &Key, raw: &RawOverrides, field: &str) -> Vec<Vec<u8>> {
        let is_same = |other: &Vec<u8>| {
            other != field.as_bytes()
                && canonicalize_field(key, other).is_ok_and(|values| join_values(&values) == field)
        };
        raw.keys().filter(|other| is_same(other)).cloned().collect()
    }

    /// Replaces the live overrides by those in `raw`, all at once. An entry with a mistake is left out of `raw`, and the
    /// others apply; if `known` has a value for its field, that stays. So a typing error lifts no block.
    pub fn set_live(&self, key: &Key, raw: &mut RawOverrides, known: Option<&RawOverrides>) -> RejectedOverrides {
        let (mut table, mut rejected) = (OverrideTable::default(), RejectedOverrides::default());
        // Many customers have the same numbers.
        let mut parsed = HashMap::new();
        raw.retain(|field, value| {
            let entry = (field.as_slice(), value.as_slice());
            let Err(mistake) = self.read_entry(key, entry, &mut parsed, &mut table) else { return true };
            rejected.add(field, &mistake);
            let Some(old) = known.and_then(|known| known.get(field)).filter(|old| *old != &*value) else {
                return false;
            };
            value.clone_from(old);
            self.read_entry(key, (field.as_slice(), value.as_slice()), &mut parsed, &mut table).is_ok()
        });
        table.add_all(&self.fixed);
        self.all.store(Arc::new(table));
        rejected
    }

    fn read_entry(
        &self,
        key: &Key,
        (field, value): (&[u8], &[u8]),
        parsed: &mut HashMap<Vec<u8>, OverrideEntry>,
        table: &mut OverrideTable,
    ) -> Result<(), String> {
        let values = canonicalize_field(key, field)?;
        if !self.can_match_hashes() && values.iter().any(|value| matches!(value, OverrideValue::Hash(_))) {
            return Err(HASH_NEEDS_SECRET.to_owned());
        }
        let entry = match parsed.get(value) {
            Some(entry) => entry.clone(),
            None => {
                let text = str::from_utf8(value).map_err(|_| "the value is not UTF-8".to_owned())?;
                let entry = (self.template)(text)?;
                parsed.insert(value.to_vec(), entry.clone());
                entry
            }
        };
        match table.insert(&values, entry) {
            true => Ok(()),
            false => {
                Err("the same key is listed in another spelling, or the stars are in too many different positions"
                    .to_owned())
            }
        }
    }
}

/// Returns the values of a field in canonical form.
///
/// # Errors
/// The field has another number of values than the key, or no request has one of them.
fn canonicalize_field(key: &Key, field: &[u8]) -> Result<Vec<OverrideValue>, String> {
    let mut values: Vec<OverrideValue> = parse_field(field).collect();
    if values.len() != key.0.len() {
        return Err(format!("the key has {} parts, but the field has {}", key.0.len(), values.len()));
    }
    for (part, value) in key.0.iter().zip(&mut values) {
        if let OverrideValue::Bytes(bytes) = value {
            *bytes = part.canonicalize_written(std::mem::take(bytes))?;
        }
    }
    Ok(values)
}

/// Entries of a hash that were left out.
#[derive(Debug, Default, PartialEq)]
pub struct RejectedOverrides {
    pub count: usize,
    /// The first mistakes, each with its field.
    mistakes: Vec<String>,
}

impl RejectedOverrides {
    fn add(&mut self, field: &[u8], mistake: &str) {
        self.count += 1;
        if self.mistakes.len() < MISTAKES_SHOWN {
            self.mistakes.push(cut(&format!("{}: {mistake}", cut(&String::from_utf8_lossy(field)))));
        }
    }

    /// Describes the mistakes; `None` if there are none.
    pub fn describe(&self) -> Option<String> {
        match self.count {
            0 => None,
            1..=MISTAKES_SHOWN => Some(self.mistakes.join("; ")),
            count => Some(format!("{count} mistakes, the first {MISTAKES_SHOWN}: {}", self.mistakes.join("; "))),
        }
    }
}

impl Default for Overrides {
    fn default() -> Overrides {
        let hasher = PartHasher::new(&Key(Vec::new()), &KeyHasher::of_process());
        Overrides::new(OverrideTable::default(), hasher, Arc::new(|_| Err("this limit has no overrides".to_owned())))
    }
}

/// Shows only the overrides of the config.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Overrides").field(&self.fixed).finish()
    }
}

/// Compares only the overrides of the config, as live ones survive a reload; and the secret, if one has a hash.
impl PartialEq for Overrides {
    fn eq(&self, other: &Overrides) -> bool {
        self.fixed == other.fixed && (!self.fixed.has_hashes() || self.hasher == other.hasher)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;
    use crate::limiting::key::state_key::{DIGEST_MARK, StateKeyFrame, write_escaped, write_value};
    use crate::limiting::key::{KeyPart, Missing};
    use crate::limiting::overrides::table::OverrideBudget;
    use crate::limiting::source::{Facts, Repeated, Source};

    fn names() -> [HeaderName; 2] {
        [HeaderName::from_static("x-a"), HeaderName::from_static("x-b")]
    }

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn key() -> Key {
        Key(names().map(|name| KeyPart::Source(Source::Header(name))).to_vec())
    }

    /// Budgets that the test can distinguish.
    fn overrides() -> Overrides {
        let template = |value: &str| match value {
            "0" => Ok(OverrideEntry::lasting(OverrideBudget::Blocked)),
            "bad" => Err("it is bad".to_owned()),
            "past" => Ok(OverrideEntry { until_ms: Some(1), ..OverrideEntry::lasting(OverrideBudget::Blocked) }),
            _ => Ok(OverrideEntry::lasting(OverrideBudget::Unlimited)),
        };
        let hasher = PartHasher::new(&key(), &KeyHasher::from_secret(SECRET));
        Overrides::new(OverrideTable::default(), hasher, Arc::new(template))
    }

    fn raw(entries: &[(&str, &str)]) -> RawOverrides {
        entries.iter().map(|(field, value)| (field.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    fn find(overrides: &Overrides, a: Option<&[u8]>, b: Option<&[u8]>) -> Option<OverrideBudget> {
        let mut headers = HeaderMap::new();
        for (name, value) in names().into_iter().zip([a, b]) {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_bytes(value).unwrap());
            }
        }
        let facts = Facts { client: IpAddr::from([127, 0, 0, 1]), ..Facts::of(&headers) };
        let frame = StateKeyFrame { prefix: "sg", limit: "l", algorithm: "gcra" };
        let names = key().budget_names(frame, &facts, Missing::Shared, Repeated::Refuse, true).unwrap();
        overrides.find(&names.values.unwrap()).map(|entry| entry.budget)
    }

    /// Sets the live overrides, which have no mistakes.
    fn set(overrides: &Overrides, live: &RawOverrides) {
        assert_eq!(overrides.set_live(&key(), &mut live.clone(), None), RejectedOverrides::default());
    }

    #[test]
    fn the_fewest_stars_count() {
        let overrides = overrides();
        let live = raw(&[("*,*", "1"), ("a,*", "0"), ("*,b", "1"), ("c,d", "0")]);
        set(&overrides, &live);
        for (a, b, budget) in [
            ("a", "x", OverrideBudget::Blocked),
            ("a", "b", OverrideBudget::Blocked),
            ("x", "b", OverrideBudget::Unlimited),
            ("c", "d", OverrideBudget::Blocked),
            ("x", "x", OverrideBudget::Unlimited),
        ] {
            assert_eq!(find(&overrides, Some(a.as_bytes()), Some(b.as_bytes())), Some(budget), "{a} {b}");
        }
        assert_eq!(find(&overrides, None, Some(b"b")), Some(OverrideBudget::Unlimited));
        set(&overrides, &RawOverrides::new());
        assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), None);
    }

    fn field(values: &[&[u8]]) -> String {
        let escaped = values.iter().map(|value| {
            let mut text = String::new();
            write_escaped(&mut text, value);
            text
        });
        escaped.collect::<Vec<_>>().join(",")
    }

    #[test]
    fn an_entry_may_name_a_value_by_the_hash_that_logs_show() {
        let overrides = overrides();
        let long = "Bearer ".to_owned() + &"x".repeat(100);
        for value in ["acme", "a b", long.as_str()] {
            let mut state = "header:x-a".to_owned();
            write_value(&mut state, value.as_bytes());
            let hash = format!("{DIGEST_MARK}{}", KeyHasher::from_secret(SECRET).hash(&state));
            let by_hash = raw(&[(&format!("{hash},*"), "0"), ("*,b", "1")]);
            let by_value = raw(&[(&format!("{},*", field(&[value.as_bytes()])), "0"), ("*,b", "1")]);
            set(&overrides, &by_hash);
            assert_eq!(find(&overrides, Some(value.as_bytes()), Some(b"x")), Some(OverrideBudget::Blocked), "{value}");
            assert_eq!(find(&overrides, Some(b"other"), Some(b"x")), None);
            assert_eq!(find(&overrides, Some(value.as_bytes()), None), Some(OverrideBudget::Blocked));
            assert_eq!(find(&overrides, None, Some(value.as_bytes())), None, "the second part has other hashes");
            assert_eq!(find(&overrides, Some(b"acmf"), Some(b"b")), Some(OverrideBudget::Unlimited));
            // What the replay and the admin API know of a value: its hash, or the digits of its state key.
            let digits = state.split_once('#').map(|(_, digits)| format!("{DIGEST_MARK}{digits}"));
            for entries in [&by_hash, &by_value] {
                set(&overrides, entries);
                for known in digits.iter().chain([&hash]) {
                    for other in ["x", "b"] {
                        let found = overrides.find(&format!("{known},{other}")).map(|entry| entry.budget);
                        assert_eq!(found, Some(OverrideBudget::Blocked), "{value} {known}");
                    }
                }
                assert_eq!(overrides.find(&format!("{DIGEST_MARK}0123456789abcdef,x")), None);
            }
        }
        let hasher = PartHasher::new(&key(), &KeyHasher::of_process());
        let blocked = |_: &str| Ok(OverrideEntry::lasting(OverrideBudget::Blocked));
        let passing = Overrides::new(OverrideTable::default(), hasher, Arc::new(blocked));
        let mut live = raw(&[("%#0123456789abcdef,*", "0")]);
        let refused = passing.set_live(&key(), &mut live, None).describe().unwrap();
        assert!(refused.contains("keys_secret"), "{refused}");
    }

    #[test]
    fn an_entry_with_a_mistake_keeps_its_value_and_the_others_apply() {
        let overrides = overrides();
        let known = raw(&[("a,b", "0"), ("c,d", "0")]);
        set(&overrides, &known);
        for (entries, mistake) in [
            (raw(&[("a,b", "bad"), ("c,d", "1")]), "a,b: it is bad"),
            (raw(&[("a", "1"), ("a,b", "0"), ("c,d", "1")]), "a: the key has 2 parts, but the field has 1"),
        ] {
            let mut live = entries.clone();
            let rejected = overrides.set_live(&key(), &mut live, Some(&known));
            assert_eq!((rejected.count, rejected.describe().as_deref()), (1, Some(mistake)));
            assert_eq!(live, raw(&[("a,b", "0"), ("c,d", "1")]));
            assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(OverrideBudget::Blocked), "it stays blocked");
            assert_eq!(find(&overrides, Some(b"c"), Some(b"d")), Some(OverrideBudget::Unlimited));
        }
        // Without a known value, the entry does not apply.
        let mut live = raw(&[("a,b", "bad"), ("c,d", "0")]);
        assert_eq!(overrides.set_live(&key(), &mut live, None).count, 1);
        assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), None);
        let mut live = raw(&[("a,b", "1"), ("%61,b", "1")]);
        let rejected = overrides.set_live(&key(), &mut live, None).describe().unwrap();
        assert!(rejected.starts_with("a,b: the same key"), "{rejected}");
    }

    #[test]
    fn an_entry_that_has_ended_leaves_its_key_to_the_next_one() {
        let overrides = overrides();
        set(&overrides, &raw(&[("a,b", "past"), ("a,*", "1"), ("c,d", "past")]));
        assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(OverrideBudget::Unlimited));
        assert_eq!(find(&overrides, Some(b"c"), Some(b"d")), None);
        assert_eq!(overrides.find_at("c,d", || 0).map(|entry| entry.budget), Some(OverrideBudget::Blocked));
        assert_eq!(overrides.find_at("c,d", || 1), None);
    }

    #[test]
    fn ten_mistakes_are_named_and_all_are_counted() {
        let overrides = overrides();
        let long = "x".repeat(100_000);
        let set = |count: usize| {
            let fields: Vec<String> = (0..count).map(|i| format!("{i},{long}")).collect();
            let entries: Vec<(&str, &str)> = fields.iter().map(|field| (field.as_str(), "bad")).collect();
            overrides.set_live(&key(), &mut raw(&entries), None).describe().unwrap()
        };
        assert!(set(1).starts_with("0,xxx"));
        assert_eq!(set(10).matches("; ").count(), 9);
        let many = set(300);
        assert!(many.starts_with("300 mistakes, the first 10: 0,xxx"), "{}", &many[..60]);
        assert_eq!(many.matches("; ").count(), 9);
        assert!(many.len() < 3000, "{} bytes", many.len());
    }

    proptest! {
        #[test]
        fn an_entry_takes_its_own_key_and_no_other(
            own in prop::collection::vec(prop::collection::vec(0x20_u8..0x7f, 0..5), 2),
            other in prop::collection::vec("[a,%*]{0,3}", 2),
        ) {
            let overrides = overrides();
            let trimmed: Vec<&[u8]> = own.iter().map(|value| value.trim_ascii()).collect();
            let field = field(&trimmed);
            set(&overrides, &RawOverrides::from([(field.into_bytes(), b"0".to_vec())]));
            prop_assert_eq!(find(&overrides, Some(trimmed[0]), Some(trimmed[1])), Some(OverrideBudget::Blocked));
            let same = other[0].as_bytes() == trimmed[0] && other[1].as_bytes() == trimmed[1];
            prop_assert_eq!(find(&overrides, Some(other[0].as_bytes()), Some(other[1].as_bytes())).is_some(), same);
        }
    }
}
