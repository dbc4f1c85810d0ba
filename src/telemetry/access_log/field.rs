//! Fields of an access log line. Templates name them; `line` writes them.

use crate::labels::labels;

labels! {
    /// The fields in the order of a JSON line. Templates use the same names.
    LogField:
    Time = "time",
    RequestId = "request_id",
    TraceId = "trace_id",
    Client = "client",
    User = "user",
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
    Key = "key",
    Keys = "keys",
    RefusedBy = "refused_by",
    Candidates = "candidates",
    Upstream = "upstream",
    Server = "server",
    Tries = "tries",
    AuthMs = "auth_ms",
    UpstreamMs = "upstream_ms",
    DurationMs = "duration_ms",
    Bytes = "bytes",
    BytesIn = "bytes_in",
    BytesUncompressed = "bytes_uncompressed",
    UserAgent = "user_agent",
    Referer = "referer",
}
