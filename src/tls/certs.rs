//! Which certificate answers for a name: exact names first, then a wildcard for one label, then the
//! first certificate of the listener. Names are those that a certificate states itself (its DNS
//! subject alternative names, RFC 9525), and addresses. Asked by rustls in each handshake, and by the page
//! whether a request may come over the connection that it came over.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{GeneralName, X509Certificate};

/// A chain with its key, the names it is for, and for how long.
#[derive(Clone, Debug)]
pub struct NamedKey {
    pub key: Arc<CertifiedKey>,
    pub names: Vec<String>,
    pub term: CertificateTerm,
}

/// For how long a certificate is good, in seconds of Unix time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateTerm {
    /// The first name that the certificate states, or whom it was made for.
    pub name: String,
    pub not_before_s: i64,
    pub not_after_s: i64,
}

impl CertificateTerm {
    pub fn of(certificate: &X509Certificate<'_>) -> CertificateTerm {
        let validity = certificate.validity();
        CertificateTerm {
            name: names(certificate).into_iter().next().unwrap_or_else(|| certificate.subject().to_string()),
            not_before_s: validity.not_before.timestamp(),
            not_after_s: validity.not_after.timestamp(),
        }
    }
}

/// The certificates of one listener; none only while all of them are awaited.
#[derive(Debug)]
pub struct Certificates {
    keys: Vec<Arc<CertifiedKey>>,
    /// Of `keys`, in their order.
    pub terms: Vec<CertificateTerm>,
    /// Names whose certificates have been ordered and are not there: the default does not answer to them.
    awaited: HashSet<String>,
    /// Lower-case names to places in `keys`, in the order of the config: one name may have a
    /// certificate of each kind of key.
    exact: HashMap<String, Vec<usize>>,
    /// The part behind `*.`.
    wildcard: HashMap<String, Vec<usize>>,
    default: Vec<usize>,
}

impl Certificates {
    /// `awaited`: lower-case names that shall have certificates of their own.
    pub fn new(keys: Vec<NamedKey>, awaited: HashSet<String>) -> Certificates {
        let (mut exact, mut wildcard) = (HashMap::<String, Vec<usize>>::new(), HashMap::<String, Vec<usize>>::new());
        for (place, key) in keys.iter().enumerate() {
            for name in &key.names {
                match name.strip_prefix("*.") {
                    Some(parent) => wildcard.entry(parent.to_owned()).or_default().push(place),
                    None => exact.entry(name.clone()).or_default().push(place),
                }
            }
        }
        let default = if keys.is_empty() { Vec::new() } else { vec![0] };
        let (keys, terms) = keys.into_iter().map(|named| (named.key, named.term)).unzip();
        Certificates { keys, terms, awaited, exact, wildcard, default }
    }

    /// Whether the certificate that a client gets who asks for `asked` is for `host` too, both lower-case.
    pub fn covers(&self, asked: &str, host: &str) -> bool {
        self.is_for(self.places(asked), host)
    }

    /// Whether the one that a client gets who asks for no name is for `host`, or else none is.
    pub fn default_covers(&self, host: &str) -> bool {
        self.is_for(&self.default, host) || self.stating(host).next().is_none()
    }

    fn is_for(&self, places: &[usize], host: &str) -> bool {
        self.stating(host).any(|place| places.contains(place))
    }

    /// The places of all certificates that are for `host`.
    fn stating(&self, host: &str) -> impl Iterator<Item = &usize> {
        let parent = host.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(host).into_iter().chain(parent).flatten()
    }

    /// Whether a client that asks for this name, or for none, is shown a certificate.
    pub fn answers_to(&self, asked: Option<&str>) -> bool {
        !asked.map_or(&*self.default, |name| self.places(&name.to_ascii_lowercase())).is_empty()
    }

    /// `name` in lower case.
    fn places(&self, name: &str) -> &[usize] {
        let parent = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        let found = self.exact.get(name).or_else(parent);
        found.map_or_else(|| if self.awaited.contains(name) { &[] } else { &*self.default }, Vec::as_slice)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let places = hello.server_name().map_or(&*self.default, |name| self.places(&name.to_ascii_lowercase()));
        let usable = |place: &&usize| self.keys[**place].key.choose_scheme(hello.signature_schemes()).is_some();
        places.iter().find(usable).or(places.first()).map(|place| self.keys[*place].clone())
    }
}

/// The DNS names and addresses that a certificate is for, as hosts are written: lower-case, IPv6 in brackets.
pub fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(_) => text(name).map(|ip| if ip.contains(':') { format!("[{ip}]") } else { ip }),
        _ => None,
    };
    names.value.general_names.iter().filter_map(host).collect()
}

/// A name that is a text: DNS names, e-mail addresses and URIs as they are, addresses as usual.
pub fn text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => Some((*text).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(bytes) => Some(Ipv4Addr::from(bytes).to_string()),
            Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls::crypto::ring::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;
    use x509_parser::prelude::FromDer;

    use super::*;

    fn certificates(of: &[&[&str]]) -> Certificates {
        let key = |names: &&[&str]| {
            let key = KeyPair::generate().unwrap();
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let parsed = X509Certificate::from_der(certificate.der()).unwrap().1;
            let (names, term) = (super::names(&parsed), CertificateTerm::of(&parsed));
            let chain = vec![certificate.der().clone()];
            NamedKey { key: Arc::new(CertifiedKey::new(chain, any_supported_type(&key).unwrap())), names, term }
        };
        Certificates::new(of.iter().map(key).collect(), HashSet::from(["awaited.example".to_owned()]))
    }

    #[test]
    fn the_nearest_name_wins_and_the_first_certificate_is_the_default() {
        let all = certificates(&[&["default.example"], &["*.example.com"], &["www.example.com", "Example.com"]]);
        for (name, place) in [
            ("default.example", 0),
            ("unknown.example", 0),
            ("api.example.com", 1),
            ("API.Example.COM", 1),
            ("a.b.example.com", 0),
            ("www.example.com", 2),
            ("example.com", 2),
            ("", 0),
        ] {
            assert_eq!(all.places(&name.to_ascii_lowercase()), &[place], "{name}");
        }
    }

    #[test]
    fn nothing_answers_to_a_name_whose_certificate_is_awaited() {
        let none = certificates(&[]);
        assert_eq!([None, Some("awaited.example"), Some("a.example")].map(|name| none.answers_to(name)), [false; 3]);
        assert!(none.default_covers("a.example") && !none.covers("a.example", "a.example"));
        let one = certificates(&[&["default.example"]]);
        let asked = [None, Some("a.example"), Some("Awaited.example")];
        assert_eq!(asked.map(|name| one.answers_to(name)), [true, true, false]);
        assert!(certificates(&[&["*.example"]]).answers_to(Some("awaited.example")));
    }

    #[test]
    fn a_certificate_is_for_all_its_names_and_no_others() {
        let all =
            certificates(&[&["a.example", "*.b.example", "192.0.2.1", "2001:db8::1"], &["c.example", "x.b.example"]]);
        for (asked, host, covered) in [
            ("a.example", "any.b.example", true),
            ("any.b.example", "a.example", true),
            ("a.example", "192.0.2.1", true),
            ("a.example", "[2001:db8::1]", true),
            ("a.example", "x.b.example", true),
            ("x.b.example", "a.example", false),
            ("a.example", "c.example", false),
            ("a.example", "b.example", false),
            ("a.example", "a.b.b.example", false),
            ("nobody.example", "a.example", true),
            ("a.example", "nobody.example", false),
        ] {
            assert_eq!(all.covers(asked, host), covered, "{asked} {host}");
        }
        for (host, covered) in
            [("a.example", true), ("c.example", false), ("nobody.example", true), ("192.0.2.2", true)]
        {
            assert_eq!(all.default_covers(host), covered, "{host}");
        }
    }
}
