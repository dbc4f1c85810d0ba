//! What a line of the access log can say. Named in templates, told by `line`.

use crate::labels::labels;

labels! {
    /// The fields of a JSON line in their order; their names stand in templates too.
    LogField:
    Time = "time",
    RequestId = "request_id",
    TraceId = "trace_id",
    Client = "client",
    Method = "method",
    Host = "host",
    Path = "path",
    Query = "query",
    Protocol = "protocol",
    Tls = "tls",
    TlsCipher = "tls_cipher",
    TlsName = "tls_name",
    TlsSubject = "tls_subject",
    Route = "route",
    Status = "status",
    Reason = "reason",
    Setting = "setting",
    Limit = "limit",
    Decision = "decision",
    RefusedBy = "refused_by",
    Upstream = "upstream",
    Server = "server",
    Tries = "tries",
    UpstreamMs = "upstream_ms",
    DurationMs = "duration_ms",
    Bytes = "bytes",
    BytesIn = "bytes_in",
    UserAgent = "user_agent",
    Referer = "referer",
}
