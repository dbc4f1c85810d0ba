//! Turns syntax errors of the TOML parser into diagnostics, with remedies for common mistakes, and finds values that
//! are nested too deep for it. Called by `tree`.

use toml::de::Error;

use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place, SourceText};
use crate::config::source::SMALLEST;
use crate::limiting::algorithm::all_params;
use crate::limiting::algorithm::params::ParamKind;

/// Maximum nesting of lists and tables, and maximum number of parts of a key. A config needs a few.
const NESTING_MAX: usize = 64;

/// Returns where values are nested too deep, before a parser spends time on every level.
pub fn find_deep_nesting(source: &SourceText, file: usize) -> Option<Diagnostic> {
    let start = find_deep_place(source.text.as_bytes())?;
    let place = Place { file, start, end: start + 1 };
    let what = format!("lists and tables are nested more than {NESTING_MAX} levels deep, or a key has more parts");
    let mistake = Diagnostic::new(place, what).with_kind(MistakeKind::Syntax);
    Some(mistake.with_help("close the lists and tables before it, or write shorter keys"))
}

/// Returns the place of the first bracket or dot beyond [`NESTING_MAX`], outside of strings and comments.
fn find_deep_place(text: &[u8]) -> Option<usize> {
    let (mut depth, mut dots, mut at) = (0_usize, 0_usize, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b'#' => {
                at += text[at..].iter().position(|byte| *byte == b'\n').unwrap_or(text.len() - at);
                continue;
            }
            quote @ (b'"' | b'\'') => {
                at = skip_string(text, at, *quote);
                continue;
            }
            b'[' | b'{' => (depth, dots) = (depth + 1, 0),
            b']' | b'}' => (depth, dots) = (depth.saturating_sub(1), 0),
            b'\n' | b',' | b'=' => dots = 0,
            b'.' => dots += 1,
            _ => {}
        }
        if depth > NESTING_MAX || dots > NESTING_MAX {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Returns the end of the string that starts at `start`. One that is not closed ends with its line.
fn skip_string(text: &[u8], start: usize, quote: u8) -> usize {
    let delimiter = [quote; 3];
    let is_long = text[start..].starts_with(&delimiter);
    let mut at = start + if is_long { 3 } else { 1 };
    while let Some(byte) = text.get(at) {
        match byte {
            b'\n' if !is_long => return at,
            b'\\' if quote == b'"' && text.get(at + 1) != Some(&b'\n') => at += 2,
            _ if is_long && text[at..].starts_with(&delimiter) => return at + 3,
            byte if !is_long && *byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

pub fn to_diagnostic(source: &SourceText, file: usize, error: &Error) -> Diagnostic {
    let span = error.span().unwrap_or(source.text.len()..source.text.len());
    let place = Place { file, start: span.start, end: span.end };
    let message = error.message();
    let because =
        |message: &str| Diagnostic::new(place, format!("not valid TOML: {message}")).with_kind(MistakeKind::Syntax);
    if message.starts_with("duplicate key") {
        // The parser keeps both definitions, so this mistake hides no others.
        let diagnostic = because(message).with_kind(MistakeKind::Wrong);
        let diagnostic = diagnostic.with_label("defined again here").with_help("remove or rename one of the two");
        return match find_earlier_definition(source, span.start) {
            Some((start, end)) => diagnostic.with_related(Place { file, start, end }, "first defined here"),
            None => diagnostic,
        };
    }
    let line = line_at(source, span.start);
    if let Some((what, help)) = find_lookalike(line) {
        return because(&what).with_help(help);
    }
    if is_foreign_line(line) {
        let help = format!("the config of Sluicegate is TOML; the smallest that works:\n\n{SMALLEST}");
        return because("this looks like the config of another program, such as nginx").with_help(help);
    }
    if message.starts_with("missing escaped value") {
        return because("a `\\` in double quotes starts an escape, and this is none").with_help(escape_remedy(line));
    }
    if let Some((name, value)) = find_bare_word(line) {
        let what = format!("`{value}` is neither a number, nor true or false, nor a text in quotes");
        return because(&what).with_help(quote_remedy(name, value));
    }
    because(message).with_help(match message {
        _ if message.starts_with("missing comma") => {
            "put a comma before it, or close the list above with `]`".to_owned()
        }
        _ if message.starts_with("invalid basic string") => {
            "close the string with `\"`; a `\\` in it is written `\\\\`".to_owned()
        }
        _ if message.starts_with("unclosed table") => "close the header with `]`".to_owned(),
        _ if message.starts_with("unclosed inline table") => "close it with `}`".to_owned(),
        _ => style_remedy(line),
    })
}

/// Returns whether the line is from a config language with `;` and `{`. Such a file has as many mistakes as lines.
pub fn is_foreign_at(source: &SourceText, error: &Error) -> bool {
    error.span().is_some_and(|span| is_foreign_line(line_at(source, span.start)))
}

fn is_foreign_line(line: &str) -> bool {
    let word = line.split([' ', '\t', ';', '{']).next().unwrap_or_default();
    let is_word = !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.*".contains(&b));
    let is_block = line.ends_with('{') || (line.contains('{') && line.ends_with('}'));
    line == "}" || is_word && (line.ends_with(';') || is_block && !line.contains('='))
}

/// Returns the line at `offset`, trimmed.
fn line_at(source: &SourceText, offset: usize) -> &str {
    let before = source.text.get(..offset).unwrap_or_default();
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    source.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default().trim_ascii()
}

/// Returns the earlier line with the same `[header]`, or with the same key under the same header.
fn find_earlier_definition(source: &SourceText, offset: usize) -> Option<(usize, usize)> {
    let start = source.text.get(..offset)?.rfind('\n').map_or(0, |newline| newline + 1);
    let line = source.text.get(start..)?.lines().next()?.trim();
    let header = line.starts_with('[');
    let key = |line: &str| line.split(if header { '#' } else { '=' }).next().unwrap_or(line).trim().to_owned();
    let repeated_key = key(line);
    let mut end = start;
    for before in source.text.get(..start)?.split_inclusive('\n').rev() {
        let begin = end - before.len();
        let statement = before.trim();
        if key(statement) == repeated_key && (header || before.contains('=')) {
            let indent = before.len() - before.trim_start().len();
            return Some((begin + indent, begin + indent + repeated_key.len()));
        }
        if !header && statement.starts_with('[') {
            return None;
        }
        end = begin;
    }
    None
}

/// Finds a character that looks like a quote or a space but is not one, as word processors and web pages insert them.
/// Returns its name and the corrected line.
fn find_lookalike(line: &str) -> Option<(String, String)> {
    let lookalike = find_outside_strings(line)?;
    let correction: String = line.chars().map(ascii_for).collect();
    let (what, help) = match ascii_for(lookalike) {
        ' ' => (format!("U+{:04X} is not the space it looks like", u32::from(lookalike)), "plain spaces"),
        _ => (format!("`{lookalike}` is a typographic quote, which TOML does not know"), "plain quotes"),
    };
    Some((what, format!("write it with {help}: {}", correction.trim())))
}

/// Returns the ASCII character that a lookalike stands for; other characters are returned unchanged.
fn ascii_for(c: char) -> char {
    match c {
        '\u{201c}'..='\u{201f}' | '\u{ab}' | '\u{bb}' | '\u{2033}' | '\u{ff02}' => '"',
        '\u{2018}'..='\u{201b}' | '\u{2032}' | '\u{b4}' | '\u{ff07}' => '\'',
        '\u{a0}'
        | '\u{1680}'
        | '\u{2000}'..='\u{200d}'
        | '\u{202f}'
        | '\u{205f}'
        | '\u{2060}'
        | '\u{3000}'
        | '\u{feff}' => ' ',
        c => c,
    }
}

/// Returns the first lookalike outside of strings, or in a string that is not closed.
fn find_outside_strings(line: &str) -> Option<char> {
    let (mut quote, mut inside, mut escaped) = (None, None, false);
    for c in line.chars() {
        match quote {
            None if ascii_for(c) != c => return Some(c),
            None if c == '#' => return None,
            None => quote = Some(c).filter(|c| matches!(c, '"' | '\'')),
            Some('"') if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(open) if c == open => (quote, inside) = (None, None),
            Some(_) if inside.is_none() && ascii_for(c) != c => inside = Some(c),
            Some(_) => {}
        }
    }
    inside
}

/// Returns name and value of `name = value` with an unquoted word as value, which TOML does not allow.
fn find_bare_word(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let value = value.split('#').next().unwrap_or_default().trim();
    let word = value.starts_with(|c: char| c.is_ascii_alphabetic()) && !value.contains('"');
    (is_key(name) && word && !matches!(value, "true" | "false" | "inf" | "nan")).then_some((name, value))
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// Returns the remedy for an unquoted word.
fn quote_remedy(name: &str, value: &str) -> String {
    let is_number = all_params().any(|param| param.name == name && matches!(param.kind, ParamKind::Integer { .. }));
    let switch = match value {
        "on" | "yes" | "enabled" => Some(true),
        "off" | "no" | "disabled" => Some(false),
        _ => None,
    };
    if let Some(switch) = switch {
        return format!("for `{value}`, write {name} = {switch}; a text needs quotes: {name} = \"{value}\"");
    }
    match is_number {
        true => format!("`{name}` is a number: write it in digits, like {name} = 20"),
        false => format!("a text needs quotes: {name} = \"{value}\"; a number is written in digits"),
    }
}

/// Returns the remedy for a backslash in a double-quoted string.
fn escape_remedy(line: &str) -> String {
    let string = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
    match string.and_then(|(name, value)| Some((name, value.strip_prefix('"')?.strip_suffix('"')?))) {
        Some((name, text)) if is_key(name) && !text.contains(['\'', '"']) => {
            format!("text in single quotes is literal: {name} = '{text}'")
        }
        _ => "put the text in single quotes, where it is literal, or write `\\\\` for a `\\`".to_owned(),
    }
}

/// Returns what a line in the style of another system probably means.
fn style_remedy(line: &str) -> String {
    if let Some((name, value)) = line.split_once(':').filter(|(name, _)| is_key(name.trim())) {
        let (name, value) = (name.trim(), value.trim());
        if value.is_empty() {
            return format!("TOML writes [{name}] as a header line, and KEY = VALUE below it");
        }
        return format!("TOML writes `{name} = ...` instead of a colon, with strings in quotes: {value}");
    }
    if line.starts_with('{') {
        return format!("the config is TOML, not JSON; the smallest that works:\n\n{SMALLEST}");
    }
    if let Some((name, value)) = line.split_once('=') {
        let (name, value) = (name.trim(), value.trim());
        if value.is_empty() {
            return format!("give `{name}` a value");
        }
        let is_text = value.parse::<f64>().is_err() && !matches!(value, "true" | "false");
        if is_key(name) && is_text && !value.starts_with(['"', '\'', '[', '{']) && !value.contains('"') {
            return format!("strings need quotes: {name} = \"{value}\"");
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_bounded_outside_of_strings_and_comments() {
        let most = format!("a = {}{}", "[".repeat(NESTING_MAX), "]".repeat(NESTING_MAX));
        let many = "a = [1, { b = [2.5] }]\n[c.d]\n".repeat(200);
        let brackets = "[".repeat(100);
        let strings =
            format!("a = \"\\\"{brackets}\"\nb = '{brackets}'\nc = \"\"\"\n{brackets}\"\"\"\n# {brackets}\n#\n");
        for text in ["", "#", "a = \"", "a = \"\\", "a = '''", &most, &many, &strings] {
            assert_eq!(find_deep_place(text.as_bytes()), None, "{text}");
        }
        let after = |text: &str| find_deep_place(format!("{text}a = {brackets}").as_bytes());
        for text in ["", "# comment\n", "b = \"text\"\n", "b = \"not closed\n", "b = '''long'''\n"] {
            assert_eq!(after(text), Some(text.len() + 4 + NESTING_MAX), "{text}");
        }
        assert!(find_deep_place(format!("a{} = 1", ".a".repeat(65)).as_bytes()).is_some());
        assert!(find_deep_place("[{".repeat(33).as_bytes()).is_some());
    }
}
