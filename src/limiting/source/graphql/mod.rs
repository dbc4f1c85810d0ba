//! GraphQL requests in the body or the query of a request: one, or those of a batch.
//!
//! A request that servers could read differently is refused: repeated members, names that only differ in case, a query
//! in the body and in the target.
//!
//! Input: a body and a query. Output: requests, each with its parsed document (`document`) and its variables, from
//! which `limit::graphql_cost` estimates the cost. To read more of a document, add a field to `document`.

pub mod document;

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::limiting::source::BodyFacts;
use crate::limiting::source::batch::{Batch, is_batch};
use crate::limiting::source::graphql::document::{Document, Name, TOKENS_MAX};
use crate::limiting::source::inputs::{Repeated, find_query};
use crate::limiting::source::json_pointer::is_equal_for_some_parsers;
use crate::limiting::unreadable_body::UnreadableBody;

const QUERY: &str = "query";
const VARIABLES: &str = "variables";
const OPERATION_NAME: &str = "operationName";
/// Members by which servers find a stored query.
const STORED: &[&str] = &["id", "documentId", "doc_id", "docId", "queryId", "hash", "key"];
/// Those of them that are often something else in a URL, such as an API key.
const AMBIGUOUS_IN_TARGET: &[&str] = &["hash", "key"];
/// Most variables of a request.
const VARIABLES_MAX: usize = 1000;

/// One request to a GraphQL server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphqlRequest {
    /// `None` if the server has to know the query, because the request only has its hash or its name.
    pub document: Option<Document>,
    /// The request has a name for a stored query, which some servers execute instead of the query in it.
    pub names_stored: bool,
    pub operation_name: Option<Name>,
    /// The values of variables, as JSON.
    pub variables: HashMap<Name, Box<str>>,
}

/// Result of reading a request.
type RequestResult = Result<GraphqlRequest, UnreadableBody>;

const WRONG: UnreadableBody = UnreadableBody::NotGraphql;

impl GraphqlRequest {
    /// Returns the name of the operation that is executed.
    pub fn operation(&self) -> Option<&str> {
        let executed =
            self.document.as_ref().and_then(|document| document.find_operation(self.operation_name.as_deref()));
        executed.map_or(self.operation_name.as_deref(), |operation| operation.name.as_deref())
    }

    /// Returns whether the request is only the name of a stored query.
    fn has_only_name(&self) -> bool {
        self.names_stored && self.document.is_none() && self.operation_name.is_none() && self.variables.is_empty()
    }

    /// Reads a request from the members of a JSON object. `tokens_left`: of all requests of the batch.
    fn from_members(members: &[(String, &RawValue)], tokens_left: &mut usize) -> RequestResult {
        let names = [QUERY, VARIABLES, OPERATION_NAME];
        let mut values = [None; 3];
        let mut names_stored = false;
        for (member, value) in members {
            let is_null = value.get() == "null";
            match names.iter().position(|name| name == member) {
                Some(at) if values[at].replace(*value).is_some() => return Err(WRONG),
                Some(_) => {}
                None if names.iter().any(|name| is_equal_for_some_parsers(name, member)) => return Err(WRONG),
                None => names_stored |= !is_null && STORED.iter().any(|name| is_equal_for_some_parsers(name, member)),
            }
        }
        let text = |value: Option<&RawValue>| match value {
            Some(value) if value.get() != "null" => serde_json::from_str::<String>(value.get()).map(Some),
            _ => Ok(None),
        };
        let [query, variables, operation_name] = values;
        let (Ok(query), Ok(operation_name)) = (text(query), text(operation_name)) else { return Err(WRONG) };
        // Some clients send the object as a text.
        let quoted_text: Option<String> = variables.and_then(|variables| serde_json::from_str(variables.get()).ok());
        let variables = quoted_text.as_deref().or(variables.map(RawValue::get));
        GraphqlRequest::new(query.as_deref(), variables, (operation_name, names_stored), tokens_left)
    }

    /// Reads a request from the query of the target. Returns `None` if there is none.
    fn from_target(query: Option<&str>) -> Result<Option<GraphqlRequest>, UnreadableBody> {
        let find = |name: &str| {
            let query_text = find_query(query, name, Repeated::Refuse).map_err(|_| WRONG)?;
            query_text.map(|value| String::from_utf8(value.into_owned()).map_err(|_| WRONG)).transpose()
        };
        let (text, variables, operation_name) = (find(QUERY)?, find(VARIABLES)?, find(OPERATION_NAME)?);
        let mut names_stored = find("extensions")?.is_some() && text.is_none();
        for name in STORED.iter().filter(|name| !AMBIGUOUS_IN_TARGET.contains(name)) {
            names_stored |= find(name)?.is_some();
        }
        if text.is_none() && variables.is_none() && operation_name.is_none() && !names_stored {
            return Ok(None);
        }
        let mut left = TOKENS_MAX;
        GraphqlRequest::new(text.as_deref(), variables.as_deref(), (operation_name, names_stored), &mut left).map(Some)
    }

    fn new(
        query: Option<&str>,
        variables: Option<&str>,
        (operation_name, names_stored): (Option<String>, bool),
        tokens_left: &mut usize,
    ) -> RequestResult {
        let operation_name = operation_name.filter(|name| !name.is_empty()).map(String::into_boxed_str);
        let document = match query.filter(|query| !query.is_empty()) {
            Some(query) => Some(Document::parse(query, tokens_left).ok_or(WRONG)?),
            None => None,
        };
        if let Some(document) = &document
            && document.find_operation(operation_name.as_deref()).is_none()
        {
            return Err(WRONG);
        }
        let variables = match variables.map(str::trim_ascii).filter(|text| !matches!(*text, "" | "null")) {
            Some(text) => read_variables(text)?,
            None => HashMap::new(),
        };
        Ok(GraphqlRequest { document, names_stored, operation_name, variables })
    }
}

/// Reads the variables that an operation may use as a number of items.
fn read_variables(text: &str) -> Result<HashMap<Name, Box<str>>, UnreadableBody> {
    let members: Members = serde_json::from_str(text).map_err(|_| WRONG)?;
    if members.0.len() > VARIABLES_MAX {
        return Err(WRONG);
    }
    let mut variables = HashMap::new();
    for (name, value) in members.0 {
        if variables.insert(name.into_boxed_str(), value.get().into()).is_some() {
            return Err(WRONG);
        }
    }
    Ok(variables)
}

/// The members of a JSON object in order, with those that occur twice.
struct Members<'b>(Vec<(String, &'b RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Members<'de>, D::Error> {
        reader.deserialize_map(RequestVisitor)
    }
}

struct RequestVisitor;

impl<'de> Visitor<'de> for RequestVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Members<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some((name, value)) = members.next_entry::<String, &RawValue>()? {
            // No request has so many, and a list of them takes many times the memory of the body.
            if list.len() > VARIABLES_MAX {
                return Err(Error::custom("too many members"));
            }
            list.push((name, value));
        }
        Ok(Members(list))
    }
}

/// Reads the requests in a body, or the one in the query of a target. There is always one at least.
///
/// # Errors
/// A request has something else than a query, or servers may read another one.
pub fn read_requests(body: &BodyFacts, query: Option<&str>) -> Result<Vec<GraphqlRequest>, UnreadableBody> {
    let in_target = GraphqlRequest::from_target(query)?;
    let document = match body {
        BodyFacts::None => return Ok(vec![in_target.unwrap_or_default()]),
        BodyFacts::Form(_) => return Err(UnreadableBody::Type),
        BodyFacts::UnreadableBody(why) => return Err(*why),
        BodyFacts::Json(document) => document,
    };
    // Some servers prefer the query in the target, and some combine the two. Its name alone may replace each query.
    let is_named_in_target = match in_target {
        Some(request) if request.has_only_name() => true,
        Some(_) => return Err(WRONG),
        None => false,
    };
    let mut left = TOKENS_MAX;
    let mut read = |members: &Members| {
        let mut request = GraphqlRequest::from_members(&members.0, &mut left)?;
        request.names_stored |= is_named_in_target;
        Ok(request)
    };
    if !is_batch(document) {
        let members: Members = serde_json::from_slice(document).map_err(|_| WRONG)?;
        return Ok(vec![read(&members)?]);
    }
    let batch: Batch<Members> = serde_json::from_slice(document).map_err(|_| WRONG)?;
    if batch.has_more {
        return Err(UnreadableBody::TooManyCalls);
    }
    let requests: Vec<_> = batch.calls.iter().map(read).collect::<Result<_, _>>()?;
    Ok(if requests.is_empty() { vec![GraphqlRequest::default()] } else { requests })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::source::CALLS_MAX;

    fn read(document: &str, query: Option<&str>) -> Result<Vec<GraphqlRequest>, UnreadableBody> {
        read_requests(&BodyFacts::Json(document.as_bytes()), query)
    }

    fn operations(document: &str) -> Vec<Option<String>> {
        read(document, None).unwrap().iter().map(|request| request.operation().map(str::to_owned)).collect()
    }

    #[test]
    fn the_operation_is_the_one_that_servers_execute() {
        let two = r#"query A { a } query B { b }"#;
        for (document, expected) in [
            (r#"{"query":"{ a }"}"#.to_owned(), None),
            (r#"{"query":"query A { a }","operationName":null,"variables":null}"#.to_owned(), Some("A")),
            (r#"{"query":"query A { a }","operationName":""}"#.to_owned(), Some("A")),
            (format!(r#"{{"operationName":"B","query":"{two}"}}"#), Some("B")),
            (r#"{"operationName":"C","extensions":{"persistedQuery":{"sha256Hash":"x"}}}"#.to_owned(), Some("C")),
        ] {
            assert_eq!(operations(&document), [expected.map(str::to_owned)], "{document}");
        }
        assert_eq!(operations(r#"[{"query":"query A { a }"},{"query":"{ b }"}]"#), [Some("A".to_owned()), None]);
        assert_eq!(read("[]", None), Ok(vec![GraphqlRequest::default()]));
        for (document, names_stored) in [
            (r#"{"query":"{ a }","id":"x"}"#, true),
            (r#"{"query":"{ a }","ID":"x"}"#, true),
            (r#"{"query":"{ a }","documentid":"x"}"#, true),
            (r#"{"query":"{ a }","id":null}"#, false),
            (r#"{"query":"{ a }","ids":"x"}"#, false),
        ] {
            assert_eq!(read(document, None).unwrap()[0].names_stored, names_stored, "{document}");
        }
        for (query, names_stored) in [("id=7", true), ("key=K&hash=1", false), ("apikey=K&v=1", false)] {
            assert_eq!(read(r#"{"query":"{ a }"}"#, Some(query)).unwrap()[0].names_stored, names_stored, "{query}");
        }
        let text = read(r#"{"query":"query($n:Int){a}","variables":"{\"n\":5}"}"#, None).unwrap();
        assert_eq!(&*text[0].variables["n"], "5");
        let target = read_requests(&BodyFacts::None, Some("query=%7Ba%7D&variables=%7B%22n%22:1%7D")).unwrap();
        assert!(target[0].document.is_some() && &*target[0].variables["n"] == "1");
        assert_eq!(read_requests(&BodyFacts::None, None), Ok(vec![GraphqlRequest::default()]));
    }

    #[test]
    fn requests_that_servers_read_differently_are_refused() {
        for (document, query) in [
            (r#"{"query":"{ a }","query":"{ b }"}"#, None),
            (r#"{"query":"{ a }","Query":"{ b }"}"#, None),
            (r#"{"query":["{ a }"]}"#, None),
            (r#"{"query":"{ a"}"#, None),
            (r#"{"query":"{ a }","operationName":"B"}"#, None),
            (r#"{"query":"query A { a } query B { b }"}"#, None),
            (r#"{"query":"{ a }","operationName":5}"#, None),
            (r#"{"query":"{ a }","variables":[1]}"#, None),
            (r#"{"query":"{ a }","variables":"x"}"#, None),
            (r#"{"query":"{ a }","variables":{"n":1,"n":2}}"#, None),
            (r#"{"query":"{ a }","variables":{},"variables":{"n":2}}"#, None),
            (r#"[{"query":"{ a }"},7]"#, None),
            (r#"[[{"query":"{ a }"}]]"#, None),
            ("7", None),
            (r#"{"query":"{ a }"}"#, Some("query=%7Bb%7D")),
            (r#"{"query":"{ a }"}"#, Some("variables=%7B%7D")),
            (r#"{"query":"{ a }"}"#, Some("x=1&query=a&query=b")),
        ] {
            assert_eq!(read(document, query), Err(UnreadableBody::NotGraphql), "{document} {query:?}");
        }
        let batch = |calls: usize| format!("[{}]", vec![r#"{"query":"{a}"}"#; calls].join(","));
        assert_eq!(read(&batch(CALLS_MAX), None).unwrap().len(), CALLS_MAX);
        assert_eq!(read(&batch(CALLS_MAX + 1), None), Err(UnreadableBody::TooManyCalls));
        let wide = format!(r#"{{"query":"{{{}}}"}}"#, "a ".repeat(TOKENS_MAX / 3));
        assert!(read(&wide, None).is_ok());
        assert_eq!(read(&format!("[{wide},{wide}]"), None), Err(UnreadableBody::NotGraphql), "a batch has one bound");
        assert!(read(r#"{"query":"{ a }"}"#, Some("x=1")).is_ok());
    }
}
