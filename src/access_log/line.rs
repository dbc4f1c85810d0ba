//! A record as a line, in each of the forms. Whatever clients send, a line stays one line and its fields keep
//! their bounds. Called when a request has ended.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::field::LogField;
use super::settings::{AccessLogSettings, LineFormat};
use super::template::TemplatePiece;
use super::{Attempts, LogRecord, Template};
use crate::metrics::Decision;

/// Of one field.
enum FieldValue<'a> {
    None,
    Text(Cow<'a, str>),
    Number(u64),
    Time(Duration),
}

/// The line with its end.
pub fn write(settings: &AccessLogSettings, record: &LogRecord) -> String {
    let mut line = String::with_capacity(768);
    match &settings.format {
        LineFormat::Json => json(&mut line, record),
        LineFormat::Combined => combined(&mut line, record),
        LineFormat::Template(template) => filled_in(&mut line, template, record),
    }
    line.push('\n');
    line
}

fn json(line: &mut String, record: &LogRecord) {
    for field in LogField::ALL {
        line.push_str(if line.is_empty() { "{\"" } else { ",\"" });
        line.push_str(field.label());
        line.push_str("\":");
        match value(*field, record) {
            FieldValue::None => line.push_str("null"),
            FieldValue::Number(number) => line.push_str(itoa::Buffer::new().format(number)),
            FieldValue::Time(time) => milliseconds(line, time),
            FieldValue::Text(text) => {
                line.push('"');
                escape_json(line, &text);
                line.push('"');
            }
        }
    }
    line.push('}');
}

/// `CLIENT - - [TIME] "METHOD TARGET PROTOCOL" STATUS BYTES "REFERER" "USER AGENT"`, the time being that of the
/// start, as Apache has it.
fn combined(line: &mut String, record: &LogRecord) {
    let time = record.time.to_zoned(TimeZone::UTC);
    let _ = write!(line, "{} - - [{}] \"", record.client, time.strftime("%d/%b/%Y:%H:%M:%S %z"));
    if record.method.is_empty() {
        line.push('-');
    } else {
        for text in [&*record.method, " ", &record.path] {
            escape(line, text);
        }
        if let Some(query) = &record.query {
            line.push('?');
            escape(line, query);
        }
        let _ = write!(line, " {}", record.protocol.unwrap_or("-"));
    }
    let _ = write!(line, "\" {} {}", record.status, record.bytes);
    for text in [&record.referer, &record.user_agent] {
        line.push_str(" \"");
        escape(line, text.as_deref().filter(|text| !text.is_empty()).unwrap_or("-"));
        line.push('"');
    }
}

fn filled_in(line: &mut String, template: &Template, record: &LogRecord) {
    let mut quoted = false;
    for piece in template.pieces() {
        match piece {
            TemplatePiece::Text(text) => {
                quoted ^= text.matches('"').count() % 2 == 1;
                line.push_str(text);
            }
            TemplatePiece::Field(field) => match value(*field, record) {
                FieldValue::None => line.push('-'),
                FieldValue::Number(number) => line.push_str(itoa::Buffer::new().format(number)),
                FieldValue::Time(time) => milliseconds(line, time),
                FieldValue::Text(text) if text.is_empty() => line.push('-'),
                FieldValue::Text(text) if quoted => escape(line, &text),
                // A space would end the field.
                FieldValue::Text(text) => {
                    for (at, word) in text.split(' ').enumerate() {
                        line.push_str(if at > 0 { "\\x20" } else { "" });
                        escape(line, word);
                    }
                }
            },
        }
    }
}

fn value(field: LogField, record: &LogRecord) -> FieldValue<'_> {
    let attempts = record.attempts.as_deref();
    match field {
        LogField::Time => FieldValue::Text(Cow::Owned(format!("{:.3}", record.time))),
        LogField::RequestId => optional(record.request_id.as_deref()),
        LogField::TraceId => optional(record.trace_id.as_deref()),
        LogField::Client => FieldValue::Text(Cow::Owned(record.client.to_string())),
        LogField::Method => text(&record.method),
        LogField::Host => text(&record.host),
        LogField::Path => text(&record.path),
        LogField::Query => optional(record.query.as_deref()),
        LogField::Protocol => optional(record.protocol),
        LogField::Tls => optional(record.tls),
        LogField::TlsCipher => optional(record.tls_cipher),
        LogField::TlsName => optional(record.tls_name.as_deref()),
        LogField::TlsSubject => optional(record.tls_subject.as_deref()),
        LogField::Route => text(&record.route),
        LogField::Status => FieldValue::Number(u64::from(record.status)),
        LogField::Reason => optional(record.reason),
        LogField::Setting => optional(record.setting),
        LogField::Limit => optional(record.limit.as_deref()),
        LogField::Decision => optional(record.decision.map(Decision::label)),
        LogField::RefusedBy => optional(record.refused_by.as_deref()),
        LogField::Upstream => optional(record.upstream.as_deref()),
        LogField::Server => {
            attempts.and_then(Attempts::server).map_or(FieldValue::None, |server| FieldValue::Text(Cow::Owned(server)))
        }
        LogField::Tries => FieldValue::Number(attempts.map_or(0, |attempts| u64::from(attempts.tries()))),
        LogField::UpstreamMs => attempts.and_then(Attempts::took).map_or(FieldValue::None, FieldValue::Time),
        LogField::DurationMs => FieldValue::Time(record.duration),
        LogField::Bytes => FieldValue::Number(record.bytes),
        LogField::BytesIn => FieldValue::Number(record.bytes_in),
        LogField::UserAgent => optional(record.user_agent.as_deref()),
        LogField::Referer => optional(record.referer.as_deref()),
    }
}

fn text(text: &str) -> FieldValue<'_> {
    FieldValue::Text(Cow::Borrowed(text))
}

fn optional(value: Option<&str>) -> FieldValue<'_> {
    value.map_or(FieldValue::None, text)
}

/// With three decimals.
fn milliseconds(line: &mut String, time: Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut digits = itoa::Buffer::new();
    line.push_str(digits.format(us / 1000));
    line.push('.');
    // Of four digits the last three: with the zeros before them.
    line.push_str(&digits.format(1000 + us % 1000)[1..]);
}

/// As nginx does it, byte by byte: what is left is printable ASCII, without quotes and backslashes of its own.
fn escape(line: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                let _ = write!(line, "\\x{byte:02X}");
            }
            _ => line.push(char::from(byte)),
        }
    }
}

/// The inside of a JSON string. What terminals and readers of lines take for a command is escaped too.
fn escape_json(line: &mut String, text: &str) {
    // So is nearly all of what is written.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        return line.push_str(text);
    }
    for char in text.chars() {
        match char {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                let _ = write!(line, "\\u{:04x}", u32::from(char));
            }
            _ => line.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings(format: LineFormat) -> AccessLogSettings {
        AccessLogSettings { format, ..AccessLogSettings::default() }
    }

    fn record(text: &str) -> LogRecord {
        LogRecord {
            method: text.to_owned(),
            host: text.to_owned(),
            path: text.to_owned(),
            query: Some(text.to_owned()),
            user_agent: Some(text.to_owned()),
            referer: Some(text.to_owned()),
            request_id: Some(text.to_owned()),
            duration: Duration::from_micros(1500),
            ..LogRecord::default()
        }
    }

    #[test]
    fn time_comes_first_and_what_is_unknown_is_null() {
        let line = write(&settings(LineFormat::Json), &record("a"));
        assert!(
            line.starts_with("{\"time\":\"1970-01-01T00:00:00.000Z\",\"request_id\":\"a\",\"trace_id\":null,"),
            "{line}"
        );
        assert!(
            line.ends_with(
                ",\"duration_ms\":1.500,\"bytes\":0,\"bytes_in\":0,\"user_agent\":\"a\",\"referer\":\"a\"}\n"
            ),
            "{line}"
        );
    }

    #[test]
    fn times_have_three_decimals() {
        for (us, written) in [(0, "0.000"), (7, "0.007"), (1_090, "1.090"), (12_345_678, "12345.678")] {
            let mut line = String::new();
            milliseconds(&mut line, Duration::from_micros(us));
            assert_eq!(line, written);
        }
    }

    #[test]
    fn a_combined_line_is_that_of_other_servers() {
        let line = write(&settings(LineFormat::Combined), &record("a\"\n\u{e9}"));
        let escaped = r"a\x22\x0A\xC3\xA9";
        let expected = format!(
            "0.0.0.0 - - [01/Jan/1970:00:00:00 +0000] \"{escaped} {escaped}?{escaped} -\" 0 0 \"{escaped}\" \"{escaped}\"\n"
        );
        assert_eq!(line, expected);
        let unread = write(&settings(LineFormat::Combined), &LogRecord::default());
        assert_eq!(unread, "0.0.0.0 - - [01/Jan/1970:00:00:00 +0000] \"-\" 0 0 \"-\" \"-\"\n");
    }

    #[test]
    fn a_template_names_any_field() {
        let template = Template::parse("{status} {path} {upstream} {duration_ms} {tries}").unwrap();
        let line = write(&settings(LineFormat::Template(template)), &record("/\u{1b}[2J"));
        assert_eq!(line, "0 /\\x1B[2J - 1.500 0\n");
        let template = Template::parse("{user_agent} {status} \"{referer}\"").unwrap();
        let line = write(&settings(LineFormat::Template(template)), &record("x 200"));
        assert_eq!(line, "x\\x20200 0 \"x 200\"\n");
        // Within quotes is what stands between them, not what follows one.
        let template = Template::parse("\"{status} {referer} {path}\"{host} \"\"{user_agent}").unwrap();
        let line = write(&settings(LineFormat::Template(template)), &record("x 2"));
        assert_eq!(line, "\"0 x 2 x 2\"x\\x202 \"\"x\\x202\n");
    }

    proptest! {
        #[test]
        fn any_text_stays_one_field_of_one_line(text: String) {
            let json = write(&settings(LineFormat::Json), &record(&text));
            let read: serde_json::Value = serde_json::from_str(&json).unwrap();
            for field in ["method", "host", "path", "query", "user_agent", "referer", "request_id"] {
                prop_assert_eq!(read[field].as_str().unwrap(), &text);
            }
            let template = LineFormat::Template(Template::parse("{path}").unwrap());
            for line in [json, write(&settings(LineFormat::Combined), &record(&text)), write(&settings(template), &record(&text))] {
                prop_assert!(line.trim_end_matches('\n').chars().all(|char| !char.is_control()), "{}", line);
            }
        }
    }
}
