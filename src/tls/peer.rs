//! Identity of a TLS client and the server name that it asked for, read once after the handshake.

use std::fmt::Write;
use std::sync::Arc;

use rustls::{ProtocolVersion, ServerConnection};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use crate::tls::certs;
use crate::tls::certs::Certificates;

/// Identity of a TLS client, and the server name that it asked for.
#[derive(Debug)]
pub struct TlsPeer {
    /// The lower-case server name of the client (SNI). `None` if it connected to an address.
    pub server_name: Option<String>,
    /// The protocol version as logs write it, such as `TLSv1.3`.
    pub version: Option<&'static str>,
    /// The cipher suite, by its IANA name.
    pub cipher: Option<&'static str>,
    /// The listener's certificates at the time of the handshake.
    certificates: Arc<Certificates>,
    /// The verified certificate of the client, if it has shown one.
    pub certificate: Option<ClientCertificate>,
}

/// The parts of a client's verified certificate that the gateway uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The distinguished name as RFC 4514 writes it: `CN=app,O=Example`.
    pub subject: String,
    /// The first subject alternative name: a DNS name, an address, an e-mail address or a URI.
    pub alternative_name: Option<String>,
    /// The certificate itself; `None` in an explanation.
    pub der: Option<Box<[u8]>>,
    not_after_s: i64,
}

impl TlsPeer {
    /// Reads a connection whose handshake has succeeded, so that the client's certificate is verified.
    pub fn new(connection: &ServerConnection, certificates: Arc<Certificates>) -> TlsPeer {
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        TlsPeer {
            server_name: connection.server_name().map(str::to_ascii_lowercase),
            version: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => Some("TLSv1.2"),
                Some(ProtocolVersion::TLSv1_3) => Some("TLSv1.3"),
                _ => None,
            },
            cipher: connection.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()),
            certificates,
            certificate: certificate.and_then(|der| parse_certificate(der)),
        }
    }

    /// Makes the peer of a QUIC connection, whose library shows the server name and the client's certificate.
    pub fn over_quic(
        server_name: Option<String>,
        certificate: Option<&[u8]>,
        certificates: Arc<Certificates>,
    ) -> TlsPeer {
        TlsPeer {
            server_name: server_name.map(|name| name.to_ascii_lowercase()),
            version: Some("TLSv1.3"),
            cipher: None,
            certificates,
            certificate: certificate.and_then(parse_certificate),
        }
    }

    /// Makes the peer of a connection that an explanation assumes.
    pub fn assumed(server_name: Option<String>, certificates: Arc<Certificates>) -> TlsPeer {
        TlsPeer { server_name, version: None, cipher: None, certificates, certificate: None }
    }

    /// Returns whether a request for `host` may come over this connection. The host must be the server name of the
    /// handshake, or one for which the certificate shown then is valid. Without a server name, any host is allowed for
    /// which no other certificate is valid.
    pub fn is_valid_for(&self, host: &str) -> bool {
        match &self.server_name {
            Some(name) => name == host || self.certificates.covers(name, host),
            None => self.certificates.default_covers(host),
        }
    }

    /// Returns whether the client's certificate has expired. A resumed session does not verify it again.
    pub fn has_expired(&self, now_s: i64) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| certificate.not_after_s < now_s)
    }
}

/// Reads a client's certificate. `None` if it is malformed, which a verifier would have rejected.
impl ClientCertificate {
    /// Makes a certificate of which only the subject is known, to explain a request.
    pub fn from_subject(subject: &str) -> ClientCertificate {
        ClientCertificate { subject: subject.to_owned(), alternative_name: None, der: None, not_after_s: i64::MAX }
    }
}

fn parse_certificate(der: &[u8]) -> Option<ClientCertificate> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let alternative_name = match certificate.subject_alternative_name() {
        Ok(Some(names)) => names.value.general_names.iter().find_map(certs::name_text),
        _ => None,
    };
    let not_after_s = certificate.validity().not_after.timestamp();
    let subject = format_name(certificate.subject());
    Some(ClientCertificate { subject, alternative_name, der: Some(der.into()), not_after_s })
}

/// Formats a distinguished name by RFC 4514: the last part first, and special characters escaped, so that no value can
/// pose as another part.
fn format_name(name: &X509Name<'_>) -> String {
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
                Ok(value) => push_escaped(&mut text, value),
                Err(_) => {
                    text.push('#');
                    text.push_str(&hex::encode(attribute.as_slice()));
                }
            }
        }
    }
    text
}

fn push_escaped(text: &mut String, value: &str) {
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
    fn the_subject_and_the_first_alternative_name_are_read() {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::URI("spiffe://example/app".try_into().unwrap()));
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "Example, Inc.");
        subject.push(DnType::CommonName, " app+CN=root");
        params.distinguished_name = subject;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let found = parse_certificate(certificate.der()).unwrap();
        assert_eq!(found.subject, "CN=\\ app\\+CN\\=root,O=Example\\, Inc.");
        assert_eq!(found.alternative_name.as_deref(), Some("spiffe://example/app"));
    }

    #[test]
    fn bytes_that_are_no_certificate_identify_no_client() {
        assert_eq!(parse_certificate(b""), None);
        assert_eq!(parse_certificate(&[0x30; 64]), None);
    }
}
