//! JSON-RPC calls in the body of a request, one or a batch, and the names that limits read of them: the method, and the
//! tool, prompt or resource of a call of the Model Context Protocol (MCP). GraphQL operations are calls, too; `graphql`
//! reads them.
//!
//! A body that servers could read differently is refused: repeated members, names that only differ in case, which Go
//! servers take for the same, and everything that is not a call. `repeated` of a limit chooses nothing here, because no
//! call of a batch speaks for the others.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::limiting::source::batch::{Batch, is_batch};
use crate::limiting::source::graphql::{GraphqlRequest, read_requests};
use crate::limiting::source::inputs::{Repeated, find_header};
use crate::limiting::source::json_pointer::is_equal_for_some_parsers;
use crate::limiting::source::{Ambiguous, BodyFacts, Source};
use crate::limiting::unreadable_body::UnreadableBody;

const METHOD: &str = "method";
const PARAMS: &str = "params";
const NAME: &str = "name";
const URI: &str = "uri";
const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");

/// A call, as limits see it. A request without a body is a call without names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub method: Option<Box<str>>,
    /// Tool, prompt or resource.
    pub tool: Option<Box<str>>,
    /// The name or URI in `params` of another method, with which `Mcp-Name` is compared.
    pub other_name: Option<Box<str>>,
    /// The request of a GraphQL operation.
    pub graphql: Option<Box<GraphqlRequest>>,
}

/// How the calls in a request are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProtocol {
    JsonRpc,
    Graphql,
}

impl Call {
    /// Returns the value that a source of calls has in this one.
    pub fn value(&self, source: &Source) -> Option<&str> {
        match source {
            Source::JsonRpcMethod => self.method.as_deref(),
            Source::McpTool => self.tool.as_deref(),
            Source::GraphqlOperation => self.graphql.as_ref().and_then(|request| request.operation()),
            _ => None,
        }
    }
}

impl Source {
    /// Returns whether each call in the body has its own value.
    pub fn reads_calls(&self) -> bool {
        self.call_protocol().is_some()
    }

    /// Returns the protocol of the calls of which each has its own value.
    pub fn call_protocol(&self) -> Option<CallProtocol> {
        match self {
            Source::JsonRpcMethod | Source::McpTool => Some(CallProtocol::JsonRpc),
            Source::GraphqlOperation => Some(CallProtocol::Graphql),
            _ => None,
        }
    }
}

/// Reads the calls in a request with these headers and this query. There is always one at least.
///
/// # Errors
/// The request contains something else than calls, servers may read it differently, or a header names another call.
pub fn read_calls(
    protocol: CallProtocol,
    body: &BodyFacts,
    (headers, query): (&HeaderMap, Option<&str>),
) -> Result<Vec<Call>, UnreadableBody> {
    match protocol {
        CallProtocol::JsonRpc => read_json_rpc(body, headers),
        CallProtocol::Graphql => {
            let call = |request| Call { graphql: Some(Box::new(request)), ..Call::default() };
            Ok(read_requests(body, query)?.into_iter().map(call).collect())
        }
    }
}

fn read_json_rpc(body: &BodyFacts, headers: &HeaderMap) -> Result<Vec<Call>, UnreadableBody> {
    let document = match body {
        BodyFacts::None => return Ok(vec![Call::default()]),
        BodyFacts::Form(_) => return Err(UnreadableBody::Type),
        BodyFacts::UnreadableBody(why) => return Err(*why),
        BodyFacts::Json(document) => document,
    };
    let calls = read_document(document)?;
    match check_headers(headers, &calls) {
        true => Ok(calls),
        false => Err(UnreadableBody::OtherCall),
    }
}

/// Reads a call or a batch.
fn read_document(document: &[u8]) -> CallResult<Vec<Call>> {
    let not_calls = |_| UnreadableBody::NotCalls;
    if !is_batch(document) {
        let ReadCall(call) = serde_json::from_slice(document).map_err(not_calls)?;
        return Ok(vec![call?]);
    }
    let batch: Batch<ReadCall> = serde_json::from_slice(document).map_err(not_calls)?;
    let calls: Vec<Call> = batch.calls.into_iter().map(|ReadCall(call)| call).collect::<CallResult<_>>()?;
    if batch.has_more {
        return Err(UnreadableBody::TooManyCalls);
    }
    // An empty batch is an invalid call, to which servers respond.
    Ok(if calls.is_empty() { vec![Call::default()] } else { calls })
}

/// Returns the value of a source that all calls have in common.
///
/// # Errors
/// The calls have different values.
pub fn find_common<'c>(calls: &'c [Call], source: &Source) -> Result<Option<Cow<'c, [u8]>>, Ambiguous> {
    let mut values = calls.iter().map(|call| call.value(source));
    let first = values.next().flatten();
    match values.all(|value| value == first) {
        true => Ok(first.map(|value| value.as_bytes().into())),
        false => Err(Ambiguous),
    }
}

/// Returns whether `Mcp-Method` and `Mcp-Name` name each call of the body. Without these headers, they do.
fn check_headers(headers: &HeaderMap, calls: &[Call]) -> bool {
    let header_value = |name: &HeaderName| find_header(headers, name, Repeated::Refuse);
    let (Ok(method), Ok(name)) = (header_value(&MCP_METHOD), header_value(&MCP_NAME)) else { return false };
    let has_method = |call: &Call| {
        let call_method = call.method.as_deref().map(str::as_bytes);
        method.as_deref().is_none_or(|method| call_method == Some(&*decode_stated(method)))
    };
    let has_name = |call: &Call| {
        let Some(name) = name.as_deref() else { return true };
        let call_name = call.tool.as_deref().or(call.other_name.as_deref()).map(str::as_bytes);
        match call_name {
            Some(call_name) => call_name == &*decode_stated(name),
            // Other methods may have names that are not known here.
            None => call.method.as_deref().is_some_and(|method| !is_named(method)),
        }
    };
    calls.iter().all(|call| has_method(call) && has_name(call))
}

/// Decodes the value of a header of MCP: `=?base64?...?=` contains what has other characters than visible ASCII.
fn decode_stated(value: &[u8]) -> Cow<'_, [u8]> {
    let digits = value.strip_prefix(b"=?base64?").and_then(|rest| rest.strip_suffix(b"?="));
    match digits.and_then(|digits| STANDARD.decode(digits).ok()) {
        Some(decoded) => decoded.into(),
        None => value.into(),
    }
}

/// Returns whether calls of the method name a tool, prompt or resource.
pub fn is_named(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Result of reading a part of a body, beside errors of the JSON itself.
type CallResult<T> = Result<T, UnreadableBody>;

/// Declares what a visitor that expects one type of values does with the others.
macro_rules! no_other_values {
    ($Value:ty, $otherwise:expr, $($visit:ident($Type:ty)),*) => {
        $(fn $visit<E: Error>(self, _: $Type) -> Result<$Value, E> {
            Ok($otherwise)
        })*

        fn visit_unit<E: Error>(self) -> Result<$Value, E> {
            Ok($otherwise)
        }

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("JSON")
        }
    };
}

/// A call, or the reason why the JSON is not one.
struct ReadCall(CallResult<Call>);

impl<'de> Deserialize<'de> for ReadCall {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<ReadCall, D::Error> {
        reader.deserialize_any(CallVisitor).map(ReadCall)
    }
}

struct CallVisitor;

impl<'de> Visitor<'de> for CallVisitor {
    type Value = CallResult<Call>;

    no_other_values!(
        Self::Value,
        Err(UnreadableBody::NotCalls),
        visit_str(&str),
        visit_bool(bool),
        visit_u64(u64),
        visit_i64(i64),
        visit_f64(f64)
    );

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Err(UnreadableBody::NotCalls))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let (mut method, mut params, mut is_ambiguous) = (None, None, false);
        while let Some(member) = members.next_key::<String>()? {
            match member.as_str() {
                METHOD => is_ambiguous |= method.replace(members.next_value_seed(Text)?).is_some(),
                PARAMS => is_ambiguous |= params.replace(members.next_value_seed(Params)?).is_some(),
                other => {
                    is_ambiguous |= [METHOD, PARAMS].iter().any(|name| is_equal_for_some_parsers(name, other));
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        if is_ambiguous {
            return Ok(Err(UnreadableBody::NotCalls));
        }
        Ok(method.unwrap_or(Ok(None)).and_then(|method| Call::new(method, params.unwrap_or_default())))
    }
}

impl Call {
    fn new(method: Option<Box<str>>, params: NamedParams) -> CallResult<Call> {
        let is_named = method.as_deref().is_some_and(is_named);
        if !is_named {
            let other_name = params.name.ok().flatten().or(params.uri.ok().flatten());
            return Ok(Call { method, other_name, ..Call::default() });
        }
        let tool = if method.as_deref() == Some("resources/read") { params.uri } else { params.name };
        Ok(Call { method, tool: tool?, ..Call::default() })
    }
}

/// Reads a text.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = CallResult<Option<Box<str>>>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = CallResult<Option<Box<str>>>;

    no_other_values!(
        Self::Value,
        Err(UnreadableBody::NotCalls),
        visit_bool(bool),
        visit_u64(u64),
        visit_i64(i64),
        visit_f64(f64)
    );

    /// Some parsers end a text at a zero byte.
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(if text.contains('\0') { Err(UnreadableBody::NotCalls) } else { Ok(Some(text.into())) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Err(UnreadableBody::NotCalls))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Err(UnreadableBody::NotCalls))
    }
}

/// Names in `params`.
struct NamedParams {
    name: CallResult<Option<Box<str>>>,
    uri: CallResult<Option<Box<str>>>,
}

impl Default for NamedParams {
    fn default() -> NamedParams {
        NamedParams { name: Ok(None), uri: Ok(None) }
    }
}

/// Reads the names in `params`. Those of most methods are lists, which have none.
struct Params;

impl<'de> DeserializeSeed<'de> for Params {
    type Value = NamedParams;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Params {
    type Value = NamedParams;

    no_other_values!(
        Self::Value,
        NamedParams::default(),
        visit_str(&str),
        visit_bool(bool),
        visit_u64(u64),
        visit_i64(i64),
        visit_f64(f64)
    );

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(NamedParams::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let (mut name, mut uri, mut is_ambiguous) = (None, None, false);
        while let Some(member) = members.next_key::<String>()? {
            match member.as_str() {
                NAME => is_ambiguous |= name.replace(members.next_value_seed(Text)?).is_some(),
                URI => is_ambiguous |= uri.replace(members.next_value_seed(Text)?).is_some(),
                other => {
                    is_ambiguous |= [NAME, URI].iter().any(|name| is_equal_for_some_parsers(name, other));
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        if is_ambiguous {
            return Ok(NamedParams { name: Err(UnreadableBody::NotCalls), uri: Err(UnreadableBody::NotCalls) });
        }
        Ok(NamedParams { name: name.unwrap_or(Ok(None)), uri: uri.unwrap_or(Ok(None)) })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::limiting::source::CALLS_MAX;

    fn read(document: &str) -> Result<Vec<Call>, UnreadableBody> {
        read_json_rpc(&BodyFacts::Json(document.as_bytes()), &HeaderMap::new())
    }

    fn names(document: &str) -> Vec<(Option<String>, Option<String>)> {
        let text = |name: Option<Box<str>>| name.map(String::from);
        read(document).unwrap().into_iter().map(|call| (text(call.method), text(call.tool))).collect()
    }

    fn named(method: &str, tool: Option<&str>) -> (Option<String>, Option<String>) {
        (Some(method.to_owned()), tool.map(str::to_owned))
    }

    #[test]
    fn methods_and_tools_are_read_however_they_are_written() {
        for (document, expected) in [
            (r#"{"method":"\u0065th_call","params":[{"name":1}]}"#, named("eth_call", None)),
            (r#"{"params":{"name":"s"},"method":"tools/call"}"#, named("tools/call", Some("s"))),
            (r#"{"method":"prompts/get","params":{"uri":"u","name":"p"}}"#, named("prompts/get", Some("p"))),
            (r#"{"method":"resources/read","params":{"uri":"u","name":"p"}}"#, named("resources/read", Some("u"))),
            (r#"{"method":"tools/call"}"#, named("tools/call", None)),
            (r#"{"method":"other","params":{"name":1,"Name":2}}"#, named("other", None)),
        ] {
            assert_eq!(names(document), [expected], "{document}");
        }
        for document in [r#"{"id":1,"result":{}}"#, "{}", "[]"] {
            assert_eq!(names(document), [(None, None)], "{document}");
        }
        assert_eq!(names(r#"[{"method":"a"},{"method":"b"}]"#), [named("a", None), named("b", None)]);
        assert_eq!(read_json_rpc(&BodyFacts::None, &HeaderMap::new()), Ok(vec![Call::default()]));
    }

    #[test]
    fn bodies_that_servers_read_differently_are_refused() {
        for document in [
            r#"{"method":"a","method":"b"}"#,
            r#"{"method":"a","Method":"b"}"#,
            r#"{"Method":"b"}"#,
            r#"{"method\u0000":"b"}"#,
            r#"{"method":"a\u0000b"}"#,
            r#"{"method":["a"]}"#,
            r#"{"method":1}"#,
            r#"{"method":null}"#,
            r#"{"method":"tools/call","params":{"name":"a","name":"b"}}"#,
            r#"{"method":"tools/call","params":{"name":"a","NAME":"b"}}"#,
            r#"{"method":"tools/call","params":{"name":{}}}"#,
            r#"{"method":"tools/call","params":{"name":"a"},"params":{"name":"b"}}"#,
            r#"[{"method":"a"},[{"method":"b"}]]"#,
            r#"[{"method":"a"},7]"#,
            "7",
            "\"x\"",
            "null",
        ] {
            assert_eq!(read(document), Err(UnreadableBody::NotCalls), "{document}");
        }
        let batch = |calls: usize| format!("[{}]", vec!["{}"; calls].join(","));
        assert_eq!(read(&batch(CALLS_MAX)).unwrap().len(), CALLS_MAX);
        assert_eq!(read(&batch(CALLS_MAX + 1)), Err(UnreadableBody::TooManyCalls));
        assert_eq!(read_json_rpc(&BodyFacts::Form("a=b"), &HeaderMap::new()), Err(UnreadableBody::Type));
    }

    #[test]
    fn the_headers_of_mcp_name_the_call() {
        let search = r#"{"method":"tools/call","params":{"name":"süß"}}"#;
        let subscribe = r#"{"method":"resources/subscribe","params":{"uri":"u"}}"#;
        let batch = r#"[{"method":"a"},{"method":"b"}]"#;
        for (document, fields, is_same) in [
            (search, vec![], true),
            (search, vec![(MCP_METHOD, "tools/call"), (MCP_NAME, "=?base64?c8O8w58=?=")], true),
            (search, vec![(MCP_METHOD, "tools/list")], false),
            (search, vec![(MCP_METHOD, "Tools/call")], false),
            (search, vec![(MCP_NAME, "other")], false),
            (search, vec![(MCP_METHOD, "tools/call"), (MCP_METHOD, "tools/call")], false),
            (r#"{"method":"tools/call"}"#, vec![(MCP_NAME, "other")], false),
            (subscribe, vec![(MCP_NAME, "u")], true),
            (subscribe, vec![(MCP_NAME, "v")], false),
            (r#"{"method":"tasks/get","params":{"taskId":"7"}}"#, vec![(MCP_NAME, "7")], true),
            (r#"{"result":1}"#, vec![(MCP_METHOD, "tools/call")], false),
            (batch, vec![(MCP_METHOD, "a")], false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in &fields {
                headers.append(name, HeaderValue::from_str(value).unwrap());
            }
            let calls = read_json_rpc(&BodyFacts::Json(document.as_bytes()), &headers);
            assert_eq!(calls.is_ok(), is_same, "{document} {fields:?}");
            assert!(is_same || calls == Err(UnreadableBody::OtherCall));
        }
    }

    #[test]
    fn calls_of_a_batch_have_a_value_if_it_is_the_same() {
        let common = |document: &str| {
            let calls = read(document).unwrap();
            let found = find_common(&calls, &Source::JsonRpcMethod);
            found.map(|value| value.map(|value| String::from_utf8(value.into_owned()).unwrap()))
        };
        assert_eq!(common(r#"[{"method":"a"},{"method":"a"}]"#), Ok(Some("a".to_owned())));
        assert_eq!(common(r#"[{"method":"a"},{"method":"b"}]"#), Err(Ambiguous));
        assert_eq!(common(r#"[{"method":"a"},{}]"#), Err(Ambiguous));
        assert_eq!(common("[{},{}]"), Ok(None));
    }
}
