//! The table of a limit's overrides, which finds the entry for a key. An entry lists values, hashes of values as logs
//! show them, or stars. The config and Redis fill tables through `overrides`.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use percent_encoding::percent_decode;

use crate::limiting::algorithm::Rule;
use crate::limiting::key::shown_key::{KeyHash, KeyHasher};
use crate::limiting::key::state_key::{DIGEST_MARK, write_escaped, write_value};
use crate::limiting::key::{Key, KeyPart};

/// Budget that an override gives a key.
#[derive(Clone, Debug, PartialEq)]
pub enum OverrideBudget {
    Rule(Arc<Rule>),
    /// The rate is 0: every request is refused.
    Blocked,
    /// The limit does not apply.
    Unlimited,
}

/// An entry: the budget of its key, and until when.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideEntry {
    pub budget: OverrideBudget,
    /// The budget in the words of the config and the entry, such as `60/min, burst 20`; empty if nobody wrote it.
    pub written: Arc<str>,
    /// When the entry ends, in ms since 1970; `None` if it does not.
    pub until_ms: Option<i64>,
    /// The operator's note about it.
    pub note: Option<Box<str>>,
    /// When and by whom it was set, if it was set over the admin API.
    pub setting: Option<Box<OverrideSetting>>,
}

/// When an entry was set over the admin API, and by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideSetting {
    /// In ms since 1970.
    pub at_ms: i64,
    /// Name of the admin token; `None` if no token was needed.
    pub by: Option<Box<str>>,
}

/// A budget with its text as it is written, or what is wrong with it.
pub type ParsedBudget = Result<(OverrideBudget, Arc<str>), String>;

/// Budgets by the text of their numbers, because many customers have the same.
#[derive(Default)]
pub struct ParsedBudgets(HashMap<String, ParsedBudget>);

/// Number of different texts that are remembered.
const PARSED_MAX: usize = 10_000;

impl ParsedBudgets {
    /// Returns the budget of this text, which `parse` reads unless it is known.
    pub fn get_or_parse(&mut self, text: String, parse: impl FnOnce(&str) -> ParsedBudget) -> ParsedBudget {
        if let Some(known) = self.0.get(&text) {
            return known.clone();
        }
        let parsed = parse(&text);
        if self.0.len() < PARSED_MAX {
            self.0.insert(text, parsed.clone());
        }
        parsed
    }
}

impl OverrideEntry {
    /// An entry that does not end.
    pub fn lasting(budget: OverrideBudget) -> OverrideEntry {
        OverrideEntry { budget, written: Arc::default(), until_ms: None, note: None, setting: None }
    }

    /// Describes the budget as it is written.
    pub fn describe_budget(&self) -> String {
        match &self.budget {
            OverrideBudget::Rule(rule) if self.written.is_empty() => rule.describe_budget(),
            OverrideBudget::Rule(_) => self.written.to_string(),
            OverrideBudget::Blocked => "blocked".to_owned(),
            OverrideBudget::Unlimited => "unlimited".to_owned(),
        }
    }

    /// Returns whether the entry applies. Reads the clock only if it ends at some time.
    pub fn applies(&self, now_ms: &impl Fn() -> i64) -> bool {
        self.until_ms.is_none_or(|until_ms| now_ms() < until_ms)
    }
}

/// Parses the time at which an entry ends. Many programs write the last day of the year 9999 for an entry that does not
/// end; it is beyond what a `Timestamp` can be.
pub fn parse_end(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| {
        let time: DateTime = text.strip_suffix(['Z', 'z']).unwrap_or(text).parse().ok()?;
        (text.len() > "9999-12-30T".len() && time.year() == 9999).then_some(Timestamp::MAX)
    })
}

/// Value of one part of the key of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideValue {
    /// The star: any value, or none.
    Any,
    Bytes(Vec<u8>),
    /// The value that logs show with this hash.
    Hash(KeyHash),
}

/// Budgets by the values of a key. The value `*` matches any value. If several entries match a key, the one with the
/// fewest stars wins; among equals, the one whose first star comes later, then the one with the fewest hashes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverrideTable {
    entries: HashMap<Box<str>, OverrideEntry>,
    /// Shapes of all entries, in the order in which they are tried.
    shapes: Vec<EntryShape>,
}

/// Which parts of an entry's key are stars, and which are hashes, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryShape {
    stars: u32,
    hashes: u32,
}

impl EntryShape {
    pub fn has_hashes(self) -> bool {
        self.hashes != 0
    }

    /// Returns the field of an entry of this shape that matches `values`, of which the stars `absent` are missing; `None`
    /// if no such entry does.
    pub fn field_for<'v>(self, values: &'v str, absent: EntryShape, hasher: &PartHasher) -> Option<Cow<'v, str>> {
        if self.stars == absent.stars && self.hashes == 0 {
            return Some(values.into());
        }
        if self.stars & absent.stars != absent.stars {
            return None;
        }
        let mut field = String::with_capacity(values.len());
        for (i, piece) in values.split(',').enumerate() {
            if i > 0 {
                field.push(',');
            }
            match (self.stars & 1 << i, self.hashes & 1 << i) {
                (0, 0) => field.push_str(piece),
                (0, _) => field.push_str(&hasher.hash_piece(i, piece)),
                _ => field.push('*'),
            }
        }
        Some(field.into())
    }

    pub fn order(self) -> impl Ord {
        (self.stars.count_ones(), Reverse(self.stars.trailing_zeros()), self.hashes.count_ones())
    }
}

/// Hashes the parts of one key as logs show them.
#[derive(Clone, Debug, PartialEq)]
pub struct PartHasher {
    names: Vec<String>,
    pub hasher: KeyHasher,
}

impl PartHasher {
    pub fn new(key: &Key, hasher: &KeyHasher) -> PartHasher {
        PartHasher { names: key.0.iter().map(KeyPart::state_name).collect(), hasher: hasher.clone() }
    }

    /// Returns the value of the part with that index as an entry with its hash has it. `piece`: the value as a field
    /// has it, or the digits that identify it.
    fn hash_piece(&self, index: usize, piece: &str) -> String {
        let digits = piece.strip_prefix(DIGEST_MARK);
        if digits.is_some_and(|digits| KeyHash::parse(digits).is_some()) {
            return piece.to_owned();
        }
        let mut state = self.names.get(index).cloned().unwrap_or_default();
        match digits {
            Some(digits) => state.extend(["#", digits]),
            None => write_value(&mut state, &Cow::from(percent_decode(piece.as_bytes()))),
        }
        format!("{DIGEST_MARK}{}", self.hasher.hash(&state))
    }

    /// Returns whether the field of an entry matches the values of a key. Each may be a value, its hash, or the digits of
    /// its state key.
    pub fn matches_field(&self, field: &str, values: &str) -> bool {
        let pairs = field.split(',').zip(values.split(',')).enumerate();
        pairs.into_iter().all(|(i, (entry, piece))| self.matches(i, entry, piece))
    }

    fn matches(&self, index: usize, entry: &str, piece: &str) -> bool {
        let state_digits = || {
            let mut state = String::new();
            write_value(&mut state, &Cow::from(percent_decode(entry.as_bytes())));
            state
        };
        let is_same_digest = |digits: &str| state_digits().strip_prefix('#') == Some(digits);
        entry == "*"
            || entry == piece
            || piece.strip_prefix(DIGEST_MARK).is_some_and(is_same_digest)
            || (piece != "*" && self.hash_piece(index, entry) == self.hash_piece(index, piece))
    }
}

/// Maximum number of different positions of stars and hashes in one table; each costs a lookup.
pub const SHAPES_MAX: usize = 16;

impl OverrideTable {
    /// Adds an entry. Returns false if there is one for these values already, or if there are too many different
    /// positions of stars and hashes.
    pub fn insert(&mut self, values: &[OverrideValue], entry: OverrideEntry) -> bool {
        let field = join_values(values);
        if self.entries.contains_key(field.as_str()) || !self.add_shape(shape_of(&field)) {
            return false;
        }
        self.entries.insert(field.into(), entry);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether an entry contains a hash.
    pub fn has_hashes(&self) -> bool {
        self.shapes.iter().any(|shape| shape.hashes != 0)
    }

    /// Adds a shape. Returns false if there are too many.
    fn add_shape(&mut self, shape: EntryShape) -> bool {
        if self.shapes.contains(&shape) {
            return true;
        }
        if self.shapes.len() == SHAPES_MAX {
            return false;
        }
        self.shapes.push(shape);
        self.shapes.sort_by_key(|shape| shape.order());
        true
    }

    /// Shapes of all entries, in the order in which they are tried.
    pub fn shapes(&self) -> &[EntryShape] {
        &self.shapes
    }

    /// Returns the entry of a field in canonical form, if it `applies`.
    pub fn find(&self, field: &str, applies: impl Fn(&OverrideEntry) -> bool) -> Option<&OverrideEntry> {
        self.entries.get(field).filter(|entry| applies(entry))
    }

    /// Returns all entries with their fields, in arbitrary order.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &OverrideEntry)> {
        self.entries.iter().map(|(field, entry)| (&**field, entry))
    }
}

/// Returns which pieces of a field are stars and hashes.
pub fn shape_of(field: &str) -> EntryShape {
    field.split(',').enumerate().fold(EntryShape::default(), |shape, (i, piece)| EntryShape {
        stars: shape.stars | u32::from(piece == "*") << i,
        hashes: shape.hashes | u32::from(piece.starts_with(DIGEST_MARK)) << i,
    })
}

/// Splits a field into its values.
pub fn parse_field(field: &[u8]) -> impl Iterator<Item = OverrideValue> {
    field.split(|byte| *byte == b',').map(|text| {
        let hash = text.strip_prefix(DIGEST_MARK.as_bytes()).and_then(|digits| str::from_utf8(digits).ok());
        match hash.and_then(KeyHash::parse) {
            Some(hash) => OverrideValue::Hash(hash),
            None if text == b"*" => OverrideValue::Any,
            None => OverrideValue::Bytes(percent_decode(text).collect()),
        }
    })
}

/// Joins values to a field.
pub fn join_values(values: &[OverrideValue]) -> String {
    let mut field = String::with_capacity(64);
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            field.push(',');
        }
        match value {
            OverrideValue::Any => field.push('*'),
            OverrideValue::Bytes(value) => write_escaped(&mut field, value),
            OverrideValue::Hash(hash) => drop(write!(field, "{DIGEST_MARK}{hash}")),
        }
    }
    field
}
