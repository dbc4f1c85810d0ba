//! Formats a record as a log line, in each format. No input of a client can break a line in two, or make a field longer
//! than its bound. Called when a request has ended.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::telemetry::access_log::settings::{AccessLogSettings, LineFormat};
use crate::telemetry::access_log::template::{LogField, TemplatePiece};
use crate::telemetry::access_log::{Attempts, LogRecord, Template};
use crate::telemetry::metrics::Decision;

/// Value of one field.
enum FieldValue<'a> {
    None,
    Text(Cow<'a, str>),
    Number(u64),
    Time(Duration),
}

/// Returns the line, including its line end.
pub fn format_line(settings: &AccessLogSettings, record: &LogRecord) -> String {
    let mut line = String::with_capacity(768);
    match &settings.format {
        LineFormat::Json => {
            format_json(&mut line, record);
            add_facts(&mut line, &settings.facts, record);
        }
        LineFormat::Combined => format_combined(&mut line, record),
        LineFormat::Template(template) => fill_template(&mut line, template, record),
    }
    line.push('\n');
    line
}

/// Appends the JSON object of the record to an empty line.
pub fn format_json(line: &mut String, record: &LogRecord) {
    for field in LogField::ALL {
        line.push_str(if line.is_empty() { "{\"" } else { ",\"" });
        line.push_str(field.label());
        line.push_str("\":");
        write_json_value(line, field_value(*field, record));
    }
    line.push('}');
}

/// Adds the named facts to the object that ends the line.
fn add_facts(line: &mut String, names: &[String], record: &LogRecord) {
    if names.is_empty() {
        return;
    }
    line.truncate(line.len() - "}".len());
    for (index, name) in names.iter().enumerate() {
        line.push_str(",\"");
        escape_json(line, name);
        line.push_str("\":");
        write_json_value(line, fact_value(index, record));
    }
    line.push('}');
}

fn write_json_value(line: &mut String, value: FieldValue<'_>) {
    match value {
        FieldValue::None => line.push_str("null"),
        FieldValue::Number(number) => line.push_str(itoa::Buffer::new().format(number)),
        FieldValue::Time(time) => write_milliseconds(line, time),
        FieldValue::Text(text) => {
            line.push('"');
            escape_json(line, &text);
            line.push('"');
        }
    }
}

/// Writes `CLIENT - USER [TIME] "METHOD TARGET PROTOCOL" STATUS BYTES "REFERER" "USER AGENT"`. The time is the start of
/// the request, as in Apache.
fn format_combined(line: &mut String, record: &LogRecord) {
    let time = record.time.to_zoned(TimeZone::UTC);
    let _ = write!(line, "{} - ", record.client);
    write_user(line, record.user.as_deref());
    let _ = write!(line, " [{}] \"", time.strftime("%d/%b/%Y:%H:%M:%S %z"));
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

/// Writes the name of the user without spaces and brackets, which separate it from the next field. A user whose name is
/// `-` differs from no user.
fn write_user(line: &mut String, user: Option<&str>) {
    match user {
        None => line.push('-'),
        Some("-") => line.push_str("\\x2D"),
        Some(user) => {
            for char in user.chars() {
                match char {
                    ' ' | '[' | ']' => {
                        let _ = write!(line, "\\x{:02X}", u32::from(char));
                    }
                    _ => escape(line, char.encode_utf8(&mut [0; 4])),
                }
            }
        }
    }
}

fn fill_template(line: &mut String, template: &Template, record: &LogRecord) {
    let mut is_quoted = false;
    for piece in template.pieces() {
        let value = match piece {
            TemplatePiece::Text(text) => {
                is_quoted ^= text.matches('"').count() % 2 == 1;
                line.push_str(text);
                continue;
            }
            TemplatePiece::Field(field) => field_value(*field, record),
            TemplatePiece::Fact(index) => fact_value(*index, record),
        };
        match value {
            FieldValue::None => line.push('-'),
            FieldValue::Number(number) => line.push_str(itoa::Buffer::new().format(number)),
            FieldValue::Time(time) => write_milliseconds(line, time),
            FieldValue::Text(text) if text.is_empty() => line.push('-'),
            FieldValue::Text(text) if is_quoted => escape(line, &text),
            // A space would end the field.
            FieldValue::Text(text) => {
                for (at, word) in text.split(' ').enumerate() {
                    line.push_str(if at > 0 { "\\x20" } else { "" });
                    escape(line, word);
                }
            }
        }
    }
}

/// Returns the value of the fact at this index of `AccessLogSettings::facts`.
fn fact_value(index: usize, record: &LogRecord) -> FieldValue<'_> {
    optional_value(record.facts.get(index).and_then(Option::as_deref))
}

fn field_value(field: LogField, record: &LogRecord) -> FieldValue<'_> {
    let attempts = record.attempts.as_deref();
    match field {
        LogField::Time => FieldValue::Text(Cow::Owned(format!("{:.3}", record.time))),
        LogField::RequestId => optional_value(record.request_id.as_deref()),
        LogField::TraceId => optional_value(record.trace_id.as_deref()),
        LogField::Client => FieldValue::Text(Cow::Owned(record.client.to_string())),
        LogField::Country => optional_value(record.country.as_deref()),
        LogField::User => optional_value(record.user.as_deref()),
        LogField::Method => text_value(&record.method),
        LogField::Host => text_value(&record.host),
        LogField::Path => text_value(&record.path),
        LogField::Query => optional_value(record.query.as_deref()),
        LogField::Protocol => optional_value(record.protocol),
        LogField::Tls => optional_value(record.tls),
        LogField::TlsCipher => optional_value(record.tls_cipher),
        LogField::TlsName => optional_value(record.tls_name.as_deref()),
        LogField::TlsSubject => optional_value(record.tls_subject.as_deref()),
        LogField::Route => text_value(&record.route),
        LogField::Status => FieldValue::Number(u64::from(record.status)),
        LogField::Reason => optional_value(record.reason),
        LogField::Setting => optional_value(record.setting),
        LogField::Limit => optional_value(record.limit.as_deref()),
        LogField::Decision => optional_value(record.decision.map(Decision::label)),
        LogField::Key => optional_value(record.key.as_deref()),
        LogField::Keys => optional_value(record.keys.as_deref()),
        LogField::RefusedBy => optional_value(record.refused_by.as_deref()),
        LogField::Candidates => optional_value(record.candidates.as_deref()),
        LogField::Upstream => optional_value(record.upstream.as_deref()),
        LogField::Server => attempts
            .and_then(Attempts::last_server)
            .map_or(FieldValue::None, |server| FieldValue::Text(Cow::Owned(server))),
        LogField::Tries => FieldValue::Number(attempts.map_or(0, |attempts| u64::from(attempts.count_attempts()))),
        LogField::AuthMs => record.auth_time.map_or(FieldValue::None, FieldValue::Time),
        LogField::UpstreamMs => attempts.and_then(Attempts::last_duration).map_or(FieldValue::None, FieldValue::Time),
        LogField::DurationMs => FieldValue::Time(record.duration),
        LogField::Bytes => FieldValue::Number(record.bytes),
        LogField::BytesIn => FieldValue::Number(record.bytes_in),
        LogField::BytesUncompressed => record.bytes_uncompressed.map_or(FieldValue::None, FieldValue::Number),
        LogField::UserAgent => optional_value(record.user_agent.as_deref()),
        LogField::Referer => optional_value(record.referer.as_deref()),
    }
}

fn text_value(text: &str) -> FieldValue<'_> {
    FieldValue::Text(Cow::Borrowed(text))
}

fn optional_value(value: Option<&str>) -> FieldValue<'_> {
    value.map_or(FieldValue::None, text_value)
}

/// Writes the time in milliseconds with three decimals.
fn write_milliseconds(line: &mut String, time: Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut digits = itoa::Buffer::new();
    line.push_str(digits.format(us / 1000));
    line.push('.');
    // The added 1000 keeps leading zeros; the last three digits are the fraction.
    line.push_str(&digits.format(1000 + us % 1000)[1..]);
}

/// Escapes text byte by byte, like nginx: the output is printable ASCII without unescaped quotes or backslashes.
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

/// Escapes the content of a JSON string, including characters that terminals or line readers would interpret.
pub fn escape_json(line: &mut String, text: &str) {
    // Nearly all text takes this path.
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

    fn find_piece(name: &str) -> Option<TemplatePiece> {
        Some(LogField::find(name).map_or(TemplatePiece::Fact(0), TemplatePiece::Field))
    }

    fn record(text: &str) -> LogRecord {
        LogRecord {
            method: text.to_owned(),
            host: text.to_owned(),
            path: text.to_owned(),
            query: Some(text.to_owned()),
            user: Some(text.to_owned()),
            user_agent: Some(text.to_owned()),
            referer: Some(text.to_owned()),
            key: Some(text.to_owned()),
            keys: Some(text.to_owned()),
            request_id: Some(text.to_owned()),
            duration: Duration::from_micros(1500),
            ..LogRecord::default()
        }
    }

    #[test]
    fn time_comes_first_and_what_is_unknown_is_null() {
        let line = format_line(&settings(LineFormat::Json), &record("a"));
        assert!(
            line.starts_with("{\"time\":\"1970-01-01T00:00:00.000Z\",\"request_id\":\"a\",\"trace_id\":null,"),
            "{line}"
        );
        assert!(
            line.ends_with(
                ",\"duration_ms\":1.500,\"bytes\":0,\"bytes_in\":0,\"bytes_uncompressed\":null,\"user_agent\":\"a\",\"referer\":\"a\"}\n"
            ),
            "{line}"
        );
    }

    #[test]
    fn times_have_three_decimals() {
        for (us, written) in [(0, "0.000"), (7, "0.007"), (1_090, "1.090"), (12_345_678, "12345.678")] {
            let mut line = String::new();
            write_milliseconds(&mut line, Duration::from_micros(us));
            assert_eq!(line, written);
        }
    }

    #[test]
    fn a_combined_line_is_that_of_other_servers() {
        let line = format_line(&settings(LineFormat::Combined), &record("a\"\n\u{e9}"));
        let escaped = r"a\x22\x0A\xC3\xA9";
        let expected = format!(
            "0.0.0.0 - {escaped} [01/Jan/1970:00:00:00 +0000] \"{escaped} {escaped}?{escaped} -\" 0 0 \"{escaped}\" \"{escaped}\"\n"
        );
        assert_eq!(line, expected);
        for (user, written) in [("-", r"\x2D"), ("a - [b] \"c", r"a\x20-\x20\x5Bb\x5D\x20\x22c")] {
            let named = LogRecord { user: Some(user.to_owned()), ..LogRecord::default() };
            let line = format_line(&settings(LineFormat::Combined), &named);
            assert!(line.starts_with(&format!("0.0.0.0 - {written} [01/Jan/1970:")), "{line}");
        }
        let unread = format_line(&settings(LineFormat::Combined), &LogRecord::default());
        assert_eq!(unread, "0.0.0.0 - - [01/Jan/1970:00:00:00 +0000] \"-\" 0 0 \"-\" \"-\"\n");
    }

    #[test]
    fn a_template_can_contain_every_field() {
        let template = Template::parse("{status} {path} {upstream} {duration_ms} {tries}", find_piece).unwrap();
        let line = format_line(&settings(LineFormat::Template(template)), &record("/\u{1b}[2J"));
        assert_eq!(line, "0 /\\x1B[2J - 1.500 0\n");
        let template = Template::parse("{user_agent} {status} \"{referer}\"", find_piece).unwrap();
        let line = format_line(&settings(LineFormat::Template(template)), &record("x 200"));
        assert_eq!(line, "x\\x20200 0 \"x 200\"\n");
        // Quoting applies to fields between two quotes, not to a field that follows a quote.
        let template = Template::parse("\"{status} {referer} {path}\"{host} \"\"{user_agent}", find_piece).unwrap();
        let line = format_line(&settings(LineFormat::Template(template)), &record("x 2"));
        assert_eq!(line, "\"0 x 2 x 2\"x\\x202 \"\"x\\x202\n");
    }

    proptest! {
        #[test]
        fn any_text_stays_one_field_of_one_line(text: String) {
            let json = format_line(&settings(LineFormat::Json), &record(&text));
            let read: serde_json::Value = serde_json::from_str(&json).unwrap();
            let fields =
                ["user", "method", "host", "path", "query", "user_agent", "referer", "request_id", "key", "keys"];
            for field in fields {
                prop_assert_eq!(read[field].as_str().unwrap(), &text);
            }
            let template = LineFormat::Template(Template::parse("{path} {jwt:sub}", find_piece).unwrap());
            let mut with_fact = record(&text);
            with_fact.facts = vec![Some(text.clone())];
            let added = AccessLogSettings { facts: vec![text.clone()], ..AccessLogSettings::default() };
            let added = format_line(&added, &with_fact);
            let read: serde_json::Value = serde_json::from_str(&added).unwrap();
            prop_assert_eq!(read[&text].as_str().unwrap(), &text);
            let template = format_line(&settings(template), &with_fact);
            prop_assert_eq!(template.split(' ').count(), 2, "{}", template);
            for line in [json, added, template, format_line(&settings(LineFormat::Combined), &record(&text))] {
                prop_assert!(line.trim_end_matches('\n').chars().all(|char| !char.is_control()), "{}", line);
            }
        }
    }
}
