//! Options of `[upstream.NAME]`.

use crate::config::schema::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::shared::KEY_PARTS;
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{DAY, HOUR, SECOND, duration, integer, list, list_from};
use crate::config::schema::{Schema, option};

/// A URL or a table, or a list of them.
pub(super) const SERVERS: ValueType = list_from(1, &Either(&[Text("URL"), Table(&UPSTREAM_SERVER)]));
/// A status, a class or a range.
const STATUS_RANGE: ValueType = Either(&[Integer { least: 100, most: 599 }, Text("range")]);

pub const UPSTREAM: Schema = Schema {
    name: "upstream",
    title: "[upstream.NAME]",
    intro: "",
    notes: "",
    options: &[
        option("servers", SERVERS, Required, "the servers").guide("upstreams.md#server-addresses"),
        option(
            "balance",
            Words(&["p2c", "least_requests", "round_robin", "consistent_hash"]),
            Value("\"p2c\""),
            "how a server is selected",
        )
        .guide("load-balancing.md"),
        option("hash_on", KEY_PARTS, Described("required with `consistent_hash`"), "the key that selects a server"),
        option(
            "spread_above",
            integer(1, 1_000_000),
            Value("16"),
            "requests in flight above which a popular key spreads",
        ),
        option(
            "slow_start",
            duration(0, HOUR),
            Value("\"0s\""),
            "time until a new or recovered server has its full weight",
        ),
        option(
            "max_idle",
            integer(0, 100_000),
            Described("as many as were in use at once within 4 s"),
            "idle connections per worker and server; 0 = a new connection for each request",
        ),
        option("protocol", Words(&["auto", "http1", "http2"]), Value("\"auto\""), "protocol of the servers")
            .guide("upstreams.md#http2-to-servers"),
        option("proxy_protocol", Words(&["v1", "v2"]), Absent, "connections begin with a PROXY header")
            .guide("upstreams.md#proxy-protocol-to-servers"),
        option(
            "resolve_every",
            duration(SECOND, HOUR),
            Value("\"5s\""),
            "longest time between two DNS lookups of a hostname",
        )
        .metric("sluicegate_dns_lookups_total"),
        option("max_in_flight", integer(1, 10_000_000), Absent, "requests per server")
            .guide("upstreams.md#capacity-of-servers")
            .metric("sluicegate_upstream_in_flight"),
        option("max_connections", integer(1, 10_000_000), Absent, "connections per server")
            .metric("sluicegate_upstream_connections"),
        option("total", Table(&UPSTREAM_TOTAL), Absent, "bounds of all servers together"),
        option(
            "max_waiting",
            integer(0, 1_000_000),
            Value("100"),
            "requests that wait for capacity, for each server with a weight; more get 503",
        )
        .metric("sluicegate_upstream_waiting"),
        option(
            "waiting_timeout",
            duration(1, HOUR),
            Value("\"3s\""),
            "how long a request waits for capacity; then 503",
        )
        .metric("sluicegate_upstream_requests_total"),
        option(
            "newest_first_after",
            duration(1, HOUR),
            Described("`\"100ms\"` with `adaptive`, else never"),
            "when the newest of the waiting requests goes first: once the queue has not been empty for so long",
        )
        .guide("adaptive-concurrency.md"),
        option(
            "patience",
            duration(1, HOUR),
            Value("\"5ms\""),
            "how long a request waits for capacity while the newest goes first; then 503",
        ),
        option("adaptive", Table(&ADAPTIVE), Absent, "limit the requests to what the servers can process, as measured")
            .guide("adaptive-concurrency.md")
            .metric("sluicegate_upstream_adaptive_limit"),
        option("eject", Table(&EJECT), Absent, "skip servers that fail for a while")
            .guide("upstreams.md#ejection")
            .metric("sluicegate_upstream_ejected"),
        option("breaker", Table(&BREAKER), Absent, "refuse all requests for a while when too many fail or are slow")
            .guide("overload.md#circuit-breaker")
            .metric("sluicegate_breaker_state")
            .reason("upstream_breaker"),
        option("health", Table(&HEALTH), Absent, "check the servers")
            .guide("upstreams.md#health-checks")
            .metric("sluicegate_upstream_up"),
        option("retry", Table(&RETRY), Described("only failed connections"), "send a failed request to another server")
            .guide("upstreams.md#retries")
            .metric("sluicegate_upstream_retries_total"),
        option("tls", Table(&UPSTREAM_TLS), Described("the system's CAs"), "how `https` servers are verified")
            .guide("upstreams.md#tls-to-servers"),
    ],
};

pub const UPSTREAM_SERVER: Schema = Schema {
    name: "upstream.servers",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("url", Text("URL"), Required, "address of the server"),
        option("weight", integer(0, 1000), Value("1"), "share of the requests; 0 = none"),
        option(
            "max_in_flight",
            integer(1, 10_000_000),
            Described("that of the upstream"),
            "requests to this server at once",
        ),
        option(
            "max_connections",
            integer(1, 10_000_000),
            Described("that of the upstream"),
            "connections to this server",
        ),
    ],
};

pub const UPSTREAM_TOTAL: Schema = Schema {
    name: "upstream.total",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("max_in_flight", integer(1, 10_000_000), Absent, "requests to all servers at once"),
        option("max_connections", integer(1, 10_000_000), Absent, "connections to all servers"),
    ],
};

pub const ADAPTIVE: Schema = Schema {
    name: "upstream.adaptive",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("min", integer(1, 1_000_000), Value("3"), "least requests in flight to all servers together"),
        option("max", integer(1, 1_000_000), Value("1000"), "most requests in flight"),
        option("start", integer(1, 1_000_000), Value("20"), "requests in flight before anything is measured"),
        option(
            "fixed_baseline",
            duration(1, HOUR),
            Described("measured"),
            "response time of servers without a queue: what nine of ten responses do not exceed",
        ),
    ],
};

pub const EJECT: Schema = Schema {
    name: "upstream.eject",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("consecutive_errors", integer(1, 10_000), Value("5"), "errors in a row that eject a server"),
        option(
            "error_rate",
            Fraction,
            Value("0.5"),
            "fraction of failed requests within `every` that ejects a server, if it got at least 20",
        ),
        option("every", duration(100, DAY), Value("\"10s\""), "the interval of `error_rate`"),
        option("for", duration(100, DAY), Value("\"30s\""), "duration of the first ejection; later ones last longer"),
        option("max", Fraction, Value("0.5"), "fraction of the servers that may be ejected at once"),
    ],
};

pub const BREAKER: Schema = Schema {
    name: "upstream.breaker",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("slow", duration(1, HOUR), Absent, "time to the response head from which a request is slow"),
        option("slow_ratio", Fraction, Value("0.5"), "fraction of slow requests that opens the breaker; needs `slow`"),
        option("error_ratio", Fraction, Absent, "fraction of failed requests that opens it"),
        option("errors", integer(1, 1_000_000_000), Absent, "number of failed requests that opens it"),
        option("window", duration(100, HOUR), Value("\"10s\""), "the time over which requests are counted"),
        option(
            "min_requests",
            integer(1, 1_000_000),
            Value("10"),
            "requests in the window below which the breaker stays closed",
        ),
        option("open_for", duration(100, HOUR), Value("\"5s\""), "how long an open breaker refuses all requests"),
        option("probes", integer(1, 100), Value("3"), "requests that then pass, and whose results decide"),
        option(
            "ramp",
            duration(0, HOUR),
            Value("\"10s\""),
            "time over which the admitted share then rises from 10 % to all",
        ),
    ],
};

pub const HEALTH: Schema = Schema {
    name: "upstream.health",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("type", Words(&["http", "tcp", "grpc"]), Value("\"http\""), "kind of check"),
        option("path", Text("path"), Value("\"/\""), "path of an HTTP check"),
        option("every", duration(100, HOUR), Value("\"10s\""), "time between two checks of a server"),
        option("timeout", duration(100, HOUR), Value("\"1s\""), "time for a check, connecting included"),
        option("unhealthy_after", integer(1, 1000), Value("3"), "failures in a row until a server is down"),
        option("healthy_after", integer(1, 1000), Value("2"), "successes in a row until it is up"),
        option(
            "status",
            Either(&[STATUS_RANGE, Array { item: &STATUS_RANGE, least: 1, most: usize::MAX }]),
            Value("[\"200-399\"]"),
            "statuses of a healthy server",
        )
        .shown_as("list of statuses and ranges"),
        option(
            "body",
            Text("string, up to 1024 bytes"),
            Absent,
            "string that the first 64 KiB of the body must contain",
        ),
    ],
};

pub const RETRY: Schema = Schema {
    name: "upstream.retry",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("attempts", integer(1, 10), Value("2"), "how often a request is sent at most"),
        option("budget", Fraction, Value("0.2"), "fraction of the requests of the last 10 s that may be retried")
            .metric("sluicegate_upstream_retries_over_budget_total"),
        option(
            "on",
            list(&Words(&["connect", "reset", "timeout", "502", "503", "504"])),
            Value("[\"connect\", \"reset\"]"),
            "failures to retry",
        ),
    ],
};

pub const UPSTREAM_TLS: Schema = Schema {
    name: "upstream.tls",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("ca", Text("file"), Value("\"\""), "trust only these CAs and server certificates, PEM"),
        option("cert", Text("file"), Value("\"\""), "the gateway's own certificate, PEM; needs `key`"),
        option("key", Text("file"), Value("\"\""), "the key of `cert`, PEM"),
        option("server_name", Text("string"), Value("\"\""), "name for SNI and verification"),
        option("verify", Boolean, Value("true"), "`false` accepts any certificate"),
    ],
};
