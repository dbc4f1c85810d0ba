//! Sections that occur once: `[server]`, `[admin]`, `[store]`, `[headers]`, with `[[listener]]` and `[acme]`. Called
//! by `compile`.
//!
//! Output: [`ServerSettings`](crate::config::ServerSettings), listeners, store settings and the defaults of routes.
//! `listener` compiles addresses and TLS, `hsts` their Strict-Transport-Security, `acme` certificate orders, `internal`
//! development certificates, `access_log` and `spans` their targets, `keys` how keys are shown,
//! `tokens` the tokens of the admin listener, `overload` when the process refuses requests.
//!
//! To add a server option, read it here with its default.

pub(crate) mod access_log;
pub(crate) mod acme;
mod hsts;
pub(crate) mod internal;
pub(crate) mod keys;
pub(crate) mod listener;
mod overload;
pub(crate) mod spans;
mod tokens;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::config::compile::compress::{CompressOption, compile_compress};
use crate::config::compile::numbers::to_usize;
use crate::config::compile::pages::{PageFiles, compile_error_pages};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::{At, Section, find_choice};
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::config::{
    Admin, AdminContact, ForwardedHeader, Hints, ListenerSettings, ServerSettings, Strictness, TraceParent, schema,
    values,
};
use crate::limiting::limit::OnError;
use crate::limiting::store::address::Address;
use crate::limiting::store::redis_tls::{RedisTls, TlsFiles};
use crate::limiting::store::settings::{RedisUrl, StoreKind, StoreSettings};
use crate::net::ListenAddr;
use crate::route::error_pages::ErrorPages;
use crate::route::{Dialect, SettingOrigin, TimeoutOrigins, Timeouts};

/// Default address of the admin listener. Port 9090 would collide with Prometheus.
const ADMIN: &str = "127.0.0.1:9900";
/// Maximum number of DNS servers.
const RESOLVERS_MAX: usize = 8;

const FORWARDED_HEADERS: &[(&str, ForwardedHeader)] = &[
    ("x-forwarded-for", ForwardedHeader::XForwardedFor),
    ("x-real-ip", ForwardedHeader::XRealIp),
    ("x-forwarded-proto", ForwardedHeader::XForwardedProto),
    ("x-forwarded-host", ForwardedHeader::XForwardedHost),
    ("x-forwarded-port", ForwardedHeader::XForwardedPort),
    ("via", ForwardedHeader::Via),
    ("x-request-id", ForwardedHeader::XRequestId),
    ("forwarded", ForwardedHeader::Forwarded),
];

/// Default timeouts of routes.
const TIMEOUTS: Timeouts = Timeouts {
    body: Duration::from_secs(30),
    min_body_rate: 256,
    min_response_rate: 1024,
    connect: Duration::from_secs(3),
    response: Duration::from_secs(60),
    stream: Duration::from_secs(60),
    tunnel: Duration::from_secs(3_600),
};

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
}

pub fn compile_server(
    section: &Section,
    listeners: &[Section],
    acme: &acme::AcmeSection,
    page_files: &PageFiles,
) -> CompiledServer {
    let seconds = Duration::from_secs;
    let timeouts = read_timeouts(section, &TIMEOUTS);
    let timeout_origins = read_timeout_origins(section, SettingOrigin::Server, TimeoutOrigins::DEFAULT);
    let settings = ServerSettings {
        workers: match to_usize(section.read_integer("workers")).unwrap_or(0) {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        },
        strictness: read_strictness(section).unwrap_or(Strictness::Strict),
        max_connections: to_usize(section.read_integer("max_connections")).unwrap_or(8_192),
        max_connections_per_ip: match to_usize(section.read_integer("max_connections_per_ip")) {
            None | Some(0) => usize::MAX,
            Some(max) => max,
        },
        max_tunnels: to_usize(section.read_integer("max_tunnels")).unwrap_or(4_096),
        max_headers: to_usize(section.read_integer("max_headers")).unwrap_or(100),
        max_header_bytes: section
            .read_size("max_header_bytes")
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(32 * 1024),
        http2: section.read_bool("http2").unwrap_or(true),
        max_streams: section.read_integer("max_streams").and_then(|streams| u32::try_from(streams).ok()).unwrap_or(100),
        max_unread: read_max_unread(section),
        stream_timeout: timeouts.stream,
        min_response_rate: timeouts.min_response_rate,
        max_delayed: to_usize(section.read_integer("max_delayed")).unwrap_or(10_000),
        handshake_timeout: section.read_duration("handshake_timeout").unwrap_or(seconds(5)),
        header_timeout: section.read_duration("header_timeout").unwrap_or(seconds(10)),
        keepalive_timeout: section.read_duration("keepalive_timeout").unwrap_or(seconds(75)),
        half_close_timeout: section.read_duration("half_close_timeout").unwrap_or(seconds(1)),
        handover: section.parse_string("handover", parse_handover).flatten(),
        shutdown_delay: section.read_duration("shutdown_delay").unwrap_or(Duration::ZERO),
        shutdown_timeout: section.read_duration("shutdown_timeout").unwrap_or(seconds(30)),
        trusted_proxies: section
            .read_strings("trusted_proxies", values::parse_cidr)
            .map(|networks| networks.into_iter().map(|at| at.value).collect())
            .unwrap_or_default(),
        forwarded_headers: section
            .read_strings("forwarded_headers", |text| find_choice(text, FORWARDED_HEADERS))
            .map(|headers| headers.into_iter().map(|at| at.value).collect())
            .unwrap_or_default(),
        access_log: access_log::compile_access_log(section),
        spans: spans::compile_spans(section),
        answer_request_id: section.read_bool("answer_request_id").unwrap_or(false),
        error_pages: compile_error_pages(section, None, page_files),
        traceparent: section
            .read_choice("traceparent", &[("pass", TraceParent::Pass), ("make", TraceParent::Make)])
            .unwrap_or(TraceParent::Pass),
        max_compress_memory: section.read_size("max_compress_memory").unwrap_or(256 * 1024 * 1024),
        overload: overload::compile_overload(section),
        hints: read_hints(section),
        resolver: read_resolver(section),
    };
    let defaults = Defaults {
        strictness: settings.strictness,
        max_body: section.read_size("max_body").unwrap_or(10 * 1024 * 1024),
        max_key_body: section.read_size("max_key_body").unwrap_or(8 * 1024),
        max_cost_body: section.read_size("max_cost_body").unwrap_or(1024 * 1024),
        timeouts,
        timeout_origins,
        compress: compile_compress(section, &schema::server::compress::TABLE, &CompressOption::default()),
        error_pages: settings.error_pages.clone(),
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
    let mut bytes = section.read_size("max_unread").unwrap_or(256 * 1024);
    if let (1..LARGEST_PACKET, Some(node)) = (bytes, section.node("max_unread")) {
        let what = "`max_unread` is smaller than the largest packet, so servers would send a part of it every 0.2 seconds; \
                    64 KiB apply instead";
        let warning = Diagnostic::new(node.place, what).with_help("set it to 0 or to at least \"64KiB\"");
        section.sources.add_warning(DiagnosticCode::SmallReceiveBuffer, warning);
        bytes = LARGEST_PACKET;
    }
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Reads `strictness`, for all routes or one route.
pub fn read_strictness(section: &Section) -> Option<Strictness> {
    let words =
        [("strict", Strictness::Strict), ("defensive", Strictness::Defensive), ("monitor", Strictness::Monitor)];
    section.read_choice("strictness", &words)
}

fn read_resolver(section: &Section) -> Vec<SocketAddr> {
    let servers = section.read_strings("resolver", |text| {
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
                .report_fault_at("resolver", servers[RESOLVERS_MAX].place, &what, "keep the nearest")
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
        _ if !text.starts_with('/') || text.contains('\0') => invalid_text(format!("`{text}` is no full path"), HELP),
        1..=100 => Ok(Some(PathBuf::from(text))),
        _ => invalid_text("the path may have 100 bytes at most", "use a shorter path"),
    }
}

fn read_hints(section: &Section) -> Hints {
    match section.node("hints") {
        None => Hints::Local,
        Some(Node { value: Value::Bool(true), .. }) => Hints::All,
        Some(Node { value: Value::Bool(false), .. }) => Hints::None,
        Some(Node { value: Value::String(text), .. }) if text.value == "local" => Hints::Local,
        Some(node) => section.report_wrong_type("hints", "true, false or \"local\"", node).unwrap_or(Hints::Local),
    }
}

/// Reads the timeouts of `[server]`, or those of a route.
pub fn read_timeouts(section: &Section, default: &Timeouts) -> Timeouts {
    Timeouts {
        body: section.read_duration("body_timeout").unwrap_or(default.body),
        min_body_rate: section.read_size("min_body_rate").unwrap_or(default.min_body_rate),
        min_response_rate: section.read_size("min_response_rate").unwrap_or(default.min_response_rate),
        connect: section.read_duration("connect_timeout").unwrap_or(default.connect),
        response: section.read_duration("response_timeout").unwrap_or(default.response),
        stream: section.read_duration("stream_timeout").unwrap_or(default.stream),
        tunnel: section.read_duration("tunnel_timeout").unwrap_or(default.tunnel),
    }
}

/// Returns where the timeouts of a section come from. `own`: those that it sets; `inherited`: the others.
pub fn read_timeout_origins(section: &Section, own: SettingOrigin, inherited: TimeoutOrigins) -> TimeoutOrigins {
    let origin = |key, inherited| if section.node(key).is_some() { own } else { inherited };
    TimeoutOrigins {
        body: origin("body_timeout", inherited.body),
        connect: origin("connect_timeout", inherited.connect),
        response: origin("response_timeout", inherited.response),
        stream: origin("stream_timeout", inherited.stream),
        tunnel: origin("tunnel_timeout", inherited.tunnel),
    }
}

/// Returns the admin address of a section that may be invalid elsewhere.
pub fn read_admin_contact(section: &Section) -> Option<AdminContact> {
    let listen = match section.node("listen") {
        Some(_) => section.parse_string("listen", values::parse_listen)?,
        None => values::parse_listen(ADMIN).ok()?,
    };
    Some(AdminContact { listen, token: tokens::find_written_token(section) })
}

pub fn compile_admin(section: &Section, listeners: &[Arc<ListenerSettings>]) -> Option<Admin> {
    let listen = section.parse_string("listen", |text| {
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
    let metrics_need_token = section.read_bool("metrics_need_token").unwrap_or_default();
    let edit = section.read_bool("edit").unwrap_or_default();
    let key_display = keys::compile_key_display(section);
    let audit = access_log::compile_audit(section);
    section.report_unknown();
    let tokens = tokens?;
    if let (true, true, Some(node)) = (metrics_need_token, tokens.is_empty(), section.node("metrics_need_token")) {
        return section.report_fault("metrics_need_token", node, "no token is set", "set `token`, or leave this out");
    }
    let is_socket = matches!(listen, Some(ListenAddr::Unix(_)));
    if edit
        && !is_socket
        && tokens.is_empty()
        && let Some(node) = section.node("edit")
    {
        let what = "no token is set, so every user of this machine could change the config";
        return section.report_fault("edit", node, what, "set `token`, or listen on a `unix:` socket");
    }
    let default = values::parse_listen(ADMIN).ok()?;
    if section.node("listen").is_none() && listeners.iter().any(|listener| listener.address.conflicts_with(&default)) {
        let what = format!("[admin] listens on {ADMIN} by default, which a listener of [server] already uses");
        return section.report_missing(what, "give it another port: [admin] listen = \"127.0.0.1:9901\"");
    }
    Some(Admin { listen: listen.unwrap_or(default), tokens, metrics_need_token, edit, key_display, audit })
}

pub fn compile_store(section: &Section) -> StoreSettings {
    let kind = section.parse_string("url", parse_store_kind).unwrap_or(StoreKind::Memory);
    let settings = StoreSettings {
        tls: read_store_tls(section, &kind),
        kind,
        prefix: section.parse_string("prefix", parse_key_prefix).unwrap_or_else(|| "sg".to_owned()),
        deadline: section.read_duration("deadline").unwrap_or(Duration::from_millis(30)),
        on_error: section.read_label("on_error", OnError::ALL, OnError::label).unwrap_or(OnError::Local),
        max_keys: to_usize(section.read_integer("max_keys")).unwrap_or(1_000_000),
        gateways: section.read_integer("gateways").unwrap_or(1),
        state: section.parse_string("state", parse_state_path).flatten(),
    };
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

/// Reads the TLS files of the store and watches them; an empty path means none.
fn read_store_tls(section: &Section, kind: &StoreKind) -> RedisTls {
    let secure = matches!(kind, StoreKind::Redis(url) if url.0.starts_with("rediss"));
    let file = |option: &'static str| {
        section.read_string(option).filter(|path| !path.is_empty())?;
        let node = section.node(option)?;
        if !secure {
            return section.report_fault(
                option,
                node,
                "the store does not use TLS",
                "use a `rediss` URL, or remove this",
            );
        }
        section.read_file(option)
    };
    let files = TlsFiles { ca: file("ca"), client_cert: file("client_cert"), client_key: file("client_key") };
    if section.sources.has_mistakes() {
        return RedisTls::default();
    }
    RedisTls::new(files).unwrap_or_else(|mistake| {
        let node = section.node(mistake.option);
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
    let dialects = read_dialects(section, "ratelimit").unwrap_or_else(|| vec![Dialect::Draft11]);
    section.report_unknown();
    dialects
}

/// Reads the dialects of rate limit headers under `key`; empty for "off".
pub fn read_dialects(section: &Section, key: &'static str) -> Option<Vec<Dialect>> {
    let words = [
        ("draft-11", Some(Dialect::Draft11)),
        ("draft-07", Some(Dialect::Draft07)),
        ("draft-03", Some(Dialect::Draft03)),
        ("legacy", Some(Dialect::Legacy)),
        ("off", None),
    ];
    let items = section.read_strings(key, |text| find_choice(text, &words))?;
    let mut chosen = Vec::new();
    for (i, At { place, value }) in items.iter().enumerate() {
        if items[..i].iter().any(|earlier| earlier.value == *value) {
            section.report_fault_at::<()>(key, *place, "this format occurs twice", "remove one of the two");
        }
        match value {
            None if items.len() > 1 => {
                section.report_fault_at::<()>(
                    key,
                    *place,
                    "`off` cannot be combined with others",
                    "keep `off` or the others",
                );
            }
            None => {}
            Some(dialect) => chosen.push(*dialect),
        }
    }
    if let (true, Some(At { place, .. })) =
        (chosen.contains(&Dialect::Draft11), items.iter().find(|item| item.value == Some(Dialect::Draft07)))
    {
        let what = "draft-11 and draft-07 use the same headers, RateLimit and RateLimit-Policy";
        section.report_fault_at::<()>(key, *place, what, "choose one of the two; draft-03 and legacy go with either");
    }
    Some(chosen)
}
