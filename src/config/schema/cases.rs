//! The options of a file with test cases, which is not part of a config: it is not listed in the manual's options, and
//! the JSON Schema of the config does not contain it.

use crate::config::schema::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::value_type::ValueType::{Map, Table, Text};
use crate::config::schema::value_type::{DAY, ValueType, duration, integer};
use crate::config::schema::{Schema, option};

const STATUS: ValueType = integer(100, 599);

/// The top level of the file.
pub const CASE_FILE: Schema = Schema {
    name: "cases",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("start", Text("time"), Described("a fixed time"), "time of the first case"),
        option("case", ValueType::Array { item: &Table(&CASE), least: 1, most: usize::MAX }, Required, "the cases"),
    ],
};

pub const CASE: Schema = Schema {
    name: "case",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("name", Text("string"), Absent, "name in reports"),
        option("request", Text("method and URL"), Required, "the request"),
        option("headers", Map(&Text("string, or list of strings")), Absent, "headers of the request"),
        option("body", Text("string"), Absent, "body of the request"),
        option("from", Text("IP address"), Absent, "address of the connection"),
        option("certificate_subject", Text("string"), Absent, "subject of the client certificate"),
        option("user", Text("string"), Absent, "user that `auth` has verified"),
        option("at", Text("duration, or `+` and a duration"), Value("\"+0s\""), "time of the request"),
        option("repeat", integer(1, 1_000_000), Value("1"), "how often the request is sent"),
        option("response", STATUS, Value("200"), "status of the server's response"),
        option("duration", duration(0, 366 * DAY), Value("\"0s\""), "how long the server takes"),
        option("expect", Table(&EXPECT), Required, "what must happen"),
    ],
};

pub const EXPECT: Schema = Schema {
    name: "case.expect",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("route", Text("string"), Absent, "name of the selected route"),
        option("client", Text("string"), Absent, "address of the client"),
        option("decision", Text("word"), Absent, "what is done with the request"),
        option("limit", Text("string"), Absent, "limit that decides"),
        option("retry_after_ms", integer(0, i64::MAX), Absent, "time until the request would be admitted"),
        option("status", STATUS, Absent, "status of the response"),
        option("reason", Text("string"), Absent, "reason of a refusal"),
    ],
};
