//! `refuse`: the response to a request that a limit refuses. Called by `routes` and `limits`.

use http::{HeaderValue, StatusCode};

use crate::config::compile::routes::matcher::{TEXT, parse_content_type, parse_status};
use crate::config::hints::find_closest;
use crate::config::reader::Section;
use crate::config::schema;
use crate::config::values::invalid_text;
use crate::limiting::refuse::Refuse;

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Compiles the default for limits without their own `refuse`.
pub fn compile_refuse(section: &Section) -> Refuse {
    let plain = || Refuse { status: StatusCode::TOO_MANY_REQUESTS, body: None, content_type: PROBLEM };
    compile_own_refuse(section).unwrap_or_else(plain)
}

/// Compiles `refuse` of a route or a limit; `None` if it has none.
pub fn compile_own_refuse(section: &Section) -> Option<Refuse> {
    let refuse = section.read_section("refuse", &schema::REFUSE)?;
    let status = parse_status(400..=599, &refuse);
    let body = refuse.parse_string("body", check_template);
    let content_type = parse_content_type(&refuse);
    if let (Some(node), None) = (refuse.node("content_type"), refuse.node("body")) {
        let help = "add a `body`, or leave it out for application/problem+json";
        refuse.report_fault::<()>("content_type", node, "there is no `body` to describe", help);
    }
    refuse.report_unread_keys();
    Some(Refuse {
        status: status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        content_type: content_type.unwrap_or(if body.is_some() { TEXT } else { PROBLEM }),
        body,
    })
}

/// Checks placeholders. A body may contain JSON, so only a lower-case word in braces is a placeholder.
fn check_template(text: &str) -> Result<String, crate::config::values::TextFault> {
    const NAMES: [&str; 3] = ["retry_after", "limit", "route"];
    for part in text.split('{').skip(1) {
        let Some((name, _)) = part.split_once('}') else { continue };
        let is_word = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let help = match find_closest(name, NAMES.into_iter()) {
            Some(known) if known == name => continue,
            Some(known) => format!("did you mean `{{{known}}}`?"),
            None if is_word => {
                let known = NAMES.map(|known| format!("{{{known}}}")).join(", ");
                format!("the placeholders are {known}; for the text itself write `{{ {name} }}`")
            }
            None => continue,
        };
        return invalid_text(format!("unknown placeholder `{{{name}}}`"), help);
    }
    Ok(text.to_owned())
}
