//! Options of `[[route]]`.

use std::time::Duration;

use crate::config::schema::cors;
use crate::config::schema::limit_list::LIMIT_NAMES;
use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{ClientData, Row, Secrecy, Weaker, option, rows, table};
use crate::config::schema::shared::{DIALECTS, HOST_NAMES, KEY_PARTS, refuse};
use crate::config::schema::upstream::{SERVER_LIST, breaker};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{HOUR, MIB, MINUTE, duration, integer, list, list_from, size};
use crate::config::schema::{rewrite, server};
use crate::ends::End;
use crate::route::Strictness;

/// Meaning of an option that routes inherit.
const IN_ROUTE: &str = "as in `[server]`, for this route";
const OF_SERVER: &str = "that of `[server]`";
const NETWORKS: ValueType = list(&Text("network"));

rows! {
    table("route").title("[[route]]");

    NAME = option(
        "name",
        Text("string, up to 128 bytes"),
        Described("host and path"),
        "label in metrics and logs, unique",
    )
    .metric("sluicegate_requests_total");
    HOST = option("host", list_from(1, &Text("host")), Described("every host"), "hosts of the route")
        .shown_as("list of hosts, `\"*.NAME\"`, or `\"NAME.*\"`")
        .guide("routing.md#route-selection")
        .weaker(Weaker::Compiled)
        .unordered()
        .called(HOST_NAMES)
        .teach("[\"example.com\", \"*.example.com\"]", "Set it if several sites share the gateway");
    PATH = option("path", Text("path"), Value("\"/\""), "paths of the route; the longest that matches serves the request")
        .shown_as("`\"/prefix/\"`, `\"= /exact\"`, `\"/users/{id}\"`, `\"~ ^/regex$\"`")
        .weaker(Weaker::Compiled)
        .called(&["location", "paths"])
        .teach("\"/api/\"", "Write a prefix, `= /exact`, `/users/{id}` or a regular expression. The longest path that matches serves the request; regular expressions come last");
    METHODS = option("methods", list_from(1, &Text("method")), Described("every method"), "methods of the route")
        .shown_as("list")
        .weaker(Weaker::Compiled)
        .unordered()
        .keywords(&["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);
    HEADER = option("header", Map(&Text("string")), Absent, "headers that a request must have, with these values: a text, `\"~ regex\"`, or `\"~i regex\"` to ignore case")
        .shown_as("table")
        .weaker(Weaker::Compiled)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values);
    UPSTREAM = option("upstream", SERVER_LIST, Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"), "where requests go")
        .shown_as("name, URL, list of URLs, `\"echo:\"`")
        .guide("routing.md#actions")
        .called(&["proxy_pass", "reverse_proxy", "backend", "target", "service", "to"])
        .keywords(&["echo:"]);
    SPLIT = option(
        "split",
        Array { item: &Table(&split::TABLE), least: 1, most: 16 },
        Absent,
        "several upstreams in place of `upstream`, each with its share of the requests",
    )
    .shown_as("list of tables, up to 16")
    .guide("../guides/canary-releases.md")
    .metric("sluicegate_upstream_requests_total")
    .unordered()
    .called(&["weighted_clusters", "split_clients", "traffic_split", "canary"]);
    SPLIT_BY = option("split_by", KEY_PARTS, Absent, "the key whose requests all get the same upstream of `split`")
        .shown_as("key, as in limits")
        .guide("../guides/canary-releases.md#the-same-client-the-same-version");
    MIRROR = option("mirror", Table(&mirror::TABLE), Absent, "another upstream that gets copies of requests. Its responses are discarded")
        .guide("../guides/mirroring.md")
        .metric("sluicegate_mirror_total")
        .example("write mirror = { upstream = \"shadow\", percent = 10 }")
        .called(&["request_mirror_policies", "requestMirror", "mirroring", "shadow"]);
    LIMITS = option("limits", LIMIT_NAMES, Absent, "limits of the route. If one refuses a request, none is charged")
        .shown_as("list of names or tables, up to 16")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::Compiled)
        .called(&["rate_limit", "ratelimit", "limit_req", "middlewares", "plugins"]);
    ALLOW = option(
        "allow",
        NETWORKS,
        Absent,
        "clients that no limit of the route applies to. Others are still served. `auth` applies to all",
    )
    .shown_as("list of networks, `\"set:NAME\"`")
    .metric("sluicegate_limit_decisions_total")
    .weaker(Weaker::Compiled)
    .unordered()
    .teach("[\"10.0.0.0/8\"]", "List your own offices and monitoring, so that limits never refuse them");
    DENY = option("deny", NETWORKS, Absent, "clients that get 403")
        .shown_as("list of networks, `\"set:NAME\"`")
        .metric("sluicegate_rejections_total")
        .ends(End::Denied)
        .weaker(Weaker::Compiled)
        .unordered()
        .teach("[\"203.0.113.0/24\"]", "List networks that you want to keep out; use a set for long lists");
    AUTH = option("auth", Table(&auth::TABLE), Absent, "how clients prove their identity")
        .guide("../guides/authentication.md")
        .metric("sluicegate_rejections_total")
        .ends(End::CredentialsMissing)
        .weaker(Weaker::Compiled)
        .example("write auth = { basic = \"users.htpasswd\" }")
        .called(&["auth_basic", "auth_basic_user_file", "basic_auth", "basicauth", "basicAuth", "auth_request", "forward_auth", "forwardAuth", "auth_jwt", "auth_jwt_key_file", "auth_jwt_key_request", "jwt_authn", "jwks_uri", "remote_jwks"]);
    REWRITE = option("rewrite", Table(&rewrite::TABLE), Absent, "changes of path and host")
        .guide("routing.md#changing-the-request-and-the-response")
        .called(&["strip_path", "strip_prefix", "preserve_host"]);
    REWRITE_LOCATION = option(
        "rewrite_location",
        Either(&[Boolean, Map(&Text("string"))]),
        Described("`true` if `rewrite` changes the path or the host"),
        "whether URLs and cookies of servers become those of the client; or how `Location` and `Refresh` that start with a text start for it",
    )
    .shown_as("`true`, `false`, or a table")
    .guide("../guides/rewriting-paths.md#redirects-and-cookies-of-the-server")
    .called(&["proxy_redirect", "proxy_cookie_path", "proxy_cookie_domain"]);
    REQUEST_HEADERS = option("request_headers", Table(&request_headers::TABLE), Absent, "changes of the headers that the server gets")
        .called(&["proxy_set_header", "header_up"]);
    RESPONSE_HEADERS = option("response_headers", Table(&response_headers::TABLE), Absent, "changes of the headers that the client gets")
        .called(&["add_header", "header_down", "customResponseHeaders", "response_headers_to_add", "more_set_headers"]);
    MAX_BODY: Option<u64> = server::MAX_BODY.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"2GiB\"", "Raise it where clients upload files");
    MAX_KEY_BODY: Option<u64> = server::MAX_KEY_BODY.inherit(OF_SERVER, IN_ROUTE);
    MAX_COST_BODY: Option<u64> = server::MAX_COST_BODY.inherit(OF_SERVER, IN_ROUTE);
    MAX_IN_FLIGHT: Option<usize> = option("max_in_flight", integer(1, 10_000_000), Absent, "requests of the route at once; more get 503")
        .metric("sluicegate_rejections_total")
        .ends(End::MaxInFlight)
        .weaker(Weaker::Compiled)
        .called(&["limit_conn"])
        .teach("50", "Set it on expensive routes, so that they leave capacity to the others");
    BREAKER = option("breaker", Table(&breaker::TABLE), Absent, "a circuit breaker of the route's own")
        .guide("circuit-breakers.md#circuit-breaker")
        .metric("sluicegate_breaker_state")
        .ends(End::RouteBreaker);
    PRIORITY: i64 = option(
        "priority",
        integer(0, 4),
        Value("2"),
        "which requests an overloaded upstream refuses first: those with 0. 4 is refused last",
    )
    .guide("adaptive-concurrency.md#priorities")
    .metric("sluicegate_upstream_refused_total")
    .teach("4", "Raise it for what must work in an overload, such as a checkout; lower it for crawlers and batch jobs");
    REFUSE = option(
        "refuse",
        Table(&refuse::TABLE),
        Described("a problem document"),
        "response of the route's limits that have no `refuse` of their own",
    )
    .guide("responses.md");
    ERROR_PAGES = server::ERROR_PAGES.inherit(OF_SERVER, "pages that are tried before those of `[server]`")
    .shown_as("as in `[server]`")
    .guide("../guides/error-pages.md");
    INTERCEPT = server::INTERCEPT.inherit(OF_SERVER, "replace error responses of servers too, as in `[server]`")
    .shown_as("as in `[server]`")
    .guide("../guides/error-pages.md");
    RATELIMIT_HEADERS = option(
        "ratelimit_headers",
        DIALECTS,
        Described("`ratelimit` in `[headers]`"),
        "rate limit headers of the route",
    )
    .shown_as("as `ratelimit` in `[headers]`");
    BODY_TIMEOUT: Option<Duration> = server::BODY_TIMEOUT.inherit(OF_SERVER, IN_ROUTE);
    MIN_BODY_RATE: Option<u64> = server::MIN_BODY_RATE.inherit(OF_SERVER, IN_ROUTE);
    MIN_RESPONSE_RATE: Option<u64> = server::MIN_RESPONSE_RATE.inherit(OF_SERVER, IN_ROUTE);
    CONNECT_TIMEOUT: Option<Duration> = server::CONNECT_TIMEOUT.inherit(OF_SERVER, IN_ROUTE);
    RESPONSE_TIMEOUT: Option<Duration> = server::RESPONSE_TIMEOUT.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"5m\"", "Raise it for slow reports");
    STREAM_TIMEOUT: Option<Duration> = server::STREAM_TIMEOUT.inherit(OF_SERVER, IN_ROUTE);
    TUNNEL_TIMEOUT: Option<Duration> = server::TUNNEL_TIMEOUT.inherit(OF_SERVER, IN_ROUTE);
    STRICTNESS: Option<Strictness> = server::STRICTNESS.inherit(OF_SERVER, "what happens to requests that servers could read in two ways");
    ENCODED_SLASHES: bool = option("encoded_slashes", Words(&["refuse", "keep"]), Value("\"refuse\""), "what happens to `%2F` in paths")
        .note(" on strict routes, else `\"keep\"`")
        .guide("routing.md#encoded-slashes")
        .metric("sluicegate_http_rejected_total")
        .ends(End::PathSlash)
        .weaker(Weaker::More);
    MERGE_SLASHES: bool = option("merge_slashes", Boolean, Value("true"), "whether repeated slashes in paths become one")
        .guide("routing.md#repeated-slashes");
    UPGRADES = option(
        "upgrades",
        list(&Text("protocol")),
        Described("all; none if a limit settles by the body"),
        "protocols that clients may upgrade to; `[]` = none",
    )
    .guide("requests.md#websocket-and-other-upgrades")
    .weaker(Weaker::Compiled)
    .unordered()
    .keywords(&["websocket"])
    .teach("[\"websocket\"]", "Use `[]` on routes that do not need WebSocket");
    REQUEST_TRAILERS: bool = option(
        "request_trailers",
        Boolean,
        Value("false"),
        "forward trailers of requests, if `Trailer` announces them; those of gRPC calls are always forwarded",
    )
    .guide("requests.md#trailers");
    COMPRESS = option(
        "compress",
        Either(&[Boolean, Table(&compress::TABLE)]),
        Described("that of `[server]`"),
        "compress the responses of the route",
    )
    .guide("../guides/compression.md")
    .metric("sluicegate_compressed_bytes_total")
    .example(server::COMPRESS.option.example)
    .called(server::COMPRESS.option.aliases)
    .teach("false", "Turn it off on pages that contain a secret together with text that a client chose");
    CORS = option(
        "cors",
        Either(&[False, Table(&cors::TABLE)]),
        Described("that of `[server]`"),
        "which pages of other origins may read the route's responses; replaces that of `[server]`",
    )
    .guide("../guides/cors.md")
    .example(server::CORS.option.example)
    .called(server::CORS.option.aliases);
    RESPOND = option("respond", Table(&respond::TABLE), Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"), "a fixed response")
        .example("write respond = { status = 404, body = \"not found\" }");
    REDIRECT = option(
        "redirect",
        Either(&[Text("string"), Table(&redirect::TABLE)]),
        Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"),
        "a redirect",
    )
    .guide("../guides/redirects.md")
    .shorthand("to")
    .example("write redirect = \"https://example.com{path}\", or redirect = { to = \"...\", status = 301 }");
    FILES = option(
        "files",
        Path("folder"),
        Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"),
        "a folder whose files are served",
    )
    .guide("../guides/files.md")
    .ends(End::NoFile)
    .called(&["root", "alias", "static", "file_server", "static_files", "serve_dir"]);
    TRY = option("try", list_from(1, &Text("name")), Value("[\"{path}\"]"), "the files that are tried, in order")
        .shown_as("list of names with `{path}`, up to 8")
        .guide("../guides/files.md#single-page-applications")
        .called(&["try_files"]);
    CACHE_CONTROL = option(
        "cache_control",
        Text("string"),
        Value("\"no-cache\""),
        "`Cache-Control` of the route's files; that of HTML pages is always `no-cache`",
    )
    .guide("../guides/files.md#caching")
    .called(&["expires"]);
}

/// Options of `route.auth`.
pub mod auth {
    use super::*;

    rows! {
        table("route.auth");

        BASIC = option(
            "basic",
            Path("path of an htpasswd file"),
            Described("one of `basic`, `jwt`, `forward`"),
            "users and hashes of their passwords. The file reloads when it changes",
        )
        .metric("sluicegate_password_checks_total")
        .example("name an htpasswd file: auth = { basic = \"users.htpasswd\" }");
        CACHE: Duration = option(
            "cache",
            duration(0, HOUR),
            Value("\"60s\""),
            "how long a verified password is accepted without another hash",
        )
        .shown_as("duration, `\"0s\"` to `\"1h\"`");
        JWT = option(
            "jwt",
            Either(&[Text("name"), True]),
            Described("one of `basic`, `jwt`, `forward`"),
            "verifies the tokens of clients",
        )
        .shown_as("name of a `[jwt.NAME]`, or `true` for `[jwt]`");
        USER_CLAIM = option("user_claim", Text("name of a claim"), Value("\"sub\""), "claim with the identity, for `jwt`");
        LIMITS = option(
            "limits",
            LIMIT_NAMES,
            Absent,
            "limits that are decided before the credentials are verified, instead of with those of the route",
        )
        .shown_as("list of names or tables, up to 16")
        .called(super::LIMITS.option.aliases);
        REALM = option(
            "realm",
            Text("1 to 128 printable ASCII characters"),
            Described("the route's name"),
            "`realm` in `WWW-Authenticate`",
        );
        USER_HEADER = option(
            "user_header",
            Text("header"),
            Value("\"x-forwarded-user\""),
            "header with the identity for the upstream server. It is removed from the requests of all clients",
        )
        .shown_as("header, or `\"off\"`")
        .keywords(&["off"]);
        FORWARD_CREDENTIALS: bool = option(
            "forward_credentials",
            Boolean,
            Value("false"),
            "whether the upstream server gets the password or token",
        )
        .note(" for `basic`, `true` for `jwt`");
        FORWARD = option(
            "forward",
            Text("URL"),
            Described("one of `basic`, `jwt`, `forward`"),
            "auth server that approves every request",
        )
        .shown_as("URL with a path, or `\"NAME/path\"` of an upstream")
        .guide("../guides/forward-auth.md")
        .metric("sluicegate_forward_auth_total")
        .secrecy(Secrecy::SecretQuery);
        REQUEST_HEADERS = option(
            "request_headers",
            list(&Text("header")),
            Described("all headers"),
            "headers of the client that the auth server gets",
        )
        .shown_as("list");
        COPY_HEADERS = option(
            "copy_headers",
            list(&Text("header")),
            Absent,
            "headers of the auth response that the server gets. Clients cannot send them",
        )
        .shown_as("list of names or `\"FROM>TO\"`");
        USER = option(
            "user",
            Text("header in `copy_headers`"),
            Described("the first of `x-auth-request-user`, `remote-user`, `x-forwarded-user` in `copy_headers`"),
            "names the user for `user` keys and the log",
        );
        TIMEOUT: Duration = option("timeout", duration(10, MINUTE), Value("\"2s\""), "longest wait for the auth server, with all retries");
        ON_ERROR: bool = option("on_error", Words(&["closed", "open"]), Value("\"closed\""), "what happens if the auth server fails")
            .guide("../guides/forward-auth.md#if-the-auth-server-fails")
            .metric("sluicegate_rejections_total")
            .ends(End::AuthServer)
            .weaker(Weaker::More);
    }
}

/// Options of `route.split`.
pub mod split {
    use super::*;

    rows! {
        table("route.split");

        UPSTREAM = option("upstream", SERVER_LIST, Required, "where the requests go").shown_as("name, URL, list of URLs");
        WEIGHT: u32 = option("weight", integer(0, 1_000_000), Value("1"), "share of the requests, relative to the other weights");
    }
}

/// Options of `route.mirror`.
pub mod mirror {
    use super::*;

    rows! {
        table("route.mirror");

        UPSTREAM = option("upstream", SERVER_LIST, Required, "where the copies go").shown_as("name, URL, list of URLs");
        PERCENT: usize = option("percent", integer(0, 100), Value("100"), "how many of 100 requests are copied");
        MAX_BODY: usize = option("max_body", size(0, MIB), Value("\"64KiB\""), "the largest body that is copied; requests with more are not");
    }
}

/// Lines of headers: a value, or a list of values, for each name.
const HEADER_LINES: ValueType = Map(&list_from(1, &Text("string")));

/// Options of `route.request_headers`.
pub mod request_headers {
    use super::*;

    rows! {
        table("route.request_headers");

        SET = option(
            "set",
            Map(&Text("string")),
            Absent,
            "headers to replace, perhaps with placeholders such as `{client_ip}`, `{tls_subject}`, `{user}` or `{jwt:sub}`",
        )
        .shown_as("table")
        .guide("../guides/client-identity.md")
        // Clients may send a header that the gateway no longer sets.
        .weaker(Weaker::Removed)
        .secrecy(Secrecy::SecretByKey);
        REMOVE = option("remove", list(&Text("header")), Absent, "headers to remove").shown_as("list");
    }
}

/// Options of `route.response_headers`.
pub mod response_headers {
    use super::*;

    rows! {
        table("route.response_headers");

        REMOVE = option("remove", list(&Text("header")), Absent, "headers to remove, before the others are set")
            .shown_as("list");
        SET = option("set", Map(&Text("string")), Absent, "headers to replace").shown_as("table")
            .secrecy(Secrecy::SecretByKey);
        DEFAULT = option("default", Map(&Text("string")), Absent, "headers to set if the response does not have them")
            .shown_as("table")
            .secrecy(Secrecy::SecretByKey);
        ADD = option("add", HEADER_LINES, Absent, "lines to add to those of the response, which stay")
            .shown_as("table of values or lists")
            .secrecy(Secrecy::SecretByKey);
        ADD_ON_SUCCESS = option(
            "add_on_success",
            HEADER_LINES,
            Absent,
            "as `add`, for the statuses 200, 201, 204, 206, 301 to 304, 307 and 308 only",
        )
        .shown_as("table of values or lists")
        .secrecy(Secrecy::SecretByKey);
        ON: bool = option(
            "on",
            Words(&["upstream", "all"]),
            Value("\"upstream\""),
            "whether the gateway's own responses get these changes, too: refusals, failures of servers, redirects to HTTPS",
        );
    }
}

/// Options of `route.compress`.
pub mod compress {
    use super::*;

    rows! {
        table("route.compress");

        TYPES = server::compress::TYPES.inherit(OF_SERVER, IN_ROUTE);
        MIN_SIZE: Option<u64> = server::compress::MIN_SIZE.inherit(OF_SERVER, IN_ROUTE);
        ALGORITHMS = server::compress::ALGORITHMS.inherit(OF_SERVER, IN_ROUTE);
    }
}

/// Options of `route.respond`.
pub mod respond {
    use super::*;

    rows! {
        table("route.respond");

        STATUS: usize = option("status", integer(200, 599), Value("200"), "its status");
        BODY = option("body", Text("string"), Value("\"\""), "its body")
            .secrecy(Secrecy::Body);
        CONTENT_TYPE = option("content_type", Text("string"), Value("\"text/plain; charset=utf-8\""), "its content type");
    }
}

/// Options of `route.redirect`.
pub mod redirect {
    use super::*;

    rows! {
        table("route.redirect");

        TO = option(
            "to",
            Text("URL or path"),
            Described("required unless there is a `map`"),
            "its target, with `{path}`, `{query}`, `{scheme}`, `{host}` and parameters",
        );
        STATUS = option("status", Integers(&[301, 302, 303, 307, 308]), Value("308"), "its status");
        QUERY: bool = option(
            "query",
            Words(&["keep", "drop"]),
            Value("\"keep\""),
            "whether a target without a query gets that of the request",
        );
        MAP = option("map", Path("file"), Absent, "targets of exact paths, up to 100000");
    }
}
