//! Sources: the values of a request that limits read, such as `ip`, `header:NAME` or `json:POINTER`. One list serves
//! keys, `when`, costs and settled costs; each of them states which kinds it allows. The config compiler parses
//! sources, and the limiter reads their values.
//!
//! - `facts`: the request as limits see it, and the values of sources in it.
//! - `inputs`: finds headers, query parameters, cookies and path segments by name.
//! - `canonical`: the canonical form of each source's values.
//! - `written`: brings values and patterns of the config and of the admin API into that form.
//! - `body`: finds form fields and JSON values in the body.
//! - `calls`: finds the JSON-RPC calls in the body, and with `graphql` GraphQL operations.
//! - `jwt`: verifies tokens, and finds claims in them.
//!
//! A value is refused as ambiguous if upstream servers could read another one. Otherwise a client could change its key
//! and still reach the same resource.
//!
//! To add a source, add an entry to `sources!` below; the compiler lists the matches that need a case.

mod batch;
mod body;
pub(crate) mod calls;
mod canonical;
mod expressions;
mod facts;
pub(crate) mod graphql;
pub mod inputs;
mod json_pointer;
pub(crate) mod jwt;
mod languages;
mod written;

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;

use http::HeaderName;
use http::header::AUTHORIZATION;
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use crate::labels::labels;
pub use crate::limiting::source::batch::CALLS_MAX;
pub use crate::limiting::source::body::{BodyFacts, BodyKind, has_content_coding};
pub use crate::limiting::source::canonical::Ambiguous;
pub use crate::limiting::source::facts::{DescriptorEntry, Facts, LazyCalls, PathParam, SourceValue};
pub use crate::limiting::source::inputs::Repeated;
pub use crate::limiting::source::json_pointer::{JsonPointer, is_equal_for_some_parsers, parse_json_integer};
pub use crate::limiting::unreadable_body::UnreadableBody;
use crate::names::{
    TextFault, invalid_text, parse_cookie_name, parse_forwarded_header, parse_input_name, parse_param_name,
};

macro_rules! sources {
    ($($(#[$doc:meta])* $Name:ident $(($Of:ty))? = $word:literal $(: $argument:literal)?, $SourceOrigin:ident;)*) => {
        /// A source of values.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Source {
            $($(#[$doc])* $Name $(($Of))?),*
        }

        /// Kind of a source, regardless of its name or prefix.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum SourceKind {
            $($Name),*
        }

        impl Source {
            /// Kind of the source.
            pub fn kind(&self) -> SourceKind {
                match self { $(Source::$Name { .. } => SourceKind::$Name),* }
            }
        }

        impl SourceKind {
            /// All kinds.
            pub const ALL: &[SourceKind] = &[$(SourceKind::$Name),*];

            /// Name of the kind in the config.
            pub const fn word(self) -> &'static str {
                match self { $(SourceKind::$Name => $word),* }
            }

            /// Placeholder for what follows the word and a colon, if anything does.
            pub fn argument(self) -> Option<&'static str> {
                match self { $(SourceKind::$Name => [$($argument)?].first().copied()),* }
            }

            /// Part of the request that contains the value.
            pub fn origin(self) -> SourceOrigin {
                match self { $(SourceKind::$Name => SourceOrigin::$SourceOrigin),* }
            }
        }
    };
}

sources! {
    /// Network of the client: addresses with the same leading bits are equal.
    Ip(Prefixes) = "ip", Request;
    /// Country of the client, such as `DE`; `XX` if it is unknown.
    Country = "country", Request;
    Host = "host", Request;
    Path = "path", Request;
    /// The canonical path, and the query as it is forwarded.
    Target = "target", Request;
    /// The whole query, without `?`; empty if there is none.
    QueryString = "query_string", Request;
    Method = "method", Request;
    Route = "route", Request;
    /// Path segment that matches `{NAME}` of the route.
    Param(String) = "param": "NAME", Target;
    Header(HeaderName) = "header": "NAME", Fields;
    /// The credentials in a header, which is `Authorization` unless another is named, in canonical form.
    Credential(HeaderName) = "credential", Fields;
    Cookie(String) = "cookie": "NAME", Fields;
    Query(String) = "query": "NAME", Target;
    /// Claim of a verified JWT: its name, or a JSON pointer to it.
    Claim(String) = "jwt": "CLAIM", Token;
    /// Name in the verified certificate of the client.
    Tls(CertificateName) = "tls": "NAME", Certificate;
    /// Identity that the `auth` of the route verified.
    User = "user", Identity;
    /// Field of a form in the body.
    Form(String) = "form": "NAME", Body;
    /// Value of a JSON document in the body.
    Json(JsonPointer) = "json": "POINTER", Body;
    /// Method of the JSON-RPC call in the body.
    JsonRpcMethod = "jsonrpc": "method", Body;
    /// Tool, prompt or resource that the call of the Model Context Protocol in the body names.
    McpTool = "mcp": "tool", Body;
    /// Name of the GraphQL operation that a request executes.
    GraphqlOperation = "graphql": "operation", Body;
    /// Entry of the descriptor in a rate limit request of Envoy.
    Descriptor(String) = "descriptor": "NAME", Descriptor;
}

/// Part of a request that contains a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOrigin {
    /// Every request has exactly one such value.
    Request,
    /// Path and query, where a name may be repeated, or be read differently by servers.
    Target,
    /// Headers, where a name may be repeated, or be read differently by servers.
    Fields,
    /// The verified token; a request may have several.
    Token,
    /// The body, where a name may be repeated, or be read differently by servers.
    Body,
    /// The certificate that the client sent in the TLS handshake.
    Certificate,
    /// The identity that the `auth` of the route verified.
    Identity,
    /// The descriptor of a rate limit request (`[[rls]]`), where a name may be repeated. Requests to routes have none.
    Descriptor,
}

labels! {
    /// Name in a certificate.
    CertificateName:
    /// Distinguished name, such as `CN=app,O=Example`.
    Subject = "subject",
    /// First subject alternative name, of any type.
    San = "san",
}

/// Number of leading bits of an address that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    pub v4: u8,
    pub v6: u8,
}

/// The default is the whole IPv4 address, and the /64 network of an IPv6 address.
impl Default for Prefixes {
    fn default() -> Prefixes {
        Prefixes { v4: 32, v6: 64 }
    }
}

impl Prefixes {
    /// Returns the network of `ip`.
    pub fn network_of(self, ip: IpAddr) -> IpAddr {
        let ip = ip.to_canonical();
        let prefix = if ip.is_ipv4() { self.v4 } else { self.v6 };
        IpNet::new(ip, prefix).map_or(ip, |net| net.network())
    }
}

impl SourceKind {
    /// Returns how the kind is written in a config, for error messages.
    pub fn form(self) -> Cow<'static, str> {
        match (self, self.argument()) {
            (SourceKind::Ip, _) => "ip, ip/24/56 (prefixes for IPv4 and IPv6)".into(),
            (SourceKind::Tls, _) => "tls:subject, tls:san".into(),
            (SourceKind::Credential, _) => "credential (of Authorization), credential:HEADER".into(),
            (_, None) => self.word().into(),
            (_, Some(argument)) => format!("{}:{argument}", self.word()).into(),
        }
    }

    /// Parses a source of this kind from what follows its word. Returns `None` if the kind has no such sources.
    fn parse(self, rest: &str) -> Option<Result<Source, TextFault>> {
        let alone = |source: Source| rest.is_empty().then_some(Ok(source));
        let name = || rest.strip_prefix(':');
        match self {
            SourceKind::Ip if rest.is_empty() => Some(Ok(Source::Ip(Prefixes::default()))),
            SourceKind::Ip => {
                rest.strip_prefix('/')?.split_once('/').map(|(v4, v6)| parse_prefixes(v4, v6).map(Source::Ip))
            }
            SourceKind::Country => alone(Source::Country),
            SourceKind::Host => alone(Source::Host),
            SourceKind::Path => alone(Source::Path),
            SourceKind::Target => alone(Source::Target),
            SourceKind::QueryString => alone(Source::QueryString),
            SourceKind::Method => alone(Source::Method),
            SourceKind::Route => alone(Source::Route),
            SourceKind::Param => Some(parse_param_name(name()?).map(Source::Param)),
            SourceKind::Header => Some(parse_forwarded_header(name()?).map(Source::Header)),
            SourceKind::Credential if rest.is_empty() => Some(Ok(Source::Credential(AUTHORIZATION))),
            SourceKind::Credential => Some(parse_forwarded_header(name()?).map(Source::Credential)),
            SourceKind::Cookie => Some(parse_cookie_name(name()?).map(Source::Cookie)),
            SourceKind::Query => Some(parse_input_name(name()?, "query parameter").map(Source::Query)),
            SourceKind::Claim => Some(parse_claim(name()?).map(Source::Claim)),
            SourceKind::Tls => Some(parse_certificate_name(name()?).map(Source::Tls)),
            SourceKind::User => alone(Source::User),
            SourceKind::Form => Some(parse_input_name(name()?, "form field").map(Source::Form)),
            SourceKind::Json => Some(JsonPointer::parse(name()?).map(Source::Json)),
            SourceKind::JsonRpcMethod => Some(self.parse_only(name()?, Source::JsonRpcMethod)),
            SourceKind::McpTool => Some(self.parse_only(name()?, Source::McpTool)),
            SourceKind::GraphqlOperation => Some(self.parse_only(name()?, Source::GraphqlOperation)),
            SourceKind::Descriptor => Some(parse_input_name(name()?, "descriptor entry").map(Source::Descriptor)),
        }
    }
}

impl SourceKind {
    /// Parses the name of a source whose kind has no other.
    fn parse_only(self, name: &str, source: Source) -> Result<Source, TextFault> {
        match source.argument() == Some(name) {
            true => Ok(source),
            false => invalid_text(format!("`{}` has no `{name}`", self.word()), format!("write \"{}\"", self.form())),
        }
    }
}

fn parse_certificate_name(text: &str) -> Result<CertificateName, TextFault> {
    match CertificateName::ALL.iter().find(|name| name.label() == text) {
        Some(name) => Ok(*name),
        None => invalid_text(format!("`{text}` is not a name in a certificate"), "write tls:subject or tls:san"),
    }
}

/// Parses the name of a claim. One that starts with `/` is a JSON pointer.
fn parse_claim(text: &str) -> Result<String, TextFault> {
    if text.starts_with('/') {
        JsonPointer::parse(text).map_err(|fault| TextFault {
            help: "write \"jwt:sub\" or \"jwt:/realm_access/roles\"; `~0` is a `~` and `~1` a `/`".to_owned(),
            ..fault
        })?;
    }
    parse_input_name(text, "claim")
}

fn parse_prefixes(v4: &str, v6: &str) -> Result<Prefixes, TextFault> {
    let length = |text: &str, max: u8| text.parse().ok().filter(|length| (1..=max).contains(length));
    match (length(v4, 32), length(v6, 128)) {
        (Some(v4), Some(v6)) => Ok(Prefixes { v4, v6 }),
        _ => invalid_text("prefixes go from 1 to 32 for IPv4 and from 1 to 128 for IPv6", "like \"ip/24/56\""),
    }
}

impl Source {
    /// Parses a source. Returns `None` if it is not of an `allowed` kind.
    ///
    /// # Errors
    /// The kind is allowed, but what follows its word is invalid.
    pub fn parse(text: &str, allowed: &[SourceKind]) -> Option<Result<Source, TextFault>> {
        allowed.iter().find_map(|kind| kind.parse(text.strip_prefix(kind.word())?))
    }

    /// Returns whether the source is the verified identity.
    pub fn is_user(&self) -> bool {
        *self == Source::User
    }

    /// Appends the name of the source in state keys, messages and the admin API.
    pub fn write_name(&self, text: &mut String) {
        text.push_str(self.kind().word());
        match self {
            Source::Ip(prefixes) if *prefixes == Prefixes::default() => {}
            Source::Ip(Prefixes { v4, v6 }) => drop(write!(text, "/{v4}/{v6}")),
            other => {
                if let Some(name) = other.argument() {
                    append_name(text, name);
                }
            }
        }
    }

    /// Returns what follows the word and a colon in a config.
    fn argument(&self) -> Option<&str> {
        match self {
            Source::Ip(_)
            | Source::Country
            | Source::Host
            | Source::Path
            | Source::Target
            | Source::QueryString
            | Source::Method
            | Source::Route
            | Source::User => None,
            Source::Header(name) => Some(name.as_str()),
            Source::Credential(name) => Some(name.as_str()).filter(|_| *name != AUTHORIZATION),
            Source::Json(pointer) => Some(pointer.text()),
            Source::JsonRpcMethod | Source::McpTool | Source::GraphqlOperation => self.kind().argument(),
            Source::Tls(name) => Some(name.label()),
            Source::Param(name)
            | Source::Cookie(name)
            | Source::Query(name)
            | Source::Claim(name)
            | Source::Form(name)
            | Source::Descriptor(name) => Some(name),
        }
    }

    /// Returns the name of the source in messages to clients. Unlike [`Source::write_name`], it never contains a hash.
    pub fn display_name(&self) -> String {
        self.argument().map_or_else(|| self.to_string(), |name| format!("{}:{name}", self.kind().word()))
    }

    /// Returns whether `name` is the name of the source. `ip` matches with any prefixes, and names of headers are
    /// case-insensitive.
    pub fn is_called(&self, name: &str) -> bool {
        match self {
            Source::Ip(_) if name == SourceKind::Ip.word() => true,
            Source::Header(_) | Source::Credential(_) => name.eq_ignore_ascii_case(&self.to_string()),
            _ => name == self.to_string(),
        }
    }

    /// Returns whether the value follows from the address of the client.
    pub fn reads_address(&self) -> bool {
        matches!(self, Source::Ip(_) | Source::Country)
    }

    /// Returns the part of an address that counts.
    pub fn network_of(&self, ip: IpAddr) -> IpAddr {
        match self {
            Source::Ip(prefixes) => prefixes.network_of(ip),
            _ => ip,
        }
    }

    /// Converts a value of the source to text.
    pub fn value_text<'v>(&self, value: SourceValue<'v>) -> Cow<'v, [u8]> {
        match value {
            SourceValue::Ip(ip) => self.network_of(ip).to_string().into_bytes().into(),
            SourceValue::Bytes(bytes) => bytes,
            SourceValue::Digest(digits) => format!("#{digits}").into_bytes().into(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        self.write_name(&mut name);
        f.write_str(&name)
    }
}

/// Which bytes a name has in state keys: those without a meaning there. A table, because every request with a key reads
/// a name.
const IN_NAMES: [bool; 256] = {
    let mut set = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        set[byte as usize] = !matches!(byte, b'{' | b'}' | b',' | b'=' | b'#' | b'!' | b'|');
        byte += 1;
    }
    set
};

/// Appends a name, or its hash if it contains characters that have a meaning in state keys.
fn append_name(text: &mut String, name: &str) {
    text.push(':');
    match name.bytes().all(|byte| IN_NAMES[usize::from(byte)]) {
        true => text.push_str(name),
        false => append_hash(text, name.as_bytes()),
    }
}

/// Appends 128 bits of the SHA-256 hash of `value`, in hexadecimal digits.
pub fn append_hash(text: &mut String, value: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in &Sha256::digest(value)[..16] {
        text.extend([byte >> 4, byte & 0xf].map(|digit| char::from(DIGITS[usize::from(digit)])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_formatting_are_inverse() {
        for text in [
            "ip",
            "ip/24/56",
            "host",
            "path",
            "method",
            "route",
            "param:id",
            "header:x-a",
            "credential",
            "credential:x-api-key",
            "cookie:S",
            "query:a[b]",
            "tls:san",
            "user",
            "form:user[name]",
            "json:/user/0/~0a~1b",
            "descriptor:remote_address",
        ] {
            assert_eq!(
                Source::parse(text, SourceKind::ALL).map(|source| source.unwrap().to_string()).as_deref(),
                Some(text)
            );
        }
        assert_eq!(Source::parse("jwt:sub", SourceKind::ALL), Some(Ok(Source::Claim("sub".to_owned()))));
        for text in ["", "all", "ip/24", "ipx", "hosts", "header", "query", "headers:x", "HOST"] {
            assert_eq!(Source::parse(text, SourceKind::ALL), None, "{text}");
        }
        assert_eq!(Source::parse("path", &[SourceKind::Header, SourceKind::Query]), None);
        for text in [
            "ip/0/64",
            "ip/x/64",
            "ip/24/129",
            "header:",
            "header:a b",
            "cookie:=",
            "query:",
            "param:a-b",
            "form:",
            "json:",
            "json:user",
            "json:/~2",
            "descriptor:",
        ] {
            assert!(matches!(Source::parse(text, SourceKind::ALL), Some(Err(_))), "{text}");
        }
    }
}
