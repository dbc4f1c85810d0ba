//! Header names and values in routes: matched, set and removed. Called by `routes` and `matcher`.

use http::{HeaderName, HeaderValue};

use crate::config::reader::Section;
use crate::config::tree::Table;
use crate::config::values::{TextFault, invalid_text};
use crate::config::{schema, values};
use crate::route::HeaderEdit;

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

/// Compiles `request_headers` or `response_headers`.
pub fn compile_header_edit(section: &Section, key: &'static str) -> Option<HeaderEdit> {
    if section.node(key).is_none() {
        return Some(HeaderEdit::default());
    }
    let edit = section.read_section(key, &schema::HEADER_EDIT)?;
    let set = match edit.read_table("set") {
        Some(table) => {
            let pairs = read_header_pairs(&edit, "set", table);
            for entry in &table.entries {
                let Err(TextFault { what, help }) = check_editable(&entry.key) else { continue };
                // An invalid name has been reported already.
                if values::parse_header_name(&entry.key).is_ok() {
                    edit.report_fault_at::<()>("set", entry.place, &what, &help);
                }
            }
            pairs
        }
        None => Some(Vec::new()),
    };
    let remove = match edit.node("remove") {
        Some(_) => edit.read_strings("remove", check_editable),
        None => Some(Vec::new()),
    };
    edit.report_unread_keys();
    let (set, remove) = (set?, remove?);
    for name in &remove {
        if set.iter().any(|(set, _)| *set == name.value) {
            let what = format!("`{}` is both set and removed", name.value);
            return section.report_fault_at(
                key,
                name.place,
                &what,
                "`set` replaces what was there; leave it out of `remove`",
            );
        }
    }
    Some(HeaderEdit { remove: remove.into_iter().map(|at| at.value).collect(), set })
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
