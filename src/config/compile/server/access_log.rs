//! `[server] access_log`: a boolean, or a table with format and target; and `[admin] audit`. Called by `server`.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::closest::find_closest;
use crate::config::compile::stated_value::{canonical_word, contains_variable, find_fact, refuse_foreign_names};
use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{admin, server};
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::route::client_facts::{CertificateForm, ClientFact, HeadFact};
use crate::telemetry::access_log::{
    AccessLogSettings, LineFormat, LogField, LogTarget, Masks, Template, TemplatePiece,
};

/// Names of log fields in nginx, each with ours. `stated_value` has those of facts about the client.
const FOREIGN_FIELDS: [(&str, &str); 18] = [
    ("$status", "{status}"),
    ("$request_time", "{duration_ms}"),
    ("$upstream_response_time", "{upstream_ms}"),
    ("$upstream_addr", "{server}"),
    ("$body_bytes_sent", "{bytes}"),
    ("$bytes_sent", "{bytes}"),
    ("$request_length", "{bytes_in}"),
    ("$time_iso8601", "{time}"),
    ("$time_local", "{time}"),
    ("$msec", "{time}"),
    ("$http_user_agent", "{user_agent}"),
    ("$http_referer", "{referer}"),
    ("$request_uri", "{path} and {query}"),
    ("%RESPONSE_CODE%", "{status}"),
    ("%DURATION%", "{duration_ms}"),
    ("%START_TIME%", "{time}"),
    ("%BYTES_SENT%", "{bytes}"),
    ("%UPSTREAM_HOST%", "{server}"),
];

/// The access log, and the facts about the client that its lines contain.
#[derive(Default)]
pub struct CompiledLog {
    /// `None` if the access log is off.
    pub settings: Option<Arc<AccessLogSettings>>,
    /// The facts that `AccessLogSettings::facts` names, in the same order.
    pub facts: Vec<ClientFact>,
}

/// Compiles the option.
pub fn compile_access_log(section: &Section) -> CompiledLog {
    match section.node(&server::ACCESS_LOG) {
        None => CompiledLog::default(),
        Some(Node { value: Value::Bool(on), .. }) => CompiledLog { settings: on.then(Arc::default), facts: Vec::new() },
        Some(Node { value: Value::Table(table), .. }) => {
            let table = Section::new(section.sources, &server::access_log::TABLE, "`access_log`", table);
            let default = AccessLogSettings::default();
            let formatted = table.parse_string(&server::access_log::FORMAT, compile_format);
            let (format, facts) = formatted.unwrap_or((default.format, Vec::new()));
            let facts = add_fields(&table, &format, facts);
            let (names, facts) = facts.into_iter().unzip();
            let settings = AccessLogSettings {
                format,
                to: compile_target(&table, &server::access_log::TO).unwrap_or(default.to),
                mask: table
                    .read_strings(&server::access_log::MASK, |name| Ok(name.to_owned()))
                    .map_or(default.mask, |names| Masks::new(names.into_iter().map(|name| name.value))),
                all_keys: table.get(&server::access_log::ALL_KEYS),
                facts: names,
            };
            let enabled = table.get(&server::access_log::ENABLED);
            table.report_unread_keys();
            match enabled {
                true => CompiledLog { settings: Some(Arc::new(settings)), facts },
                false => CompiledLog::default(),
            }
        }
        Some(node) => {
            section.report_wrong_type::<()>(server::ACCESS_LOG.name, "true, false or a table", node);
            CompiledLog::default()
        }
    }
}

/// A fact with the name under which lines show it.
type NamedFact = (String, ClientFact);

/// Reads the further fields of JSON lines, which follow `facts`.
fn add_fields(table: &Section, format: &LineFormat, mut facts: Vec<NamedFact>) -> Vec<NamedFact> {
    let Some(node) = table.node(&server::access_log::ADD) else { return facts };
    if !matches!(format, LineFormat::Json) {
        let help = "write the fields in `format`, such as \"{time} {status} {tls_san}\", or leave out `add`";
        table.report_fault::<()>(server::access_log::ADD.name, node, "only JSON lines have further fields", help);
        return facts;
    }
    let added = table.read_strings(&server::access_log::ADD, |text| {
        let name = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        match parse_field(name)? {
            LogPiece::Field(field) => invalid_text(
                format!("every JSON line has the field `{}` already", field.label()),
                "leave it out of `add`",
            ),
            LogPiece::Fact(fact) => Ok((name.to_owned(), fact)),
        }
    });
    for added in added.unwrap_or_default() {
        match facts.iter().any(|(name, _)| *name == added.value.0) {
            true => {
                let what = format!("`{}` is listed twice", added.value.0);
                table.report_fault_at::<()>(server::access_log::ADD.name, added.place, &what, "list it once");
            }
            false => facts.push(added.value),
        }
    }
    facts
}

fn compile_format(text: &str) -> Result<(LineFormat, Vec<NamedFact>), TextFault> {
    match text {
        "json" => return Ok((LineFormat::Json, Vec::new())),
        "combined" => return Ok((LineFormat::Combined, Vec::new())),
        _ => {}
    }
    if let Some((foreign, own)) = FOREIGN_FIELDS.iter().find(|(foreign, _)| contains_variable(text, foreign)) {
        return invalid_text(format!("`{foreign}` is a variable of another program"), format!("write {own}"));
    }
    refuse_foreign_names(text)?;
    match text {
        _ if !text.contains(['{', '}']) => {
            let help = "\"json\", \"combined\", or your own format with fields in braces, like \"{time} {status}\"";
            return invalid_text(format!("unknown format `{text}`"), help);
        }
        _ if text.contains(char::is_control) => {
            return invalid_text("a format cannot contain line ends or other control characters", "leave them out");
        }
        _ => {}
    }
    let mut facts: Vec<NamedFact> = Vec::new();
    let mut fault = None;
    let template = Template::parse(text, |name| match parse_field(name) {
        Ok(LogPiece::Field(field)) => Some(TemplatePiece::Field(field)),
        Ok(LogPiece::Fact(fact)) => {
            let index = facts.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                facts.push((name.to_owned(), fact));
                facts.len() - 1
            });
            Some(TemplatePiece::Fact(index))
        }
        Err(found) => {
            fault = Some(found);
            None
        }
    });
    match (template, fault) {
        (Ok(template), _) => Ok((LineFormat::Template(template), facts)),
        (Err(_), Some(fault)) => Err(fault),
        (Err(brace), None) => invalid_text(
            format!("`{brace}` has no partner"),
            format!("write `{brace}{brace}` for the character itself"),
        ),
    }
}

/// A placeholder in a line.
enum LogPiece {
    Field(LogField),
    /// A fact that JSON lines contain only if `add` lists it.
    Fact(ClientFact),
}

/// Parses the name of a field, or of a fact about the client. A fact that is also a field is that field.
fn parse_field(name: &str) -> Result<LogPiece, TextFault> {
    if let Some(field) = LogField::find(name) {
        return Ok(LogPiece::Field(field));
    }
    match find_fact(name)? {
        Some(ClientFact::ClientIp) => Ok(LogPiece::Field(LogField::Client)),
        Some(ClientFact::Certificate(CertificateForm::ByteSequence | CertificateForm::EscapedPem)) => invalid_text(
            format!("log lines cannot contain `{name}`: a certificate is longer than a line should be"),
            "write {tls_fingerprint}, which identifies it",
        ),
        Some(ClientFact::Head(HeadFact::Target)) => invalid_text(
            format!("log lines cannot contain `{name}`, whose query may have secrets"),
            "write {path} and {query}, which `mask` applies to",
        ),
        Some(fact) => Ok(LogPiece::Fact(fact)),
        None => {
            let names = LogField::LABELS.iter().copied().chain(ClientFact::NAMES.iter().map(|(name, _)| *name));
            let help = match find_closest(&canonical_word(name), names) {
                Some(field) => format!("did you mean {{{field}}}?"),
                None => format!(
                    "the fields are {}; and {{tls_san}}, {{tls_fingerprint}}, {{jwt:CLAIM}}",
                    LogField::LABELS.join(", ")
                ),
            };
            invalid_text(format!("unknown field `{name}`"), help)
        }
    }
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
