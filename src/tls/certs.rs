//! Selects the certificate for a hostname: an exact name first, then a wildcard for one label, then the first
//! certificate of the listener. A client that uses an address sends no name, and gets the first certificate with an
//! address, if there is one. The names of a certificate are its subject alternative names (RFC 9525): DNS names and
//! addresses. rustls selects one in each handshake. For each request, the gateway checks that the certificate that was
//! shown is valid for the request's host.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{GeneralName, X509Certificate};

use crate::net::host_address;

/// A certificate chain with its key, its names and its validity.
#[derive(Clone, Debug)]
pub struct NamedKey {
    pub key: Arc<CertifiedKey>,
    pub names: Vec<String>,
    pub validity: CertificateValidity,
}

/// The validity of a certificate, in seconds of Unix time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateValidity {
    /// The first of its names, or its subject if it has none.
    pub name: String,
    pub not_before_s: i64,
    pub not_after_s: i64,
}

impl CertificateValidity {
    pub fn new(certificate: &X509Certificate<'_>) -> CertificateValidity {
        let validity = certificate.validity();
        CertificateValidity {
            name: certificate_names(certificate)
                .into_iter()
                .next()
                .unwrap_or_else(|| certificate.subject().to_string()),
            not_before_s: validity.not_before.timestamp(),
            not_after_s: validity.not_after.timestamp(),
        }
    }
}

/// The certificates of one listener. There is none only while an ACME server has yet to issue all of them.
#[derive(Debug)]
pub struct Certificates {
    keys: Vec<Arc<CertifiedKey>>,
    /// The validity of each of `keys`, in their order.
    pub validities: Vec<CertificateValidity>,
    /// The names of each of `keys`, in their order.
    pub names: Vec<Vec<String>>,
    /// Lower-case names whose certificates have been ordered and not issued yet. The default is not shown for them.
    awaited: HashSet<String>,
    /// Indexes into `keys` by lower-case name, in the order of the config. One name may have several certificates, one
    /// for each type of key.
    exact: HashMap<String, Vec<usize>>,
    /// The same for wildcards, by the part behind `*.`.
    wildcard: HashMap<String, Vec<usize>>,
    /// The index of the first certificate, if there is one.
    default: Vec<usize>,
    /// The index of the certificate for clients without SNI.
    nameless: Vec<usize>,
}

impl Certificates {
    /// Indexes `keys` by name. `awaited`: lower-case names whose certificates have not been issued yet.
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
        let with_address = keys.iter().position(|key| key.names.iter().any(|name| host_address(name).is_some()));
        let nameless = with_address.map_or_else(|| default.clone(), |place| vec![place]);
        let names = keys.iter().map(|named| named.names.clone()).collect();
        let (keys, validities) = keys.into_iter().map(|named| (named.key, named.validity)).unzip();
        Certificates { keys, validities, names, awaited, exact, wildcard, default, nameless }
    }

    /// Returns whether the certificate shown for the server name `asked` is valid for `host`, too. Both are lower-case.
    pub fn covers(&self, asked: &str, host: &str) -> bool {
        self.is_valid_for(self.select_indexes(asked), host)
    }

    /// Returns whether the certificate shown to a client without SNI is valid for `host`, or no other certificate is.
    pub fn default_covers(&self, host: &str) -> bool {
        self.is_valid_for(&self.nameless, host) || self.indexes_valid_for(host).next().is_none()
    }

    fn is_valid_for(&self, places: &[usize], host: &str) -> bool {
        self.indexes_valid_for(host).any(|place| places.contains(place))
    }

    /// Returns the indexes of all certificates that are valid for `host`.
    fn indexes_valid_for(&self, host: &str) -> impl Iterator<Item = &usize> {
        let parent = host.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(host).into_iter().chain(parent).flatten()
    }

    /// Returns whether there is a certificate to show for this server name, or without SNI.
    pub fn has_certificate_for(&self, asked: Option<&str>) -> bool {
        !asked.map_or(&*self.nameless, |name| self.select_indexes(&name.to_ascii_lowercase())).is_empty()
    }

    /// Returns the indexes of the certificates to show for `name`, which is lower-case.
    fn select_indexes(&self, name: &str) -> &[usize] {
        let parent = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        let indexes = self.exact.get(name).or_else(parent);
        indexes.map_or_else(|| if self.is_awaited(name) { &[] } else { &*self.default }, Vec::as_slice)
    }

    /// Returns whether a certificate for the name, or for a wildcard that matches it, has not been issued yet.
    fn is_awaited(&self, name: &str) -> bool {
        let wildcard = || Some(format!("*.{}", name.split_once('.')?.1));
        self.awaited.contains(name)
            || !self.awaited.is_empty() && wildcard().is_some_and(|wildcard| self.awaited.contains(&wildcard))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let places =
            hello.server_name().map_or(&*self.nameless, |name| self.select_indexes(&name.to_ascii_lowercase()));
        let usable = |place: &&usize| self.keys[**place].key.choose_scheme(hello.signature_schemes()).is_some();
        places.iter().find(usable).or(places.first()).map(|place| self.keys[*place].clone())
    }
}

/// Returns the DNS names and addresses of a certificate, written like hosts in URLs: lower-case, IPv6 in brackets.
pub fn certificate_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(_) => name_text(name).map(|ip| if ip.contains(':') { format!("[{ip}]") } else { ip }),
        _ => None,
    };
    names.value.general_names.iter().filter_map(host).collect()
}

/// Returns the text of a DNS name, an e-mail address, a URI or an IP address. `None` for other kinds of names.
pub fn name_text(name: &GeneralName<'_>) -> Option<String> {
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
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
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
            let (names, term) = (super::certificate_names(&parsed), CertificateValidity::new(&parsed));
            let chain = vec![certificate.der().clone()];
            NamedKey {
                key: Arc::new(CertifiedKey::new(chain, any_supported_type(&key).unwrap())),
                names,
                validity: term,
            }
        };
        Certificates::new(of.iter().map(key).collect(), HashSet::from(["awaited.example".to_owned()]))
    }

    #[test]
    fn the_most_specific_name_wins_and_the_first_certificate_is_the_default() {
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
            assert_eq!(all.select_indexes(&name.to_ascii_lowercase()), &[place], "{name}");
        }
    }

    #[test]
    fn no_certificate_is_shown_for_a_name_whose_own_is_not_issued_yet() {
        let none = certificates(&[]);
        assert_eq!(
            [None, Some("awaited.example"), Some("a.example")].map(|name| none.has_certificate_for(name)),
            [false; 3]
        );
        assert!(none.default_covers("a.example") && !none.covers("a.example", "a.example"));
        let one = certificates(&[&["default.example"]]);
        let asked = [None, Some("a.example"), Some("Awaited.example")];
        assert_eq!(asked.map(|name| one.has_certificate_for(name)), [true, true, false]);
        assert!(certificates(&[&["*.example"]]).has_certificate_for(Some("awaited.example")));
    }

    #[test]
    fn a_certificate_is_valid_for_all_its_names_and_no_others() {
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
