//! Sections that occur once: `[server]`, `[admin]`, `[store]`, `[headers]`, with `[[listener]]` and `[acme]`. Called
//! by `compile`.
//!
//! Output: [`ServerSettings`](crate::config::ServerSettings), listeners, store settings and the defaults of routes.
//! `listener` compiles addresses and TLS, `hsts` their Strict-Transport-Security, `http3` their HTTP/3, `acme` certificate orders, `internal`
//! development certificates, `client_address` how clients are found, `access_log` and `spans` their targets, `keys` how keys are shown,
//! `tokens` the tokens of the admin listener, `overload` when the process refuses requests.
//!
//! To add a server option, read it here with its default.

pub(crate) mod access_log;
pub(crate) mod acme;
mod client_address;
mod dns_publisher;
mod hsts;
mod http3;
pub(crate) mod internal;
pub(crate) mod keys;
pub(crate) mod listener;
mod overload;
pub(crate) mod spans;
mod tokens;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::compile::compress::{CompressOption, compile_compress};
use crate::config::compile::cors::{CorsOption, read_cors};
use crate::config::compile::pages::{PageFiles, compile_error_pages};
use crate::config::compile::server::client_address::compile_client_address;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::{At, Section, find_choice};
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{admin, headers, server, store};
use crate::config::source::PrivateFile;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::config::{
    Admin, AdminContact, EnvironmentColor, Hints, ListenerSettings, ServerSettings, Strictness, values,
};
use crate::limiting::store::address::Address;
use crate::limiting::store::redis_tls::{RedisTls, TlsFiles};
use crate::limiting::store::settings::{RedisUrl, StoreKind, StoreLogin, StoreSettings};
use crate::net::ListenAddr;
use crate::route::error_pages::ErrorPages;
use crate::route::{Dialect, SettingOrigin, TimeoutOrigins, Timeouts};

/// Maximum number of characters of the name of an environment.
const ENVIRONMENT_MAX: usize = 40;
/// Maximum number of DNS servers.
const RESOLVERS_MAX: usize = 8;

pub struct CompiledServer {
    pub settings: ServerSettings,
    pub listeners: Vec<Arc<ListenerSettings>>,
    pub defaults: Defaults,
}

/// Values that routes inherit.
pub struct Defaults {
    pub strictness: Strictness,
    pub max_body: u64,
    pub max_key_body: u64,
    pub max_cost_body: u64,
    pub timeouts: Timeouts,
    pub timeout_origins: TimeoutOrigins,
    pub compress: CompressOption,
    pub error_pages: Option<Arc<ErrorPages>>,
    pub cors: Option<CorsOption>,
}

pub fn compile_server(
    section: &Section,
    listeners: &[Section],
    acme: &acme::AcmeSection,
    page_files: &PageFiles,
) -> CompiledServer {
    let timeouts = Timeouts {
        body: section.get(&server::BODY_TIMEOUT),
        min_body_rate: section.get(&server::MIN_BODY_RATE),
        min_response_rate: section.get(&server::MIN_RESPONSE_RATE),
        connect: section.get(&server::CONNECT_TIMEOUT),
        response: section.get(&server::RESPONSE_TIMEOUT),
        stream: section.get(&server::STREAM_TIMEOUT),
        tunnel: section.get(&server::TUNNEL_TIMEOUT),
    };
    let timeout_origins = read_timeout_origins(section, SettingOrigin::Server, TimeoutOrigins::DEFAULT);
    let log = access_log::compile_access_log(section);
    let settings = ServerSettings {
        workers: match section.get(&server::WORKERS) {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        },
        strictness: section.get(&server::STRICTNESS),
        max_connections: section.get(&server::MAX_CONNECTIONS),
        max_connections_per_ip: match section.get(&server::MAX_CONNECTIONS_PER_IP) {
            0 => usize::MAX,
            max => max,
        },
        max_tunnels: section.get(&server::MAX_TUNNELS),
        max_headers: section.get(&server::MAX_HEADERS),
        max_header_bytes: section.get(&server::MAX_HEADER_BYTES),
        underscore_headers: section.get(&server::UNDERSCORE_HEADERS),
        header_case: section.get(&server::HEADER_CASE),
        http2: section.get(&server::HTTP2),
        max_streams: section.get(&server::MAX_STREAMS),
        max_unread: read_max_unread(section),
        stream_timeout: timeouts.stream,
        min_response_rate: timeouts.min_response_rate,
        max_delayed: section.get(&server::MAX_DELAYED),
        handshake_timeout: section.get(&server::HANDSHAKE_TIMEOUT),
        header_timeout: section.get(&server::HEADER_TIMEOUT),
        keepalive_timeout: section.get(&server::KEEPALIVE_TIMEOUT),
        half_close_timeout: section.get(&server::HALF_CLOSE_TIMEOUT),
        handover: section.parse_string(&server::HANDOVER, parse_handover).flatten(),
        shutdown_delay: section.get(&server::SHUTDOWN_DELAY),
        shutdown_timeout: section.get(&server::SHUTDOWN_TIMEOUT),
        client_address: compile_client_address(section),
        forwarded_headers: section
            .get(&server::FORWARDED_HEADERS)
            .map(|headers| headers.into_iter().collect())
            .unwrap_or_default(),
        access_log: log.settings,
        log_facts: log.facts,
        spans: spans::compile_spans(section),
        answer_request_id: section.get(&server::ANSWER_REQUEST_ID),
        error_pages: compile_error_pages(section, None, page_files),
        // Its headers depend on `[headers]`; `compile` adds it.
        cors: None,
        traceparent: section.get(&server::TRACEPARENT),
        max_compress_memory: section.get(&server::MAX_COMPRESS_MEMORY),
        overload: overload::compile_overload(section),
        hints: read_hints(section),
        resolver: read_resolver(section),
    };
    let defaults = Defaults {
        strictness: settings.strictness,
        max_body: section.get(&server::MAX_BODY),
        max_key_body: section.get(&server::MAX_KEY_BODY),
        max_cost_body: section.get(&server::MAX_COST_BODY),
        timeouts,
        timeout_origins,
        compress: compile_compress(section, &server::compress::TABLE, &CompressOption::default()),
        error_pages: settings.error_pages.clone(),
        cors: read_cors(section, None),
    };
    let listeners = listener::compile_listeners(section, listeners, settings.http2, acme);
    section.report_unknown();
    CompiledServer { settings, listeners, defaults }
}

/// The largest packet over loopback. With a smaller receive buffer, the kernel of a server waits for a timer before it
/// sends a part of a packet.
const LARGEST_PACKET: u64 = 64 * 1024;

/// Reads `max_unread`, which is 0 or at least the size of the largest packet.
fn read_max_unread(section: &Section) -> usize {
    let mut bytes: u64 = section.get(&server::MAX_UNREAD);
    if let (1..LARGEST_PACKET, Some(node)) = (bytes, section.node(&server::MAX_UNREAD)) {
        let what = "`max_unread` is smaller than the largest packet, so servers would send a part of it every 0.2 seconds; \
                    64 KiB apply instead";
        let warning = Diagnostic::new(node.place, what).with_help("set it to 0 or to at least \"64KiB\"");
        section.sources.add_warning(DiagnosticCode::SmallReceiveBuffer, warning);
        bytes = LARGEST_PACKET;
    }
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn read_resolver(section: &Section) -> Vec<SocketAddr> {
    let servers = section.read_strings(&server::RESOLVER, |text| {
        let address = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53)));
        match address {
            Ok(address) if address.port() > 0 => Ok(address),
            _ => invalid_text(
                format!("`{text}` is not the address of a DNS server"),
                "write \"10.0.0.53\" or \"10.0.0.53:53\"",
            ),
        }
    });
    match servers {
        Some(servers) if servers.len() > RESOLVERS_MAX => {
            let what = format!("more than {RESOLVERS_MAX} servers are never used");
            section
                .report_fault_at(server::RESOLVER.name, servers[RESOLVERS_MAX].place, &what, "keep the nearest")
                .unwrap_or_default()
        }
        servers => servers.into_iter().flatten().map(|at| at.value).collect(),
    }
}

/// Parses the path of the hand-over socket, which leaves room for that of the new process; `None` if empty.
fn parse_handover(text: &str) -> Result<Option<PathBuf>, TextFault> {
    const HELP: &str = "write the path of a socket in full, like \"/run/sluicegate/handover.sock\"";
    match text.len() {
        0 => Ok(None),
        _ if !text.starts_with('/') || text.contains('\0') => {
            invalid_text(format!("`{text}` is not a full path"), HELP)
        }
        1..=100 => Ok(Some(PathBuf::from(text))),
        _ => invalid_text("the path may have 100 bytes at most", "use a shorter path"),
    }
}

fn read_hints(section: &Section) -> Hints {
    match section.node(&server::HINTS) {
        None => Hints::Local,
        Some(Node { value: Value::Bool(true), .. }) => Hints::All,
        Some(Node { value: Value::Bool(false), .. }) => Hints::None,
        Some(Node { value: Value::String(text), .. }) if text.value == "local" => Hints::Local,
        Some(node) => {
            let expected = "true, false or \"local\"";
            section.report_wrong_type(server::HINTS.name, expected, node).unwrap_or(Hints::Local)
        }
    }
}

/// Returns where the timeouts of a section come from. `own`: those that it sets; `inherited`: the others.
pub fn read_timeout_origins(section: &Section, own: SettingOrigin, inherited: TimeoutOrigins) -> TimeoutOrigins {
    let origin = |option: &ConfigOption, inherited| if section.node(option).is_some() { own } else { inherited };
    TimeoutOrigins {
        body: origin(&server::BODY_TIMEOUT, inherited.body),
        connect: origin(&server::CONNECT_TIMEOUT, inherited.connect),
        response: origin(&server::RESPONSE_TIMEOUT, inherited.response),
        stream: origin(&server::STREAM_TIMEOUT, inherited.stream),
        tunnel: origin(&server::TUNNEL_TIMEOUT, inherited.tunnel),
    }
}

/// Returns the admin address of a section that may be invalid elsewhere.
pub fn read_admin_contact(section: &Section) -> Option<AdminContact> {
    let listen = match section.node(&admin::LISTEN) {
        Some(_) => section.parse_string(&admin::LISTEN, values::parse_listen)?,
        None => values::parse_listen(admin::LISTEN.default_str()).ok()?,
    };
    Some(AdminContact { listen, token: tokens::find_written_token(section) })
}

pub fn compile_admin(section: &Section, listeners: &[Arc<ListenerSettings>]) -> Option<Admin> {
    let listen = section.parse_string(&admin::LISTEN, |text| {
        let address = values::parse_listen(text)?;
        if let Some(listener) =
            listeners.iter().map(|listener| &listener.address).find(|listener| listener.conflicts_with(&address))
        {
            let what = match *listener == address {
                true => format!("`{address}` is listened on for clients already"),
                false => format!("`{address}` has the port of the listener `{listener}`"),
            };
            return invalid_text(what, "give it another port");
        }
        Ok(address)
    });
    let tokens = tokens::compile_tokens(section);
    let metrics_need_token = section.read_at::<bool>(&admin::METRICS_NEED_TOKEN).map(|found| found.value);
    let environment = read_environment(section);
    let shows_unused_series = section.get(&admin::UNUSED_SERIES);
    let edit = section.get(&admin::EDIT);
    let key_display = keys::compile_key_display(section);
    let audit = access_log::compile_audit(section);
    section.report_unknown();
    let tokens = tokens?;
    if let (Some(true), true, Some(node)) =
        (metrics_need_token, tokens.is_empty(), section.node(&admin::METRICS_NEED_TOKEN))
    {
        return section.report_fault(
            admin::METRICS_NEED_TOKEN.name,
            node,
            "no token is set",
            "set `token`, or leave this out",
        );
    }
    let is_socket = matches!(listen, Some(ListenAddr::Unix(_)));
    if edit
        && !is_socket
        && tokens.is_empty()
        && let Some(node) = section.node(&admin::EDIT)
    {
        let what = "no token is set, so every user of this machine could change the config";
        return section.report_fault(admin::EDIT.name, node, what, "set `token`, or listen on a `unix:` socket");
    }
    let default = values::parse_listen(admin::LISTEN.default_str()).ok()?;
    if section.node(&admin::LISTEN).is_none()
        && listeners.iter().any(|listener| listener.address.conflicts_with(&default))
    {
        let what = format!("[admin] listens on {default} by default, which a listener of [server] already uses");
        return section.report_missing(what, "give it another port: [admin] listen = \"127.0.0.1:9901\"");
    }
    let listen = listen.unwrap_or(default);
    // Names of routes and limits are internal, so other machines need a token for them if there is one.
    let metrics_need_token = metrics_need_token.unwrap_or(!tokens.is_empty() && !listen.is_local());
    Some(Admin { listen, tokens, metrics_need_token, edit, key_display, audit, shows_unused_series, environment })
}

/// Reads the name of the environment and its color.
fn read_environment(section: &Section) -> Option<(String, EnvironmentColor)> {
    let color = section.get(&admin::ENVIRONMENT_COLOR);
    let name = section.parse_string(&admin::ENVIRONMENT, |text| {
        let is_name = (1..=ENVIRONMENT_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control);
        match is_name && text.trim() == text {
            true => Ok(text.to_owned()),
            false => invalid_text(
                "it is empty or too long, or has spaces around it",
                format!("write 1 to {ENVIRONMENT_MAX} characters, such as \"production\""),
            ),
        }
    });
    if let (None, Some(node)) = (section.node(&admin::ENVIRONMENT), section.node(&admin::ENVIRONMENT_COLOR)) {
        let help = "write environment = \"production\" too";
        return section.report_fault(admin::ENVIRONMENT_COLOR.name, node, "no `environment` has this color", help);
    }
    Some((name?, color))
}

pub fn compile_store(section: &Section) -> StoreSettings {
    let kind = section.parse_string(&store::URL, parse_store_kind).unwrap_or(StoreKind::Memory);
    let settings = StoreSettings {
        tls: read_store_tls(section, &kind),
        login: read_store_login(section, &kind),
        kind,
        prefix: section
            .parse_string(&store::PREFIX, parse_key_prefix)
            .unwrap_or_else(|| store::PREFIX.default_str().to_owned()),
        deadline: section.get(&store::DEADLINE),
        on_error: section.get(&store::ON_ERROR),
        max_keys: section.get(&store::MAX_KEYS),
        gateways: section.get(&store::GATEWAYS),
        state: section.parse_string(&store::STATE, parse_state_path).flatten(),
    };
    if let Some(state) = &settings.state {
        section.sources.add_private_file(state, PrivateFile::State);
        // The usage of keys is stored beside it.
        let mut usage = state.clone().into_os_string();
        usage.push(".usage");
        section.sources.add_private_file(&PathBuf::from(usage), PrivateFile::State);
    }
    section.report_unknown();
    settings
}

/// Parses the path of the state file; `None` if empty.
fn parse_state_path(text: &str) -> Result<Option<PathBuf>, TextFault> {
    const HELP: &str = "write the full path of a file, like \"/var/lib/sluicegate/store.json\"; \"\" = none";
    match text {
        "" => Ok(None),
        _ if text.starts_with('/') && !text.ends_with('/') && !text.contains('\0') => Ok(Some(PathBuf::from(text))),
        _ => invalid_text(format!("`{text}` is not the full path of a file"), HELP),
    }
}

/// Parses the store URL. It may contain a password, so no message repeats it.
fn parse_store_kind(text: &str) -> Result<StoreKind, TextFault> {
    match Address::parse(text) {
        _ if text == "memory:" => Ok(StoreKind::Memory),
        Ok(_) => Ok(StoreKind::Redis(RedisUrl(text.to_owned()))),
        Err(mistake) if text.starts_with("redis") => invalid_text(mistake.what, mistake.help),
        Err(_) => invalid_text("it names no store", "write \"memory:\" or \"redis://HOST:PORT\""),
    }
}

/// Reads the login of Redis. An empty text means no login, and the memory store needs none. Messages do not repeat any
/// part of it.
fn read_store_login(section: &Section, kind: &StoreKind) -> StoreLogin {
    let read = |option: &ConfigOption| section.read_string(option).filter(|text| !text.is_empty());
    let login = StoreLogin { username: read(&store::USERNAME), password: read(&store::PASSWORD) };
    let StoreKind::Redis(url) = kind else { return StoreLogin::default() };
    let address = Address::parse(&url.0).ok();
    let of_url = address.as_ref().map(|address| (address.login.username(), address.login.password()));
    let (url_name, url_password) = of_url.unwrap_or_default();
    let fault = |option: &ConfigOption, what: &str, help: &str| {
        if let Some(node) = section.node(option) {
            section.report_fault::<()>(option.name, node, what, help);
        }
    };
    for (option, own, of_url) in
        [(&store::USERNAME, &login.username, url_name), (&store::PASSWORD, &login.password, url_password)]
    {
        if let (Some(own), Some(of_url)) = (own, of_url)
            && own != of_url
        {
            fault(option, "`url` has another one", "write it in one of the two places");
        }
    }
    if login.username.is_some() && login.password.is_none() && url_password.is_none() {
        fault(&store::USERNAME, "it has no password", "set `password`, for example \"${file:/run/secrets/redis}\"");
    }
    login
}

/// Reads the TLS files of the store and watches them; an empty path means none.
fn read_store_tls(section: &Section, kind: &StoreKind) -> RedisTls {
    let secure = matches!(kind, StoreKind::Redis(url) if url.0.starts_with("rediss"));
    let file = |option: &ConfigOption| {
        section.read_string(option).filter(|path| !path.is_empty())?;
        let node = section.node(option)?;
        if !secure {
            return section.report_fault(
                option.name,
                node,
                "the store does not use TLS",
                "use a `rediss` URL, or remove this",
            );
        }
        section.read_pem(option)
    };
    let files =
        TlsFiles { ca: file(&store::CA), client_cert: file(&store::CLIENT_CERT), client_key: file(&store::CLIENT_KEY) };
    if section.sources.has_mistakes() {
        return RedisTls::default();
    }
    RedisTls::new(files).unwrap_or_else(|mistake| {
        let node = store::TABLE.find(mistake.option).and_then(|option| section.node(option));
        node.and_then(|node| {
            section.report_fault::<RedisTls>(
                mistake.option,
                node,
                &mistake.what,
                "give a file in PEM; a certificate and its key go together",
            )
        })
        .unwrap_or_default()
    })
}

/// Parses the key prefix. Braces would change the hash tag of Redis Cluster.
fn parse_key_prefix(text: &str) -> Result<String, TextFault> {
    match text.len() {
        1..=32 if text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-:".contains(&b)) => Ok(text.to_owned()),
        _ => invalid_text(format!("`{text}` is not a key prefix"), "use 1 to 32 letters, digits, `_`, `.`, `-` or `:`"),
    }
}

pub fn compile_headers(section: &Section) -> Vec<Dialect> {
    let dialects = read_dialects(section, &headers::RATELIMIT).unwrap_or_else(|| vec![Dialect::Draft11]);
    section.report_unknown();
    dialects
}

/// Reads the dialects of rate limit headers under `key`; empty for "off".
pub fn read_dialects(section: &Section, option: &ConfigOption) -> Option<Vec<Dialect>> {
    let words = [
        ("draft-11", Some(Dialect::Draft11)),
        ("draft-07", Some(Dialect::Draft07)),
        ("draft-03", Some(Dialect::Draft03)),
        ("legacy", Some(Dialect::Legacy)),
        ("epoch", Some(Dialect::Epoch)),
        ("off", None),
    ];
    let items = section.read_strings(option, |text| find_choice(text, &words))?;
    let mut dialects = Vec::new();
    for (i, At { place, value }) in items.iter().enumerate() {
        if items[..i].iter().any(|earlier| earlier.value == *value) {
            section.report_fault_at::<()>(option.name, *place, "this format occurs twice", "remove one of the two");
        }
        match value {
            None if items.len() > 1 => {
                section.report_fault_at::<()>(
                    option.name,
                    *place,
                    "`off` cannot be combined with others",
                    "keep `off` or the others",
                );
            }
            None => {}
            Some(dialect) => dialects.push(*dialect),
        }
    }
    let find = |dialect: Dialect| items.iter().find(|item| item.value == Some(dialect));
    if let (Some(_), Some(At { place, .. })) = (find(Dialect::Draft11), find(Dialect::Draft07)) {
        let what = "draft-11 and draft-07 use the same headers, RateLimit and RateLimit-Policy";
        let help = "choose one of the two; draft-03 and legacy go with either";
        section.report_fault_at::<()>(option.name, *place, what, help);
    }
    if let (Some(_), Some(At { place, .. })) = (find(Dialect::Legacy), find(Dialect::Epoch)) {
        let what = "legacy and epoch use the same headers, X-RateLimit-*";
        let help = "choose one of the two: `epoch` has the time of the reset, `legacy` the seconds until then";
        section.report_fault_at::<()>(option.name, *place, what, help);
    }
    Some(dialects)
}
