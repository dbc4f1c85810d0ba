//! Option `internal` of a listener's `tls`: development certificates from a local CA. Called by `listener` and, once
//! the routes are known, by `compile`.

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::ListenerSettings;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::{At, Section};
use crate::config::schema::listener;
use crate::config::source::PrivateFile;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text, is_host};
use crate::net::ListenAddr;
use crate::route::Route;
use crate::route::matcher::HostPattern;
use crate::tls::InternalTls;
use crate::tls::internal::{DEFAULT_NAMES, DOMAINS, is_signable};

/// Maximum number of names in a certificate. It is sent in every handshake.
const NAMES_MAX: usize = 100;
/// Number of hosts that a warning lists.
const SHOWN: usize = 5;
const REMOTE_HELP: &str =
    "listen on 127.0.0.1 or [::1]; if other machines must connect, write internal = { allow_remote = true }";
const WILDCARD_HELP: &str = "name each host, or use a deeper wildcard like \"*.app.localhost\"";
const HOST_HELP: &str = "write a name like \"app.localhost\", a wildcard like \"*.app.test\", or an address";

/// Reads `internal`: `true`, `false` or a table. The outer `None` means that something is wrong.
pub fn read_internal(tls: &Section, address: Option<&At<ListenAddr>>) -> Option<Option<InternalTls>> {
    let section = match tls.node(&listener::tls::INTERNAL) {
        None | Some(Node { value: Value::Bool(false), .. }) => return Some(None),
        Some(Node { value: Value::Bool(true), .. }) => None,
        Some(Node { value: Value::Table(_), .. }) => Some(tls.read_section(&listener::tls::INTERNAL)?),
        Some(node) => return tls.report_wrong_type(listener::tls::INTERNAL.name, "true or a table", node),
    };
    let section = section.as_ref();
    let hosts = section
        .filter(|section| section.node(&listener::internal::HOSTS).is_some())
        .map_or_else(|| Some(Vec::new()), |section| section.read_strings(&listener::internal::HOSTS, parse_name));
    let allow_remote = section.is_some_and(|section| section.get(&listener::internal::ALLOW_REMOTE));
    let state = read_state(tls, section);
    if let Some(state) = &state {
        tls.sources.add_private_file(state, PrivateFile::State);
    }
    if let Some(section) = section {
        section.report_unknown();
    }
    if let (false, Some(At { place, value: ListenAddr::Tcp(address) })) = (allow_remote, address)
        && !address.ip().to_canonical().is_loopback()
    {
        let what = format!("`{address}` accepts other machines, and development certificates are for this one");
        return tls.report_fault_at(listener::tls::INTERNAL.name, *place, &what, REMOTE_HELP);
    }
    let hosts = hosts?;
    if let (true, Some(section)) = (hosts.len() > NAMES_MAX - DEFAULT_NAMES.len(), section) {
        let place = hosts.last().map_or(section.place, |host| host.place);
        let what = format!("a certificate has at most {NAMES_MAX} names");
        return section.report_fault_at(
            listener::internal::HOSTS.name,
            place,
            &what,
            "use a wildcard, or another listener",
        );
    }
    let mut names: Vec<String> = DEFAULT_NAMES.map(str::to_owned).to_vec();
    if let Some(At { value: ListenAddr::Tcp(address), .. }) = address {
        let ip = address.ip().to_canonical().to_string();
        names.extend(Some(ip).filter(|ip| is_signable(ip)));
    }
    names.extend(hosts.into_iter().map(|host| host.value));
    let mut unique = HashSet::new();
    names.retain(|name| unique.insert(name.clone()));
    Some(Some(InternalTls { state: state?, names }))
}

/// Returns the directory of the CA: `state`, or the default for this user.
fn read_state(tls: &Section, section: Option<&Section>) -> Option<PathBuf> {
    if let Some(section) = section.filter(|section| section.node(&listener::internal::STATE).is_some()) {
        let At { place, value } = section.parse_at(&listener::internal::STATE, |text| match text {
            "" => invalid_text("the path is empty", "name a directory that only the gateway may read"),
            path => Ok(path.to_owned()),
        })?;
        let directory = section.sources.resolve_absolute(place.file, &value);
        if let Err((what, help)) = check_closed(&directory) {
            return section.report_fault_at(listener::internal::STATE.name, place, &what, &help);
        }
        return Some(directory);
    }
    default_state(|name| env::var_os(name)).or_else(|| {
        let node = tls.node(&listener::tls::INTERNAL)?;
        let what = "there is no directory for the CA: neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME is set";
        tls.report_fault(
            listener::tls::INTERNAL.name,
            node,
            what,
            "write internal = { state = \"/var/lib/sluicegate/ca\" }",
        )
    })
}

/// Checks that a directory that exists is closed to other users: otherwise, the gateway would not start. Whom it must
/// belong to is not known, because the config may be checked as another user.
fn check_closed(directory: &Path) -> Result<(), (String, String)> {
    let Ok(metadata) = fs::symlink_metadata(directory) else { return Ok(()) };
    let path = directory.display();
    if !metadata.is_dir() {
        let kind = if metadata.is_symlink() { "a symbolic link" } else { "not a directory" };
        let what = format!("`{path}` is {kind}");
        return Err((what, "name a directory, which may be missing: the gateway creates it".to_owned()));
    }
    if metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let what = format!("`{path}` is open to other users (mode {:04o})", metadata.mode() & 0o7777);
    Err((what, format!("run `chmod 700 {path}`, or name a directory for this purpose alone")))
}

/// Returns where the CA is by default: the state directory of the systemd service, or of the user (XDG).
fn default_state(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // systemd separates several directories by colons.
    let service = variable("STATE_DIRECTORY").and_then(|list| list.to_str()?.split(':').next().map(PathBuf::from));
    let service = service.filter(|path| path.is_absolute()).map(|path| path.join("ca"));
    let user = || path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")));
    service.or_else(|| Some(user()?.join("sluicegate/ca")))
}

fn parse_name(text: &str) -> Result<String, TextFault> {
    let name = text.to_ascii_lowercase();
    let name = match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) if is_host(name.strip_prefix("*.").unwrap_or(&name)) => name,
        Err(_) => return invalid_text(format!("`{text}` is not a host name"), HOST_HELP),
    };
    match is_signable(&name) {
        true => Ok(name),
        false if name.strip_prefix("*.").is_some_and(|parent| DOMAINS.contains(&parent)) => {
            invalid_text(format!("clients do not accept the wildcard `{name}`"), WILDCARD_HELP)
        }
        false => invalid_text(format!("the local CA does not sign `{name}`"), limits_help()),
    }
}

fn limits_help() -> String {
    format!(
        "it signs private addresses, and names under {}, but no wildcard such as *.localhost; for other names, put a \
         certificate into `certificates`",
        DOMAINS.join(", ")
    )
}

/// Adds the hosts of routes to the names of development certificates, and warns about those that cannot be added.
pub fn add_route_hosts(listeners: &mut [Arc<ListenerSettings>], sections: &[Section], routes: &[Route]) {
    for listener in listeners {
        let Some(tls) = Arc::make_mut(listener).tls.as_mut().filter(|tls| tls.internal().is_some()) else { continue };
        let certificates = tls.certificates.current();
        let (mut seen, mut uncovered) = (HashSet::new(), Vec::new());
        for host in routes.iter().flat_map(|route| &route.matcher.hosts) {
            let (name, example) = match host {
                HostPattern::Exact(name) => (name.trim_matches(['[', ']']).to_owned(), name.clone()),
                HostPattern::Suffix(suffix) => (format!("*{suffix}"), format!("x{suffix}")),
                // No certificate is for all domains.
                HostPattern::Prefix(prefix) => (format!("{prefix}*"), format!("{prefix}x")),
            };
            if certificates.covers(&example, &example) || !seen.insert(name.clone()) {
                continue;
            }
            match is_signable(&name) && tls.internal_names().len() < NAMES_MAX {
                true => tls.add_route_host(name),
                false => uncovered.push(name),
            }
        }
        let is_internal = |section: &&Section| matches!(section.node(&listener::TLS), Some(Node { value: Value::Table(tls), .. }) if tls.get(listener::tls::INTERNAL.name).is_some());
        if let (false, Some(section)) = (uncovered.is_empty(), sections.iter().find(is_internal)) {
            warn_uncovered(section, &listener.address, &uncovered);
        }
    }
}

fn warn_uncovered(section: &Section, address: &ListenAddr, hosts: &[String]) {
    let examples: Vec<String> = hosts.iter().take(SHOWN).map(|host| format!("`{host}`")).collect();
    let more = match hosts.len() - examples.len() {
        0 => String::new(),
        more => format!(" and {more} more hosts of routes"),
    };
    let what = format!("the development certificate of `{address}` does not cover {}{more}", examples.join(", "));
    section
        .sources
        .add_warning(DiagnosticCode::UncoveredHost, Diagnostic::new(section.place, what).with_help(limits_help()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_directory_is_that_of_the_service_or_of_the_user() {
        let state = |variables: &[(&str, &str)]| {
            let found = default_state(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            });
            found.map(|path| path.display().to_string()).unwrap_or_default()
        };
        let (service, xdg, home) = (("STATE_DIRECTORY", "/var/lib/a:/b"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h"));
        assert_eq!(state(&[service, xdg, home]), "/var/lib/a/ca");
        assert_eq!(state(&[xdg, home]), "/x/sluicegate/ca");
        assert_eq!(state(&[home]), "/h/.local/state/sluicegate/ca");
        assert_eq!(
            state(&[("STATE_DIRECTORY", ""), ("XDG_STATE_HOME", "relative"), home]),
            "/h/.local/state/sluicegate/ca"
        );
        assert_eq!(state(&[("HOME", "")]), "");
        assert_eq!(state(&[]), "");
    }
}
