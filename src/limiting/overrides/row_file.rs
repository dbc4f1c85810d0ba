//! The text of a file with overrides: one entry per line, a field and its value, as the hash in Redis has them.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use parking_lot::Mutex;

use crate::limiting::overrides::row_table::{ReplacedRows, RowReader, RowTable};
use crate::limiting::overrides::{LIVE_ENTRIES_MAX, RawOverrides, RejectedRows};

/// The file of a limit, and its active rows.
pub struct OverrideFile {
    pub path: PathBuf,
    pub(super) table: RowTable,
    /// The active rows, and the lines that were left out.
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    rows: RawOverrides,
    rejected: RejectedRows,
    /// Fields of the lines that were left out because of a mistake.
    skipped: BTreeSet<Vec<u8>>,
}

impl OverrideFile {
    pub fn new(path: PathBuf) -> OverrideFile {
        OverrideFile { path, table: RowTable::default(), state: Mutex::default() }
    }

    /// Applies the rows of `text`. Only rows that differ from those in effect change anything.
    ///
    /// # Errors
    /// The file has too many rows, or is damaged. Those in effect stay.
    pub(super) fn apply_text(
        &self,
        reader: &mut RowReader<'_>,
        text: &str,
        find_new: impl Fn(),
    ) -> Result<ReplacedRows, String> {
        let (mut rows, mut rejected) = parse_rows(reader, text)?;
        let without_value = written_rows(text).filter(|(.., value)| value.is_none());
        let mut skipped: BTreeSet<Vec<u8>> = without_value.map(|(_, field, _)| field.as_bytes().to_vec()).collect();
        let mut state = self.state.lock();
        for field in &skipped {
            // The mistake is in the line, and the row stays as it is.
            if let Some(value) = state.rows.get(field).filter(|_| !rows.contains_key(field)) {
                rows.insert(field.clone(), value.clone());
            }
        }
        let ReplacedRows { changed, rejected: mut wrong } =
            self.table.replace(reader, &mut state.rows, &rows, find_new);
        wrong.name_lines(text);
        rejected.append(wrong);
        state.rejected = rejected.clone();
        skipped.extend(
            rows.iter().filter(|(field, value)| state.rows.get(*field) != Some(*value)).map(|row| row.0.clone()),
        );
        state.skipped = skipped;
        Ok(ReplacedRows { changed, rejected })
    }

    /// Adopts the rows of `old` whose lines were left out here, or all if the file is empty: it may be about to be written.
    /// Returns how many.
    pub(super) fn adopt_rows(&self, reader: &mut RowReader<'_>, old: &OverrideFile) -> usize {
        let state = &mut *self.state.lock();
        let is_empty = state.rows.is_empty() && state.skipped.is_empty();
        let is_missing = |field: &Vec<u8>| is_empty || state.skipped.contains(field) && !state.rows.contains_key(field);
        let rows: RawOverrides = {
            let old = old.state.lock();
            let missing = old.rows.iter().filter(|(field, _)| is_missing(field));
            missing.map(|(field, value)| (field.clone(), value.clone())).collect()
        };
        // A row that no longer fits the limit stays out, like any other with a mistake.
        let mut adopt = |(field, value): (&Vec<u8>, &Vec<u8>)| {
            self.table.change(reader, &mut state.rows, field, Some(value.as_slice())).is_ok()
        };
        rows.iter().filter(|row| adopt(*row)).count()
    }

    /// Replaces all rows with those of `old`. Returns how many there are.
    pub(super) fn restore_rows(&self, reader: &mut RowReader<'_>, old: &OverrideFile, find_new: impl Fn()) -> usize {
        let (rows, rejected) = {
            let old = old.state.lock();
            (old.rows.clone(), old.rejected.clone())
        };
        let state = &mut *self.state.lock();
        self.table.replace(reader, &mut state.rows, &rows, find_new);
        (state.rejected, state.skipped) = (rejected, BTreeSet::new());
        state.rows.len()
    }

    /// Returns whether `text` would leave no row of those that are active.
    pub fn is_emptied_by(&self, text: &str) -> bool {
        !self.table.is_empty() && written_rows(text).next().is_none()
    }

    /// Number of active rows, and of lines that were left out.
    pub fn counts(&self) -> (usize, usize) {
        (self.table.len(), self.state.lock().rejected.count)
    }
}

/// Splits a text into rows: a field, spaces or tabs, and a value. Lines that are empty or begin with `#` say nothing. Of
/// several rows for one key, in whatever spelling, the first one counts.
///
/// # Errors
/// The file has too many rows or is damaged, for example by a crash during a write.
fn parse_rows(reader: &RowReader<'_>, text: &str) -> Result<(RawOverrides, RejectedRows), String> {
    if text.contains('\0') {
        return Err("the file contains zero bytes; write it again".to_owned());
    }
    let (mut rows, mut rejected) = (RawOverrides::new(), RejectedRows::default());
    // Canonical forms of the rows that are written otherwise.
    let mut respelled: HashSet<String> = HashSet::new();
    for (line, field, value) in written_rows(text) {
        let Some(value) = value else {
            rejected.add_line(line, "the line has no value; write KEY rate=100/s".to_owned());
            continue;
        };
        // A field with a mistake is rejected with it when it is added.
        let canonical = reader.canonical_field(field.as_bytes()).unwrap_or_else(|_| field.to_owned());
        if rows.contains_key(field.as_bytes()) {
            rejected.add_line(line, "the key has a row already".to_owned());
        } else if rows.contains_key(canonical.as_bytes()) || respelled.contains(&canonical) {
            rejected.add_line(line, "the key has a row already, in another spelling".to_owned());
        } else if rows.len() == LIVE_ENTRIES_MAX {
            return Err(format!("the file has more than {LIVE_ENTRIES_MAX} rows"));
        } else {
            rows.insert(field.as_bytes().to_vec(), value.as_bytes().to_vec());
            if canonical != field {
                respelled.insert(canonical);
            }
        }
    }
    if rows.is_empty() && rejected.count > 0 {
        return Err("no line of the file has a key and a value, such as KEY rate=100/s".to_owned());
    }
    Ok((rows, rejected))
}

/// Returns the number of each line with its field and its value, if it has one.
pub fn written_rows(text: &str) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(line, number)| match line.split_once([' ', '\t']) {
        Some((field, value)) => (number, field, Some(value.trim_start())),
        None => (number, line, None),
    })
}

/// Returns the number of the first line with that field and a value.
pub(super) fn find_line(text: &str, field: &[u8]) -> Option<usize> {
    let is_row = |written: &str, value: Option<&str>| value.is_some() && written.as_bytes() == field;
    written_rows(text).find_map(|(line, written, value)| is_row(written, value).then_some(line))
}
