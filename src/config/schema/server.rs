//! Options of `[server]`.

use std::time::Duration;

use crate::config::ForwardedHeader;
use crate::config::client_address::HOPS_MAX;
use crate::config::schema::cors;
use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{Row, Secrecy, Weaker, option, rows, table};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{
    DAY, GIB, HOUR, KIB, MIB, SIZE_MAX, TIB, duration, integer, list, list_from, size,
};
use crate::config::{HeaderCase, TraceParent, UnderscoreHeaders};
use crate::ends::End;
use crate::route::Strictness;
use crate::route::compress::CompressionAlgorithm;
use crate::upstream::Fraction;

/// Time after which a request or a connection ends.
const TIMEOUT: ValueType = duration(1, DAY);
const PAUSE: ValueType = duration(0, DAY);
const BODY_RATE: ValueType = size(0, TIB);
const KERNEL_BUFFER: ValueType = size(0, GIB);
/// A status, or a class such as `"5xx"`.
const ERROR_STATUS: ValueType = Either(&[Integer { least: 400, most: 599 }, Text("class")]);

rows! {
    table("server").title("[server]");

    LISTEN = option(
        "listen",
        list_from(1, &Text("address")),
        Value("[\"127.0.0.1:8080\"]"),
        "plain HTTP listeners: `\"ADDRESS:PORT\"`, `\":PORT\"` (every IPv4 address) or `\"unix:/PATH\"`",
    )
    .shown_as("list of addresses")
    .note("; none if there is a `[[listener]]`")
    .example("write listen = [\"0.0.0.0:8080\"]")
    .called(&["port", "bind", "address"])
    .teach("\":8080\"", "Change it if other machines are your clients, because the default is reachable only from this one");
    REDIRECT_HTTP = option(
        "redirect_http",
        Either(&[Text("address"), Table(&redirect_http::TABLE)]),
        Absent,
        "redirect plain HTTP on this address to HTTPS",
    )
    .shown_as("address, or table")
    .guide("tls.md#redirect-http-to-https")
    .shorthand("listen")
    .teach("{ listen = \":80\" }", "Set it together with HTTPS, because browsers may try `http://` first");
    WORKERS: usize = option(
        "workers",
        integer(0, 1024),
        Value("0"),
        "threads that serve requests; 0 = one per available core, within the CPU quota",
    )
    .after_restart()
    .called(&["worker_processes", "threads", "nbthread"])
    .teach("2", "Set it if other programs on the machine need some of the cores");
    TRUSTED_PROXIES = option("trusted_proxies", list(&Text("network")), Value("[]"), "peers whose forwarding headers are used")
        .guide("requests.md#client-address")
        .metric("sluicegate_forwarding_ignored_total")
        .weaker(Weaker::NewItem)
        .unordered()
        .called(&["real_ip_from", "set_real_ip_from", "trusted_ips", "trustedIPs"])
        .teach("[\"10.0.0.0/8\", \"192.0.2.7\"]", "List your load balancer or CDN if there is one in front, because otherwise all its clients share one budget. Never list networks of clients: they could claim any address");
    CLIENT_ADDRESS = option(
        "client_address",
        list_from(1, &Text("header")),
        Value("[\"x-forwarded-for\", \"forwarded\"]"),
        "headers in which trusted proxies name the client, in the order in which they are tried; or `\"cloudflare\"`, `\"fly\"`, `\"azure\"`, `\"aws-alb\"`",
    )
    .shown_as("header, or list of headers")
    .guide("requests.md#client-address")
    .metric("sluicegate_client_unnamed_total")
    .weaker(Weaker::NewItem)
    .called(&["real_ip_header", "client_ip_headers", "client_ip_header", "original_ip_detection_extensions"])
    .teach("\"cloudflare\"", "Set it if your proxy names the client in a header of its own, such as `x-real-ip`");
    MAX_FORWARDED_HOPS: usize = option(
        "max_forwarded_hops",
        integer(1, HOPS_MAX as i64),
        Value("32"),
        "addresses that are read of a list such as `X-Forwarded-For`, from its end",
    )
    .guide("requests.md#the-header-that-names-the-client")
    .metric("sluicegate_client_unnamed_total")
    .weaker(Weaker::More)
    .called(&["depth", "trusted_hops", "xff_num_trusted_hops", "real_ip_recursive"])
    .teach("1", "Set it to the number of proxies in front if their clients may have addresses of `trusted_proxies`");
    UNDERSCORE_HEADERS: UnderscoreHeaders = option(
        "underscore_headers",
        Words(UnderscoreHeaders::LABELS),
        Value("\"drop\""),
        "how request headers with `_` in their names, such as `access_token`, are handled: `drop` removes them, `keep` forwards them unless servers could confuse them with others",
    )
    .guide("requests.md#headers-with-underscores")
    .metric("sluicegate_ambiguous_headers_total")
    .called(&["underscores_in_headers", "headers_with_underscores_action"]);
    HEADER_CASE: HeaderCase = option(
        "header_case",
        Words(HeaderCase::LABELS),
        Value("\"lower\""),
        "how header names are written over HTTP/1.1: in lower case, or in the case in which they came",
    )
    .for_new_connections()
    .guide("requests.md#case-of-header-names")
    .called(&["proxy_preserve_header_case", "preserve_header_case", "h1_case_adjust", "header_key_format"]);
    NAT64 = option(
        "nat64",
        list(&Text("prefix")),
        Value("[\"64:ff9b::/96\"]"),
        "prefixes of IPv6 addresses that stand for IPv4 clients; the well-known one belongs to them unless the list is empty",
    )
    .shown_as("list of prefixes")
    .guide("requests.md#ipv4-clients-behind-nat64");
    FORWARDED_HEADERS: Option<Vec<ForwardedHeader>> = option(
        "forwarded_headers",
        list(&Words(ForwardedHeader::LABELS)),
        Described("all except `\"forwarded\"`"),
        "headers about the client that the server gets: `x-forwarded-for`, `x-forwarded-proto`, `x-forwarded-host`, `x-forwarded-port`, `x-real-ip`, `x-request-id`, `via`, `forwarded`",
    )
    .shown_as("list of header names")
    .guide("requests.md#forwarded-headers-and-via")
    .teach("[\"x-forwarded-for\", \"x-forwarded-proto\", \"x-request-id\"]", "Shorten the list if an application must not see one of these headers; add `forwarded` if it reads that one");
    STRICTNESS: Strictness = option("strictness", Words(Strictness::LABELS), Value("\"strict\""), "what happens to requests that servers could read in two ways")
        .guide("requests.md#strictness")
        .metric("sluicegate_http_would_reject_total")
        .weaker(Weaker::Compiled)
        .inherited()
        .teach("\"defensive\"", "`strict` refuses what servers could read in two ways, `defensive` repairs it where that is safe, and `monitor` only counts what `defensive` would refuse. Begin with `monitor` in front of an old application whose clients you do not know");
    ACCESS_LOG = option("access_log", Either(&[Boolean, Table(&access_log::TABLE)]), Value("false"), "one line per request")
        .guide("log-fields.md#the-access-log")
        .metric("sluicegate_access_log_dropped_total")
        .shorthand("enabled")
        .teach("true", "Turn it on to look up single requests later, and to replay them against new limits");
    ANSWER_REQUEST_ID: bool = option("answer_request_id", Boolean, Value("false"), "add `X-Request-Id` to responses")
        .teach("true", "Turn it on if your users quote an id when they report a problem");
    ERROR_PAGES = option("error_pages", Map(&List { item: &Path("file"), least: 1, most: usize::MAX }), Value("{}"), "responses to errors instead of the built-in ones")
        .shown_as("table of status or class, and file or list of files")
        .guide("../guides/error-pages.md")
        .inherited()
        .example("write error_pages = { 404 = \"404.html\", \"5xx\" = \"5xx.html\" }")
        .called(&["error_page"])
        .teach("{ 404 = \"404.html\", \"5xx\" = \"5xx.html\" }", "Set it if visitors should see your own pages instead of the short built-in texts");
    INTERCEPT = option(
        "intercept",
        Either(&[Boolean, Array { item: &ERROR_STATUS, least: 0, most: usize::MAX }]),
        Value("false"),
        "replace error responses of servers too; `true`: those with an error page",
    )
    .shown_as("boolean, or list of statuses and classes")
    .inherited()
    .example("write intercept = true, or intercept = [404, \"5xx\"]")
    .called(&["proxy_intercept_errors"])
    .teach("[404, \"5xx\"]", "Set it if visitors should see your pages for errors of the servers too, for example because those show stack traces");
    CORS = option("cors", Either(&[False, Table(&cors::TABLE)]), Value("false"), "which pages of other origins may read responses")
        .guide("../guides/cors.md")
        .inherited()
        .example("write cors = { origins = [\"https://app.example.com\"] }, or cors = false")
        .called(&["enable_cors", "enable-cors", "allow_origin", "allow_origins", "allowed_origins", "cors_allow_origin", "accessControlAllowOriginList", "cors_policy", "access_control_allow_origin", "expose_headers"])
        .teach("{ origins = [\"https://app.example.com\"] }", "Set it if pages of another origin call your API from a browser");
    TRACEPARENT: TraceParent = option(
        "traceparent",
        Words(TraceParent::LABELS),
        Value("\"pass\""),
        "whether requests without a valid `traceparent` pass as they are (`pass`), or start a trace (`make`)",
    )
    .guide("log-fields.md#trace-context")
    .teach("\"make\"", "`pass` forwards such requests as they are, `make` starts a trace. Use `make` if no proxy in front of the gateway starts traces");
    SPANS = option("spans", Table(&spans::TABLE), Absent, "send spans to an OpenTelemetry collector")
        .guide("log-fields.md#spans-opentelemetry")
        .metric("sluicegate_spans_total")
        .teach("{ to = \"http://127.0.0.1:4318\" }", "Set it if you trace requests with Jaeger, Tempo or another collector of OpenTelemetry");
    HINTS = option(
        "hints",
        Either(&[Boolean, Words(&["local"])]),
        Value("\"local\""),
        "which clients see in a problem document which option refused them: all, none, or clients on this machine",
    )
    .shown_as("`true`, `false`, `\"local\"`")
    .weaker(Weaker::Later(&["false", "\"local\"", "true"]))
    .teach("true", "Turn it on for all clients in a test environment only, because it tells them about your config");
    RESOLVER = option(
        "resolver",
        List { item: &Text("address"), least: 0, most: 8 },
        Described("`/etc/resolv.conf`"),
        "DNS servers for upstream hostnames",
    )
    .guide("upstreams.md#servers-by-hostname-dns")
    .teach("[\"10.0.0.2\", \"10.0.0.3\"]", "Set it if only your own DNS servers, such as those of Consul, know the hostnames of your servers");
    MAX_CONNECTIONS: usize = option("max_connections", integer(1, 10_000_000), Value("8192"), "open client connections; for more, idle ones are closed")
        .metric("sluicegate_http_rejected_total")
        .ends(End::MaxConnections)
        .called(&["max_conns", "maxconn"])
        .teach("50000", "Raise it for many WebSocket or idle clients, together with the descriptor limit (`LimitNOFILE`)");
    MAX_CONNECTIONS_PER_IP: usize = option(
        "max_connections_per_ip",
        integer(0, 10_000_000),
        Value("0"),
        "open connections per client: an IPv4 address or an IPv6 /64; 0 = no bound",
    )
    .metric("sluicegate_http_rejected_total")
    .ends(End::MaxConnectionsPerIp)
    .weaker(Weaker::More)
    .unset("inf")
    .teach("100", "Set it against clients that open connections by the thousand; more are closed. Leave it at 0 behind a CDN, whose addresses are shared by many clients");
    OVERLOAD = option("overload", Table(&overload::TABLE), Absent, "refuse requests while the whole process is overloaded")
        .guide("circuit-breakers.md#process-overload")
        .metric("sluicegate_overload_refused_total")
        .teach("{ in_flight = 5000, cpu = 0.9 }", "Set it so that the gateway refuses some requests quickly instead of serving all of them slowly");
    MAX_TUNNELS: usize = option("max_tunnels", integer(0, 10_000_000), Value("4096"), "upgraded connections (WebSocket), seven eighths at most for one client; more get 503")
        .guide("requests.md#websocket-and-other-upgrades")
        .metric("sluicegate_http_rejected_total")
        .ends(End::MaxTunnels)
        .teach("20000", "Raise it for chats and dashboards with many WebSocket clients");
    MAX_HEADERS: usize = option("max_headers", integer(1, 10_000), Value("100"), "headers in a request head; more get 431")
        .for_new_connections()
        .metric("sluicegate_http_rejected_total")
        .ends(End::MaxHeaders)
        .weaker(Weaker::More)
        .teach("200", "Raise it if legitimate clients get 431 because proxies in front add many headers");
    // The lower bound is the smallest buffer for a request head that hyper accepts.
    MAX_HEADER_BYTES: usize = option("max_header_bytes", size(8 * KIB, MIB), Value("\"32KiB\""), "bytes of a request head; more get 431")
        .for_new_connections()
        .metric("sluicegate_http_rejected_total")
        .ends(End::HeadTooLarge)
        .weaker(Weaker::More)
        .teach("\"64KiB\"", "Raise it if legitimate clients get 431 because of large cookies or tokens");
    MAX_BODY: u64 = option("max_body", size(0, SIZE_MAX), Value("\"10MiB\""), "bytes of a request body; more get 413")
        .guide("requests.md#sizes")
        .metric("sluicegate_http_rejected_total")
        .ends(End::AnnouncedTooLarge)
        .weaker(Weaker::Compiled)
        .inherited()
        .called(&["client_max_body_size", "max_request_body_bytes", "maxRequestBodyBytes", "request_body_limit", "body_limit"])
        .teach("\"100MiB\"", "Raise it for uploads, `git push` and container images, preferably on their route only");
    MAX_KEY_BODY: u64 = option("max_key_body", size(64, 64 * KIB), Value("\"8KiB\""), "bytes of a body that a limit reads for its key")
        .guide("keys.md")
        .metric("sluicegate_rejections_total")
        .ends(End::BodyKeyMalformed)
        .inherited();
    MAX_COST_BODY: u64 = option("max_cost_body", size(64, 16 * MIB), Value("\"1MiB\""), "bytes of a body that a limit reads for its cost (`reserve`, `count`, `ask_usage`), or for calls")
        .guide("charges.md#reserve")
        .weaker(Weaker::Compiled)
        .inherited();
    HTTP2: bool = option("http2", Boolean, Value("true"), "accept HTTP/2 on every listener").for_new_connections();
    MAX_STREAMS: u32 = option("max_streams", integer(1, 10_000), Value("100"), "requests at once on one HTTP/2 or HTTP/3 connection")
        .for_new_connections()
        .teach("250", "Raise it for gRPC clients that make many calls at once on one connection");
    MAX_DELAYED: usize = option(
        "max_delayed",
        integer(0, 10_000_000),
        Value("10000"),
        "requests that wait in queues of `leaky_bucket` limits; more get 429",
    )
    .metric("sluicegate_rejections_total")
    .ends(End::MaxDelayed)
    .inherited();
    COMPRESS = option("compress", Either(&[Boolean, Table(&compress::TABLE)]), Value("false"), "compress responses")
        .guide("../guides/compression.md")
        .metric("sluicegate_compressed_bytes_total")
        .inherited()
        .example("write compress = true, or compress = { algorithms = [\"gzip\"] }")
        .called(&["gzip", "brotli", "zstd", "encode", "compression", "gzip_types"])
        .teach("true", "Turn it on if neither the application nor a CDN compresses");
    MAX_COMPRESS_MEMORY: u64 = option(
        "max_compress_memory",
        size(0, TIB),
        Value("\"256MiB\""),
        "memory of all encoders of streamed responses; further ones are sent uncompressed",
    )
    .guide("../guides/compression.md#cpu-and-memory")
    .metric("sluicegate_compressions_skipped_total");
    HANDSHAKE_TIMEOUT: Duration = option("handshake_timeout", TIMEOUT, Value("\"5s\""), "from accept to the end of the TLS handshake")
        .for_new_connections()
        .metric("sluicegate_tls_handshakes_total");
    HEADER_TIMEOUT: Duration = option("header_timeout", TIMEOUT, Value("\"10s\""), "from the first byte of a request head to its last")
        .for_new_connections()
        .metric("sluicegate_http_rejected_total")
        .ends(End::HeaderTimeout)
        .called(&["client_header_timeout", "read_header_timeout"])
        .teach("\"5s\"", "Lower it while clients send their headers slowly on purpose");
    KEEPALIVE_TIMEOUT: Duration = option("keepalive_timeout", TIMEOUT, Value("\"75s\""), "idle time of a client connection")
        .for_new_connections()
        .called(&["idle_timeout"])
        .teach("\"650s\"", "Raise it above the idle timeout of the load balancer in front; otherwise the balancer may reuse a connection that the gateway is just closing");
    BODY_TIMEOUT: Duration = option("body_timeout", TIMEOUT, Value("\"30s\""), "longest pause in a request body; then 408")
        .metric("sluicegate_http_rejected_total")
        .ends(End::BodyTimeout)
        .inherited()
        .called(&["client_body_timeout"])
        .teach("\"2m\"", "Raise it for uploads from mobile networks that stall");
    MIN_BODY_RATE: u64 = option(
        "min_body_rate",
        BODY_RATE,
        Value("256"),
        "slowest average rate of a request body; a slower one gets 408; 0 = no bound",
    )
    .shown_as("size per second")
    .guide("../guarantees/threat-model.md#minimum-rates")
    .metric("sluicegate_http_rejected_total")
    .ends(End::BodyTimeout)
    .weaker(Weaker::Compiled)
    .inherited()
    .teach("64", "Lower it for devices on very slow links");
    MIN_RESPONSE_RATE: u64 = option(
        "min_response_rate",
        BODY_RATE,
        Value("1024"),
        "slowest average rate at which a client may read data that waits for it; 0 = no bound",
    )
    .shown_as("size per second")
    .metric("sluicegate_http_rejected_total")
    .ends(End::SlowReader)
    .inherited();
    MAX_UNSENT: u32 = option(
        "max_unsent",
        KERNEL_BUFFER,
        Value("\"64KiB\""),
        "bytes of a response that the kernel keeps before sending, per client; 0 = no bound",
    )
    .for_new_connections()
    .guide("../guarantees/threat-model.md#slow-readers")
    .inherited();
    MAX_UNREAD: u64 = option(
        "max_unread",
        KERNEL_BUFFER,
        Value("\"256KiB\""),
        "kernel receive buffer of each server connection. Grows to 13 times this for fast connections, to 64 times \
         for all of a worker together; at least 64 KiB, or 0 = no bound",
    )
    .for_new_connections()
    .guide("../guarantees/threat-model.md#fast-readers");
    CONNECT_TIMEOUT: Duration = option("connect_timeout", TIMEOUT, Value("\"3s\""), "time to connect to a server, TLS handshake included")
        .inherited()
        .called(&["dial_timeout", "proxy_connect_timeout"])
        .teach("\"1s\"", "Lower it if the servers are near, so that a retry begins sooner");
    RESPONSE_TIMEOUT: Duration = option(
        "response_timeout",
        TIMEOUT,
        Value("\"60s\""),
        "from the end of the request to the response head; then 504",
    )
    .inherited()
    .called(&["timeout", "read_timeout", "proxy_read_timeout", "response_header_timeout"])
    .teach("\"5m\"", "Raise it for slow reports and for LLM calls that do not stream, preferably on their route only");
    STREAM_TIMEOUT: Duration = option("stream_timeout", TIMEOUT, Value("\"60s\""), "longest pause in a response, by the server or the client")
        .metric("sluicegate_http_rejected_total")
        .ends(End::CallTimeout)
        .inherited()
        .teach("\"10m\"", "Raise it for event streams that may be silent for longer");
    TUNNEL_TIMEOUT: Duration = option(
        "tunnel_timeout",
        TIMEOUT,
        Value("\"1h\""),
        "longest silence on an upgraded connection; then it is closed. Open ones keep their value",
    )
    .metric("sluicegate_http_rejected_total")
    .ends(End::TunnelTimeout)
    .inherited()
    .teach("\"1d\"", "Raise it for WebSocket clients that send nothing for longer than an hour; a silent connection is closed after it");
    HALF_CLOSE_TIMEOUT: Duration = option(
        "half_close_timeout",
        PAUSE,
        Value("\"1s\""),
        "how long a request continues after its client shut down its side of the connection",
    )
    .for_new_connections();
    SHUTDOWN_DELAY: Duration = option("shutdown_delay", PAUSE, Value("\"0s\""), "readiness fails for this long before the listeners close")
        .guide("../operating/upgrades.md#graceful-shutdown")
        .teach("\"10s\"", "Set it behind a load balancer or in Kubernetes, to the time in which it notices that readiness fails");
    HANDOVER = option(
        "handover",
        Text("absolute path, up to 100 bytes"),
        Value("\"\""),
        "socket at which a new process takes over the listeners",
    )
    .after_restart()
    .guide("../operating/upgrades.md#handover-to-a-new-process")
    .teach("\"/run/sluicegate/handover.sock\"", "Set it if you upgrade the gateway without systemd and no connection may be refused meanwhile");
    SHUTDOWN_TIMEOUT: Duration = option(
        "shutdown_timeout",
        PAUSE,
        Value("\"30s\""),
        "how long requests may continue after the listeners have closed",
    )
    .teach("\"2m\"", "Raise it for long downloads and streams, and keep it below the time after which the service manager kills the process");
}

/// Options of `server.redirect_http`.
pub mod redirect_http {
    use super::*;

    rows! {
        table("server.redirect_http");

        LISTEN = option("listen", Text("address"), Required, "the address to listen on")
            .called(&["bind", "address"])
            .teach("\":80\"", "Use port 80, because clients send plain HTTP there");
        HTTPS_PORT: u16 = option("https_port", integer(1, 65_535), Value("443"), "the port on which clients reach HTTPS")
            .called(&["port"])
            .teach("8443", "Set it if clients reach HTTPS on a port other than 443");
    }
}

/// Options of `server.access_log`.
pub mod access_log {
    use super::*;

    rows! {
        table("server.access_log");

        ENABLED: bool = option("enabled", Boolean, Value("true"), "`false`: as if the table were missing");
        FORMAT = option(
            "format",
            Text("string"),
            Value("\"json\""),
            "`\"json\"`, `\"combined\"`, or a line with fields in braces",
        )
        .keywords(&["json", "combined"])
        .teach("\"combined\"", "Use `combined` for tools that read logs of nginx or Apache. JSON has more fields");
        TO = option("to", Path("file"), Value("\"stdout\""), "where the lines go").shown_as("`\"stdout\"`, or file")
            .keywords(&["stdout"])
            .teach("\"/var/log/sluicegate/access.log\"", "Use `stdout` in containers and under systemd. Name a file if `logrotate` or `sluicegate replay` reads it");
        MASK = option(
            "mask",
            list(&Text("parameter")),
            Described("names of secrets"),
            "query parameters whose values are not logged",
        );
        ALL_KEYS: bool = option(
            "all_keys",
            Boolean,
            Value("false"),
            "lines have the [keys of all limits](../operating/keys-in-logs.md#replay-limits-by-hash), for replay",
        )
        .teach("true", "Turn it on for a while if you want to replay limits by API key, user or header, because lines usually omit these values");
        ADD = option(
            "add",
            list(&Text("placeholder")),
            Value("[]"),
            "further fields of JSON lines, such as `\"tls_san\"` and `\"jwt:sub\"`",
        )
        .guide("log-fields.md#facts-about-the-client")
        .unordered();
    }
}

/// Options of `server.spans`.
pub mod spans {
    use super::*;

    rows! {
        table("server.spans");

        ENABLED: bool = option("enabled", Boolean, Value("true"), "`false`: as if the table were missing");
        TO = option("to", Text("URL"), Required, "the collector")
            .secrecy(Secrecy::SecretQuery)
            .teach("\"http://127.0.0.1:4318\"", "Use the address at which your collector receives OTLP over HTTP");
        SAMPLE = option("sample", Sample, Value("1"), "fraction of the requests without a trace that get spans")
            .teach("0.01", "Lower it if the spans of a busy gateway fill your storage");
        SERVICE = option("service", Text("string"), Value("\"sluicegate\""), "`service.name`");
        HEADERS = option("headers", Map(&Text("string")), Absent, "headers for the collector").shown_as("table")
            .secrecy(Secrecy::Secret);
    }
}

/// Options of `server.compress`.
pub mod compress {
    use super::*;

    rows! {
        table("server.compress");

        TYPES = option(
            "types",
            list_from(1, &Text("media type")),
            Described("text, JSON and other types that compress well"),
            "media types that are compressed, like `\"text/*\"`, `\"application/*+json\"` or `\"*/*\"`",
        )
        .inherited();
        MIN_SIZE: u64 = option(
            "min_size",
            size(0, GIB),
            Value("\"1KiB\""),
            "smallest body that is compressed, if its length is known",
        )
        .inherited();
        ALGORITHMS = option(
            "algorithms",
            list_from(1, &Words(CompressionAlgorithm::LABELS)),
            Value("[\"zstd\", \"br\", \"gzip\"]"),
            "allowed algorithms, in order of preference",
        )
        .inherited();
    }
}

/// Options of `server.overload`.
pub mod overload {
    use super::*;

    rows! {
        table("server.overload");

        QPS: Option<u64> = option("qps", integer(1, 100_000_000), Absent, "requests per second").ends(End::OverloadQps)
            .weaker(Weaker::More);
        IN_FLIGHT: Option<u64> = option("in_flight", integer(1, 10_000_000), Absent, "requests in flight, streams included, tunnels not")
            .ends(End::OverloadInFlight)
            .weaker(Weaker::More)
            .teach("5000", "Set it to twice what you see at the busiest time, so that slow servers do not fill the memory with waiting requests");
        LATENCY: Option<Duration> = option("latency", duration(1, HOUR), Absent, "mean time to the response head").ends(End::OverloadLatency)
            .weaker(Weaker::More);
        LOAD = option(
            "load",
            Decimal(10_000),
            Absent,
            "load average of one minute above which requests in flight are bounded by the measured capacity",
        )
        .ends(End::OverloadLoad)
        .weaker(Weaker::More)
        .teach("4.0", "Set it if other programs on the machine need CPU time as well; compare it with the number of cores");
        CPU: Option<Fraction> = option("cpu", Fraction, Absent, "fraction of the CPU time that the process may use").ends(End::OverloadCpu)
            .weaker(Weaker::More)
            .teach("0.9", "Set it so that accepted requests stay fast when clients send more than the CPU can process");
    }
}
