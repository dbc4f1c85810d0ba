//! Options `dns` and `dns_program` of `[acme]`: how the records of `dns-01` get into the zone. Called by `acme`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hickory_proto::rr::Name;
use http::uri::Authority;

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::Section;
use crate::config::schema::{acme, acme_dns};
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::config::{DnsMethod, DnsPublisher, DnsUpdate, KeySecret};
use crate::tls::ChallengeKind;

pub const DNS_HELP: &str = "add dns = { server = \"192.0.2.53\", key = \"acme\", secret = \"${file:acme.secret}\" } to [acme], \
     or dns_program = [\"/usr/local/bin/acme-dns\"], or name each host";
const SERVER_HELP: &str = "write the address of the primary name server, like \"192.0.2.53:53\" or \"ns.example.com\"";
const SECRET_HELP: &str =
    "write what follows `secret` in the key file: keymgr -t acme hmac-sha256, or tsig-keygen acme";
/// The port of name servers.
const PORT: u16 = 53;
/// Shortest secret in bytes. RFC 8945 advises the length of the hash.
const SECRET_MIN: usize = 16;
const SECRET_MAX: usize = 1024;

/// Returns whether an option says how records are published.
pub fn publishes_records(section: &Section) -> bool {
    section.node(&acme::DNS).is_some() || section.node(&acme::DNS_PROGRAM).is_some()
}

/// Reads how records are published, and checks that `challenges` says the same.
pub fn read_publisher(section: &Section) -> Option<DnsPublisher> {
    let wait = section.get(&acme::DNS_WAIT);
    let (update, program) = (read_update(section), read_program(section));
    let lists_dns = |node: &Node| matches!(&node.value, Value::Array(items) if items.iter().any(is_dns));
    let (dns, dns_program) = (section.node(&acme::DNS), section.node(&acme::DNS_PROGRAM));
    if let (Some(_), Some(node)) = (dns, dns_program) {
        let what = "`dns` says already how records are published";
        return section.report_fault(acme::DNS_PROGRAM.name, node, what, "remove one of the two");
    }
    let option = if dns.is_some() { acme::DNS.name } else { acme::DNS_PROGRAM.name };
    match (dns.or(dns_program), section.node(&acme::CHALLENGES)) {
        (None, Some(node)) if lists_dns(node) => {
            let what = "dns-01 needs `dns` or `dns_program`, which publishes its records";
            return section.report_fault(acme::CHALLENGES.name, node, what, DNS_HELP);
        }
        (Some(publisher), Some(node)) if !lists_dns(node) => {
            let what = "no challenge uses it";
            return section.report_fault(option, publisher, what, "add \"dns-01\" to `challenges`");
        }
        _ => {}
    }
    let method = update.map(DnsMethod::Update).or(program.map(DnsMethod::Program))?;
    Some(DnsPublisher { method, wait })
}

fn is_dns(item: &Node) -> bool {
    matches!(&item.value, Value::String(text) if text.value == ChallengeKind::Dns01.label())
}

/// Reads the program and its first arguments.
fn read_program(section: &Section) -> Option<Vec<String>> {
    let node = section.node(&acme::DNS_PROGRAM)?;
    let words = section.read_strings(&acme::DNS_PROGRAM, |text| match text {
        "" => invalid_text("the text is empty", "write the program first, like [\"/usr/local/bin/acme-dns\"]"),
        text => Ok(text.to_owned()),
    })?;
    let mut words = words.into_iter();
    let Some(program) = words.next() else {
        return section.report_fault(acme::DNS_PROGRAM.name, node, "the list is empty", DNS_HELP);
    };
    // A name without a slash is searched for in `PATH`.
    let path = match program.value.contains('/') {
        true => section.sources.resolve_absolute(program.place.file, &program.value).display().to_string(),
        false => program.value,
    };
    warn_about_program(section, program.place, &path);
    Some([path].into_iter().chain(words.map(|word| word.value)).collect())
}

/// Warns of a program that cannot be started here. The config may be for another machine, so that is not an error.
fn warn_about_program(section: &Section, place: Place, program: &str) {
    let is_executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let (what, help) = match program.contains('/') {
        false => {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            if std::env::split_paths(&folders).any(|folder| is_executable(&folder.join(program))) {
                return;
            }
            (
                format!("there is no program `{program}` in PATH"),
                "write its absolute path, and see that it is installed",
            )
        }
        true if is_executable(Path::new(program)) => return,
        true if !PathBuf::from(program).exists() => {
            (format!("there is no program `{program}`"), "install it, or correct its path")
        }
        true => (format!("`{program}` is not an executable file"), "make it executable: chmod a+x"),
    };
    section.sources.add_warning(DiagnosticCode::DnsProgram, Diagnostic::new(place, what).with_help(help));
}

fn read_update(section: &Section) -> Option<DnsUpdate> {
    let update = section.read_section(&acme::DNS)?;
    let server = match update.node(&acme_dns::SERVER) {
        Some(_) => update.parse_string(&acme_dns::SERVER, parse_server),
        None => update.report_missing("`dns` has no server", SERVER_HELP),
    };
    let zone = update.parse_string(&acme_dns::ZONE, parse_name);
    let key = match update.node(&acme_dns::KEY) {
        Some(_) => update.parse_string(&acme_dns::KEY, parse_name),
        None => update.report_missing("`dns` has no key", "write the name of the TSIG key, like key = \"acme\""),
    };
    let algorithm = update.get(&acme_dns::ALGORITHM);
    let secret = match update.node(&acme_dns::SECRET) {
        Some(_) => update.parse_string(&acme_dns::SECRET, parse_secret),
        None => update.report_missing("`dns` has no secret", "write secret = \"${file:/run/secrets/acme-dns}\""),
    };
    let is_zone_wrong = zone.is_none() && update.node(&acme_dns::ZONE).is_some();
    update.report_unread_keys();
    let update = DnsUpdate { server: server?, zone, key: key?, algorithm, secret: secret? };
    (!is_zone_wrong).then_some(update)
}

/// Parses `HOST`, `HOST:PORT` or an address. Returns `host:port`.
fn parse_server(text: &str) -> Result<String, TextFault> {
    if let Ok(ip) = text.parse() {
        return Ok(std::net::SocketAddr::new(ip, PORT).to_string());
    }
    match text.parse::<Authority>() {
        Ok(authority) if !text.contains('@') && !authority.host().is_empty() => {
            // The host of an authority includes the brackets of IPv6.
            let host = authority.host();
            let rest = &text[host.len()..];
            match rest.strip_prefix(':').map(str::parse::<u16>) {
                None if rest.is_empty() => Ok(format!("{host}:{PORT}")),
                Some(Ok(port)) if port > 0 => Ok(format!("{host}:{port}")),
                _ => invalid_text(format!("`{text}` has no valid port"), SERVER_HELP),
            }
        }
        _ => invalid_text(format!("`{text}` is not the address of a name server"), SERVER_HELP),
    }
}

/// Parses the name of a zone or key, with or without a dot at its end.
fn parse_name(text: &str) -> Result<Name, TextFault> {
    match Name::from_ascii(text) {
        Ok(mut name) if !name.is_root() && text.is_ascii() => {
            name.set_fqdn(true);
            Ok(name.to_lowercase())
        }
        _ => invalid_text(format!("`{text}` is not a domain name"), "write one like \"example.com\""),
    }
}

/// Parses a secret. Faults do not show it.
fn parse_secret(text: &str) -> Result<KeySecret, TextFault> {
    match STANDARD.decode(text.trim()) {
        Ok(secret) if (SECRET_MIN..=SECRET_MAX).contains(&secret.len()) => Ok(KeySecret(secret)),
        Ok(secret) => invalid_text(
            format!("the secret has {} bytes; {SECRET_MIN} to {SECRET_MAX} are accepted", secret.len()),
            SECRET_HELP,
        ),
        Err(_) => invalid_text("the secret is not Base64", SECRET_HELP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_port_that_exists_or_none() {
        for (text, server) in [
            ("ns.example.com", "ns.example.com:53"),
            ("ns.example.com:5353", "ns.example.com:5353"),
            ("192.0.2.53", "192.0.2.53:53"),
            ("2001:db8::53", "[2001:db8::53]:53"),
            ("[2001:db8::53]", "[2001:db8::53]:53"),
            ("[2001:db8::53]:5353", "[2001:db8::53]:5353"),
        ] {
            assert_eq!(parse_server(text).ok().as_deref(), Some(server), "{text}");
        }
        for text in ["ns.test:0", "ns.test:99999", "ns.test:", "[2001:db8::53]:65536", "a@ns.test:53", ""] {
            assert!(parse_server(text).is_err(), "{text}");
        }
    }
}
