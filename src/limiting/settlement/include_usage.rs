//! Asks an OpenAI-compatible server to report the usage of a stream: sets `stream_options.include_usage` in the
//! request, and removes its digests. Also cuts `Accept-Encoding` to what a scanner can read.

use std::fmt;

use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::limiting::settlement::api::LlmApi;
use crate::limiting::source::is_equal_for_some_parsers;

/// Returns the body with `include_usage`, or `None` if it stays as it is: a request to `path` with this body does not ask
/// for a stream of completions, or it asks for the usage already. All other values keep their bytes.
///
/// Servers differ in what they take for `stream: true`, and some ignore the case of names. So the usage is asked for if
/// any server would stream.
pub fn set_include_usage(path: &str, body: &[u8]) -> Option<Vec<u8>> {
    let api = LlmApi::find(path);
    // Other APIs always report their usage, and refuse members that they do not know.
    if api.is_some_and(|api| !api.needs_include_usage()) {
        return None;
    }
    let ObjectMembers(mut members) = serde_json::from_slice(body).ok()?;
    let find = |name: &'static str| members.iter().filter(move |(known, _)| is_equal_for_some_parsers(name, known));
    let is_chat = ["messages", "prompt"].into_iter().any(|name| find(name).next().is_some());
    if !is_chat || !find("stream").any(|(_, value)| is_true_for_some_servers(value.get())) {
        return None;
    }
    let mut listed = find(OPTIONS);
    let mut options = match listed.next_back().map(|(_, value)| serde_json::from_str::<Value>(value.get())) {
        None | Some(Ok(Value::Null)) => Map::new(),
        Some(Ok(Value::Object(options))) => options,
        Some(_) => return None,
    };
    let is_single = find(OPTIONS).all(|(known, _)| known == OPTIONS) && listed.next().is_none();
    options.retain(|name, _| name == INCLUDE || !is_equal_for_some_parsers(INCLUDE, name));
    let is_set = options.insert(INCLUDE.to_owned(), Value::Bool(true)) == Some(Value::Bool(true));
    if is_set && is_single {
        return None;
    }
    members.retain(|(name, _)| !is_equal_for_some_parsers(OPTIONS, name));
    members.push((OPTIONS.to_owned(), to_raw_value(&options).ok()?));
    serde_json::to_vec(&ObjectMembers(members)).ok()
}

/// Returns whether some servers take a JSON value for true. Pydantic reads numbers and words like `"yes"`, and others
/// take any text that is not empty.
fn is_true_for_some_servers(value: &str) -> bool {
    match serde_json::from_str::<Value>(value) {
        Ok(Value::Bool(value)) => value,
        Ok(Value::Number(number)) => number.as_f64() != Some(0.0),
        Ok(Value::String(text)) => {
            const FALSE: [&str; 6] = ["", "0", "f", "n", "no", "off"];
            let word = text.trim().to_ascii_lowercase();
            word != "false" && !FALSE.contains(&word.as_str())
        }
        // Programs that test a value as JavaScript does take the empty ones for true, too.
        Ok(Value::Array(_) | Value::Object(_)) => true,
        Ok(Value::Null) | Err(_) => false,
    }
}

/// Name of the member of the options that asks for usage.
const INCLUDE: &str = "include_usage";
/// The option of a request for what its stream contains.
const OPTIONS: &str = "stream_options";

/// The members of a JSON object in their order, each value as written.
struct ObjectMembers(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for ObjectMembers {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<ObjectMembers, D::Error> {
        reader.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = ObjectMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectMembers, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(ObjectMembers(members))
    }
}

impl Serialize for ObjectMembers {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        writer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Removes the digests of a body that was changed. Servers that verify them would refuse it.
pub fn remove_digests(headers: &mut HeaderMap) {
    ["content-digest", "repr-digest", "digest", "content-md5"].iter().for_each(|name| drop(headers.remove(*name)));
}

/// Cuts `Accept-Encoding` to gzip, if the client accepts it, and identity. Without the header, servers may use any
/// coding, but in practice use none.
pub fn limit_codings(headers: &mut HeaderMap) {
    if !headers.contains_key(ACCEPT_ENCODING) {
        return;
    }
    let lines = headers.get_all(ACCEPT_ENCODING).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let accepts_gzip = lines.map(<[u8]>::trim_ascii).any(|member| {
        let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let is_gzip = [&b"gzip"[..], b"x-gzip", b"*"].iter().any(|known| name.eq_ignore_ascii_case(known));
        is_gzip
            && !parts.any(|part| matches!(part, [b'q' | b'Q', b'=', b'0'] | [b'q' | b'Q', b'=', b'0', b'.', b'0', ..]))
    });
    let codings = if accepts_gzip { "gzip, identity" } else { "identity" };
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(codings));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(body: &str) -> Option<String> {
        set_include_usage("/llm", body.as_bytes()).map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn streams_of_chat_completions_are_requested_with_their_usage() {
        for (body, changed) in [
            (
                "{ \"messages\" : [ {} ] , \"stream\":true, \"x\":1.50 } ",
                Some(r#"{"messages":[ {} ],"stream":true,"x":1.50,"stream_options":{"include_usage":true}}"#),
            ),
            (
                r#"{"prompt":"}","stream":true,"stream_options":null,"n":12345678901234567890123}"#,
                Some(
                    r#"{"prompt":"}","stream":true,"n":12345678901234567890123,"stream_options":{"include_usage":true}}"#,
                ),
            ),
            (
                r#"{"stream_options":{"a":1,"include_usage":false},"messages":[],"stream":true}"#,
                Some(r#"{"messages":[],"stream":true,"stream_options":{"a":1,"include_usage":true}}"#),
            ),
            (r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#, None),
            (r#"{"messages":[],"stream":false}"#, None),
            (r#"{"messages":[],"stream":null}"#, None),
            (
                r#"{"messages":[],"stream":true,"Stream_Options":{"Include_Usage":false}}"#,
                Some(r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#),
            ),
            (
                r#"{"stream_options":{"include_usage":true},"messages":[],"stream":true,"stream_options":{"x":1}}"#,
                Some(r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true,"x":1}}"#),
            ),
            (r#"{"messages":[]}"#, None),
            (r#"{"input":"x","stream":true}"#, None),
            (r#"{"messages":[],"stream":true,"stream_options":7}"#, None),
            ("[]", None),
            ("", None),
            ("{", None),
        ] {
            assert_eq!(ask(body).as_deref(), changed, "{body}");
        }
    }

    /// The values that Pydantic's lax mode, Go, JavaScript and Python take for true, and names as encoding/json of Go
    /// reads them.
    #[test]
    fn a_stream_in_any_spelling_is_asked_for_its_usage() {
        for value in [
            "true",
            "1",
            "1.0",
            "-1",
            "2",
            r#""true""#,
            r#""TRUE""#,
            r#""yes""#,
            r#""Y""#,
            r#""on""#,
            r#""1""#,
            r#""t""#,
            "[]",
            "{}",
            "[0]",
        ] {
            for name in ["stream", "Stream", "STREAM", r"\u0073tream", "\u{17f}tream"] {
                let body = format!("{{\"messages\":[],\"{name}\":{value}}}");
                assert!(ask(&body).is_some_and(|asked| asked.contains("include_usage")), "{body}");
                let twice = format!("{{\"messages\":[],\"{name}\":{value},\"stream\":false}}");
                assert!(ask(&twice).is_some(), "{twice}");
            }
        }
        for value in ["false", "0", "0.0", "null", "\"\"", r#""false""#, r#""No""#, r#""off""#, r#""0""#] {
            assert_eq!(ask(&format!("{{\"messages\":[],\"stream\":{value}}}")), None, "{value}");
        }
    }

    /// An API refuses options that it does not know.
    #[test]
    fn only_completions_are_asked() {
        let body = br#"{"model":"m","messages":[],"stream":true}"#;
        for (path, asked) in [
            ("/v1/chat/completions", true),
            ("/v1/Chat/Completions/", true),
            ("/v1/completions", true),
            ("/v1/messages", false),
            ("/v1/responses", false),
            ("/api/chat", false),
            ("/v2/chat", false),
            ("/v1/projects/p/publishers/anthropic/models/claude:streamRawPredict", false),
            ("/v1/projects/p/publishers/anthropic/models/claude:rawPredict", false),
            ("/own", true),
        ] {
            assert_eq!(set_include_usage(path, body).is_some(), asked, "{path}");
        }
        // A client must not be able to prevent the report of usage: servers ignore members that they do not know.
        let with_version = br#"{"anthropic_version":"v","messages":[],"stream":true}"#;
        assert!(set_include_usage("/v1/chat/completions", with_version).is_some());
    }

    #[test]
    fn codings_are_cut_to_those_that_can_be_read() {
        for (accepted, cut) in [
            (&["gzip, deflate, br, zstd"][..], Some("gzip, identity")),
            (&["br", "x-gzip;q=0.5"], Some("gzip, identity")),
            (&["*"], Some("gzip, identity")),
            (&["br"], Some("identity")),
            (&["gzip;q=0, br"], Some("identity")),
            (&["gzip;q=0.000"], Some("identity")),
            (&[""], Some("identity")),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in accepted {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
            }
            limit_codings(&mut headers);
            let lines: Vec<_> = headers.get_all(ACCEPT_ENCODING).iter().map(|line| line.to_str().unwrap()).collect();
            assert_eq!(lines, cut.into_iter().collect::<Vec<_>>(), "{accepted:?}");
        }
    }
}
