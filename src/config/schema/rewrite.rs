//! Options of `route.rewrite` and `route.rewrite.query`.

use crate::config::schema::row::DefaultValue::{Absent, Value};
use crate::config::schema::row::{Row, option, rows, table};
use crate::config::schema::shared::HOST_NAMES;
use crate::config::schema::value_type::ValueType::*;
use crate::ends::End;

rows! {
    table("route.rewrite");

    STRIP_PREFIX = option("strip_prefix", Text("path"), Absent, "path prefix to remove")
        .teach("\"/api\"", "Use it if the application does not know the prefix under which the gateway publishes it");
    ADD_PREFIX = option("add_prefix", Text("path"), Absent, "path prefix to add")
        .teach("\"/v2\"", "Use it if the application lies below a prefix that clients do not write");
    PATH = option(
        "path",
        Text("path with `{1}`, `{name}`"),
        Absent,
        "path to send, made of groups of the route's regular expression, or of parameters of its path",
    )
    .guide("../guides/rewriting-paths.md")
    .ends(End::PathRewritten)
    .called(&["replace_path", "rewrite_target", "replace_path_regex", "uri"])
    .teach("\"/index.html\"", "Use it if the new path is more than a prefix away, for example with groups of a regular expression");
    QUERY = option("query", Table(&query::TABLE), Absent, "changes of the query")
        .guide("../guides/rewriting-paths.md#queries")
        .called(&["args", "querystring", "replace_query"])
        .teach("{ remove = [\"utm_source\"] }", "Use it to remove or fix parameters before the application sees them");
    UPSTREAM_HOST: bool = option("upstream_host", Boolean, Value("false"), "send the server's own host")
        .teach("true", "Turn it on for servers that select a site by `Host`, such as hosted APIs and object storage");
    HOST = option(
        "host",
        Text("host, or \"{host}\""),
        Absent,
        "send this host; `{host}` is that of the client without its port",
    )
    .called(HOST_NAMES);
}

/// Options of `route.rewrite.query`.
pub mod query {
    use super::*;
    use crate::config::schema::row::Secrecy;
    use crate::config::schema::value_type::{ValueType, list};

    /// Names of parameters and their values.
    const PARAMETERS: ValueType = Map(&Text("text with `{1}`, `{name}`"));

    rows! {
        table("route.rewrite.query");

        REMOVE = option("remove", list(&Text("name")), Absent, "parameters to remove, before the others are set")
            .shown_as("list")
            .teach("[\"utm_source\", \"utm_medium\"]", "Use it for parameters that the application must not see, or that make a cache useless");
        SET = option("set", PARAMETERS, Absent, "parameters to replace").shown_as("table")
            .secrecy(Secrecy::SecretByKey)
            .teach("{ format = \"json\" }", "Use it for parameters that clients must not choose");
        ADD = option("add", PARAMETERS, Absent, "parameters to add to those of the request").shown_as("table")
            .secrecy(Secrecy::SecretByKey);
    }
}
