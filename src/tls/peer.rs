//! Who the client of a TLS connection is and what it asked for, read once when the handshake is done.

use std::fmt::Write;
use std::sync::Arc;

use rustls::ServerConnection;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use super::certs::{self, Certificates};

/// What the handshake has told.
#[derive(Debug)]
pub struct TlsPeer {
    /// The host that the client asked for, lower-case; none if it used an address.
    pub server_name: Option<String>,
    pub cipher: Option<&'static str>,
    /// Those of the listener, as of the handshake.
    certificates: Arc<Certificates>,
    /// Verified, if the client showed one.
    pub certificate: Option<ClientCertificate>,
}

/// The names in a verified certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The distinguished name as RFC 4514 writes it: `CN=app,O=Example`.
    pub subject: String,
    /// The first subject alternative name: a DNS name, an address, an e-mail address or a URI, as it is.
    pub alternative_name: Option<String>,
    not_after_s: i64,
}

impl TlsPeer {
    /// Of a connection whose handshake is done: its certificates are verified.
    pub fn of(connection: &ServerConnection, certificates: Arc<Certificates>) -> TlsPeer {
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        TlsPeer {
            server_name: connection.server_name().map(str::to_ascii_lowercase),
            cipher: connection.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()),
            certificates,
            certificate: certificate.and_then(|der| client_certificate(der)),
        }
    }

    /// Whether a request for `host` may come this way: the host that was asked for in the handshake, or
    /// another one that the certificate shown then is for. Who asked for none may ask for whatever no other
    /// certificate is for.
    pub fn may_ask_for(&self, host: &str) -> bool {
        match &self.server_name {
            Some(name) => name == host || self.certificates.covers(name, host),
            None => self.certificates.default_covers(host),
        }
    }

    /// A session that goes on verifies nothing anew.
    pub fn has_expired(&self, now_s: i64) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| certificate.not_after_s < now_s)
    }
}

/// `None` for what is no certificate, which no verifier lets through.
fn client_certificate(der: &[u8]) -> Option<ClientCertificate> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let alternative_name = match certificate.subject_alternative_name() {
        Ok(Some(names)) => names.value.general_names.iter().find_map(certs::text),
        _ => None,
    };
    let not_after_s = certificate.validity().not_after.timestamp();
    Some(ClientCertificate { subject: distinguished(certificate.subject()), alternative_name, not_after_s })
}

/// RFC 4514: the last name first; whatever could be taken for syntax is escaped, so that no value
/// can pose as another name.
fn distinguished(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let sets: Vec<_> = name.iter_rdn().collect();
    for (i, set) in sets.iter().rev().enumerate() {
        if i > 0 {
            text.push(',');
        }
        for (j, attribute) in set.iter().enumerate() {
            if j > 0 {
                text.push('+');
            }
            match oid2abbrev(attribute.attr_type(), oid_registry()) {
                Ok(short) => text.push_str(short),
                Err(_) => text.push_str(&attribute.attr_type().to_id_string()),
            }
            text.push('=');
            match attribute.as_str() {
                Ok(value) => escape(&mut text, value),
                Err(_) => {
                    text.push('#');
                    for byte in attribute.as_slice() {
                        let _ = write!(text, "{byte:02x}");
                    }
                }
            }
        }
    }
    text
}

fn escape(text: &mut String, value: &str) {
    let last = value.chars().count().saturating_sub(1);
    for (at, character) in value.chars().enumerate() {
        match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' => text.extend(['\\', character]),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            '#' if at == 0 => text.push_str("\\#"),
            '\0'..='\u{1f}' | '\u{7f}' => {
                let _ = write!(text, "\\{:02x}", u32::from(character));
            }
            _ => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn a_certificate_says_who_it_is() {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::URI("spiffe://example/app".try_into().unwrap()));
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "Example, Inc.");
        subject.push(DnType::CommonName, " app+CN=root");
        params.distinguished_name = subject;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let found = client_certificate(certificate.der()).unwrap();
        assert_eq!(found.subject, "CN=\\ app\\+CN\\=root,O=Example\\, Inc.");
        assert_eq!(found.alternative_name.as_deref(), Some("spiffe://example/app"));
    }

    #[test]
    fn what_is_no_certificate_is_nobody() {
        assert_eq!(client_certificate(b""), None);
        assert_eq!(client_certificate(&[0x30; 64]), None);
    }
}
