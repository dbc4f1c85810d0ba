//! Options of `server.cors` and `route.cors`.

use std::time::Duration;

use crate::config::schema::row::DefaultValue::{Described, Required, Value};
use crate::config::schema::row::{Row, Weaker, option, rows, table};
use crate::config::schema::value_type::ValueType::*;
use crate::config::schema::value_type::{DAY, duration, list, list_from};

rows! {
    table("server.cors");

    ORIGINS = option("origins", list_from(1, &Text("origin")), Required, "origins whose pages may read responses")
        .shown_as("list of `\"https://app.example.com\"`, `\"https://*.example.com\"`, `\"~ REGEX\"`, `\"null\"`; or `\"*\"`")
        .weaker(Weaker::NewItem)
        .unordered()
        .keywords(&["*", "null"])
        .called(&["origin", "allow_origin", "allow_origins", "allowed_origins", "allow_origin_string_match", "accessControlAllowOriginList", "accessControlAllowOriginListRegex"])
        .teach("[\"https://app.example.com\"]", "List the origins of your own pages. `\"*\"` is for APIs that anybody may read, without credentials");
    METHODS = option(
        "methods",
        list_from(1, &Text("method")),
        Described("`methods` of the route, else `GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`"),
        "methods that pages may use; `\"*\"` = every method",
    )
    .shown_as("list")
    .unordered()
    .keywords(&["*"])
    .called(&["allow_methods", "allowed_methods", "accessControlAllowMethods"]);
    HEADERS = option(
        "headers",
        list(&Text("header")),
        Value("[\"authorization\", \"content-type\"]"),
        "headers that pages may send, in addition to those that browsers always allow; `\"*\"` = every header",
    )
    .shown_as("list")
    .unordered()
    .keywords(&["*"])
    .called(&["allow_headers", "allowed_headers", "accessControlAllowHeaders"]);
    EXPOSE = option(
        "expose",
        list(&Text("header")),
        Value("[]"),
        "response headers that pages may read, in addition to `Retry-After` and the rate limit headers; `\"*\"` = every header",
    )
    .shown_as("list")
    .unordered()
    .keywords(&["*"])
    .called(&["expose_headers", "exposed_headers", "accessControlExposeHeaders"]);
    CREDENTIALS: bool = option(
        "credentials",
        Boolean,
        Value("false"),
        "whether browsers send cookies and stored passwords; not with the origin `\"*\"`",
    )
    .weaker(Weaker::More)
    .called(&["allow_credentials", "accessControlAllowCredentials"]);
    MAX_AGE: Duration = option("max_age", duration(0, DAY), Value("\"10m\""), "how long browsers remember the response to a preflight")
        .called(&["accessControlMaxAge"]);
}
