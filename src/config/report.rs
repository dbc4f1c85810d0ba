//! What is wrong with a config: every mistake with its place, the source line, a caret and a
//! remedy, as text for people and as JSON for tools. Filled by every file of this folder.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde_json::{Value, json};

/// A stretch of one of the sources, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: usize,
    pub start: usize,
    pub end: usize,
}

/// One text that was read. Empty when the file could not be read.
#[derive(Debug)]
pub struct SourceText {
    pub name: String,
    pub text: String,
    /// What relative paths in it are relative to.
    pub dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MistakeKind {
    /// A value or name that is wrong whatever else the files say.
    Wrong,
    /// Something is not there. Not reported beside a syntax error or an unreadable file, which
    /// may well hold it.
    Absent,
    /// The text is not TOML.
    Syntax,
    /// A file that the config consists of cannot be read.
    Unread,
}

/// One mistake.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    pub kind: MistakeKind,
    pub place: Place,
    pub message: String,
    label: String,
    help: Option<String>,
    related: Vec<(Place, String)>,
}

impl Diagnostic {
    pub fn new(place: Place, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            kind: MistakeKind::Wrong,
            place,
            message: message.into(),
            label: String::new(),
            help: None,
            related: Vec::new(),
        }
    }

    pub fn kind(mut self, kind: MistakeKind) -> Diagnostic {
        self.kind = kind;
        self
    }

    /// What the caret says.
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = label.into();
        self
    }

    /// What to do about it.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into()).filter(|help| !help.is_empty());
        self
    }

    /// Another place that has to do with it.
    pub fn related(mut self, place: Place, label: impl Into<String>) -> Diagnostic {
        self.related.push((place, label.into()));
        self
    }
}

/// All mistakes of a load, or all that is worth a warning in one that succeeded. Never empty.
#[derive(Debug)]
pub struct Report {
    severity: Severity,
    sources: Vec<Arc<SourceText>>,
    mistakes: Vec<Diagnostic>,
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    Mistake,
    Warning,
}

/// Further mistakes are counted, not shown.
const SHOWN_MAX: usize = 100;

impl Report {
    pub fn new(sources: Vec<Arc<SourceText>>, mut mistakes: Vec<Diagnostic>, files: Vec<PathBuf>) -> Report {
        let line =
            |place: Place| (place.file, sources.get(place.file).map_or(0, |source| source.position(place.start).0));
        let broken: Vec<_> = mistakes.iter().filter(|m| m.kind == MistakeKind::Syntax).map(|m| line(m.place)).collect();
        if mistakes.iter().any(|m| matches!(m.kind, MistakeKind::Syntax | MistakeKind::Unread)) {
            // What a broken line or file seems to mean is a guess.
            let mut told = Vec::new();
            mistakes.retain(|m| match m.kind {
                MistakeKind::Syntax => {
                    told.push(line(m.place));
                    told.iter().filter(|line_told| **line_told == line(m.place)).count() == 1
                }
                MistakeKind::Absent => false,
                MistakeKind::Unread => true,
                MistakeKind::Wrong => !broken.contains(&line(m.place)),
            });
        }
        mistakes.sort_by_key(|m| (m.place.file, m.place.start));
        Report { severity: Severity::Mistake, sources, mistakes, files }
    }

    /// What may not be meant so, of a config that loads; `None` if there is nothing.
    pub fn warnings(sources: Vec<Arc<SourceText>>, mut warnings: Vec<Diagnostic>) -> Option<Report> {
        warnings.sort_by_key(|warning| (warning.place.file, warning.place.start));
        let report = Report { severity: Severity::Warning, sources, mistakes: warnings, files: Vec::new() };
        (!report.mistakes.is_empty()).then_some(report)
    }

    /// The text for a terminal or a log.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for mistake in self.mistakes.iter().take(SHOWN_MAX) {
            text.push_str(&renderer.render(&[self.group(mistake)]));
            text.push_str("\n\n");
        }
        let what = match self.severity {
            Severity::Mistake => "mistake",
            Severity::Warning => "warning",
        };
        match self.mistakes.len() {
            1 => text.push_str(&format!("1 {what} in the configuration")),
            n if n > SHOWN_MAX => {
                text.push_str(&format!("{n} {what}s in the configuration, {SHOWN_MAX} of them shown"))
            }
            n => text.push_str(&format!("{n} {what}s in the configuration")),
        }
        text
    }

    /// Each on one line, for a log: `FILE:LINE:COLUMN: message; remedy`. Those beyond a hundred are left out.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.mistakes.iter().take(SHOWN_MAX).map(|mistake| {
            let source = self.sources.get(mistake.place.file);
            let place = source.map_or_else(String::new, |source| {
                let (line, column) = source.position(mistake.place.start);
                format!("{}:{line}:{column}: ", source.name)
            });
            let help = mistake.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
            format!("{place}{}{help}", mistake.message)
        })
    }

    /// `[{file, line, column, message, help}]`; line and column are null when there is no text.
    pub fn json(&self) -> Value {
        let entry = |mistake: &Diagnostic| {
            let source = self.sources.get(mistake.place.file);
            let position = source.filter(|s| !s.text.is_empty()).map(|s| s.position(mistake.place.start));
            json!({
                "file": source.map(|source| &source.name),
                "line": position.map(|(line, _)| line),
                "column": position.map(|(_, column)| column),
                "message": mistake.message,
                "help": mistake.help,
            })
        };
        self.mistakes.iter().map(entry).collect()
    }

    /// Every file that was read or looked for, to be watched until one of them is mended.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    fn group<'a>(&'a self, mistake: &'a Diagnostic) -> Group<'a> {
        let level = match self.severity {
            Severity::Mistake => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(&mistake.message));
        let Some(source) = self.sources.get(mistake.place.file) else { return group };
        if source.text.is_empty() {
            group = group.element(Origin::path(&source.name));
        } else {
            let (near, far): (Vec<_>, Vec<_>) = mistake.related.iter().partition(|(place, _)| mistake.is_near(*place));
            group = group.element(source.snippet(mistake.place, &mistake.label, AnnotationKind::Primary, &near));
            for (place, label) in far {
                if let Some(source) = self.sources.get(place.file) {
                    group = group.element(source.snippet(*place, label, AnnotationKind::Context, &[]));
                }
            }
        }
        match &mistake.help {
            Some(help) => group.element(Level::HELP.message(help)),
            None => group,
        }
    }
}

impl Diagnostic {
    /// Everything that it says.
    pub fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        let related = self.related.iter_mut().map(|(_, label)| label);
        [&mut self.message, &mut self.label].into_iter().chain(&mut self.help).chain(related)
    }

    /// Near enough for one snippet with both places.
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
    /// Line and column, from 1, columns in characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let offset = self.floor(offset);
        let before = &self.text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.bytes().filter(|b| *b == b'\n').count() + 1, before[start..].chars().count() + 1)
    }

    /// The whole lines of `place` and of the places related to it, so that a large file costs no
    /// more than a small one.
    fn snippet<'a>(
        &'a self,
        place: Place,
        label: &'a str,
        kind: AnnotationKind,
        related: &[&'a (Place, String)],
    ) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
        let spans = std::iter::once(self.span(place)).chain(related.iter().map(|(place, _)| self.span(*place)));
        let (start, end) = spans.fold((usize::MAX, 0), |(start, end), span| (start.min(span.start), end.max(span.end)));
        let first = self.text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let last = self.text[end..].find('\n').map_or(self.text.len(), |newline| end + newline);
        let inside = |place: Place| {
            let span = self.span(place);
            span.start - first..span.end - first
        };
        let text = |label: &'a str| Some(label).filter(|label| !label.is_empty());
        Snippet::source(masked(&self.text[first..last]))
            .line_start(self.position(first).0)
            .path(&self.name)
            .annotation(kind.span(inside(place)).label(text(label)))
            .annotations(
                related.iter().map(|(place, label)| AnnotationKind::Context.span(inside(*place)).label(text(label))),
            )
    }

    /// The part of a place on its first line.
    fn span(&self, place: Place) -> Range<usize> {
        let start = self.floor(place.start);
        let line_end = self.text[start..].find(['\n', '\r']).map_or(self.text.len(), |newline| start + newline);
        start..self.floor(place.end).clamp(start, line_end)
    }

    fn floor(&self, offset: usize) -> usize {
        self.text.floor_char_boundary(offset)
    }
}

/// `text` with the passwords in its URLs starred out, each byte by one.
fn masked(text: &str) -> String {
    const END: [char; 5] = ['"', '\'', ' ', '\t', '\n'];
    let mut bytes = text.as_bytes().to_vec();
    let until = |start: usize, ends: &[char]| text[start..].find(ends).map_or(text.len(), |end| start + end);
    for (at, scheme) in text.match_indices("://") {
        let url = at + scheme.len();
        let login = text[url..until(url, &END)].rfind('@').map_or(url, |end| url + end);
        if let Some(colon) = text[url..login].find(':') {
            bytes[url + colon + 1..login].fill(b'*');
        }
    }
    for (at, word) in text.match_indices("password=").chain(text.match_indices("pass=")) {
        let start = at + word.len();
        bytes[start..until(start, &[END.as_slice(), &['&']].concat())].fill(b'*');
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
