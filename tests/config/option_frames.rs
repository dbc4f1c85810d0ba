//! A config around each option of the table, in which only the option is new.

use sluicegate::config::schema::lookup::OptionEntry;
use sluicegate::limiting::algorithm::SPECS;

const ROUTE: &str = "[[route]]\nrespond = { status = 200 }\n";
const TLS: &str = "tls = { certificates = [{ cert = \"conf/tls/sample.pem\", key = \"conf/tls/sample.key\" }] }\n";
const CERTIFICATES: &str = "certificates = [{ cert = \"conf/tls/sample.pem\", key = \"conf/tls/sample.key\" }]\n";
const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:8443\"\n";
const JWT: &str =
    "[jwt]\nkey = \"0123456789012345678901234567890123456789012345678901234567890123\"\nalgorithms = [\"HS256\"]\n";
const KEY: &str = "key = \"0123456789012345678901234567890123456789012345678901234567890123\"\n";
const SERVERS: &str = "servers = [\"http://127.0.0.1:9\"]\n";
const SECURE_SERVERS: &str = "servers = [\"https://127.0.0.1:9\"]\n";
const UPSTREAM_ROUTE: &str = "[[route]]\nupstream = \"u\"\n";
const LIMIT_ROUTE: &str = "[[route]]\npath = \"/{id}/x\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n";
const LIMIT: &str = "[limit.l]\nrate = \"10/s\"\n";
const LARGE_LIMIT: &str = "[limit.l]\nrate = \"10/s\"\nburst = 1000000000\n";
const PLAIN: &str = "[server]\nlisten = \"127.0.0.1:8080\"\ntrusted_proxies = [\"10.0.0.0/8\"]\n";

/// The parts of a config around one option.
pub struct Frame {
    before: String,
    /// The other lines of the table. The option replaces its own line.
    beside: String,
    after: String,
    /// Braces around the option and its neighbours, for a table within a list.
    inline: bool,
}

impl Frame {
    /// Returns the config with a line for the option. `None` leaves the option out, or keeps the line that the table
    /// needs.
    pub fn with(&self, key: &str, value: Option<&str>) -> String {
        let own = format!("{key} =");
        let beside: String = self
            .beside
            .lines()
            .filter(|line| value.is_none() || !line.starts_with(&own))
            .map(|line| format!("{line}\n"))
            .collect();
        let line = value.map_or_else(String::new, |value| format!("{key} = {value}\n"));
        let text = match self.inline {
            true => {
                let inside = (beside + &line).trim_end().replace('\n', ", ");
                format!("key = [{{ {inside} }}]\n")
            }
            false => beside + &line,
        };
        format!("{}{text}{}", self.before, self.after)
    }
}

fn frame(before: impl Into<String>, beside: impl Into<String>, after: impl Into<String>) -> Frame {
    Frame { before: before.into(), beside: beside.into(), after: after.into(), inline: false }
}

pub fn frame_of(entry: &OptionEntry) -> Frame {
    let key = entry.option.name;
    let table = entry.table.name;
    match table.split('.').next().unwrap() {
        "root" => frame("", "", ROUTE),
        "server" => frame_of_server(table),
        "listener" => frame_of_listener(table, key),
        "acme" if table == "acme.dns" => {
            let required = [("server", "\"192.0.2.53\""), ("key", "\"k\""), ("secret", "\"MDEyMzQ1Njc4OWFiY2RlZg==\"")];
            let beside: String = required.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
            let names = format!("{PLAIN}{LISTENER}tls = {{ acme = [\"www.example.com\"] }}\n");
            frame(format!("{names}[acme]\nterms_agreed = true\n[acme.dns]\n"), beside, ROUTE)
        }
        "acme" => frame(
            format!("{PLAIN}{LISTENER}tls = {{ acme = [\"www.example.com\"] }}\n[acme]\n"),
            "terms_agreed = true\n",
            ROUTE,
        ),
        "admin" if table == "admin.tokens" => {
            let others = ["name = \"t\"\n", "token = \"0123456789abcdef\"\n", "role = \"read\"\n"];
            let is_other = |line: &&&str| key != "sha256" || !line.starts_with("token");
            frame("[[admin.tokens]]\n", others.iter().filter(is_other).copied().collect::<String>(), ROUTE)
        }
        "admin" => {
            let beside = match key {
                "metrics_need_token" | "edit" => "token = \"0123456789abcdef\"\n",
                "environment_color" => "environment = \"test\"\n",
                _ => "",
            };
            frame("[admin]\n", beside, ROUTE)
        }
        "store" => {
            let secure = matches!(key, "ca" | "client_cert" | "client_key");
            let beside = match key {
                _ if secure => "url = \"rediss://127.0.0.1:9\"\n",
                "username" => "url = \"redis://127.0.0.1:9\"\npassword = \"p\"\n",
                "password" => "url = \"redis://127.0.0.1:9\"\n",
                _ => "",
            };
            frame("[store]\n", beside, ROUTE)
        }
        "jwt" if matches!(key, "jwks" | "ca" | "max_stale") => {
            let issuer = if key == "jwks" { "" } else { "issuer = \"https://id.test\"\n" };
            frame("[jwt]\n", issuer, ROUTE)
        }
        "jwt" => frame("[jwt]\n", format!("{KEY}algorithms = [\"HS256\"]\n"), ROUTE),
        "upstream" => frame_of_upstream(table, key),
        "decide" => frame(
            "[decide.l]\n",
            if key == "limits" { "" } else { "limits = [\"l\"]\n" },
            format!("{PLAIN}[[listener]]\naddress = \"127.0.0.1:8443\"\nserve = \"decide\"\n{LIMIT}{ROUTE}"),
        ),
        "rls" => {
            let listener = "[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n[[listener]]\naddress = \"127.0.0.1:8443\"\nserve = \"grpc\"\n";
            let beside = "domain = \"d\"\ndescriptor = { a = \"*\" }\nlimits = []\n";
            let others = match key {
                "limits" => "[limit.l]\nrate = \"10/s\"\nkey = \"all\"\n",
                "replaces" => {
                    "[[rls]]\ndomain = \"d\"\ndescriptor = { b = \"*\" }\nlimits = [\"a\", \"b\"]\n[limit.a]\nrate = \"1/s\"\nkey = \"all\"\n\
                     [limit.b]\nrate = \"1/s\"\nkey = \"all\"\n"
                }
                _ => "",
            };
            frame("[[rls]]\n", beside, format!("{listener}{ROUTE}{others}"))
        }
        "set" => frame("[set.s]\n", if key == "file" { "" } else { "values = [\"a\"]\n" }, ROUTE),
        "limit" => frame_of_limit(table, key),
        "route" => frame_of_route(entry),
        section => frame(format!("[{section}]\n"), "", ROUTE),
    }
}

fn frame_of_server(table: &str) -> Frame {
    let beside = match table {
        "server.redirect_http" => "listen = \"127.0.0.1:8081\"\n",
        "server.spans" => "to = \"http://127.0.0.1:9\"\n",
        "server.cors" => "origins = [\"https://a.test\"]\n",
        _ => "",
    };
    frame(format!("[{table}]\n"), beside, ROUTE)
}

fn frame_of_listener(table: &str, key: &str) -> Frame {
    let after = match key {
        "acme" => format!("[acme]\nterms_agreed = true\n{PLAIN}{ROUTE}"),
        _ => format!("{PLAIN}{ROUTE}"),
    };
    match table {
        "listener" => {
            let tls = if matches!(key, "hsts" | "http3") { TLS } else { "" };
            frame("[[listener]]\n", format!("address = \"127.0.0.1:8443\"\n{tls}"), after)
        }
        "listener.hsts" => {
            let beside = match key {
                "preload" => "max_age = \"2y\"\ninclude_subdomains = true\n",
                _ => "max_age = \"1d\"\n",
            };
            frame(format!("{LISTENER}{TLS}[listener.hsts]\n"), beside, after)
        }
        "listener.http3" => frame(format!("{LISTENER}{TLS}[listener.http3]\n"), "", after),
        "listener.tls" => {
            let client_ca = if key == "client_auth" { "client_ca = \"conf/tls/sample-ca.pem\"\n" } else { "" };
            frame(format!("{LISTENER}[listener.tls]\n"), format!("{CERTIFICATES}{client_ca}"), after)
        }
        "listener.tls.certificates" => frame(
            format!("{LISTENER}[[listener.tls.certificates]]\n"),
            "cert = \"conf/tls/sample.pem\"\nkey = \"conf/tls/sample.key\"\n",
            after,
        ),
        _ => frame(format!("{LISTENER}[{table}]\n"), "", after),
    }
}

fn frame_of_upstream(table: &str, key: &str) -> Frame {
    let more = match key {
        "hash_on" => "balance = \"consistent_hash\"\n",
        "spread_above" => "balance = \"consistent_hash\"\nhash_on = \"ip\"\n",
        "patience" => "max_in_flight = 5\nnewest_first_after = \"100ms\"\n",
        "max_waiting" | "waiting_timeout" | "newest_first_after" => "max_in_flight = 5\n",
        _ => "",
    };
    match table {
        "upstream" => {
            let servers = if key == "tls" { SECURE_SERVERS } else { SERVERS };
            frame("[upstream.u]\n", format!("{servers}{more}"), UPSTREAM_ROUTE)
        }
        // A server of weight 0 needs another.
        "upstream.servers" => frame(
            "[[upstream.u.servers]]\nurl = \"http://127.0.0.1:8\"\n[[upstream.u.servers]]\n",
            "url = \"http://127.0.0.1:9\"\n",
            UPSTREAM_ROUTE,
        ),
        "upstream.tls" => frame(format!("[upstream.u]\n{SECURE_SERVERS}[upstream.u.tls]\n"), "", UPSTREAM_ROUTE),
        "upstream.breaker" => {
            frame(format!("[upstream.u]\n{SERVERS}[upstream.u.breaker]\n"), breaker_with(key), UPSTREAM_ROUTE)
        }
        inner => {
            let name = inner.trim_start_matches("upstream.");
            frame(format!("[upstream.u]\n{SERVERS}[upstream.u.{name}]\n"), "", UPSTREAM_ROUTE)
        }
    }
}

/// The conditions that a breaker needs to have `key`.
fn breaker_with(key: &str) -> &'static str {
    if key == "slow_ratio" { "slow = \"1s\"\n" } else { "error_ratio = 0.5\n" }
}

/// The options that a limit needs to have `key`, which may belong to one algorithm.
fn limit_with(key: &str) -> String {
    let key = if key == "max_delayed" { "queue" } else { key };
    let spec = SPECS.iter().find(|spec| spec.has_param(key)).unwrap_or(&SPECS[0]);
    let leading = match spec.leading.name {
        "rate" if key == "week_start" => "rate = \"10/week\"\n",
        "rate" if key == "resets_on" => "rate = \"10/month\"\n",
        "rate" => "rate = \"10/day\"\n",
        _ => "in_flight = 5\n",
    };
    format!("algorithm = \"{}\"\n{leading}", spec.name)
}

fn frame_of_limit(table: &str, key: &str) -> Frame {
    let after = format!("{LIMIT_ROUTE}[store]\nmax_keys = 1000000000\n");
    let limit = limit_with(key);
    match table {
        "limit" => {
            let more = match key {
                "after" | "candidate_of" => {
                    "[limit.first]\nrate = \"10/s\"\n[[route]]\npath = \"/f\"\nlimits = [\"l\", \"first\"]\nrespond = {}\n"
                }
                _ => "",
            };
            let beside = match key {
                "cost" | "costs" => "rate = \"10/s\"\nburst = 1000000000\n".to_owned(),
                "algorithm" => "rate = \"10/day\"\n".to_owned(),
                "distinct" => "algorithm = \"sliding_log\"\nrate = \"10/day\"\n".to_owned(),
                "rate_within" => "rate = \"header:x-rate\"\nrate_within = [\"10/day\", \"20/day\"]\n".to_owned(),
                "rates" => "rate = \"header:x-plan\"\nrates = { free = \"10/day\" }\n".to_owned(),
                "weights" | "prices" | "ask_usage" => format!("{limit}settle = \"openai\"\n"),
                _ => limit,
            };
            let after = match key {
                "after" | "candidate_of" => more.to_owned(),
                "over" => format!("[upstream.name]\n{SERVERS}[[route]]\nupstream = \"name\"\nlimits = [\"l\"]\n"),
                _ => after,
            };
            frame("[limit.l]\n", beside, after)
        }
        "limit.ban" => {
            let beside = "after = 5\nwithin = \"1m\"\nfor = \"1s\"\n";
            let beside = if key == "for" { beside.to_owned() + "at_most = \"90d\"\n" } else { beside.to_owned() };
            frame(format!("[limit.l]\n{limit}[limit.l.ban]\n"), beside, after)
        }
        "limit.lease" => frame("[limit.l]\nrate = \"1000/s\"\nburst = 2001\n[limit.l.lease]\n", "", after),
        "limit.when" if key == "descriptor" => frame(
            "[limit.l]\nrate = \"10/s\"\nkey = \"all\"\n[limit.l.when]\n",
            "",
            format!(
                "{PLAIN}[[listener]]\naddress = \"127.0.0.1:8443\"\nserve = \"grpc\"\n[[rls]]\ndomain = \"d\"\n\
                 descriptor = {{ plan = \"*\" }}\nlimits = [\"l\"]\n{ROUTE}"
            ),
        ),
        "limit.when" => {
            let more = format!(
                "{JWT}[geo]\nfile = \"conf/countries.mmdb\"\n{LISTENER}tls = {{ client_ca = \"conf/tls/sample-ca.pem\", {} }}\n",
                CERTIFICATES.trim_end()
            );
            let route = LIMIT_ROUTE.trim_end().to_owned() + "\nauth = { basic = \"conf/users.htpasswd\" }\n";
            let beside = if key == "zone" { "days = \"mon\"\n" } else { "" };
            frame("[limit.l]\nrate = \"10/s\"\n[limit.l.when]\n", beside, route + &more)
        }
        "limit.key" => {
            let beside = "source = \"header:x-user\"\nnormalize = [\"trim\"]\n";
            Frame { inline: true, ..frame("[limit.l]\nrate = \"10/s\"\n", beside, after) }
        }
        "limit.fair" => {
            let beside = "key = \"header:x-tenant\"\n";
            frame(format!("[limit.l]\nrate = \"1000000/s\"\nburst = {}\n[limit.l.fair]\n", 1_i64 << 34), beside, after)
        }
        "limit.cost" => {
            let beside = if key == "graphql" { "" } else { "reserve = {}\n" };
            frame(format!("[limit.l]\n{limit}[limit.l.cost]\n"), beside, after)
        }
        "limit.cost.graphql" => frame(format!("{LARGE_LIMIT}[limit.l.cost.graphql]\n"), "", after),
        "limit.cost.reserve" => frame(format!("[limit.l]\n{limit}[limit.l.cost.reserve]\n"), "", after),
        "limit.weights" => {
            frame(format!("[limit.l]\n{limit}settle = \"openai\"\n[limit.l.weights.default]\n"), "", after)
        }
        "limit.overrides" if key == "file" => {
            frame(format!("[limit.l]\n{limit}[[limit.l.overrides]]\n"), "file = \"tests/config/rows.txt\"\n", after)
        }
        "limit.overrides" => {
            let amount = if key == "in_flight" { "" } else { "rate = \"5/s\"\n" };
            let amount = if ["key", "until", "note"].contains(&key) { "rate = \"5/s\"\n" } else { amount };
            let amount = if key == "resets_on" { "rate = \"5/month\"\n" } else { amount };
            let amount = if limit.contains("in_flight") { "in_flight = 3\n" } else { amount };
            frame(format!("[limit.l]\n{limit}[[limit.l.overrides]]\n"), format!("key = \"192.0.2.7\"\n{amount}"), after)
        }
        _ => {
            let secret = "[admin]\nkeys_secret = \"0123456789abcdef0123456789abcdef\"\n";
            let beside = if key == "percent" { "percent = \"a\"\n" } else { "hash = \"0123456789abcdef\"\n" };
            Frame {
                inline: true,
                ..frame(
                    "[limit.l]\nkey = \"path\"\nrate = \"10/s\"\n[[limit.l.overrides]]\nrate = \"5/s\"\n",
                    beside,
                    after + secret,
                )
            }
        }
    }
}

fn frame_of_route(entry: &OptionEntry) -> Frame {
    let key = entry.option.name;
    let inner = entry.key.strip_suffix(&format!(".{key}"));
    match (inner, key) {
        (None, "upstream" | "redirect" | "respond") => frame(
            "[[route]]\n",
            "respond = { status = 200 }\n"
                .replace("respond", key)
                .replace("upstream = { status = 200 }", "upstream = \"echo:\"")
                .replace("redirect = { status = 200 }", "redirect = \"https://example.com/\""),
            "",
        ),
        (None, "files" | "try" | "cache_control") => frame("[[route]]\n", "files = \"conf\"\n", ""),
        (None, "mirror" | "breaker") => frame("[[route]]\n", "upstream = \"http://127.0.0.1:9\"\n", ""),
        (None, "split" | "split_by") => frame("[[route]]\n", "split = [{ upstream = \"http://127.0.0.1:9\" }]\n", ""),
        (None, _) => frame("[[route]]\n", "respond = { status = 200 }\n", "[limit.l]\nrate = \"10/s\"\n"),
        (Some("auth"), _) => {
            let limit = if key == "limits" { LIMIT } else { "" };
            let (method, more) = match key {
                "jwt" | "user_claim" => ("jwt = true\n", ""),
                "forward" | "request_headers" | "copy_headers" | "timeout" | "on_error" => {
                    ("forward = \"http://127.0.0.1:9/x\"\n", "")
                }
                "user" => ("forward = \"http://127.0.0.1:9/x\"\n", "copy_headers = [\"remote-user\"]\n"),
                _ => ("basic = \"conf/users.htpasswd\"\n", ""),
            };
            frame("[[route]]\nupstream = \"echo:\"\n[route.auth]\n", format!("{method}{more}"), format!("{JWT}{limit}"))
        }
        (Some("redirect"), _) => {
            frame("[[route]]\nhost = \"x.example.com\"\n[route.redirect]\n", "to = \"https://example.com/\"\n", "")
        }
        (Some("breaker"), _) => {
            frame("[[route]]\nupstream = \"http://127.0.0.1:9\"\n[route.breaker]\n", breaker_with(key), "")
        }
        (Some("mirror"), _) => frame(
            "[[route]]\nupstream = \"http://127.0.0.1:9\"\n[route.mirror]\n",
            "upstream = \"http://127.0.0.1:8\"\n",
            "",
        ),
        (Some("split"), _) => frame("[[route]]\n[[route.split]]\n", "upstream = \"http://127.0.0.1:9\"\n", ""),
        (Some("respond"), _) => frame("[[route]]\n[route.respond]\n", "", ""),
        (Some("limits"), _) => frame(format!("{ROUTE}[[route.limits]]\n"), "name = \"l\"\n", LARGE_LIMIT),
        (Some("auth.limits"), _) => {
            let auth = "[route.auth]\nbasic = \"conf/users.htpasswd\"\n[[route.auth.limits]]\n";
            frame(format!("{ROUTE}{auth}"), "name = \"l\"\n", LARGE_LIMIT)
        }
        (Some("refuse"), "content_type") => frame(format!("{ROUTE}[route.refuse]\n"), "body = \"no\"\n", ""),
        (Some(inner), _) => frame(format!("{ROUTE}[route.{inner}]\n"), "", ""),
    }
}
