//! Every key of the config, section by section. `reader` checks keys against it, and tests check that `conf/full.toml`
//! and the option reference contain all of them.

use crate::limiting::algorithm::all_params;
use crate::limiting::algorithm::params::Param;

/// The keys of one kind of table.
#[derive(Debug)]
pub struct Schema {
    pub name: &'static str,
    own: &'static [&'static str],
    /// Predicates that select the algorithm options which the table also accepts.
    params: &'static [fn(&Param) -> bool],
}

impl Schema {
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        let params = all_params().filter(|param| self.params.iter().any(|takes| takes(param)));
        self.own.iter().copied().chain(params.map(|param| param.name))
    }
}

macro_rules! sections {
    ($($NAME:ident = $name:literal: $($key:literal)* $(, $params:expr)?;)*) => {
        $(pub const $NAME: Schema = Schema {
            name: $name,
            own: &[$($key),*],
            params: &[$($params)?],
        };)*

        pub const ALL: &[&Schema] = &[$(&$NAME),*];
    };
}

sections! {
    ROOT = "root": "include" "server" "admin" "acme" "store" "headers" "jwt" "upstream" "set" "limit" "route" "listener";
    SERVER = "server": "listen" "redirect_http" "workers" "trusted_proxies" "forwarded_headers" "strictness" "access_log"
        "answer_request_id" "error_pages" "intercept" "traceparent" "spans" "hints" "resolver"
        "max_connections" "max_connections_per_ip" "max_tunnels" "max_headers" "max_header_bytes" "max_body"
        "max_key_body" "handshake_timeout" "header_timeout" "keepalive_timeout" "body_timeout" "min_body_rate" "min_response_rate"
        "connect_timeout" "response_timeout" "stream_timeout" "tunnel_timeout" "half_close_timeout" "shutdown_delay" "shutdown_timeout"
        "max_delayed" "http2" "max_streams" "max_unsent" "max_unread" "handover"
        "compress" "max_compress_memory";
    SERVER_COMPRESS = "server.compress": "types" "min_size" "algorithms";
    REDIRECT_HTTP = "server.redirect_http": "listen" "https_port";
    LISTENER = "listener": "address" "proxy_protocol" "max_unsent" "tls" "hsts";
    LISTENER_TLS = "listener.tls": "certificates" "acme" "internal" "client_ca" "client_auth" "min_version";
    INTERNAL = "listener.tls.internal": "hosts" "state" "allow_remote";
    HSTS = "listener.hsts": "max_age" "include_subdomains" "preload";
    CERTIFICATE = "listener.tls.certificates": "cert" "key";
    ACME = "acme": "directory" "contact" "state" "ca" "challenges" "backoff" "terms_agreed";
    ACCESS_LOG = "server.access_log": "enabled" "format" "to" "mask" "all_keys";
    SPANS = "server.spans": "enabled" "to" "sample" "service" "headers";
    ADMIN = "admin": "listen" "token" "metrics_need_token" "edit" "keys" "keys_secret";
    STORE = "store": "url" "prefix" "deadline" "on_error" "max_keys" "gateways" "state" "ca"
        "client_cert" "client_key";
    HEADERS = "headers": "ratelimit";
    JWT = "jwt": "key" "algorithms" "header" "issuer" "audience";
    UPSTREAM = "upstream": "servers" "balance" "max_idle" "protocol" "tls" "eject" "health" "retry" "hash_on" "spread_above"
        "slow_start" "proxy_protocol" "resolve_every"
        "max_connections" "max_in_flight" "max_waiting" "waiting_timeout" "total";
    HEALTH = "upstream.health": "type" "path" "every" "timeout" "unhealthy_after" "healthy_after" "status" "body";
    RETRY = "upstream.retry": "attempts" "budget" "on";
    UPSTREAM_TLS = "upstream.tls": "ca" "cert" "key" "server_name" "verify";
    EJECT = "upstream.eject": "consecutive_errors" "error_rate" "every" "for" "max";
    UPSTREAM_TOTAL = "upstream.total": "max_connections" "max_in_flight";
    UPSTREAM_SERVER = "upstream.servers": "max_connections" "max_in_flight" "url" "weight";
    SET = "set": "values" "file";
    LIMIT = "limit": "algorithm" "key" "missing" "repeated" "not_integer" "cost" "mode" "on_error" "when" "after" "overrides"
        "charge_on" "refund_on" "settle" "max_delayed" "max_keys" "refuse", |_| true;
    WHEN = "limit.when": "method" "path" "host" "route" "user" "client" "header" "cookie" "query" "param" "jwt" "tls";
    OVERRIDE = "limit.overrides": "key", |param| param.amount;
    OVERRIDE_KEY = "limit.overrides.key": "percent" "hash";
    ROUTE = "route": "name" "host" "path" "methods" "header" "upstream" "respond" "redirect" "limits" "allow"
        "deny" "auth" "rewrite" "request_headers" "response_headers" "max_body" "max_key_body" "max_in_flight" "refuse"
        "error_pages" "intercept" "ratelimit_headers" "body_timeout" "min_body_rate" "min_response_rate" "connect_timeout" "response_timeout" "stream_timeout"
        "tunnel_timeout" "upgrades" "strictness" "encoded_slashes" "compress";
    AUTH = "route.auth": "basic" "cache" "jwt" "limits" "realm" "user_claim" "user_header" "forward_credentials"
        "forward" "request_headers" "copy_headers" "user" "timeout" "on_error";
    ROUTE_COMPRESS = "route.compress": "types" "min_size" "algorithms";
    RESPOND = "route.respond": "status" "body" "content_type";
    REDIRECT = "route.redirect": "to" "status" "query" "map";
    REWRITE = "route.rewrite": "strip_prefix" "add_prefix" "upstream_host";
    HEADER_EDIT = "route.headers": "set" "remove";
    REFUSE = "route.refuse": "status" "body" "content_type";
}

/// The keys of a file with test cases, which is not part of a config.
pub const CASE_FILE: Schema = Schema { name: "cases", own: &["start", "case"], params: &[] };
pub const CASE: Schema = Schema {
    name: "case",
    own: &[
        "name",
        "request",
        "headers",
        "body",
        "from",
        "certificate_subject",
        "user",
        "at",
        "repeat",
        "response",
        "duration",
        "expect",
    ],
    params: &[],
};
pub const EXPECT: Schema = Schema {
    name: "case.expect",
    own: &["route", "client", "decision", "limit", "retry_after_ms", "status", "reason"],
    params: &[],
};
