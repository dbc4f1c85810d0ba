//! The ids of the JSON-RPC calls in a refused request. Clients find the call that failed by its id.

use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// Most calls of a batch that get an error each. The response would otherwise be much larger than the request.
const ERRORS_MAX: usize = 100;
/// Longest id that is repeated, in bytes of JSON.
const ID_MAX: usize = 128;

/// The calls that the response to a refused request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallIds {
    /// No call is known that expects a response, so the error has the id `null`.
    #[default]
    Unknown,
    /// The id in JSON, as in the request. It is a text, because a number may have more digits than an integer here can
    /// represent.
    One(Box<str>),
    /// The calls of a batch that expect a response; never empty.
    Batch(Vec<Box<str>>),
}

/// The members that are read of a call.
#[derive(Deserialize)]
struct CallHead<'b> {
    #[serde(borrow)]
    id: Option<&'b RawValue>,
    #[serde(borrow)]
    method: Option<&'b RawValue>,
}

impl CallHead<'_> {
    /// Returns the id of a call that expects a response. Responses of the client, which have no method, expect none.
    fn to_id(&self) -> Option<Box<str>> {
        self.method?;
        let id = self.id.map(RawValue::get).filter(|id| id.len() <= ID_MAX)?;
        let is_id = match id.as_bytes().first()? {
            // A string may have escapes that are none.
            b'"' => serde_json::from_str::<String>(id).is_ok(),
            first => first.is_ascii_digit() || *first == b'-',
        };
        is_id.then(|| id.into())
    }
}

/// The ids in a batch; `None` if they are too many.
struct BatchIds(Option<Vec<Box<str>>>);

impl<'de> Deserialize<'de> for BatchIds {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<BatchIds, D::Error> {
        reader.deserialize_seq(BatchVisitor)
    }
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = BatchIds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a batch")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<BatchIds, A::Error> {
        let mut ids = Vec::new();
        while let Some(call) = items.next_element::<CallHead>()? {
            let Some(id) = call.to_id() else { continue };
            if ids.len() == ERRORS_MAX {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(BatchIds(None));
            }
            ids.push(id);
        }
        Ok(BatchIds(Some(ids).filter(|ids| !ids.is_empty())))
    }
}

impl CallIds {
    /// Reads the ids in a JSON document.
    pub fn read(document: &[u8]) -> CallIds {
        let calls = match document.trim_ascii_start().first() {
            Some(b'[') => {
                let batch: Option<BatchIds> = serde_json::from_slice(document).ok();
                batch.and_then(|batch| batch.0).map(CallIds::Batch)
            }
            Some(b'{') => {
                let call: Option<CallHead> = serde_json::from_slice(document).ok();
                call.and_then(|call| call.to_id()).map(CallIds::One)
            }
            _ => None,
        };
        calls.unwrap_or_default()
    }

    /// Returns the response to the calls: this error for each of them.
    pub fn to_response(&self, error: &Value) -> String {
        let of = |id: &str| format!("{{\"error\":{error},\"id\":{id},\"jsonrpc\":\"2.0\"}}");
        match self {
            CallIds::Unknown => of("null"),
            CallIds::One(id) => of(id),
            CallIds::Batch(ids) => format!("[{}]", ids.iter().map(|id| of(id)).collect::<Vec<_>>().join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_that_expect_a_response_have_an_id() {
        for (document, expected) in [
            (r#"{"id":7,"method":"a"}"#, CallIds::One("7".into())),
            (r#" {"method":"a","id":"x\u0041"}"#, CallIds::One(r#""x\u0041""#.into())),
            (r#"{"id":18446744073709551615,"method":"a"}"#, CallIds::One("18446744073709551615".into())),
            (
                r#"[{"id":1,"method":"a"},{"method":"b"},{"id":"2","method":"c"}]"#,
                CallIds::Batch(vec!["1".into(), "\"2\"".into()]),
            ),
            (r#"[{"method":"b"}]"#, CallIds::Unknown),
            (r#"{"method":"a"}"#, CallIds::Unknown),
            (r#"{"id":7,"result":{}}"#, CallIds::Unknown),
            (r#"{"id":7,"id":8,"method":"a"}"#, CallIds::Unknown),
            (r#"{"id":1.5,"method":"a"}"#, CallIds::One("1.5".into())),
            (r#"{"id":-12345678901234567890123,"method":"a"}"#, CallIds::One("-12345678901234567890123".into())),
            (r#"{"id":"\ud800","method":"a"}"#, CallIds::Unknown),
            (r#"{"id":true,"method":"a"}"#, CallIds::Unknown),
            (r#"{"id":{"a":1},"method":"a"}"#, CallIds::Unknown),
            (r#"{"id":null,"method":"a"}"#, CallIds::Unknown),
            (r#"{"id":[1],"method":"a"}"#, CallIds::Unknown),
            ("[1]", CallIds::Unknown),
            ("7", CallIds::Unknown),
            ("", CallIds::Unknown),
            ("[", CallIds::Unknown),
        ] {
            assert_eq!(CallIds::read(document.as_bytes()), expected, "{document}");
        }
        let long = format!(r#"{{"id":"{}","method":"a"}}"#, "x".repeat(ID_MAX));
        assert_eq!(CallIds::read(long.as_bytes()), CallIds::Unknown);
        let batch = |calls: usize| format!("[{}]", vec![r#"{"id":1,"method":"a"}"#; calls].join(","));
        assert!(matches!(CallIds::read(batch(ERRORS_MAX).as_bytes()), CallIds::Batch(ids) if ids.len() == ERRORS_MAX));
        assert_eq!(CallIds::read(batch(ERRORS_MAX + 1).as_bytes()), CallIds::Unknown);
    }

    #[test]
    fn each_call_of_a_batch_gets_the_error() {
        let error = json!({ "code": -1 });
        let parsed = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let two = CallIds::Batch(vec!["1".into(), "\"b\"".into()]).to_response(&error);
        assert_eq!(
            parsed(two),
            json!([{ "jsonrpc": "2.0", "id": 1, "error": error }, { "jsonrpc": "2.0", "id": "b", "error": error }])
        );
        assert_eq!(parsed(CallIds::Unknown.to_response(&error))["id"], Value::Null);
    }
}
