//! Certificates that are made for a test.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, PublicKeyData,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use super::write_atomically;

/// A certificate authority.
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Ca {
    pub fn new(name: &str) -> Ca {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ca(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.as_ref().pem()
    }

    pub fn issue(&self, names: &[&str], client: &str) -> Pair {
        self.issue_with(names, client, |_| {})
    }

    /// Issues a certificate with parameters that `change` has modified.
    pub fn issue_with(&self, names: &[&str], client: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let key = KeyPair::generate().unwrap();
        Pair { cert: self.certify(&key, names, client, change), key: key.serialize_pem() }
    }

    /// Issues a certificate for a key of any kind in PKCS #8.
    pub fn issue_for(&self, key: &str, names: &[&str]) -> String {
        self.certify(&KeyPair::from_pem(key).unwrap(), names, "gateway", |_| {})
    }

    fn certify(
        &self,
        key: &KeyPair,
        names: &[&str],
        client: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, client);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        params.signed_by(key, &*self.0).unwrap().pem()
    }
}

impl Pair {
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(self.cert.as_bytes()).map(Result::unwrap).collect()
    }

    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    /// Returns the digest by which browsers recognize the public key.
    pub fn key_digest(&self) -> String {
        STANDARD.encode(Sha256::digest(KeyPair::from_pem(&self.key).unwrap().subject_public_key_info()))
    }

    /// Writes `NAME.pem` and `NAME.key` to `dir`, each atomically.
    pub fn save(&self, dir: &Path, name: &str) {
        for (text, ending) in [(&self.cert, "pem"), (&self.key, "key")] {
            write_atomically(&dir.join(format!("{name}.{ending}")), text);
        }
    }
}
