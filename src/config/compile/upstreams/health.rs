//! `health` of an upstream: active checks. Called by `upstreams`.

use std::time::Duration;

use crate::config::compile::numbers::to_millis;
use crate::config::reader::Section;
use crate::config::tree::{Node, Value};
use crate::config::values;
use crate::config::values::invalid_text;
use crate::upstream::health::{CheckKind, HealthRule};

const STATUS_HELP: &str = "write numbers, \"2xx\", or ranges like \"200-399\"";
/// Maximum length of the path and of the expected text, in bytes.
const TEXT_MAX: usize = 1024;

pub fn compile_health(section: Section) -> HealthRule {
    let kind = section.read_label("type", CheckKind::ALL, CheckKind::label).unwrap_or(CheckKind::Http);
    for key in ["path", "status", "body"] {
        if let (CheckKind::Tcp | CheckKind::Grpc, Some(node)) = (kind, section.node(key)) {
            let what = format!("a check of type \"{}\" has none", kind.label());
            section.report_fault::<()>(key, node, &what, "remove it, or the type");
        }
    }
    let every = section.read_duration("every").unwrap_or(Duration::from_secs(10));
    let timeout = section.read_duration("timeout").unwrap_or(Duration::from_secs(1));
    let count = |key, default| section.read_integer(key).and_then(|count| u32::try_from(count).ok()).unwrap_or(default);
    let rule = HealthRule {
        kind,
        path: section.parse_string("path", parse_path).unwrap_or_else(|| "/".to_owned()),
        every_ms: to_millis(every),
        timeout_ms: to_millis(timeout),
        unhealthy_after: count("unhealthy_after", 3),
        healthy_after: count("healthy_after", 2),
        status: section.node("status").map_or_else(|| vec![(200, 399)], |node| parse_statuses(&section, node)),
        body: section.parse_string("body", parse_text),
    };
    section.report_unread_keys();
    rule
}

fn parse_path(text: &str) -> Result<String, values::TextFault> {
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if text.starts_with('/') && plain && text.len() <= TEXT_MAX {
        return Ok(text.to_owned());
    }
    invalid_text(format!("`{text}` is not a path"), "write \"/healthz\", with a query if need be, percent-encoded")
}

fn parse_text(text: &str) -> Result<String, values::TextFault> {
    match text.len() {
        1..=TEXT_MAX => Ok(text.to_owned()),
        _ => invalid_text(
            "it has no or too many characters",
            "write a text that the body of a healthy server contains, at most 1024 bytes",
        ),
    }
}

fn parse_statuses(section: &Section, node: &Node) -> Vec<(u16, u16)> {
    let items = match &node.value {
        Value::Array(items) if !items.is_empty() => items.as_slice(),
        Value::Array(_) => {
            section.report_fault::<()>("status", node, "the list is empty", STATUS_HELP);
            &[]
        }
        _ => std::slice::from_ref(node),
    };
    items.iter().filter_map(|item| parse_status(section, item)).collect()
}

fn parse_status(section: &Section, item: &Node) -> Option<(u16, u16)> {
    let found = match &item.value {
        Value::Integer(number) => u16::try_from(*number).ok().map(|number| (number, number)),
        Value::String(text) => {
            let text = text.value.as_str();
            let range = text.split_once('-').unwrap_or((text, text));
            match text.as_bytes() {
                [class @ b'1'..=b'5', b'x', b'x'] => {
                    let first = u16::from(class - b'0') * 100;
                    Some((first, first + 99))
                }
                _ => range.0.trim().parse().ok().zip(range.1.trim().parse().ok()),
            }
        }
        _ => return section.report_wrong_type("status", "a status, or a list of them", item),
    };
    match found {
        Some((from, to)) if (100..=599).contains(&from) && to <= 599 && from <= to => Some((from, to)),
        _ => section.report_fault("status", item, "it is no status from 100 to 599", STATUS_HELP),
    }
}
