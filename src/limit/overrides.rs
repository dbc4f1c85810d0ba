//! What single keys have instead of a limit's own numbers: from the config, and live from a hash
//! that operators edit in Redis. The limiter looks a key up; the control thread sets the live ones.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use percent_encoding::percent_decode;

use super::algo::Rule;
use super::key::Key;
use super::names::write_escaped;

/// What a key has.
#[derive(Clone, Debug, PartialEq)]
pub enum Budget {
    Rule(Arc<Rule>),
    /// A rate of 0: every request is refused.
    Blocked,
    /// The limit does not apply.
    Unlimited,
}

/// Budgets by key values. A value may be `*`, any one; where several take a key, the one with the
/// fewest stars counts, of equals the one whose first star is later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverrideTable {
    budgets: HashMap<Box<str>, Budget>,
    /// Which parts are stars, as bits, of all entries: in the order in which they are tried.
    masks: Vec<u32>,
}

/// Reads `rate=100/s;burst=5` as the limit's config would; an error says what is wrong.
pub type Template = dyn Fn(&str) -> Result<Budget, String> + Send + Sync;

pub struct Overrides {
    /// From the config.
    fixed: OverrideTable,
    /// The fixed ones and the live ones, which count where both name the same key.
    all: ArcSwap<OverrideTable>,
    template: Arc<Template>,
}

/// Fields and values of the hash.
pub type Raw = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a look at a hash found, or what is wrong with it; the outer error: the store gave no answer, and
/// why.
pub type Found = Result<Result<Raw, String>, String>;

/// Of one limit in the config, and of one live.
pub const ENTRIES_MAX: usize = 10_000;
/// Mistakes of a live set that are named; the others are counted.
const MISTAKES_SHOWN: usize = 10;
/// Characters that are shown of a key, and of a key with its mistake.
const SHOWN_MAX: usize = 200;
/// Distinct places of stars in one table: each costs a probe.
const MASKS_MAX: usize = 16;

impl OverrideTable {
    /// Adds an entry for `values`, of which `None` is the star. False when it stands there, or
    /// stars stand in too many places.
    pub fn insert(&mut self, values: &[Option<&[u8]>], budget: Budget) -> bool {
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

    /// `values` as a field; a star is a value that is absent.
    fn find(&self, values: &str) -> Option<&Budget> {
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

/// As much of a text as is shown.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The values of a field; `None` is the star.
fn values(field: &[u8]) -> impl Iterator<Item = Option<Cow<'_, [u8]>>> {
    field.split(|byte| *byte == b',').map(|text| (text != b"*").then(|| percent_decode(text).into()))
}

/// The values as one field, a star for `None`.
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
    pub fn new(fixed: OverrideTable, template: Arc<Template>) -> Overrides {
        Overrides { all: ArcSwap::from_pointee(fixed.clone()), fixed, template }
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        !self.all.load().budgets.is_empty()
    }

    /// What a key has instead of the limit's rule. `values` as [`Key::names`] writes them.
    pub fn find(&self, values: &str) -> Option<Budget> {
        self.all.load().find(values).cloned()
    }

    /// Puts the live ones in force, all at once. With a mistake in any of them those in force
    /// stay, and the mistakes come back: how many there are, and the first of them.
    pub fn set_live(&self, key: &Key, raw: &Raw) -> Result<(), String> {
        let (mut table, mut mistakes, mut count) = (OverrideTable::default(), Vec::new(), 0);
        for (field, value) in raw {
            if let Err(mistake) = self.read(key, field, value, &mut table) {
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

    fn read(&self, key: &Key, field: &[u8], value: &[u8], table: &mut OverrideTable) -> Result<(), String> {
        let written: Vec<Option<Cow<[u8]>>> = values(field).collect();
        if written.len() != key.0.len() {
            return Err(format!("the key has {} parts, the field {}", key.0.len(), written.len()));
        }
        let mut values = Vec::with_capacity(written.len());
        for (part, value) in key.0.iter().zip(written) {
            values.push(value.map(|value| part.canonical(value.into_owned())).transpose()?);
        }
        let value = str::from_utf8(value).map_err(|_| "the value is not UTF-8".to_owned())?;
        let budget = (self.template)(value)?;
        let values: Vec<Option<&[u8]>> = values.iter().map(|value| value.as_deref()).collect();
        match table.insert(&values, budget) {
            true => Ok(()),
            false => Err("the same key stands there in another spelling, or stars stand in too many places".to_owned()),
        }
    }
}

impl Default for Overrides {
    fn default() -> Overrides {
        Overrides::new(OverrideTable::default(), Arc::new(|_| Err("this limit has no overrides".to_owned())))
    }
}

/// Only what the config says.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Overrides").field(&self.fixed.budgets).finish()
    }
}

/// Whether the config says the same; what is live stays so over a reload.
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
    use crate::limit::key::{KeyPart, Missing};
    use crate::limit::names::Frame;
    use crate::limit::source::{Facts, Repeated, Source};

    fn names() -> [HeaderName; 2] {
        [HeaderName::from_static("x-a"), HeaderName::from_static("x-b")]
    }

    fn key() -> Key {
        Key(names().map(|name| KeyPart::Source(Source::Header(name))).to_vec())
    }

    /// Budgets that tell themselves apart.
    fn overrides() -> Overrides {
        let template = |value: &str| match value {
            "0" => Ok(Budget::Blocked),
            "bad" => Err("it is bad".to_owned()),
            _ => Ok(Budget::Unlimited),
        };
        Overrides::new(OverrideTable::default(), Arc::new(template))
    }

    fn raw(entries: &[(&str, &str)]) -> Raw {
        entries.iter().map(|(field, value)| (field.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    fn find(overrides: &Overrides, a: Option<&[u8]>, b: Option<&[u8]>) -> Option<Budget> {
        let mut headers = HeaderMap::new();
        for (name, value) in names().into_iter().zip([a, b]) {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_bytes(value).unwrap());
            }
        }
        let facts = Facts { client: IpAddr::from([127, 0, 0, 1]), ..Facts::of(&headers) };
        let frame = Frame { prefix: "sg", limit: "l", algorithm: "gcra" };
        let names = key().names(frame, &facts, Missing::Shared, Repeated::Refuse, true).unwrap();
        overrides.find(&names.values.unwrap())
    }

    #[test]
    fn the_fewest_stars_count() {
        let overrides = overrides();
        let live = raw(&[("*,*", "1"), ("a,*", "0"), ("*,b", "1"), ("c,d", "0")]);
        overrides.set_live(&key(), &live).unwrap();
        for (a, b, budget) in [
            ("a", "x", Budget::Blocked),
            ("a", "b", Budget::Blocked),
            ("x", "b", Budget::Unlimited),
            ("c", "d", Budget::Blocked),
            ("x", "x", Budget::Unlimited),
        ] {
            assert_eq!(find(&overrides, Some(a.as_bytes()), Some(b.as_bytes())), Some(budget), "{a} {b}");
        }
        assert_eq!(find(&overrides, None, Some(b"b")), Some(Budget::Unlimited));
        overrides.set_live(&key(), &Raw::new()).unwrap();
        assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), None);
    }

    #[test]
    fn one_mistake_changes_nothing() {
        let overrides = overrides();
        overrides.set_live(&key(), &raw(&[("a,b", "0")])).unwrap();
        for (entries, mistake) in [
            (raw(&[("a,b", "bad"), ("c,d", "1")]), "a,b: it is bad"),
            (raw(&[("a", "1")]), "a: the key has 2 parts, the field 1"),
            (raw(&[("a,b", "1"), ("%61,b", "1")]), "a,b: the same key"),
        ] {
            let found = overrides.set_live(&key(), &entries).unwrap_err();
            assert!(found.starts_with(mistake), "{found}");
            assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(Budget::Blocked));
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
            overrides.set_live(&key(), &Raw::from([(field.into_bytes(), b"0".to_vec())])).unwrap();
            prop_assert_eq!(find(&overrides, Some(trimmed[0]), Some(trimmed[1])), Some(Budget::Blocked));
            let same = other[0].as_bytes() == trimmed[0] && other[1].as_bytes() == trimmed[1];
            prop_assert_eq!(find(&overrides, Some(other[0].as_bytes()), Some(other[1].as_bytes())).is_some(), same);
        }
    }
}
