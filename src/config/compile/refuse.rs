//! `refuse`: what a request gets that a limit refuses. Called by `route` and `limit`.

use http::{HeaderValue, StatusCode};

use super::matcher::{TEXT, content_type, status};
use crate::config::hints::closest;
use crate::config::reader::Section;
use crate::config::schema;
use crate::config::values::fault;
use crate::limit::refuse::Refuse;

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// How limits refuse that do not say so themselves.
pub fn refuse(section: &Section) -> Refuse {
    let plain = || Refuse { status: StatusCode::TOO_MANY_REQUESTS, body: None, content_type: PROBLEM };
    own_refuse(section).unwrap_or_else(plain)
}

/// `refuse` of a route or a limit, if it has one.
pub fn own_refuse(section: &Section) -> Option<Refuse> {
    let refuse = section.section("refuse", &schema::REFUSE)?;
    let status = status(400..=599, &refuse);
    let body = refuse.parse("body", template);
    let content_type = content_type(&refuse);
    if let (Some(node), None) = (refuse.node("content_type"), refuse.node("body")) {
        let help = "add a `body`, or leave it out for application/problem+json";
        refuse.fault::<()>("content_type", node, "there is no `body` that it could describe", help);
    }
    refuse.finish();
    Some(Refuse {
        status: status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        content_type: content_type.unwrap_or(if body.is_some() { TEXT } else { PROBLEM }),
        body,
    })
}

/// A body may well be JSON, so only a lower-case word in braces stands for a value.
fn template(text: &str) -> Result<String, crate::config::values::Fault> {
    const NAMES: [&str; 3] = ["retry_after", "limit", "route"];
    for part in text.split('{').skip(1) {
        let Some((name, _)) = part.split_once('}') else { continue };
        let is_word = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let help = match closest(name, NAMES.into_iter()) {
            Some(known) if known == name => continue,
            Some(known) => format!("did you mean `{{{known}}}`?"),
            None if is_word => {
                let known = NAMES.map(|known| format!("{{{known}}}")).join(", ");
                format!("the placeholders are {known}; for the text itself write `{{ {name} }}`")
            }
            None => continue,
        };
        return fault(format!("unknown placeholder `{{{name}}}`"), help);
    }
    Ok(text.to_owned())
}
