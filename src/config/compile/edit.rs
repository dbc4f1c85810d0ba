//! Compiles the header names and values that routes match, set and remove. Called by `routes` and `matcher`.

use http::{HeaderName, HeaderValue};

use crate::config::compile::stated_value::{StatedValue, parse_response_value, parse_stated_value};
use crate::config::reader::{At, Section};
use crate::config::schema::route;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Table, Value};
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
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

/// Compiles `request_headers`. Values may have placeholders.
pub fn compile_request_edit(section: &Section) -> Option<HeaderEdit> {
    if section.node(&route::REQUEST_HEADERS).is_none() {
        return Some(HeaderEdit::default());
    }
    let edit = section.read_section(&route::REQUEST_HEADERS)?;
    let values = read_editable_pairs(&edit, &route::request_headers::SET, parse_stated_value);
    let remove = read_removed(&edit);
    edit.report_unread_keys();
    let (mut set, mut stated) = (Vec::new(), Vec::new());
    for (name, value) in values? {
        match value {
            StatedValue::Fixed(value) => set.push((name, value)),
            StatedValue::Template(template) => stated.push((name, template)),
        }
    }
    combine_edit(section, &route::REQUEST_HEADERS, HeaderEdit { remove: Vec::new(), set, stated }, remove?)
}

/// Compiles `response_headers`.
pub fn compile_response_edit(section: &Section) -> Option<ResponseEdit> {
    if section.node(&route::RESPONSE_HEADERS).is_none() {
        return Some(ResponseEdit::default());
    }
    let edit = section.read_section(&route::RESPONSE_HEADERS)?;
    let set = read_editable_pairs(&edit, &route::response_headers::SET, parse_response_value);
    let default = read_editable_pairs(&edit, &route::response_headers::DEFAULT, parse_response_value);
    let add = read_editable_lines(&edit, &route::response_headers::ADD);
    let add_on_success = read_editable_lines(&edit, &route::response_headers::ADD_ON_SUCCESS);
    let remove = read_removed(&edit);
    let on_refusals = edit.get(&route::response_headers::ON);
    edit.report_unread_keys();
    let set = HeaderEdit { set: set?, ..HeaderEdit::default() };
    let edit = combine_edit(section, &route::RESPONSE_HEADERS, set, remove?)?;
    Some(ResponseEdit { edit, default: default?, add: add?, add_on_success: add_on_success?, on_refusals })
}

/// Reads the names of `remove`.
fn read_removed(edit: &Section) -> Option<Vec<At<HeaderName>>> {
    match edit.node(&route::response_headers::REMOVE) {
        Some(_) => edit.read_strings(&route::response_headers::REMOVE, check_editable),
        None => Some(Vec::new()),
    }
}

/// Adds `remove` to the headers that are set, which must be different ones.
fn combine_edit(
    section: &Section,
    option: &ConfigOption,
    set: HeaderEdit,
    remove: Vec<At<HeaderName>>,
) -> Option<HeaderEdit> {
    if let Some(name) = remove.iter().find(|name| set.edits(&name.value)) {
        let what = format!("`{}` is both set and removed", name.value);
        let help = "`set` replaces what was there; leave it out of `remove`";
        return section.report_fault_at(option.name, name.place, &what, help);
    }
    Some(HeaderEdit { remove: remove.into_iter().map(|at| at.value).collect(), ..set })
}

/// Reads a table of headers that a route or a health check may set.
pub fn read_editable_pairs<T>(
    edit: &Section,
    option: &ConfigOption,
    parse: impl Fn(&str) -> Result<T, TextFault>,
) -> Option<Vec<(HeaderName, T)>> {
    if edit.node(option).is_none() {
        return Some(Vec::new());
    }
    let table = edit.read_table(option)?;
    let pairs = read_pairs(edit, option, table, parse);
    report_uneditable(edit, option, table);
    pairs
}

/// Reads a table of headers that a route may edit, each with a value or a list of values.
fn read_editable_lines(edit: &Section, option: &ConfigOption) -> Option<Vec<(HeaderName, HeaderValue)>> {
    if edit.node(option).is_none() {
        return Some(Vec::new());
    }
    let table = edit.read_table(option)?;
    let mut lines = Vec::new();
    let mut ok = true;
    for entry in &table.entries {
        let name = match values::parse_header_name(&entry.key) {
            Ok(name) => Some(name),
            Err(TextFault { what, help }) => edit.report_fault_at(option.name, entry.place, &what, &help),
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
            match (&name, edit.parse_node(&entry.key, item, parse_response_value)) {
                (Some(name), Some(value)) => lines.push((name.clone(), value)),
                _ => ok = false,
            }
        }
    }
    report_uneditable(edit, option, table);
    ok.then_some(lines)
}

/// Reports the headers of a table that only the gateway sets.
fn report_uneditable(edit: &Section, option: &ConfigOption, table: &Table) {
    for entry in &table.entries {
        let Err(TextFault { what, help }) = check_editable(&entry.key) else { continue };
        // An invalid name has been reported already.
        if values::parse_header_name(&entry.key).is_ok() {
            edit.report_fault_at::<()>(option.name, entry.place, &what, &help);
        }
    }
}

/// Reads a table of header names and values.
pub fn read_header_pairs(
    section: &Section,
    option: &ConfigOption,
    table: &Table,
) -> Option<Vec<(HeaderName, HeaderValue)>> {
    read_pairs(section, option, table, values::parse_header_value)
}

/// Reads a table of header names, and values that `parse` reads.
pub fn read_pairs<T>(
    section: &Section,
    option: &ConfigOption,
    table: &Table,
    parse: impl Fn(&str) -> Result<T, TextFault>,
) -> Option<Vec<(HeaderName, T)>> {
    let mut pairs: Vec<(HeaderName, T)> = Vec::new();
    let mut ok = true;
    for entry in &table.entries {
        let name = match values::parse_header_name(&entry.key) {
            Ok(name) => Some(name),
            Err(TextFault { what, help }) => section.report_fault_at(option.name, entry.place, &what, &help),
        };
        let value = section.parse_node(&entry.key, &entry.node, &parse);
        match (name, value) {
            (Some(name), _) if pairs.iter().any(|(known, _)| *known == name) => {
                section.report_fault_at::<()>(
                    option.name,
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
            "a route sends another one with `rewrite = { host = \"…\" }` or `{ upstream_host = true }`, a health check with `host`",
        ),
        other if UNTOUCHABLE.contains(&other) => invalid_text(
            format!("`{other}` cannot be edited"),
            "it describes the connection or the framing, which the gateway sets itself",
        ),
        _ => Ok(name),
    }
}
