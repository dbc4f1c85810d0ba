//! Options of the small sections, and the sections themselves.

use crate::config::schema::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::decide::DECIDE;
use crate::config::schema::limit::LIMIT;
use crate::config::schema::listener::LISTENER;
use crate::config::schema::rls::RLS;
use crate::config::schema::route::ROUTE;
use crate::config::schema::server::SERVER;
use crate::config::schema::shared::DIALECTS;
use crate::config::schema::upstream::UPSTREAM;
use crate::config::schema::value_type::ValueType::*;
use crate::config::schema::value_type::{DAY, SECOND, duration, integer, list, list_from};
use crate::config::schema::{Schema, option};
use crate::limiting::store::settings::GATEWAYS_MAX;

pub const ROOT: Schema = Schema {
    name: "root",
    title: "Top level",
    intro: "",
    notes: "",
    options: &[
        option(
            "include",
            list(&Text("file")),
            Absent,
            "more config files, in the order of their names. `*` and `?` match in the file name. Sections merge by name; the same name in two files is an error",
        ),
        option("server", Table(&SERVER), Absent, "listeners, timeouts, bounds and the access log"),
        option("admin", Table(&ADMIN), Absent, "the admin listener"),
        option("acme", Table(&ACME), Absent, "certificates from an ACME server"),
        option("store", Table(&STORE), Absent, "where limits keep their state"),
        option("headers", Table(&HEADERS), Absent, "rate limit headers"),
        option("jwt", TableOrNamed(&JWT), Absent, "verification of tokens"),
        option("upstream", Named(&UPSTREAM), Absent, "servers that requests go to"),
        option("set", Named(&SET), Absent, "lists of addresses or strings"),
        option("limit", Named(&LIMIT), Absent, "limits"),
        option("route", Array { item: &Table(&ROUTE), least: 0, most: usize::MAX }, Absent, "what happens to requests")
            .shown_as("sections `[[route]]`"),
        option("decide", Named(&DECIDE), Absent, "limits that other proxies ask about"),
        option(
            "listener",
            Array { item: &Table(&LISTENER), least: 0, most: usize::MAX },
            Absent,
            "listeners with TLS or other settings",
        )
        .shown_as("sections `[[listener]]`"),
        option(
            "rls",
            Array { item: &Table(&RLS), least: 0, most: usize::MAX },
            Absent,
            "limits for the rate limit requests of Envoy",
        )
        .shown_as("sections `[[rls]]`"),
    ],
};

pub const ACME: Schema = Schema {
    name: "acme",
    title: "[acme]",
    intro: "[TLS](tls.md#certificates-from-an-acme-server-lets-encrypt) explains these options. One order runs at a time, for at most 5 minutes.\n\
             Each request to the ACME server may take 30 s, and its response may have 256 KiB.",
    notes: "",
    options: &[
        option("directory", Text("https URL"), Described("Let's Encrypt"), "directory URL of the ACME server"),
        option("terms_agreed", Boolean, Required, "you agree to the server's terms of service"),
        option("contact", List { item: &Text("URL"), least: 0, most: 10 }, Absent, "`\"mailto:ADDRESS\"`")
            .shown_as("list, up to 10"),
        option(
            "state",
            Text("directory"),
            Value("\"/var/lib/sluicegate/acme\""),
            "account, certificates and challenges",
        ),
        option("ca", Text("file"), Described("the system's CAs"), "CA or certificate of the ACME server itself, PEM"),
        option(
            "challenges",
            list_from(1, &Words(&["tls-alpn-01", "http-01"])),
            Value("[\"tls-alpn-01\", \"http-01\"]"),
            "in the order in which they are tried",
        ),
        option("backoff", duration(SECOND, DAY), Value("\"5m\""), "wait after a failure; doubles up to 6 h"),
    ],
};

pub const ADMIN: Schema = Schema {
    name: "admin",
    title: "[admin]",
    intro: "",
    notes: "",
    options: &[
        option("listen", Text("address"), Value("\"127.0.0.1:9900\""), "address of the [admin API](admin-api.md)"),
        option("token", Text("string"), Absent, "token of role `edit` that requests must send")
            .guide("admin-api.md#access"),
        option(
            "tokens",
            Array { item: &Table(&ADMIN_TOKEN), least: 1, most: 64 },
            Absent,
            "further tokens, `[[admin.tokens]]`",
        )
        .guide("../operating/tokens-and-audit.md"),
        option("audit", Text("file"), Absent, "[audit log](../operating/tokens-and-audit.md#the-audit-log)"),
        option("metrics_need_token", Boolean, Value("false"), "`/metrics` needs a token too"),
        option(
            "edit",
            Boolean,
            Value("false"),
            "requests with the token may [change the config files](../operating/editing-over-http.md); needs `token`, or a `unix:` socket",
        ),
        option(
            "keys",
            Map(&Words(&["plain", "hashed", "hidden"])),
            Described("secrets hashed"),
            "how keys of limits appear in logs, spans and responses of the admin API",
        )
        .guide("../operating/keys-in-logs.md"),
        option(
            "keys_secret",
            Text("string, 32 to 1024 bytes"),
            Described("random"),
            "makes hashes of keys the same on all gateways and after restarts",
        )
        .guide("../operating/keys-in-logs.md#the-secret"),
    ],
};

pub const ADMIN_TOKEN: Schema = Schema {
    name: "admin.tokens",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("name", Text("name"), Required, "shown in the audit log"),
        option("token", Text("string, 16 to 4096 bytes"), Described("this or `sha256`"), "the token"),
        option("sha256", Text("64 hexadecimal digits"), Described("this or `token`"), "SHA-256 of the token"),
        option("role", Words(&["metrics", "read", "keys", "limits", "edit"]), Required, "what the token may do")
            .guide("admin-api.md#roles"),
        option(
            "expires",
            Text("date or time with offset"),
            Absent,
            "last day in UTC, or time, at which the token is accepted",
        ),
    ],
};

pub const STORE: Schema = Schema {
    name: "store",
    title: "[store]",
    intro: "",
    notes: "### Store URLs\n\
             \n\
             \x20   redis://[USER:PASSWORD@]HOST:PORT[/DB]\n\
             \x20   redis+unix:///PATH[?db=DB&user=USER&pass=PASSWORD]\n\
             \x20   redis+cluster://[USER:PASSWORD@]HOST:PORT,...\n\
             \x20   redis+sentinel://[USER:PASSWORD@]HOST:PORT,.../MASTER[/DB][?sentinel_user=USER&sentinel_password=PASSWORD]\n\
             \n\
             `rediss://`, `rediss+cluster://` and `rediss+sentinel://` use TLS, also to the sentinels. Special characters in names and passwords are\n\
             written as `%XX`.",
    options: &[
        option(
            "url",
            Text("string"),
            Value("\"memory:\""),
            "where limits keep their state: `\"memory:\"`, or [Redis](#store-urls)",
        )
        .metric("sluicegate_store_up"),
        option(
            "prefix",
            Text("1 to 32 letters, digits, `_`, `.`, `-`, `:`"),
            Value("\"sg\""),
            "start of every key in Redis",
        ),
        option("deadline", duration(1, 10 * SECOND), Value("\"30ms\""), "longest wait for a response of the store")
            .metric("sluicegate_store_errors_total"),
        option(
            "on_error",
            Words(&["local", "open", "closed"]),
            Value("\"local\""),
            "what limits do when the store does not respond in time",
        )
        .guide("../operating/redis-outages.md")
        .metric("sluicegate_limit_decisions_total"),
        option("max_keys", integer(1, 1_000_000_000), Value("1000000"), "keys in memory, of all limits together")
            .guide("../operating/capacity.md#memory")
            .metric("sluicegate_store_evictions_total"),
        option("gateways", integer(1, GATEWAYS_MAX), Value("1"), "least number of gateways that share the store")
            .guide("../operating/redis-outages.md#how-large-a-local-share-is")
            .metric("sluicegate_store_gateways"),
        option(
            "state",
            Text("absolute path"),
            Value("\"\""),
            "file that keeps the number of gateways and the live overrides for a start during an outage",
        )
        .guide("../operating/redis-outages.md#the-state-file"),
        option(
            "ca",
            Text("file"),
            Value("\"\""),
            "CAs or certificates to trust for the store instead of the public CAs, PEM",
        ),
        option("client_cert", Text("file"), Value("\"\""), "the gateway's own certificate, PEM; needs `client_key`"),
        option("client_key", Text("file"), Value("\"\""), "the key of `client_cert`, PEM"),
    ],
};

pub const HEADERS: Schema = Schema {
    name: "headers",
    title: "[headers]",
    intro: "",
    notes: "",
    options: &[option("ratelimit", DIALECTS, Value("[\"draft-11\"]"), "rate limit headers of responses")
        .shown_as("list of `\"draft-11\"`, `\"draft-07\"`, `\"draft-03\"`, `\"legacy\"`, or `\"off\"`")
        .guide("responses.md")],
};

pub const JWT: Schema = Schema {
    name: "jwt",
    title: "[jwt]",
    intro: "`[jwt.NAME]` has the same options, for routes with `auth = { jwt = \"NAME\" }`. `[jwt]` itself verifies the tokens of all other routes whose\n\
             limits read `jwt:CLAIM`.",
    notes: "",
    options: &[
        option(
            "key",
            Text("string"),
            Required,
            "secret for HS256, HS384, HS512 (at least 32, 48, 64 bytes), or a public key in PEM",
        ),
        option(
            "algorithms",
            list_from(1, &Words(&["HS256", "HS384", "HS512", "RS256", "ES256", "EdDSA"])),
            Required,
            "accepted algorithms of one kind: `HS256`, `HS384`, `HS512`; or `RS256`; or `ES256`; or `EdDSA`",
        ),
        option(
            "header",
            Text("string"),
            Value("\"authorization\""),
            "header with the token, after an optional `Bearer `",
        ),
        option("issuer", list(&Text("string")), Described("not checked"), "accepted `iss`"),
        option("audience", list(&Text("string")), Described("not checked"), "accepted `aud`"),
    ],
};

pub const SET: Schema = Schema {
    name: "set",
    title: "[set.NAME]",
    intro: "A set is a named list: of addresses and networks for `allow`, `deny` and `client`, or of strings for other conditions of `when`.",
    notes: "",
    options: &[
        option("values", list(&Text("string")), Described("`values` or `file`"), "the items"),
        option(
            "file",
            Text("file"),
            Described("`values` or `file`"),
            "one item per line; `#` at the start of a line or after a space starts a comment",
        ),
    ],
};
