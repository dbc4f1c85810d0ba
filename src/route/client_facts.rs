//! Placeholders in `request_headers.set` and in the access log: what the gateway knows of the client and its request.
//! `proxy` finds their values.
//!
//! To add one, add it to [`ClientFact::NAMES`] and to the table in `docs/guides/client-identity.md`, and its value in
//! `proxy::steps::stated_headers`. `config::compile::server::access_log` decides whether logs have it.

use http::HeaderName;

use crate::labels::labels;
use crate::limiting::source::{CertificateName, Source, SourceOrigin};
use crate::template::TextTemplate;

/// The fact that a placeholder stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFact {
    ClientIp,
    RequestId,
    Head(HeadFact),
    Connection(ConnectionFact),
    /// The verified certificate as a whole.
    Certificate(CertificateForm),
    /// A value that keys of limits can have as well, such as a claim or the identity that `auth` verified.
    Source(Source),
}

labels! {
    /// A part of the head that the client sent, in canonical form.
    HeadFact:
    Method = "method",
    Host = "host",
    Path = "path",
    Query = "query",
    /// The path, and the query if there is one.
    Target = "target",
    /// The name of the route that the head selects.
    Route = "route",
}

labels! {
    /// A property of the client's connection.
    ConnectionFact:
    Protocol = "protocol",
    Tls = "tls",
    TlsCipher = "tls_cipher",
    TlsName = "tls_name",
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
    pub const NAMES: [(&str, ClientFact); 19] = [
        ("client_ip", ClientFact::ClientIp),
        ("country", ClientFact::Source(Source::Country)),
        ("tls_subject", ClientFact::Source(Source::Tls(CertificateName::Subject))),
        ("tls_san", ClientFact::Source(Source::Tls(CertificateName::San))),
        ("tls_fingerprint", ClientFact::Certificate(CertificateForm::Fingerprint)),
        ("tls_cert", ClientFact::Certificate(CertificateForm::ByteSequence)),
        ("tls_cert_pem", ClientFact::Certificate(CertificateForm::EscapedPem)),
        ("user", ClientFact::Source(Source::User)),
        ("request_id", ClientFact::RequestId),
        (HeadFact::Method.label(), ClientFact::Head(HeadFact::Method)),
        (HeadFact::Host.label(), ClientFact::Head(HeadFact::Host)),
        (HeadFact::Path.label(), ClientFact::Head(HeadFact::Path)),
        (HeadFact::Query.label(), ClientFact::Head(HeadFact::Query)),
        (HeadFact::Target.label(), ClientFact::Head(HeadFact::Target)),
        (HeadFact::Route.label(), ClientFact::Head(HeadFact::Route)),
        (ConnectionFact::Protocol.label(), ClientFact::Connection(ConnectionFact::Protocol)),
        (ConnectionFact::Tls.label(), ClientFact::Connection(ConnectionFact::Tls)),
        (ConnectionFact::TlsCipher.label(), ClientFact::Connection(ConnectionFact::TlsCipher)),
        (ConnectionFact::TlsName.label(), ClientFact::Connection(ConnectionFact::TlsName)),
    ];

    /// Returns whether the fact is a claim of a verified token.
    pub fn is_claim(&self) -> bool {
        matches!(self, ClientFact::Source(source) if source.kind().origin() == SourceOrigin::Token)
    }
}
