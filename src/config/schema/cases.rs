//! The options of a file with test cases, which is not part of a config: it is not listed in the manual's options, and
//! the JSON Schema of the config does not contain it.

use std::time::Duration;

use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{Row, option, rows, table};
use crate::config::schema::value_type::ValueType::{Map, Table, Text};
use crate::config::schema::value_type::{DAY, ValueType, duration, integer};

const STATUS_CODE: ValueType = integer(100, 599);

/// The top level of the file.
/// Options of `cases`.
pub mod case_file {
    use super::*;

    rows! {
        table("cases");

        START = option("start", Text("time"), Described("a fixed time"), "time of the first case");
        CASE = option("case", ValueType::Array { item: &Table(&case::TABLE), least: 1, most: usize::MAX }, Required, "the cases");
    }
}

/// Options of `case`.
pub mod case {
    use super::*;

    rows! {
        table("case");

        NAME = option("name", Text("string"), Absent, "name in reports");
        REQUEST = option("request", Text("method and URL"), Required, "the request");
        HEADERS = option("headers", Map(&Text("string, or list of strings")), Absent, "headers of the request");
        BODY = option("body", Text("string"), Absent, "body of the request");
        FROM = option("from", Text("IP address"), Absent, "address of the connection");
        CERTIFICATE_SUBJECT = option("certificate_subject", Text("string"), Absent, "subject of the client certificate");
        USER = option("user", Text("string"), Absent, "user that `auth` has verified");
        AT = option("at", Text("duration, or `+` and a duration"), Value("\"+0s\""), "time of the request");
        REPEAT: u32 = option("repeat", integer(1, 1_000_000), Value("1"), "how often the request is sent");
        RESPONSE: u16 = option("response", STATUS_CODE, Value("200"), "status of the server's response");
        DURATION: Duration = option("duration", duration(0, 366 * DAY), Value("\"0s\""), "how long the server takes");
        EXPECT = option("expect", Table(&expect::TABLE), Required, "what must happen");
    }
}

/// Options of `case.expect`.
pub mod expect {
    use super::*;

    rows! {
        table("case.expect");

        ROUTE = option("route", Text("string"), Absent, "name of the selected route");
        CLIENT = option("client", Text("string"), Absent, "address of the client");
        DECISION = option("decision", Text("word"), Absent, "what is done with the request");
        LIMIT = option("limit", Text("string"), Absent, "limit that decides");
        RETRY_AFTER_MS: Option<i64> = option("retry_after_ms", integer(0, i64::MAX), Absent, "time until the request would be admitted");
        STATUS = option("status", STATUS_CODE, Absent, "status of the response");
        REASON = option("reason", Text("string"), Absent, "reason of a refusal");
    }
}
