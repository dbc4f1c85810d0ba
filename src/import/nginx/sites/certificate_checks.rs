//! Reads `ssl_verify_client` and the CA of client certificates.

use crate::import::nginx::scope::Scope;
use crate::import::syntax::Directive;

/// The check of client certificates that a server requires.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CertificateCheck {
    #[default]
    None,
    /// The client may send a certificate of this CA.
    Optional(String),
    /// The client must send a certificate of this CA.
    Required(String),
    /// The client must send a certificate, and the gateway cannot check it.
    Unavailable,
}

/// Reads the check that a server requires.
pub fn read_check(scope: &Scope) -> CertificateCheck {
    let Some(verify) = scope.get("ssl_verify_client") else { return CertificateCheck::None };
    let ca = scope.get("ssl_client_certificate").and_then(Directive::find_file);
    match (verify.arg(0), ca) {
        ("optional", Some(ca)) => CertificateCheck::Optional(ca),
        ("off" | "optional" | "optional_no_ca", _) => CertificateCheck::None,
        ("on", Some(ca)) => CertificateCheck::Required(ca),
        _ => CertificateCheck::Unavailable,
    }
}
