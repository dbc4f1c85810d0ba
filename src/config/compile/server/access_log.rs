//! `[server] access_log`: a boolean, or a table with format and target; and `[admin] audit`. Called by `server`.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::closest::find_closest;
use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{admin, server};
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::telemetry::access_log::{AccessLogSettings, LineFormat, LogTarget, Masks, Template};

/// Compiles the option; `None` if the access log is off.
pub fn compile_access_log(section: &Section) -> Option<Arc<AccessLogSettings>> {
    match section.node(&server::ACCESS_LOG)? {
        Node { value: Value::Bool(on), .. } => on.then(Arc::default),
        Node { value: Value::Table(table), .. } => {
            let table = Section::new(section.sources, &server::access_log::TABLE, "`access_log`", table);
            let default = AccessLogSettings::default();
            let settings = AccessLogSettings {
                format: table.parse_string(&server::access_log::FORMAT, compile_format).unwrap_or(default.format),
                to: compile_target(&table, &server::access_log::TO).unwrap_or(default.to),
                mask: table
                    .read_strings(&server::access_log::MASK, |name| Ok(name.to_owned()))
                    .map_or(default.mask, |names| Masks::new(names.into_iter().map(|name| name.value))),
                all_keys: table.get(&server::access_log::ALL_KEYS),
            };
            let enabled = table.get(&server::access_log::ENABLED);
            table.report_unread_keys();
            enabled.then(|| Arc::new(settings))
        }
        node => section.report_wrong_type(server::ACCESS_LOG.name, "true, false or a table", node),
    }
}

fn compile_format(text: &str) -> Result<LineFormat, TextFault> {
    match text {
        "json" => return Ok(LineFormat::Json),
        "combined" => return Ok(LineFormat::Combined),
        _ if !text.contains(['{', '}']) => {
            let help = "\"json\", \"combined\", or your own format with fields in braces, like \"{time} {status}\"";
            return invalid_text(format!("unknown format `{text}`"), help);
        }
        _ if text.contains(char::is_control) => {
            return invalid_text("a format cannot contain line ends or other control characters", "leave them out");
        }
        _ => {}
    }
    Template::parse(text).map(LineFormat::Template).or_else(|wrong| match &*wrong {
        "{" | "}" => invalid_text(
            format!("`{wrong}` has no partner"),
            format!("write `{wrong}{wrong}` for the character itself"),
        ),
        _ => {
            let help = match find_closest(&wrong, Template::field_names()) {
                Some(field) => format!("did you mean {{{field}}}?"),
                None => format!("the fields are {}", Template::field_names().collect::<Vec<_>>().join(", ")),
            };
            invalid_text(format!("unknown field `{wrong}`"), help)
        }
    })
}

/// Compiles `[admin] audit`, the file of the audit log.
pub fn compile_audit(section: &Section) -> Option<PathBuf> {
    let node = section.node(&admin::AUDIT)?;
    match compile_target(section, &admin::AUDIT)? {
        LogTarget::File(path) | LogTarget::PrivateFile(path) => Some(path),
        // The access log may go there too, and two writers of one pipe would tear each other's lines.
        LogTarget::Stdout => {
            section.report_fault(admin::AUDIT.name, node, "it must be a file", "write \"audit.jsonl\"")
        }
    }
}

/// Compiles the target. The file need not exist, but its directory must.
pub fn compile_target(table: &Section, option: &ConfigOption) -> Option<LogTarget> {
    let text = table.read_string(option)?;
    if server::access_log::TO.keywords.contains(&text.as_str()) {
        return Some(LogTarget::Stdout);
    }
    let node = table.node(option)?;
    let path = table.sources.resolve_absolute(node.place.file, &text);
    if text.is_empty() || path.is_dir() {
        return table.report_fault(option.name, node, "it must be \"stdout\" or a file", "add the name of a file");
    }
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() || dir.is_dir() => Some(LogTarget::File(path)),
        _ => table.report_fault(
            option.name,
            node,
            "the directory of the file does not exist",
            "create it, or correct the path",
        ),
    }
}
