//! `[server] access_log`: a switch, or a table that says how and where. Called by `server`.

use std::sync::Arc;

use crate::access_log::{AccessLogSettings, LineFormat, LogTarget, Masks, Template};
use crate::config::hints::closest;
use crate::config::reader::Section;
use crate::config::schema;
use crate::config::tree::{Node, Value};
use crate::config::values::{Fault, fault};

/// `None`: there is none.
pub fn access_log(section: &Section) -> Option<Arc<AccessLogSettings>> {
    match section.node("access_log")? {
        Node { value: Value::Bool(on), .. } => on.then(Arc::default),
        Node { value: Value::Table(table), .. } => {
            let table = Section::new(section.sources, &schema::ACCESS_LOG, "`access_log`", table);
            let default = AccessLogSettings::default();
            let settings = AccessLogSettings {
                format: table.parse("format", format).unwrap_or(default.format),
                to: to(&table).unwrap_or(default.to),
                mask: table
                    .strings("mask", |name| Ok(name.to_owned()))
                    .map_or(default.mask, |names| Masks::new(names.into_iter().map(|name| name.value))),
            };
            let enabled = table.bool("enabled").unwrap_or(true);
            table.finish();
            enabled.then(|| Arc::new(settings))
        }
        node => section.wrong_type("access_log", "true, false or a table", node),
    }
}

fn format(text: &str) -> Result<LineFormat, Fault> {
    match text {
        "json" => return Ok(LineFormat::Json),
        "combined" => return Ok(LineFormat::Combined),
        _ if !text.contains(['{', '}']) => {
            let help = "\"json\", \"combined\", or a line of your own with fields in braces, like \"{time} {status}\"";
            return fault(format!("unknown format `{text}`"), help);
        }
        _ if text.contains(char::is_control) => {
            return fault("a line holds no line ends or other control characters", "leave them out");
        }
        _ => {}
    }
    Template::parse(text).map(LineFormat::Template).or_else(|wrong| match &*wrong {
        "{" | "}" => {
            fault(format!("`{wrong}` has no partner"), format!("write `{wrong}{wrong}` for the character itself"))
        }
        _ => {
            let help = match closest(&wrong, Template::fields()) {
                Some(field) => format!("did you mean {{{field}}}?"),
                None => format!("the fields are {}", Template::fields().collect::<Vec<_>>().join(", ")),
            };
            fault(format!("unknown field `{wrong}`"), help)
        }
    })
}

/// A file need not exist, its directory must.
fn to(table: &Section) -> Option<LogTarget> {
    let text = table.string("to")?;
    if text == "stdout" {
        return Some(LogTarget::Stdout);
    }
    let node = table.node("to")?;
    let path = table.sources.resolve(node.place.file, &text);
    if text.is_empty() || path.is_dir() {
        return table.fault("to", node, "it must be \"stdout\" or a file", "add the name of a file");
    }
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() || dir.is_dir() => Some(LogTarget::File(path)),
        _ => table.fault("to", node, "the directory of the file does not exist", "create it, or correct the path"),
    }
}
