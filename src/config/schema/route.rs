//! Options of `[[route]]`.

use crate::config::schema::DefaultValue::{Absent, Described, Value};
use crate::config::schema::server::{
    BODY_RATE, COMPRESS_ALGORITHMS, COMPRESS_MIN_SIZE, COMPRESS_TYPES, ERROR_PAGES, INTERCEPT, MAX_BODY, MAX_COST_BODY,
    MAX_KEY_BODY, STRICTNESS, TIMEOUT,
};
use crate::config::schema::shared::{DIALECTS, REFUSE};
use crate::config::schema::upstream::{BREAKER, SERVERS};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{HOUR, MINUTE, duration, integer, list, list_from};
use crate::config::schema::{Schema, option};

pub const LIMITS: ValueType = List { item: &Text("name"), least: 0, most: 16 };
const NETWORKS: ValueType = list(&Text("network"));

pub const ROUTE: Schema = Schema {
    name: "route",
    title: "[[route]]",
    intro: "",
    notes: "",
    options: &[
        option(
            "name",
            Text("string, up to 128 bytes"),
            Described("host and path"),
            "label in metrics and logs, unique",
        )
        .metric("sluicegate_requests_total"),
        option("host", list_from(1, &Text("host")), Described("every host"), "hosts of the route")
            .shown_as("list of hosts, or `\"*.NAME\"`")
            .guide("routing.md#route-selection"),
        option("path", Text("path"), Value("\"/\""), "paths of the route")
            .shown_as("`\"/prefix/\"`, `\"= /exact\"`, `\"/users/{id}\"`, `\"~ ^/regex$\"`"),
        option("methods", list_from(1, &Text("method")), Described("every method"), "methods of the route")
            .shown_as("list"),
        option("header", Map(&Text("string")), Absent, "headers that a request must have, with these values")
            .shown_as("table"),
        option("upstream", SERVERS, Described("one of `upstream`, `respond`, `redirect`"), "where requests go")
            .shown_as("name, URL, list of URLs, `\"echo:\"`")
            .guide("routing.md#actions"),
        option("limits", LIMITS, Absent, "limits of the route. If one refuses a request, none is charged")
            .shown_as("list of names, up to 16")
            .metric("sluicegate_limit_decisions_total"),
        option(
            "allow",
            NETWORKS,
            Absent,
            "clients that no limit of the route applies to. Others are still served. `auth` applies to all",
        )
        .shown_as("list of networks, `\"set:NAME\"`")
        .metric("sluicegate_limit_decisions_total"),
        option("deny", NETWORKS, Absent, "clients that get 403")
            .shown_as("list of networks, `\"set:NAME\"`")
            .metric("sluicegate_rejections_total")
            .reason("denied"),
        option("auth", Table(&AUTH), Absent, "how clients prove their identity")
            .guide("../guides/authentication.md")
            .metric("sluicegate_rejections_total")
            .reason("unauthorized"),
        option("rewrite", Table(&REWRITE), Absent, "changes of path and host")
            .guide("routing.md#changing-the-request-and-the-response"),
        option(
            "rewrite_location",
            Map(&Text("string")),
            Absent,
            "how `Location` and `Refresh` of servers that start with a text start for the client",
        )
        .shown_as("table")
        .guide("routing.md#changing-the-request-and-the-response"),
        option("request_headers", Table(&HEADER_EDIT), Absent, "changes of the headers that the server gets"),
        option("response_headers", Table(&RESPONSE_HEADER_EDIT), Absent, "changes of the headers that the client gets"),
        option("max_body", MAX_BODY, Described("that of `[server]`"), "as in `[server]`, for this route")
            .metric("sluicegate_http_rejected_total")
            .reason("body_too_large"),
        option("max_key_body", MAX_KEY_BODY, Described("that of `[server]`"), "as in `[server]`, for this route")
            .metric("sluicegate_rejections_total")
            .reason("unreadable_key"),
        option("max_cost_body", MAX_COST_BODY, Described("that of `[server]`"), "as in `[server]`, for this route"),
        option("max_in_flight", integer(1, 10_000_000), Absent, "requests of the route at once; more get 503")
            .metric("sluicegate_rejections_total")
            .reason("max_in_flight"),
        option("breaker", Table(&BREAKER), Absent, "a circuit breaker of the route's own")
            .guide("overload.md#circuit-breaker")
            .metric("sluicegate_breaker_state")
            .reason("route_breaker"),
        option(
            "priority",
            integer(0, 4),
            Value("2"),
            "which requests an overloaded upstream refuses first: those with 0. 4 is refused last",
        )
        .guide("adaptive-concurrency.md#priorities")
        .metric("sluicegate_upstream_refused_total"),
        option(
            "refuse",
            Table(&REFUSE),
            Described("a problem document"),
            "response of the route's limits that have no `refuse` of their own",
        )
        .guide("responses.md"),
        option(
            "error_pages",
            ERROR_PAGES,
            Described("that of `[server]`"),
            "pages that are tried before those of `[server]`",
        )
        .shown_as("as in `[server]`")
        .guide("../guides/error-pages.md"),
        option(
            "intercept",
            INTERCEPT,
            Described("that of `[server]`"),
            "replace error responses of servers too, as in `[server]`",
        )
        .shown_as("as in `[server]`")
        .guide("../guides/error-pages.md"),
        option(
            "ratelimit_headers",
            DIALECTS,
            Described("`ratelimit` in `[headers]`"),
            "rate limit headers of the route",
        )
        .shown_as("as `ratelimit` in `[headers]`"),
        option("body_timeout", TIMEOUT, Described("that of `[server]`"), "as in `[server]`, for this route")
            .metric("sluicegate_http_rejected_total")
            .reason("body_timeout"),
        option("min_body_rate", BODY_RATE, Described("that of `[server]`"), "as in `[server]`, for this route")
            .shown_as("size per second")
            .metric("sluicegate_http_rejected_total")
            .reason("body_timeout"),
        option("min_response_rate", BODY_RATE, Described("that of `[server]`"), "as in `[server]`, for this route")
            .shown_as("size per second")
            .metric("sluicegate_http_rejected_total")
            .reason("slow_reader"),
        option("connect_timeout", TIMEOUT, Described("that of `[server]`"), "as in `[server]`, for this route"),
        option("response_timeout", TIMEOUT, Described("that of `[server]`"), "as in `[server]`, for this route"),
        option("stream_timeout", TIMEOUT, Described("that of `[server]`"), "as in `[server]`, for this route")
            .metric("sluicegate_http_rejected_total")
            .reason("stream_timeout"),
        option("tunnel_timeout", TIMEOUT, Described("that of `[server]`"), "as in `[server]`, for this route")
            .metric("sluicegate_http_rejected_total")
            .reason("tunnel_timeout"),
        option("strictness", STRICTNESS, Described("that of `[server]`"), "what happens to ambiguous requests")
            .metric("sluicegate_http_would_reject_total"),
        option("encoded_slashes", Words(&["refuse", "keep"]), Value("\"refuse\""), "what happens to `%2F` in paths")
            .note(" on strict routes, else `\"keep\"`")
            .guide("routing.md#encoded-slashes")
            .metric("sluicegate_http_rejected_total")
            .reason("path_slash"),
        option(
            "upgrades",
            list(&Text("protocol")),
            Described("all; none if a limit settles by the body"),
            "protocols that clients may upgrade to; `[]` = none",
        )
        .guide("requests.md#websocket-and-other-upgrades"),
        option(
            "request_trailers",
            Boolean,
            Value("false"),
            "forward trailers of requests, if `Trailer` announces them; those of gRPC calls are always forwarded",
        )
        .guide("requests.md#trailers"),
        option(
            "compress",
            Either(&[Boolean, Table(&ROUTE_COMPRESS)]),
            Described("that of `[server]`"),
            "compress the responses of the route",
        )
        .guide("../guides/compression.md")
        .metric("sluicegate_compressed_bytes_total"),
        option("respond", Table(&RESPOND), Described("one of `upstream`, `respond`, `redirect`"), "a fixed response"),
        option(
            "redirect",
            Either(&[Text("string"), Table(&REDIRECT)]),
            Described("one of `upstream`, `respond`, `redirect`"),
            "a redirect",
        )
        .guide("../guides/redirects.md"),
    ],
};

pub const AUTH: Schema = Schema {
    name: "route.auth",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option(
            "basic",
            Text("path of an htpasswd file"),
            Described("one of `basic`, `jwt`, `forward`"),
            "users and hashes of their passwords. The file reloads when it changes",
        )
        .metric("sluicegate_password_checks_total"),
        option(
            "cache",
            duration(0, HOUR),
            Value("\"60s\""),
            "how long a verified password is accepted without another hash",
        )
        .shown_as("duration, `\"0s\"` to `\"1h\"`"),
        option(
            "jwt",
            Either(&[Text("name"), True]),
            Described("one of `basic`, `jwt`, `forward`"),
            "verifies the tokens of clients",
        )
        .shown_as("name of a `[jwt.NAME]`, or `true` for `[jwt]`"),
        option("user_claim", Text("name of a claim"), Value("\"sub\""), "claim with the identity, for `jwt`"),
        option(
            "limits",
            LIMITS,
            Absent,
            "limits that are decided before the credentials are verified, instead of with those of the route",
        )
        .shown_as("list of names, up to 16"),
        option(
            "realm",
            Text("1 to 128 printable ASCII characters"),
            Described("the route's name"),
            "`realm` in `WWW-Authenticate`",
        ),
        option(
            "user_header",
            Text("header"),
            Value("\"x-forwarded-user\""),
            "header with the identity for the upstream server. It is removed from the requests of all clients",
        )
        .shown_as("header, or `\"off\"`"),
        option(
            "forward_credentials",
            Boolean,
            Value("false"),
            "whether the upstream server gets the password or token",
        )
        .note(" for `basic`, `true` for `jwt`"),
        option(
            "forward",
            Text("URL"),
            Described("one of `basic`, `jwt`, `forward`"),
            "auth server that approves every request",
        )
        .shown_as("URL with a path, or `\"NAME/path\"` of an upstream")
        .guide("../guides/forward-auth.md")
        .metric("sluicegate_forward_auth_total"),
        option(
            "request_headers",
            list(&Text("header")),
            Described("all headers"),
            "headers of the client that the auth server gets",
        )
        .shown_as("list"),
        option(
            "copy_headers",
            list(&Text("header")),
            Absent,
            "headers of the auth response that the server gets. Clients cannot send them",
        )
        .shown_as("list of names or `\"FROM>TO\"`"),
        option(
            "user",
            Text("header in `copy_headers`"),
            Described("the first of `x-auth-request-user`, `remote-user`, `x-forwarded-user` in `copy_headers`"),
            "names the user for `user` keys and the log",
        ),
        option("timeout", duration(10, MINUTE), Value("\"2s\""), "longest wait for the auth server, with all retries"),
        option("on_error", Words(&["closed", "open"]), Value("\"closed\""), "what happens if the auth server fails")
            .guide("../guides/forward-auth.md#if-the-auth-server-fails")
            .metric("sluicegate_rejections_total")
            .reason("auth_server"),
    ],
};

pub const REWRITE: Schema = Schema {
    name: "route.rewrite",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("strip_prefix", Text("path"), Absent, "path prefix to remove"),
        option("add_prefix", Text("path"), Absent, "path prefix to add"),
        option("upstream_host", Boolean, Value("false"), "send the server's own host"),
        option(
            "host",
            Text("host, or \"{host}\""),
            Absent,
            "send this host; `{host}` is that of the client without its port",
        ),
    ],
};

/// Lines of headers: a value, or a list of values, for each name.
const HEADER_LINES: ValueType = Map(&list_from(1, &Text("string")));

pub const HEADER_EDIT: Schema = Schema {
    name: "route.request_headers",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("set", Map(&Text("string")), Absent, "headers to replace").shown_as("table"),
        option("remove", list(&Text("header")), Absent, "headers to remove").shown_as("list"),
    ],
};

pub const RESPONSE_HEADER_EDIT: Schema = Schema {
    name: "route.response_headers",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("remove", list(&Text("header")), Absent, "headers to remove, before the others are set")
            .shown_as("list"),
        option("set", Map(&Text("string")), Absent, "headers to replace").shown_as("table"),
        option("default", Map(&Text("string")), Absent, "headers to set if the response does not have them")
            .shown_as("table"),
        option("add", HEADER_LINES, Absent, "lines to add beside those of the response, which stay")
            .shown_as("table of values or lists"),
        option(
            "add_on_success",
            HEADER_LINES,
            Absent,
            "as `add`, for the statuses 200, 201, 204, 206, 301 to 304, 307 and 308 only",
        )
        .shown_as("table of values or lists"),
        option(
            "on",
            Words(&["upstream", "all"]),
            Value("\"upstream\""),
            "whether the gateway's own error responses get these changes, too: those of limits, of `auth`, of the servers' failures",
        ),
    ],
};

pub const ROUTE_COMPRESS: Schema = Schema {
    name: "route.compress",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("types", COMPRESS_TYPES, Described("that of `[server]`"), "as in `[server]`, for this route"),
        option("min_size", COMPRESS_MIN_SIZE, Described("that of `[server]`"), "as in `[server]`, for this route"),
        option("algorithms", COMPRESS_ALGORITHMS, Described("that of `[server]`"), "as in `[server]`, for this route"),
    ],
};

pub const RESPOND: Schema = Schema {
    name: "route.respond",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("status", integer(200, 599), Value("200"), "its status"),
        option("body", Text("string"), Value("\"\""), "its body"),
        option("content_type", Text("string"), Value("\"text/plain; charset=utf-8\""), "its content type"),
    ],
};

pub const REDIRECT: Schema = Schema {
    name: "route.redirect",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option(
            "to",
            Text("URL or path"),
            Described("required unless there is a `map`"),
            "its target, with `{path}`, `{query}`, `{scheme}`, `{host}` and parameters",
        ),
        option("status", Integers(&[301, 302, 303, 307, 308]), Value("308"), "its status"),
        option(
            "query",
            Words(&["keep", "drop"]),
            Value("\"keep\""),
            "whether a target without a query gets that of the request",
        ),
        option("map", Text("file"), Absent, "targets of exact paths, up to 100000"),
    ],
};
