//! `health` of an upstream: active checks. Called by `upstreams`.

use crate::config::compile::edit::read_editable_pairs;
use crate::config::compile::to_millis;
use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::upstream;
use crate::config::tree::{Node, Value};
use crate::config::values;
use crate::config::values::invalid_text;
use crate::upstream::health::{CheckKind, HealthRule};

const STATUS_HELP: &str = "write numbers, \"2xx\", or ranges like \"200-399\"";
/// Maximum length of the path and of the expected text, in bytes.
const TEXT_MAX: usize = 1024;

pub fn compile_health(section: Section) -> HealthRule {
    let kind = section.get(&upstream::health::TYPE);
    let of_http: [&ConfigOption; 3] = [&upstream::health::PATH, &upstream::health::STATUS, &upstream::health::BODY];
    let of_requests: [&ConfigOption; 2] = [&upstream::health::HOST, &upstream::health::HEADERS];
    let of_others = of_http.iter().filter(|_| kind != CheckKind::Http);
    for option in of_others.chain(of_requests.iter().filter(|_| kind == CheckKind::Tcp)) {
        if let Some(node) = section.node(option) {
            let what = format!("a check of type \"{}\" has none", kind.label());
            section.report_fault::<()>(option.name, node, &what, "remove it, or the type");
        }
    }
    let every = section.get(&upstream::health::EVERY);
    let timeout = section.get(&upstream::health::TIMEOUT);
    let rule = HealthRule {
        kind,
        path: section
            .parse_string(&upstream::health::PATH, parse_path)
            .unwrap_or_else(|| upstream::health::PATH.default_str().to_owned()),
        every_ms: to_millis(every),
        timeout_ms: to_millis(timeout),
        unhealthy_after: section.get(&upstream::health::UNHEALTHY_AFTER),
        healthy_after: section.get(&upstream::health::HEALTHY_AFTER),
        status: section
            .node(&upstream::health::STATUS)
            .map_or_else(|| vec![(200, 399)], |node| parse_statuses(&section, node)),
        body: section.parse_string(&upstream::health::BODY, parse_text),
        host: section.parse_string(&upstream::health::HOST, values::parse_sent_host),
        headers: read_editable_pairs(&section, &upstream::health::HEADERS, values::parse_header_value)
            .unwrap_or_default(),
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
            section.report_fault::<()>(upstream::health::STATUS.name, node, "the list is empty", STATUS_HELP);
            &[]
        }
        _ => std::slice::from_ref(node),
    };
    items.iter().filter_map(|item| parse_status(section, item)).collect()
}

fn parse_status(section: &Section, item: &Node) -> Option<(u16, u16)> {
    let range = match &item.value {
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
        _ => return section.report_wrong_type(upstream::health::STATUS.name, "a status, or a list of them", item),
    };
    match range {
        Some((from, to)) if (100..=599).contains(&from) && to <= 599 && from <= to => Some((from, to)),
        _ => {
            section.report_fault(upstream::health::STATUS.name, item, "it is not a status from 100 to 599", STATUS_HELP)
        }
    }
}
