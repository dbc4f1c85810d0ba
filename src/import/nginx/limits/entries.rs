//! The entries of a `map`, as patterns of `when`.

use http::HeaderName;
use regex::{Regex, RegexBuilder};

use crate::import::encoding::encode_path;
use crate::import::expressions::{Reading, translate_path_regex, translate_value_regex};
use crate::limiting::source::Source;

/// Maximum number of bytes of a compiled regular expression, the same as in a config.
const REGEX_MAX: usize = 1 << 20;

/// One entry of a `map`.
pub struct MapEntry<'m> {
    /// The pattern of `when`.
    pub pattern: String,
    /// The key of requests that match it.
    pub template: &'m str,
    /// The compiled pattern, which ignores case, of an entry that is a regular expression.
    spellings: Option<Regex>,
    /// The text of any other entry, as it is compared.
    text: String,
}

impl<'m> MapEntry<'m> {
    /// Translates an entry for values of `when`: their group, and their name in it. The error says what is not available.
    pub fn translate(of: (&str, &str), source: &str, template: &'m str) -> Result<MapEntry<'m>, String> {
        let (group, _) = of;
        let has_plus = source.contains(if source.starts_with('~') { "\\+" } else { "+" });
        if matches!(group, "query" | "cookie") && (has_plus || source.contains('%')) {
            return Err(format!(
                "nginx compares `{source}` with the value as it is sent, Sluicegate with the decoded one"
            ));
        }
        let Some(regex) = source.strip_prefix('~') else { return translate_text(of, source, template) };
        let (regex, ignore_case) = regex.strip_prefix('*').map_or((regex, false), |regex| (regex, true));
        let refuse = |why: &str| format!("the regular expression `{regex}` is not available ({why})");
        let (written, ignores) = match group {
            "path" => translate_path_regex(regex, ignore_case, Reading::Exact),
            _ => translate_value_regex(regex, ignore_case),
        }
        .map_err(|why| refuse(&why))?;
        check_values(of, &written, ignores).map_err(|why| refuse(&why))?;
        let spellings = build(&written, true).ok_or_else(|| refuse("it is too large"))?;
        let pattern = format_pattern(&written, ignores);
        Ok(MapEntry { pattern, template, spellings: Some(spellings), text: String::new() })
    }

    /// Returns whether a regular expression matches the empty text.
    pub fn matches_empty(&self) -> bool {
        self.spellings.as_ref().is_some_and(|regex| regex.is_match(""))
    }

    /// Returns whether a value may match both.
    fn overlaps(&self, other: &MapEntry) -> bool {
        match (&self.spellings, &other.spellings) {
            (Some(_), Some(_)) => true,
            (None, None) => self.text.eq_ignore_ascii_case(&other.text),
            (Some(regex), None) => regex.is_match(&other.text),
            (None, Some(regex)) => regex.is_match(&self.text),
        }
    }
}

/// Returns whether a request may match several entries with different keys. Then nginx counts the first one only.
pub fn find_overlap(entries: &[MapEntry]) -> bool {
    let overlap = |a: &MapEntry, b: &MapEntry| a.template != b.template && a.overlaps(b);
    entries.iter().enumerate().any(|(at, a)| entries[at + 1..].iter().any(|b| overlap(a, b)))
}

/// Translates an entry that is a text, whose ASCII letters have no case.
fn translate_text<'m>(of: (&str, &str), source: &str, template: &'m str) -> Result<MapEntry<'m>, String> {
    let (group, _) = of;
    if matches!(source, "hostnames" | "volatile" | "include") {
        return Err(format!("`{source}` of `map` is not available"));
    }
    let plain = source.strip_prefix('\\').unwrap_or(source);
    let entry = |pattern: String, text: String| MapEntry { pattern, template, spellings: None, text };
    if group == "method" {
        return Ok(entry(format!("= {}", source.to_ascii_uppercase()), source.to_owned()));
    }
    // A space in a cookie counts as `+`.
    let text = if group == "cookie" { plain.replace(' ', "+") } else { plain.to_owned() };
    let regex = format!("^{}$", regex::escape(&text));
    let refuse = |why: String| format!("`{source}` is not available ({why})");
    let (written, ignores) = match group {
        "path" => translate_path_regex(&regex, true, Reading::Exact),
        _ => translate_value_regex(&regex, true),
    }
    .map_err(refuse)?;
    check_values(of, &written, ignores).map_err(refuse)?;
    let text = if group == "path" { encode_path(&text) } else { text };
    Ok(entry(format_pattern(&written, ignores), text))
}

fn format_pattern(regex: &str, ignores: bool) -> String {
    format!("{} {regex}", if ignores { "~i" } else { "~" })
}

fn build(regex: &str, ignore_case: bool) -> Option<Regex> {
    RegexBuilder::new(regex).case_insensitive(ignore_case).dot_matches_new_line(true).size_limit(REGEX_MAX).build().ok()
}

/// Checks that values can match all of an expression. A config with one that they cannot match does not load.
fn check_values((group, name): (&str, &str), regex: &str, ignores: bool) -> Result<(), String> {
    let source = match group {
        "method" => Source::Method,
        "host" => Source::Host,
        "path" => Source::Path,
        "cookie" => Source::Cookie(name.to_owned()),
        "header" => Source::Header(HeaderName::from_bytes(name.as_bytes()).map_err(|_| "no header has this name")?),
        _ => return Ok(()),
    };
    source.check_written_expression(regex, ignores).map_err(|fault| fault.what)?;
    match source.needs_repeated_slashes(regex, ignores) {
        true => Err("no request has such a path".to_owned()),
        false => Ok(()),
    }
}
