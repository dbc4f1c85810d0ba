//! Section `[acme]`, and the names for which listeners order certificates. Called by `compile`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use hickory_proto::rr::Name;
use http::Uri;
use http::uri::Scheme;

use crate::config::compile::server::dns_publisher::{DNS_HELP, publishes_records, read_publisher};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{acme, listener};
use crate::config::source::PrivateFile;
use crate::config::values::{TextFault, invalid_text, is_host};
use crate::config::{Acme, AcmeSettings, DnsMethod, DnsPublisher, DnsUpdate, ListenerSettings};
use crate::net::{host_address, is_private};
use crate::tls::internal::is_signable;
use crate::tls::trust::TrustedRoots;
use crate::tls::{ChallengeKind, ChallengeStore};

const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";
const STAGING_DIRECTORY: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";
const TERMS_HELP: &str = "read the terms of service of the ACME server, and write terms_agreed = true";
const CA_HELP: &str = "give a file in PEM: the certificates that sign that of the ACME server itself";
const CONTACT_HELP: &str = "write an e-mail address: \"mailto:admin@example.com\"";
const NAME_HELP: &str = "write a host name like \"www.example.com\", or an address like \"192.0.2.7\"";
const PROFILE_HELP: &str = "write a name that the server lists in its directory, like \"shortlived\"";
const PRIVATE_HELP: &str = "use tls = { internal = true } for development, `certificates` of your own CA, or `directory` of an ACME server of your own";
/// Domains of examples, which stand for public ones in configs.
const DOCUMENTED: [&str; 3] = ["example.com", "example.net", "example.org"];
/// The only profile of Let's Encrypt whose certificates may have addresses.
const ADDRESS_PROFILE: &str = "shortlived";
const SECTION_HELP: &str = "add a section:\n\n[acme]\nterms_agreed = true";
/// Maximum length of a name in bytes: files of the state directory contain it.
const NAME_MAX: usize = 230;
/// Maximum number of names with their own certificates, over all listeners.
const NAMES_MAX: usize = 1000;
const CONTACTS_MAX: usize = 10;

/// The section, which may be invalid, and the challenge store of this config.
pub struct AcmeSection<'a> {
    section: &'a Section<'a>,
    challenges: Arc<ChallengeStore>,
    is_present: bool,
    settings: Option<AcmeSettings>,
}

impl<'a> AcmeSection<'a> {
    /// Reads the section. `is_present` is true if the config has one.
    pub fn read(section: &'a Section<'a>, is_present: bool) -> AcmeSection<'a> {
        let settings = is_present.then(|| compile_settings(section)).flatten();
        section.report_unknown();
        AcmeSection { section, challenges: Arc::default(), is_present, settings }
    }

    /// Returns the store in which TLS listeners look up responses to challenges.
    pub fn challenges(&self) -> Option<&Arc<ChallengeStore>> {
        Some(&self.challenges).filter(|_| self.is_present)
    }

    /// Reads the names under `acme` of a listener's `tls`.
    pub fn read_names(&self, tls: &Section) -> Option<Vec<String>> {
        let names = tls.read_strings(&listener::tls::ACME, check_name)?;
        let node = tls.node(&listener::tls::ACME)?;
        if !self.is_present {
            return tls.report_fault(listener::tls::ACME.name, node, "the ACME server is not set", SECTION_HELP);
        }
        if names.is_empty() {
            return tls.report_fault(listener::tls::ACME.name, node, "the list is empty", NAME_HELP);
        }
        for (i, At { place, value }) in names.iter().enumerate() {
            if names[..i].iter().any(|earlier| earlier.value == *value) {
                tls.report_fault_at::<()>(
                    listener::tls::ACME.name,
                    *place,
                    &format!("`{value}` occurs twice"),
                    "remove one of the two",
                );
            }
        }
        for At { place, value } in &names {
            let challenges = self.settings.as_ref().map(|settings| settings.challenges.as_slice());
            if challenges.is_some_and(|kinds| !kinds.iter().any(|kind| kind.can_prove(value))) {
                let (what, help) = match value.starts_with("*.") {
                    true => ("a wildcard needs the challenge dns-01", DNS_HELP),
                    false => ("an address needs another challenge than dns-01", "add \"tls-alpn-01\" to `challenges`"),
                };
                return tls.report_fault_at(listener::tls::ACME.name, *place, what, help);
            }
        }
        if let Some(settings) = &self.settings {
            check_zone(tls, settings, &names)?;
            names.iter().for_each(|name| warn_about_name(tls, settings, name));
        }
        let mut addresses = names.iter().filter(|name| host_address(&name.value).is_some());
        if let (Some(_), Some(At { place, value })) = (addresses.next(), addresses.next()) {
            let what = format!("`{value}` is a second address");
            let help = "clients that use an address do not say which: write a [[listener]] for each";
            return tls.report_fault_at(listener::tls::ACME.name, *place, &what, help);
        }
        Some(names.into_iter().map(|at| at.value).collect())
    }

    /// Completes the section with the compiled listeners.
    pub fn complete(self, listeners: &[Arc<ListenerSettings>]) -> Option<Arc<Acme>> {
        let AcmeSection { section, challenges, mut settings, .. } = self;
        let names: usize =
            listeners.iter().filter_map(|listener| Some(listener.tls.as_ref()?.ordered_names().len())).sum();
        let has_plain = listeners.iter().any(|listener| listener.tls.is_none());
        let wants_plain = settings.as_ref().is_some_and(|settings| settings.challenges == [ChallengeKind::Http01]);
        if let Some(settings) = settings.as_mut().filter(|_| !has_plain) {
            settings.challenges.retain(|kind| *kind != ChallengeKind::Http01);
        }
        if let (true, false, Some(node)) = (wants_plain, has_plain, section.node(&acme::CHALLENGES)) {
            let help = "add redirect_http = \"0.0.0.0:80\" to [server], or \"tls-alpn-01\" to this list";
            return section.report_fault(
                acme::CHALLENGES.name,
                node,
                "http-01 needs a listener without TLS, and there is none",
                help,
            );
        }
        if names > NAMES_MAX {
            let what = format!("the listeners name {names} certificates to order; at most {NAMES_MAX} are");
            return section.report_missing(what, "spread them over several gateways, or order those elsewhere");
        }
        if self.is_present && names == 0 {
            let what = "no listener orders certificates, so this section does nothing";
            let help = "write tls = { acme = [\"www.example.com\"] } in a [[listener]], or remove it";
            section.sources.add_warning(
                DiagnosticCode::UnusedAcme,
                Diagnostic::new(section.place, what).with_label("not used").with_help(help),
            );
        }
        settings.map(|settings| Arc::new(Acme { settings, challenges }))
    }
}

fn compile_settings(section: &Section) -> Option<AcmeSettings> {
    let directory = section.parse_string(&acme::DIRECTORY, parse_directory);
    let (is_staging, profile) = (section.get(&acme::STAGING), section.parse_string(&acme::PROFILE, parse_profile));
    let contact = section.read_strings(&acme::CONTACT, parse_contact);
    let state = section.parse_at(&acme::STATE, |text| match text {
        "" => invalid_text("the path is empty", "name a directory that the gateway may write to"),
        path => Ok(path.to_owned()),
    });
    let ca = section.read_pem(&acme::CA);
    let (dns, challenges) = (read_publisher(section), read_challenges(section));
    let backoff = section.get(&acme::BACKOFF);
    match section.get(&acme::TERMS_AGREED) {
        Some(true) => {}
        Some(false) => {
            let node = section.node(&acme::TERMS_AGREED)?;
            return section.report_fault(
                acme::TERMS_AGREED.name,
                node,
                "without that no server issues anything",
                TERMS_HELP,
            );
        }
        None if section.node(&acme::TERMS_AGREED).is_some() => return None,
        None => return section.report_missing("[acme] does not agree to the terms of service", TERMS_HELP),
    }
    if let Some((node, what)) =
        section.node(&acme::CA).zip(ca.as_ref().and_then(|text| TrustedRoots::from_pem(text).err()))
    {
        return section.report_fault(acme::CA.name, node, &what, CA_HELP);
    }
    let is_set = |option: &ConfigOption| section.node(option).is_some();
    // The mistake has been reported already.
    if is_set(&acme::DIRECTORY) && directory.is_none() || is_set(&acme::CA) && ca.is_none() {
        return None;
    }
    let state = match state {
        Some(At { place: Place { file, .. }, value }) => section.sources.resolve_absolute(file, &value),
        None => PathBuf::from(acme::STATE.default_str()),
    };
    section.sources.add_private_file(&state, PrivateFile::State);
    let contact: Vec<String> = contact.unwrap_or_default().into_iter().map(|at| at.value).collect();
    if let (true, Some(node)) = (contact.len() > CONTACTS_MAX, section.node(&acme::CONTACT)) {
        return section.report_fault(
            acme::CONTACT.name,
            node,
            &format!("more than {CONTACTS_MAX} addresses"),
            CONTACT_HELP,
        );
    }
    if let (true, Some(_), Some(node)) = (is_staging, &directory, section.node(&acme::STAGING)) {
        let what = "`directory` names the server already";
        return section.report_fault(acme::STAGING.name, node, what, "remove one of the two");
    }
    if is_set(&acme::PROFILE) && profile.is_none() {
        return None;
    }
    let default = if is_staging { STAGING_DIRECTORY } else { DIRECTORY };
    let directory = directory.unwrap_or_else(|| default.to_owned());
    Some(AcmeSettings { directory, profile, contact, state, ca, challenges, dns, backoff })
}

/// Reports a name outside of the zone that `dns` names, if only `dns-01` could prove it.
fn check_zone(tls: &Section, settings: &AcmeSettings, names: &[At<String>]) -> Option<()> {
    let Some(DnsPublisher { method: DnsMethod::Update(DnsUpdate { zone: Some(zone), .. }), .. }) = &settings.dns else {
        return Some(());
    };
    for At { place, value } in names {
        let mut others = settings.challenges.iter().filter(|kind| **kind != ChallengeKind::Dns01);
        let host = value.strip_prefix("*.").unwrap_or(value);
        let is_outside = Name::from_ascii(format!("{host}.")).is_ok_and(|name| !zone.zone_of(&name));
        if is_outside && !others.any(|kind| kind.can_prove(value)) {
            let what = format!("`{value}` is not in the zone {zone} of `dns`");
            let help = "remove `zone` from `dns`, so that the name server states the zone";
            return tls.report_fault_at(listener::tls::ACME.name, *place, &what, help);
        }
    }
    Some(())
}

/// Warns of a name for which Let's Encrypt issues no certificate. Another ACME server may be one of your own.
fn warn_about_name(tls: &Section, settings: &AcmeSettings, At { place, value }: &At<String>) {
    if ![DIRECTORY, STAGING_DIRECTORY].contains(&settings.directory.as_str()) {
        return;
    }
    let profile = settings.profile.as_deref();
    let (what, help) = match host_address(value) {
        Some(ip) if is_private(ip) => (
            format!("Let's Encrypt issues no certificate for `{value}`, which is not an address of the internet"),
            PRIVATE_HELP,
        ),
        Some(_) if profile != Some(ADDRESS_PROFILE) => (
            format!("Let's Encrypt issues certificates for addresses, such as `{value}`, only with another profile"),
            "add profile = \"shortlived\" to [acme]",
        ),
        None if is_not_public(value.strip_prefix("*.").unwrap_or(value)) => (
            format!("Let's Encrypt issues no certificate for `{value}`, which is not a name of the internet"),
            PRIVATE_HELP,
        ),
        _ => return,
    };
    let diagnostic = Diagnostic::new(*place, what).with_label("no certificate").with_help(help);
    tls.sources.add_warning(DiagnosticCode::UnissuedName, diagnostic);
}

/// Returns whether a name is not one of the public internet.
fn is_not_public(name: &str) -> bool {
    let is_below = |domain: &str| name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !name.contains('.') || is_signable(name) && !DOCUMENTED.iter().any(|domain| is_below(domain))
}

fn read_challenges(section: &Section) -> Vec<ChallengeKind> {
    let words: Vec<_> = ChallengeKind::ALL.iter().map(|kind| (kind.label(), *kind)).collect();
    let kinds = section.read_strings(&acme::CHALLENGES, |text| crate::config::reader::find_choice(text, &words));
    let Some(kinds) = kinds else {
        return match publishes_records(section) {
            true => vec![ChallengeKind::Dns01],
            false => vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
        };
    };
    for (i, At { place, value }) in kinds.iter().enumerate() {
        if kinds[..i].iter().any(|earlier| earlier.value == *value) {
            section.report_fault_at::<()>(
                acme::CHALLENGES.name,
                *place,
                "this challenge occurs twice",
                "remove one of the two",
            );
        }
    }
    if let (true, Some(node)) = (kinds.is_empty(), section.node(&acme::CHALLENGES)) {
        section.report_fault::<()>(
            acme::CHALLENGES.name,
            node,
            "the list is empty",
            "remove the key to accept every challenge",
        );
    }
    kinds.into_iter().map(|at| at.value).collect()
}

fn parse_directory(text: &str) -> Result<String, TextFault> {
    match text.parse::<Uri>() {
        Ok(uri) if uri.scheme() == Some(&Scheme::HTTPS) && uri.host().is_some() => Ok(text.to_owned()),
        Ok(uri) if uri.scheme() == Some(&Scheme::HTTP) => {
            invalid_text("the URL of an ACME server must be https", "write https://, and name its authority in `ca`")
        }
        _ => invalid_text(
            format!("`{text}` is not the URL of an ACME directory"),
            format!("write one like \"{DIRECTORY}\""),
        ),
    }
}

fn parse_profile(text: &str) -> Result<String, TextFault> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match matches!(text.len(), 1..=64) && text.bytes().all(is_name) {
        true => Ok(text.to_owned()),
        false => invalid_text(format!("`{text}` is not the name of a profile"), PROFILE_HELP),
    }
}

fn parse_contact(text: &str) -> Result<String, TextFault> {
    match text.strip_prefix("mailto:") {
        Some(address) if address.contains('@') && !address.contains([',', '?', ' ']) => Ok(text.to_owned()),
        _ => invalid_text(format!("`{text}` is not a contact"), CONTACT_HELP),
    }
}

/// Returns whether an authority may issue a certificate for the address: private ones are allowed, for those of your own.
fn is_orderable(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

fn check_name(text: &str) -> Result<String, TextFault> {
    let name = text.to_ascii_lowercase();
    if !text.is_ascii() {
        return invalid_text(
            format!("`{text}` is not ASCII"),
            "write the name in its ASCII form, which starts with xn--",
        );
    }
    // Addresses are written like hosts in URLs from here on.
    if let Ok(ip) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return match is_orderable(ip) {
            true => Ok(if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }),
            false => invalid_text(format!("`{text}` is the address of no host"), NAME_HELP),
        };
    }
    let is_label = |label: &str| {
        matches!(label.len(), 1..=63)
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let host = name.strip_prefix("*.").unwrap_or(&name);
    // A wildcard below a single label would cover an entire top-level domain.
    let is_wildcard_of_one = host.len() < name.len() && !host.contains('.');
    match is_host(host) && host.split('.').all(is_label) && name.len() <= NAME_MAX && !is_wildcard_of_one {
        true => Ok(name),
        false => invalid_text(format!("`{text}` is not a host name that a certificate can be ordered for"), NAME_HELP),
    }
}
