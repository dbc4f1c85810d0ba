//! The text of a file with overrides: one entry per line, a field and its value, as the hash in Redis has them.

use std::path::PathBuf;

use parking_lot::Mutex;

use crate::limiting::overrides::row_table::{ReplacedRows, RowReader, RowTable};
use crate::limiting::overrides::{LIVE_ENTRIES_MAX, RawOverrides, RejectedOverrides};

/// The file of a limit, and the rows of it that are in force.
pub struct OverrideFile {
    pub path: PathBuf,
    pub(super) table: RowTable,
    /// The rows in force, and the lines that were left out.
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    rows: RawOverrides,
    rejected: RejectedOverrides,
}

impl OverrideFile {
    pub fn new(path: PathBuf) -> OverrideFile {
        OverrideFile { path, table: RowTable::default(), state: Mutex::default() }
    }

    /// Applies the rows of `text`. Only rows that differ from those in force change anything.
    ///
    /// # Errors
    /// The file has too many rows. Those in force stay.
    pub(super) fn apply_text(&self, reader: &mut RowReader<'_>, text: &str) -> Result<ReplacedRows, String> {
        let (rows, mut rejected) = parse_rows(text)?;
        let mut state = self.state.lock();
        let ReplacedRows { changed, rejected: mut wrong } = self.table.replace(reader, &mut state.rows, &rows);
        wrong.name_lines(text);
        rejected.append(wrong);
        state.rejected = rejected.clone();
        Ok(ReplacedRows { changed, rejected })
    }

    /// Number of rows in force, and of lines that were left out.
    pub fn counts(&self) -> (usize, usize) {
        (self.table.len(), self.state.lock().rejected.count)
    }
}

/// Splits a text into rows: a field, spaces or tabs, and a value. Lines that are empty or begin with `#` say nothing.
fn parse_rows(text: &str) -> Result<(RawOverrides, RejectedOverrides), String> {
    let (mut rows, mut rejected) = (RawOverrides::new(), RejectedOverrides::default());
    for (line, row) in written_rows(text) {
        let Some((field, value)) = row else {
            rejected.add_line(line, "the line has no value; write KEY rate=100/s".to_owned());
            continue;
        };
        if rows.contains_key(field.as_bytes()) {
            rejected.add_line(line, "the key has a row already".to_owned());
        } else if rows.len() == LIVE_ENTRIES_MAX {
            return Err(format!("the file has more than {LIVE_ENTRIES_MAX} rows"));
        } else {
            rows.insert(field.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
    }
    Ok((rows, rejected))
}

/// Returns the number of each line with its field and value; `None` if it has no value.
fn written_rows(text: &str) -> impl Iterator<Item = (usize, Option<(&str, &str)>)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(line, number)| {
        let row = line.split_once([' ', '\t']).map(|(field, value)| (field, value.trim_start()));
        (number, row)
    })
}

/// Returns the number of the first line with that field.
pub(super) fn find_line(text: &str, field: &[u8]) -> Option<usize> {
    written_rows(text).find_map(|(line, row)| row.filter(|row| row.0.as_bytes() == field).map(|_| line))
}
