//! Addresses in `[server]`, sections `[[listener]]`, and their TLS. Called by `compile`.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use jiff::Timestamp;

use crate::config::compile::server::hsts::compile_hsts;
use crate::config::compile::server::http3::compile_http3;
use crate::config::compile::server::{acme, internal};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{listener, server};
use crate::config::tree::{Node, Value};
use crate::config::values::{invalid_text, is_digits};
use crate::config::{ListenerSettings, Service, values};
use crate::net::{ListenAddr, SocketAccess};
use crate::tls::{CertificateValidity, ClientAuth, PemPair, ServerFiles, ServerTls, ServerTlsMistake};

/// A certificate that expires sooner is reported, unless most of its life is still left.
const EXPIRY_NOTICE_S: i64 = 14 * DAY_S;
const DAY_S: i64 = 86_400;
const ADDRESS_HELP: &str = "add address = \"0.0.0.0:8443\"";
const PAIR_HELP: &str = "write certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }], or acme = [\"www.example.com\"], or \
                         internal = true for development";
const CERT_HELP: &str = "give a file in PEM: the certificate of this server, then those that signed it";
const KEY_HELP: &str = "give the private key of this certificate, in PEM";
const CA_HELP: &str = "give a file in PEM: the certificates that sign those of clients";

/// A certificate and its key, with the places where their files are named.
struct Pair {
    cert: At<String>,
    key: At<String>,
}

/// Returns every listener: those of `[server]`, the redirecting one, then those with their own section.
pub fn compile_listeners(
    server: &Section,
    sections: &[Section],
    http2: bool,
    acme: &acme::AcmeSection,
) -> Vec<Arc<ListenerSettings>> {
    let max_unsent = server.get(&server::MAX_UNSENT);
    let mut listeners = compile_plain(server, sections.is_empty(), max_unsent);
    listeners.extend(compile_redirect(server).map(|(At { place, value: address }, port)| At {
        place,
        value: ListenerSettings {
            address,
            service: Service::Http,
            proxy_protocol: false,
            tls: None,
            redirect_port: Some(port),
            hsts: None,
            http3: None,
            max_unsent,
            access: SocketAccess::ALL_USERS,
        },
    }));
    listeners
        .extend(sections.iter().filter_map(|section| compile_listener(server, section, (http2, max_unsent), acme)));
    for (i, item) in listeners.iter().enumerate() {
        let rival = |first: &&At<ListenerSettings>| exclude_each_other(&first.value, &item.value);
        if let Some(first) = listeners[..i].iter().find(rival) {
            let (one, other) = (&first.value.address, &item.value.address);
            let message = match one == other {
                true => format!("`{other}` is listened on twice"),
                false => format!("`{one}` and `{other}` exclude each other"),
            };
            server.add_mistake(
                Diagnostic::new(item.place, message)
                    .with_related(first.place, "first named here")
                    .with_help("remove one of the two, or give it another port"),
            );
        }
    }
    listeners.into_iter().map(|At { value, .. }| Arc::new(value)).collect()
}

/// Compiles `redirect_http`, an address or a table. Returns where it listens and the port it redirects to.
fn compile_redirect(server: &Section) -> Option<(At<ListenAddr>, u16)> {
    let Some(Node { value: Value::Table(_), .. }) = server.node(&server::REDIRECT_HTTP) else {
        let address = server.parse_at(&server::REDIRECT_HTTP, values::parse_listen)?;
        return Some((address, server.default_of(&server::redirect_http::HTTPS_PORT)));
    };
    let section = server.read_section(&server::REDIRECT_HTTP)?;
    let address = match section.node(&server::redirect_http::LISTEN) {
        Some(_) => section.parse_at(&server::redirect_http::LISTEN, values::parse_listen),
        None => section.report_missing("`redirect_http` has no address", "add listen = \"0.0.0.0:80\""),
    };
    let port = section.get(&server::redirect_http::HTTPS_PORT);
    section.report_unread_keys();
    Some((address?, port))
}

/// Returns whether two listeners cannot coexist. Port 0 is a new port each time, but listeners are identified by what
/// was written.
fn exclude_each_other(first: &ListenerSettings, second: &ListenerSettings) -> bool {
    first.address.conflicts_with(&second.address) || first.address == second.address && first != second
}

/// Returns the addresses in `[server]`, or the default unless another part of the config names listeners.
fn compile_plain(section: &Section, is_default: bool, max_unsent: u32) -> Vec<At<ListenerSettings>> {
    let plain = |At { place, value }: At<ListenAddr>| At {
        place,
        value: ListenerSettings {
            address: value,
            service: Service::Http,
            proxy_protocol: false,
            tls: None,
            redirect_port: None,
            hsts: None,
            http3: None,
            max_unsent,
            access: SocketAccess::ALL_USERS,
        },
    };
    if section.node(&server::LISTEN).is_none() {
        let default = values::parse_listen(server::LISTEN.default_str()).ok().filter(|_| is_default);
        return default.map(|value| plain(At { place: section.place, value })).into_iter().collect();
    }
    let items = section.read_strings(&server::LISTEN, values::parse_listen).unwrap_or_default();
    if let Some(node) =
        section.node(&server::LISTEN).filter(|node| matches!(&node.value, Value::Array(i) if i.is_empty()))
    {
        section.report_fault::<()>(
            server::LISTEN.name,
            node,
            "the list is empty",
            "name one address, like \"127.0.0.1:8080\"",
        );
    }
    items.into_iter().map(plain).collect()
}

/// Returns whether the listener requests client certificates, even if other options of the section are wrong.
pub fn requests_client_certs(section: &Section) -> bool {
    matches!(section.node(&listener::TLS), Some(Node { value: Value::Table(tls), .. }) if tls.get(listener::tls::CLIENT_CA.name).is_some())
}

/// Returns whether the listener has development certificates.
fn is_internal(section: &Section) -> bool {
    match section.node(&listener::TLS) {
        Some(Node { value: Value::Table(tls), .. }) => {
            tls.get(listener::tls::INTERNAL.name).is_some_and(|entry| !matches!(entry.node.value, Value::Bool(false)))
        }
        _ => false,
    }
}

/// Warns about `hsts` on a listener for development. Withdrawing it is right there.
fn warn_about_pinning(section: &Section, node: &Node, value: &HeaderValue) {
    if !value.as_bytes().starts_with(b"max-age=0") {
        let what = "browsers remember `hsts` for a host with all its ports, so http://localhost no longer works in them \
                    for any program";
        let help =
            "remove it from listeners with `internal`; hsts = \"0s\" withdraws it from browsers that have seen it";
        section.sources.add_warning(DiagnosticCode::DevelopmentHsts, Diagnostic::new(node.place, what).with_help(help));
    }
}

fn compile_listener(
    server: &Section,
    section: &Section,
    (http2, unsent): (bool, u32),
    acme: &acme::AcmeSection,
) -> Option<At<ListenerSettings>> {
    let address = match section.node(&listener::ADDRESS) {
        Some(_) => section.parse_at(&listener::ADDRESS, values::parse_listen),
        None => section.report_missing("a listener has no address", ADDRESS_HELP),
    };
    let service = section.get(&listener::SERVE);
    check_trust(server, section, service);
    let proxy_protocol = read_proxy_protocol(server, section);
    let max_unsent = section.get(&listener::MAX_UNSENT).unwrap_or(unsent);
    let access = read_access(section, address.as_ref().map(|at| &at.value));
    let has_tls = section.node(&listener::TLS).is_some();
    let tls = section.read_section(&listener::TLS);
    let tls = tls.and_then(|tls| self::compile_tls(&tls, http2, acme, address.as_ref()));
    let hsts = compile_hsts(section, has_tls);
    if let (Some(value), Some(node), true) = (&hsts, section.node(&listener::HSTS), is_internal(section)) {
        warn_about_pinning(section, node, value);
    }
    let http3 = compile_http3(section, has_tls, proxy_protocol, service, address.as_ref().map(|at| &at.value));
    section.report_unknown();
    let At { place, value: address } = address?;
    // A listener with invalid TLS must not become a plain one.
    if has_tls && tls.is_none() {
        return None;
    }
    let redirect_port = None;
    let settings =
        ListenerSettings { address, service, proxy_protocol, tls, redirect_port, hsts, http3, max_unsent, access };
    Some(At { place, value: settings })
}

/// Reads `mode`, `owner` and `group`, which are for Unix sockets.
fn read_access(section: &Section, address: Option<&ListenAddr>) -> SocketAccess {
    let parse_mode = |text: &str| match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && is_digits(text) => Ok(mode),
        _ => invalid_text(format!("`{text}` is not a file mode"), "write it in octal, like \"0660\": user and group"),
    };
    for option in [&listener::MODE, &listener::OWNER, &listener::GROUP] {
        if let (Some(node), Some(ListenAddr::Tcp(_))) = (section.node(option), address) {
            let help = "remove it, or listen on a socket: address = \"unix:/run/sluicegate/http.sock\"";
            section.report_fault::<()>(option.name, node, "it is for Unix sockets", help);
        }
    }
    let parse_name = |text: &str| match text {
        "" => invalid_text("the name is empty", "write the name or the number, like \"www-data\""),
        name => Ok(name.to_owned()),
    };
    let access = SocketAccess {
        mode: section.parse_string(&listener::MODE, parse_mode).unwrap_or(SocketAccess::ALL_USERS.mode),
        owner: section.parse_string(&listener::OWNER, parse_name),
        group: section.parse_string(&listener::GROUP, parse_name),
    };
    warn_about_owner(section, &listener::OWNER, access.find_owner());
    warn_about_owner(section, &listener::GROUP, access.find_group());
    access
}

/// Warns of a user or group that this machine does not have. The config may be for another machine, so that is no
/// error; the gateway does not serve the socket without it.
fn warn_about_owner(section: &Section, option: &ConfigOption, found: io::Result<Option<u32>>) {
    if let (Some(node), Err(error)) = (section.node(option), found) {
        let warning = Diagnostic::new(node.place, format!("{error}, so the gateway cannot serve this socket here"))
            .with_help("create it, or write the name or number of one that exists");
        section.sources.add_warning(DiagnosticCode::UnknownOwner, warning);
    }
}

/// Reports a listener for questions of other proxies if no peer may ask.
fn check_trust(server: &Section, section: &Section, service: Service) {
    if let (Service::Decide, false, Some(node)) = (service, trusts_proxies(server), section.node(&listener::SERVE)) {
        let help = "list the proxies that ask here in `trusted_proxies` of [server]: 127.0.0.1 for a Unix socket";
        section.report_fault::<()>(
            listener::SERVE.name,
            node,
            "no peer is trusted, so every question would get 403",
            help,
        );
    }
}

/// Returns whether `trusted_proxies` lists a network.
fn trusts_proxies(server: &Section) -> bool {
    let is_empty = |node: &Node| matches!(&node.value, Value::Array(items) if items.is_empty());
    server.node(&server::TRUSTED_PROXIES).is_some_and(|node| !is_empty(node))
}

/// Reads `proxy_protocol`. The header is accepted from trusted peers only.
fn read_proxy_protocol(server: &Section, section: &Section) -> bool {
    let is_on = section.get(&listener::PROXY_PROTOCOL);
    if let (true, false, Some(node)) = (is_on, trusts_proxies(server), section.node(&listener::PROXY_PROTOCOL)) {
        let help = "name the proxies before this listener in `trusted_proxies` of [server]";
        section.report_fault::<()>(listener::PROXY_PROTOCOL.name, node, "no peer is trusted to name its client", help);
    }
    is_on
}

fn compile_tls(
    section: &Section,
    http2: bool,
    acme: &acme::AcmeSection,
    address: Option<&At<ListenAddr>>,
) -> Option<ServerTls> {
    let internal = internal::read_internal(section, address);
    let pairs = match section.node(&listener::tls::CERTIFICATES) {
        Some(node) => read_pairs(section, node),
        None if section.node(&listener::tls::ACME).is_some() || !matches!(internal, Some(None)) => Some(Vec::new()),
        None => section.report_missing("a listener with `tls` has no certificates", PAIR_HELP),
    };
    let acme_names = match section.node(&listener::tls::ACME) {
        Some(_) => acme.read_names(section),
        None => Some(Vec::new()),
    };
    let client_ca = section.read_pem(&listener::tls::CLIENT_CA);
    let is_optional = section.get(&listener::tls::CLIENT_AUTH);
    let min_version = section.get(&listener::tls::MIN_VERSION);
    section.report_unknown();
    if let (Some(Some(_)), Some(node)) = (&internal, section.node(&listener::tls::ACME)) {
        let help = "order certificates for public names, or use `internal` on a listener of this machine";
        return section.report_fault(listener::tls::ACME.name, node, "it cannot be combined with `internal`", help);
    }
    if let (None, Some(node)) = (section.node(&listener::tls::CLIENT_CA), section.node(&listener::tls::CLIENT_AUTH)) {
        let help = "set `client_ca` to the certificates that sign those of clients, or remove this";
        return section.report_fault(
            listener::tls::CLIENT_AUTH.name,
            node,
            "the CA of client certificates is not set",
            help,
        );
    }
    let client_auth = match &client_ca {
        None => ClientAuth::None,
        Some(_) if is_optional => ClientAuth::Optional,
        Some(_) => ClientAuth::Required,
    };
    let (pairs, acme_names, internal) = (pairs?, acme_names?, internal?);
    // An unreadable file has been reported already.
    if section.node(&listener::tls::CLIENT_CA).is_some() && client_ca.is_none() {
        return None;
    }
    let pem = |pair: &Pair| PemPair { cert: pair.cert.value.clone(), key: pair.key.value.clone() };
    let certificates = pairs.iter().map(pem).collect();
    let files = ServerFiles { certificates, ordered: acme_names, internal, client_ca, client_auth, min_version, http2 };
    // A listener without a valid address is not used.
    let address = address.map(|At { value, .. }| value.to_string()).unwrap_or_default();
    let tls = ServerTls::new(&address, files, acme.challenges());
    let tls = tls.map_err(|mistake| report_tls_fault(section, &pairs, &mistake)).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for (pair, term) in pairs.iter().zip(&tls.certificates.current().validities) {
        warn_about_term(section, pair, term, i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    }
    Some(tls)
}

/// Warns about certificates outside their validity period, or close to its end. It is not an error, because this
/// machine's clock may be wrong.
fn warn_about_term(section: &Section, pair: &Pair, term: &CertificateValidity, now_s: i64) {
    let date =
        |time_s: i64| Timestamp::from_second(time_s).map_or_else(|_| time_s.to_string(), |time| time.to_string());
    let name = &term.name;
    let (what, help) = if term.not_after_s < now_s {
        let end = date(term.not_after_s);
        (format!("the certificate of `{name}` has expired, at {end}"), "clients refuse it: renew it")
    } else if term.not_before_s > now_s {
        let start = date(term.not_before_s);
        let help = "clients refuse it until then; is the clock of this machine right?";
        (format!("the certificate of `{name}` is valid from {start} only"), help)
    } else if term.not_after_s - now_s < EXPIRY_NOTICE_S.min((term.not_after_s - term.not_before_s) / 3) {
        let (end, days) = (date(term.not_after_s), (term.not_after_s - now_s) / DAY_S);
        let what = format!("the certificate of `{name}` expires in {days} days, at {end}");
        (what, "renew it; the gateway uses the new file as soon as it is there")
    } else {
        return;
    };
    section
        .sources
        .add_warning(DiagnosticCode::CertificateTerm, Diagnostic::new(pair.cert.place, what).with_help(help));
}

fn report_tls_fault(section: &Section, pairs: &[Pair], mistake: &ServerTlsMistake) {
    let nowhere = section.place;
    let client_ca = section.node(&listener::tls::CLIENT_CA).map_or(nowhere, |node| node.place);
    let of = |at: &usize, place: fn(&Pair) -> Place| pairs.get(*at).map_or(nowhere, place);
    let (key, place, what, help) = match mistake {
        ServerTlsMistake::Cert(at, what) => {
            (listener::certificate::CERT.name, of(at, |pair| pair.cert.place), what, CERT_HELP)
        }
        ServerTlsMistake::Key(at, what) => {
            (listener::certificate::KEY.name, of(at, |pair| pair.key.place), what, KEY_HELP)
        }
        ServerTlsMistake::ClientCa(what) => (listener::tls::CLIENT_CA.name, client_ca, what, CA_HELP),
    };
    section.report_fault_at::<()>(key, place, what, help);
}

/// Reads the certificate pairs; the first one serves names that no certificate covers.
fn read_pairs(section: &Section, node: &Node) -> Option<Vec<Pair>> {
    let Value::Array(items) = &node.value else {
        return section.report_wrong_type(listener::tls::CERTIFICATES.name, "a list of tables", node);
    };
    if items.is_empty() {
        return section.report_fault(listener::tls::CERTIFICATES.name, node, "the list is empty", PAIR_HELP);
    }
    // Every item is parsed, to find all mistakes, before one of them fails the list.
    let pairs: Vec<_> = items.iter().map(|item| read_pair(section, item)).collect();
    pairs.into_iter().collect()
}

fn read_pair(section: &Section, item: &Node) -> Option<Pair> {
    let Value::Table(table) = &item.value else {
        return section.report_wrong_type(listener::tls::CERTIFICATES.name, "a list of tables", item);
    };
    let pair = Section::new(section.sources, &listener::certificate::TABLE, "`certificates`", table);
    let file = |option: &ConfigOption| match pair.node(option) {
        Some(node) => pair.read_pem(option).map(|value| At { place: node.place, value }),
        None => pair.report_missing(format!("a certificate has no `{}`", option.name), PAIR_HELP),
    };
    let (cert, key) = (file(&listener::certificate::CERT), file(&listener::certificate::KEY));
    pair.report_unknown();
    Some(Pair { cert: cert?, key: key? })
}
