//! Tells by the name of a header that a client sends what routes and limits see of it. `proxy::head` removes headers by
//! these rules before anything reads them. Checks of configs and imports of other configs read the same rules, so that
//! no key or condition reads a header that nothing can see.

/// A header with a meaning for the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownHeader {
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

/// How much of a received header routes and limits see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// The value that the client sent.
    AsSent,
    /// The value that a proxy in `trusted_proxies` sent. That of other peers is removed.
    FromTrustedPeers,
    /// The form in which the gateway forwards it, such as the only protocol of `Upgrade` that the route allows. Another
    /// value is removed.
    Rewritten,
    /// Nothing: it is always removed.
    Never,
}

/// Headers of one connection that are always removed. The gateway may then write its own `Connection` and `Upgrade`.
pub const HOP_BY_HOP: [KnownHeader; 8] = [
    KnownHeader::Connection,
    KnownHeader::KeepAlive,
    KnownHeader::ProxyConnection,
    KnownHeader::ProxyAuthenticate,
    KnownHeader::ProxyAuthorization,
    KnownHeader::Http2Settings,
    KnownHeader::Upgrade,
    KnownHeader::TransferEncoding,
];

impl KnownHeader {
    /// Returns the header with this name, in lower case. `None` if the gateway gives it no meaning.
    pub fn from_name(name: &str) -> Option<KnownHeader> {
        Some(match name {
            "connection" => KnownHeader::Connection,
            "keep-alive" => KnownHeader::KeepAlive,
            "proxy-connection" => KnownHeader::ProxyConnection,
            "proxy-authenticate" => KnownHeader::ProxyAuthenticate,
            "proxy-authorization" => KnownHeader::ProxyAuthorization,
            "http2-settings" => KnownHeader::Http2Settings,
            "upgrade" => KnownHeader::Upgrade,
            "transfer-encoding" => KnownHeader::TransferEncoding,
            "te" => KnownHeader::Te,
            "trailer" => KnownHeader::Trailer,
            "via" => KnownHeader::Via,
            "host" => KnownHeader::Host,
            "content-length" => KnownHeader::ContentLength,
            "content-type" => KnownHeader::ContentType,
            "expect" => KnownHeader::Expect,
            "forwarded" => KnownHeader::Forwarded,
            "sec-fetch-mode" => KnownHeader::SecFetchMode,
            "upload-complete" | "upload-draft-interop-version" => KnownHeader::ResumableUpload,
            _ => return None,
        })
    }
}

/// Returns what routes and limits see of the header with this name, in lower case. A client can also have any header
/// without a meaning for the gateway removed, by naming it in `Connection`; then its server does not get it either.
pub fn find_visibility(name: &str) -> Visibility {
    match KnownHeader::from_name(name) {
        Some(
            KnownHeader::Connection
            | KnownHeader::Upgrade
            | KnownHeader::Te
            | KnownHeader::Trailer
            | KnownHeader::Expect
            | KnownHeader::Host,
        ) => Visibility::Rewritten,
        // The gateway writes it anew.
        Some(KnownHeader::Forwarded) => Visibility::Never,
        Some(known) if HOP_BY_HOP.contains(&known) => Visibility::Never,
        Some(_) => Visibility::AsSent,
        None if is_ambiguous_name(name) => Visibility::Never,
        None if names_client(name) => Visibility::FromTrustedPeers,
        None => Visibility::AsSent,
    }
}

/// Returns true for headers that name the client. They are removed unless a trusted peer sent them.
pub fn names_client(name: &str) -> bool {
    name.starts_with("x-") && (name.starts_with("x-forwarded-") || matches!(name, "x-real-ip" | "x-request-id"))
}

/// HTTP itself as a protocol of `Upgrade`, which is never tunnelled: the gateway does not read tunnels, so requests in
/// them would bypass all limits.
pub const HTTP_PROTOCOLS: [&str; 6] = ["h2c", "h2", "h3", "http", "https", "tls"];

/// Returns true for names that servers could confuse with others: servers that map headers to variables do not
/// distinguish `x_real_ip` from `x-real-ip`.
pub fn is_ambiguous_name(name: &str) -> bool {
    !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns whether `underscore_headers = "keep"` keeps a header with this name, in lower case. Its only unusual
/// characters are `_`, and with `-` in their place it would be a header without a meaning for the gateway, which
/// requests do not need: servers that confuse the two names still read nothing that the gateway has not seen.
pub fn may_keep_underscores(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let dashed = name.replace('_', "-");
    name.contains('_')
        && dashed.bytes().all(is_usual)
        && find_visibility(&dashed) == Visibility::AsSent
        && KnownHeader::from_name(&dashed).is_none()
        && !is_needed(&dashed)
}

/// Returns whether the config may say that a header, in lower case, is the address of the client. The gateway removes
/// it from requests of other peers, so it must not be one that requests need.
pub fn may_name_client(name: &str) -> bool {
    KnownHeader::from_name(name).is_none()
        && !is_ambiguous_name(name)
        && !is_needed(name)
        && !NO_ADDRESS.contains(&name)
}

/// Headers about the client that are no address.
const NO_ADDRESS: [&str; 5] =
    ["x-forwarded-host", "x-forwarded-port", "x-forwarded-prefix", "x-forwarded-proto", "x-request-id"];

/// Returns whether clients have to be able to send a header with this name, so that the gateway must not remove it.
pub fn is_needed(name: &str) -> bool {
    NEEDED.contains(&name)
}

const NEEDED: &[&str] = &[
    "accept",
    "accept-encoding",
    "authorization",
    "content-encoding",
    "content-type",
    "cookie",
    "expect",
    "origin",
    "proxy-authorization",
    "range",
    "traceparent",
    "tracestate",
    "user-agent",
];
