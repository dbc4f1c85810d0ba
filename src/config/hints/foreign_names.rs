//! Keys of the configs of nginx, ingress-nginx, Traefik, Caddy, Envoy, Kong and HAProxy, each with its remedy. Called by
//! `hints` for unknown keys. A key that simply is another name of one of our options is in the row of that option
//! (`called`).

use crate::config::hints::LIMIT_HELP;
use crate::config::hints::foreign_words::fold_name;
use crate::config::schema::{Schema, acme, jwt, limit, listener, root, route, server, upstream};

/// Keys of other programs that all mean the same, with a remedy for one of our sections.
struct ForeignName {
    of: &'static Schema,
    /// The names, as [`fold_name`] returns them, with spaces between them.
    names: &'static str,
    remedy: Remedy,
}

#[derive(Clone, Copy)]
enum Remedy {
    /// Options of the same section.
    Write(&'static str),
    /// Options of another section.
    WriteIn(&'static str, &'static str),
    /// A text for keys that no option replaces.
    Explain(&'static str),
}

use Remedy::{Explain, Write, WriteIn};

/// Modules and directives for countries of addresses.
const GEOIP: &str = "geoip geoip2 geoipcountry geoip2country geoipcity maxmind maxminddb maxminddatabase \
                     maxmindgeolocation mmdb geoblock";
const LIMIT: Remedy = Explain(LIMIT_HELP);
const TLS: Remedy = WriteIn(
    "a listener",
    "[[listener]]\naddress = \"0.0.0.0:443\"\ntls = { certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }] }",
);
const ACME: Remedy = WriteIn(
    "[acme] and a listener",
    "[acme]\nterms_agreed = true\ncontact = [\"mailto:admin@example.com\"]\n\n[[listener]]\naddress = \
     \"0.0.0.0:443\"\ntls = { acme = [\"www.example.com\"] }",
);
const ROUTE: Remedy = WriteIn("a route", "[[route]]\nhost = \"www.example.com\"\npath = \"/\"\nupstream = \"app\"");
const UPSTREAM: Remedy = WriteIn("[upstream.app]", "servers = [\"http://127.0.0.1:3000\"]");
const LISTEN: Remedy = WriteIn("[server]", "listen = [\"0.0.0.0:80\"]");
const REDIRECT_HTTP: Remedy = WriteIn("[server]", "redirect_http = \"0.0.0.0:80\"");
const HTTPS_SERVER: Remedy = WriteIn("[upstream.app]", "servers = [\"https://app.example.com\"]");
const KEPT_HOST: Remedy = Explain(
    "leave it out for true: servers get the `Host` of the client. For false, write rewrite = { upstream_host = true } in \
     the route",
);
const COUNTRIES: Remedy = Explain(
    "write [geo] file = \"countries.mmdb\"; then `country` is a key and a condition of limits, and {country} is a \
     placeholder in headers",
);
const TCP_KEEPALIVE: Remedy = Explain(
    "leave it out: the gateway probes idle connections and tunnels by itself. `keepalive_timeout` of [server] and `max_idle` of \
     an upstream bound how long and how many are kept",
);
const NOT_NEEDED: Remedy = Explain("leave it out: the gateway needs no such option");
const NO_CACHE: Remedy = Explain("leave it out: the gateway does not cache responses");

const FOREIGN_NAMES: &[ForeignName] = &[
    // Sections.
    row(
        &root::TABLE,
        "http https routers location vhost virtualhost virtualhosts site sites frontend frontends ingress \
         httproute service services proxy",
        ROUTE,
    ),
    row(&root::TABLE, "clusters cluster backends loadbalancers endpoints targets", UPSTREAM),
    row(
        &root::TABLE,
        "middlewares middleware plugins plugin ratelimits limitreq limitreqzone sticktable descriptors",
        LIMIT,
    ),
    row(&root::TABLE, "entrypoints bind ports listeners", LISTEN),
    row(&root::TABLE, "certificatesresolvers letsencrypt certbot", ACME),
    row(&root::TABLE, "tls ssl certificates", TLS),
    row(
        &root::TABLE,
        "accesslog log logging logs",
        WriteIn("[server]", "access_log = { format = \"json\", to = \"access.log\" }"),
    ),
    row(&root::TABLE, "redis storage database", WriteIn("[store]", "url = \"redis://127.0.0.1:6379\"")),
    row(
        &root::TABLE,
        "metrics prometheus dashboard api stats status",
        WriteIn("[admin]", "listen = \"127.0.0.1:9900\""),
    ),
    row(&root::TABLE, "consumers users keys", WriteIn("[set.customers]", "values = [\"acme\", \"globex\"]")),
    row(
        &root::TABLE,
        "tracing opentelemetry otlp",
        WriteIn(
            "[server]",
            "spans = { to = \"http://127.0.0.1:4318\" \
     }",
        ),
    ),
    row(
        &root::TABLE,
        "global defaults default settings config main events",
        Explain("options of the whole gateway are in [server]; routes inherit some of them"),
    ),
    row(
        &root::TABLE,
        "providers experimental staticresources dynamicresources",
        Explain("leave it out: the gateway reads this file, and others that `include` lists"),
    ),
    row(&root::TABLE, "cache proxycache", NO_CACHE),
    row(&root::TABLE, GEOIP, COUNTRIES),
    row(&server::TABLE, GEOIP, COUNTRIES),
    row(&route::TABLE, GEOIP, COUNTRIES),
    // Certificates and tokens.
    row(
        &acme::TABLE,
        "email emails",
        WriteIn("[acme]", "terms_agreed = true\ncontact = [\"mailto:admin@example.com\"]"),
    ),
    row(&acme::TABLE, "domains domain names subjects servername hosts", ACME),
    row(
        &acme::TABLE,
        "dnsprovider provider resolvers acmedns",
        Explain(
            "write `dns` for a name server with dynamic updates, or `dns_program` for a script that calls the API of your \
             provider",
        ),
    ),
    row(
        &jwt::TABLE,
        "leeway clockskew clockskewseconds",
        Explain("leave it out: the clock of the issuer may differ by 60 s"),
    ),
    // Routes: paths and redirects.
    row(
        &route::TABLE,
        "stripprefix strippath stripprefixregex handlepath uristripprefix",
        Write("rewrite = { strip_prefix = \"/api\" }"),
    ),
    row(&route::TABLE, "addprefix approot", Write("rewrite = { add_prefix = \"/api\" }")),
    row(
        &route::TABLE,
        "rewritetarget replacepath replacepathregex pathregex regexrewrite rewriteregex urirewrite pathrewrite",
        Write("path = \"~ ^/app/(.*)$\"\nrewrite = { path = \"/{1}\" }"),
    ),
    row(
        &route::TABLE,
        "prefixrewrite replaceprefixmatch",
        Write("path = \"/app/\"\nrewrite = { strip_prefix = \"/app\", add_prefix = \"/new\" }"),
    ),
    row(
        &route::TABLE,
        "upstreamvhost hostrewrite hostrewriteliteral",
        Write("rewrite = { host = \"app.example.com\" }"),
    ),
    row(&route::TABLE, "autohostrewrite", Write("rewrite = { upstream_host = true }")),
    row(&route::TABLE, "passhostheader preservehost", KEPT_HOST),
    row(
        &route::TABLE,
        "redirectscheme sslredirect forcesslredirect httpsredirect httpsredirectstatuscode requiretls",
        REDIRECT_HTTP,
    ),
    row(
        &route::TABLE,
        "return redir redirectregex permanentredirect temporalredirect schemeredirect hostredirect",
        Explain(
            "write redirect = { to = \"https://www.example.com{path}\", status = 301 }, or respond = { status = \
             404, body = \"...\" }",
        ),
    ),
    row(
        &route::TABLE,
        "directresponse requesttermination",
        Write(
            "respond = { status = 503, body = \"back soon\" \
     }",
        ),
    ),
    row(
        &route::TABLE,
        "rule match matcher virtualhosts prefix routerules acl pathprefix",
        Write("host = \"www.example.com\"\npath = \"/api/\""),
    ),
    row(&route::TABLE, "allowmethods limitexcept verbs", Write("methods = [\"GET\", \"HEAD\"]")),
    row(&route::TABLE, "entrypoints protocols port listen snis", LISTEN),
    row(
        &route::TABLE,
        "regexpriority order",
        Explain("leave it out: the longest path that matches serves the request"),
    ),
    // Routes: servers.
    row(
        &route::TABLE,
        "cluster usebackend defaultbackend loadbalancer servers balance healthcheck",
        Write("upstream = \"app\""),
    ),
    row(
        &route::TABLE,
        "retry retries retrypolicy numretries proxynextupstream",
        WriteIn("[upstream.app]", "retry = { attempts = 2 }"),
    ),
    row(
        &route::TABLE,
        "grpcpass backendprotocol",
        WriteIn(
            "[upstream.app]",
            "servers = \
     [\"h2c://127.0.0.1:50051\"]",
        ),
    ),
    row(
        &route::TABLE,
        "fastcgipass phpfastcgi uwsgipass scgipass",
        Explain(
            "the gateway speaks HTTP to servers: run a web server such as Caddy or nginx in front of the application",
        ),
    ),
    row(&route::TABLE, "proxysslverify proxysslname insecureskipverify serverstransport", HTTPS_SERVER),
    row(
        &route::TABLE,
        "canary canaryweight weighted trafficsplit",
        Write("split = [{ upstream = \"app\", weight = 95 }, { upstream = \"next\", weight = 5 }]"),
    ),
    row(
        &route::TABLE,
        "affinity sessioncookiename sticky hashpolicy upstreamhashby",
        Write("split_by = \"cookie:session\""),
    ),
    row(
        &route::TABLE,
        "websocket websockets upgrade upgradeconfigs usewebsocket proxyhttpversion",
        Explain("leave it out: the gateway forwards WebSockets and other upgrades"),
    ),
    row(
        &route::TABLE,
        "buffering proxybuffering proxyrequestbuffering flushinterval requestbuffers responsebuffers",
        Explain("leave it out: the gateway streams bodies in both directions. `max_body` bounds their size"),
    ),
    row(
        &route::TABLE,
        "requestbody maxrequestbodybytes proxybodysize allowedpayloadsize requestsizelimiting",
        Write("max_body = \"10MiB\""),
    ),
    row(&route::TABLE, "proxycache proxycachevalid cache", NO_CACHE),
    row(
        &route::TABLE,
        "index autoindex browse fancyindex dirlisting",
        Explain("leave it out: `files` serves the index.html of a folder, and lists no folder"),
    ),
    // Routes: who may use them, and how much.
    row(
        &route::TABLE,
        "average period limitrps limitrpm limitburstmultiplier localratelimit globalratelimit ratelimits zone \
         limitreqzone",
        LIMIT,
    ),
    row(&route::TABLE, "inflightreq limitconnections connectionlimit maxconn", Write("max_in_flight = 50")),
    row(
        &route::TABLE,
        "ipwhitelist ipallowlist whitelistsourcerange allowlistsourcerange iprestriction sourcerange",
        WriteIn(
            "a limit that refuses all others (`allow` only exempts from limits)",
            "[set.office]\nvalues = [\"203.0.113.0/24\"]\n\n[limit.office-only]\nrate = \"1/s\"\nkey = \
             \"all\"\nwhen = { client = \"!set:office\" }\noverrides = [{ key = \"*\", rate = 0 }]\nrefuse = { \
              status = 403 }",
        ),
    ),
    row(
        &route::TABLE,
        "denylistsourcerange blacklist blocklist ipdenylist ipblocklist",
        Write("deny = [\"192.0.2.0/24\"]"),
    ),
    row(&route::TABLE, "circuitbreaker circuitbreakers", Write("breaker = { errors = 20, slow = \"5s\" }")),
    row(
        &route::TABLE,
        "errors customerrors customhttperrors errorpage handleerrors errorfile proxyintercepterrors",
        Write("error_pages = { 404 = \"404.html\", \"5xx\" = \"5xx.html\" }\nintercept = true"),
    ),
    row(
        &route::TABLE,
        "authtlssecret clientauth sslverifyclient passtlsclientcert tls sslcertificate certresolver",
        TLS,
    ),
    row(
        &route::TABLE,
        "keyauth apikey apikeys",
        Explain(
            "see the page \"API keys\" of the manual: a limit with key = \"header:x-api-key\" and a file of \
         keys",
        ),
    ),
    // Routes: headers.
    row(
        &route::TABLE,
        "headers requesttransformer customrequestheaders requestheaderstoadd setrequestheader",
        Write("request_headers = { set = { x-team = \"web\" } }"),
    ),
    row(
        &route::TABLE,
        "responsetransformer proxyhideheader responseheaderstoremove hideheaders stsseconds framedeny \
         contentsecuritypolicy configurationsnippet",
        Write("response_headers = { set = { x-frame-options = \"DENY\" }, remove = [\"server\"] }"),
    ),
    row(
        &route::request_headers::TABLE,
        "add append",
        Explain("write `set`: the server gets the header once, with this value, and not from the client"),
    ),
    row(
        &route::response_headers::TABLE,
        "always",
        Explain("write on = \"all\": the gateway's own responses then have the headers, too"),
    ),
    // Server.
    row(&server::TABLE, "forwardedheaders trustedips trustedproxyranges", Write("trusted_proxies = [\"10.0.0.0/8\"]")),
    row(&server::TABLE, "sokeepalive tcpkeepalive tcpkeepalives", TCP_KEEPALIVE),
    row(&listener::TABLE, "sokeepalive tcpkeepalive tcpkeepalives", TCP_KEEPALIVE),
    row(&upstream::TABLE, "sokeepalive tcpkeepalive tcpkeepalives proxysocketkeepalive", TCP_KEEPALIVE),
    row(&server::TABLE, "httpport httpsport entrypoints ports listenaddress", LISTEN),
    row(
        &server::TABLE,
        "logformat accesslogformat accesslogpath log",
        Write("access_log = { format = \"combined\", to = \"access.log\" }"),
    ),
    row(
        &server::TABLE,
        "errorlog loglevel debug verbose",
        Explain("start the gateway with --log info (or debug), or set SLUICEGATE_LOG"),
    ),
    row(&server::TABLE, "acmeca email autohttps acme letsencrypt acmedns", ACME),
    row(
        &server::TABLE,
        "ondemandtls ondemand",
        Explain(
            "list the names in `acme` of a listener: the gateway orders no certificate because a client asks for one",
        ),
    ),
    row(
        &server::TABLE,
        "sslcertificate sslcertificatekey tls tlscert ssl sslprotocols sslciphers sslverifyclient \
         sslclientcertificate",
        TLS,
    ),
    row(&server::TABLE, "sslredirect httpsredirect forcehttps", REDIRECT_HTTP),
    row(
        &server::TABLE,
        "largeclientheaderbuffers clientheaderbuffersize maxheadersize maxrequestheaderskb tunebufsize",
        Write("max_header_bytes = \"64KiB\""),
    ),
    row(
        &server::TABLE,
        "servertokens serverheader hideserver hidetokens",
        Explain(
            "leave it out: the gateway adds no `Server` header. To remove that of a server, write \
             response_headers = { remove = [\"server\"] } in a route",
        ),
    ),
    row(
        &server::TABLE,
        "sendfile tcpnopush tcpnodelay daemon user group pid pidfile acceptmutex multiaccept workerrlimitnofile \
         keepaliverequests useepoll",
        NOT_NEEDED,
    ),
    row(
        &server::TABLE,
        "metrics stats stubstatus status api dashboard",
        WriteIn("[admin]", "listen = \"127.0.0.1:9900\""),
    ),
    row(&server::TABLE, "location locations servername hosts root index", ROUTE),
    row(&server::TABLE, "tracing opentelemetry", Write("spans = { to = \"http://127.0.0.1:4318\" }")),
    row(&server::TABLE, "http3 quic altsvc", WriteIn("a listener with `tls`", "http3 = true")),
    // Listeners.
    row(
        &listener::TABLE,
        "ssl sslcertificate sslcertificatekey cert key certificate",
        Write("tls = { certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }] }"),
    ),
    row(&listener::TABLE, "servername locations routes location", ROUTE),
    row(&listener::TABLE, "quic altsvc", Write("http3 = true")),
    row(
        &listener::TABLE,
        "sslverifyclient sslclientcertificate clientauth mtls",
        Write(
            "tls = { certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }], client_ca = \
         \"clients-ca.pem\" }",
        ),
    ),
    // Upstreams.
    row(
        &upstream::TABLE,
        "service dnssrv dnssrvrecord srv discovery",
        Write("servers = [\"srv:_http._tcp.app.example\"]"),
    ),
    row(
        &upstream::TABLE,
        "hostrewrite hostrewriteliteral upstreamvhost",
        WriteIn("the route", "rewrite = { host = \"app.example.com\" }"),
    ),
    row(&upstream::TABLE, "passhostheader preservehost", KEPT_HOST),
    row(
        &upstream::TABLE,
        "loadbalancer url urls host hosts endpoints addresses loadassignment to",
        Write("servers = [\"http://127.0.0.1:3000\"]"),
    ),
    row(
        &upstream::TABLE,
        "backup fallback weight",
        Write("servers = [{ url = \"http://127.0.0.1:3000\", weight = 2 }]"),
    ),
    row(
        &upstream::TABLE,
        "connecttimeoutms proxyconnecttimeout dialtimeout connecttimeout",
        WriteIn("the route or [server]", "connect_timeout = \"2s\""),
    ),
    row(
        &upstream::TABLE,
        "proxyreadtimeout timeout readtimeout responsetimeout",
        WriteIn("the route or [server]", "response_timeout = \"30s\""),
    ),
    row(
        &upstream::TABLE,
        "passivehealthcheck unhealthystatus faildur maxfail failduration",
        Write("eject = { consecutive_errors = 5, for = \"30s\" }"),
    ),
    row(
        &upstream::TABLE,
        "activehealthcheck healthinterval healthpath check httpchk",
        Write("health = { path = \"/healthz\" }"),
    ),
    row(
        &upstream::TABLE,
        "hash hashpolicy hashon cookie stickycookie sessioncookie upstreamhashby iphash",
        Write("balance = \"consistent_hash\"\nhash_on = \"ip\""),
    ),
    row(
        &upstream::TABLE,
        "ssl sslverify proxysslverify insecureskipverify tlsinsecureskipverify transportsocket",
        Write("servers = [\"https://app.example.com\"]\ntls = { ca = \"ca.pem\" }"),
    ),
    // Limits.
    row(
        &limit::TABLE,
        "requestsperunit unit second minute hour day events maxtokens tokensperfill fillinterval period window \
         limit count timewindow interval",
        Write("rate = \"100/min\""),
    ),
    row(
        &limit::TABLE,
        "sourcecriterion ipstrategy requestheadername remoteaddress identifier descriptors actions",
        Write("key = \"ip\""),
    ),
    row(
        &limit::TABLE,
        "policy redis redishost storage faulttolerant",
        WriteIn("[store]", "url = \"redis://127.0.0.1:6379\""),
    ),
    row(&limit::TABLE, "dryrun shadowmode limitreqdryrun percentenforced", Write("mode = \"shadow\"")),
    row(
        &limit::TABLE,
        "statuscode limitreqstatus rejectedcode errorcode errormessage rejectedmsg",
        Write("refuse = { status = 429 }"),
    ),
];

const fn row(of: &'static Schema, names: &'static str, remedy: Remedy) -> ForeignName {
    ForeignName { of, names, remedy }
}

/// Returns what to write in `schema` instead of a key of another program.
pub fn describe_foreign_key(schema: &Schema, key: &str) -> Option<String> {
    let name = fold_name(key);
    let row = FOREIGN_NAMES
        .iter()
        .find(|row| row.of.name == schema.name && row.names.split(' ').any(|known| known == name))?;
    Some(match row.remedy {
        Write(text) => format!("write {text}"),
        WriteIn(place, text) if place == schema.title => format!("write {text}"),
        WriteIn(place, text) => format!("write in {place}:\n\n{text}"),
        Explain(text) => text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    /// A config with this text in a section.
    fn config(section: &str, text: &str) -> String {
        let base = "[upstream.app]\nservers = [\"http://127.0.0.1:1\"]\n[upstream.next]\nservers = \
             [\"http://127.0.0.1:2\"]\n";
        let route =
            "[[route]]\npath = \"/base\"\nupstream = \"app\"\nlimits = [\"base\"]\n[limit.base]\nrate = \"1/s\"\n";
        let listener = "[[listener]]\naddress = \"127.0.0.1:1\"\n";
        match section {
            "server" => format!("[server]\n{text}\n{base}{route}"),
            "route" => {
                let has_action = ["upstream =", "respond =", "split ="].iter().any(|action| text.contains(action));
                let action = match (has_action, text.contains("split_by")) {
                    (true, _) => "",
                    (false, true) => {
                        "split = [{ upstream = \"app\", weight = 1 }, { upstream = \"next\", weight = 1 }]\n"
                    }
                    (false, false) => "upstream = \"app\"\n",
                };
                format!("{base}{route}[[route]]\n{action}{text}\n")
            }
            "listener" => {
                let tls = if text.contains("tls =") { "" } else { "tls = { internal = true }\n" };
                format!("{base}{route}{listener}{tls}{text}\n")
            }
            "upstream" => {
                let servers = if text.contains("servers =") { "" } else { "servers = [\"http://127.0.0.1:1\"]\n" };
                format!("[upstream.app]\n{servers}{text}\n[[route]]\nupstream = \"app\"\n")
            }
            "limit" => {
                let rate = if text.contains("rate =") { "" } else { "rate = \"1/s\"\n" };
                format!("{base}[limit.base]\n{rate}{text}\n[[route]]\nupstream = \"app\"\nlimits = [\"base\"]\n")
            }
            section if section.starts_with('[') && !text.starts_with('[') => {
                format!("{base}{route}{section}\n{text}\n")
            }
            _ => format!("{base}{route}{text}\n"),
        }
    }

    /// Files that an example names do not exist; everything else must be right.
    fn mistakes(text: &str) -> Vec<String> {
        let report = load_text("example", text).err().map(|report| report.to_string()).unwrap_or_default();
        let errors = report.lines().filter(|line| line.starts_with("error: "));
        errors
            .filter(|line| !line.contains("cannot be read") && !line.contains("cannot read"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn every_remedy_is_a_config() {
        for row in FOREIGN_NAMES {
            let (section, text) = match row.remedy {
                Write(text) => (row.of.name, text),
                WriteIn("the route" | "the route or [server]", text) => ("route", text),
                WriteIn("a listener with `tls`", _) | Explain(_) => continue,
                WriteIn("[upstream.app]", text) => ("upstream", text),
                WriteIn("[server]", text) if text.starts_with("redirect_http") => continue,
                WriteIn(place, text) => (place, text),
            };
            let text = config(section, text);
            assert_eq!(mistakes(&text), Vec::<String>::new(), "{:?}:\n{text}", row.names);
        }
    }

    /// A row behind a name of ours, or behind another row, would never be found.
    #[test]
    fn every_name_is_found() {
        for (at, row) in FOREIGN_NAMES.iter().enumerate() {
            for name in row.names.split(' ') {
                assert_eq!(fold_name(name), name, "{name}");
                assert!(!row.of.options.iter().any(|option| option.name == name), "{name} is an option");
                let earlier = FOREIGN_NAMES[..at]
                    .iter()
                    .any(|other| other.of.name == row.of.name && other.names.split(' ').any(|known| known == name));
                assert!(!earlier, "{name} is in two rows of {}", row.of.name);
            }
        }
    }
}
