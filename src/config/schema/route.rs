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
    .metric("sluicegate_requests_total")
    .teach("\"api\"", "Set it so that metrics, logs and `when.route` keep their name when the path changes");
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
        .teach("\"/api/\"", "Set it if parts of a site need another upstream or other limits: with a prefix, `= /exact`, `/users/{id}`, or a regular expression, which is tried last");
    METHODS = option("methods", list_from(1, &Text("method")), Described("every method"), "methods of the route")
        .shown_as("list")
        .weaker(Weaker::Compiled)
        .unordered()
        .keywords(&["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
        .teach("[\"GET\", \"HEAD\"]", "Set it if writes need another upstream, other limits or a login");
    HEADER = option("header", Map(&Text("string")), Absent, "headers that a request must have, with these values: a text, `\"~ regex\"`, or `\"~i regex\"` to ignore case")
        .shown_as("table")
        .weaker(Weaker::Compiled)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values)
        .teach("{ x-version = \"2\" }", "Set it to send some clients to another upstream, for example testers or a new version of an app");
    UPSTREAM = option("upstream", SERVER_LIST, Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"), "where requests go")
        .shown_as("name, URL, list of URLs, `\"echo:\"`")
        .guide("routing.md#actions")
        .called(&["proxy_pass", "reverse_proxy", "backend", "target", "service", "to"])
        .keywords(&["echo:"])
        .teach("\"http://127.0.0.1:3000\"", "Write the URL of a server, or the name of an `[upstream.NAME]` if you need several servers, health checks or retries");
    SPLIT = option(
        "split",
        Array { item: &Table(&split::TABLE), least: 1, most: 16 },
        Absent,
        "several upstreams in place of `upstream`, each with its share of the requests",
    )
    .shown_as("list of tables, up to 16")
    .guide("../guides/canary-releases.md")
    .metric("sluicegate_split_requests_total")
    .called(&["weighted_clusters", "split_clients", "traffic_split", "canary"])
    .teach("[{ upstream = \"http://127.0.0.1:3000\", weight = 95 }, { upstream = \"http://127.0.0.1:3001\", weight = 5 }]", "Use it to try a new version with a small part of the requests");
    SPLIT_BY = option("split_by", KEY_PARTS, Absent, "the key whose requests all get the same upstream of `split`")
        .shown_as("key, as in limits")
        .guide("../guides/canary-releases.md#the-same-client-the-same-version")
        .teach("\"cookie:session\"", "Set it if one user must not see both versions in turn");
    MIRROR = option("mirror", Table(&mirror::TABLE), Absent, "another upstream that gets copies of requests. Its responses are discarded")
        .guide("../guides/mirroring.md")
        .metric("sluicegate_mirror_total")
        .example("write mirror = { upstream = \"shadow\", percent = 10 }")
        .called(&["request_mirror_policies", "requestMirror", "mirroring", "shadow"])
        .teach("{ upstream = \"http://127.0.0.1:3001\", percent = 10 }", "Use it to test a new version with real requests, without a risk for clients");
    LIMITS = option("limits", LIMIT_NAMES, Absent, "limits of the route. If one refuses a request, none is charged")
        .shown_as("list of names or tables, up to 16")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::Compiled)
        .called(&["rate_limit", "ratelimit", "limit_req", "middlewares", "plugins"])
        .teach("[\"per-ip\", \"per-user\"]", "List each limit that should apply. A limit that several routes list has one budget for all of them");
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
        .called(&["auth_basic", "auth_basic_user_file", "basic_auth", "basicauth", "basicAuth", "auth_request", "forward_auth", "forwardAuth", "auth_jwt", "auth_jwt_key_file", "auth_jwt_key_request", "jwt_authn", "jwks_uri", "remote_jwks"])
        .teach("{ basic = \"users.htpasswd\" }", "Set it if the gateway should let only known clients pass: with passwords (`basic`), tokens (`jwt`) or an auth server (`forward`)");
    REWRITE = option("rewrite", Table(&rewrite::TABLE), Absent, "changes of path and host")
        .guide("routing.md#changing-the-request-and-the-response")
        .called(&["strip_path", "strip_prefix", "preserve_host"])
        .teach("{ strip_prefix = \"/api\" }", "Use it if the application expects another path, query or host than the one that clients send");
    REWRITE_LOCATION = option(
        "rewrite_location",
        Either(&[Boolean, Map(&Text("string"))]),
        Described("`true` if `rewrite` changes the path or the host"),
        "whether URLs and cookies of servers become those of the client; or how `Location` and `Refresh` that start with a text start for it",
    )
    .shown_as("`true`, `false`, or a table")
    .guide("../guides/rewriting-paths.md#redirects-and-cookies-of-the-server")
    .called(&["proxy_redirect", "proxy_cookie_path", "proxy_cookie_domain"])
    .teach("{ \"http://internal:8080/\" = \"/\" }", "Use a table if the application redirects to its own address, which clients cannot reach");
    REQUEST_HEADERS = option("request_headers", Table(&request_headers::TABLE), Absent, "changes of the headers that the server gets")
        .called(&["proxy_set_header", "header_up"])
        .teach("{ set = { x-client-ip = \"{client_ip}\" } }", "Use it if the application needs headers that the gateway does not set by default");
    RESPONSE_HEADERS = option("response_headers", Table(&response_headers::TABLE), Absent, "changes of the headers that the client gets")
        .called(&["add_header", "header_down", "customResponseHeaders", "response_headers_to_add", "more_set_headers"])
        .teach("{ set = { x-frame-options = \"DENY\" }, remove = [\"server\"] }", "Use it for security headers, and to hide what the servers say about themselves");
    MAX_BODY: Option<u64> = server::MAX_BODY.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"2GiB\"", "Raise it where clients upload files");
    MAX_KEY_BODY: Option<u64> = server::MAX_KEY_BODY.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"16KiB\"", "Raise it if clients send the value that a limit reads after much other data");
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
        .ends(End::RouteBreaker)
        .teach("{ error_ratio = 0.5 }", "Set it if one part of an application fails by itself, so that the other routes continue");
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
    .guide("responses.md")
    .teach("{ body = \"slow down, try again in {retry_after} s\" }", "Set it if clients expect another format, such as the error format of your API");
    ERROR_PAGES = server::ERROR_PAGES.inherit(OF_SERVER, "pages that are tried before those of `[server]`")
    .shown_as("as in `[server]`")
    .guide("../guides/error-pages.md")
    .teach("{ \"5xx\" = \"5xx.html\" }", "Set it if this route belongs to another site than the rest");
    INTERCEPT = server::INTERCEPT.inherit(OF_SERVER, "replace error responses of servers too, as in `[server]`")
    .shown_as("as in `[server]`")
    .guide("../guides/error-pages.md")
    .teach("[404, \"5xx\"]", "Set it on routes for browsers; leave it off on APIs, whose clients read the errors");
    RATELIMIT_HEADERS = option(
        "ratelimit_headers",
        DIALECTS,
        Described("`ratelimit` in `[headers]`"),
        "rate limit headers of the route",
    )
    .shown_as("as `ratelimit` in `[headers]`");
    BODY_TIMEOUT: Option<Duration> = server::BODY_TIMEOUT.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"5m\"", "Raise it where clients upload from slow or mobile connections");
    MIN_BODY_RATE: Option<u64> = server::MIN_BODY_RATE.inherit(OF_SERVER, IN_ROUTE);
    MIN_RESPONSE_RATE: Option<u64> = server::MIN_RESPONSE_RATE.inherit(OF_SERVER, IN_ROUTE);
    CONNECT_TIMEOUT: Option<Duration> = server::CONNECT_TIMEOUT.inherit(OF_SERVER, IN_ROUTE);
    RESPONSE_TIMEOUT: Option<Duration> = server::RESPONSE_TIMEOUT.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"5m\"", "Raise it for slow reports");
    STREAM_TIMEOUT: Option<Duration> = server::STREAM_TIMEOUT.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"10m\"", "Raise it for event streams and LLM responses with long pauses");
    TUNNEL_TIMEOUT: Option<Duration> = server::TUNNEL_TIMEOUT.inherit(OF_SERVER, IN_ROUTE)
        .teach("\"1d\"", "Raise it for WebSocket clients that are silent for longer than an hour");
    STRICTNESS: Option<Strictness> = server::STRICTNESS.inherit(OF_SERVER, "what happens to requests that servers could read in two ways");
    ENCODED_SLASHES: bool = option("encoded_slashes", Words(&["refuse", "keep"]), Value("\"refuse\""), "what happens to `%2F` in paths")
        .note(" on strict routes, else `\"keep\"`")
        .guide("routing.md#encoded-slashes")
        .metric("sluicegate_http_rejected_total")
        .ends(End::PathSlash)
        .weaker(Weaker::More)
        .teach("\"keep\"", "Use `keep` for registries and storage whose names contain slashes, such as npm packages with a scope");
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
        "forward the trailers of requests that `Trailer` announces",
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
    .called(server::CORS.option.aliases)
    .teach("{ origins = [\"https://app.example.com\"] }", "Set it if only this route is for pages of other origins; `false` turns that of `[server]` off");
    RESPOND = option("respond", Table(&respond::TABLE), Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"), "a fixed response")
        .teach("{ status = 503, body = \"back at noon\" }", "Use it for maintenance, health checks of a load balancer, `robots.txt`, and tests");
    REDIRECT = option(
        "redirect",
        Either(&[Text("string"), Table(&redirect::TABLE)]),
        Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"),
        "a redirect",
    )
    .guide("../guides/redirects.md")
    .shorthand("to")
    .example("write redirect = \"https://example.com{path}\", or redirect = { to = \"...\", status = 301 }")
    .teach("\"https://www.example.com{path}\"", "Use it for pages and hosts that have moved");
    FILES = option(
        "files",
        Path("folder"),
        Described("one of `upstream`, `split`, `respond`, `redirect`, `files`"),
        "a folder whose files are served",
    )
    .guide("../guides/files.md")
    .ends(End::NoFile)
    .called(&["root", "alias", "static", "file_server", "static_files", "serve_dir"])
    .teach("\"/srv/www\"", "Use it for static sites and single-page applications, so that you need no web server for them");
    TRY = option("try", list_from(1, &Text("name")), Value("[\"{path}\"]"), "the files that are tried, in order")
        .shown_as("list of names with `{path}`, up to 8")
        .guide("../guides/files.md#single-page-applications")
        .called(&["try_files"])
        .teach("[\"{path}\", \"/index.html\"]", "Set it for single-page applications, in which the page itself reads the path");
    CACHE_CONTROL = option(
        "cache_control",
        Text("string"),
        Value("\"no-cache\""),
        "`Cache-Control` of the route's files; that of HTML pages is always `no-cache`",
    )
    .guide("../guides/files.md#caching")
    .called(&["expires"])
    .teach("\"public, max-age=31536000, immutable\"", "Raise it for files whose name changes with their content");
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
        .example("name an htpasswd file: auth = { basic = \"users.htpasswd\" }")
        .teach("\"users.htpasswd\"", "Use it for a few people or machines. `htpasswd -B -c users.htpasswd alice` makes the file");
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
        .shown_as("name of a `[jwt.NAME]`, or `true` for `[jwt]`")
        .teach("true", "Use it if clients send tokens of an identity provider");
        USER_CLAIM = option("user_claim", Text("name of a claim"), Value("\"sub\""), "claim with the identity, for `jwt`")
            .teach("\"email\"", "Set it if another claim than `sub` identifies the user to your application");
        LIMITS = option(
            "limits",
            LIMIT_NAMES,
            Absent,
            "limits that are decided before the credentials are verified, instead of with those of the route",
        )
        .shown_as("list of names or tables, up to 16")
        .called(super::LIMITS.option.aliases)
        .teach("[\"failed-logins\"]", "List limits on guessing passwords here, so that they also see requests with wrong ones");
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
        .secrecy(Secrecy::SecretQuery)
        .teach("\"http://127.0.0.1:4180/oauth2/auth\"", "Use it with oauth2-proxy, Authelia, Authentik, or an application that checks its own sessions");
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
        .shown_as("list of names or `\"FROM>TO\"`")
        .teach("[\"x-auth-request-user\", \"x-auth-request-email\"]", "List what your application needs to know about the user");
        USER = option(
            "user",
            Text("header in `copy_headers`"),
            Described("the first of `x-auth-request-user`, `remote-user`, `x-forwarded-user` in `copy_headers`"),
            "names the user for `user` keys and the log",
        )
        .teach("\"remote-user\"", "Set it if several copied headers name the user, or if yours has another name");
        TIMEOUT: Duration = option("timeout", duration(10, MINUTE), Value("\"2s\""), "longest wait for the auth server, with all retries")
            .teach("\"5s\"", "Raise it if the auth server asks a slow directory");
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

        UPSTREAM = option("upstream", SERVER_LIST, Required, "where the requests go").shown_as("name, URL, list of URLs")
            .teach("\"http://127.0.0.1:3001\"", "Name the old version in one entry and the new version in another");
        WEIGHT: u32 = option("weight", integer(0, 1_000_000), Value("1"), "share of the requests, relative to the other weights")
            .teach("5", "Start the new version with a small number, and raise it while its errors stay rare");
    }
}

/// Options of `route.mirror`.
pub mod mirror {
    use super::*;

    rows! {
        table("route.mirror");

        UPSTREAM = option("upstream", SERVER_LIST, Required, "where the copies go").shown_as("name, URL, list of URLs")
            .teach("\"http://127.0.0.1:3001\"", "Name servers whose changes do no harm, with a database of their own");
        PERCENT: usize = option("percent", integer(0, 100), Value("100"), "how many of 100 requests are copied")
            .teach("10", "Lower it if the other servers are smaller than the real ones");
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
        .secrecy(Secrecy::SecretByKey)
        .teach("{ x-client-ip = \"{client_ip}\" }", "Use it to tell the application who the client is; a header that is set here cannot be forged by clients");
        REMOVE = option("remove", list(&Text("header")), Absent, "headers to remove").shown_as("list")
            .teach("[\"x-debug\"]", "Remove headers that the application trusts but clients must not send");
    }
}

/// Options of `route.response_headers`.
pub mod response_headers {
    use super::*;

    rows! {
        table("route.response_headers");

        REMOVE = option("remove", list(&Text("header")), Absent, "headers to remove, before the others are set")
            .shown_as("list")
            .called(&["hide", "delete"])
            .teach("[\"server\", \"x-powered-by\"]", "Remove headers that tell attackers which software you run");
        SET = option("set", Map(&Text("string")), Absent, "headers to replace").shown_as("table")
            .secrecy(Secrecy::SecretByKey)
            .teach("{ x-frame-options = \"DENY\" }", "Use it for headers that every response must have, whatever the servers say");
        DEFAULT = option("default", Map(&Text("string")), Absent, "headers to set if the response does not have them")
            .shown_as("table")
            .secrecy(Secrecy::SecretByKey);
        ADD = option("add", HEADER_LINES, Absent, "lines to add to those of the response, which stay")
            .shown_as("table of values or lists")
            .called(&["append"])
            .secrecy(Secrecy::SecretByKey)
            .teach("{ set-cookie = [\"a=1\", \"b=2\"] }", "Use it for headers of which a response may have several, such as cookies");
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

        TYPES = server::compress::TYPES.inherit(OF_SERVER, IN_ROUTE)
            .teach("[\"text/html\", \"application/json\"]", "Set it if responses of this route have a type that the default list does not contain");
        MIN_SIZE: Option<u64> = server::compress::MIN_SIZE.inherit(OF_SERVER, IN_ROUTE)
            .teach("\"4KiB\"", "Raise it if CPU time matters more than some bytes");
        ALGORITHMS = server::compress::ALGORITHMS.inherit(OF_SERVER, IN_ROUTE)
            .teach("[\"gzip\"]", "Set it for clients with known bugs in newer encodings");
    }
}

/// Options of `route.respond`.
pub mod respond {
    use super::*;

    rows! {
        table("route.respond");

        STATUS: usize = option("status", integer(200, 599), Value("200"), "its status")
            .teach("503", "Set it for maintenance, or for paths that nobody should find (404)");
        BODY = option("body", Text("string"), Value("\"\""), "its body")
            .secrecy(Secrecy::Body)
            .teach("\"back at noon\"", "Write short texts here. For pages, use `files`");
        CONTENT_TYPE = option("content_type", Text("string"), Value("\"text/plain; charset=utf-8\""), "its content type")
            .teach("\"application/json\"", "Set it together with a body that is not plain text");
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
        )
        .teach("\"https://www.example.com{path}\"", "Write a whole URL for another host, or a path for another page of this one");
        STATUS = option("status", Integers(&[301, 302, 303, 307, 308]), Value("308"), "its status")
            .teach("301", "Use 302 or 307 for a move that is not final, because browsers keep 301 and 308");
        QUERY: bool = option(
            "query",
            Words(&["keep", "drop"]),
            Value("\"keep\""),
            "whether a target without a query gets that of the request",
        )
        .teach("\"drop\"", "Use `drop` if the parameters mean nothing at the target");
        MAP = option("map", Path("file"), Absent, "targets of exact paths, up to 100000")
            .teach("\"redirects.txt\"", "Use it for many single pages, for example after a relaunch");
    }
}
