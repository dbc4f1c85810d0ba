//! From TOML text to [`Config`], the compiled form that a snapshot holds. Only this folder knows
//! the file format. Every mistake of a load is reported at once (`report`).

mod compile;
mod documents;
mod hidden;
mod hints;
mod origin;
mod reader;
mod report;
mod schema;
mod shorthand;
mod source;
mod substitute;
mod syntax;
mod tree;
mod unreadable;
mod values;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::access_log::AccessLogSettings;
use crate::limit::jwt::Jwt;
use crate::limit::limits::LimitTable;
use crate::limit::store::settings::StoreSettings;
use crate::net::{IpSet, ListenAddr};
pub use crate::route::Strictness;
use crate::route::table::RouteTable;
use crate::route::{Dialect, Route};
use crate::spans::SpanSettings;
use crate::tls::{ChallengeBoard, ChallengeKind, ServerTls};
use crate::upstream::Upstream;
use source::SourceTexts;

pub(crate) use hints::closest;
pub use report::Report;
pub use shorthand::{ProxyArguments, proxy_text};
pub use unreadable::{FILE_SIZE_MAX, open_file};
pub(crate) use values::percent_decoded;

/// The config in the file at `path` and in all it includes.
pub fn load(path: &Path) -> Result<Config, Report> {
    let sources = SourceTexts::default();
    let documents = sources.documents(path);
    compile::compile(&sources, &documents).ok_or_else(|| sources.into_report())
}

/// How a running gateway is asked something.
pub struct AdminContact {
    pub listen: ListenAddr,
    pub token: Option<String>,
}

/// An address to listen at, as a config has it.
pub fn listen_addr(text: &str) -> Option<ListenAddr> {
    values::listen(text).ok()
}

/// Where the admin listener of a gateway with this file is, even if the file has become one that does not
/// load: the gateway runs on then. `None` where the file does not tell.
pub fn admin_contact(path: &Path) -> Option<AdminContact> {
    let sources = SourceTexts::default();
    let documents = sources.documents(path);
    compile::admin_contact(&sources, &documents)
}

/// The config in a text that is in no file; relative paths in it start at the working directory.
pub fn from_text(name: &str, text: &str) -> Result<Config, Report> {
    let sources = SourceTexts::default();
    let documents = sources.documents_of_text(name, text);
    compile::compile(&sources, &documents).ok_or_else(|| sources.into_report())
}

/// Keys as section and key.
pub type Keys = BTreeSet<(&'static str, &'static str)>;

/// Every key there is, and those that the file at `path` uses: a reference config uses all.
pub fn known_and_used_keys(path: &Path) -> (Keys, Keys) {
    let known = schema::ALL.iter().flat_map(|section| section.keys().map(|key| (section.name, key)));
    let sources = SourceTexts::default();
    let documents = sources.documents(path);
    compile::compile(&sources, &documents);
    (known.collect(), sources.seen())
}

/// What will run, every name resolved and every number checked.
#[derive(Debug)]
pub struct Config {
    pub server: ServerSettings,
    pub listeners: Vec<Arc<ListenerSettings>>,
    pub admin: Admin,
    /// Where certificates are ordered.
    pub acme: Option<Arc<Acme>>,
    pub store: StoreSettings,
    pub ratelimit_headers: Vec<Dialect>,
    /// How tokens are verified, if limits may ask for claims.
    pub jwt: Option<Arc<Jwt>>,
    pub table: RouteTable,
    pub routes: Vec<Route>,
    /// Some route, or whatever no route takes, is read strictly: then so are all bytes of connections.
    pub is_strict_somewhere: bool,
    pub upstreams: Vec<Arc<Upstream>>,
    pub limits: Arc<LimitTable>,
    /// SHA-256 over all files read, hex.
    pub hash: String,
    /// Whatever must reload when it changes: the config, its includes and their directories, files
    /// of sets and secrets.
    pub files: Vec<PathBuf>,
    /// What it says and probably does not mean.
    pub warnings: Option<Report>,
}

/// Where clients connect, and how they are spoken to.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerSettings {
    pub address: ListenAddr,
    /// Connections begin with a PROXY header.
    pub proxy_protocol: bool,
    pub tls: Option<ServerTls>,
    /// Every request is redirected to the same host over HTTPS, on this port.
    pub redirect_port: Option<u16>,
    /// What the kernel keeps of an answer until it can be sent, for each client; 0 = as it likes.
    pub max_unsent: u32,
}

impl Config {
    /// The listener at `address`, as it was written.
    pub fn listener(&self, address: &ListenAddr) -> Option<&Arc<ListenerSettings>> {
        self.listeners.iter().find(|listener| listener.address == *address)
    }

    /// Takes over what listeners of `earlier` that have not changed keep for their clients, and challenges that
    /// are open.
    pub fn keep_sessions(&mut self, earlier: &Config) {
        if let (Some(acme), Some(before)) = (&self.acme, &earlier.acme) {
            acme.board.show(before.board.shown());
        }
        for listener in &mut self.listeners {
            let before = earlier.listener(&listener.address).and_then(|before| before.tls.as_ref());
            if let (Some(before), Some(tls)) = (before, &mut Arc::make_mut(listener).tls) {
                tls.keep(before);
            }
        }
    }
}

/// `[acme]`
#[derive(Debug)]
pub struct Acme {
    pub settings: AcmeSettings,
    /// Of the listeners of this config.
    pub board: Arc<ChallengeBoard>,
}

/// Where certificates are ordered, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct AcmeSettings {
    /// An `https` URL.
    pub directory: String,
    /// `mailto` URLs.
    pub contact: Vec<String>,
    /// The directory of account, certificates and what goes with them.
    pub state: PathBuf,
    /// Who signs the certificate of the ACME server itself, PEM; `None`: an authority of the system.
    pub ca: Option<String>,
    /// Those that can be answered here, in the order in which they are tried; never none.
    pub challenges: Vec<ChallengeKind>,
    /// The pause after the first failure.
    pub backoff: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// Resolved: at least 1.
    pub workers: usize,
    pub strictness: Strictness,
    pub max_connections: usize,
    pub max_connections_per_ip: usize,
    /// Connections that have switched protocols, in all workers.
    pub max_tunnels: usize,
    pub max_headers: usize,
    pub max_header_bytes: usize,
    /// HTTP/2 is spoken, where a client wants to.
    pub http2: bool,
    /// Requests at once on one of its connections.
    pub max_streams: u32,
    /// What the kernel keeps of an answer until it is read, of each upstream connection; 0 = as it likes.
    pub max_unread: usize,
    /// Those of routes that say nothing else, for what no route governs.
    pub stream_timeout: Duration,
    pub min_response_rate: u64,
    /// Requests that a worker holds back at once until their turn at a limit.
    pub max_delayed: usize,
    /// Accept to end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// First byte to end of the request head.
    pub header_timeout: Duration,
    pub keepalive_timeout: Duration,
    /// How long a request goes on whose client has shut down its side.
    pub half_close_timeout: Duration,
    /// Where a process that takes over asks for the listening sockets.
    pub handover: Option<PathBuf>,
    /// Readiness fails this long before the listeners close.
    pub shutdown_delay: Duration,
    /// Requests still running this long after the listeners closed are cut.
    pub shutdown_timeout: Duration,
    /// Peers whose forwarding headers are believed.
    pub trusted_proxies: IpSet,
    /// What requests that go on are told of the client and of this hop.
    pub forwarded_headers: ForwardedHeaders,
    /// `None`: there is none.
    pub access_log: Option<Arc<AccessLogSettings>>,
    /// Likewise.
    pub spans: Option<Arc<SpanSettings>>,
    /// Answers carry the request's id.
    pub answer_request_id: bool,
    /// What becomes of requests that belong to no trace.
    pub traceparent: TraceParent,
    /// Who is told in problem documents which setting governs them.
    pub hints: Hints,
    /// Servers of names, in place of the system's; none: those.
    pub resolver: Vec<SocketAddr>,
}

/// A field that speaks of the client or of this hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeader {
    XForwardedFor,
    XRealIp,
    XForwardedProto,
    XForwardedHost,
    XForwardedPort,
    /// Also on answers.
    Via,
    XRequestId,
    Forwarded,
}

/// A set of them; by default all but `Forwarded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedHeaders(u8);

impl ForwardedHeaders {
    pub fn has(self, header: ForwardedHeader) -> bool {
        self.0 & (1 << header as u8) != 0
    }
}

impl Default for ForwardedHeaders {
    fn default() -> ForwardedHeaders {
        ForwardedHeaders(!(1 << ForwardedHeader::Forwarded as u8))
    }
}

impl FromIterator<ForwardedHeader> for ForwardedHeaders {
    fn from_iter<I: IntoIterator<Item = ForwardedHeader>>(headers: I) -> ForwardedHeaders {
        ForwardedHeaders(headers.into_iter().fold(0, |set, header| set | 1 << header as u8))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hints {
    All,
    /// Clients on this machine.
    Local,
    None,
}

impl Hints {
    pub fn are_for(self, client: IpAddr) -> bool {
        match self {
            Hints::All => true,
            Hints::Local => client.is_loopback(),
            Hints::None => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceParent {
    /// They go on as they came.
    Pass,
    /// A trace starts here.
    Make,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    pub listen: ListenAddr,
    pub token: Option<String>,
    /// Else whoever reaches the listener may read them. Only with a token.
    pub metrics_need_token: bool,
}
