//! `[server] spans`: where spans are sent, and the share of sampled requests. Called by `server`.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};

use crate::config::compile::edit;
use crate::config::reader::Section;
use crate::config::schema::server;
use crate::config::tree::Value;
use crate::config::values::{TextFault, invalid_text};
use crate::telemetry::spans::SpanSettings;

/// Path of trace collectors unless the URL contains one.
const TRACES: &str = "/v1/traces";

/// Compiles the option; `None` if spans are off.
pub fn compile_spans(section: &Section) -> Option<Arc<SpanSettings>> {
    section.node(&server::SPANS)?;
    let table = section.read_section(&server::SPANS)?;
    let to = match table.node(&server::spans::TO) {
        Some(_) => table.parse_string(&server::spans::TO, parse_collector),
        None => table.report_missing("`spans` has no `to`", "the URL of a collector: to = \"http://127.0.0.1:4318\""),
    };
    let headers = table
        .read_table(&server::spans::HEADERS)
        .map_or(Some(Vec::new()), |pairs| edit::read_header_pairs(&table, &server::spans::HEADERS, pairs));
    let settings = SpanSettings {
        to: to.unwrap_or_default(),
        per_mille: read_sample(&table).unwrap_or(1000),
        service: table
            .read_string(&server::spans::SERVICE)
            .unwrap_or_else(|| server::spans::SERVICE.default_str().to_owned()),
        // Headers may be secrets, and printing the config must not show them.
        headers: headers.unwrap_or_default().into_iter().map(secret_header).collect(),
    };
    let enabled = table.get(&server::spans::ENABLED);
    table.report_unread_keys();
    enabled.then(|| Arc::new(settings))
}

fn secret_header((name, mut value): (HeaderName, HeaderValue)) -> (HeaderName, HeaderValue) {
    value.set_sensitive(true);
    (name, value)
}

/// Reads the sampling ratio, in 1/1000.
fn read_sample(table: &Section) -> Option<u64> {
    let node = table.node(&server::spans::SAMPLE)?;
    let part = match node.value {
        Value::Float(number) => number,
        Value::Integer(0) => 0.0,
        Value::Integer(1) => 1.0,
        Value::Integer(_) => -1.0,
        _ => return table.report_wrong_type(server::spans::SAMPLE.name, "a number from 0 to 1", node),
    };
    let thousandths = (0..=1000_u32).find(|thousandths| (f64::from(*thousandths) - part * 1000.0).abs() <= 0.5);
    match thousandths {
        Some(thousandths) => Some(u64::from(thousandths)),
        None => table.report_fault(
            server::spans::SAMPLE.name,
            node,
            "it must be from 0 to 1",
            "write a part of 1: 0.1 is one request in ten",
        ),
    }
}

fn parse_collector(text: &str) -> Result<String, TextFault> {
    let help = "write it like \"http://127.0.0.1:4318\"; the default path is /v1/traces";
    let Ok(url) = text.parse::<Uri>() else { return invalid_text("not a URL", help) };
    match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(authority)) if !authority.as_str().contains('@') => {
            let bare = matches!(url.path(), "" | "/") && url.query().is_none();
            Ok(if bare { text.trim_end_matches('/').to_owned() + TRACES } else { text.to_owned() })
        }
        (Some("http" | "https"), Some(_)) => {
            invalid_text("the URL cannot contain a user or password", "put credentials into `headers`")
        }
        _ => invalid_text("the URL of a collector begins with http:// or https://, OTLP over HTTP", help),
    }
}
