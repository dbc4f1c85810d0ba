//! Numbered comments: they list the directives that an import could not translate.

use std::collections::HashMap;

use crate::import::syntax::{Directive, shorten};

/// Maximum number of comments. Further comments are counted but not written.
const COMMENTS_MAX: usize = 2000;

/// The numbered comments in the order of their numbers.
#[derive(Default)]
pub struct Remarks {
    texts: Vec<String>,
    numbers: HashMap<String, usize>,
    left_out: usize,
}

impl Remarks {
    /// Adds a comment about a directive and returns its number. The same comment about the same line has one number.
    pub fn add(&mut self, at: &Directive, why: &str) -> usize {
        let mut text = at.name.clone();
        for arg in at.args.iter().take(6) {
            text.push(' ');
            text.push_str(arg);
        }
        let what = format!("{}:{}: `{}`: {why}", shorten(&at.file), at.line, shorten(&text));
        self.add_text(what)
    }

    /// Adds a comment that concerns no single directive and returns its number.
    pub fn add_text(&mut self, text: String) -> usize {
        if let Some(number) = self.numbers.get(&text) {
            return *number;
        }
        if self.texts.len() >= COMMENTS_MAX {
            self.left_out += 1;
            return COMMENTS_MAX;
        }
        self.texts.push(text.clone());
        self.numbers.insert(text, self.texts.len());
        self.texts.len()
    }

    /// Returns the number of comments, including those beyond [`COMMENTS_MAX`].
    pub fn count(&self) -> usize {
        self.texts.len() + self.left_out
    }

    /// Formats the comments as lines of the config.
    pub fn format_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.texts.iter().enumerate().map(|(at, text)| format!("#   {}. {text}", at + 1)).collect();
        if self.left_out > 0 {
            lines.push(format!("#   and {} more", self.left_out));
        }
        lines
    }
}
