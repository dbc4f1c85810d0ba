//! [acme]: where certificates are ordered, and the names that listeners want ordered. Called by `compile`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;

use crate::config::reader::{At, Section};
use crate::config::report::{Diagnostic, Place};
use crate::config::values::{Fault, fault, is_host};
use crate::config::{Acme, AcmeSettings, ListenerSettings};
use crate::tls::{ChallengeBoard, ChallengeKind};
use crate::upstream::tls::TrustedRoots;

const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";
const STATE: &str = "/var/lib/sluicegate/acme";
const TERMS_HELP: &str = "read the terms of service of the ACME server, and write terms_agreed = true";
const CA_HELP: &str = "give a file in PEM: the certificates that sign that of the ACME server itself";
const CONTACT_HELP: &str = "write an e-mail address: \"mailto:admin@example.com\"";
const NAME_HELP: &str = "write a host name like \"www.example.com\"";
const SECTION_HELP: &str = "add a section:\n\n[acme]\nterms_agreed = true";
/// Of a name: files of the state directory are called by it.
const NAME_MAX: usize = 230;
/// Names with certificates of their own, of all listeners.
const NAMES_MAX: usize = 1000;
const CONTACTS_MAX: usize = 10;

/// The section, which may be wrong, and the board of this config.
pub struct AcmeSection<'a> {
    section: &'a Section<'a>,
    board: Arc<ChallengeBoard>,
    is_there: bool,
    settings: Option<AcmeSettings>,
}

impl<'a> AcmeSection<'a> {
    /// `is_there`: the config has such a section.
    pub fn read(section: &'a Section<'a>, is_there: bool) -> AcmeSection<'a> {
        let settings = is_there.then(|| settings(section)).flatten();
        section.unknown();
        AcmeSection { section, board: Arc::default(), is_there, settings }
    }

    /// On which listeners with TLS look for proofs.
    pub fn board(&self) -> Option<&Arc<ChallengeBoard>> {
        Some(&self.board).filter(|_| self.is_there)
    }

    /// The names under `acme` of a listener's `tls`.
    pub fn names(&self, tls: &Section) -> Option<Vec<String>> {
        let names = tls.strings("acme", name)?;
        let node = tls.node("acme")?;
        if !self.is_there {
            return tls.fault("acme", node, "nothing says where certificates are ordered", SECTION_HELP);
        }
        if names.is_empty() {
            return tls.fault("acme", node, "the list is empty", NAME_HELP);
        }
        for (i, At { place, value }) in names.iter().enumerate() {
            if names[..i].iter().any(|earlier| earlier.value == *value) {
                tls.fault_at::<()>("acme", *place, &format!("`{value}` stands there twice"), "remove one of the two");
            }
        }
        Some(names.into_iter().map(|at| at.value).collect())
    }

    /// The whole, with the listeners that there are.
    pub fn finish(self, listeners: &[Arc<ListenerSettings>]) -> Option<Arc<Acme>> {
        let AcmeSection { section, board, mut settings, .. } = self;
        let names: usize = listeners.iter().filter_map(|listener| Some(listener.tls.as_ref()?.ordered().len())).sum();
        let has_plain = listeners.iter().any(|listener| listener.tls.is_none());
        let wants_plain = settings.as_ref().is_some_and(|settings| settings.challenges == [ChallengeKind::Http01]);
        if let Some(settings) = settings.as_mut().filter(|_| !has_plain) {
            settings.challenges.retain(|kind| *kind != ChallengeKind::Http01);
        }
        if let (true, false, Some(node)) = (wants_plain, has_plain, section.node("challenges")) {
            let help = "add redirect_http = \"0.0.0.0:80\" to [server], or \"tls-alpn-01\" to this list";
            return section.fault("challenges", node, "http-01 needs a listener without TLS, and there is none", help);
        }
        if names > NAMES_MAX {
            let what = format!("the listeners name {names} certificates to order; at most {NAMES_MAX} are");
            return section.absent(what, "spread them over several gateways, or order those elsewhere");
        }
        if self.is_there && names == 0 {
            let what = "no listener orders certificates, so this section does nothing";
            let help = "write tls = { acme = [\"www.example.com\"] } in a [[listener]], or remove it";
            section.sources.warn(Diagnostic::new(section.place, what).label("not used").help(help));
        }
        settings.map(|settings| Arc::new(Acme { settings, board }))
    }
}

fn settings(section: &Section) -> Option<AcmeSettings> {
    let directory = section.parse("directory", directory);
    let contact = section.strings("contact", contact);
    let state = section.parse_at("state", |text| match text {
        "" => fault("the path is empty", "name a directory that the gateway may write to"),
        path => Ok(path.to_owned()),
    });
    let ca = section.file("ca");
    let challenges = challenges(section);
    let day = Duration::from_secs(86_400);
    let backoff = section.duration("backoff", Duration::from_secs(1)..=day).unwrap_or(Duration::from_secs(300));
    match section.bool("terms_agreed") {
        Some(true) => {}
        Some(false) => {
            let node = section.node("terms_agreed")?;
            return section.fault("terms_agreed", node, "without that no server issues anything", TERMS_HELP);
        }
        None if section.node("terms_agreed").is_some() => return None,
        None => return section.absent("[acme] does not say that the terms of service are agreed to", TERMS_HELP),
    }
    if let Some((node, what)) = section.node("ca").zip(ca.as_ref().and_then(|text| TrustedRoots::of_pem(text).err())) {
        return section.fault("ca", node, &what, CA_HELP);
    }
    let written = |key| section.node(key).is_some();
    // What is wrong has been told of.
    if written("directory") && directory.is_none() || written("ca") && ca.is_none() {
        return None;
    }
    let state = match state {
        Some(At { place: Place { file, .. }, value }) => section.sources.resolve(file, &value),
        None => PathBuf::from(STATE),
    };
    let contact: Vec<String> = contact.unwrap_or_default().into_iter().map(|at| at.value).collect();
    if let (true, Some(node)) = (contact.len() > CONTACTS_MAX, section.node("contact")) {
        return section.fault("contact", node, &format!("more than {CONTACTS_MAX} addresses"), CONTACT_HELP);
    }
    let directory = directory.unwrap_or_else(|| DIRECTORY.to_owned());
    Some(AcmeSettings { directory, contact, state, ca, challenges, backoff })
}

fn challenges(section: &Section) -> Vec<ChallengeKind> {
    let words: Vec<_> = ChallengeKind::ALL.iter().map(|kind| (kind.label(), *kind)).collect();
    let kinds = section.strings("challenges", |text| crate::config::reader::choose(text, &words));
    let Some(kinds) = kinds else { return ChallengeKind::ALL.to_vec() };
    for (i, At { place, value }) in kinds.iter().enumerate() {
        if kinds[..i].iter().any(|earlier| earlier.value == *value) {
            section.fault_at::<()>("challenges", *place, "this challenge stands there twice", "remove one of the two");
        }
    }
    if let (true, Some(node)) = (kinds.is_empty(), section.node("challenges")) {
        section.fault::<()>("challenges", node, "the list is empty", "leave it out to answer every challenge");
    }
    kinds.into_iter().map(|at| at.value).collect()
}

fn directory(text: &str) -> Result<String, Fault> {
    match text.parse::<Uri>() {
        Ok(uri) if uri.scheme() == Some(&Scheme::HTTPS) && uri.host().is_some() => Ok(text.to_owned()),
        Ok(uri) if uri.scheme() == Some(&Scheme::HTTP) => {
            fault("an ACME server is asked over HTTPS only", "write https://, and name its authority in `ca`")
        }
        _ => fault(format!("`{text}` is not the URL of an ACME directory"), format!("write one like \"{DIRECTORY}\"")),
    }
}

fn contact(text: &str) -> Result<String, Fault> {
    match text.strip_prefix("mailto:") {
        Some(address) if address.contains('@') && !address.contains([',', '?', ' ']) => Ok(text.to_owned()),
        _ => fault(format!("`{text}` is not a contact"), CONTACT_HELP),
    }
}

fn name(text: &str) -> Result<String, Fault> {
    let name = text.to_ascii_lowercase();
    if !text.is_ascii() {
        return fault(format!("`{text}` is not ASCII"), "write the name in its ASCII form, which starts with xn--");
    }
    if name.starts_with("*.") {
        let help = "name each host, or get the certificate elsewhere and put it into `certificates`";
        return fault("wildcards are issued for the challenge dns-01 only, which is not spoken here", help);
    }
    if name.parse::<std::net::IpAddr>().is_ok() || name.starts_with('[') {
        return fault(format!("`{text}` is an address"), NAME_HELP);
    }
    let is_label = |label: &str| {
        matches!(label.len(), 1..=63)
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    match is_host(&name) && name.split('.').all(is_label) && name.len() <= NAME_MAX {
        true => Ok(name),
        false => fault(format!("`{text}` is not a host name that a certificate can be ordered for"), NAME_HELP),
    }
}
