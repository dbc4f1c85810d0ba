//! Fields of an access log line, and the template of a line: text with their names in braces. `config` parses it;
//! `line` fills it in.

use crate::labels::labels;

labels! {
    /// The fields in the order of a JSON line. Templates use the same names.
    LogField:
    Time = "time",
    RequestId = "request_id",
    TraceId = "trace_id",
    Client = "client",
    Country = "country",
    User = "user",
    Method = "method",
    Host = "host",
    Path = "path",
    Query = "query",
    Protocol = "protocol",
    Tls = "tls",
    TlsCipher = "tls_cipher",
    TlsName = "tls_name",
    TlsSubject = "tls_subject",
    Route = "route",
    Status = "status",
    Reason = "reason",
    Setting = "setting",
    Limit = "limit",
    Decision = "decision",
    Key = "key",
    Keys = "keys",
    RefusedBy = "refused_by",
    Candidates = "candidates",
    Upstream = "upstream",
    Server = "server",
    Tries = "tries",
    AuthMs = "auth_ms",
    UpstreamMs = "upstream_ms",
    DurationMs = "duration_ms",
    Bytes = "bytes",
    BytesIn = "bytes_in",
    BytesUncompressed = "bytes_uncompressed",
    UserAgent = "user_agent",
    Referer = "referer",
}

impl LogField {
    /// Returns the field with this name.
    pub fn find(name: &str) -> Option<LogField> {
        LogField::ALL.iter().copied().find(|field| field.label() == name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<TemplatePiece>);

#[derive(Clone, Debug, PartialEq)]
pub enum TemplatePiece {
    Text(String),
    Field(LogField),
    /// The fact at this index of `AccessLogSettings::facts`.
    Fact(usize),
}

impl Template {
    /// Parses a template: `{name}` is the piece that `find_piece` returns. `{{` and `}}` are literal braces.
    ///
    /// # Errors
    /// The unknown name, or the unbalanced brace.
    pub fn parse(text: &str, mut find_piece: impl FnMut(&str) -> Option<TemplatePiece>) -> Result<Template, String> {
        let (mut pieces, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if after.starts_with(brace) {
                plain.push_str(brace);
                rest = &after[1..];
                continue;
            }
            let Some((name, after)) = after.split_once('}').filter(|_| brace == "{") else {
                return Err(brace.to_owned());
            };
            let piece = find_piece(name).ok_or_else(|| name.to_owned())?;
            if !plain.is_empty() {
                pieces.push(TemplatePiece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(piece);
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(TemplatePiece::Text(plain));
        }
        Ok(Template(pieces))
    }

    /// Returns whether the template names `field`.
    pub fn contains_field(&self, field: LogField) -> bool {
        self.0.iter().any(|piece| matches!(piece, TemplatePiece::Field(named) if *named == field))
    }

    pub fn pieces(&self) -> &[TemplatePiece] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fields_and_braces() {
        let text = |text: &str| TemplatePiece::Text(text.to_owned());
        let find_piece = |name: &str| match name {
            "fact:a" => Some(TemplatePiece::Fact(7)),
            name => LogField::find(name).map(TemplatePiece::Field),
        };
        let cases: [(&str, &[TemplatePiece]); 5] = [
            ("{fact:a}", &[TemplatePiece::Fact(7)]),
            ("", &[]),
            ("plain", &[text("plain")]),
            (
                "{{{status}}} {path}",
                &[text("{"), TemplatePiece::Field(LogField::Status), text("} "), TemplatePiece::Field(LogField::Path)],
            ),
            ("{time}{status}", &[TemplatePiece::Field(LogField::Time), TemplatePiece::Field(LogField::Status)]),
        ];
        for (written, pieces) in cases {
            assert_eq!(Template::parse(written, find_piece).unwrap().pieces(), pieces, "{written}");
        }
        for (written, wrong) in
            [("{stat}", "stat"), ("{}", ""), ("{status", "{"), ("a } b", "}"), ("{status }", "status ")]
        {
            assert_eq!(Template::parse(written, find_piece).unwrap_err(), wrong, "{written}");
        }
    }
}
