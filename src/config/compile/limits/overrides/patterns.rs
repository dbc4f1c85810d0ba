//! Warns of keys of overrides that look like patterns: overrides compare whole values.

use std::path::Path;

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::pattern_look::PatternLook;
use crate::config::source::SourceTexts;
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::overrides::row_file::written_rows;
use crate::limiting::overrides::table::{OverrideValue, parse_field};
use crate::limiting::source::Source;

/// Maximum number of lines that a warning lists.
const LINES_SHOWN: usize = 10;

/// Returns what kind of pattern the value of an override looks like. Addresses may be networks of the size of the key.
pub fn find_look(part: &KeyPart, text: &str) -> Option<PatternLook> {
    let is_address = part.sources().iter().any(|source| matches!(source, Source::Ip(_)));
    PatternLook::of(text).filter(|look| *look != PatternLook::Network || !is_address)
}

/// Warns of rows of a file whose keys look like patterns.
pub fn warn_of_patterns(sources: &SourceTexts, key: &Key, place: Place, (path, text): (&Path, &str)) {
    let look_of = |field: &str| {
        key.0.iter().zip(parse_field(field.as_bytes())).find_map(|(part, value)| match value {
            OverrideValue::Bytes(bytes) => find_look(part, str::from_utf8(&bytes).ok()?),
            OverrideValue::Any | OverrideValue::Hash(_) => None,
        })
    };
    let looks = written_rows(text).filter_map(|(line, field, _)| Some((line, look_of(field)?)));
    let mut rows: Vec<String> =
        looks.take(LINES_SHOWN + 1).map(|(line, look)| format!("line {line} ({})", look.noun())).collect();
    if rows.is_empty() {
        return;
    }
    if rows.len() > LINES_SHOWN {
        rows[LINES_SHOWN] = "and more".to_owned();
    }
    let what =
        format!("keys in `{}` look like patterns, which overrides do not have: {}", path.display(), rows.join(", "));
    let help = "write whole values; `*` alone is any value, and limits can have patterns in `when`";
    sources.add_warning(DiagnosticCode::WildcardName, Diagnostic::new(place, what).with_help(help));
}
