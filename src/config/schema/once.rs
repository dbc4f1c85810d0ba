//! Options of the small sections, and the sections themselves.

use std::time::Duration;

use crate::config::EnvironmentColor;
use crate::config::admin_tokens::Role;
use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{ClientData, Row, Secrecy, Weaker, option, rows, table};
use crate::config::schema::shared::DIALECTS;
use crate::config::schema::value_type::ValueType::*;
use crate::config::schema::value_type::{DAY, MINUTE, SECOND, duration, integer, list, list_from};
use crate::limiting::key::shown_key::KeyVisibility;
use crate::limiting::limit::OnError;
use crate::limiting::store::settings::GATEWAYS_MAX;
use crate::tls::ChallengeKind;

/// Options of `root`.
pub mod root {
    use super::*;
    use crate::config::schema::{decide, limit, listener, rls, route, server, upstream};

    rows! {
        table("root").title("Top level");

        INCLUDE = option(
            "include",
            list(&Path("file")),
            Absent,
            "more config files, in the order of their names. `*` and `?` match in the file name. Sections merge by name; the same name in two files is an error",
        )
        .teach("[\"conf.d/*.toml\"]", "Split a long config into one file for each application or team");
        SERVER = option("server", Table(&server::TABLE), Absent, "listeners, timeouts, bounds and the access log");
        ADMIN = option("admin", Table(&admin::TABLE), Absent, "the admin listener");
        ACME = option("acme", Table(&acme::TABLE), Absent, "certificates from an ACME server");
        STORE = option("store", Table(&store::TABLE), Absent, "where limits keep their state");
        HEADERS = option("headers", Table(&headers::TABLE), Absent, "rate limit headers");
        JWT = option("jwt", TableOrNamed(&jwt::TABLE), Absent, "verification of tokens");
        UPSTREAM = option("upstream", Named(&upstream::TABLE), Absent, "servers that requests go to")
            .called(route::UPSTREAM.option.aliases);
        GEO = option("geo", Table(&geo::TABLE), Absent, "the database of countries");
        SET = option("set", Named(&set::TABLE), Absent, "lists of addresses or strings");
        LIMIT = option("limit", Named(&limit::TABLE), Absent, "limits")
            .called(&["rate_limit", "ratelimit"]);
        ROUTE = option("route", Array { item: &Table(&route::TABLE), least: 0, most: usize::MAX }, Absent, "what happens to requests")
            .shown_as("sections `[[route]]`");
        DECIDE = option("decide", Named(&decide::TABLE), Absent, "limits that other proxies ask about");
        LISTENER = option(
            "listener",
            Array { item: &Table(&listener::TABLE), least: 0, most: usize::MAX },
            Absent,
            "listeners with TLS or other settings",
        )
        .shown_as("sections `[[listener]]`");
        RLS = option(
            "rls",
            Array { item: &Table(&rls::TABLE), least: 0, most: usize::MAX },
            Absent,
            "limits for the rate limit requests of Envoy",
        )
        .shown_as("sections `[[rls]]`");
    }
}

/// Options of `acme`.
pub mod acme {
    use super::*;

    rows! {
        table("acme").title("[acme]")
            .intro("[TLS](tls.md#certificates-from-an-acme-server-lets-encrypt) explains these options. One order runs at a time, for at most 5 minutes.\n\
                 Each request to the ACME server may take 30 s, and its response may have 256 KiB.");

        DIRECTORY = option("directory", Text("https URL"), Described("Let's Encrypt"), "directory URL of the ACME server")
            .called(&["acme_ca", "caServer", "server"]);
        STAGING: bool = option(
            "staging",
            Boolean,
            Value("false"),
            "use the staging server of Let's Encrypt, whose certificates no browser trusts and whose limits are high",
        )
        .teach("true", "Turn it on while you try out a config, because Let's Encrypt limits orders and failures");
        PROFILE = option(
            "profile",
            Text("string"),
            Described("chosen by the server"),
            "kind of certificate, as the server calls it: `\"shortlived\"` of Let's Encrypt is valid for 6 days",
        );
        TERMS_AGREED: Option<bool> = option("terms_agreed", Boolean, Required, "you agree to the server's terms of service")
            .teach("true", "Read the terms of the server, then set it, because `[acme]` does not load without it");
        CONTACT = option("contact", List { item: &Text("URL"), least: 0, most: 10 }, Absent, "addresses that the ACME server may write to, as `\"mailto:ADDRESS\"`")
            .shown_as("list, up to 10")
            .teach("[\"mailto:ops@example.com\"]", "Set it so that the certificate authority can reach you, for example before it revokes a certificate");
        STATE = option(
            "state",
            Path("directory"),
            Value("\"/var/lib/sluicegate/acme\""),
            "account, certificates and challenges",
        )
        .called(&["storage", "storage_path", "config_dir"])
        .teach("\"/srv/sluicegate/acme\"", "Set it if the gateway may not write to `/var/lib/sluicegate`, and keep it on a disk that survives a redeployment");
        CA = option("ca", Path("file"), Described("the system's CAs"), "CA or certificate of the ACME server itself, PEM");
        CHALLENGES = option(
            "challenges",
            list_from(1, &Words(ChallengeKind::LABELS)),
            Described("`[\"tls-alpn-01\", \"http-01\"]`, or `[\"dns-01\"]` with `dns` or `dns_program`"),
            "in the order in which they are tried. Names with a wildcard use `dns-01` only, and addresses the others",
        );
        DNS = option(
            "dns",
            Table(&acme_dns::TABLE),
            Absent,
            "name server that gets the records of `dns-01` as dynamic updates (RFC 2136)",
        )
        .guide("tls.md#dns-01-and-wildcards")
        .called(&["rfc2136", "dnsChallenge"])
        .teach("{ server = \"192.0.2.53\", key = \"sluicegate\", secret = \"${TSIG_SECRET}\" }", "Use it for names with a wildcard, and behind a CDN, where other challenges fail");
        DNS_PROGRAM = option(
            "dns_program",
            list_from(1, &Text("string")),
            Absent,
            "program, and its first arguments, that publishes the record of `dns-01`. It gets the arguments `present` or `cleanup`, the name of the record, and its text",
        )
        .guide("tls.md#dns-01-and-wildcards")
        .called(&["manual_auth_hook"]);
        DNS_WAIT: Duration = option(
            "dns_wait",
            duration(0, 10 * MINUTE),
            Value("\"10s\""),
            "wait after a record has been published, until all servers of the zone have it. With `dns`, the wait ends when they do",
        );
        BACKOFF: Duration = option("backoff", duration(SECOND, DAY), Value("\"5m\""), "wait after a failure; doubles up to 6 h");
    }
}

/// Options of `acme.dns`.
pub mod acme_dns {
    use super::*;
    use crate::config::KeyAlgorithm;

    rows! {
        table("acme.dns");

        SERVER = option(
            "server",
            Text("host:port"),
            Required,
            "the primary name server of the zone, reached over TCP. The port is 53 unless you write another",
        );
        ZONE = option("zone", Text("domain name"), Described("what the server states"), "the zone that has the names");
        KEY = option("key", Text("domain name"), Required, "name of the TSIG key, as the name server calls it");
        ALGORITHM: KeyAlgorithm = option(
            "algorithm",
            Words(KeyAlgorithm::LABELS),
            Value("\"hmac-sha256\""),
            "algorithm of the key",
        );
        SECRET = option(
            "secret",
            Text("Base64, 16 to 1024 bytes"),
            Required,
            "secret of the key, as in the key file of the name server",
        )
        .secrecy(Secrecy::Secret);
    }
}

/// Options of `admin`.
pub mod admin {
    use super::*;

    rows! {
        table("admin").title("[admin]");

        LISTEN = option("listen", Text("address"), Value("\"127.0.0.1:9900\""), "address of the [admin API](admin-api.md)")
            .called(&["port", "bind", "address"])
            .teach("\"unix:/run/sluicegate/admin.sock\"", "Change it only to an address that no client can reach, and set `token` for one that other machines can");
        TOKEN = option("token", Text("string"), Absent, "token of role `edit` that requests must send")
            .guide("admin-api.md#access")
            .weaker(Weaker::Removed)
            .secrecy(Secrecy::Secret)
            .teach("\"${ADMIN_TOKEN}\"", "Set it before you make the admin API reachable from other machines");
        TOKENS = option(
            "tokens",
            Array { item: &Table(&admin_token::TABLE), least: 1, most: 64 },
            Absent,
            "further tokens, `[[admin.tokens]]`",
        )
        .guide("../operating/tokens-and-audit.md")
        .weaker(Weaker::NewItem)
        .example("write [[admin.tokens]] with two brackets, once for each token")
        .teach("[{ name = \"grafana\", token = \"${GRAFANA_TOKEN}\", role = \"metrics\" }]", "Give each person and each program a token of its own, so that you can see who changed what, and can revoke one");
        AUDIT = option("audit", Path("file"), Absent, "[audit log](../operating/tokens-and-audit.md#the-audit-log)")
            .weaker(Weaker::Removed)
            .teach("\"/var/log/sluicegate/audit.log\"", "Set it if several people change limits, or if you have to prove who did");
        METRICS_NEED_TOKEN = option(
            "metrics_need_token",
            Boolean,
            Described("`true` with a token, unless `listen` is a loopback address or a socket"),
            "`/metrics` needs a token too",
        )
        .weaker(Weaker::Compiled);
        UNUSED_SERIES: bool = option(
            "unused_series",
            Boolean,
            Value("true"),
            "`/metrics` has series that have counted nothing yet: counters, histograms, and gauges of routes and limits. With `false`, one of each family remains",
        )
        .guide("../operating/monitoring.md#many-routes-and-limits");
        ENVIRONMENT = option(
            "environment",
            Text("string of 1 to 40 characters"),
            Absent,
            "name of the environment, such as `production`, which the dashboard shows",
        )
        .guide("../operating/dashboard.md#which-gateway-is-this")
        .called(&["env", "stage", "name"])
        .teach("\"production\"", "Set it if you have several environments, so that nobody changes the wrong one");
        ENVIRONMENT_COLOR: EnvironmentColor = option(
            "environment_color",
            Words(EnvironmentColor::LABELS),
            Value("\"gray\""),
            "color of that name",
        )
        .called(&["color", "colour", "environment_colour"])
        .teach("\"red\"", "Use a striking color for production");
        EDIT: bool = option(
            "edit",
            Boolean,
            Value("false"),
            "requests with the token may [change the config files](../operating/editing-over-http.md); needs `token`, or a `unix:` socket",
        )
        .weaker(Weaker::More)
        .teach("true", "Turn it on if people or programs should change the config through the dashboard or the API");
        KEYS = option(
            "keys",
            Map(&Words(KeyVisibility::LABELS)),
            Described("secrets hashed"),
            "how keys of limits appear in logs, spans and responses of the admin API",
        )
        .guide("../operating/keys-in-logs.md")
        .weaker(Weaker::Compiled)
        .teach("{ ip = \"hashed\" }", "Hash or hide what your privacy rules do not allow in logs");
        KEYS_SECRET = option(
            "keys_secret",
            Text("string, 32 to 1024 bytes"),
            Described("random"),
            "makes hashes of keys the same on all gateways and after restarts",
        )
        .guide("../operating/keys-in-logs.md#the-secret")
        .secrecy(Secrecy::Secret)
        .teach("\"${KEYS_SECRET}\"", "Set the same secret on all gateways if you look up hashed keys, or if overrides name keys by hash");
    }
}

/// Options of `admin.tokens`.
pub mod admin_token {
    use super::*;

    rows! {
        table("admin.tokens");

        NAME = option("name", Text("name"), Required, "shown in the audit log")
            .teach("\"grafana\"", "Use the name of the person or program, because the audit log shows it");
        TOKEN = option("token", Text("string, 16 to 4096 bytes"), Described("this or `sha256`"), "the token")
            .secrecy(Secrecy::Secret)
            .teach("\"${GRAFANA_TOKEN}\"", "Read it from the environment or from a file with `${file:PATH}`, so that the config contains no secret. With `sha256`, the machine does not need the token at all");
        SHA256 = option("sha256", Text("64 hexadecimal digits"), Described("this or `token`"), "SHA-256 of the token")
            .secrecy(Secrecy::Secret)
            .teach("\"${GRAFANA_TOKEN_SHA256}\"", "Use it instead of `token` if the token should not be on this machine: `printf %s \"$TOKEN\" | sha256sum` prints it");
        ROLE: Option<Role> = option("role", Words(Role::LABELS), Required, "what the token may do")
            .guide("admin-api.md#roles")
            .teach("\"limits\"", "Choose the lowest role that is enough: `metrics` for scrapers, `read` for dashboards, `limits` for support, `edit` for changes of the config");
        EXPIRES = option(
            "expires",
            Text("date or time with offset"),
            Absent,
            "last day in UTC, or time, at which the token is accepted",
        )
        .example("write the date in quotes: expires = \"2027-01-31\"")
        .teach("\"2027-01-31\"", "Set it for contractors and for tests, so that nobody has to remember to revoke the token");
    }
}

/// Options of `store`.
pub mod store {
    use super::*;

    rows! {
        table("store").title("[store]")
            .notes("### Store URLs\n\
                 \n\
                 \x20   redis://[USER:PASSWORD@]HOST:PORT[/DB]\n\
                 \x20   redis+unix:///PATH[?db=DB&user=USER&pass=PASSWORD]\n\
                 \x20   redis+cluster://[USER:PASSWORD@]HOST:PORT,...\n\
                 \x20   redis+sentinel://[USER:PASSWORD@]HOST:PORT,.../MASTER[/DB][?sentinel_user=USER&sentinel_password=PASSWORD]\n\
                 \n\
                 `rediss://`, `rediss+cluster://` and `rediss+sentinel://` use TLS, also to the sentinels. Special characters in names and passwords are\n\
                 written as `%XX`.");

        URL = option(
            "url",
            Text("string"),
            Value("\"memory:\""),
            "where limits keep their state: `\"memory:\"`, or [Redis](#store-urls)",
        )
        .metric("sluicegate_store_up")
        .keywords(&["memory:"])
        .teach("\"redis://10.0.0.5:6379\"", "Use Redis if several gateways share budgets, or if budgets have to survive a restart");
        USERNAME = option(
            "username",
            Text("string"),
            Absent,
            "user for the Redis servers that store the state, if it is not in `url`; sentinels do not get it",
        )
        .called(&["user"]);
        PASSWORD = option(
            "password",
            Text("string"),
            Absent,
            "password for them, if it is not in `url`; any characters in UTF-8, nothing is escaped",
        )
        .called(&["pass", "auth", "requirepass"])
        .secrecy(Secrecy::Secret);
        PREFIX = option(
            "prefix",
            Text("1 to 32 letters, digits, `_`, `.`, `-`, `:`"),
            Value("\"sg\""),
            "start of every key in Redis",
        )
        .teach("\"staging\"", "Change it if several environments share one Redis");
        DEADLINE: Duration = option("deadline", duration(1, 10 * SECOND), Value("\"30ms\""), "longest wait for a response of the store; then `on_error` decides. A request waits for at most twice as long")
            .metric("sluicegate_store_errors_total")
            .teach("\"50ms\"", "Raise it to somewhat more than the round trip if Redis is far away");
        ON_ERROR: OnError = option(
            "on_error",
            Words(&["local", "open", "closed"]),
            Value("\"local\""),
            "what limits do when the store does not respond in time",
        )
        .guide("../operating/redis-outages.md")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::Compiled)
        .inherited()
        .teach("\"open\"", "`local` enforces this gateway's share of each limit, `open` admits, `closed` refuses with 503. Use `closed` on limits against guessing passwords, and `open` where a lost customer costs more than an extra request");
        MAX_KEYS: usize = option("max_keys", integer(1, 1_000_000_000), Value("1000000"), "keys in memory, of all limits together")
            .guide("../operating/capacity.md#memory")
            .metric("sluicegate_store_evictions_total")
            .called(&["cache_size"])
            .teach("5000000", "Raise it if the metric rises, because a key that was evicted begins with a full budget");
        GATEWAYS: i64 = option("gateways", integer(1, GATEWAYS_MAX), Value("1"), "least number of gateways that share the store")
            .guide("../operating/redis-outages.md#how-large-a-local-share-is")
            .metric("sluicegate_store_gateways")
            .teach("2", "Set it to the number of gateways that you run; during an outage each enforces that fraction of a limit");
        STATE = option(
            "state",
            Path("absolute path"),
            Value("\"\""),
            "file that keeps the number of gateways and the live overrides for a start during an outage; of a memory store, its live overrides",
        )
        .guide("../operating/redis-outages.md#the-state-file")
        .teach("\"/var/lib/sluicegate/state\"", "Set it if gateways may start while Redis is down");
        CA = option(
            "ca",
            Path("file"),
            Value("\"\""),
            "CAs or certificates to trust for the store instead of the public CAs, PEM",
        );
        CLIENT_CERT = option("client_cert", Path("file"), Value("\"\""), "the gateway's own certificate, PEM; needs `client_key`");
        CLIENT_KEY = option("client_key", Path("file"), Value("\"\""), "the key of `client_cert`, PEM");
    }
}

/// Options of `headers`.
pub mod headers {
    use super::*;

    rows! {
        table("headers").title("[headers]");

        RATELIMIT = option("ratelimit", DIALECTS, Value("[\"draft-11\"]"), "rate limit headers of responses")
        .shown_as("list of `\"draft-11\"`, `\"draft-07\"`, `\"draft-03\"`, `\"legacy\"`, `\"epoch\"`, or `\"off\"`")
        .guide("responses.md")
        .inherited()
        .teach("[\"draft-11\", \"legacy\"]", "Add `legacy` for clients that read `X-RateLimit-Remaining`; use `off` if clients should not see the limits");
    }
}

/// Options of `jwt`.
pub mod jwt {
    use super::*;

    rows! {
        table("jwt").title("[jwt]")
            .intro("`[jwt.NAME]` has the same options, for routes with `auth = { jwt = \"NAME\" }`. `[jwt]` itself verifies the tokens of all other routes whose\n\
                 limits read `jwt:CLAIM`. [Tokens](../guides/tokens.md) explains these options.");

        KEY = option(
            "key",
            Text("string"),
            Described("one of `key`, `jwks`, `issuer`"),
            "secret for HS256, HS384, HS512 (at least 32, 48, 64 bytes), or a public key in PEM (RSA: 2048 to 8192 bits)",
        )
        .called(&["secret", "public_key", "jwt_secret"])
        .secrecy(Secrecy::Secret)
        .teach("\"${JWT_SECRET}\"", "Use it for a secret that you share with the issuer, or for a single public key. With `issuer` or `jwks`, the gateway fetches the keys, also new ones");
        JWKS = option(
            "jwks",
            Path("`https` URL or file"),
            Described("found by `issuer`"),
            "JSON Web Key Set of the issuer",
        )
        .called(&["jwks_uri", "jwksUri", "jwks_url", "jwksUrl", "remote_jwks", "local_jwks", "jwks_file", "jwksFile", "auth_jwt_key_file", "auth_jwt_key_request"]);
        ALGORITHMS = option(
            "algorithms",
            list_from(
                1,
                &Words(&[
                    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA",
                ]),
            ),
            Described("all but `HS*`; required with `key`"),
            "accepted algorithms; with `key`, all of its kind. Secrets in a key set verify tokens only if `HS*` are listed",
        )
        .called(&["algorithm", "alg", "allowed_algorithms", "signing_algorithms"])
        .unset("[\"RS256\", \"RS384\", \"RS512\", \"PS256\", \"PS384\", \"PS512\", \"ES256\", \"ES384\", \"EdDSA\"]")
        .weaker(Weaker::NewItem)
        .teach("[\"HS256\"]", "List only what your issuer uses, so that no other algorithm is accepted");
        HEADER = option(
            "header",
            Text("string"),
            Value("\"authorization\""),
            "header with the token, after an optional `Bearer `",
        )
        .keywords(&["authorization"]);
        ISSUER = option(
            "issuer",
            list(&Text("string")),
            Described("not checked"),
            "accepted `iss`; without `key` and `jwks`, the `https` URL of the OpenID issuer, whose keys are found by discovery",
        )
        .called(&["issuer_url", "issuerUrl", "iss", "discovery", "discovery_url"])
        .weaker(Weaker::Removed)
        .teach("[\"https://id.example.com\"]", "Set it to the URL of your identity provider, whose keys are then found by themselves");
        AUDIENCE = option("audience", list(&Text("string")), Described("not checked"), "accepted `aud`")
            .called(&["audiences", "aud"])
            .weaker(Weaker::Removed)
            .teach("[\"https://api.example.com\"]", "Set it if the issuer also makes tokens for other applications, because they would be accepted otherwise");
        CA = option("ca", Path("file"), Described("the system's CAs"), "CA or certificate of the server with the keys, PEM");
        MAX_STALE: Duration = option(
            "max_stale",
            duration(5 * MINUTE, 30 * DAY),
            Value("\"1d\""),
            "how long the last keys serve if they cannot be fetched again",
        )
        .metric("sluicegate_jwt_keys_fetched_timestamp_seconds")
        .unset("86400000")
        .weaker(Weaker::More);
    }
}

/// Options of `geo`.
pub mod geo {
    use super::*;

    rows! {
        table("geo").title("[geo]")
            .intro("[Countries](../guides/countries.md) shows how limits, headers and the log use the country of a client.");

        FILE = option(
            "file",
            Path("file"),
            Required,
            "database in the format of MaxMind (`.mmdb`) with countries, at most 512 MiB; a changed file is loaded at once",
        )
        .called(&["database", "geoip2", "geoip_country"])
        .teach("\"countries.mmdb\"", "Download a database of countries from MaxMind or DB-IP, and replace the file every month");
    }
}

/// Options of `set`.
pub mod set {
    use super::*;

    rows! {
        table("set").title("[set.NAME]")
            .intro("A set is a named list: of addresses and networks for `allow`, `deny` and `client`, or of strings for other conditions of `when`.");

        VALUES = option("values", list(&Text("string")), Described("`values` or `file`"), "the items, such as addresses, networks or keys")
            .weaker(Weaker::Compiled)
            .unordered()
            .of_clients(ClientData::Values)
            .teach("[\"203.0.113.0/24\", \"198.51.100.7\"]", "Use a set if several routes or limits need the same list. For a long list, use `file`");
        FILE = option(
            "file",
            Path("file"),
            Described("`values` or `file`"),
            "one item per line; `#` at the start of a line or after a space starts a comment. Rows with errors are skipped ([Sets in files](conditions.md#sets-in-files))",
        )
        .teach("\"blocked.txt\"", "Use a file for long lists, and for lists that another program writes. A changed file is loaded at once");
    }
}
