//! The sections that stand once: [server], [admin], [store], [headers]. Called by `compile`.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::numbers::{KERNEL_BUFFER, usize_of};
use super::{acme, listener};
use crate::config::reader::{At, Section, choose};
use crate::config::tree::{Node, Value};
use crate::config::values::{self, Fault, fault};
use crate::config::{
    Admin, AdminContact, ForwardedHeader, Hints, ListenerSettings, ServerSettings, Strictness, TraceParent,
};
use crate::limit::limits::OnError;
use crate::limit::store::redis::address::Address;
use crate::limit::store::redis::tls::{Files, Tls};
use crate::limit::store::settings::{GATEWAYS_MAX, RedisUrl, StoreKind, StoreSettings};
use crate::route::{Dialect, Timeouts};

/// Of a wait that ends a request or a connection.
const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);
const PAUSE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
/// hyper's smallest buffer for a request head is 8 KiB.
const HEAD_BYTES: RangeInclusive<u64> = 8 * 1024..=1024 * 1024;
/// 9090 would be Prometheus' own.
const ADMIN: &str = "127.0.0.1:9900";
/// Servers of names.
const RESOLVERS_MAX: usize = 8;
pub const BODY_MAX: RangeInclusive<u64> = 0..=1 << 50;
/// Of a body that is held in memory.
pub const KEY_BODY_MAX: RangeInclusive<u64> = 64..=64 * 1024;

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

/// Of routes, unless they or [server] say otherwise.
const TIMEOUTS: Timeouts = Timeouts {
    body: Duration::from_secs(30),
    min_body_rate: 256,
    min_response_rate: 1024,
    connect: Duration::from_secs(3),
    response: Duration::from_secs(60),
    stream: Duration::from_secs(60),
    tunnel: Duration::from_secs(3_600),
};

pub struct Compiled {
    pub settings: ServerSettings,
    pub listeners: Vec<Arc<ListenerSettings>>,
    pub defaults: Defaults,
}

/// What a route takes over unless it says otherwise.
pub struct Defaults {
    pub strictness: Strictness,
    pub max_body: u64,
    pub max_key_body: u64,
    pub timeouts: Timeouts,
}

pub fn server(section: &Section, listeners: &[Section], acme: &acme::AcmeSection) -> Compiled {
    let seconds = Duration::from_secs;
    let timeouts = timeouts(section, &TIMEOUTS);
    let settings = ServerSettings {
        workers: match usize_of(section.integer("workers", 0..=1024)).unwrap_or(0) {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        },
        strictness: strictness(section).unwrap_or(Strictness::Strict),
        max_connections: usize_of(section.integer("max_connections", 1..=10_000_000)).unwrap_or(8_192),
        max_connections_per_ip: match usize_of(section.integer("max_connections_per_ip", 0..=10_000_000)) {
            None | Some(0) => usize::MAX,
            Some(max) => max,
        },
        max_tunnels: usize_of(section.integer("max_tunnels", 0..=10_000_000)).unwrap_or(4_096),
        max_headers: usize_of(section.integer("max_headers", 1..=10_000)).unwrap_or(100),
        max_header_bytes: section
            .size("max_header_bytes", HEAD_BYTES)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(32 * 1024),
        http2: section.bool("http2").unwrap_or(true),
        max_streams: section
            .integer("max_streams", 1..=10_000)
            .and_then(|streams| u32::try_from(streams).ok())
            .unwrap_or(100),
        max_unread: section
            .size("max_unread", KERNEL_BUFFER)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(256 * 1024),
        stream_timeout: timeouts.stream,
        min_response_rate: timeouts.min_response_rate,
        max_delayed: usize_of(section.integer("max_delayed", 0..=10_000_000)).unwrap_or(10_000),
        handshake_timeout: section.duration("handshake_timeout", WAIT).unwrap_or(seconds(5)),
        header_timeout: section.duration("header_timeout", WAIT).unwrap_or(seconds(10)),
        keepalive_timeout: section.duration("keepalive_timeout", WAIT).unwrap_or(seconds(75)),
        half_close_timeout: section.duration("half_close_timeout", PAUSE).unwrap_or(seconds(1)),
        handover: section.parse("handover", handover).flatten(),
        shutdown_delay: section.duration("shutdown_delay", PAUSE).unwrap_or(Duration::ZERO),
        shutdown_timeout: section.duration("shutdown_timeout", PAUSE).unwrap_or(seconds(30)),
        trusted_proxies: section
            .strings("trusted_proxies", values::network)
            .map(|networks| networks.into_iter().map(|at| at.value).collect())
            .unwrap_or_default(),
        forwarded_headers: section
            .strings("forwarded_headers", |text| choose(text, FORWARDED_HEADERS))
            .map(|headers| headers.into_iter().map(|at| at.value).collect())
            .unwrap_or_default(),
        access_log: super::access_log::access_log(section),
        spans: super::spans::spans(section),
        answer_request_id: section.bool("answer_request_id").unwrap_or(false),
        traceparent: section
            .choice("traceparent", &[("pass", TraceParent::Pass), ("make", TraceParent::Make)])
            .unwrap_or(TraceParent::Pass),
        hints: hints(section),
        resolver: resolver(section),
    };
    let defaults = Defaults {
        strictness: settings.strictness,
        max_body: section.size("max_body", BODY_MAX).unwrap_or(10 * 1024 * 1024),
        max_key_body: section.size("max_key_body", KEY_BODY_MAX).unwrap_or(8 * 1024),
        timeouts,
    };
    let listeners = listener::listeners(section, listeners, settings.http2, acme);
    section.unknown();
    Compiled { settings, listeners, defaults }
}

/// For all routes, or what a route says for itself.
pub fn strictness(section: &Section) -> Option<Strictness> {
    let words =
        [("strict", Strictness::Strict), ("defensive", Strictness::Defensive), ("monitor", Strictness::Monitor)];
    section.choice("strictness", &words)
}

fn resolver(section: &Section) -> Vec<SocketAddr> {
    let servers = section.strings("resolver", |text| {
        let address = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53)));
        match address {
            Ok(address) if address.port() > 0 => Ok(address),
            _ => {
                fault(format!("`{text}` is not the address of a DNS server"), "write \"10.0.0.53\" or \"10.0.0.53:53\"")
            }
        }
    });
    match servers {
        Some(servers) if servers.len() > RESOLVERS_MAX => {
            let what = format!("more than {RESOLVERS_MAX} servers are never asked");
            section.fault_at("resolver", servers[RESOLVERS_MAX].place, &what, "keep the nearest").unwrap_or_default()
        }
        servers => servers.into_iter().flatten().map(|at| at.value).collect(),
    }
}

/// The path of a Unix socket, with room for that of its successor; none where nothing is written.
fn handover(text: &str) -> Result<Option<PathBuf>, Fault> {
    const HELP: &str = "write the path of a socket in full, like \"/run/sluicegate/handover.sock\"";
    match text.len() {
        0 => Ok(None),
        _ if !text.starts_with('/') || text.contains('\0') => fault(format!("`{text}` is no full path"), HELP),
        1..=100 => Ok(Some(PathBuf::from(text))),
        _ => fault("the path may have 100 bytes at most", "use a shorter path"),
    }
}

fn hints(section: &Section) -> Hints {
    match section.node("hints") {
        None => Hints::Local,
        Some(Node { value: Value::Bool(true), .. }) => Hints::All,
        Some(Node { value: Value::Bool(false), .. }) => Hints::None,
        Some(Node { value: Value::String(text), .. }) if text.value == "local" => Hints::Local,
        Some(node) => section.wrong_type("hints", "true, false or \"local\"", node).unwrap_or(Hints::Local),
    }
}

/// The timeouts that [server] sets for all routes, and a route for itself.
pub fn timeouts(section: &Section, default: &Timeouts) -> Timeouts {
    Timeouts {
        body: section.duration("body_timeout", WAIT).unwrap_or(default.body),
        min_body_rate: section.size("min_body_rate", 0..=1 << 40).unwrap_or(default.min_body_rate),
        min_response_rate: section.size("min_response_rate", 0..=1 << 40).unwrap_or(default.min_response_rate),
        connect: section.duration("connect_timeout", WAIT).unwrap_or(default.connect),
        response: section.duration("response_timeout", WAIT).unwrap_or(default.response),
        stream: section.duration("stream_timeout", WAIT).unwrap_or(default.stream),
        tunnel: section.duration("tunnel_timeout", WAIT).unwrap_or(default.tunnel),
    }
}

/// As `admin` would, of a section that may be broken elsewhere.
pub fn admin_contact(section: &Section) -> Option<AdminContact> {
    let listen = match section.node("listen") {
        Some(_) => section.parse("listen", values::listen)?,
        None => values::listen(ADMIN).ok()?,
    };
    Some(AdminContact { listen, token: section.string("token") })
}

pub fn admin(section: &Section, listeners: &[Arc<ListenerSettings>]) -> Option<Admin> {
    let listen = section.parse("listen", |text| {
        let address = values::listen(text)?;
        if let Some(listener) =
            listeners.iter().map(|listener| &listener.address).find(|listener| listener.excludes(&address))
        {
            let what = match *listener == address {
                true => format!("`{address}` is listened on for clients already"),
                false => format!("`{address}` has the port of the listener `{listener}`"),
            };
            return fault(what, "give it another port");
        }
        Ok(address)
    });
    let token = section.parse("token", |text| match text {
        "" => fault("the token is empty", "give it at least 16 random characters, or leave it out"),
        text if text.bytes().all(|b| b.is_ascii_graphic()) => Ok(text.to_owned()),
        _ => fault(
            "the token holds a space or another character that no header can carry",
            "use letters, digits and `-._~+/`",
        ),
    });
    let metrics_need_token = section.bool("metrics_need_token").unwrap_or_default();
    section.unknown();
    if metrics_need_token && let (None, Some(node)) = (section.node("token"), section.node("metrics_need_token")) {
        return section.fault("metrics_need_token", node, "no token is set", "set `token`, or leave this out");
    }
    let default = values::listen(ADMIN).ok()?;
    if section.node("listen").is_none() && listeners.iter().any(|listener| listener.address.excludes(&default)) {
        let what = format!("[admin] listens on {ADMIN} unless told otherwise, which a listener of [server] has");
        return section.absent(what, "give it another port: [admin] listen = \"127.0.0.1:9901\"");
    }
    Some(Admin { listen: listen.unwrap_or(default), token, metrics_need_token })
}

pub fn store(section: &Section) -> StoreSettings {
    let deadline = Duration::from_millis(1)..=Duration::from_secs(10);
    let kind = section.parse("url", store_kind).unwrap_or(StoreKind::Memory);
    let settings = StoreSettings {
        tls: store_tls(section, &kind),
        kind,
        prefix: section.parse("prefix", prefix).unwrap_or_else(|| "sg".to_owned()),
        deadline: section.duration("deadline", deadline).unwrap_or(Duration::from_millis(30)),
        on_error: section.label("on_error", OnError::ALL, OnError::label).unwrap_or(OnError::Local),
        max_keys: usize_of(section.integer("max_keys", 1..=1_000_000_000)).unwrap_or(1_000_000),
        gateways: section.integer("gateways", 1..=GATEWAYS_MAX).unwrap_or(1),
        state: section.parse("state", state_path).flatten(),
    };
    section.unknown();
    settings
}

/// The path of the state file; `None` where it is empty.
fn state_path(text: &str) -> Result<Option<PathBuf>, Fault> {
    const HELP: &str = "write the full path of a file, like \"/var/lib/sluicegate/store.json\"; \"\" = none";
    match text {
        "" => Ok(None),
        _ if text.starts_with('/') && !text.ends_with('/') && !text.contains('\0') => Ok(Some(PathBuf::from(text))),
        _ => fault(format!("`{text}` is not the full path of a file"), HELP),
    }
}

/// The URL may hold a password, so no message repeats it.
fn store_kind(text: &str) -> Result<StoreKind, Fault> {
    match Address::parse(text) {
        _ if text == "memory:" => Ok(StoreKind::Memory),
        Ok(_) => Ok(StoreKind::Redis(RedisUrl(text.to_owned()))),
        Err(mistake) if text.starts_with("redis") => fault(mistake.what, mistake.help),
        Err(_) => fault("it names no store", "write \"memory:\" or \"redis://HOST:PORT\""),
    }
}

/// Files for TLS, which are watched; an empty path stands for none.
fn store_tls(section: &Section, kind: &StoreKind) -> Tls {
    let secure = matches!(kind, StoreKind::Redis(url) if url.0.starts_with("rediss"));
    let file = |option: &'static str| {
        section.string(option).filter(|path| !path.is_empty())?;
        let node = section.node(option)?;
        if !secure {
            return section.fault(
                option,
                node,
                "the store is not asked over TLS",
                "use a `rediss` URL, or remove this",
            );
        }
        section.file(option)
    };
    let files = Files { ca: file("ca"), client_cert: file("client_cert"), client_key: file("client_key") };
    if section.sources.has_mistakes() {
        return Tls::default();
    }
    Tls::new(files).unwrap_or_else(|mistake| {
        let node = section.node(mistake.option);
        node.and_then(|node| {
            section.fault::<Tls>(
                mistake.option,
                node,
                &mistake.what,
                "give a file in PEM; a certificate and its key go together",
            )
        })
        .unwrap_or_default()
    })
}

/// Braces would move the hash tag of Redis Cluster.
fn prefix(text: &str) -> Result<String, Fault> {
    match text.len() {
        1..=32 if text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-:".contains(&b)) => Ok(text.to_owned()),
        _ => fault(format!("`{text}` is not a key prefix"), "use 1 to 32 letters, digits, `_`, `.`, `-` or `:`"),
    }
}

pub fn headers(section: &Section) -> Vec<Dialect> {
    let dialects = dialects(section, "ratelimit").unwrap_or_else(|| vec![Dialect::Draft11]);
    section.unknown();
    dialects
}

/// The forms of the rate limit fields named under `key`; none for "off".
pub fn dialects(section: &Section, key: &'static str) -> Option<Vec<Dialect>> {
    let words = [
        ("draft-11", Some(Dialect::Draft11)),
        ("draft-07", Some(Dialect::Draft07)),
        ("draft-03", Some(Dialect::Draft03)),
        ("legacy", Some(Dialect::Legacy)),
        ("off", None),
    ];
    let items = section.strings(key, |text| choose(text, &words))?;
    let mut chosen = Vec::new();
    for (i, At { place, value }) in items.iter().enumerate() {
        if items[..i].iter().any(|earlier| earlier.value == *value) {
            section.fault_at::<()>(key, *place, "this form stands there twice", "remove one of the two");
        }
        match value {
            None if items.len() > 1 => {
                section.fault_at::<()>(key, *place, "`off` stands beside others", "keep `off` or the others");
            }
            None => {}
            Some(dialect) => chosen.push(*dialect),
        }
    }
    if let (true, Some(At { place, .. })) =
        (chosen.contains(&Dialect::Draft11), items.iter().find(|item| item.value == Some(Dialect::Draft07)))
    {
        let what = "draft-11 and draft-07 write the same fields, RateLimit and RateLimit-Policy";
        section.fault_at::<()>(key, *place, what, "choose one of the two; draft-03 and legacy go with either");
    }
    Some(chosen)
}
