//! One difference as a line of text and as JSON.

use serde_json::{Value, json};

/// One difference of two configs.
#[derive(Debug, PartialEq)]
pub struct ChangeLine {
    /// Kind of section: `limit`, `server`.
    pub kind: String,
    /// Name of the section; empty for those that exist once.
    pub name: String,
    /// The option; `None` if the whole section was added, removed, or loses its state.
    pub option: Option<String>,
    /// The change as text: `burst 20 → 40`.
    pub what: String,
    /// The consequence of the change, shown in parentheses.
    pub note: Option<&'static str>,
    /// The change weakens protection.
    pub is_weaker: bool,
}

/// Maximum number of lines of a diff; further ones are counted.
pub const LINES_MAX: usize = 200;

/// Lines of a diff, bounded.
#[derive(Debug, Default, PartialEq)]
pub struct ChangeLines {
    /// The lines; those that weaken protection come first, so that no others cut them off.
    shown: Vec<ChangeLine>,
    total: usize,
    weaker: usize,
}

impl ChangeLine {
    pub fn new(kind: &str, name: &str, what: impl Into<String>) -> ChangeLine {
        let (kind, name, what) = (kind.to_owned(), name.to_owned(), what.into());
        ChangeLine { kind, name, option: None, what, note: None, is_weaker: false }
    }

    pub fn with_option(mut self, option: &str) -> ChangeLine {
        self.option = Some(option.to_owned());
        self
    }

    pub fn with_note(mut self, note: Option<&'static str>) -> ChangeLine {
        self.note = note;
        self
    }

    pub fn with_weaker(mut self, is_weaker: bool) -> ChangeLine {
        self.is_weaker = is_weaker;
        self
    }

    /// Returns the line: `limit per-ip: burst 20 → 40 (keys keep what they used) [weaker]`.
    fn to_text(&self) -> String {
        let space = if self.name.is_empty() { "" } else { " " };
        let note = self.note.map_or_else(String::new, |note| format!(" ({note})"));
        let mark = if self.is_weaker { " [weaker]" } else { "" };
        format!("{}{space}{}: {}{note}{mark}", self.kind, self.name, self.what)
    }

    fn to_json(&self) -> Value {
        json!({
            "kind": self.kind,
            "name": self.name,
            "option": self.option,
            "weaker": self.is_weaker,
            "text": self.to_text(),
        })
    }
}

impl ChangeLines {
    pub fn new(mut lines: Vec<ChangeLine>) -> ChangeLines {
        lines.sort_by_key(|line| !line.is_weaker);
        let (total, weaker) = (lines.len(), lines.iter().filter(|line| line.is_weaker).count());
        lines.truncate(LINES_MAX);
        ChangeLines { shown: lines, total, weaker }
    }

    /// Returns the number of differences.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns the number of differences that weaken protection.
    pub fn weaker(&self) -> usize {
        self.weaker
    }

    /// Returns the lines as text, and last the number of lines that are not shown.
    pub fn texts(&self) -> impl Iterator<Item = String> + '_ {
        let left_out = self.total - self.shown.len();
        let more = (left_out > 0).then(|| format!("and {left_out} more"));
        self.shown.iter().map(ChangeLine::to_text).chain(more)
    }

    /// Returns the lines, each with whether it weakens protection.
    pub fn marked_texts(&self) -> impl Iterator<Item = (bool, String)> + '_ {
        let weaker = self.shown.iter().map(|line| line.is_weaker).chain([false]);
        weaker.zip(self.texts())
    }

    pub fn to_json(&self) -> Value {
        self.shown.iter().map(ChangeLine::to_json).collect()
    }
}
