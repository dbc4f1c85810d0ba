//! Options of `[upstream.NAME]`.

use std::time::Duration;

use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{Row, Secrecy, Weaker, option, rows, table};
use crate::config::schema::shared::KEY_PARTS;
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{DAY, HOUR, KIB, MIB, SECOND, duration, integer, list, list_from, size};
use crate::ends::End;
use crate::upstream::Balance;
use crate::upstream::Fraction;
use crate::upstream::WireProtocol;
use crate::upstream::health::CheckKind;
use crate::upstream::proxy_header::ProxyVersion;

/// A URL or a table, or a list of them.
pub(super) const SERVER_LIST: ValueType = list_from(1, &Either(&[Text("URL"), Table(&server::TABLE)]));
/// A status, a class or a range.
const STATUS_RANGE: ValueType = Either(&[Integer { least: 100, most: 599 }, Text("range")]);

rows! {
    table("upstream").title("[upstream.NAME]");

    SERVERS = option("servers", SERVER_LIST, Required, "the servers").guide("upstreams.md#server-addresses")
        .called(&["backends", "targets", "server"])
        .teach("[\"http://10.0.0.11:3000\", \"http://10.0.0.12:3000\"]", "List servers that serve the same application; the gateway spreads the requests over the healthy ones");
    BALANCE: Balance = option(
        "balance",
        Words(&["p2c", "least_requests", "round_robin", "consistent_hash"]),
        Value("\"p2c\""),
        "how a server is selected",
    )
    .guide("load-balancing.md")
    .called(&["lb_policy", "load_balancing", "algorithm", "least_conn", "ip_hash", "sticky"])
    .teach("\"least_requests\"", "`p2c` takes the better of two random servers and suits most applications. `least_requests` compares all of them, `round_robin` takes turns, and `consistent_hash` sends the same key to the same server, for caches");
    HASH_ON = option("hash_on", KEY_PARTS, Described("required with `consistent_hash`"), "the key that selects a server")
        .teach("\"header:x-tenant\"", "Use what the requests that profit from the same cache have in common, such as the tenant");
    SPREAD_ABOVE: u32 = option(
        "spread_above",
        integer(1, 1_000_000),
        Value("16"),
        "requests in flight above which a popular key spreads",
    );
    SLOW_START: Duration = option(
        "slow_start",
        duration(0, HOUR),
        Value("\"0s\""),
        "time until a new or recovered server has its full weight",
    )
    .teach("\"30s\"", "Set it for servers that are slow until their caches are warm");
    MAX_IDLE: Option<usize> = option(
        "max_idle",
        integer(0, 100_000),
        Described("as many as were in use at once within 4 s"),
        "idle connections per worker and server; 0 = a new connection for each request",
    )
    .called(&["keepalive"]);
    PROTOCOL: WireProtocol = option("protocol", Words(WireProtocol::LABELS), Value("\"auto\""), "protocol of the servers")
        .guide("upstreams.md#http2-to-servers")
        .teach("\"http1\"", "Set it if an `https` server offers HTTP/2 but handles it badly. For gRPC without TLS, write `h2c://` in the URL");
    PROXY_PROTOCOL: Option<ProxyVersion> = option("proxy_protocol", Words(ProxyVersion::LABELS), Absent, "connections begin with a PROXY header")
        .guide("upstreams.md#proxy-protocol-to-servers");
    RESOLVE_EVERY: Duration = option(
        "resolve_every",
        duration(SECOND, HOUR),
        Value("\"5s\""),
        "longest time between two DNS lookups of a hostname",
    )
    .metric("sluicegate_dns_lookups_total");
    MAX_HEADERS: Option<usize> = option(
        "max_headers",
        integer(1, 10_000),
        Described("100, or `server.max_headers` if that is more"),
        "headers in a response head; more get 502",
    )
    .guide("upstreams.md#response-heads");
    MAX_HEADER_BYTES: Option<usize> = option(
        "max_header_bytes",
        size(8 * KIB, MIB),
        Described("`\"64KiB\"`, or `server.max_header_bytes` if that is more"),
        "bytes of a response head; more get 502",
    )
    .guide("upstreams.md#response-heads")
    .called(&["proxy_buffer_size", "max_response_headers_kb", "response_header_bytes"]);
    MAX_IN_FLIGHT: Option<u32> = option("max_in_flight", integer(1, 10_000_000), Absent, "requests per server")
        .guide("upstreams.md#capacity-of-servers")
        .metric("sluicegate_upstream_in_flight")
        .called(&["limit_conn"])
        .teach("100", "Set it to what one server can process at once, so that more requests wait in the gateway instead of slowing the server down");
    MAX_CONNECTIONS: Option<u32> = option("max_connections", integer(1, 10_000_000), Absent, "connections per server")
        .metric("sluicegate_upstream_connections")
        .called(&["max_conns", "maxconn"])
        .teach("200", "Set it if a server accepts only so many connections, such as one with a thread for each");
    TOTAL = option("total", Table(&total::TABLE), Absent, "bounds of all servers together")
        .teach("{ max_in_flight = 500 }", "Use it if something that all servers share has a bound, such as a database");
    MAX_WAITING: usize = option(
        "max_waiting",
        integer(0, 1_000_000),
        Value("100"),
        "requests that wait for capacity, for each server with a weight; more get 503",
    )
    .metric("sluicegate_upstream_waiting")
    .teach("500", "Raise it for short bursts; lower it if waiting clients give up anyway");
    WAITING_TIMEOUT: Duration = option(
        "waiting_timeout",
        duration(1, HOUR),
        Value("\"3s\""),
        "how long a request waits for capacity; then 503",
    )
    .metric("sluicegate_upstream_requests_total")
    .teach("\"1s\"", "Lower it if clients would rather have a quick 503 than a slow response");
    NEWEST_FIRST_AFTER: Option<Duration> = option(
        "newest_first_after",
        duration(1, HOUR),
        Described("`\"100ms\"` with `adaptive`, else never"),
        "when the newest of the waiting requests goes first: once the queue has not been empty for so long",
    )
    .guide("adaptive-concurrency.md")
    .teach("\"500ms\"", "Set it if clients give up after a few seconds, because after a burst the oldest waiting requests have no client anymore");
    PATIENCE: Duration = option(
        "patience",
        duration(1, HOUR),
        Value("\"5ms\""),
        "how long a request waits for capacity while the newest goes first; then 503",
    );
    ADAPTIVE = option("adaptive", Table(&adaptive::TABLE), Absent, "limit the requests to what the servers can process, as measured")
        .guide("adaptive-concurrency.md")
        .metric("sluicegate_upstream_adaptive_limit")
        .weaker(Weaker::Removed)
        .teach("{ max = 200 }", "Use it (`adaptive = {}`) if you do not know how many requests your servers can process at once, or if that number changes");
    EJECT = option("eject", Table(&eject::TABLE), Absent, "skip servers that fail for a while")
        .guide("upstreams.md#ejection")
        .metric("sluicegate_upstream_ejected")
        .called(&["max_fails", "fail_timeout", "outlier_detection"])
        .teach("{ consecutive_errors = 3 }", "Use it (`eject = {}`) with two or more servers, so that clients do not get the errors of a broken one");
    BREAKER = option("breaker", Table(&breaker::TABLE), Absent, "refuse all requests for a while when too many fail or are slow")
        .guide("circuit-breakers.md#circuit-breaker")
        .metric("sluicegate_breaker_state")
        .ends(End::UpstreamBreaker)
        .teach("{ error_ratio = 0.5 }", "Set it if an overloaded application recovers only when it gets no requests for a while");
    HEALTH = option("health", Table(&health::TABLE), Absent, "check the servers")
        .guide("upstreams.md#health-checks")
        .metric("sluicegate_upstream_up")
        .called(&["health_check", "health_uri", "healthcheck"])
        .teach("{ path = \"/healthz\" }", "Set it so that the gateway notices a broken server before clients do");
    RETRY = option("retry", Table(&retry::TABLE), Described("only failed connections"), "send a failed request to another server")
        .guide("upstreams.md#retries")
        .metric("sluicegate_upstream_retries_total")
        .called(&["retries"])
        .teach("{ attempts = 3 }", "Set it if requests may be repeated and one of several servers fails now and then");
    TLS = option("tls", Table(&tls::TABLE), Described("the system's CAs"), "how `https` servers are verified")
        .guide("upstreams.md#tls-to-servers")
        .called(&["ssl_certificate", "ssl_certificate_key"])
        .teach("{ ca = \"ca.pem\", server_name = \"app.internal\" }", "Set it if your servers have certificates of your own CA, or other names than in their URLs");
}

/// Options of `upstream.servers`.
pub mod server {
    use super::*;

    rows! {
        table("upstream.servers");

        URL = option("url", Text("URL"), Required, "address of the server")
            .teach("\"http://10.0.0.11:3000\"", "Use a table with `url` only for a server with its own weight or bounds. For all others, the URL alone is enough");
        WEIGHT: u32 = option("weight", integer(0, 1000), Value("1"), "share of the requests; 0 = none")
            .teach("3", "Set it if servers differ in size, or to 0 to drain one");
        MAX_IN_FLIGHT: Option<u32> = option(
            "max_in_flight",
            integer(1, 10_000_000),
            Described("that of the upstream"),
            "requests to this server at once",
        )
        .called(super::MAX_IN_FLIGHT.option.aliases);
        MAX_CONNECTIONS: Option<u32> = option(
            "max_connections",
            integer(1, 10_000_000),
            Described("that of the upstream"),
            "connections to this server",
        )
        .called(super::MAX_CONNECTIONS.option.aliases);
    }
}

/// Options of `upstream.total`.
pub mod total {
    use super::*;

    rows! {
        table("upstream.total");

        MAX_IN_FLIGHT: Option<u32> = option("max_in_flight", integer(1, 10_000_000), Absent, "requests to all servers at once")
            .called(super::MAX_IN_FLIGHT.option.aliases);
        MAX_CONNECTIONS: Option<u32> = option("max_connections", integer(1, 10_000_000), Absent, "connections to all servers")
            .called(super::MAX_CONNECTIONS.option.aliases);
    }
}

/// Options of `upstream.adaptive`.
pub mod adaptive {
    use super::*;

    rows! {
        table("upstream.adaptive");

        MIN: u32 = option("min", integer(1, 1_000_000), Value("3"), "the limit never falls below this number of requests in flight, to all servers together")
            .teach("10", "Raise it to a number that the servers can always process, so that a short pause cannot block the application");
        MAX: u32 = option("max", integer(1, 1_000_000), Value("1000"), "the limit never rises above this number of requests in flight")
            .weaker(Weaker::More)
            .teach("200", "Set it if something behind the servers has a fixed bound, such as the connections of a database");
        START: u32 = option("start", integer(1, 1_000_000), Value("20"), "requests in flight before anything is measured");
        FIXED_BASELINE: Option<Duration> = option(
            "fixed_baseline",
            duration(1, HOUR),
            Described("measured"),
            "response time of servers without a queue: what nine of ten responses do not exceed",
        );
    }
}

/// Options of `upstream.eject`.
pub mod eject {
    use super::*;

    rows! {
        table("upstream.eject");

        CONSECUTIVE_ERRORS: u32 = option("consecutive_errors", integer(1, 10_000), Value("5"), "errors in a row that eject a server")
            .teach("3", "Lower it to take a failing server out sooner");
        ERROR_RATE: Fraction = option(
            "error_rate",
            Fraction,
            Value("0.5"),
            "fraction of failed requests within `every` that ejects a server, if it got at least 20",
        );
        EVERY: Duration = option("every", duration(100, DAY), Value("\"10s\""), "the interval of `error_rate`");
        FOR: Duration = option("for", duration(100, DAY), Value("\"30s\""), "duration of the first ejection; later ones last longer");
        MAX: Fraction = option("max", Fraction, Value("0.5"), "fraction of the servers that may be ejected at once");
    }
}

/// Options of `upstream.breaker`.
pub mod breaker {
    use super::*;

    rows! {
        table("upstream.breaker");

        SLOW: Option<Duration> = option("slow", duration(1, HOUR), Absent, "time to the response head from which a request is slow")
            .weaker(Weaker::More)
            .teach("\"2s\"", "Set it if your application becomes slow rather than returning errors when it is overloaded");
        SLOW_RATIO: Fraction = option("slow_ratio", Fraction, Value("0.5"), "fraction of slow requests that opens the breaker; needs `slow`")
            .weaker(Weaker::More)
            .teach("0.8", "Raise it if many requests are slow even on a good day");
        ERROR_RATIO: Option<Fraction> = option("error_ratio", Fraction, Absent, "fraction of failed requests that opens it")
            .weaker(Weaker::More)
            .teach("0.5", "Set it if an application that fails needs rest to recover");
        ERRORS: Option<u64> = option("errors", integer(1, 1_000_000_000), Absent, "number of failed requests that opens it")
            .weaker(Weaker::More)
            .teach("20", "Use it instead of `error_ratio` for upstreams with few requests, where a ratio says little");
        WINDOW: Duration = option("window", duration(100, HOUR), Value("\"10s\""), "the time over which requests are counted");
        MIN_REQUESTS: u64 = option(
            "min_requests",
            integer(1, 1_000_000),
            Value("10"),
            "requests in the window below which the breaker stays closed",
        )
        .teach("50", "Raise it so that a few failed requests at night do not open the breaker");
        OPEN_FOR: Duration = option("open_for", duration(100, HOUR), Value("\"5s\""), "how long an open breaker refuses all requests")
            .teach("\"30s\"", "Set it to the time in which your application usually recovers");
        PROBES: u32 = option("probes", integer(1, 100), Value("3"), "requests that then pass, and whose results decide");
        RAMP: Duration = option(
            "ramp",
            duration(0, HOUR),
            Value("\"10s\""),
            "time over which the admitted share then rises from 10 % to all",
        );
    }
}

/// Options of `upstream.health`.
pub mod health {
    use super::*;

    rows! {
        table("upstream.health");

        TYPE: CheckKind = option("type", Words(CheckKind::LABELS), Value("\"http\""), "kind of check")
            .teach("\"tcp\"", "Use `tcp` for servers without a page to check, and `grpc` for those with the health service of gRPC");
        PATH = option("path", Text("path"), Value("\"/\""), "path of an HTTP check")
            .called(&["location", "paths", "uri"])
            .teach("\"/healthz\"", "Set it to a page that fails when the server cannot work, for example because its database is down");
        EVERY: Duration = option("every", duration(100, HOUR), Value("\"10s\""), "time between two checks of a server")
            .called(&["interval"])
            .teach("\"2s\"", "Lower it to notice a dead server sooner");
        TIMEOUT: Duration = option("timeout", duration(100, HOUR), Value("\"1s\""), "time for a check, connecting included")
            .teach("\"5s\"", "Raise it if the page that is checked is slow, for example because it queries a database");
        UNHEALTHY_AFTER: u32 = option("unhealthy_after", integer(1, 1000), Value("3"), "failures in a row until a server is down")
            .called(&["fall", "fails", "unhealthy_threshold"]);
        HEALTHY_AFTER: u32 = option("healthy_after", integer(1, 1000), Value("2"), "successes in a row until it is up")
            .called(&["rise", "passes", "healthy_threshold"]);
        STATUS = option(
            "status",
            Either(&[STATUS_RANGE, Array { item: &STATUS_RANGE, least: 1, most: usize::MAX }]),
            Value("[\"200-399\"]"),
            "statuses of a healthy server",
        )
        .called(&["expected_statuses", "expect_status", "http_statuses"])
        .shown_as("list of statuses and ranges");
        BODY = option(
            "body",
            Text("string, up to 1024 bytes"),
            Absent,
            "string that the first 64 KiB of the body must contain",
        )
        .called(&["expect_body", "expect_string"]);
        HOST = option("host", Text("host"), Described("host of the server's URL"), "`Host` of a check")
            .called(&["hostname", "host_header"]);
        HEADERS = option("headers", Map(&Text("string")), Absent, "headers of a check")
            .shown_as("table")
            .secrecy(Secrecy::SecretByKey);
    }
}

/// Options of `upstream.retry`.
pub mod retry {
    use super::*;

    rows! {
        table("upstream.retry");

        ATTEMPTS: usize = option("attempts", integer(1, 10), Value("2"), "how often a request is sent at most, the first attempt included")
            .teach("3", "The first attempt counts too. Raise it if one server in many fails often; 1 never retries");
        BUDGET: Fraction = option("budget", Fraction, Value("0.2"), "fraction of the requests of the last 10 s that may be retried")
            .metric("sluicegate_upstream_retries_over_budget_total");
        ON = option(
            "on",
            list(&Words(&["connect", "reset", "timeout", "502", "503", "504"])),
            Value("[\"connect\", \"reset\"]"),
            "failures to retry",
        )
        .unordered()
        .teach("[\"connect\", \"reset\", \"503\"]", "Add statuses with which your servers ask for another attempt. Only requests that are safe to repeat are retried after a response");
    }
}

/// Options of `upstream.tls`.
pub mod tls {
    use super::*;

    rows! {
        table("upstream.tls");

        CA = option("ca", Path("file"), Value("\"\""), "trust only these CAs and server certificates, PEM")
            .weaker(Weaker::Removed)
            .teach("\"ca.pem\"", "Set it if a CA of your own has signed the certificates of the servers");
        CERT = option("cert", Path("file"), Value("\"\""), "the gateway's own certificate, PEM; needs `key`");
        KEY = option("key", Path("file"), Value("\"\""), "the key of `cert`, PEM");
        SERVER_NAME = option("server_name", Text("string"), Value("\"\""), "name for SNI and verification")
            .teach("\"app.internal\"", "Set it if `servers` lists addresses, and the certificate has a name");
        VERIFY: bool = option("verify", Boolean, Value("true"), "`false` accepts any certificate")
            .weaker(Weaker::Less);
    }
}
