//! Types and tables that several sections have.

use crate::config::schema::DefaultValue::{Absent, Described, Value};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{integer, list};
use crate::config::schema::{Schema, option};

pub(super) const DIALECTS: ValueType = list(&Words(&["draft-11", "draft-07", "draft-03", "legacy", "off"]));
pub(super) const KEY_PARTS: ValueType = List { item: &Text("key part"), least: 1, most: 16 };

pub const REFUSE: Schema = Schema {
    name: "route.refuse",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("status", integer(400, 599), Value("429"), "its status").note("; 503 for `on_error = \"closed\"`"),
        option(
            "body",
            Text("string"),
            Described("a problem document"),
            "its body, with `{retry_after}`, `{limit}`, `{route}`",
        ),
        option("content_type", Text("string"), Value("\"text/plain; charset=utf-8\""), "its content type")
            .note(" with a body"),
        option(
            "dialect",
            Words(&["openai", "anthropic", "gemini", "bedrock"]),
            Absent,
            "the API whose error format the body has, instead of `body`",
        )
        .guide("responses.md#errors-of-llm-apis"),
    ],
};
