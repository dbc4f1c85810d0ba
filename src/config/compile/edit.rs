//! Header names and values in routes: what is matched, set and removed. Called by `route` and
//! `matcher`.

use http::{HeaderName, HeaderValue};

use crate::config::reader::Section;
use crate::config::schema;
use crate::config::tree::Table;
use crate::config::values::{self, Fault, fault};
use crate::route::HeaderEdit;

/// The framing of a message and the hop it makes: the gateway's own business.
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

/// `request_headers`, `response_headers`.
pub fn edit(section: &Section, key: &'static str) -> Option<HeaderEdit> {
    if section.node(key).is_none() {
        return Some(HeaderEdit::default());
    }
    let edit = section.section(key, &schema::HEADER_EDIT)?;
    let set = match edit.table("set") {
        Some(table) => {
            let pairs = pairs(&edit, "set", table);
            for entry in &table.entries {
                let Err(Fault { what, help }) = touchable(&entry.key) else { continue };
                // What is no name at all is reported already.
                if values::header_name(&entry.key).is_ok() {
                    edit.fault_at::<()>("set", entry.place, &what, &help);
                }
            }
            pairs
        }
        None => Some(Vec::new()),
    };
    let remove = match edit.node("remove") {
        Some(_) => edit.strings("remove", touchable),
        None => Some(Vec::new()),
    };
    edit.finish();
    let (set, remove) = (set?, remove?);
    for name in &remove {
        if set.iter().any(|(set, _)| *set == name.value) {
            let what = format!("`{}` is both set and removed", name.value);
            return section.fault_at(key, name.place, &what, "`set` replaces what was there; leave it out of `remove`");
        }
    }
    Some(HeaderEdit { remove: remove.into_iter().map(|at| at.value).collect(), set })
}

/// A table of header names and values.
pub fn pairs(section: &Section, key: &str, table: &Table) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut pairs: Vec<(HeaderName, HeaderValue)> = Vec::new();
    let mut ok = true;
    for entry in &table.entries {
        let name = match values::header_name(&entry.key) {
            Ok(name) => Some(name),
            Err(Fault { what, help }) => section.fault_at(key, entry.place, &what, &help),
        };
        let value = section.parse_node(&entry.key, &entry.node, values::header_value);
        match (name, value) {
            (Some(name), _) if pairs.iter().any(|(known, _)| *known == name) => {
                section.fault_at::<()>(
                    key,
                    entry.place,
                    &format!("`{name}` stands there twice"),
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

fn touchable(text: &str) -> Result<HeaderName, Fault> {
    let name = values::header_name(text)?;
    match name.as_str() {
        "host" => {
            fault("`host` cannot be edited", "use rewrite = { upstream_host = true } to send the server's own name")
        }
        other if UNTOUCHABLE.contains(&other) => fault(
            format!("`{other}` cannot be edited"),
            "it belongs to the connection or the framing, which the gateway writes anew",
        ),
        _ => Ok(name),
    }
}
