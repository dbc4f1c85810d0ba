//! Header names and values in routes: matched, set and removed. Called by `routes` and `matcher`.

use http::{HeaderName, HeaderValue};

use crate::config::reader::{At, Section};
use crate::config::tree::{Table, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::config::{schema, values};
use crate::route::{HeaderEdit, ResponseEdit};

/// Headers that frame a message or belong to one hop; only the gateway sets them.
const UNTOUCHABLE: &[&str] = &[
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Compiles `request_headers`.
pub fn compile_request_edit(section: &Section) -> Option<HeaderEdit> {
    const KEY: &str = "request_headers";
    if section.node(KEY).is_none() {
        return Some(HeaderEdit::default());
    }
    let edit = section.read_section(KEY, &schema::route::request_headers::TABLE)?;
    let set = read_editable_pairs(&edit, "set");
    let remove = read_removed(&edit);
    edit.report_unread_keys();
    combine_edit(section, KEY, set?, remove?)
}

/// Compiles `response_headers`.
pub fn compile_response_edit(section: &Section) -> Option<ResponseEdit> {
    const KEY: &str = "response_headers";
    if section.node(KEY).is_none() {
        return Some(ResponseEdit::default());
    }
    let edit = section.read_section(KEY, &schema::route::response_headers::TABLE)?;
    let set = read_editable_pairs(&edit, "set");
    let default = read_editable_pairs(&edit, "default");
    let add = read_editable_lines(&edit, "add");
    let add_on_success = read_editable_lines(&edit, "add_on_success");
    let remove = read_removed(&edit);
    let on_refusals = edit.read_choice("on", &[("upstream", false), ("all", true)]).unwrap_or(false);
    edit.report_unread_keys();
    let edit = combine_edit(section, KEY, set?, remove?)?;
    Some(ResponseEdit { edit, default: default?, add: add?, add_on_success: add_on_success?, on_refusals })
}

/// Reads the names of `remove`.
fn read_removed(edit: &Section) -> Option<Vec<At<HeaderName>>> {
    match edit.node("remove") {
        Some(_) => edit.read_strings("remove", check_editable),
        None => Some(Vec::new()),
    }
}

/// Combines `set` and `remove`, which must have different headers.
fn combine_edit(
    section: &Section,
    key: &'static str,
    set: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<At<HeaderName>>,
) -> Option<HeaderEdit> {
    if let Some(name) = remove.iter().find(|name| set.iter().any(|(set, _)| *set == name.value)) {
        let what = format!("`{}` is both set and removed", name.value);
        let help = "`set` replaces what was there; leave it out of `remove`";
        return section.report_fault_at(key, name.place, &what, help);
    }
    Some(HeaderEdit { remove: remove.into_iter().map(|at| at.value).collect(), set })
}

/// Reads a table of headers that a route may edit.
fn read_editable_pairs(edit: &Section, key: &'static str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    if edit.node(key).is_none() {
        return Some(Vec::new());
    }
    let table = edit.read_table(key)?;
    let pairs = read_header_pairs(edit, key, table);
    report_uneditable(edit, key, table);
    pairs
}

/// Reads a table of headers that a route may edit, each with a value or a list of values.
fn read_editable_lines(edit: &Section, key: &'static str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    if edit.node(key).is_none() {
        return Some(Vec::new());
    }
    let table = edit.read_table(key)?;
    let mut lines = Vec::new();
    let mut ok = true;
    for entry in &table.entries {
        let name = match values::parse_header_name(&entry.key) {
            Ok(name) => Some(name),
            Err(TextFault { what, help }) => edit.report_fault_at(key, entry.place, &what, &help),
        };
        let items = match &entry.node.value {
            Value::Array(items) if !items.is_empty() => items.as_slice(),
            Value::String(_) => std::slice::from_ref(&entry.node),
            _ => {
                edit.report_wrong_type::<()>(&entry.key, "a string or a list of strings", &entry.node);
                ok = false;
                continue;
            }
        };
        for item in items {
            match (&name, edit.parse_node(&entry.key, item, values::parse_header_value)) {
                (Some(name), Some(value)) => lines.push((name.clone(), value)),
                _ => ok = false,
            }
        }
    }
    report_uneditable(edit, key, table);
    ok.then_some(lines)
}

/// Reports the headers of a table that only the gateway sets.
fn report_uneditable(edit: &Section, key: &'static str, table: &Table) {
    for entry in &table.entries {
        let Err(TextFault { what, help }) = check_editable(&entry.key) else { continue };
        // An invalid name has been reported already.
        if values::parse_header_name(&entry.key).is_ok() {
            edit.report_fault_at::<()>(key, entry.place, &what, &help);
        }
    }
}

/// Reads a table of header names and values.
pub fn read_header_pairs(section: &Section, key: &str, table: &Table) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut pairs: Vec<(HeaderName, HeaderValue)> = Vec::new();
    let mut ok = true;
    for entry in &table.entries {
        let name = match values::parse_header_name(&entry.key) {
            Ok(name) => Some(name),
            Err(TextFault { what, help }) => section.report_fault_at(key, entry.place, &what, &help),
        };
        let value = section.parse_node(&entry.key, &entry.node, values::parse_header_value);
        match (name, value) {
            (Some(name), _) if pairs.iter().any(|(known, _)| *known == name) => {
                section.report_fault_at::<()>(
                    key,
                    entry.place,
                    &format!("`{name}` occurs twice"),
                    "header names are the same in any case",
                );
                ok = false;
            }
            (Some(name), Some(value)) => pairs.push((name, value)),
            _ => ok = false,
        }
    }
    ok.then_some(pairs)
}

/// Parses the name of a header that may be set or removed.
pub fn check_editable(text: &str) -> Result<HeaderName, TextFault> {
    let name = values::parse_header_name(text)?;
    match name.as_str() {
        "host" => invalid_text(
            "`host` cannot be edited",
            "use rewrite = { upstream_host = true } to send the server's own name",
        ),
        other if UNTOUCHABLE.contains(&other) => invalid_text(
            format!("`{other}` cannot be edited"),
            "it describes the connection or the framing, which the gateway sets itself",
        ),
        _ => Ok(name),
    }
}
