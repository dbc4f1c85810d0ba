//! Reads JSON bodies of the admin listener member by member. Every error is recorded with its place, a JSON pointer.
//! Called by the other files of this directory.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;

use http::StatusCode;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::admin::problem::Problem;
use crate::config::find_closest;

/// Errors of one body.
#[derive(Default)]
pub struct Faults(RefCell<Vec<JsonFault>>);

struct JsonFault {
    pointer: String,
    detail: String,
    unknown_limit: bool,
}

/// A value and its place.
pub struct JsonNode<'a> {
    value: &'a Value,
    pointer: String,
    faults: &'a Faults,
}

/// Maximum number of errors reported per body.
const FAULTS_MAX: usize = 20;

/// A value whose objects have no member twice.
struct UniqueValue(Value);

struct UniqueVisitor;

pub fn parse_body(body: &[u8]) -> Result<Value, Problem> {
    let result = serde_json::from_slice::<UniqueValue>(body).map(|UniqueValue(value)| value);
    result.map_err(|error| match error.is_data() {
        true => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the body is wrong: {error}")),
        false => Problem::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")),
    })
}

impl<'de> Deserialize<'de> for UniqueValue {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<UniqueValue, D::Error> {
        input.deserialize_any(UniqueVisitor)
    }
}

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = UniqueValue;

    fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
        text.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<UniqueValue, E> {
        Ok(UniqueValue(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<UniqueValue, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueValue(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(UniqueValue(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<UniqueValue, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if object.contains_key(&name) {
                let short_name: String = name.chars().take(64).collect();
                return Err(A::Error::custom(format!("the member `{short_name}` occurs twice")));
            }
            let UniqueValue(value) = members.next_value()?;
            object.insert(name, value);
        }
        Ok(UniqueValue(object.into()))
    }
}

impl Faults {
    pub fn root<'a>(&'a self, value: &'a Value) -> JsonNode<'a> {
        JsonNode { value, pointer: "#".to_owned(), faults: self }
    }

    fn add_fault(&self, pointer: &str, detail: impl Into<String>, unknown_limit: bool) {
        let mut faults = self.0.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(JsonFault { pointer: pointer.to_owned(), detail: detail.into(), unknown_limit });
        }
    }

    /// Returns `found`, unless there was any error.
    pub fn into_result<T>(self, found: Option<T>) -> Result<T, Problem> {
        let faults = self.0.into_inner();
        match (found, faults.first()) {
            (Some(found), None) => Ok(found),
            (_, first) => {
                let unknown_limit = !faults.is_empty() && faults.iter().all(|fault| fault.unknown_limit);
                let status = if unknown_limit { StatusCode::NOT_FOUND } else { StatusCode::UNPROCESSABLE_ENTITY };
                let detail = first.map_or("the body is incomplete".to_owned(), |first| {
                    format!("{}: {}", first.pointer, first.detail)
                });
                let errors: Vec<Value> =
                    faults.iter().map(|fault| json!({ "pointer": fault.pointer, "detail": fault.detail })).collect();
                Err(Problem { more: json!({ "errors": errors }), ..Problem::new(status, detail) })
            }
        }
    }
}

impl<'a> JsonNode<'a> {
    pub fn add_fault<T>(&self, detail: impl Into<String>) -> Option<T> {
        self.faults.add_fault(&self.pointer, detail, false);
        None
    }

    pub fn unknown_limit<T>(&self, detail: impl FnOnce() -> String) -> Option<T> {
        if !self.has_enough_faults() {
            self.faults.add_fault(&self.pointer, detail(), true);
        }
        None
    }

    /// Returns whether further errors would not be reported anyway.
    pub fn has_enough_faults(&self) -> bool {
        self.faults.0.borrow().len() >= FAULTS_MAX
    }

    /// Reports members that are not in `known`.
    pub fn check_members(&self, known: &[&str]) -> Option<()> {
        let unknown = self.object()?.keys().filter(|name| !known.contains(&name.as_str()));
        for name in unknown.take_while(|_| !self.has_enough_faults()) {
            let help = match find_closest(name, known.iter().copied()) {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("the members here are {}", known.join(", ")),
            };
            self.at(name, self.value).add_fault::<()>(format!("unknown member; {help}"));
        }
        Some(())
    }

    pub fn get(&self, name: &str) -> Option<JsonNode<'a>> {
        Some(self.at(name, self.value.get(name)?))
    }

    pub fn require(&self, name: &str) -> Option<JsonNode<'a>> {
        self.object()?;
        let member = self.get(name);
        if member.is_none() {
            self.add_fault::<()>(format!("`{name}` is missing"));
        }
        member
    }

    pub fn entries(&self) -> Option<Vec<(&'a str, JsonNode<'a>)>> {
        Some(self.object()?.iter().map(|(name, value)| (name.as_str(), self.at(name, value))).collect())
    }

    pub fn items(&self, len: RangeInclusive<usize>) -> Option<Vec<JsonNode<'a>>> {
        match self.value {
            Value::Array(items) if len.contains(&items.len()) => {
                Some(items.iter().enumerate().map(|(i, value)| self.at(&i.to_string(), value)).collect())
            }
            Value::Array(items) => {
                self.add_fault(format!("{} items; there may be {} to {}", items.len(), len.start(), len.end()))
            }
            _ => self.add_fault("it must be a list"),
        }
    }

    pub fn is(&self, text: &str) -> bool {
        self.value.as_str() == Some(text)
    }

    pub fn is_true(&self) -> bool {
        self.value.as_bool() == Some(true)
    }

    /// Returns the integer; `None` for anything else, which is not an error.
    pub fn plain_integer(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub fn is_object(&self) -> bool {
        self.value.is_object()
    }

    pub fn text(&self) -> Option<&'a str> {
        self.value.as_str().or_else(|| self.add_fault("it must be a string"))
    }

    pub fn integer(&self, range: RangeInclusive<i64>) -> Option<i64> {
        match self.value.as_i64().filter(|int| range.contains(int)) {
            Some(int) => Some(int),
            None => self.add_fault(format!("it must be an integer from {} to {}", range.start(), range.end())),
        }
    }

    fn object(&self) -> Option<&'a Map<String, Value>> {
        self.value.as_object().or_else(|| self.add_fault("it must be an object"))
    }

    fn at(&self, name: &str, value: &'a Value) -> JsonNode<'a> {
        let name = name.replace('~', "~0").replace('/', "~1");
        JsonNode { value, pointer: format!("{}/{name}", self.pointer), faults: self.faults }
    }
}
