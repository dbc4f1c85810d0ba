//! Formats a request as an event of a tap: the fields of its access log line in JSON, and the decisions of its limits.

use crate::telemetry::access_log::{LogRecord, escape_json, format_json};
use crate::telemetry::tap::TapDecision;

/// Returns the event in the format of an event stream. JSON has no line breaks, so it is one `data` line.
pub fn format_event(record: &LogRecord, decisions: &[TapDecision]) -> String {
    let mut json = String::with_capacity(1024);
    format_json(&mut json, record);
    // The decisions become the last member of the object.
    json.pop();
    json.push_str(",\"decisions\":[");
    for (place, decision) in decisions.iter().enumerate() {
        json.push_str(if place > 0 { ",{" } else { "{" });
        write_text(&mut json, "limit", Some(&decision.limit));
        json.push(',');
        write_text(&mut json, "decision", Some(decision.decision.label()));
        write_number(&mut json, ",\"remaining\":", decision.remaining);
        write_number(&mut json, ",\"retry_after_ms\":", decision.retry_after_ms);
        json.push(',');
        write_text(&mut json, "key", decision.key.as_deref());
        if let Some(effect) = decision.effect {
            json.push(',');
            write_text(&mut json, "effect", Some(effect.label()));
        }
        json.push('}');
    }
    format!("data: {json}]}}\n\n")
}

fn write_text(json: &mut String, name: &str, text: Option<&str>) {
    json.extend(["\"", name, "\":"]);
    let Some(text) = text else { return json.push_str("null") };
    json.push('"');
    escape_json(json, text);
    json.push('"');
}

fn write_number(json: &mut String, start: &str, number: Option<i64>) {
    json.push_str(start);
    match number {
        Some(number) => json.push_str(itoa::Buffer::new().format(number)),
        None => json.push_str("null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Decision;

    #[test]
    fn an_event_is_one_line_of_json_for_any_input() {
        let hostile = "/\n\ndata: {}\r\u{1b}[2J\u{202e}\"";
        let record = LogRecord { path: hostile.to_owned(), ..LogRecord::default() };
        let decision = TapDecision {
            limit: "per-ip".to_owned(),
            decision: Decision::Deny,
            remaining: Some(0),
            retry_after_ms: None,
            key: Some(hostile.to_owned()),
            effect: None,
        };
        let event = format_event(&record, &[decision.clone(), decision]);
        let json = event.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
        assert!(json.chars().all(|char| !char.is_control() && char != '\u{202e}'), "{json}");
        let read: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(read["path"], hostile);
        let expected = serde_json::json!({
            "limit": "per-ip", "decision": "deny", "remaining": 0, "retry_after_ms": null, "key": hostile,
        });
        assert_eq!(read["decisions"], serde_json::json!([expected, expected]));
        assert!(format_event(&record, &[]).ends_with(",\"decisions\":[]}\n\n"));
    }
}
