//! Overrides: rules for single keys in place of the limit's own. They come from the config, and from a hash in Redis
//! that operators edit while the gateway runs (live overrides). The limiter looks keys up; the control thread
//! applies changes of the hash.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use percent_encoding::percent_decode;

use crate::limiting::algorithm::Rule;
use crate::limiting::key::Key;
use crate::limiting::state_key::write_escaped;

/// Budget that an override gives a key.
#[derive(Clone, Debug, PartialEq)]
pub enum OverrideBudget {
    Rule(Arc<Rule>),
    /// The rate is 0: every request is refused.
    Blocked,
    /// The limit does not apply.
    Unlimited,
}

/// Budgets by the values of a key. The value `*` matches any value. If several entries match a key, the one with the
/// fewest stars wins; among equals, the one whose first star comes later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverrideTable {
    budgets: HashMap<Box<str>, OverrideBudget>,
    /// Positions of the stars of all entries, as bits; in the order in which they are tried.
    masks: Vec<u32>,
}

/// Parses `rate=100/s;burst=5` like the config of the limit. An error says what is wrong.
pub type OverrideParser = dyn Fn(&str) -> Result<OverrideBudget, String> + Send + Sync;

/// The overrides of one limit.
pub struct Overrides {
    /// Overrides of the config.
    fixed: OverrideTable,
    /// Overrides of the config and live ones; a live one wins.
    all: ArcSwap<OverrideTable>,
    template: Arc<OverrideParser>,
}

/// Fields and values of the Redis hash.
pub type RawOverrides = BTreeMap<Vec<u8>, Vec<u8>>;

/// Result of reading a hash. The outer error means that the store did not respond, the inner one that the value is no
/// valid hash of overrides.
pub type HashResult = Result<Result<RawOverrides, String>, String>;

/// Most overrides of one limit, in the config and live alike.
pub const ENTRIES_MAX: usize = 10_000;
/// Mistakes of a live set that are listed; further ones are only counted.
const MISTAKES_SHOWN: usize = 10;
/// Characters after which a key, or a key with its mistake, is cut in messages.
const SHOWN_MAX: usize = 200;
/// Most different positions of stars in one table; each costs a lookup.
const MASKS_MAX: usize = 16;

impl OverrideTable {
    /// Adds an entry for `values`, where `None` is a star. Returns false if there is one for these values already, or
    /// if there are too many positions of stars.
    pub fn insert(&mut self, values: &[Option<&[u8]>], budget: OverrideBudget) -> bool {
        let mask = values.iter().enumerate().filter(|(_, value)| value.is_none()).fold(0, |mask, (i, _)| mask | 1 << i);
        let field = joined(values.iter().copied());
        if self.budgets.contains_key(field.as_str()) {
            return false;
        }
        if !self.masks.contains(&mask) {
            if self.masks.len() == MASKS_MAX {
                return false;
            }
            self.masks.push(mask);
            self.masks.sort_by_key(|mask: &u32| (mask.count_ones(), std::cmp::Reverse(mask.trailing_zeros())));
        }
        self.budgets.insert(field.into(), budget);
        true
    }

    /// Finds the budget of a key, whose `values` are joined to a field. A star stands for a missing value.
    fn find(&self, values: &str) -> Option<&OverrideBudget> {
        let pieces = || values.split(',').enumerate();
        let absent = pieces().filter(|(_, piece)| *piece == "*").fold(0, |mask, (i, _)| mask | 1 << i);
        self.masks.iter().find_map(|mask| {
            if *mask == absent {
                return self.budgets.get(values);
            }
            if mask & absent != absent {
                return None;
            }
            let mut field = String::with_capacity(values.len());
            for (i, piece) in pieces() {
                if i > 0 {
                    field.push(',');
                }
                field.push_str(if mask & 1 << i == 0 { piece } else { "*" });
            }
            self.budgets.get(field.as_str())
        })
    }
}

/// Cuts a text to `SHOWN_MAX` characters.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Splits a field into its values; `None` is a star.
fn values(field: &[u8]) -> impl Iterator<Item = Option<Cow<'_, [u8]>>> {
    field.split(|byte| *byte == b',').map(|text| (text != b"*").then(|| percent_decode(text).into()))
}

/// Joins values to a field; `None` becomes a star.
fn joined<'v>(values: impl Iterator<Item = Option<&'v [u8]>>) -> String {
    let mut field = String::with_capacity(64);
    for (i, value) in values.enumerate() {
        if i > 0 {
            field.push(',');
        }
        match value {
            Some(value) => write_escaped(&mut field, value),
            None => field.push('*'),
        }
    }
    field
}

impl Overrides {
    pub fn new(fixed: OverrideTable, template: Arc<OverrideParser>) -> Overrides {
        Overrides { all: ArcSwap::from_pointee(fixed.clone()), fixed, template }
    }

    /// Reports whether there are any overrides.
    pub fn has_any(&self) -> bool {
        !self.all.load().budgets.is_empty()
    }

    /// Finds the budget of the key with these `values`, in the form that [`Key::budget_names`] writes.
    pub fn find(&self, values: &str) -> Option<OverrideBudget> {
        self.all.load().find(values).cloned()
    }

    /// Replaces the live overrides by those in `raw`, all at once.
    ///
    /// # Errors
    /// An entry has a mistake; then the previous live overrides remain in force. The error lists the first mistakes.
    pub fn set_live(&self, key: &Key, raw: &RawOverrides) -> Result<(), String> {
        let (mut table, mut mistakes, mut count) = (OverrideTable::default(), Vec::new(), 0);
        for (field, value) in raw {
            if let Err(mistake) = self.read_entry(key, field, value, &mut table) {
                count += 1;
                if mistakes.len() < MISTAKES_SHOWN {
                    mistakes.push(cut(&format!("{}: {mistake}", cut(&String::from_utf8_lossy(field)))));
                }
            }
        }
        match count {
            0 => {}
            1..=MISTAKES_SHOWN => return Err(mistakes.join("; ")),
            _ => return Err(format!("{count} mistakes, the first {MISTAKES_SHOWN}: {}", mistakes.join("; "))),
        }
        for mask in &self.fixed.masks {
            if !table.masks.contains(mask) {
                table.masks.push(*mask);
            }
        }
        table.masks.sort_by_key(|mask| (mask.count_ones(), std::cmp::Reverse(mask.trailing_zeros())));
        for (field, budget) in &self.fixed.budgets {
            table.budgets.entry(field.clone()).or_insert_with(|| budget.clone());
        }
        self.all.store(Arc::new(table));
        Ok(())
    }

    fn read_entry(&self, key: &Key, field: &[u8], value: &[u8], table: &mut OverrideTable) -> Result<(), String> {
        let written: Vec<Option<Cow<[u8]>>> = values(field).collect();
        if written.len() != key.0.len() {
            return Err(format!("the key has {} parts, but the field has {}", key.0.len(), written.len()));
        }
        let mut values = Vec::with_capacity(written.len());
        for (part, value) in key.0.iter().zip(written) {
            values.push(value.map(|value| part.canonicalize_written(value.into_owned())).transpose()?);
        }
        let value = str::from_utf8(value).map_err(|_| "the value is not UTF-8".to_owned())?;
        let budget = (self.template)(value)?;
        let values: Vec<Option<&[u8]>> = values.iter().map(|value| value.as_deref()).collect();
        match table.insert(&values, budget) {
            true => Ok(()),
            false => {
                Err("the same key is listed in another spelling, or the stars are in too many different positions"
                    .to_owned())
            }
        }
    }
}

impl Default for Overrides {
    fn default() -> Overrides {
        Overrides::new(OverrideTable::default(), Arc::new(|_| Err("this limit has no overrides".to_owned())))
    }
}

/// Shows only the overrides of the config.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Overrides").field(&self.fixed.budgets).finish()
    }
}

/// Compares only the overrides of the config, as live ones survive a reload.
impl PartialEq for Overrides {
    fn eq(&self, other: &Overrides) -> bool {
        self.fixed.budgets == other.fixed.budgets
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;
    use crate::limiting::key::{KeyPart, Missing};
    use crate::limiting::source::{Facts, Repeated, Source};
    use crate::limiting::state_key::StateKeyFrame;

    fn names() -> [HeaderName; 2] {
        [HeaderName::from_static("x-a"), HeaderName::from_static("x-b")]
    }

    fn key() -> Key {
        Key(names().map(|name| KeyPart::Source(Source::Header(name))).to_vec())
    }

    /// Budgets that the test can distinguish.
    fn overrides() -> Overrides {
        let template = |value: &str| match value {
            "0" => Ok(OverrideBudget::Blocked),
            "bad" => Err("it is bad".to_owned()),
            _ => Ok(OverrideBudget::Unlimited),
        };
        Overrides::new(OverrideTable::default(), Arc::new(template))
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
        overrides.find(&names.values.unwrap())
    }

    #[test]
    fn the_fewest_stars_count() {
        let overrides = overrides();
        let live = raw(&[("*,*", "1"), ("a,*", "0"), ("*,b", "1"), ("c,d", "0")]);
        overrides.set_live(&key(), &live).unwrap();
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
        overrides.set_live(&key(), &RawOverrides::new()).unwrap();
        assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), None);
    }

    #[test]
    fn one_mistake_changes_nothing() {
        let overrides = overrides();
        overrides.set_live(&key(), &raw(&[("a,b", "0")])).unwrap();
        for (entries, mistake) in [
            (raw(&[("a,b", "bad"), ("c,d", "1")]), "a,b: it is bad"),
            (raw(&[("a", "1")]), "a: the key has 2 parts, but the field has 1"),
            (raw(&[("a,b", "1"), ("%61,b", "1")]), "a,b: the same key"),
        ] {
            let found = overrides.set_live(&key(), &entries).unwrap_err();
            assert!(found.starts_with(mistake), "{found}");
            assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(OverrideBudget::Blocked));
        }
    }

    #[test]
    fn ten_mistakes_are_named_and_all_are_counted() {
        let overrides = overrides();
        let long = "x".repeat(100_000);
        let set = |count: usize| {
            let fields: Vec<String> = (0..count).map(|i| format!("{i},{long}")).collect();
            let entries: Vec<(&str, &str)> = fields.iter().map(|field| (field.as_str(), "bad")).collect();
            overrides.set_live(&key(), &raw(&entries)).unwrap_err()
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
            let field = joined(trimmed.iter().map(|value| Some(*value)));
            overrides.set_live(&key(), &RawOverrides::from([(field.into_bytes(), b"0".to_vec())])).unwrap();
            prop_assert_eq!(find(&overrides, Some(trimmed[0]), Some(trimmed[1])), Some(OverrideBudget::Blocked));
            let same = other[0].as_bytes() == trimmed[0] && other[1].as_bytes() == trimmed[1];
            prop_assert_eq!(find(&overrides, Some(other[0].as_bytes()), Some(other[1].as_bytes())).is_some(), same);
        }
    }
}
