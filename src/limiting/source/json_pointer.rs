//! JSON Pointers: which value of a document a key, a condition or a cost reads.

use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::limiting::integers::integer;
use crate::limiting::source::canonical::Ambiguous;
use crate::limiting::source::inputs::{FoundValue, Repeated};
use crate::names::{TextFault, invalid_text};

/// A JSON Pointer (RFC 6901), from the first `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer {
    text: String,
    /// Names of members, or indexes of items, unescaped.
    tokens: Vec<String>,
}

impl JsonPointer {
    /// Parses a pointer.
    ///
    /// # Errors
    /// The text is not a pointer, or refers to the whole document.
    pub fn parse(text: &str) -> Result<JsonPointer, TextFault> {
        const HELP: &str =
            "write \"json:/user\", \"json:/login/name\" or \"json:/items/0\"; `~0` is a `~` and `~1` a `/`";
        let Some(rest) = text.strip_prefix('/').filter(|_| text.len() <= 128 && !text.chars().any(char::is_control))
        else {
            return invalid_text(format!("`{text}` is not a JSON pointer of 1 to 128 bytes"), HELP);
        };
        let unescaped = |token: &str| {
            let mut escapes = token.split('~').skip(1);
            escapes.all(|rest| rest.starts_with(['0', '1'])).then(|| token.replace("~1", "/").replace("~0", "~"))
        };
        match rest.split('/').map(unescaped).collect() {
            Some(tokens) => Ok(JsonPointer { text: text.to_owned(), tokens }),
            None => invalid_text(format!("`{text}` has a `~` that escapes nothing"), HELP),
        }
    }

    /// Makes the pointer to a member of the document. `name` needs no escapes.
    pub fn member(name: &str) -> JsonPointer {
        JsonPointer { text: format!("/{name}"), tokens: vec![name.to_owned()] }
    }

    /// Returns the pointer as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the names of members and indexes of items, from the root.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Returns the last token: the name of the value.
    pub fn name(&self) -> &str {
        self.tokens.last().map_or("", String::as_str)
    }

    /// Returns the string, number or boolean at the pointer in a valid document; `None` if it is absent or null.
    /// Numbers are formatted by value, so that 7, 7.0 and 7e0 are equal.
    pub fn find<'d>(&self, document: &'d [u8], repeated: Repeated) -> FoundValue<'d> {
        let mut reader = serde_json::Deserializer::from_slice(document);
        let result = Walk { tokens: &self.tokens, repeated, is_count: false }.deserialize(&mut reader);
        result.unwrap_or(Err(Ambiguous)).map(|value| value.map(|text| text.into_bytes().into()))
    }

    /// Counts the elements of the array at the pointer in a valid document; `None` if there is none.
    ///
    /// # Errors
    /// There are several, and `repeated` does not choose one.
    pub fn count_elements(&self, document: &[u8], repeated: Repeated) -> Result<Option<i64>, Ambiguous> {
        let mut reader = serde_json::Deserializer::from_slice(document);
        let result = Walk { tokens: &self.tokens, repeated, is_count: true }.deserialize(&mut reader);
        result.unwrap_or(Err(Ambiguous)).map(|count| count.and_then(|digits| digits.parse().ok()))
    }
}

/// Parses a number of JSON by its value, as [`JsonPointer::find`] reads it: 7, 7.0 and 7e0 are equal. Returns `None` if
/// the number is not an integer.
pub fn parse_json_integer(number: &[u8]) -> Option<i64> {
    let mut reader = serde_json::Deserializer::from_slice(number);
    let walk = Walk { tokens: &[], repeated: Repeated::First, is_count: false };
    let text = walk.deserialize(&mut reader).ok()?.ok()??;
    reader.end().ok()?;
    integer(text.as_bytes())
}

/// Follows a pointer through a document.
#[derive(Clone, Copy)]
struct Walk<'p> {
    tokens: &'p [String],
    repeated: Repeated,
    /// The value is the number of elements of an array, and nothing else is a value.
    is_count: bool,
}

/// Result of following a pointer: the value as text.
type PointerResult = Result<Option<String>, Ambiguous>;

impl Walk<'_> {
    /// Returns a string, number or boolean, unless the pointer continues below it.
    fn finish_at(self, value: impl ToString) -> PointerResult {
        Ok((self.tokens.is_empty() && !self.is_count).then(|| value.to_string()))
    }

    /// Returns an integer. Integers beyond 2^53 are ambiguous: servers on which all numbers are doubles, as in
    /// JavaScript, round them.
    fn finish_at_integer(self, value: impl ToString, magnitude: u64) -> PointerResult {
        let digits = u64::BITS - magnitude.leading_zeros().saturating_add(magnitude.trailing_zeros()).min(u64::BITS);
        let is_value = self.tokens.is_empty() && !self.is_count;
        let is_rounded = digits > f64::MANTISSA_DIGITS && is_value && self.repeated == Repeated::Refuse;
        if is_rounded { Err(Ambiguous) } else { self.finish_at(value) }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = PointerResult;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<PointerResult, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = PointerResult;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PointerResult, E> {
        // Some parsers end a string at a zero byte.
        let is_value = self.tokens.is_empty() && !self.is_count;
        let is_truncated_by_some = is_value && self.repeated == Repeated::Refuse && text.contains('\0');
        Ok(if is_truncated_by_some { Err(Ambiguous) } else { self.finish_at(text) })
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<PointerResult, E> {
        Ok(self.finish_at(value))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<PointerResult, E> {
        Ok(self.finish_at_integer(number, number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<PointerResult, E> {
        Ok(self.finish_at_integer(number, number.unsigned_abs()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<PointerResult, E> {
        // Adding 0.0 turns -0.0 into 0.
        Ok(self.finish_at(number + 0.0))
    }

    fn visit_unit<E: Error>(self) -> Result<PointerResult, E> {
        Ok(Ok(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PointerResult, A::Error> {
        let Some((token, below)) = self.tokens.split_first() else {
            let mut count = 0_u64;
            while items.next_element::<IgnoredAny>()?.is_some() {
                count += 1;
            }
            return Ok(if self.is_count { Ok(Some(count.to_string())) } else { Err(Ambiguous) });
        };
        let wanted_index = token.parse().ok().filter(|index: &usize| index.to_string() == *token);
        let mut result = Ok(None);
        for index in 0.. {
            let more = if wanted_index == Some(index) {
                let item = items.next_element_seed(Walk { tokens: below, ..self })?;
                item.map(|item| result = item).is_some()
            } else {
                items.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                break;
            }
        }
        Ok(result)
    }

    /// Parsers differ in which of two members with the same name they use. Some also ignore case, or what follows a
    /// zero byte.
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<PointerResult, A::Error> {
        let mut result: Option<PointerResult> = None;
        let mut alike = self.tokens.is_empty() && !self.is_count;
        while let Some(name) = members.next_key::<String>()? {
            let Some((_, below)) = self.tokens.split_first().filter(|(token, _)| **token == name) else {
                alike |= self
                    .tokens
                    .first()
                    .is_some_and(|token| self.repeated == Repeated::Refuse && is_equal_for_some_parsers(token, &name));
                members.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = members.next_value_seed(Walk { tokens: below, ..self })?;
            result = Some(match (result, self.repeated) {
                (None, _) | (Some(_), Repeated::Last) => value,
                (Some(first), Repeated::First) => first,
                (Some(_), Repeated::Refuse) => Err(Ambiguous),
            });
        }
        Ok(if alike { Err(Ambiguous) } else { result.unwrap_or(Ok(None)) })
    }
}

/// Returns whether `name` equals `token` for parsers that ignore case, end names at a zero byte or remove zero bytes.
pub fn is_equal_for_some_parsers(token: &str, name: &str) -> bool {
    let truncated = name.split('\0').next().unwrap_or_default();
    folded(token).eq(folded(truncated)) || folded(token).eq(folded(name).filter(|letter| *letter != '\0'))
}

/// Folds the case of a name.
fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::source::body::{BodyFacts, BodyKind};

    fn find(pointer: &str, document: &str, repeated: Repeated) -> Result<Option<String>, Ambiguous> {
        let BodyFacts::Json(bytes) = BodyKind::Json.check_body(document.as_bytes()) else { panic!("{document}") };
        let found = JsonPointer::parse(pointer).unwrap().find(bytes, repeated);
        found.map(|value| value.map(|value| String::from_utf8(value.into_owned()).unwrap()))
    }

    #[test]
    fn a_pointer_names_one_value() {
        for (pointer, document, value) in [
            ("/user", r#"{"user":"anna"}"#, Some("anna")),
            ("/user", r#" {"x":[{"user":1}],"us\u0065r":"\u0061nna"} "#, Some("anna")),
            ("/user", r#"{"user":7}"#, Some("7")),
            ("/user", r#"{"user":7.0}"#, Some("7")),
            ("/user", r#"{"user":70e-1}"#, Some("7")),
            ("/user", r#"{"user":-0.0}"#, Some("0")),
            ("/user", r#"{"user":"7.0"}"#, Some("7.0")),
            ("/user", r#"{"user":1.5}"#, Some("1.5")),
            ("/user", r#"{"user":0}"#, Some("0")),
            ("/user", r#"{"user":9007199254740991}"#, Some("9007199254740991")),
            ("/user", r#"{"user":-9007199254740992}"#, Some("-9007199254740992")),
            ("/user", r#"{"user":9007199254740994}"#, Some("9007199254740994")),
            ("/user", r#"{"user":9007199254740994.0}"#, Some("9007199254740994")),
            ("/user", r#"{"user":9223372036854775808}"#, Some("9223372036854775808")),
            ("/user", r#"{"user":1e22}"#, Some("10000000000000000000000")),
            ("/user", r#"{"user":true}"#, Some("true")),
            ("/user", r#"{"user":""}"#, Some("")),
            ("/user", r#"{"user":null}"#, None),
            ("/user", r#"{"name":"anna"}"#, None),
            ("/user/name", r#"{"user":{"name":"anna"},"name":"x"}"#, Some("anna")),
            ("/user/name", r#"{"user":"anna"}"#, None),
            ("/a~1b/m~0n/~01", r#"{"a/b":{"m~n":{"~1":"x"}}}"#, Some("x")),
            ("/", r#"{"":"x"}"#, Some("x")),
            ("/l/1/id", r#"{"l":[{"id":1},{"id":2},3]}"#, Some("2")),
            ("/l/3", r#"{"l":[0,1,2]}"#, None),
            ("/l/-", r#"{"l":[0,1,2]}"#, None),
            ("/l/01", r#"{"l":[0,1,2]}"#, None),
            ("/l/+1", r#"{"l":[0,1,2]}"#, None),
            ("/0", "[7]", Some("7")),
            ("/user", "[]", None),
            ("/user", r#""anna""#, None),
        ] {
            for repeated in [Repeated::Refuse, Repeated::First, Repeated::Last] {
                assert_eq!(find(pointer, document, repeated), Ok(value.map(str::to_owned)), "{pointer} {document}");
            }
        }
    }

    #[test]
    fn elements_of_arrays_are_counted() {
        let count = |document: &str, repeated| {
            let BodyFacts::Json(bytes) = BodyKind::Json.check_body(document.as_bytes()) else { panic!("{document}") };
            JsonPointer::parse("/a/items").unwrap().count_elements(bytes, repeated)
        };
        for (document, expected) in [
            (r#"{"a":{"items":[]}}"#, Some(0)),
            (r#"{"a":{"items":[1,"x",{"items":[1,2,3,4]},[5,6],null]}}"#, Some(5)),
            (r#"{"a":{"items":{"b":1}}}"#, None),
            (r#"{"a":{"items":"[1,2]"}}"#, None),
            (r#"{"a":{"items":9007199254740993}}"#, None),
            (r#"{"a":{"items":null}}"#, None),
            (r#"{"a":[1,2]}"#, None),
            (r#"{"items":[1,2]}"#, None),
            ("[1,2]", None),
        ] {
            assert_eq!(count(document, Repeated::Refuse), Ok(expected), "{document}");
        }
        let twice = r#"{"a":{"items":[1],"items":[1,2,3]}}"#;
        assert_eq!(count(twice, Repeated::Refuse), Err(Ambiguous));
        assert_eq!((count(twice, Repeated::First), count(twice, Repeated::Last)), (Ok(Some(1)), Ok(Some(3))));
        assert_eq!(count(r#"{"a":{"items":[1],"Items":[1,2,3]}}"#, Repeated::Refuse), Err(Ambiguous));
    }

    #[test]
    fn members_of_one_name_follow_repeated() {
        let some = |text: &str| Ok(Some(text.to_owned()));
        for (document, first, last) in [
            (r#"{"user":"a","user":"b"}"#, "a", "b"),
            (r#"{"user":"a","x":{},"\u0075ser":"b"}"#, "a", "b"),
            (r#"{"user":"a","User":"b"}"#, "a", "a"),
            ("{\"user\":\"a\",\"u\u{17f}er\":\"b\"}", "a", "a"),
            (r#"{"user":"a","user\u0000":"b"}"#, "a", "a"),
            (r#"{"user":"a","us\u0000er":"b"}"#, "a", "a"),
            (r#"{"user":"a","User\u0000x":"b"}"#, "a", "a"),
            (r#"{"user":"a\u0000x"}"#, "a\0x", "a\0x"),
        ] {
            assert_eq!(find("/user", document, Repeated::Refuse), Err(Ambiguous), "{document}");
            assert_eq!(find("/user", document, Repeated::First), some(first), "{document}");
            assert_eq!(find("/user", document, Repeated::Last), some(last), "{document}");
        }
        let nested = r#"{"a":{"u":1,"u":2},"a":{"u":3,"u":4}}"#;
        assert_eq!(find("/a/u", nested, Repeated::Refuse), Err(Ambiguous));
        assert_eq!(find("/a/u", nested, Repeated::First), some("1"));
        assert_eq!(find("/a/u", nested, Repeated::Last), some("4"));
        assert_eq!(find("/user", r#"{"USER":"a"}"#, Repeated::Refuse), Err(Ambiguous));
        assert_eq!(find("/user", r#"{"USER":"a"}"#, Repeated::Last), Ok(None));
        let elsewhere = r#"{"user":"a","x\u0000":"b\u0000","x":{"user\u0000":1}}"#;
        assert_eq!(find("/user", elsewhere, Repeated::Refuse), some("a"));
        for number in ["9007199254740993", "-9007199254740993", "1234567890123456789", "18446744073709551615"] {
            let document = format!("{{\"x\":{number},\"user\":{number}}}");
            assert_eq!(find("/user", &document, Repeated::Refuse), Err(Ambiguous), "{number}");
            assert_eq!(find("/user", &document, Repeated::First), some(number));
            assert_eq!(find("/user", &document, Repeated::Last), some(number));
            assert_eq!(find("/user/id", &document, Repeated::Refuse), Ok(None));
        }
        // An object or array is ambiguous, whichever value counts.
        for document in [r#"{"user":["a"]}"#, r#"{"user":{"$ne":null}}"#, r#"{"user":{}}"#, r#"{"user":[]}"#] {
            for repeated in [Repeated::Refuse, Repeated::First, Repeated::Last] {
                assert_eq!(find("/user", document, repeated), Err(Ambiguous), "{document}");
            }
        }
    }

    #[test]
    fn pointers_are_written_by_the_letter() {
        for text in ["", "user", "/~", "/~2", "/a~", "#/user", "/a\nb", &format!("/{}", "x".repeat(128))] {
            assert!(JsonPointer::parse(text).is_err(), "{text}");
        }
    }
}
