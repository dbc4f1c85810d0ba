//! Comments that allow a warning: `# sluicegate: allow SG0301`, on the line of the warning or the line above.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place, SourceText};

const MARK: &str = "# sluicegate: allow ";

/// A code in such a comment.
struct Allowance {
    place: Place,
    code: Option<DiagnosticCode>,
    is_used: bool,
}

/// Removes warnings that comments allow, and adds a warning for each comment that has no effect.
pub fn apply_allowances(texts: &[Arc<SourceText>], warnings: Vec<Diagnostic>) -> Vec<Diagnostic> {
    // By file and the lines they apply to.
    let mut allowances: Vec<Allowance> = Vec::new();
    let mut by_line: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
    for (file, source) in texts.iter().enumerate() {
        for (line, text, start) in lines_with_mark(&source.text) {
            let is_alone = text.trim_start().starts_with(MARK);
            let at = text.find(MARK).map_or(0, |at| at + MARK.len());
            let mut offset = start + at;
            for word in text[at..].split([' ', ',']) {
                if !word.is_empty() {
                    by_line.entry((file, line + usize::from(is_alone))).or_default().push(allowances.len());
                    let place = Place { file, start: offset, end: offset + word.len() };
                    let code = DiagnosticCode::find(word).filter(|code| code.can_be_allowed());
                    allowances.push(Allowance { place, code, is_used: false });
                }
                offset += word.len() + 1;
            }
        }
    }
    if allowances.is_empty() {
        return warnings;
    }
    let mut rest = Vec::new();
    for warning in warnings {
        let line = texts.get(warning.place.file).map_or(0, |source| source.line_and_column(warning.place.start).0);
        let here = by_line.get(&(warning.place.file, line)).into_iter().flatten();
        let matching: Vec<usize> = here.copied().filter(|at| allowances[*at].code == Some(warning.code())).collect();
        if matching.is_empty() {
            rest.push(warning);
        }
        matching.into_iter().for_each(|at| allowances[at].is_used = true);
    }
    rest.extend(allowances.iter().filter(|allowance| !allowance.is_used).map(report_allowance));
    rest
}

/// Returns the lines with such a comment: number from 1, text and offset.
fn lines_with_mark(text: &str) -> impl Iterator<Item = (usize, &str, usize)> {
    let mut start = 0;
    let lines = text.split_inclusive('\n').enumerate().map(move |(index, line)| {
        let offset = start;
        start += line.len();
        (index + 1, line.trim_end(), offset)
    });
    lines.filter(|(_, line, _)| line.contains(MARK))
}

fn report_allowance(allowance: &Allowance) -> Diagnostic {
    let warning = match allowance.code {
        Some(code) => Diagnostic::new(allowance.place, format!("there is no warning {} to allow here", code.label()))
            .with_help("remove the comment, or move it to the line that the warning names")
            .with_code(DiagnosticCode::UnusedAllowance),
        None => Diagnostic::new(allowance.place, "this is not the code of a warning")
            .with_help("codes look like SG0301 and are separated by commas; errors cannot be allowed")
            .with_code(DiagnosticCode::UnknownAllowance),
    };
    warning.with_label("not used")
}
