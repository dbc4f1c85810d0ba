//! The table of ends. Rows with the same label are neighbours.

use crate::ends::row::Blame::{Client, Gateway, Operator, Upstream};
use crate::ends::row::MinStrictness::{Always, Defensive, Strict};
use crate::ends::row::{
    Blame, Counted, EndRow, MinStrictness, Refund, RetryReason, UpstreamFailureKind, UpstreamOutcome,
};
use crate::grpc::GrpcCode;
use crate::grpc::GrpcCode::{
    Cancelled, DeadlineExceeded, Internal, InvalidArgument, PermissionDenied, ResourceExhausted, Unauthenticated,
    Unavailable, Unimplemented,
};

/// Declares the enum of all ends, and their rows.
macro_rules! ends {
    ($($End:ident = $row:expr;)*) => {
        /// Why a request, a tunnel, a connection or a question ended without the regular response of its route.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum End {
            $($End),*
        }

        static ROWS: [EndRow; End::ALL.len()] = [$($row),*];

        impl End {
            pub const ALL: &[End] = &[$(End::$End),*];

            pub const fn row(self) -> &'static EndRow {
                &ROWS[self as usize]
            }

            /// Returns the name in the table.
            pub fn name(self) -> &'static str {
                match self { $(End::$End => stringify!($End)),* }
            }
        }
    };
}

ends! {
    // Limits. 429 stands for the status that `refuse` sets.

    Exhausted = limit(429, ResourceExhausted, "exhausted", "request quota exceeded")
        .means("the limit in `refused_by` is exhausted");
    NeverFits = limit(429, ResourceExhausted, "never_fits", "the request costs more than its whole quota")
        .means("the cost is more than the limit can ever allow");
    Banned = limit(429, ResourceExhausted, "banned", "too many refused requests; this client is banned for a while")
        .setting("ban").means("the key was refused too often and is [banned](bans.md)");
    MissingKey = limit(403, PermissionDenied, "missing_key", "the request lacks a part of the key of its limit")
        .setting("missing").means("a part of a limit's key is [absent](keys.md#missing-parts)");
    RepeatedKey = limit(400, InvalidArgument, "repeated_key",
        "the request repeats the key of its limit, or servers could read it differently")
        .setting("repeated")
        .means("a value that a limit reads is [ambiguous](keys.md#repeated-and-ambiguous-values)");
    NotInteger = limit(400, InvalidArgument, "not_integer", "a value that the limit reads must be an integer (digits only)")
        .setting("not_integer").means("a value that should be an [integer](keys.md#integers) is not one");
    BodyKeyMalformed = limit(400, InvalidArgument, "unreadable_key", "the request body does not match its content type")
        .means("a limit cannot read its [key from the body](keys.md#keys-from-the-body): it is malformed (400), too long (413, `max_key_body`) or of another type (415)");
    BodyKeyTooLong = limit(413, InvalidArgument, "unreadable_key",
        "the request body is too long for a limit that reads it (max_key_body, max_cost_body)").setting("max_key_body");
    BodyKeyType = limit(415, InvalidArgument, "unreadable_key",
        "a limit reads the request body, but its type, charset or encoding is not supported");
    NotCalls = limit(400, InvalidArgument, "unreadable_key",
        "the request body has no JSON-RPC calls, or servers could read other calls in it");
    TooManyCalls = limit(400, InvalidArgument, "unreadable_key", "the batch has more calls than allowed here (1000)");
    NotGraphql = limit(400, InvalidArgument, "unreadable_key",
        "the request has no GraphQL query that limits can read, or servers could read another one in it");
    StoredQuery = limit(400, InvalidArgument, "unreadable_key",
        "the request names a stored query, and the cost of these is not configured (stored)").setting("stored");
    QueryTooDeep = limit(400, InvalidArgument, "unreadable_key", "the query is deeper than allowed (max_depth)")
        .setting("max_depth");
    LlmBatch = limit(403, PermissionDenied, "llm_batch",
        "this operation is not allowed here, because no response to it reports its tokens").setting("when")
        .means("creates a [batch, job or session](../guides/llm-apis.md) on a route whose limit settles by the usage in \
            responses");
    McpHeaders = limit(400, InvalidArgument, "mcp_headers",
        "Mcp-Method or Mcp-Name names another call than the request body")
        .means("the headers of an [MCP request](../guides/mcp.md) name another call than its body");
    Blocked = limit(429, ResourceExhausted, "blocked", "the quota of this client is 0")
        .means("the key has an override of 0");
    StoreDown = EndRow::new(Gateway, 503, "store_down",
        "the limit store is unavailable, and this route refuses requests without it").grpc(Unavailable)
        .counted(Counted::Limit).setting("on_error")
        .means("the store did not respond, and the limit is `on_error = \"closed\"`");
    MaxDelayed = limit(429, Unavailable, "max_delayed", "too many requests are already waiting")
        .setting("max_delayed").means("the queue of a `leaky_bucket` is full");

    // Refusals of the route, before its limits.

    CredentialsMissing = route(Client, 401, Unauthenticated, "unauthorized", "this route requires credentials")
        .setting("auth")
        .means("the route has [`auth`](../guides/authentication.md), and the credentials are missing or not valid");
    CredentialsInvalid = route(Client, 401, Unauthenticated, "unauthorized", "the credentials are not valid")
        .setting("auth");
    AuthServer = route(Upstream, 503, Unavailable, "auth_server",
        "the gateway could not check who you are, because the auth server failed; try again shortly")
        .setting("on_error")
        .means("the [auth server](../guides/forward-auth.md#if-the-auth-server-fails) failed: 503, or its own 5xx status");
    TokenKeys = route(Upstream, 503, Unavailable, "jwt_keys",
        "the gateway could not check your token, because it has no keys of the issuer; try again shortly")
        .setting("auth")
        .means("the [issuer](../guides/tokens.md#if-the-issuer-is-down) of the tokens was not reachable, and no keys serve any more");
    PasswordQueueFull = route(Gateway, 503, Unavailable, "password_queue_full",
        "too many passwords are being verified; try again shortly")
        .setting("auth").means("too many passwords wait to be verified");
    Denied = route(Client, 403, PermissionDenied, "denied", "your address is not allowed on this route")
        .setting("deny").means("the client is in the route's `deny`");
    MaxInFlight = route(Gateway, 503, Unavailable, "max_in_flight",
        "this route is at its concurrency limit; try again shortly")
        .setting("max_in_flight").means("the route serves as many requests as it may");
    UpstreamBreaker = breaker("upstream_breaker")
        .means("the [circuit breaker](circuit-breakers.md#circuit-breaker) of the upstream refuses requests");
    RouteBreaker = breaker("route_breaker")
        .means("the [circuit breaker](circuit-breakers.md#circuit-breaker) of the route refuses requests");
    OverloadQps = overload("overload_qps")
        .means("the [process is overloaded](circuit-breakers.md#process-overload): too many requests per second");
    OverloadInFlight = overload("overload_in_flight").means("the process is overloaded: too many requests in flight");
    OverloadLatency = overload("overload_latency").means("the process is overloaded: responses take too long");
    OverloadLoad = overload("overload_load").means("the process is overloaded: the load average is too high");
    OverloadCpu = overload("overload_cpu").means("the process is overloaded: it uses too much CPU time");
    AuthRefused = EndRow::new(Client, 0, "auth_refused", "").setting("auth")
        .means("the [auth server](../guides/forward-auth.md) refused the request, and the client got its response, with any status but 2xx");

    // Requests without a route, and questions of other proxies.

    NoRoute = EndRow::new(Client, 404, "no_route", "no route matches this host, path and method").grpc(Unimplemented)
        .means("no route matches");
    NoRedirect = EndRow::new(Client, 404, "no_redirect", "this address leads nowhere").grpc(Unimplemented).by_route()
        .means("the redirect map of the route does not list the path, and the route has no `to`");
    NoFile = EndRow::new(Client, 404, "no_file", "there is no such file").grpc(Unimplemented).by_route()
        .means("the folder of the route (`files`) has no such file, or none that may be served: hidden and unreadable files, links that lead out of the folder");
    FileMethod = EndRow::new(Client, 405, "file_method", "files can only be read, with GET or HEAD").grpc(Unimplemented)
        .by_route().means("the route serves `files`, and the method is neither GET nor HEAD");
    DecidePeer = EndRow::new(Client, 403, "decide_peer", "only proxies in trusted_proxies may ask here")
        .means("the peer asks on a listener with [`serve = \"decide\"`](decide.md), and is not in `trusted_proxies`");
    DecideName = EndRow::new(Client, 404, "decide_name",
        "no [decide.NAME] and no route has this name, or a limit of the route cannot decide for other proxies")
        .means("another proxy asks about a name that does not exist");
    DecideFacts = EndRow::new(Client, 400, "decide_facts", "")
        .means("another proxy does not state which request it asks about, or contradicts itself");
    ReceiptInvalid = EndRow::new(Client, 400, "receipt",
        "the receipt is invalid: it was cut off, made elsewhere, or is for another name")
        .means("a receipt was not redeemed: it is invalid (400), used (409) or expired (410), or the store did not respond (503)");
    ReceiptUsed = EndRow::new(Client, 409, "receipt", "the receipt has been redeemed before");
    ReceiptExpired = EndRow::new(Client, 410, "receipt", "the receipt has expired, as its charges have");
    ReceiptStoreDown = EndRow::new(Gateway, 503, "receipt",
        "the limit store is unavailable, so it is not known whether the receipt was redeemed");

    // Connections, and heads that cannot be read.

    MaxConnections = cut(Client, 0, "max_connections", "").setting("max_connections")
        .means("the gateway has too many connections, and none is idle");
    MaxConnectionsPerIp = cut(Client, 0, "max_connections_per_ip", "").setting("max_connections_per_ip")
        .means("too many connections of one address");
    ProxyHeader = cut(Client, 0, "proxy_header", "").setting("proxy_protocol")
        .means("a connection did not begin with a PROXY header");
    HeaderTimeout = cut(Client, 408, "header_timeout", "").setting("header_timeout")
        .means("the head did not arrive in time");
    LeftInHead = cut(Client, 499, "client_left", "").means("the client disconnected before it had sent all headers");
    MalformedHead = cut(Client, 400, "malformed_head", "the request line or a header is malformed")
        .means("the head is not HTTP");
    HeadTooLarge = cut(Client, 431, "head_too_large", "the request head has more bytes or headers than allowed here")
        .setting("max_header_bytes").means("the head is too large");
    TargetTooLong = cut(Client, 414, "target_too_long", "the request target is longer than allowed here")
        .setting("max_header_bytes").means("HTTP/1.1: the request target is too long");
    TlsHello = cut(Client, 400, "tls_hello", "this port speaks HTTP without TLS")
        .setting("tls").means("the listener does not speak TLS")
        .logged("a client speaks TLS on a listener without it");
    Http2Preface = cut(Client, 400, "http2_preface", "").setting("http2").means("the listener does not speak HTTP/2")
        .logged("a client speaks HTTP/2 on a listener without it, or over TLS without ALPN");
    H2Frames = cut(Client, 0, "h2_frames", "")
        .means("HTTP/2 and HTTP/3: more frames that cost work without carrying data than the responses justify");
    H2Resets = cut(Client, 0, "h2_resets", "").means("HTTP/2 and HTTP/3: more requests were reset than answered");
    H2Abuse = cut(Client, 0, "h2_abuse", "")
        .means("HTTP/2 and HTTP/3: more stream errors, or fragments of one head, than a correct client produces");
    H2Protocol = cut(Client, 400, "h2_protocol", "")
        .means("HTTP/2 and HTTP/3: an invalid frame, or a frame at the wrong time");
    H2FieldName = cut(Client, 400, "h2_field_name", "")
        .means("HTTP/2 and HTTP/3: a header name is not a lower-case token. The stream is reset without a response, as for the other [malformed heads](../guarantees/threat-model.md#malformed-http2-requests)");
    H2FieldValue = cut(Client, 400, "h2_field_value", "")
        .means("HTTP/2 and HTTP/3: a header value contains a control character");
    H2PseudoField = cut(Client, 400, "h2_pseudo_field", "")
        .means("HTTP/2 and HTTP/3: a pseudo-header is unknown, missing, repeated, malformed or misplaced");
    H2ConnectionField = cut(Client, 400, "h2_connection_field", "")
        .means("HTTP/2 and HTTP/3: a connection-specific header is present");
    H2ContentLength = cut(Client, 400, "h2_content_length", "")
        .means("HTTP/2 and HTTP/3: `content-length` is not a number, is repeated, or announces a body where none is allowed");
    H2Trailers = cut(Client, 400, "h2_trailers", "").means("HTTP/2: trailers do not end their stream");
    H2ConnectionError = EndRow::new(Client, 499, "h2_connection_error", "")
        .means("the client violated HTTP/2 or HTTP/3, in this or another request, and the gateway ended its connection");
    Misdirected = EndRow::new(Client, 421, "misdirected",
        "the certificate of this connection does not cover this host; open a new connection").grpc(Unavailable)
        .counted(Counted::Http).means("the connection's certificate does not cover the host");
    MaxTunnels = EndRow::new(Gateway, 503, "max_tunnels", "too many upgraded connections; try again later").grpc(Unavailable)
        .counted(Counted::Http).setting("max_tunnels").means("the gateway serves as many tunnels as it may, or as many as it may for this client");

    // The client and its body.

    AnnouncedTooLarge = cut(Client, 413, "body_too_large", TOO_LARGE).grpc(ResourceExhausted).setting("max_body")
        .means("the body is too large");
    BodyTooLarge = upload(413, ResourceExhausted, "body_too_large", TOO_LARGE)
        .counted(Counted::Http).setting("max_body");
    BodyTimeout = upload(408, DeadlineExceeded, "body_timeout", "the request body did not arrive in time")
        .counted(Counted::Http).setting("body_timeout")
        .means("the body paused for longer than `body_timeout`, or was slower than `min_body_rate`");
    BodyMalformed = upload(400, Cancelled, "body_malformed", "the request body does not match its framing")
        .means("the body contradicts its framing, or its trailers are malformed");
    CallTimeout = upload(408, DeadlineExceeded, "stream_timeout", "the client sent no message in time (stream_timeout)")
        .counted(Counted::Http).setting("stream_timeout")
        .means("the client of a gRPC call sent no message for too long (408), or the server or the client paused its response for too long");
    StreamTimeout = cut(Client, 0, "stream_timeout", "").setting("stream_timeout");
    ResponseStalled = EndRow::new(Upstream, 0, "stream_timeout",
        "the response paused for longer than stream_timeout")
        .setting("stream_timeout").failure(UpstreamFailureKind::Stalled);
    SlowReader = cut(Client, 0, "slow_reader", "").setting("min_response_rate").means("the client read too slowly");
    TunnelTimeout = cut(Client, 0, "tunnel_timeout", "").setting("tunnel_timeout")
        .means("both sides of a tunnel were silent for too long");
    ClientLeft = EndRow::new(Client, 499, "client_left",
        "the client disconnected before the end of the request body").grpc(Cancelled)
        .outcome(UpstreamOutcome::ClientLeft).refund(Refund::Abort)
        .means("the client disconnected before the response, or before its end");
    ClientTimeout = EndRow::new(Client, 504, "client_timeout",
        "the upstream server did not respond within the deadline of the client (grpc-timeout)").grpc(DeadlineExceeded)
        .outcome(UpstreamOutcome::ClientTimeout).refund(Refund::Abort)
        .means("no response within the client's `grpc-timeout`");

    // The gateway.

    FileDescriptors = connect("file_descriptors", "file_descriptors",
        "the gateway has no file descriptors left for a connection to the upstream server; try again shortly")
        .shortage()
        .means("the gateway has no [file descriptor](../operating/capacity.md#file-descriptors) left for a connection to a server");
    FileShortage = EndRow::new(Gateway, 503, "file_descriptors",
        "the gateway has no file descriptors left for this file; try again shortly").grpc(Unavailable)
        .counted(Counted::Http);
    FileFailed = EndRow::new(Gateway, 503, "file_failed", "the gateway could not open the file; try again shortly")
        .grpc(Unavailable).counted(Counted::Http).setting("files")
        .means("the folder of the route (`files`) is missing, or its file system failed or took longer than `response_timeout`");
    FileCutOff = EndRow::new(Gateway, 0, "file_cut_off", "the file could not be read to its end")
        .means("a file became shorter while it was sent, or could not be read");
    Resources = connect("resources", "resources",
        "the gateway has no local port or memory left for a connection to the upstream server; try again shortly")
        .shortage()
        .means("the gateway has no [local port or memory](../operating/capacity.md#local-ports) left for a connection to a server");
    QueueFull = queue("upstream_queue_full", UpstreamOutcome::QueueFull,
        "all upstream servers are busy and the queue is full; try again shortly")
        .refund(Refund::Unsent).own_bound().setting("max_waiting")
        .logged("queue_full: all servers are busy and the queue is full (max_waiting)")
        .means("all servers are at their bound, and the queue is full");
    QueueTimeout = queue("upstream_queue_timeout", UpstreamOutcome::QueueTimeout,
        "all upstream servers were busy for as long as the request could wait in the queue; try again shortly")
        .refund(Refund::Unsent).own_bound().setting("waiting_timeout")
        .logged("queue_timeout: no server had capacity within waiting_timeout")
        .means("all servers are at their bound, and the request waited too long");
    UpstreamOverloaded = queue("upstream_overloaded", UpstreamOutcome::Overloaded,
        "the upstream servers are overloaded; try again shortly")
        .refund(Refund::Overload).setting("adaptive")
        .logged("overloaded: the servers cannot keep up (adaptive)")
        .means("the servers cannot keep up ([adaptive concurrency](adaptive-concurrency.md))");
    CompressionFailed = EndRow::new(Gateway, 0, "compression_failed", "the response could not be compressed")
        .means("no memory was left to compress the response");
    Shutdown = EndRow::new(Gateway, 499, "shutdown", "").setting("shutdown_timeout")
        .means("the gateway stopped, and `shutdown_timeout` passed");

    // Servers.

    ConnectRefused = connect("upstream_connect", "refused", "no upstream server accepts connections")
        .means("no server accepted a connection ([causes](upstreams.md#failed-connections)); the `setting` is `connect_timeout` if that was the cause");
    ConnectTimedOut = connect("upstream_connect", "timed_out", "no upstream server accepted a connection in time")
        .setting("connect_timeout");
    ConnectUnreachable = connect("upstream_connect", "unreachable", "no upstream server can be reached");
    ConnectUnknownName = connect("upstream_connect", "unknown_name",
        "the hostname of the upstream server has no address");
    ConnectNoSocket = connect("upstream_connect", "no_socket", "the socket of the upstream server does not exist");
    ConnectPermission = connect("upstream_connect", "permission",
        "the gateway is not permitted to connect to the upstream server");
    ConnectProtocol = connect("upstream_connect", "protocol_error", "the upstream server does not speak HTTP/2");
    ConnectMaxConnections = connect("upstream_connect", "max_connections",
        "the upstream servers are at their limit of connections").own_bound();
    ConnectTls = connect("upstream_tls", "tls_error", "the TLS handshake with the upstream server failed")
        .outcome(UpstreamOutcome::TlsError).failure(UpstreamFailureKind::Tls)
        .means("the TLS handshake with the server failed, for example because its certificate is not trusted");
    UpstreamClosed = broken("the connection ended without a response").retry(RetryReason::Reset)
        .means("the server closed the connection before its response, or its response was not valid HTTP");
    UpstreamRefused = broken("the server accepts no further request on its connection").retry(RetryReason::Reset);
    UpstreamBroken = broken("");
    UpstreamSwitched = broken("the server switched to a protocol that was not offered");
    UpstreamTunnel = EndRow::new(Upstream, 502, "upstream_tunnel",
        "the upstream server opens no WebSockets or other tunnels over HTTP/2").grpc(Unavailable)
        .failure(UpstreamFailureKind::Broken).own_bound().unserved().setting("protocol")
        .logged("it has not announced extended CONNECT (RFC 8441); for WebSockets, set protocol = \"http1\"")
        .means("the request opens a WebSocket, or is an extended CONNECT, and the server [opens no tunnels](upstreams.md#http2-to-servers) over HTTP/2");
    UpstreamTimeout = EndRow::new(Upstream, 504, "upstream_timeout",
        "the upstream server did not respond in time").grpc(DeadlineExceeded)
        .outcome(UpstreamOutcome::Timeout).failure(UpstreamFailureKind::Timeout).retry(RetryReason::Timeout)
        .setting("response_timeout").means("the server did not start its response in time");
    UpstreamCutOff = EndRow::new(Upstream, 0, "upstream_cut_off", "the upstream response was cut off")
        .failure(UpstreamFailureKind::CutOff).means("the server aborted its response");

    // Heads that servers could read in two ways, or that cannot be forwarded.

    Version = head(Always, 505, "version", "Only HTTP/1.0, HTTP/1.1 and HTTP/2 are supported.")
        .means("is not HTTP/1.0, HTTP/1.1 or HTTP/2");
    MaxHeaders = head(Always, 431, "max_headers",
        "The request has too many headers; each part of a split Cookie header counts as one.")
        .means("has more headers than `max_headers`; each piece of a cookie over HTTP/2 and HTTP/3 counts");
    FieldPadding = head(Always, 400, "field_padding",
        "A header value over HTTP/2 or HTTP/3 must not begin or end with a space or tab.")
        .means("has, over HTTP/2 or HTTP/3, a header value that begins or ends with a space or tab");
    Connect = head(Always, 501, "connect", "This gateway does not open tunnels for CONNECT.").means("uses CONNECT");
    Trace = head(Defensive, 405, "trace", "This route does not accept TRACE.")
        .means("uses TRACE, and its route does not list it in `methods`");
    Upgrade = head(Always, 403, "upgrade",
        "This route opens no tunnels, because its limits read requests or responses; its operator can list protocols in `upgrades`.")
        .means("offers to switch to another protocol, such as WebSocket, on a route whose limits read [responses](charges.md#usage-in-the-body) or [calls](calls.md), and that lists no `upgrades`");
    Method = head(Always, 400, "method", "The method must be a token of letters, digits and a few other characters.")
        .means("has, as another proxy describes it, a method that is not a token");
    MethodCase = head(Strict, 400, "method_case",
        "The method has lower-case letters, and servers read it differently.")
        .means("has a method with lower-case letters ([methods](requests.md#strictness))");
    MethodCharacter = head(Strict, 400, "method_character",
        "The method has other characters than letters, '-' and '_'.")
        .means("has a method with digits or other characters that no registered method has");
    TargetForm = head(Always, 400, "target_form",
        "The request target must be a path that starts with '/', or '*' with the OPTIONS method.")
        .means("has a target that is neither a path nor `*` with OPTIONS");
    TargetCharacter = head(Strict, 400, "target_character",
        "The request target contains a space or a control character, which must be percent-encoded.")
        .means("has, as another proxy describes it, a target with a space or a control character");
    TargetScheme = head(Defensive, 400, "target_scheme", "The scheme of the request target must be http or https.")
        .means("has a target with another scheme than http or https");
    TargetFragment = head(Strict, 400, "target_fragment", "The request target must not contain '#'.")
        .means("has `#` in its target");
    HeaderCharacter = head(Always, 400, "header_character",
        "A header contains a character that its name or value must not have.")
        .means("has, as Envoy describes it, a header with a character that no header may have");
    TransferEncodingVersion = head(Always, 400, "transfer_encoding_version",
        "Transfer-Encoding requires HTTP/1.1; an HTTP/1.0 request must send Content-Length.")
        .means("is HTTP/1.0 with `Transfer-Encoding`");
    TransferEncodingRepeated = head(Always, 400, "transfer_encoding_repeated",
        "Transfer-Encoding must appear once, with the value 'chunked'.")
        .means("has `Transfer-Encoding` other than one `chunked`");
    TransferEncodingUnknown = head(Always, 501, "transfer_encoding_unknown",
        "The only supported transfer coding is 'chunked'.").means("has another transfer coding than `chunked`");
    TransferEncodingWithLength = head(Always, 400, "transfer_encoding_with_length",
        "Transfer-Encoding and Content-Length must not be sent together.")
        .means("has `Transfer-Encoding` and `Content-Length`");
    ContentLength = head(Always, 400, "content_length",
        "Content-Length must appear at most once, as one decimal number.")
        .means("has more than one `Content-Length`, or one that is not a decimal number");
    Framing = head(Always, 400, "framing", "It is ambiguous where this request ends.").means("has an uncertain end");
    LineEnd = head(Strict, 400, "line_end",
        "Every line of a request head, and every empty line before it, must end with CR LF.")
        .means("has a line that does not end with CR LF, also an empty line before the head");
    Expect = head(Strict, 417, "expect", "The only supported expectation is 100-continue.")
        .means("has another expectation than `100-continue`");
    HostMissing = head(Strict, 400, "host_missing", "A request needs a host (Host or :authority).")
        .means("is HTTP/1.1 without `Host`");
    HostRepeated = head(Defensive, 400, "host_repeated", "The Host header must appear once.")
        .means("has more than one `Host`");
    HostInvalid = head(Defensive, 400, "host_invalid",
        "The host must be a name or an address, with an optional port.")
        .means("has a host that is neither a name nor an address");
    HostMismatch = head(Strict, 400, "host_mismatch", "The Host header and the host of the request target differ.")
        .means("has a `Host` that differs from the host of its target");
    PathControl = head(Defensive, 400, "path_control", "The path contains an encoded control character.")
        .means("has an encoded control character in its path");
    PathSlash = head(Strict, 400, "path_slash",
        "The path contains an encoded slash (%2F), which this route does not accept (encoded_slashes).")
        .setting("encoded_slashes")
        .means("has an encoded slash (`%2F`) on a route that does not [keep](routing.md#encoded-slashes) it");
    PathSlashDots = head(Strict, 400, "path_slash_dots",
        "The path contains '.' or '..' between encoded slashes (%2F), which servers read differently.")
        .means("has `.` or `..` between encoded slashes");
    PathBackslash = head(Strict, 400, "path_backslash", "The path contains a backslash.")
        .means("has a backslash in its path");
    PathPercent = head(Strict, 400, "path_percent",
        "The path contains '%' without two hexadecimal digits after it.")
        .means("has `%` without two hexadecimal digits in its path");
    PathNonAscii = head(Strict, 400, "path_non_ascii",
        "The path contains non-ASCII bytes, which must be percent-encoded.").means("has bytes outside ASCII in its path");
    PathAboveRoot = head(Strict, 400, "path_above_root", "The path climbs above its root with '..'.")
        .means("has a path that climbs above its root with `..`");
    PathDotParameter = head(Strict, 400, "path_dot_parameter",
        "The path contains a '.' or '..' segment with a parameter, which servers read differently.")
        .means("has a `.` or `..` segment with a parameter");
    PathRewritten = head(Always, 400, "path_rewritten",
        "The path does not fit the path that this route makes of it (rewrite.path).")
        .setting("rewrite")
        .means("has a path of which `rewrite.path` would make a path with `.` or `..` segments, or with a part of an encoded character");
    QueryNonAscii = head(Strict, 400, "query_non_ascii",
        "The query contains non-ASCII bytes, which must be percent-encoded.").means("has bytes outside ASCII in its query");
    ConnectionField = head(Strict, 400, "connection_field",
        "The Connection header names a header that must reach the server.")
        .means("names in `Connection` a header that must reach the server; if another proxy asks about it, any header that it has");
    HeaderAlias = head(Strict, 400, "header_alias",
        "A header differs only in punctuation from one that this gateway reads, and servers may confuse the two.")
        .means("has a header whose name differs only in punctuation from one that the config reads, such as `x_api_key` for a key `header:x-api-key`; otherwise that header is removed");
    Loop = head(Always, 508, "loop", "The request has already passed this gateway; an upstream points back to it.")
        .blame(Operator).means("has passed this gateway before");
}

const TOO_LARGE: &str = "the request body is larger than allowed here";

/// A limit refuses the request.
const fn limit(status: u16, grpc: GrpcCode, label: &'static str, text: &'static str) -> EndRow {
    EndRow::new(Blame::Limit, status, label, text).grpc(grpc).counted(Counted::Limit)
}

/// The route refuses the request for another reason.
const fn route(blame: Blame, status: u16, grpc: GrpcCode, label: &'static str, text: &'static str) -> EndRow {
    EndRow::new(blame, status, label, text).grpc(grpc).counted(Counted::Route)
}

/// A circuit breaker refuses the request.
const fn breaker(label: &'static str) -> EndRow {
    let text = "the upstream servers are failing or too slow, so requests are paused; try again later";
    route(Gateway, 503, Unavailable, label, text).refund(Refund::Overload).setting("breaker")
}

/// The process rule refuses the request.
const fn overload(label: &'static str) -> EndRow {
    route(Gateway, 503, Unavailable, label, "the gateway is overloaded; try again shortly")
        .refund(Refund::Overload)
        .setting("overload")
}

/// A connection or stream ends before, or independently of, its route.
const fn cut(blame: Blame, status: u16, label: &'static str, text: &'static str) -> EndRow {
    EndRow::new(blame, status, label, text).counted(Counted::Http)
}

/// The body of the client ends the exchange.
const fn upload(status: u16, grpc: GrpcCode, label: &'static str, text: &'static str) -> EndRow {
    EndRow::new(Client, status, label, text).grpc(grpc).outcome(UpstreamOutcome::UploadFailed).refund(Refund::Abort)
}

/// No connection to a server. `cause` is the text of the log and the admin API.
const fn connect(label: &'static str, cause: &'static str, text: &'static str) -> EndRow {
    EndRow::new(Upstream, 502, label, text)
        .grpc(Unavailable)
        .logged(cause)
        .outcome(UpstreamOutcome::ConnectError)
        .failure(UpstreamFailureKind::Connect)
        .retry(RetryReason::ConnectError)
        .refund(Refund::Unsent)
}

/// No server became free for the request in the queue of its upstream.
const fn queue(label: &'static str, outcome: UpstreamOutcome, text: &'static str) -> EndRow {
    EndRow::new(Upstream, 503, label, text)
        .grpc(Unavailable)
        .outcome(outcome)
        .failure(UpstreamFailureKind::Overflow)
        .unserved()
}

/// A row for a server that got the request but sent no valid response.
const fn broken(logged: &'static str) -> EndRow {
    let text = "the upstream server closed the connection or sent an invalid response";
    EndRow::new(Upstream, 502, "upstream_broken", text)
        .grpc(Unavailable)
        .logged(logged)
        .outcome(UpstreamOutcome::Broken)
        .failure(UpstreamFailureKind::Broken)
}

/// A fault of the head. If the strictness decides, it is the setting.
const fn head(min_strictness: MinStrictness, status: u16, label: &'static str, text: &'static str) -> EndRow {
    // The code that gRPC clients derive from a plain HTTP 400.
    let row =
        EndRow::new(Client, status, label, text).grpc(Internal).counted(Counted::Http).min_strictness(min_strictness);
    match min_strictness {
        Always => row,
        Defensive | Strict => row.setting("strictness"),
    }
}
