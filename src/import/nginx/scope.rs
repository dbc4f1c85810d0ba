//! The directives in force in a block, including those that it inherits from the blocks around it.

use std::collections::HashMap;

use crate::import::syntax::Directive;

/// Directives that form lists. A block with at least one of them replaces the whole inherited list.
const LISTS: [&str; 8] = [
    "limit_req",
    "limit_conn",
    "allow",
    "proxy_set_header",
    "grpc_set_header",
    "add_header",
    "proxy_hide_header",
    "error_page",
];

/// Directives with one value. The innermost block that has one decides.
const SINGLE: [&str; 40] = [
    "limit_req_status",
    "limit_conn_status",
    "limit_req_dry_run",
    "limit_conn_dry_run",
    "client_max_body_size",
    "client_header_timeout",
    "client_body_timeout",
    "send_timeout",
    "keepalive_timeout",
    "proxy_connect_timeout",
    "proxy_read_timeout",
    "proxy_send_timeout",
    "grpc_connect_timeout",
    "grpc_read_timeout",
    "proxy_next_upstream",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_name",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "real_ip_header",
    "real_ip_recursive",
    "default_type",
    "ssl_protocols",
    "ssl_client_certificate",
    "ssl_verify_client",
    "http2",
    "proxy_pass_header",
    "satisfy",
    "auth_basic",
    "auth_basic_user_file",
    "auth_request",
    "auth_jwt",
    "auth_jwt_require",
    "auth_delay",
    "gzip",
    "gzip_types",
    "gzip_min_length",
    "proxy_intercept_errors",
    "root",
];

/// Directives that decide which clients are served. A route that would lose one of them is closed. `passwords` reads
/// `auth_basic`.
pub const GUARDS: [&str; 4] = ["auth_request", "auth_jwt", "auth_jwt_require", "satisfy"];

/// Directives that tune nginx itself or describe what Sluicegate always does. Leaving them out changes no verdict.
const TUNING: [&str; 73] = [
    "user",
    "pid",
    "events",
    "daemon",
    "master_process",
    "load_module",
    "env",
    "pcre_jit",
    "timer_resolution",
    "thread_pool",
    "lock_file",
    "sendfile",
    "sendfile_max_chunk",
    "tcp_nopush",
    "tcp_nodelay",
    "aio",
    "directio",
    "types",
    "server_tokens",
    "log_format",
    "access_log",
    "error_log",
    "log_not_found",
    "log_subrequest",
    "keepalive_requests",
    "keepalive_time",
    "keepalive_disable",
    "reset_timedout_connection",
    "send_lowat",
    "large_client_header_buffers",
    "client_header_buffer_size",
    "client_body_buffer_size",
    "client_body_temp_path",
    "client_body_in_single_buffer",
    "connection_pool_size",
    "request_pool_size",
    "output_buffers",
    "postpone_output",
    "proxy_buffering",
    "proxy_request_buffering",
    "proxy_buffers",
    "proxy_buffer_size",
    "proxy_busy_buffers_size",
    "proxy_temp_path",
    "proxy_temp_file_write_size",
    "proxy_max_temp_file_size",
    "proxy_http_version",
    "proxy_socket_keepalive",
    "proxy_ssl_server_name",
    "proxy_ssl_session_reuse",
    "proxy_ssl_protocols",
    "proxy_ssl_ciphers",
    "proxy_next_upstream_tries",
    "proxy_next_upstream_timeout",
    "grpc_buffer_size",
    "limit_req_log_level",
    "limit_conn_log_level",
    "resolver",
    "resolver_timeout",
    "ssl_prefer_server_ciphers",
    "ssl_ciphers",
    "ssl_dhparam",
    "ssl_ecdh_curve",
    "ssl_buffer_size",
    "ssl_early_data",
    "ssl_conf_command",
    "absolute_redirect",
    "port_in_redirect",
    "server_name_in_redirect",
    "etag",
    "if_modified_since",
    "index",
    "recursive_error_pages",
];

/// Prefixes of further tuning directives.
const TUNING_PREFIXES: [&str; 11] = [
    "worker_",
    "types_hash_",
    "server_names_hash_",
    "variables_hash_",
    "map_hash_",
    "open_file_cache",
    "gzip_",
    "ssl_session_",
    "ssl_stapling",
    "http2_",
    "proxy_headers_hash_",
];

/// The directives in force in one block.
#[derive(Clone, Default)]
pub struct Scope<'a> {
    lists: HashMap<&'static str, Vec<&'a Directive>>,
    single: HashMap<&'static str, &'a Directive>,
}

impl<'a> Scope<'a> {
    /// Returns the scope of a block inside this one.
    pub fn enter_block(&self, block: &'a [Directive]) -> Scope<'a> {
        let mut scope = self.clone();
        for name in LISTS {
            let own: Vec<_> = block.iter().filter(|directive| list_name(&directive.name) == name).collect();
            if !own.is_empty() {
                scope.lists.insert(name, own);
            }
        }
        for directive in block {
            if let Some(name) = SINGLE.iter().find(|name| **name == directive.name) {
                scope.single.insert(name, directive);
            }
        }
        scope
    }

    /// Returns the directives of a list in force.
    pub fn list(&self, name: &str) -> &[&'a Directive] {
        self.lists.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the directive in force, if any.
    pub fn get(&self, name: &str) -> Option<&'a Directive> {
        self.single.get(name).copied()
    }

    /// Returns true if the directive in force has the value `on`.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|directive| directive.arg(0) == "on")
    }
}

/// Returns the name of a directive's list. `allow` and `deny` share one.
fn list_name(name: &str) -> &str {
    if name == "deny" { "allow" } else { name }
}

/// Returns true for directives that the import reads through a scope.
pub fn is_scoped(name: &str) -> bool {
    LISTS.contains(&list_name(name)) || SINGLE.contains(&name)
}

/// Returns true for directives that the import may leave out without a numbered comment.
pub fn is_tuning(name: &str) -> bool {
    TUNING.contains(&name) || TUNING_PREFIXES.iter().any(|start| name.starts_with(start))
}

/// Returns true for directives that make nginx itself produce the content.
pub fn is_content(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "alias",
        "try_files",
        "fastcgi_pass",
        "uwsgi_pass",
        "scgi_pass",
        "memcached_pass",
        "empty_gif",
        "stub_status",
        "autoindex",
        "dav_methods",
        "js_content",
        "perl",
        "flv",
        "mp4",
        "random_index",
    ];
    NAMES.contains(&name) || name.starts_with("content_by_lua")
}

/// Returns true for directives that decide whether and how a request is served, and that blocks do not inherit. A route
/// that would lose one of them is closed.
pub fn is_closing(directive: &Directive) -> bool {
    const NAMES: [&str; 7] =
        ["rewrite", "limit_except", "secure_link", "secure_link_md5", "valid_referers", "js_access", "modsecurity"];
    match directive.name.as_str() {
        "if" => !directive.inner().iter().all(|inner| is_redirect(inner) || inner.name == "set"),
        name => NAMES.contains(&name) || name.starts_with("access_by_lua") || name.starts_with("rewrite_by_lua"),
    }
}

/// Returns true for a directive with the only value `off`. A disabled feature needs no translation.
pub fn is_off(directive: &Directive) -> bool {
    directive.args.len() == 1 && directive.arg(0) == "off"
}

/// Returns true for a `return` that redirects, such as `return 301 URL`.
pub fn is_redirect(directive: &Directive) -> bool {
    directive.name == "return" && matches!(directive.arg(0), "301" | "302" | "303" | "307" | "308")
}
