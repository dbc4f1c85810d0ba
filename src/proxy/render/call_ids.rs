//! The ids of the JSON-RPC calls in a refused request. Clients find the call that failed by its id.

use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Most calls of a batch that get an error each. The response would otherwise be much larger than the request.
const ERRORS_MAX: usize = 100;
/// Longest id that is repeated, in bytes of JSON.
const ID_MAX: usize = 128;

/// What the response to a refused request has to name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallIds {
    /// No call that expects a response is known: the error has the id `null`.
    #[default]
    Unknown,
    One(Value),
    /// Those of a batch, as far as they expect a response; never empty.
    Batch(Vec<Value>),
}

/// What is read of a call.
#[derive(Deserialize)]
struct CallHead<'b> {
    #[serde(borrow)]
    id: Option<&'b RawValue>,
    #[serde(borrow)]
    method: Option<&'b RawValue>,
}

impl CallHead<'_> {
    /// Returns the id of a call that expects a response. Responses of the client, which have no method, expect none.
    fn to_id(&self) -> Option<Value> {
        self.method?;
        let id = self.id.filter(|id| id.get().len() <= ID_MAX)?;
        let id: Value = serde_json::from_str(id.get()).ok()?;
        (id.is_string() || id.is_i64() || id.is_u64()).then_some(id)
    }
}

/// The ids in a batch; `None` if they are too many.
struct BatchIds(Option<Vec<Value>>);

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
        let found = match document.trim_ascii_start().first() {
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
        found.unwrap_or_default()
    }

    /// Returns the response to the calls: this error for each of them.
    pub fn to_response(&self, error: &Value) -> Value {
        let of = |id: &Value| json!({ "jsonrpc": "2.0", "id": id, "error": error });
        match self {
            CallIds::Unknown => of(&Value::Null),
            CallIds::One(id) => of(id),
            CallIds::Batch(ids) => ids.iter().map(of).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_expect_a_response_have_an_id() {
        for (document, expected) in [
            (r#"{"id":7,"method":"a"}"#, CallIds::One(json!(7))),
            (r#" {"method":"a","id":"x\u0041"}"#, CallIds::One(json!("xA"))),
            (r#"{"id":18446744073709551615,"method":"a"}"#, CallIds::One(json!(u64::MAX))),
            (
                r#"[{"id":1,"method":"a"},{"method":"b"},{"id":"2","method":"c"}]"#,
                CallIds::Batch(vec![json!(1), json!("2")]),
            ),
            (r#"[{"method":"b"}]"#, CallIds::Unknown),
            (r#"{"method":"a"}"#, CallIds::Unknown),
            (r#"{"id":7,"result":{}}"#, CallIds::Unknown),
            (r#"{"id":7,"id":8,"method":"a"}"#, CallIds::Unknown),
            (r#"{"id":1.5,"method":"a"}"#, CallIds::Unknown),
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
        let two = CallIds::Batch(vec![json!(1), json!("b")]).to_response(&error);
        assert_eq!(
            two,
            json!([{ "jsonrpc": "2.0", "id": 1, "error": error }, { "jsonrpc": "2.0", "id": "b", "error": error }])
        );
        assert_eq!(CallIds::Unknown.to_response(&error)["id"], Value::Null);
    }
}
