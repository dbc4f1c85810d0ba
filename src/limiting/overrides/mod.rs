//! Overrides: rules for single keys instead of the limit's own. They come from the config, and from a hash in Redis
//! that operators edit while the gateway runs (live overrides). The limiter looks keys up; the control thread
//! applies changes of the hash.
//!
//! `table` finds the override of a key. To add a number that overrides may set, parse it in `table::parse_field`.

pub mod row_file;
pub mod row_table;
pub mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::limiting::clock;
use crate::limiting::key::Key;
use crate::limiting::key::shown_key::KeyHasher;
use crate::limiting::key::state_key::DIGEST_MARK;
use crate::limiting::overrides::row_file::{OverrideFile, find_line};
use crate::limiting::overrides::row_table::{ReplacedRows, RowReader, RowTable};
use crate::limiting::overrides::table::{
    EntryShape, OverrideBudget, OverrideEntry, OverrideTable, OverrideValue, ParsedBudgets, PartHasher, join_values,
    parse_field, shape_of,
};

/// Parses `rate=100/s;burst=5` like the config of the limit, and remembers budgets. An error says what is wrong.
pub type OverrideParser = dyn Fn(&str, &mut ParsedBudgets) -> Result<OverrideEntry, String> + Send + Sync;

/// The overrides of one limit.
pub struct Overrides {
    /// Overrides of the config.
    fixed: OverrideTable,
    /// The file with further overrides.
    file: Option<OverrideFile>,
    live: RowTable,
    /// Shapes of all entries, in the order in which they are tried.
    shapes: ArcSwap<Vec<EntryShape>>,
    /// There are shapes. Read for every request, so apart from them.
    has_shapes: AtomicBool,
    /// Held while shapes are collected: rows of files and live entries change on different threads.
    collecting: Mutex<()>,
    hasher: PartHasher,
    template: Arc<OverrideParser>,
    /// A route keeps repeated slashes, so keys may have them.
    keeps_slashes: bool,
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

/// The place of an override. If several of the same key apply, the first of this list wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideOrigin {
    /// It is in Redis, or was set by the admin API.
    Live,
    /// It is in the config.
    Config,
    /// It is in the file that the config names.
    File,
}

impl Overrides {
    pub fn new(
        fixed: OverrideTable,
        file: Option<OverrideFile>,
        hasher: PartHasher,
        template: Arc<OverrideParser>,
        keeps_slashes: bool,
    ) -> Overrides {
        let (live, shapes, collecting) = (RowTable::default(), ArcSwap::default(), Mutex::default());
        let has_shapes = AtomicBool::default();
        let overrides =
            Overrides { fixed, file, live, shapes, has_shapes, collecting, hasher, template, keeps_slashes };
        overrides.collect_shapes();
        overrides
    }

    /// Returns whether entries may have hashes instead of values: only if these remain valid.
    pub fn can_match_hashes(&self) -> bool {
        self.hasher.hasher.is_lasting
    }

    /// Returns whether there are any overrides.
    pub fn has_any(&self) -> bool {
        self.has_shapes.load(Ordering::Acquire)
    }

    /// Returns the overrides of the config, without live ones and those of its file.
    pub fn fixed(&self) -> &OverrideTable {
        &self.fixed
    }

    /// Returns the file with further overrides.
    pub fn file(&self) -> Option<&OverrideFile> {
        self.file.as_ref()
    }

    /// Finds the entry of the key with these `values`, in the form that [`Key::budget_names`] writes, by the wall clock
    /// of this machine.
    pub fn find(&self, values: &str) -> Option<OverrideEntry> {
        self.find_at(values, clock::now_ms)
    }

    /// Finds the entry of a key at a time, in ms since 1970.
    pub fn find_at(&self, values: &str, now_ms: impl Fn() -> i64) -> Option<OverrideEntry> {
        self.find_with_origin(values, now_ms).map(|(entry, _)| entry)
    }

    /// Finds the entry of a key at a time, and where it is written. The `values` of the key are joined to a field; a
    /// star stands for a missing value.
    pub fn find_with_origin(&self, values: &str, now_ms: impl Fn() -> i64) -> Option<(OverrideEntry, OverrideOrigin)> {
        let mut shapes = self.shapes.load();
        if shapes.is_empty() {
            return None;
        }
        // Few values contain a `%`, so this costs a request almost nothing.
        if values.as_bytes().contains(&b'%') && values.contains(DIGEST_MARK) {
            return self.find_by_digest(values, now_ms);
        }
        let absent = shape_of(values);
        let applies = |entry: &OverrideEntry| entry.applies(&now_ms);
        loop {
            let match_of_shapes = shapes.iter().find_map(|shape| {
                let field = shape.field_for(values, absent, &self.hasher)?;
                let live = || self.live.find(&field, applies).map(|entry| (entry, OverrideOrigin::Live));
                let configured =
                    || self.fixed.find(&field, applies).map(|entry| (entry.clone(), OverrideOrigin::Config));
                let row = || self.file.as_ref()?.table.find(&field, applies).map(|entry| (entry, OverrideOrigin::File));
                live().or_else(configured).or_else(row)
            });
            // The entry of the key may have been replaced meanwhile by one with stars elsewhere.
            let now = self.shapes.load();
            if match_of_shapes.is_some() || Arc::ptr_eq(&shapes, &now) {
                return match_of_shapes;
            }
            shapes = now;
        }
    }

    /// Finds the entry of a key of which some values are not known, only digits that identify them. Compares all
    /// entries, so only the admin API and the replay may use it.
    fn find_by_digest(&self, values: &str, now_ms: impl Fn() -> i64) -> Option<(OverrideEntry, OverrideOrigin)> {
        let mut best_entry: Option<(EntryShape, OverrideEntry, OverrideOrigin)> = None;
        let mut compare = |origin: OverrideOrigin, field: &str, entry: &OverrideEntry| {
            if !self.hasher.matches_field(field, values) || !entry.applies(&now_ms) {
                return;
            }
            let shape = shape_of(field);
            if best_entry.as_ref().is_none_or(|(best, ..)| shape.order() < best.order()) {
                best_entry = Some((shape, entry.clone(), origin));
            }
        };
        self.live.visit(|field, entry| compare(OverrideOrigin::Live, field, entry));
        self.fixed.entries().for_each(|(field, entry)| compare(OverrideOrigin::Config, field, entry));
        self.file.iter().for_each(|file| file.table.visit(|field, entry| compare(OverrideOrigin::File, field, entry)));
        best_entry.map(|(_, entry, origin)| (entry, origin))
    }

    /// Visits the budgets of the config and of its file, without live ones, in no order.
    pub fn visit_written(&self, mut visit: impl FnMut(&OverrideBudget)) {
        self.fixed.entries().for_each(|(_, entry)| visit(&entry.budget));
        self.file.iter().for_each(|file| file.table.visit(|_, entry| visit(&entry.budget)));
    }

    /// Reads a live entry alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_entry(&self, key: &Key, field: &str, value: &str) -> Result<OverrideEntry, String> {
        self.reader(key).read_entry(field.as_bytes(), value.as_bytes()).map(|(_, entry)| entry)
    }

    /// Returns how the live entry of the same key as `field` is written, if that is another way. `field` is canonical.
    pub fn find_spelling(&self, field: &str) -> Option<Vec<u8>> {
        self.live.find_spelling(field).filter(|written| written != field.as_bytes())
    }

    /// Returns the live entry of a field as it is written, and the values of its key. It may have ended.
    pub fn find_live(&self, key: &Key, written: &[u8]) -> Option<(Vec<OverrideValue>, OverrideEntry)> {
        let values = canonicalize_field(key, written, self.keeps_slashes).ok()?;
        let entry = self.live.find(&join_values(&values), |_| true)?;
        Some((values, entry))
    }

    /// Lists the live entries that have ended, as they are written.
    pub fn list_ended(&self, now_ms: i64) -> Vec<Vec<u8>> {
        let mut fields = Vec::new();
        self.live.visit(|field, entry| fields.extend((!entry.applies(&|| now_ms)).then(|| field.to_owned())));
        fields.iter().filter_map(|field| self.live.find_spelling(field)).collect()
    }

    /// Replaces the live overrides `known` by those in `new`; see [`RowTable::replace`].
    pub fn replace_live(&self, key: &Key, known: &mut RawOverrides, new: &RawOverrides) -> ReplacedRows {
        self.live.replace(&mut self.reader(key), known, new, || self.collect_shapes())
    }

    /// Makes `raw` the live overrides, whatever they are. Entries with mistakes are removed from `raw`.
    pub fn set_live(&self, key: &Key, raw: &mut RawOverrides) -> RejectedRows {
        self.live.synchronize(&mut self.reader(key), raw, || self.collect_shapes())
    }

    /// Sets the live override of one field, or removes it.
    ///
    /// # Errors
    /// What is wrong with the entry. The overrides stay as they are then.
    pub fn change_live(
        &self,
        key: &Key,
        known: &mut RawOverrides,
        (field, value): (&[u8], Option<&[u8]>),
    ) -> Result<(), String> {
        self.live.change(&mut self.reader(key), known, field, value)?;
        self.collect_shapes();
        Ok(())
    }

    /// Applies the rows of the file, whose text is `text`. Returns the rows that were left out.
    ///
    /// # Errors
    /// The file has too many rows. The active ones stay.
    pub fn apply_file(&self, key: &Key, text: &str) -> Result<ReplacedRows, String> {
        let Some(file) = &self.file else { return Ok(ReplacedRows::default()) };
        file.apply_text(&mut self.reader(key), text, || self.collect_shapes())
    }

    /// Adopts the rows of `old` that the file has no longer because of mistakes, so that a typing error lifts no block.
    /// Returns how many. Called for a new config whose limit has the same key and file.
    pub fn adopt_rows(&self, key: &Key, old: &Overrides) -> usize {
        let (Some(file), Some(before)) = (&self.file, &old.file) else { return 0 };
        let row_count = file.adopt_rows(&mut self.reader(key), before);
        self.collect_shapes();
        row_count
    }

    /// Restores the rows of `old`, because the file is still being written. Returns how many there are. Called like
    /// [`Overrides::adopt_rows`].
    pub fn restore_rows(&self, key: &Key, old: &Overrides) -> usize {
        let (Some(file), Some(before)) = (&self.file, &old.file) else { return 0 };
        let row_count = file.restore_rows(&mut self.reader(key), before, || self.collect_shapes());
        self.collect_shapes();
        row_count
    }

    fn reader<'r>(&'r self, key: &'r Key) -> RowReader<'r> {
        RowReader::new(key, &*self.template, self.can_match_hashes(), self.keeps_slashes)
    }

    /// Collects the shapes of all entries, in the order in which they are tried.
    fn collect_shapes(&self) {
        let _collecting = self.collecting.lock();
        let mut shapes = self.fixed.shapes().to_vec();
        shapes.extend(self.live.shapes());
        shapes.extend(self.file.iter().flat_map(|file| file.table.shapes()));
        let mut seen = Vec::with_capacity(shapes.len());
        shapes.retain(|shape| {
            let is_new = !seen.contains(shape);
            seen.push(*shape);
            is_new
        });
        shapes.sort_by_key(|shape| shape.order());
        if **self.shapes.load() != shapes {
            let has_shapes = !shapes.is_empty();
            self.shapes.store(Arc::new(shapes));
            self.has_shapes.store(has_shapes, Ordering::Release);
        }
    }
}

/// Returns the values of a field in canonical form.
///
/// # Errors
/// The field has another number of values than the key, or no request has one of them.
fn canonicalize_field(key: &Key, field: &[u8], keeps_slashes: bool) -> Result<Vec<OverrideValue>, String> {
    let mut values: Vec<OverrideValue> = parse_field(field).collect();
    if values.len() != key.0.len() {
        return Err(format!("the key has {} parts, but the field has {}", key.0.len(), values.len()));
    }
    for (part, value) in key.0.iter().zip(&mut values) {
        if let OverrideValue::Bytes(bytes) = value {
            let text = String::from_utf8_lossy(bytes);
            let merged = part.sources().iter().find_map(|source| source.merge_written(&text));
            if let Some(merged) = merged.filter(|_| !keeps_slashes) {
                return Err(format!(
                    "no request has `{text}`, because every route merges repeated slashes; write `{merged}`"
                ));
            }
            *bytes = part.canonicalize_written(std::mem::take(bytes))?;
        }
    }
    Ok(values)
}

/// Entries of a hash, or rows of a file with overrides or a set, that were left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RejectedRows {
    pub count: usize,
    /// The first mistakes, each with its field, or with its line.
    mistakes: Vec<(RejectedPlace, String)>,
}

#[derive(Clone, Debug, PartialEq)]
enum RejectedPlace {
    Field(Vec<u8>),
    Line(usize),
}

impl RejectedRows {
    fn add(&mut self, field: &[u8], mistake: String) {
        self.add_at(RejectedPlace::Field(field.to_vec()), mistake);
    }

    pub fn add_line(&mut self, line: usize, mistake: String) {
        self.add_at(RejectedPlace::Line(line), mistake);
    }

    fn add_at(&mut self, place: RejectedPlace, mistake: String) {
        self.count += 1;
        if self.mistakes.len() < MISTAKES_SHOWN {
            self.mistakes.push((place, mistake));
        }
    }

    /// Names the lines of `text` that have the mistakes.
    fn name_lines(&mut self, text: &str) {
        for (place, _) in &mut self.mistakes {
            if let RejectedPlace::Field(field) = place
                && let Some(line) = find_line(text, field)
            {
                *place = RejectedPlace::Line(line);
            }
        }
    }

    fn append(&mut self, other: RejectedRows) {
        self.count += other.count;
        self.mistakes.extend(other.mistakes);
        self.mistakes.truncate(MISTAKES_SHOWN);
    }

    /// Describes the mistakes; `None` if there are none.
    pub fn describe(&self) -> Option<String> {
        let mistakes = self.mistakes.iter().map(|(place, mistake)| match place {
            RejectedPlace::Field(field) => cut(&format!("{}: {mistake}", cut(&String::from_utf8_lossy(field)))),
            RejectedPlace::Line(line) => cut(&format!("line {line}: {mistake}")),
        });
        let mistakes = mistakes.collect::<Vec<_>>().join("; ");
        match self.count {
            0 => None,
            1..=MISTAKES_SHOWN => Some(mistakes),
            count => Some(format!("{count} errors, the first {MISTAKES_SHOWN}: {mistakes}")),
        }
    }
}

impl Default for Overrides {
    fn default() -> Overrides {
        let hasher = PartHasher::new(&Key(Vec::new()), &KeyHasher::of_process());
        Overrides::new(
            OverrideTable::default(),
            None,
            hasher,
            Arc::new(|_, _| Err("this limit has no overrides".to_owned())),
            false,
        )
    }
}

/// Shows only the overrides of the config, and the path of its file.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Overrides").field(&self.fixed).field(&self.file.as_ref().map(|file| &file.path)).finish()
    }
}

/// Compares only the overrides of the config, as live ones survive a reload; and the secret, if one has a hash.
impl PartialEq for Overrides {
    fn eq(&self, other: &Overrides) -> bool {
        let path = |overrides: &Overrides| overrides.file.as_ref().map(|file| file.path.clone());
        self.fixed == other.fixed
            && path(self) == path(other)
            && (!self.fixed.has_hashes() || self.hasher == other.hasher)
    }
}

#[cfg(test)]
mod tests;
