//! Reports of config mistakes: each with its place, source line, caret and remedy, as text for people and as JSON for
//! tools. Every file of this directory adds to it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde_json::{Value, json};

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::excerpt;

/// A byte range of one source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: usize,
    pub start: usize,
    pub end: usize,
}

/// A text that was read; empty if the file could not be read.
#[derive(Debug)]
pub struct SourceText {
    pub name: String,
    pub text: String,
    /// Directory that relative paths in the text start at.
    pub dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MistakeKind {
    /// A value or name that no other file could make valid.
    Wrong,
    /// Something required is missing. Not reported next to a syntax error or an unreadable file, which may contain it.
    Absent,
    /// The text is not valid TOML.
    Syntax,
    /// A file of the config cannot be read.
    Unread,
}

/// One error or warning.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    pub kind: MistakeKind,
    /// The code of a warning. The code of an error follows from its kind.
    warning: Option<DiagnosticCode>,
    pub place: Place,
    pub message: String,
    label: String,
    help: Option<String>,
    related: Vec<(Place, String)>,
    /// The option with the mistake, as `sluicegate help` calls it; empty if it is unknown.
    option: String,
}

impl Diagnostic {
    pub fn new(place: Place, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            kind: MistakeKind::Wrong,
            warning: None,
            place,
            message: message.into(),
            label: String::new(),
            help: None,
            related: Vec::new(),
            option: String::new(),
        }
    }

    /// Sets the option or section to read about, as `sluicegate help` calls it.
    pub fn with_option(mut self, path: impl Into<String>) -> Diagnostic {
        self.option = path.into();
        self
    }

    pub fn with_kind(mut self, kind: MistakeKind) -> Diagnostic {
        self.kind = kind;
        self
    }

    /// Makes it a warning with this code.
    pub fn with_code(mut self, code: DiagnosticCode) -> Diagnostic {
        self.warning = Some(code);
        self
    }

    pub fn code(&self) -> DiagnosticCode {
        self.warning.unwrap_or(match self.kind {
            MistakeKind::Wrong => DiagnosticCode::WrongValue,
            MistakeKind::Absent => DiagnosticCode::MissingPart,
            MistakeKind::Syntax => DiagnosticCode::InvalidToml,
            MistakeKind::Unread => DiagnosticCode::UnreadableFile,
        })
    }

    /// Sets the text at the caret.
    pub fn with_label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = label.into();
        self
    }

    /// Sets the remedy.
    pub fn with_help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into()).filter(|help| !help.is_empty());
        self
    }

    /// Adds a related place.
    pub fn with_related(mut self, place: Place, label: impl Into<String>) -> Diagnostic {
        self.related.push((place, label.into()));
        self
    }
}

/// All mistakes of a load, or all warnings of a successful one. Never empty.
#[derive(Debug)]
pub struct Report {
    severity: Severity,
    sources: Vec<Arc<SourceText>>,
    /// The texts of `sources` without secrets; empty for those without a mistake or related place.
    masks: Vec<String>,
    mistakes: Vec<Diagnostic>,
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    Mistake,
    Warning,
}

/// Maximum number of mistakes shown; further ones are counted.
const SHOWN_MAX: usize = 100;

impl Report {
    pub fn new(sources: Vec<Arc<SourceText>>, mut mistakes: Vec<Diagnostic>, files: Vec<PathBuf>) -> Report {
        let line = |place: Place| {
            (place.file, sources.get(place.file).map_or(0, |source| source.line_and_column(place.start).0))
        };
        let broken: Vec<_> = mistakes.iter().filter(|m| m.kind == MistakeKind::Syntax).map(|m| line(m.place)).collect();
        if mistakes.iter().any(|m| matches!(m.kind, MistakeKind::Syntax | MistakeKind::Unread)) {
            // After a syntax error, the meaning of the rest is a guess.
            let mut lines = Vec::new();
            mistakes.retain(|m| match m.kind {
                MistakeKind::Syntax => {
                    lines.push(line(m.place));
                    lines.iter().filter(|other| **other == line(m.place)).count() == 1
                }
                MistakeKind::Absent => false,
                MistakeKind::Unread => true,
                MistakeKind::Wrong => !broken.contains(&line(m.place)),
            });
        }
        mistakes.sort_by_key(|m| (m.place.file, m.place.start));
        Report::create(Severity::Mistake, sources, mistakes, files)
    }

    /// Returns the warnings of a config that loads; `None` if there are none.
    pub fn from_warnings(sources: Vec<Arc<SourceText>>, mut warnings: Vec<Diagnostic>) -> Option<Report> {
        warnings.sort_by_key(|warning| (warning.place.file, warning.place.start));
        (!warnings.is_empty()).then(|| Report::create(Severity::Warning, sources, warnings, Vec::new()))
    }

    fn create(
        severity: Severity,
        sources: Vec<Arc<SourceText>>,
        mut mistakes: Vec<Diagnostic>,
        files: Vec<PathBuf>,
    ) -> Report {
        let mut masks = vec![String::new(); sources.len()];
        let places: BTreeSet<usize> = mistakes.iter().flat_map(Diagnostic::places).map(|place| place.file).collect();
        for (file, source) in places.into_iter().filter_map(|file| Some((file, sources.get(file)?))) {
            masks[file] = excerpt::mask_secrets(&source.text);
        }
        for mistake in &mut mistakes {
            for place in mistake.places() {
                let Some((source, mask)) = sources.get(place.file).zip(masks.get(place.file)) else { continue };
                for secret in excerpt::list_secrets(&source.text, mask, place.start..place.end) {
                    mistake.texts_mut().for_each(|text| excerpt::hide_secret(text, secret));
                }
            }
        }
        Report { severity, sources, masks, mistakes, files }
    }

    /// Renders the mistakes, without a line that counts them.
    pub fn render_entries(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for mistake in self.mistakes.iter().take(SHOWN_MAX) {
            text.push_str(&renderer.render(&[self.diagnostic_group(mistake)]));
            text.push_str("\n\n");
        }
        text
    }

    /// Renders the report for a terminal or a log.
    pub fn render(&self, color: bool) -> String {
        let mut text = self.render_entries(color);
        let what = match self.severity {
            Severity::Mistake => "error",
            Severity::Warning => "warning",
        };
        match self.mistakes.len() {
            1 => text.push_str(&format!("1 {what} in the configuration")),
            n if n > SHOWN_MAX => {
                text.push_str(&format!("{n} {what}s in the configuration, {SHOWN_MAX} of them shown"))
            }
            n => text.push_str(&format!("{n} {what}s in the configuration")),
        }
        if let Some(mistake) = self.mistakes.iter().find(|mistake| !mistake.option.is_empty()) {
            text.push_str(&format!("; to read about an option: sluicegate help {}", mistake.option));
        }
        text
    }

    /// Returns one line per mistake for a log: `FILE:LINE:COLUMN: message; remedy [CODE]`, at most a hundred. Only
    /// warnings have the code.
    pub fn log_lines(&self) -> impl Iterator<Item = String> + '_ {
        self.mistakes.iter().take(SHOWN_MAX).map(|mistake| {
            let source = self.sources.get(mistake.place.file);
            let place = source.map_or_else(String::new, |source| {
                let (line, column) = source.line_and_column(mistake.place.start);
                format!("{}:{line}:{column}: ", source.name)
            });
            let help = mistake.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
            let code = mistake.warning.map_or_else(String::new, |code| format!(" [{}]", code.label()));
            format!("{place}{}{help}{code}", mistake.message)
        })
    }

    /// Returns `[{code, file, line, column, message, help}]`; line and column are null if there is no text.
    pub fn to_json(&self) -> Value {
        // Errors are sorted by place, so lines are counted from the previous error.
        let (mut file, mut counted, mut line) = (usize::MAX, 0, 1);
        let entry = |mistake: &Diagnostic| {
            let source = self.sources.get(mistake.place.file);
            let position = source.filter(|source| !source.text.is_empty()).map(|source| {
                let at = source.floor_char_boundary(mistake.place.start);
                if file != mistake.place.file || at < counted {
                    (file, counted, line) = (mistake.place.file, 0, 1);
                }
                line += memchr::memchr_iter(b'\n', &source.text.as_bytes()[counted..at]).count();
                counted = at;
                (line, source.column(at))
            });
            json!({
                "code": mistake.code().label(),
                "file": source.map(|source| &source.name),
                "line": position.map(|(line, _)| line),
                "column": position.map(|(_, column)| column),
                "message": mistake.message,
                "help": mistake.help,
            })
        };
        self.mistakes.iter().map(entry).collect()
    }

    /// Returns every file that was read or missing; all are watched until the config is valid again.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    fn diagnostic_group<'a>(&'a self, mistake: &'a Diagnostic) -> Group<'a> {
        let level = match self.severity {
            Severity::Mistake => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(&mistake.message);
        let mut group = Group::with_title(match mistake.warning {
            Some(code) => title.id(code.label()),
            None => title,
        });
        let Some(source) = self.sources.get(mistake.place.file) else { return group };
        if source.text.is_empty() {
            group = group.element(Origin::path(&source.name));
        } else {
            let (near, far): (Vec<_>, Vec<_>) = mistake.related.iter().partition(|(place, _)| mistake.is_near(*place));
            let own = self.cut_snippet(source, mistake.place, &mistake.label, AnnotationKind::Primary, &near);
            group = group.element(own);
            for (place, label) in far {
                if let Some(source) = self.sources.get(place.file) {
                    group = group.element(self.cut_snippet(source, *place, label, AnnotationKind::Context, &[]));
                }
            }
        }
        match &mistake.help {
            Some(help) => group.element(Level::HELP.message(help)),
            None => group,
        }
    }

    /// Cuts out the lines of `place` and its related places, so that the cost does not depend on the size of the file.
    fn cut_snippet<'a>(
        &'a self,
        source: &'a SourceText,
        place: Place,
        label: &'a str,
        kind: AnnotationKind,
        related: &[&'a (Place, String)],
    ) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
        let spans = std::iter::once(source.span_on_line(place))
            .chain(related.iter().map(|(place, _)| source.span_on_line(*place)));
        let (start, end) = spans.fold((usize::MAX, 0), |(start, end), span| (start.min(span.start), end.max(span.end)));
        let first = source.text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let last = source.text[end..].find('\n').map_or(source.text.len(), |newline| end + newline);
        let inside = |place: Place| {
            let span = source.span_on_line(place);
            span.start - first..span.end - first
        };
        // Masks have one byte for each byte of the text.
        let mask = &self.masks[place.file];
        let text = |label: &'a str| Some(label).filter(|label| !label.is_empty());
        Snippet::source(&mask[first..last])
            .line_start(source.line_and_column(first).0)
            .path(&source.name)
            .annotation(kind.span(inside(place)).label(text(label)))
            .annotations(
                related.iter().map(|(place, label)| AnnotationKind::Context.span(inside(*place)).label(text(label))),
            )
    }
}

impl Diagnostic {
    /// Returns every text of the report.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let labels = self.related.iter_mut().map(|(_, label)| label);
        [&mut self.message, &mut self.label].into_iter().chain(&mut self.help).chain(labels)
    }

    /// Returns the place of the mistake and the related ones.
    fn places(&self) -> Vec<Place> {
        std::iter::once(self.place).chain(self.related.iter().map(|(place, _)| *place)).collect()
    }

    /// Returns whether both places fit into one snippet.
    fn is_near(&self, place: Place) -> bool {
        place.file == self.place.file && place.start.abs_diff(self.place.start) < 64 * 1024
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Report {}

impl SourceText {
    /// Returns line and column, from 1; columns count characters.
    pub fn line_and_column(&self, offset: usize) -> (usize, usize) {
        (self.line_at(offset), self.column(self.floor_char_boundary(offset)))
    }

    /// Returns the line of an offset, from 1.
    pub fn line_at(&self, offset: usize) -> usize {
        memchr::memchr_iter(b'\n', &self.text.as_bytes()[..self.floor_char_boundary(offset)]).count() + 1
    }

    /// Returns the column of an offset that is a character boundary.
    fn column(&self, offset: usize) -> usize {
        let before = &self.text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        before[start..].chars().count() + 1
    }

    /// Returns the part of a place on its first line.
    fn span_on_line(&self, place: Place) -> Range<usize> {
        let start = self.floor_char_boundary(place.start);
        let line_end = self.text[start..].find(['\n', '\r']).map_or(self.text.len(), |newline| start + newline);
        start..self.floor_char_boundary(place.end).clamp(start, line_end)
    }

    fn floor_char_boundary(&self, offset: usize) -> usize {
        self.text.floor_char_boundary(offset)
    }
}
