//! The request to explain, as people write it: a method, a URL and headers. Becomes the head that a client would send.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

use crate::canonical;
use crate::envoy::HeaderPair;
use crate::envoy::authorization::{Attributes, HeaderList, HttpAttributes, RequestAttributes};
use crate::proxy::doors::grpc::authorization;

/// A request to explain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExplainInput {
    pub method: String,
    /// `http://HOST/PATH?QUERY` or the same with `https`. Sent as written.
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// Address of the TCP peer. `None`: this machine.
    pub from: Option<IpAddr>,
    pub body: Option<Vec<u8>>,
    /// Subject of the client's verified certificate.
    pub certificate_subject: Option<String>,
    /// The identity that an auth server would state.
    pub user: Option<String>,
    /// Envoy asks about the request over gRPC (`ext_authz`): the `[decide.NAME]` or the route that it names.
    pub ext_authz: Option<String>,
}

/// Longest body that is read, in bytes.
pub const BODY_MAX: usize = 1024 * 1024;
/// Longest URL in bytes: longer than what the parser accepts as a target.
const URL_MAX: usize = 128 * 1024;
/// Maximum number of headers: more than the parser accepts.
const HEADERS_MAX: usize = 10_000;

/// The endpoint of a URL, to which a client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlEndpoint {
    pub is_https: bool,
    /// The name that a client asks for in its TLS handshake; `None` for an address.
    pub server_name: Option<String>,
    pub port: u16,
}

impl ExplainInput {
    pub fn peer(&self) -> IpAddr {
        self.from.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Returns the request as the body of `POST /-/explain`.
    pub fn to_json(&self) -> Value {
        let mut value = json!({ "method": self.method, "url": self.url, "headers": self.headers });
        let mut add = |name: &str, text: Option<String>| {
            if let Some(text) = text {
                value[name] = text.into();
            }
        };
        add("from", self.from.map(|ip| ip.to_string()));
        add("body_base64", self.body.as_ref().map(|body| BASE64_STANDARD.encode(body)));
        add("certificate_subject", self.certificate_subject.clone());
        add("user", self.user.clone());
        add("ext_authz", self.ext_authz.clone());
        value
    }

    /// Returns the bytes of the head that a client would send over HTTP/1.1, and where it would send them. The header
    /// `Host` comes from the URL unless `headers` has it, and `Content-Length` from the body.
    ///
    /// # Errors
    /// A part is not something that a client can send.
    pub fn to_head(&self) -> Result<(Vec<u8>, UrlEndpoint), String> {
        let (endpoint, authority, target) = split_url(&self.url)?;
        if Method::from_bytes(self.method.as_bytes()).is_err() {
            return Err(format!("`{}` is not a method; write one like GET", printable(&self.method)));
        }
        if self.headers.len() > HEADERS_MAX {
            return Err(format!("more than {HEADERS_MAX} headers"));
        }
        let mut head = format!("{} {target} HTTP/1.1\r\n", self.method).into_bytes();
        let has = |wanted: &HeaderName| self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted.as_str()));
        if !has(&HOST) {
            write_header(&mut head, "host", authority.as_bytes());
        }
        for (name, value) in &self.headers {
            let (Ok(_), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) else {
                return Err(format!("`{}: ...` is not a header; write NAME: VALUE", printable(name)));
            };
            write_header(&mut head, name, value.as_bytes());
        }
        if let Some(body) = self.body.as_ref().filter(|_| !has(&CONTENT_LENGTH) && !has(&TRANSFER_ENCODING)) {
            write_header(&mut head, "content-length", body.len().to_string().as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        Ok((head, endpoint))
    }
}

impl ExplainInput {
    /// Returns the request as Envoy states it in an authorization check about the limits `name`.
    ///
    /// # Errors
    /// A part is not something that a client can send.
    pub fn to_attributes(&self, name: &str) -> Result<Attributes, String> {
        self.to_head()?;
        let (_, authority, target) = split_url(&self.url)?;
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let header = |(name, value): &(String, String)| HeaderPair {
            key: bytes(&name.to_ascii_lowercase()),
            value: Bytes::new(),
            raw_value: bytes(value),
        };
        let host = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(HOST.as_str()));
        let http = HttpAttributes {
            method: bytes(&self.method),
            path: bytes(&target),
            host: bytes(host.map_or(authority, |(_, value)| value)),
            header_map: Some(HeaderList { headers: self.headers.iter().map(header).collect() }),
            ..HttpAttributes::default()
        };
        Ok(Attributes {
            request: Some(RequestAttributes { http: Some(http) }),
            context_extensions: [(authorization::NAME.to_owned(), name.as_bytes().to_vec())].into(),
            ..Attributes::default()
        })
    }
}

/// Splits a URL into endpoint, authority and target. Nothing is decoded or normalized: the gateway has to do that.
fn split_url(url: &str) -> Result<(UrlEndpoint, &str, String), String> {
    let help = "write http://HOST/PATH or https://HOST/PATH";
    if url.len() > URL_MAX {
        return Err(format!("the URL is longer than {URL_MAX} bytes"));
    }
    if let Some(wrong) = url.chars().find(|c| c.is_ascii_control() || *c == ' ') {
        return Err(format!("the URL contains {wrong:?}, which no client can send; write %{:02X}", u32::from(wrong)));
    }
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("`{}` is not a URL; {help}", printable(url)))?;
    let is_https = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        other => return Err(format!("the scheme `{}` is not served; {help}", printable(other))),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    if authority.is_empty() {
        return Err(format!("the URL has no host; {help}"));
    }
    let default = if is_https { 443 } else { 80 };
    let digits = authority.rsplit_once(':').map(|(_, port)| port).and_then(|port| port.parse().ok());
    let server_name = read_server_name(authority);
    let slash = if target.starts_with('/') { "" } else { "/" };
    Ok((UrlEndpoint { is_https, server_name, port: digits.unwrap_or(default) }, authority, format!("{slash}{target}")))
}

fn read_server_name(authority: &str) -> Option<String> {
    let read = canonical::authority::parse_authority(authority.as_bytes())?;
    let mut host = read.rewritten.unwrap_or_else(|| authority.to_owned());
    host.truncate(read.host_len);
    Some(host).filter(|host| !host.starts_with('[') && host.parse::<Ipv4Addr>().is_err())
}

fn write_header(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// Shortens a text for a message, and replaces control characters.
fn printable(text: &str) -> String {
    text.chars().take(60).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
