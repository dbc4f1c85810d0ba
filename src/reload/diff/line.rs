//! One difference as a line of text and as JSON. The same difference of many sections is one line.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::config::schema::root;

/// One difference of two configs.
#[derive(Debug, PartialEq)]
pub struct ChangeLine {
    /// Kind of section: `limit`, `server`.
    pub kind: String,
    /// Name of the section; empty for those that exist once. Of several sections, the first names.
    pub name: String,
    /// Number of sections that differ in this way.
    count: usize,
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

/// Number of sections with the same change from which they are one line, and number of names in it.
const FOLDED_FROM: usize = 4;
const NAMES_SHOWN: usize = 3;

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
        ChangeLine { kind, name, count: 1, option: None, what, note: None, is_weaker: false }
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
        let plural = if self.count > 1 && self.kind != root::RLS.name { "s" } else { "" };
        format!("{}{plural}{space}{}: {}{note}{mark}", self.kind, self.name, self.what)
    }

    /// Returns what the lines of sections with the same change have in common.
    fn change(&self) -> (String, Option<String>, String, Option<&'static str>, bool) {
        (self.kind.clone(), self.option.clone(), self.what.clone(), self.note, self.is_weaker)
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

/// Makes the lines of sections with the same change one, at the place of the first.
fn fold_lines(lines: Vec<ChangeLine>) -> Vec<ChangeLine> {
    let mut names: HashMap<_, Vec<String>> = HashMap::new();
    for line in lines.iter().filter(|line| !line.name.is_empty()) {
        names.entry(line.change()).or_default().push(line.name.clone());
    }
    names.retain(|_, names| names.len() >= FOLDED_FROM);
    let mut folded: HashSet<_> = HashSet::new();
    let fold = |line: ChangeLine| {
        let change = line.change();
        match names.get(&change).filter(|_| !line.name.is_empty()) {
            None => Some(line),
            Some(names) if folded.insert(change) => {
                let more = names.len() - NAMES_SHOWN;
                let name = format!("{} and {more} more", names[..NAMES_SHOWN].join(", "));
                Some(ChangeLine { name, count: names.len(), ..line })
            }
            Some(_) => None,
        }
    };
    lines.into_iter().filter_map(fold).collect()
}

impl ChangeLines {
    pub fn new(lines: Vec<ChangeLine>) -> ChangeLines {
        let mut lines = fold_lines(lines);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_change_of_many_sections_is_one_line() {
        let line = |kind: &str, name: &str| ChangeLine::new(kind, name, "now limited by v2").with_option("limits");
        let routes = |count: usize| (0..count).map(|number| line("route", &format!("r{number}")));
        let few = ChangeLines::new(routes(3).collect());
        assert_eq!((few.total(), few.texts().next().as_deref()), (3, Some("route r0: now limited by v2")));
        let others = [line("limit", "r0"), line("route", "other").with_weaker(true)];
        let many = ChangeLines::new(others.into_iter().chain(routes(200)).collect());
        let texts: Vec<String> = many.texts().collect();
        assert_eq!(
            texts,
            [
                "route other: now limited by v2 [weaker]",
                "limit r0: now limited by v2",
                "routes r0, r1, r2 and 197 more: now limited by v2",
            ]
        );
        assert_eq!((many.total(), many.weaker()), (3, 1));
    }
}
