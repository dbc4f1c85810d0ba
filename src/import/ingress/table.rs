//! The table of ingress-nginx's annotations: what the import does with each. The import and the manual read it.

use crate::import::verdict::Translation;
use crate::import::verdict::Translation::{Differs, NoEffect, Protects, Translated};

/// The annotations without their prefix, grouped by verdict and remark. A `*` at the end stands for any rest.
const ROWS: [(&[&str], Translation, &str); 20] = [
    (
        &[
            "limit-rps",
            "limit-rpm",
            "limit-burst-multiplier",
            "limit-connections",
            "limit-whitelist",
            "limit-allowlist",
        ],
        Translated,
        "one limit for each Ingress",
    ),
    (
        &["whitelist-source-range", "allowlist-source-range", "denylist-source-range"],
        Translated,
        "as `allow` and `deny`",
    ),
    (&["proxy-body-size", "proxy-connect-timeout", "proxy-read-timeout"], Translated, ""),
    (&["backend-protocol"], Translated, "HTTP, HTTPS, GRPC, GRPCS; others close the routes"),
    (
        &["use-regex"],
        Translated,
        "then all paths of the host are regular expressions without case, as `rewrite-target` makes them, too",
    ),
    (
        &["rewrite-target"],
        Translated,
        "with the groups of the path, such as `/$2` for `/foo(/|$)(.*)`; expressions that are not available close the routes",
    ),
    (&["upstream-vhost"], Translated, "`host` of `rewrite`"),
    (
        &[
            "canary",
            "canary-weight",
            "canary-weight-total",
            "canary-by-header",
            "canary-by-header-value",
            "canary-by-header-pattern",
            "canary-by-cookie",
        ],
        Translated,
        "`split` of the routes with the same hosts and paths; routes with a condition on the header or the cookie come before",
    ),
    (
        &[
            "enable-cors",
            "cors-allow-origin",
            "cors-allow-methods",
            "cors-allow-headers",
            "cors-expose-headers",
            "cors-allow-credentials",
            "cors-max-age",
        ],
        Translated,
        "`cors` of the routes. `max_age` is a day at most, and `OPTIONS` requests that are not preflights go to the service",
    ),
    (
        &["auth-*", "enable-global-auth", "satisfy", "global-rate-limit", "global-rate-limit-*"],
        Protects,
        "it decides which clients are served",
    ),
    (
        &[
            "enable-modsecurity",
            "enable-owasp-core-rules",
            "enable-owasp-modsecurity-crs",
            "modsecurity-*",
            "ssl-passthrough",
        ],
        Protects,
        "it decides which requests are served",
    ),
    (
        &["configuration-snippet", "server-snippet", "location-snippet"],
        Protects,
        "import the snippet with `import nginx`, inside of a `server`",
    ),
    (
        &["app-root", "permanent-redirect", "permanent-redirect-code", "temporal-redirect", "temporal-redirect-code"],
        Protects,
        "write a `redirect` in its place",
    ),
    (
        &["from-to-www-redirect", "preserve-trailing-slash", "connection-proxy-header", "x-forwarded-prefix"],
        Differs,
        "not available",
    ),
    (
        &[
            "affinity",
            "upstream-hash-by",
            "load-balance",
            "proxy-next-upstream",
            "proxy-next-upstream-*",
            "proxy-redirect-*",
            "proxy-cookie-*",
            "proxy-ssl-*",
            "mirror-*",
        ],
        Differs,
        "the server is chosen, or gets and sends headers, differently",
    ),
    (&["force-ssl-redirect"], Differs, "write redirect_http to [server]; until then, requests without TLS are served"),
    (
        &["custom-http-errors", "custom-headers", "default-backend", "disable-proxy-intercept-errors", "server-alias"],
        Differs,
        "not available",
    ),
    (
        &["ssl-redirect", "ssl-ciphers", "ssl-prefer-server-ciphers", "http2-push-preload"],
        NoEffect,
        "listeners with TLS are to be written; see the comment about `tls`",
    ),
    (
        &[
            "affinity-*",
            "session-cookie-*",
            "upstream-hash-by-*",
            "service-upstream",
            "relative-redirects",
            "enable-access-log",
            "enable-rewrite-log",
            "enable-opentelemetry",
            "enable-opentracing",
            "opentelemetry-*",
            "opentracing-*",
            "stream-snippet",
        ],
        NoEffect,
        "settings of other annotations, or logs",
    ),
    (
        &[
            "proxy-buffer*",
            "proxy-busy-buffers-size",
            "proxy-request-buffering",
            "proxy-http-version",
            "proxy-send-timeout",
            "proxy-max-temp-file-size",
            "client-body-buffer-size",
        ],
        NoEffect,
        "bodies are streamed",
    ),
];

/// Returns what the import does with an annotation. `None` for one that is not in the table.
pub fn find_annotation(name: &str) -> Option<(Translation, &'static str)> {
    let is_exact = |row: &&(&[&str], Translation, &str)| row.0.contains(&name);
    let row = ROWS.iter().find(is_exact).or_else(|| ROWS.iter().find(|row| matches_name(row.0, name)))?;
    Some((row.1, row.2))
}

/// Returns whether a list of names has this one. A `*` at the end of a name stands for any rest.
pub fn matches_name(names: &[&str], name: &str) -> bool {
    names.iter().any(|own| own.strip_suffix('*').map_or(*own == name, |prefix| name.starts_with(prefix)))
}

/// Words in the names of settings that decide which clients are served.
const PROTECTIVE: [&str; 17] = [
    "auth",
    "jwt",
    "oidc",
    "mtls",
    "middleware",
    "limit",
    "polic",
    "protect",
    "waf",
    "modsecurity",
    "snippet",
    "whitelist",
    "allowlist",
    "blacklist",
    "deny",
    "block",
    "restrict",
];

/// Returns whether the name of a setting that the import does not know is that of a protection.
pub fn sounds_protective(name: &str) -> bool {
    PROTECTIVE.iter().any(|word| name.contains(word))
}

/// Returns whether an annotation with this prefix and this name, which is not the prefix of ingress-nginx, may be one of a
/// controller: of another one, such as that of F5, or of ingress-nginx with another prefix.
pub fn is_of_controller(prefix: &str, name: &str) -> bool {
    let is_word = |label: &str| label.contains("nginx") || label.contains("ingress") || label == "f5";
    prefix.split('.').any(is_word) || find_annotation(name).is_some()
}

/// Writes the table for the manual, in Markdown.
pub fn write_table() -> String {
    let mut text = "\n| annotation | result | remark |\n|---|---|---|\n".to_owned();
    for (names, verdict, note) in &ROWS {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        text.push_str(&format!("| {} | {} | {note} |\n", names.join(", "), verdict.label()));
    }
    text
}
