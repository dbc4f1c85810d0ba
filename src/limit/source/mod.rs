//! Where the values come from that limits go by: one list for keys, `when`, cost and settle, which say
//! only what of it they allow. Parsed by `config`, read by the limiter; `facts` is the request to read,
//! `inputs` how it says something under a name.
//!
//! A new source is an entry below; the compiler then asks how it is parsed, spelt and read.

mod body;
mod facts;
pub mod inputs;

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;

use http::HeaderName;
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use crate::labels::labels;
use crate::written::{Fault, cookie_name, fault, header_name, input_name, param_name};

pub use body::{BodyFacts, BodyKind, JsonPointer, UnreadableBody};
pub use facts::{Facts, PathParam, SourceValue, SourceValues};
pub use inputs::{Ambiguous, Repeated};

macro_rules! sources {
    ($($(#[$doc:meta])* $Name:ident $(($Of:ty))? = $word:literal $(: $argument:literal)?, $SourceOrigin:ident;)*) => {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Source {
            $($(#[$doc])* $Name $(($Of))?),*
        }

        /// Sources that differ in a name, or in what counts of the value, are of one kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum SourceKind {
            $($Name),*
        }

        impl Source {
            pub fn kind(&self) -> SourceKind {
                match self { $(Source::$Name { .. } => SourceKind::$Name),* }
            }
        }

        impl SourceKind {
            pub const ALL: &[SourceKind] = &[$(SourceKind::$Name),*];

            /// What it is called.
            pub const fn word(self) -> &'static str {
                match self { $(SourceKind::$Name => $word),* }
            }

            /// What stands after the word and a colon, if anything does.
            pub fn argument(self) -> Option<&'static str> {
                match self { $(SourceKind::$Name => [$($argument)?].first().copied()),* }
            }

            pub fn origin(self) -> SourceOrigin {
                match self { $(SourceKind::$Name => SourceOrigin::$SourceOrigin),* }
            }
        }
    };
}

sources! {
    /// The client's network: addresses with the same leading bits are one.
    Ip(Prefixes) = "ip", Request;
    Host = "host", Request;
    Path = "path", Request;
    Method = "method", Request;
    Route = "route", Request;
    /// What `{NAME}` of the route's template takes.
    Param(String) = "param": "NAME", Target;
    Header(HeaderName) = "header": "NAME", Fields;
    Cookie(String) = "cookie": "NAME", Fields;
    Query(String) = "query": "NAME", Target;
    /// A claim of a verified token.
    Claim(String) = "jwt": "CLAIM", Token;
    /// What the client's verified certificate says.
    Tls(CertificateName) = "tls": "NAME", Certificate;
    /// A field of a form in the body.
    Form(String) = "form": "NAME", Body;
    /// A value of JSON in the body.
    Json(JsonPointer) = "json": "POINTER", Body;
}

/// What has to be looked at for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOrigin {
    /// What every request has, once.
    Request,
    /// The path and the query, where the same may stand more than once, or be read differently.
    Target,
    /// Header fields, likewise.
    Fields,
    /// The verified token, of which there may be more than one.
    Token,
    /// The body, where the same may stand more than once, or be read differently.
    Body,
    /// The certificate that the client showed in the handshake.
    Certificate,
}

labels! {
    /// Whom a certificate was made for.
    CertificateName:
    /// Its distinguished name: `CN=app,O=Example`.
    Subject = "subject",
    /// Its first subject alternative name, whatever kind it is of.
    San = "san",
}

/// How many leading bits of an address count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    pub v4: u8,
    pub v6: u8,
}

/// An IPv4 address, an IPv6 network of one site.
impl Default for Prefixes {
    fn default() -> Prefixes {
        Prefixes { v4: 32, v6: 64 }
    }
}

impl Prefixes {
    /// The network of which `ip` is a part.
    pub fn network(self, ip: IpAddr) -> IpAddr {
        let ip = ip.to_canonical();
        let prefix = if ip.is_ipv4() { self.v4 } else { self.v6 };
        IpNet::new(ip, prefix).map_or(ip, |net| net.network())
    }
}

impl SourceKind {
    /// How it is written.
    pub fn form(self) -> Cow<'static, str> {
        match (self, self.argument()) {
            (SourceKind::Ip, _) => "ip, ip/24/56 (prefixes for IPv4 and IPv6)".into(),
            (SourceKind::Tls, _) => "tls:subject, tls:san".into(),
            (_, None) => self.word().into(),
            (_, Some(argument)) => format!("{}:{argument}", self.word()).into(),
        }
    }

    /// The source of this kind that has `rest` after its word; `None` when nothing like it can stand there.
    fn parse(self, rest: &str) -> Option<Result<Source, Fault>> {
        let alone = |source: Source| rest.is_empty().then_some(Ok(source));
        let name = || rest.strip_prefix(':');
        match self {
            SourceKind::Ip if rest.is_empty() => Some(Ok(Source::Ip(Prefixes::default()))),
            SourceKind::Ip => rest.strip_prefix('/')?.split_once('/').map(|(v4, v6)| prefixes(v4, v6).map(Source::Ip)),
            SourceKind::Host => alone(Source::Host),
            SourceKind::Path => alone(Source::Path),
            SourceKind::Method => alone(Source::Method),
            SourceKind::Route => alone(Source::Route),
            SourceKind::Param => Some(param_name(name()?).map(Source::Param)),
            SourceKind::Header => Some(header_name(name()?).map(Source::Header)),
            SourceKind::Cookie => Some(cookie_name(name()?).map(Source::Cookie)),
            SourceKind::Query => Some(input_name(name()?, "query parameter").map(Source::Query)),
            SourceKind::Claim => Some(input_name(name()?, "claim").map(Source::Claim)),
            SourceKind::Tls => Some(certificate_name(name()?).map(Source::Tls)),
            SourceKind::Form => Some(input_name(name()?, "form field").map(Source::Form)),
            SourceKind::Json => Some(JsonPointer::parse(name()?).map(Source::Json)),
        }
    }
}

fn certificate_name(text: &str) -> Result<CertificateName, Fault> {
    match CertificateName::ALL.iter().find(|name| name.label() == text) {
        Some(name) => Ok(*name),
        None => fault(format!("`{text}` is nothing that a certificate says here"), "write tls:subject or tls:san"),
    }
}

fn prefixes(v4: &str, v6: &str) -> Result<Prefixes, Fault> {
    let length = |text: &str, max: u8| text.parse().ok().filter(|length| (1..=max).contains(length));
    match (length(v4, 32), length(v6, 128)) {
        (Some(v4), Some(v6)) => Ok(Prefixes { v4, v6 }),
        _ => fault("prefixes go from 1 to 32 for IPv4 and from 1 to 128 for IPv6", "like \"ip/24/56\""),
    }
}

impl Source {
    /// The source that `text` names; `None` when it is none of the `allowed` kinds.
    ///
    /// # Errors
    /// It is of one of these kinds, but what stands after its word is wrong.
    pub fn parse(text: &str, allowed: &[SourceKind]) -> Option<Result<Source, Fault>> {
        allowed.iter().find_map(|kind| kind.parse(text.strip_prefix(kind.word())?))
    }

    /// Appends what it is called in state keys, messages and the admin API.
    pub fn write(&self, text: &mut String) {
        text.push_str(self.kind().word());
        match self {
            Source::Ip(prefixes) if *prefixes == Prefixes::default() => {}
            Source::Ip(Prefixes { v4, v6 }) => drop(write!(text, "/{v4}/{v6}")),
            other => {
                if let Some(name) = other.argument() {
                    write_name(text, name);
                }
            }
        }
    }

    /// What stands after its word and a colon, as it is written in a config.
    fn argument(&self) -> Option<&str> {
        match self {
            Source::Ip(_) | Source::Host | Source::Path | Source::Method | Source::Route => None,
            Source::Header(name) => Some(name.as_str()),
            Source::Json(pointer) => Some(pointer.text()),
            Source::Tls(name) => Some(name.label()),
            Source::Param(name)
            | Source::Cookie(name)
            | Source::Query(name)
            | Source::Claim(name)
            | Source::Form(name) => Some(name),
        }
    }

    /// What it is called in messages to clients, whatever its name holds.
    pub fn told(&self) -> String {
        self.argument().map_or_else(|| self.to_string(), |name| format!("{}:{name}", self.kind().word()))
    }

    /// Whether it is called `name`. `ip` is the client whatever part of its address counts; names of
    /// header fields have no case.
    pub fn is_called(&self, name: &str) -> bool {
        match self {
            Source::Ip(_) if name == SourceKind::Ip.word() => true,
            Source::Header(_) => name.eq_ignore_ascii_case(&self.to_string()),
            _ => name == self.to_string(),
        }
    }

    /// A value that somebody wrote, as requests show it.
    ///
    /// # Errors
    /// What was written, where it is not the address that it has to be.
    pub fn written(&self, value: Vec<u8>) -> Result<SourceValue<'static>, String> {
        Ok(match self {
            Source::Ip(_) => {
                let text = String::from_utf8_lossy(&value);
                SourceValue::Ip(text.parse().map_err(|_| text.into_owned())?)
            }
            Source::Host => SourceValue::Bytes(value.to_ascii_lowercase().into()),
            _ => SourceValue::Bytes(self.counted(value.into())),
        })
    }

    /// What tells budgets apart of a value. Some servers read a `+` in a cookie as a space: to be neither a way
    /// around a limit nor refused where identifiers have it, it is one with `%20` and `%2B`.
    pub fn counted<'v>(&self, value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        match self {
            Source::Cookie(_) if value.contains(&b' ') => {
                value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect()
            }
            _ => value,
        }
    }

    /// What counts of an address.
    pub fn network(&self, ip: IpAddr) -> IpAddr {
        match self {
            Source::Ip(prefixes) => prefixes.network(ip),
            _ => ip,
        }
    }

    /// A value of it as text.
    pub fn text<'v>(&self, value: SourceValue<'v>) -> Cow<'v, [u8]> {
        match value {
            SourceValue::Ip(ip) => self.network(ip).to_string().into_bytes().into(),
            SourceValue::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        self.write(&mut name);
        f.write_str(&name)
    }
}

/// A name that could be taken for more than a name is written as a hash.
fn write_name(text: &mut String, name: &str) {
    text.push(':');
    match name.bytes().all(|byte| byte.is_ascii_graphic() && !b"{},=#!|".contains(&byte)) {
        true => text.push_str(name),
        false => write_hash(text, name.as_bytes()),
    }
}

/// 128 bits in hexadecimal digits, for what cannot stand there as it is.
pub fn write_hash(text: &mut String, value: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in &Sha256::digest(value)[..16] {
        text.extend([byte >> 4, byte & 0xf].map(|digit| char::from(DIGITS[usize::from(digit)])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spelt_is_parsed_and_the_other_way_round() {
        for text in [
            "ip",
            "ip/24/56",
            "host",
            "path",
            "method",
            "route",
            "param:id",
            "header:x-a",
            "cookie:S",
            "query:a[b]",
            "tls:san",
            "form:user[name]",
            "json:/user/0/~0a~1b",
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
        ] {
            assert!(matches!(Source::parse(text, SourceKind::ALL), Some(Err(_))), "{text}");
        }
    }
}
