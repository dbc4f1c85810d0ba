//! Placeholders in `request_headers.set`: what the gateway knows of the client, for the application. `proxy` finds
//! their values.
//!
//! To add one, add it to [`ClientFact::NAMES`] and to the table in `docs/guides/client-identity.md`, and its value in
//! `proxy::steps::stated_headers`.

use http::HeaderName;

use crate::limiting::source::{CertificateName, Source};
use crate::template::TextTemplate;

/// The fact that a placeholder stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFact {
    ClientIp,
    RequestId,
    /// The verified certificate as a whole.
    Certificate(CertificateForm),
    /// A value that keys of limits can have as well, such as a claim or the identity that `auth` verified.
    Source(Source),
}

/// How a header contains a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateForm {
    /// The SHA-256 hash of the certificate in hexadecimal digits.
    Fingerprint,
    /// The value of `Client-Cert` (RFC 9440): `:BASE64:`.
    ByteSequence,
    /// PEM in percent-encoding, like `$ssl_client_escaped_cert` of nginx.
    EscapedPem,
}

/// A header with placeholders.
pub type StatedHeader = (HeaderName, TextTemplate<ClientFact>);

/// The word of `{jwt:CLAIM}`.
pub const CLAIM_WORD: &str = "jwt:";

impl ClientFact {
    /// The names of the placeholders. A claim is called `jwt:` and its name.
    pub const NAMES: [(&str, ClientFact); 9] = [
        ("client_ip", ClientFact::ClientIp),
        ("country", ClientFact::Source(Source::Country)),
        ("tls_subject", ClientFact::Source(Source::Tls(CertificateName::Subject))),
        ("tls_san", ClientFact::Source(Source::Tls(CertificateName::San))),
        ("tls_fingerprint", ClientFact::Certificate(CertificateForm::Fingerprint)),
        ("tls_cert", ClientFact::Certificate(CertificateForm::ByteSequence)),
        ("tls_cert_pem", ClientFact::Certificate(CertificateForm::EscapedPem)),
        ("user", ClientFact::Source(Source::User)),
        ("request_id", ClientFact::RequestId),
    ];
}
