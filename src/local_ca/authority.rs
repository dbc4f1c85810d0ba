//! A local CA: its certificate, its key, and the certificates that it issues. No I/O; the time is an argument.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::tls::internal::{DOMAINS, NETWORKS};
use crate::tls::{CertificateValidity, NamedKey, pem};

/// The only host whose mail addresses the CA may sign. It is reserved, so that there are none (RFC 2606).
const NO_MAIL_HOST: &str = "invalid";
const HOUR_S: i64 = 3600;
const DAY_S: i64 = 24 * HOUR_S;
/// Life of the CA.
const CA_LIFE_S: i64 = 3650 * DAY_S;
/// Life of the certificates that it issues. They are renewed with more than 14 days left, so that the usual alert on
/// expiry is silent.
const LEAF_LIFE_S: i64 = 45 * DAY_S;
/// Certificates are valid from this long before they are made, for clients whose clock is behind.
const CA_LEEWAY_S: i64 = DAY_S;
const LEAF_LEEWAY_S: i64 = HOUR_S;

/// A local CA, ready to issue.
pub struct LocalCa {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: CaCertificate,
}

/// The certificate of a CA, as clients trust it.
#[derive(Clone)]
pub struct CaCertificate {
    /// Exactly one certificate in PEM.
    pub pem: String,
    der: CertificateDer<'static>,
    pub validity: CertificateValidity,
}

impl LocalCa {
    /// Makes a new CA. Returns its certificate and key as one PEM text, for [`LocalCa::from_pem`].
    ///
    /// # Errors
    /// The cryptographic library fails, for example for lack of randomness.
    pub fn generate(now_s: i64) -> Result<String, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        // Each CA has its own name: clients distinguish CAs by it.
        params.distinguished_name = common_name(&format!("Sluicegate development CA {:08x}", rand::random::<u32>()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.name_constraints = Some(name_constraints());
        // Clients that follow it accept the certificates of this CA for servers only, not for code or mail.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        set_validity(&mut params, now_s - CA_LEEWAY_S, now_s + CA_LIFE_S);
        Ok(params.self_signed(&key)?.pem() + &key.serialize_pem())
    }

    /// Reads the certificate and the key of a CA from one PEM text.
    ///
    /// # Errors
    /// What is wrong with the text, without parts of it.
    pub fn from_pem(text: &str) -> Result<LocalCa, String> {
        let certificate = CaCertificate::from_pem(text)?;
        pem::private_key(text)?;
        let key = text.find("-----BEGIN PRIVATE KEY").and_then(|start| KeyPair::from_pem(&text[start..]).ok());
        let key = key.ok_or("its private key cannot be used")?;
        let issuer = Issuer::from_ca_cert_der(&certificate.der, key).map_err(|error| error.to_string())?;
        match X509Certificate::from_der(&certificate.der) {
            Ok((_, parsed)) if parsed.public_key().raw == issuer.key().subject_public_key_info() => {
                Ok(LocalCa { issuer, certificate })
            }
            _ => Err("its private key is not that of its certificate".to_owned()),
        }
    }

    /// Issues a server certificate with a new key for these names and addresses.
    ///
    /// # Errors
    /// Why there is none.
    pub fn issue(&self, names: &[&str], now_s: i64) -> Result<NamedKey, String> {
        let issue = || -> Result<String, rcgen::Error> {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
            params.distinguished_name = common_name("Sluicegate development certificate");
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.use_authority_key_identifier_extension = true;
            let (not_before_s, not_after_s) = leaf_term(&self.certificate.validity, now_s);
            set_validity(&mut params, not_before_s, not_after_s);
            Ok(params.signed_by(&key, &self.issuer)?.pem() + &key.serialize_pem())
        };
        let text = issue().map_err(|error| error.to_string())?;
        NamedKey::from_pem(&text, names.first().copied().unwrap_or_default())
    }
}

impl CaCertificate {
    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    /// What is wrong with the text, without parts of it.
    pub fn from_pem(text: &str) -> Result<CaCertificate, String> {
        const END: &str = "-----END CERTIFICATE-----";
        let der = pem::certificates(text)?.swap_remove(0);
        let pem = text.split_once("-----BEGIN CERTIFICATE-----").and_then(|(_, rest)| rest.split_once(END));
        let pem = pem.map(|(body, _)| format!("-----BEGIN CERTIFICATE-----{body}{END}\n"));
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| "its certificate cannot be read".to_owned())?;
        if !parsed.is_ca() {
            return Err("its certificate is not that of a CA".to_owned());
        }
        let validity = CertificateValidity::new(&parsed);
        Ok(CaCertificate { pem: pem.unwrap_or_default(), validity, der })
    }

    /// Returns the SHA-256 fingerprint in the form that browsers and `openssl x509 -fingerprint` show.
    pub fn fingerprint(&self) -> String {
        Sha256::digest(&self.der).iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
    }

    /// Returns a short name for files and stores, derived from the fingerprint.
    pub fn short_name(&self) -> String {
        format!("sluicegate-{}", hex::encode(&Sha256::digest(&self.der)[..8]))
    }

    /// Returns whether clients accept only development names and private addresses from this CA.
    pub fn is_constrained(&self) -> bool {
        let check_constraints = |certificate: X509Certificate<'_>| -> Option<bool> {
            let constraints = certificate.name_constraints().ok()??;
            if !constraints.critical {
                return Some(false);
            }
            let subtrees = constraints.value.permitted_subtrees.as_ref()?;
            let has_domain = subtrees.iter().any(|subtree| matches!(subtree.base, GeneralName::DNSName(_)));
            let has_network = subtrees.iter().any(|subtree| matches!(subtree.base, GeneralName::IPAddress(_)));
            Some(has_domain && has_network && subtrees.iter().all(|subtree| is_permitted(&subtree.base)))
        };
        X509Certificate::from_der(&self.der)
            .ok()
            .and_then(|(_, certificate)| check_constraints(certificate))
            .unwrap_or(false)
    }
}

/// Returns whether a certificate with this validity is due for renewal: two thirds of its life are over, or the clock
/// was set back to before its start.
pub fn is_due(validity: &CertificateValidity, now_s: i64) -> bool {
    let life_s = validity.not_after_s.saturating_sub(validity.not_before_s).max(0);
    now_s < validity.not_before_s || now_s >= validity.not_before_s + life_s / 3 * 2
}

/// Returns the validity of a new certificate, which is within the validity of the CA as far as possible.
fn leaf_term(ca: &CertificateValidity, now_s: i64) -> (i64, i64) {
    let (not_before_s, not_after_s) = (now_s - LEAF_LEEWAY_S, now_s + LEAF_LIFE_S);
    match (not_before_s.max(ca.not_before_s), not_after_s.min(ca.not_after_s)) {
        (start_s, end_s) if start_s <= now_s && now_s < end_s => (start_s, end_s),
        // No client accepts the CA at this time, so the certificate need not be within its validity.
        _ => (not_before_s, not_after_s),
    }
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn name_constraints() -> NameConstraints {
    let domains = DOMAINS.iter().map(|domain| GeneralSubtree::DnsName((*domain).to_owned()));
    let network = |(ip, len): &(IpAddr, u8)| GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*ip, *len));
    NameConstraints {
        permitted_subtrees: domains
            .chain(NETWORKS.iter().map(network))
            .chain([GeneralSubtree::Rfc822Name(NO_MAIL_HOST.to_owned())])
            .collect(),
        excluded_subtrees: Vec::new(),
    }
}

fn is_permitted(base: &GeneralName<'_>) -> bool {
    match base {
        GeneralName::DNSName(name) => DOMAINS.contains(name),
        GeneralName::RFC822Name(name) => *name == NO_MAIL_HOST,
        GeneralName::IPAddress(bytes) => NETWORKS.iter().any(|(ip, len)| network_bytes(*ip, *len) == *bytes),
        _ => false,
    }
}

/// Returns the encoding of a network in name constraints: the address, then the mask.
fn network_bytes(ip: IpAddr, len: u8) -> Vec<u8> {
    match CidrSubnet::from_addr_prefix(ip, len) {
        CidrSubnet::V4(address, mask) => [address, mask].concat(),
        CidrSubnet::V6(address, mask) => [address, mask].concat(),
    }
}

fn set_validity(params: &mut CertificateParams, not_before_s: i64, not_after_s: i64) {
    let epoch = date_time_ymd(1970, 1, 1);
    // GeneralizedTime ends with the year 9999.
    let time = |time_s: i64| epoch + Duration::from_secs(time_s.clamp(0, 253_402_300_799).unsigned_abs());
    (params.not_before, params.not_after) = (time(not_before_s), time(not_after_s));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: i64 = 1_800_000_000;

    fn ca() -> LocalCa {
        LocalCa::from_pem(&LocalCa::generate(NOW_S).unwrap()).unwrap()
    }

    #[test]
    fn a_certificate_is_due_after_two_thirds_of_its_life_or_before_its_start() {
        let leaf = ca().issue(&["localhost", "127.0.0.1", "::1"], NOW_S).unwrap();
        assert_eq!(leaf.names, ["localhost", "127.0.0.1", "[::1]"]);
        assert_eq!(leaf.validity.not_after_s, NOW_S + 45 * DAY_S);
        let due = |after_s: i64| is_due(&leaf.validity, NOW_S + after_s);
        assert_eq!([0, 29 * DAY_S, 30 * DAY_S, 100 * DAY_S].map(due), [false, false, true, true]);
        assert_eq!([-HOUR_S, -HOUR_S - 1, -1000 * DAY_S].map(due), [false, true, true]);
    }

    #[test]
    fn a_certificate_ends_with_its_ca_at_the_latest() {
        let (ca, end_s) = (ca(), NOW_S + CA_LIFE_S);
        let term = |now_s: i64| {
            let validity = ca.issue(&["localhost"], now_s).unwrap().validity;
            (validity.not_before_s - now_s, validity.not_after_s - now_s)
        };
        assert_eq!(term(end_s - DAY_S), (-HOUR_S, DAY_S));
        assert_eq!(term(NOW_S - DAY_S), (0, LEAF_LIFE_S));
        // The clock is wrong, or the CA has expired.
        assert_eq!(term(NOW_S - 9 * DAY_S), (-HOUR_S, LEAF_LIFE_S));
        assert_eq!(term(end_s + DAY_S), (-HOUR_S, LEAF_LIFE_S));
    }

    #[test]
    fn damaged_texts_are_refused() {
        let (one, other) = (LocalCa::generate(NOW_S).unwrap(), LocalCa::generate(NOW_S).unwrap());
        let (cert, key) = one.split_at(one.find("-----BEGIN PRIVATE").unwrap());
        let other_key = &other[other.find("-----BEGIN PRIVATE").unwrap()..];
        let leaf = ca();
        let text = leaf.issue(&["localhost"], NOW_S).unwrap();
        assert!(LocalCa::from_pem(&format!("{key}{cert}")).is_ok(), "the order does not matter");
        for (text, what) in [
            (String::new(), "no PEM certificate"),
            (cert.to_owned(), "no PEM private key"),
            (key.to_owned(), "no PEM certificate"),
            (format!("{cert}{other_key}"), "not that of its certificate"),
            (one[..one.len() / 2].to_owned(), "no PEM"),
            ("\0".repeat(100), "no PEM certificate"),
        ] {
            let error = LocalCa::from_pem(&text).err().unwrap();
            assert!(error.contains(what), "{error}");
        }
        let der = &text.key.cert[0];
        let (_, parsed) = X509Certificate::from_der(der).unwrap();
        assert!(!parsed.is_ca());
    }

    #[test]
    fn a_ca_of_ours_is_constrained_and_others_are_not() {
        assert!(ca().certificate.is_constrained());
        let ca = ca();
        let (_, parsed) = X509Certificate::from_der(&ca.certificate.der).unwrap();
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.any && !usage.code_signing && !usage.email_protection);
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = |params: &CertificateParams| params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        assert!(!CaCertificate::from_pem(&pem(&params)).unwrap().is_constrained());
        // The constraints of one additional domain, or without a limit for addresses.
        let mut constraints = name_constraints();
        constraints.permitted_subtrees.push(GeneralSubtree::DnsName("com".to_owned()));
        params.name_constraints = Some(constraints);
        assert!(!CaCertificate::from_pem(&pem(&params)).unwrap().is_constrained());
        let mut constraints = name_constraints();
        constraints.permitted_subtrees.retain(|subtree| matches!(subtree, GeneralSubtree::DnsName(_)));
        params.name_constraints = Some(constraints);
        assert!(!CaCertificate::from_pem(&pem(&params)).unwrap().is_constrained());
    }
}
