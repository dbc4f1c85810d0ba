//! Which servers the gateway trusts when it is the client of a TLS connection: to upstream servers, Redis, the ACME
//! server, issuers of tokens and the span collector.
//!
//! A server's certificate is accepted if one of the authorities has signed it, or if the list contains the certificate
//! itself. OpenSSL has the second rule too: a self-signed certificate of `openssl req -x509` is its own authority.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256};
use x509_parser::oid_registry::OID_PKCS1_RSASSAPSS;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::tls::certs::certificate_names;
use crate::tls::{crypto_provider, pem};

/// Which server certificates are trusted.
#[derive(Clone)]
pub enum Trust {
    Roots(TrustedRoots),
    /// Any certificate.
    Anyone,
}

/// Certificate authorities, and server certificates that are trusted themselves.
#[derive(Clone)]
pub struct TrustedRoots {
    store: Arc<RootCertStore>,
    certificates: Arc<[CertificateDer<'static>]>,
}

impl Trust {
    /// Trusts the authorities in PEM, or the authorities of the system.
    ///
    /// # Errors
    /// The text is not valid PEM or has no certificate.
    pub fn in_pem_or_system(pem: Option<&str>) -> Result<Trust, String> {
        Ok(Trust::Roots(match pem {
            Some(pem) => TrustedRoots::from_pem(pem)?,
            None => TrustedRoots::from_system(rustls_native_certs::load_native_certs().certs),
        }))
    }

    /// Begins the settings of a client with this trust.
    ///
    /// # Errors
    /// There is no authority.
    pub fn into_client(self) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
        let provider = crypto_provider();
        let verifier: Arc<dyn ServerCertVerifier> = match self {
            Trust::Roots(TrustedRoots { store, certificates }) => {
                let webpki = WebPkiServerVerifier::builder_with_provider(store, provider.clone()).build();
                let webpki = webpki.map_err(|error| error.to_string())?;
                Arc::new(AcceptTrusted { signed: webpki, certificates, provider: provider.clone() })
            }
            Trust::Anyone => Arc::new(AcceptAny(provider.clone())),
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        Ok(builder.dangerous().with_custom_certificate_verifier(verifier))
    }
}

impl TrustedRoots {
    /// Reads the certificates of a PEM file.
    ///
    /// # Errors
    /// The text is not valid PEM or has no certificate.
    pub fn from_pem(text: &str) -> Result<TrustedRoots, String> {
        let mut store = RootCertStore::empty();
        let certificates = pem::certificates(text)?;
        for certificate in &certificates {
            store.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        Ok(TrustedRoots { store: Arc::new(store), certificates: certificates.into() })
    }

    /// Returns the authorities of the system that can be parsed. If there are none, returns those that browsers trust.
    pub fn from_system(certificates: Vec<CertificateDer<'static>>) -> TrustedRoots {
        let mut store = RootCertStore::empty();
        match store.add_parsable_certificates(certificates.iter().cloned()).0 {
            0 => TrustedRoots::of_browsers(),
            _ => TrustedRoots { store: Arc::new(store), certificates: certificates.into() },
        }
    }

    /// Returns the authorities that browsers trust.
    pub fn of_browsers() -> TrustedRoots {
        let store = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        TrustedRoots { store: Arc::new(store), certificates: Arc::default() }
    }

    /// Returns a hash of the certificates.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for certificate in &*self.certificates {
            digest.update(certificate);
        }
        digest.finalize().into()
    }
}

/// Accepts what an authority has signed, and the listed certificates themselves.
#[derive(Debug)]
struct AcceptTrusted {
    signed: Arc<WebPkiServerVerifier>,
    certificates: Arc<[CertificateDer<'static>]>,
    provider: Arc<CryptoProvider>,
}

impl AcceptTrusted {
    fn is_listed(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|listed| **listed == **certificate)
    }
}

impl ServerCertVerifier for AcceptTrusted {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let result = self.signed.verify_server_cert(certificate, intermediates, name, ocsp, now);
        match result {
            Err(_) if self.is_listed(certificate) => verify_listed(certificate, name, now),
            // `Other` stands for exactly this fault, because the library has names for all other faults of a CA
            // certificate.
            Err(Error::InvalidCertificate(CertificateError::Other(_)))
                if parse(certificate).is_ok_and(|certificate| certificate.is_ca()) =>
            {
                Err(Error::General(
                    "the server shows the certificate of an authority (CA:TRUE), and `ca` does not list it; list it \
                     there to trust it, or give the server a certificate of its own"
                        .to_owned(),
                ))
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
        {
            Err(_) if self.is_listed(certificate) => verify_with_key(&self.provider, message, certificate, signature),
            result => result,
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
        {
            Err(_) if self.is_listed(certificate) => verify_with_key(&self.provider, message, certificate, signature),
            result => result,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let has_pss_key = |listed: &CertificateDer<'_>| {
            parse(listed).is_ok_and(|certificate| certificate.public_key().algorithm.algorithm == OID_PKCS1_RSASSAPSS)
        };
        let mut schemes = self.provider.signature_verification_algorithms.supported_schemes();
        if self.certificates.iter().any(has_pss_key) {
            schemes.extend(PSS_KEY_SCHEMES.map(SignatureScheme::from));
        }
        schemes
    }
}

/// Accepts any certificate. The handshake still shows that the server has its key.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl AcceptAny {
    /// Verifies the signature of a handshake. The library cannot verify those of very short and very long RSA keys and
    /// of keys for RSASSA-PSS, so they pass: a signature with a key that nobody vouches for proves nothing about the
    /// server.
    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if PSS_KEY_SCHEMES.contains(&u16::from(signature.scheme)) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        match parse(certificate)?.public_key().parsed() {
            Ok(PublicKey::RSA(key)) if !VERIFIABLE_RSA_BITS.contains(&key.key_size()) => {
                Ok(HandshakeSignatureValid::assertion())
            }
            _ => verify_with_key(&self.0, message, certificate, signature),
        }
    }
}

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let schemes = self.0.signature_verification_algorithms.supported_schemes();
        schemes.into_iter().chain(PSS_KEY_SCHEMES.map(SignatureScheme::from)).collect()
    }
}

/// The signatures of keys that are only for RSASSA-PSS, with SHA-256, SHA-384 and SHA-512 (RFC 8446, section 4.2.3).
const PSS_KEY_SCHEMES: [u16; 3] = [0x0809, 0x080a, 0x080b];

/// Sizes of RSA keys whose signatures the library can verify, in bits.
const VERIFIABLE_RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    let result = X509Certificate::from_der(certificate);
    result.map(|(_, certificate)| certificate).map_err(|_| CertificateError::BadEncoding.into())
}

/// Verifies a certificate that the config lists: whether it is for this server, and valid now.
fn verify_listed(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let certificate = parse(certificate)?;
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    if validity.not_before.timestamp() > now_s {
        return Err(CertificateError::NotValidYet.into());
    }
    if validity.not_after.timestamp() < now_s {
        return Err(CertificateError::Expired.into());
    }
    match is_named(&certificate, &name.to_str()) {
        true => Ok(ServerCertVerified::assertion()),
        false => Err(CertificateError::NotValidForName.into()),
    }
}

/// Returns whether the certificate has this name or address. Its common name counts if it has no alternative names, as
/// in OpenSSL: the shortest command that makes a self-signed certificate writes no others.
fn is_named(certificate: &X509Certificate<'_>, name: &str) -> bool {
    let mut names = certificate_names(certificate);
    if names.is_empty() {
        let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        names.extend(common.map(str::to_ascii_lowercase));
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let parent = name.split_once('.').map(|(_, parent)| parent).filter(|_| name.parse::<IpAddr>().is_err());
    names.iter().any(|listed| {
        let is_parent = listed.strip_prefix("*.").is_some_and(|domain| parent == Some(domain));
        is_parent || listed.trim_matches(['[', ']']) == name
    })
}

/// Verifies the signature of a handshake with the key of the certificate, whose other parts may be anything: version 1,
/// or an authority.
fn verify_with_key(
    provider: &CryptoProvider,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let certificate = parse(certificate)?;
    let key = certificate.public_key();
    let schemes = provider.signature_verification_algorithms.mapping.iter();
    // A key that is only for RSASSA-PSS signs as any other RSA key does. The library does not know its schemes.
    let is_pss_key = key.algorithm.algorithm == OID_PKCS1_RSASSAPSS;
    let signed_scheme = match u16::from(signature.scheme) {
        0x0809 if is_pss_key => SignatureScheme::RSA_PSS_SHA256,
        0x080a if is_pss_key => SignatureScheme::RSA_PSS_SHA384,
        0x080b if is_pss_key => SignatureScheme::RSA_PSS_SHA512,
        _ => signature.scheme,
    };
    let is_verified = schemes
        .filter(|(scheme, _)| *scheme == signed_scheme)
        .flat_map(|(_, algorithms)| *algorithms)
        .any(|algorithm| {
            (is_pss_key && signed_scheme != signature.scheme || is_key_of(key.raw, &algorithm.public_key_alg_id()))
                && algorithm.verify_signature(&key.subject_public_key.data, message, signature.signature()).is_ok()
        });
    match is_verified {
        true => Ok(HandshakeSignatureValid::assertion()),
        false => Err(CertificateError::BadSignature.into()),
    }
}

/// Returns whether a key in DER is for this algorithm: a SEQUENCE that starts with the SEQUENCE of the algorithm's
/// identifier.
fn is_key_of(key: &[u8], algorithm: &[u8]) -> bool {
    const SEQUENCE: u8 = 0x30;
    let head = match key.get(1) {
        Some(length) if *length >= 0x80 => 2 + usize::from(length & 0x7f),
        _ => 2,
    };
    let Ok(length) = u8::try_from(algorithm.len()) else { return false };
    key.get(head..).and_then(|key| key.strip_prefix(&[SEQUENCE, length])).is_some_and(|key| key.starts_with(algorithm))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};

    use super::*;

    fn named(common: &str, names: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common);
        params.subject_alt_names = names
            .iter()
            .map(|name| match name.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            })
            .collect();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_listed_certificate_is_valid_for_its_names_only() {
        let alternative = named("cn.test", &["app.test", "*.b.test", "192.0.2.1", "2001:db8::1"]);
        let common = named("App.test", &[]);
        let wildcard_in_address = named("*.0.2.1", &[]);
        for (certificate, name, is_valid) in [
            (&alternative, "app.test", true),
            (&alternative, "APP.test.", true),
            (&alternative, "x.b.test", true),
            (&alternative, "x.y.b.test", false),
            (&alternative, "b.test", false),
            (&alternative, "192.0.2.1", true),
            (&alternative, "2001:db8::1", true),
            (&alternative, "192.0.2.2", false),
            (&alternative, "cn.test", false),
            (&common, "app.test", true),
            (&common, "b.test", false),
            (&wildcard_in_address, "192.0.2.1", false),
        ] {
            assert_eq!(is_named(&parse(certificate).unwrap(), name), is_valid, "{name}");
        }
    }

    #[test]
    fn a_listed_certificate_is_valid_for_its_time_only() {
        let mut params = CertificateParams::new(vec!["app.test".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        let name = ServerName::try_from("app.test").unwrap();
        let at = |s| verify_listed(&certificate, &name, UnixTime::since_unix_epoch(std::time::Duration::from_secs(s)));
        assert!(at(1_577_836_801).is_ok());
        assert_eq!(at(1_577_000_000).unwrap_err(), CertificateError::NotValidYet.into());
        assert_eq!(at(1_610_000_000).unwrap_err(), CertificateError::Expired.into());
    }

    #[test]
    fn the_certificate_of_an_authority_is_the_fault_only_if_nothing_else_is() {
        let authority = |until_year| {
            let mut params = CertificateParams::new(vec!["app.test".to_owned()]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(until_year, 1, 1));
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let (listed, provider) = (authority(2040), crypto_provider());
        let mut store = RootCertStore::empty();
        store.add(listed.clone()).unwrap();
        let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone()).build().unwrap();
        let verifier = AcceptTrusted { signed, certificates: [listed].into(), provider };
        let name = ServerName::try_from("app.test").unwrap();
        let in_2022 = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_650_000_000));
        let fault = |certificate: &CertificateDer<'_>| {
            verifier.verify_server_cert(certificate, &[], &name, &[], in_2022).unwrap_err().to_string()
        };
        for (certificate, expected) in [
            (authority(2030), "CA:TRUE"),
            (authority(2021), "expired"),
            (named("app.test", &["app.test"]), "UnknownIssuer"),
            (vec![1, 2, 3].into(), "BadEncoding"),
        ] {
            let stated = fault(&certificate);
            assert!(stated.contains(expected), "{expected}: {stated}");
        }
    }

    #[test]
    fn keys_are_recognised_by_their_algorithm() {
        let certificate = named("a", &[]);
        let parsed = parse(&certificate).unwrap();
        let key = parsed.public_key().raw;
        let algorithms = crypto_provider().signature_verification_algorithms;
        let matching: Vec<SignatureScheme> = algorithms
            .mapping
            .iter()
            .filter(|(_, algorithms)| algorithms.iter().any(|one| is_key_of(key, &one.public_key_alg_id())))
            .map(|(scheme, _)| *scheme)
            .collect();
        // A key on the curve P-256, which TLS 1.2 combines with several hashes.
        let is_ecdsa = |scheme: &SignatureScheme| format!("{scheme:?}").starts_with("ECDSA");
        assert!(matching.contains(&SignatureScheme::ECDSA_NISTP256_SHA256) && matching.iter().all(is_ecdsa));
        assert!(!is_key_of(&[], b"x") && !is_key_of(&[0x30, 0x82], b"x"));
    }
}
