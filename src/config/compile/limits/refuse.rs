//! `refuse`: the response to a request that a limit refuses. Called by `routes` and `limits`.

use http::header::CONTENT_TYPE;

use crate::config::closest::find_closest;
use crate::config::compile::edit::read_editable_pairs;
use crate::config::compile::matcher::{TEXT, parse_content_type, parse_status};
use crate::config::reader::Section;
use crate::config::schema::{refuse, route};
use crate::config::values::{TextFault, invalid_text, parse_header_value};
use crate::limiting::limit::refuse::{Refuse, RefusePlaceholder};
use crate::template::TextTemplate;

/// Compiles the default for limits without their own `refuse`.
pub fn compile_refuse(section: &Section) -> Refuse {
    compile_own_refuse(section).unwrap_or_default()
}

/// Compiles `refuse` of a route or a limit; `None` if it has none.
pub fn compile_own_refuse(section: &Section) -> Option<Refuse> {
    let refuse = section.read_section(&route::REFUSE)?;
    let status = parse_status(&refuse);
    let body = refuse.parse_string(&refuse::BODY, parse_body);
    let content_type = parse_content_type(&refuse);
    if let (Some(node), None) = (refuse.node(&refuse::CONTENT_TYPE), refuse.node(&refuse::BODY)) {
        let help = "add a `body`, or leave it out for application/problem+json";
        refuse.report_fault::<()>(refuse::CONTENT_TYPE.name, node, "there is no `body` to describe", help);
    }
    let dialect = refuse.get(&refuse::DIALECT);
    if let (Some(node), Some(_)) = (refuse.node(&refuse::DIALECT), refuse.node(&refuse::BODY)) {
        let help = "keep one: `dialect` writes the body that clients of this API expect";
        refuse.report_fault::<()>(refuse::DIALECT.name, node, "cannot be combined with `body`", help);
    }
    let headers = read_editable_pairs(&refuse, &refuse::HEADERS, parse_header);
    let own_option = headers.iter().flatten().find(|(name, _)| *name == CONTENT_TYPE);
    if let (Some(node), Some(_)) = (refuse.node(&refuse::HEADERS), own_option) {
        let help = "write `content_type`, next to `body`";
        refuse.report_fault::<()>(refuse::HEADERS.name, node, "`content-type` has an option of its own", help);
    }
    refuse.report_unread_keys();
    let default = Refuse::default();
    Some(Refuse {
        status: status.unwrap_or(default.status),
        content_type: content_type.unwrap_or(if body.is_some() { TEXT } else { default.content_type }),
        body,
        headers: headers.unwrap_or_default(),
        dialect,
    })
}

/// Parses the value of a header. The values of placeholders have no line breaks.
fn parse_header(text: &str) -> Result<TextTemplate<RefusePlaceholder>, TextFault> {
    parse_header_value(text)?;
    parse_body(text)
}

/// Parses a body. It may contain JSON, so only a lower-case word in braces is a placeholder.
fn parse_body(text: &str) -> Result<TextTemplate<RefusePlaceholder>, TextFault> {
    const NAMES: [(&str, RefusePlaceholder); 3] = [
        ("retry_after", RefusePlaceholder::RetryAfter),
        ("limit", RefusePlaceholder::Limit),
        ("route", RefusePlaceholder::Route),
    ];
    TextTemplate::parse(text, |name, _| match NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, placeholder)) => Ok(Some(*placeholder)),
        None => report_unknown_placeholder(name, &NAMES.map(|(known, _)| known)).map(|()| None),
    })
}

/// Reports a lower-case word in braces, or a misspelled placeholder, that is not in `known`. With spaces around it, a
/// word is literal.
pub fn report_unknown_placeholder(name: &str, known: &[&str]) -> Result<(), TextFault> {
    if name.starts_with(' ') && name.ends_with(' ') {
        return Ok(());
    }
    let is_word = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let help = match find_closest(name, known.iter().copied()) {
        Some(known) => format!("did you mean `{{{known}}}`?"),
        None if is_word => {
            let names: Vec<String> = known.iter().map(|known| format!("{{{known}}}")).collect();
            format!("the placeholders are {}; for the text itself write `{{ {name} }}`", names.join(", "))
        }
        None => return Ok(()),
    };
    invalid_text(format!("unknown placeholder `{{{name}}}`"), help)
}
