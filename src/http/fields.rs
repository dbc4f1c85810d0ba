//! Which fields a head has, of those that mean something to this gateway. One pass over the names: to
//! look for each absent one would hash each of them. Used by the gate and by the header rules.

use http::HeaderMap;

/// The names that are known, where `name` is a field of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownField {
    Connection,
    KeepAlive,
    ProxyConnection,
    ProxyAuthenticate,
    ProxyAuthorization,
    Http2Settings,
    Upgrade,
    TransferEncoding,
    Te,
    Trailer,
    Via,
    Host,
    ContentLength,
    ContentType,
    Expect,
    Forwarded,
    SecFetchMode,
    /// `Upload-Complete` or `Upload-Draft-Interop-Version`: the client knows resumable uploads.
    ResumableUpload,
}

/// What is in a head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields {
    known: u32,
    /// Something is said of the client: `X-Forwarded-*`, `X-Real-IP`, `X-Request-ID`.
    pub of_client: bool,
    /// A body follows whose end its stream tells, where there are streams.
    pub streamed: bool,
    /// A name has other characters than letters, digits and `-`.
    pub alias: bool,
}

impl KnownField {
    pub fn of(name: &str) -> Option<KnownField> {
        Some(match name {
            "connection" => KnownField::Connection,
            "keep-alive" => KnownField::KeepAlive,
            "proxy-connection" => KnownField::ProxyConnection,
            "proxy-authenticate" => KnownField::ProxyAuthenticate,
            "proxy-authorization" => KnownField::ProxyAuthorization,
            "http2-settings" => KnownField::Http2Settings,
            "upgrade" => KnownField::Upgrade,
            "transfer-encoding" => KnownField::TransferEncoding,
            "te" => KnownField::Te,
            "trailer" => KnownField::Trailer,
            "via" => KnownField::Via,
            "host" => KnownField::Host,
            "content-length" => KnownField::ContentLength,
            "content-type" => KnownField::ContentType,
            "expect" => KnownField::Expect,
            "forwarded" => KnownField::Forwarded,
            "sec-fetch-mode" => KnownField::SecFetchMode,
            "upload-complete" | "upload-draft-interop-version" => KnownField::ResumableUpload,
            _ => return None,
        })
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl Fields {
    pub fn of(headers: &HeaderMap) -> Fields {
        let mut fields = Fields::default();
        for name in headers.keys() {
            let name = name.as_str();
            match KnownField::of(name) {
                Some(known) => fields.known |= known.bit(),
                None => {
                    fields.of_client |= speaks_of_client(name);
                    fields.alias |= is_alias(name);
                }
            }
        }
        fields
    }

    pub fn has(self, known: KnownField) -> bool {
        self.known & known.bit() != 0
    }

    /// Whether there is any of `known`.
    pub fn has_any(self, known: &[KnownField]) -> bool {
        known.iter().any(|known| self.has(*known))
    }
}

/// Whether the field says something of the client, so that one which no trusted peer sent goes.
pub fn speaks_of_client(name: &str) -> bool {
    name.starts_with("x-") && (name.starts_with("x-forwarded-") || matches!(name, "x-real-ip" | "x-request-id"))
}

/// Servers that map names to variables take `x_real_ip` for `x-real-ip`.
pub fn is_alias(name: &str) -> bool {
    !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}
