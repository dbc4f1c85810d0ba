//! Types and tables that several sections have.

use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{Row, Secrecy, option, rows, table};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{integer, list, list_from};
use crate::limiting::key::Normalization;
use crate::limiting::limit::refuse::RefusalDialect;

pub(super) const DIALECTS: ValueType = list(&Words(&["draft-11", "draft-07", "draft-03", "legacy", "epoch", "off"]));
/// Other names for `host`.
pub(super) const HOST_NAMES: &[&str] = &["domain", "hosts", "server_name"];
pub(super) const KEY_PARTS: ValueType =
    List { item: &Either(&[Text("key part"), Table(&key_part::TABLE)]), least: 1, most: 16 };

/// Options of a part of a key that is a table.
pub mod key_part {
    use super::*;

    rows! {
        table("limit.key");

        SOURCE = option("source", Text("key part"), Required, "the key part")
            .teach("\"query:email\"", "Write a part of a key as a table only if its spellings should be normalized; otherwise, the text alone is enough");
        NORMALIZE: Vec<Normalization> = option(
            "normalize",
            list_from(1, &Words(Normalization::LABELS)),
            Required,
            "the steps that make spellings of its value one, in this order",
        )
        .guide("keys.md#spellings")
        .called(&["ignore_case", "case_insensitive"])
        .teach("[\"trim\", \"lowercase\"]", "Use it if the same account can be spelled in several ways, because an attacker could get a new budget with each");
    }
}

/// Options of `route.refuse`.
pub mod refuse {
    use super::*;

    rows! {
        table("route.refuse");

        STATUS: usize = option("status", integer(400, 599), Value("429"), "its status").note("; 503 for `on_error = \"closed\"`")
            .teach("503", "Change it for old clients that do not know 429");
        BODY = option(
            "body",
            Text("string"),
            Described("a problem document"),
            "its body, with `{retry_after}`, `{limit}`, `{route}`",
        )
        .secrecy(Secrecy::Body)
        .teach("\"slow down, try again in {retry_after} s\"", "Set it if people or clients should see your own text");
        HEADERS = option("headers", Map(&Text("string")), Absent, "further headers, with the placeholders of `body`")
            .shown_as("table of strings")
            .guide("responses.md#refusals")
            .secrecy(Secrecy::SecretByKey);
        CONTENT_TYPE = option("content_type", Text("string"), Value("\"text/plain; charset=utf-8\""), "its content type")
            .note(" with a body")
            .teach("\"application/json\"", "Set it together with a body that is not plain text");
        DIALECT: Option<RefusalDialect> = option(
            "dialect",
            Words(RefusalDialect::LABELS),
            Absent,
            "the API whose error format the body has, instead of `body`",
        )
        .guide("responses.md#errors-of-llm-apis")
        .teach("\"openai\"", "Set it in front of LLM APIs and JSON-RPC servers, because their client libraries read errors in this format");
    }
}
