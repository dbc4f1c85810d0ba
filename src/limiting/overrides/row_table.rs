//! Overrides that change while the gateway runs: live ones, and the rows of a file. A change of one entry costs the
//! same for ten entries and for a million. Workers find entries; one thread at a time makes changes.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::limiting::key::Key;
use crate::limiting::overrides::table::{EntryShape, OverrideEntry, ParsedBudgets, SHAPES_MAX, join_values, shape_of};
use crate::limiting::overrides::{OverrideParser, RawOverrides, RejectedRows, canonicalize_field};

/// A part of the entries, by the canonical form of their fields.
type Shard = RwLock<HashMap<Box<str>, Row>>;

/// Entries by the canonical form of their fields.
#[derive(Default)]
pub struct RowTable {
    /// Parts of the table, each with a lock of its own, so that a change keeps few requests waiting, and none for long.
    /// They exist once there was an entry.
    shards: OnceLock<Box<[Shard]>>,
    hasher: RandomState,
    len: AtomicUsize,
    /// How many entries have each shape.
    shapes: Mutex<Vec<(EntryShape, usize)>>,
}

/// Result of a change of all entries.
#[derive(Debug, Default, PartialEq)]
pub struct ReplacedRows {
    /// Number of entries that were set or removed.
    pub changed: usize,
    pub rejected: RejectedRows,
}

struct Row {
    entry: OverrideEntry,
    /// The field as it is written, if that is not its canonical form.
    spelling: Option<Box<[u8]>>,
}

/// Reads entries of one limit.
pub struct RowReader<'r> {
    pub key: &'r Key,
    pub template: &'r OverrideParser,
    /// Entries may have hashes instead of values.
    pub can_match_hashes: bool,
    keeps_slashes: bool,
    parsed: ParsedBudgets,
}

const SHARDS: usize = 64;

impl<'r> RowReader<'r> {
    pub fn new(
        key: &'r Key,
        template: &'r OverrideParser,
        can_match_hashes: bool,
        keeps_slashes: bool,
    ) -> RowReader<'r> {
        RowReader { key, template, can_match_hashes, keeps_slashes, parsed: ParsedBudgets::default() }
    }

    /// Returns the canonical form of a field.
    pub fn canonical_field(&self, field: &[u8]) -> Result<String, String> {
        canonicalize_field(self.key, field, self.keeps_slashes).map(|values| join_values(&values))
    }

    /// Reads an entry, and returns the canonical form of its field.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read_entry(&mut self, field: &[u8], value: &[u8]) -> Result<(String, OverrideEntry), String> {
        let field = self.canonical_field(field)?;
        if !self.can_match_hashes && shape_of(&field).has_hashes() {
            return Err(super::HASH_NEEDS_SECRET.to_owned());
        }
        let text = str::from_utf8(value).map_err(|_| "the value is not UTF-8".to_owned())?;
        let entry = (self.template)(text, &mut self.parsed)?;
        Ok((field, entry))
    }
}

impl RowTable {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Shapes of all entries, in no order.
    pub fn shapes(&self) -> Vec<EntryShape> {
        self.shapes.lock().iter().map(|(shape, _)| *shape).collect()
    }

    /// Returns the entry of a field in canonical form, if it `applies`.
    pub fn find(&self, field: &str, applies: impl Fn(&OverrideEntry) -> bool) -> Option<OverrideEntry> {
        if self.is_empty() {
            return None;
        }
        let shard = self.shard(field)?.read();
        shard.get(field).map(|row| &row.entry).filter(|entry| applies(entry)).cloned()
    }

    /// Visits all entries with their fields, in no order.
    pub fn visit(&self, mut visit: impl FnMut(&str, &OverrideEntry)) {
        for shard in self.shards.get().into_iter().flatten() {
            shard.read().iter().for_each(|(field, row)| visit(field, &row.entry));
        }
    }

    /// Returns the field of the entry of the same key, as it is written.
    pub fn find_spelling(&self, field: &str) -> Option<Vec<u8>> {
        let shard = self.shard(field)?.read();
        shard.get(field).map(|row| row.written(field))
    }

    /// Replaces the entries `known`, which are all of the table, by those in `new`. An entry with a mistake is left
    /// out, or keeps its known value; so a typing error lifts no block. Changes only what differs, and adds before it
    /// removes: at no time does a key have no entry that has one before and afterwards. `find_new` makes those that
    /// were added known to who searches.
    pub fn replace(
        &self,
        reader: &mut RowReader<'_>,
        known: &mut RawOverrides,
        new: &RawOverrides,
        find_new: impl Fn(),
    ) -> ReplacedRows {
        let (mut changed, mut rejected) = self.add_changed(reader, known, new);
        find_new();
        let removed_fields: Vec<Vec<u8>> = known.keys().filter(|field| !new.contains_key(*field)).cloned().collect();
        for field in &removed_fields {
            self.remove(reader, known, field);
        }
        // Another entry may have been in the way.
        if rejected.count > 0 && !removed_fields.is_empty() {
            let (added, left) = self.add_changed(reader, known, new);
            changed += added;
            rejected = left;
        }
        find_new();
        ReplacedRows { changed: changed + removed_fields.len(), rejected }
    }

    /// Makes the table contain exactly the entries `known`, whatever it contains. Those with mistakes are removed from
    /// `known`. `find_new`: see [`RowTable::replace`].
    pub fn synchronize(
        &self,
        reader: &mut RowReader<'_>,
        known: &mut RawOverrides,
        find_new: impl Fn(),
    ) -> RejectedRows {
        let new = std::mem::take(known);
        let (_, rejected) = self.add_changed(reader, known, &new);
        find_new();
        let fields: HashSet<String> = known.keys().filter_map(|field| reader.canonical_field(field).ok()).collect();
        let mut removed_fields = Vec::new();
        self.visit(|field, _| removed_fields.extend((!fields.contains(field)).then(|| field.to_owned())));
        for field in removed_fields {
            self.remove_row(&field, |_| true);
        }
        find_new();
        rejected
    }

    fn add_changed(
        &self,
        reader: &mut RowReader<'_>,
        known: &mut RawOverrides,
        new: &RawOverrides,
    ) -> (usize, RejectedRows) {
        let (mut changed, mut rejected) = (0, RejectedRows::default());
        for (field, value) in new {
            if known.get(field) == Some(value) {
                continue;
            }
            match self.add(reader, field, value, |other| !new.contains_key(other)) {
                Ok(()) => {
                    known.insert(field.clone(), value.clone());
                    changed += 1;
                }
                Err(mistake) => rejected.add(field, mistake),
            }
        }
        (changed, rejected)
    }

    /// Sets one entry, or removes it.
    ///
    /// # Errors
    /// What is wrong with the entry. The table stays as it is then.
    pub fn change(
        &self,
        reader: &mut RowReader<'_>,
        known: &mut RawOverrides,
        field: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), String> {
        match value {
            Some(value) if known.get(field).is_some_and(|old| old == value) => Ok(()),
            Some(value) => {
                self.add(reader, field, value, |_| false)?;
                known.insert(field.to_vec(), value.to_vec());
                Ok(())
            }
            None => {
                self.remove(reader, known, field);
                Ok(())
            }
        }
    }

    /// Sets an entry. `is_gone`: whether an entry that is written that way will be removed.
    fn add(
        &self,
        reader: &mut RowReader<'_>,
        written: &[u8],
        value: &[u8],
        is_gone: impl Fn(&[u8]) -> bool,
    ) -> Result<(), String> {
        let (field, entry) = reader.read_entry(written, value)?;
        let shards = self.shards.get_or_init(|| (0..SHARDS).map(|_| RwLock::default()).collect());
        let mut shard = shards[self.shard_index(&field)].write();
        let spelling = (written != field.as_bytes()).then(|| written.into());
        if let Some(row) = shard.get_mut(field.as_str()) {
            let other = row.written(&field);
            if other != written && !is_gone(&other) {
                return Err("the same key is listed in another spelling".to_owned());
            }
            *row = Row { entry, spelling };
            return Ok(());
        }
        if !self.count_shape(shape_of(&field)) {
            return Err("the stars are in too many different positions".to_owned());
        }
        shard.insert(field.into(), Row { entry, spelling });
        self.len.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn remove(&self, reader: &RowReader<'_>, known: &mut RawOverrides, written: &[u8]) {
        known.remove(written);
        if let Ok(field) = reader.canonical_field(written) {
            // Another spelling may have taken its place.
            self.remove_row(&field, |row| row.written(&field) == written);
        }
    }

    /// Removes the entry of a field in canonical form, if it is the one that `is_meant`.
    fn remove_row(&self, field: &str, is_meant: impl Fn(&Row) -> bool) {
        let Some(mut shard) = self.shard(field).map(RwLock::write) else { return };
        if !shard.get(field).is_some_and(is_meant) {
            return;
        }
        shard.remove(field);
        self.len.fetch_sub(1, Ordering::Relaxed);
        let mut shapes = self.shapes.lock();
        let shape = shape_of(field);
        shapes.iter_mut().filter(|(known, _)| *known == shape).for_each(|(_, count)| *count -= 1);
        shapes.retain(|(_, count)| *count > 0);
    }

    /// Counts an entry of that shape. Returns false if there are too many different ones.
    fn count_shape(&self, shape: EntryShape) -> bool {
        let mut shapes = self.shapes.lock();
        if let Some((_, count)) = shapes.iter_mut().find(|(known, _)| *known == shape) {
            *count += 1;
            return true;
        }
        let has_room = shapes.len() < SHAPES_MAX;
        if has_room {
            shapes.push((shape, 1));
        }
        has_room
    }

    fn shard(&self, field: &str) -> Option<&Shard> {
        self.shards.get().map(|shards| &shards[self.shard_index(field)])
    }

    fn shard_index(&self, field: &str) -> usize {
        usize::try_from(self.hasher.hash_one(field) % SHARDS as u64).unwrap_or(0)
    }
}

impl Row {
    /// Returns the field as it is written, from its canonical form.
    fn written(&self, field: &str) -> Vec<u8> {
        self.spelling.as_deref().map_or_else(|| field.as_bytes().to_vec(), <[u8]>::to_vec)
    }
}
