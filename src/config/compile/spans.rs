//! `[server] spans`: where spans go, and of how many requests. Called by `server`.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};

use super::edit;
use crate::config::reader::Section;
use crate::config::schema;
use crate::config::tree::Value;
use crate::config::values::{Fault, fault};
use crate::spans::SpanSettings;

/// Where collectors take traces, unless the URL says otherwise.
const TRACES: &str = "/v1/traces";

/// `None`: there are none.
pub fn spans(section: &Section) -> Option<Arc<SpanSettings>> {
    section.node("spans")?;
    let table = section.section("spans", &schema::SPANS)?;
    let to = match table.node("to") {
        Some(_) => table.parse("to", collector),
        None => table.absent("`spans` has no `to`", "the URL of a collector: to = \"http://127.0.0.1:4318\""),
    };
    let headers = table.table("headers").map_or(Some(Vec::new()), |pairs| edit::pairs(&table, "headers", pairs));
    let settings = SpanSettings {
        to: to.unwrap_or_default(),
        per_mille: sample(&table).unwrap_or(1000),
        service: table.string("service").unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned()),
        // Whoever prints the config does not print these.
        headers: headers.unwrap_or_default().into_iter().map(secret).collect(),
    };
    let enabled = table.bool("enabled").unwrap_or(true);
    table.finish();
    enabled.then(|| Arc::new(settings))
}

fn secret((name, mut value): (HeaderName, HeaderValue)) -> (HeaderName, HeaderValue) {
    value.set_sensitive(true);
    (name, value)
}

/// In thousandths.
fn sample(table: &Section) -> Option<u64> {
    let node = table.node("sample")?;
    let part = match node.value {
        Value::Float(number) => number,
        Value::Integer(0) => 0.0,
        Value::Integer(1) => 1.0,
        Value::Integer(_) => -1.0,
        _ => return table.wrong_type("sample", "a number from 0 to 1", node),
    };
    let thousandths = (0..=1000_u32).find(|thousandths| (f64::from(*thousandths) - part * 1000.0).abs() <= 0.5);
    match thousandths {
        Some(thousandths) => Some(u64::from(thousandths)),
        None => table.fault("sample", node, "it must be from 0 to 1", "write a part of 1: 0.1 is one request in ten"),
    }
}

fn collector(text: &str) -> Result<String, Fault> {
    let help = "write it like \"http://127.0.0.1:4318\"; the path is /v1/traces unless it says another";
    let Ok(url) = text.parse::<Uri>() else { return fault("not a URL", help) };
    match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(authority)) if !authority.as_str().contains('@') => {
            let bare = matches!(url.path(), "" | "/") && url.query().is_none();
            Ok(if bare { text.trim_end_matches('/').to_owned() + TRACES } else { text.to_owned() })
        }
        (Some("http" | "https"), Some(_)) => {
            fault("a URL here holds no name and password", "send what the collector asks for in `headers`")
        }
        _ => fault("the URL of a collector begins with http:// or https://, OTLP over HTTP", help),
    }
}
