//! Syntax errors of the TOML parser as diagnostics, with the remedy for the usual ones. Called
//! by `tree`.

use toml::de::Error;

use super::report::{Diagnostic, MistakeKind, Place, SourceText};

pub fn diagnostic(source: &SourceText, file: usize, error: &Error) -> Diagnostic {
    let span = error.span().unwrap_or(source.text.len()..source.text.len());
    let place = Place { file, start: span.start, end: span.end };
    let message = error.message();
    let diagnostic = Diagnostic::new(place, format!("not valid TOML: {message}")).kind(MistakeKind::Syntax);
    if message.starts_with("duplicate key") {
        // The parser keeps what both define, so nothing else is in doubt.
        let diagnostic =
            diagnostic.kind(MistakeKind::Wrong).label("defined again here").help("remove or rename one of the two");
        return match earlier(source, span.start) {
            Some((start, end)) => diagnostic.related(Place { file, start, end }, "first defined here"),
            None => diagnostic,
        };
    }
    if message.starts_with("missing comma") {
        return diagnostic.help("put a comma before it, or close the list above with `]`");
    }
    if message.starts_with("invalid basic string") {
        return diagnostic.help("close the string with `\"`; a `\\` in it is written `\\\\`");
    }
    if message.starts_with("unclosed table") {
        return diagnostic.help("close the header with `]`");
    }
    diagnostic.help(remedy(source, span.start))
}

/// The earlier line with the same `[header]`, or the same key under the same header.
fn earlier(source: &SourceText, offset: usize) -> Option<(usize, usize)> {
    let start = source.text.get(..offset)?.rfind('\n').map_or(0, |newline| newline + 1);
    let line = source.text.get(start..)?.lines().next()?.trim();
    let header = line.starts_with('[');
    let key = |line: &str| line.split(if header { '#' } else { '=' }).next().unwrap_or(line).trim().to_owned();
    let wanted = key(line);
    let mut end = start;
    for before in source.text.get(..start)?.split_inclusive('\n').rev() {
        let begin = end - before.len();
        let trimmed = before.trim();
        if key(trimmed) == wanted && (header || before.contains('=')) {
            let indent = before.len() - before.trim_start().len();
            return Some((begin + indent, begin + indent + wanted.len()));
        }
        if !header && trimmed.starts_with('[') {
            return None;
        }
        end = begin;
    }
    None
}

/// What a line in another system's style probably wants to be.
fn remedy(source: &SourceText, offset: usize) -> String {
    let before = source.text.get(..offset).unwrap_or_default();
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = source.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default().trim();
    let key = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if let Some((name, value)) = line.split_once(':').filter(|(name, _)| key(name.trim())) {
        return format!("TOML writes `{} = ...` instead of a colon, with strings in quotes:{value}", name.trim());
    }
    if let Some((name, value)) = line.split_once('=') {
        let (name, value) = (name.trim(), value.trim());
        if value.is_empty() {
            return format!("give `{name}` a value");
        }
        let quoted = value.parse::<f64>().is_err() && !matches!(value, "true" | "false");
        if key(name) && quoted && !value.starts_with(['"', '\'', '[', '{']) && !value.contains('"') {
            return format!("strings need quotes: {name} = \"{value}\"");
        }
    }
    String::new()
}
