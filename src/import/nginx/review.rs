//! Comments on the directives of a block that the import leaves out.

use crate::import::model::ImportedConfig;
use crate::import::nginx::directives::find_row;
use crate::import::syntax::Directive;
use crate::import::verdict::Translation;

/// Adds comments on the directives of a block that behave differently or are unknown. `context`: the letters of the block
/// in the table. Returns the numbers of the comments. `Scope::find_closing` treats directives that protect.
pub fn review_block(block: &[Directive], context: &str, out: &mut ImportedConfig) -> Vec<usize> {
    let mut numbers = Vec::new();
    for directive in block {
        let why = match find_row(&directive.name) {
            None => "the import does not know this directive, so it is left out".to_owned(),
            Some(row) if !row.is_allowed_in(context) => {
                "nginx does not accept this directive here, so it is left out".to_owned()
            }
            Some(row) if row.verdict == Translation::Differs && row.has_effect(directive) => {
                format!("left out: {}", row.note)
            }
            Some(_) => continue,
        };
        numbers.push(out.remarks.add(directive, &why));
    }
    numbers
}
