//! The facts of a request, and the values of sources in them. `proxy` and the replay create facts.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::OnceLock;

use http::{HeaderMap, HeaderName};

use crate::geo::GeoDatabase;
use crate::limiting::clock;
use crate::limiting::source::body::BodyFacts;
use crate::limiting::source::calls::{Call, CallProtocol, find_common, read_calls};
use crate::limiting::source::canonical::Ambiguous;
use crate::limiting::source::inputs::{FoundValue, Repeated};
use crate::limiting::source::jwt::TokenClaims;
use crate::limiting::source::{CertificateName, Source, inputs};
use crate::limiting::unreadable_body::UnreadableBody;
use crate::tls::ClientCertificate;

/// A request as limits see it. Host and path are the canonical ones, by which requests are also routed.
pub struct Facts<'a> {
    pub client: IpAddr,
    pub method: &'a str,
    pub host: &'a str,
    pub path: &'a str,
    pub query: Option<&'a str>,
    /// What the server gets, which says what it does with the request: the canonical path with merged slashes, and the
    /// query. They are the client's, unless the route rewrites them.
    pub server_path: &'a str,
    pub server_query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    /// Another proxy, which describes the request, may have joined the lines of a header by commas.
    pub has_joined_lines: bool,
    pub route: &'a str,
    /// Parameters in the path of the route.
    pub params: &'a [PathParam],
    /// Claims of the verified token, if there is one and a limit of the route reads them.
    pub claims: Option<TokenClaims>,
    /// Finds the country of the client, if a database is configured.
    pub geo: Option<&'a GeoDatabase>,
    /// Verified certificate of the client.
    pub certificate: Option<&'a ClientCertificate>,
    /// The identity that the `auth` of the route verified.
    pub user: Option<&'a str>,
    /// The body, if a limit of the route reads it.
    pub body: BodyFacts<'a>,
    /// Entries of the descriptor in a rate limit request, in order. Empty for requests to routes.
    pub descriptor: &'a [DescriptorEntry<'a>],
    /// Length of the body; `None` if it is unknown.
    pub body_length: Option<u64>,
    /// The time of the request, in ms since 1970, if it is not the present: that of a log, or of a test case.
    pub stated_ms: Option<i64>,
    /// The calls in the request, once a limit has read them.
    pub calls: LazyCalls,
}

/// The calls in a request, which are read at most once for each protocol.
#[derive(Debug, Default)]
pub struct LazyCalls([OnceLock<Result<Vec<Call>, UnreadableBody>>; 2]);

/// One entry of a descriptor. Envoy may send values that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorEntry<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// A parameter `{NAME}` in the path of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathParam {
    pub name: String,
    /// Number of the path segment that it matches, from 0.
    pub segment: usize,
}

/// Value of a source.
pub enum SourceValue<'a> {
    /// The whole address; the source says which part of it counts.
    Ip(IpAddr),
    Bytes(Cow<'a, [u8]>),
    /// The value itself is not known, only hexadecimal digits that identify it: those of the state key, or the hash
    /// that a log shows.
    Digest(Cow<'a, str>),
}

impl<'a> Facts<'a> {
    /// Returns the facts of a request to the route named `route` of which only the client and the headers are known.
    /// This is the only place that lists all facts. Callers that know more facts add them.
    pub fn new(client: IpAddr, route: &'a str, headers: &'a HeaderMap) -> Facts<'a> {
        Facts {
            client,
            method: "",
            host: "",
            path: "",
            query: None,
            server_path: "",
            server_query: None,
            headers,
            has_joined_lines: false,
            route,
            params: &[],
            claims: None,
            geo: None,
            certificate: None,
            user: None,
            body: BodyFacts::None,
            descriptor: &[],
            body_length: None,
            stated_ms: None,
            calls: LazyCalls::default(),
        }
    }

    /// Returns the length of the body as far as it is known.
    pub fn least_body_length(&self) -> u64 {
        let read_length = if let BodyFacts::Json(document) = self.body { document.len() as u64 } else { 0 };
        self.body_length.unwrap_or(read_length)
    }

    /// Returns the time of the request, in ms since 1970. Reads the wall clock of this machine if none is stated.
    pub fn now_ms(&self) -> i64 {
        self.stated_ms.unwrap_or_else(clock::now_ms)
    }
}

impl Facts<'_> {
    /// Returns the value of a source; `None` if the request does not contain it.
    ///
    /// # Errors
    /// The request contains several values, and `repeated` does not choose one.
    pub fn value(&self, source: &Source, repeated: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous> {
        let value = match source {
            Source::Ip(_) => return Ok(Some(SourceValue::Ip(self.client))),
            Source::Country => match self.geo {
                Some(geo) => text_value(geo.find_country(self.client)),
                None => Ok(None),
            },
            Source::Host => text_value(self.host),
            Source::Path => text_value(self.path),
            Source::Target => match self.query {
                Some(query) => Ok(Some(format!("{}?{query}", self.path).into_bytes().into())),
                None => text_value(self.path),
            },
            Source::QueryString => text_value(self.query.unwrap_or_default()),
            Source::Method => text_value(self.method),
            Source::Route => text_value(self.route),
            Source::Param(name) => self.param(name, repeated),
            Source::Header(name) => self.header(name, repeated),
            Source::Credential(name) => match self.header(name, repeated)? {
                Some(line) => inputs::read_credential(line),
                None => Ok(None),
            },
            Source::Cookie(name) => inputs::find_cookie(self.headers, name, repeated),
            Source::Query(name) => inputs::find_query(self.query, name, repeated),
            Source::Claim(name) => match &self.claims {
                Some(claims) => claims.get(name, repeated).map(|claim| claim.map(bytes_of)),
                None => Ok(None),
            },
            Source::Tls(name) => match self.certificate.and_then(|certificate| certificate_text(certificate, *name)) {
                Some(text) => text_value(text),
                None => Ok(None),
            },
            Source::User => match self.user {
                Some(user) => text_value(user),
                None => Ok(None),
            },
            Source::Form(name) => match self.body {
                BodyFacts::Form(text) => inputs::find_query(Some(text), name, repeated),
                BodyFacts::Json(document) if is_also_form(document, name, repeated) => Err(Ambiguous),
                BodyFacts::None | BodyFacts::Json(_) | BodyFacts::UnreadableBody(_) => Ok(None),
            },
            Source::Json(pointer) => match self.body {
                BodyFacts::Json(document) if is_also_form(document, pointer.name(), repeated) => Err(Ambiguous),
                BodyFacts::Json(document) => pointer.find(document, repeated),
                BodyFacts::None | BodyFacts::Form(_) | BodyFacts::UnreadableBody(_) => Ok(None),
            },
            Source::JsonRpcMethod | Source::McpTool => self.common_value(CallProtocol::JsonRpc, source),
            Source::GraphqlOperation => self.common_value(CallProtocol::Graphql, source),
            Source::Descriptor(name) => find_entry(self.descriptor, name, repeated),
        };
        Ok(value?.map(SourceValue::Bytes))
    }
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => text.as_bytes().into(),
        Cow::Owned(text) => text.into_bytes().into(),
    }
}

/// Returns true if a server that reads JSON as a form finds the name in it, which then has two values.
fn is_also_form(document: &[u8], name: &str, repeated: Repeated) -> bool {
    repeated == Repeated::Refuse && inputs::is_form_field(document, name)
}

fn certificate_text(certificate: &ClientCertificate, name: CertificateName) -> Option<&str> {
    match name {
        CertificateName::Subject => Some(&certificate.subject),
        CertificateName::San => certificate.alternative_name.as_deref(),
    }
}

fn text_value(text: &str) -> FoundValue<'_> {
    Ok(Some(Cow::Borrowed(text.as_bytes())))
}

impl Facts<'_> {
    fn header(&self, name: &HeaderName, repeated: Repeated) -> FoundValue<'_> {
        match self.has_joined_lines {
            true => inputs::find_joined_header(self.headers, name, repeated),
            false => inputs::find_header(self.headers, name, repeated),
        }
    }

    fn param(&self, name: &str, repeated: Repeated) -> FoundValue<'_> {
        match self.params.iter().find(|param| param.name == name) {
            Some(param) => inputs::find_segment(self.path, param.segment, repeated),
            None => Ok(None),
        }
    }

    /// Returns the value of a claim, or all elements of one that is an array.
    ///
    /// # Errors
    /// There are several tokens, and `repeated` does not choose one.
    pub fn claim_values(&self, name: &str, repeated: Repeated) -> Result<Vec<Cow<'_, str>>, Ambiguous> {
        self.claims.as_ref().map_or_else(|| Ok(Vec::new()), |claims| claims.list(name, repeated))
    }

    /// Counts the elements of the array at `source`, a pointer into the body. `None` if there is no array.
    ///
    /// # Errors
    /// There are several arrays, and `repeated` does not choose one.
    pub fn count_elements(&self, source: &Source, repeated: Repeated) -> Result<Option<i64>, Ambiguous> {
        match (source, self.body) {
            (Source::Json(pointer), BodyFacts::Json(document)) => pointer.count_elements(document, repeated),
            _ => Ok(None),
        }
    }

    /// Returns the calls in the request, of which there is one at least.
    ///
    /// # Errors
    /// The request cannot be read as calls.
    pub fn calls(&self, protocol: CallProtocol) -> Result<&[Call], UnreadableBody> {
        let calls = self.calls.0[protocol as usize]
            .get_or_init(|| read_calls(protocol, &self.body, (self.headers, self.server_query)));
        calls.as_deref().map_err(|why| *why)
    }

    fn common_value(&self, protocol: CallProtocol, source: &Source) -> FoundValue<'_> {
        self.calls(protocol).map_err(|_| Ambiguous).and_then(|calls| find_common(calls, source))
    }

    /// Returns the value of `source` as text, in canonical form.
    ///
    /// # Errors
    /// There are several values, and `repeated` does not choose one.
    pub fn text(&self, source: &Source, repeated: Repeated) -> FoundValue<'_> {
        Ok(self.value(source, repeated)?.map(|value| source.canonicalize_value(source.value_text(value))))
    }
}

impl SourceValue<'_> {
    /// Returns a value that borrows from this one.
    pub fn as_borrowed(&self) -> SourceValue<'_> {
        match self {
            SourceValue::Ip(ip) => SourceValue::Ip(*ip),
            SourceValue::Bytes(bytes) => SourceValue::Bytes(Cow::Borrowed(bytes)),
            SourceValue::Digest(digits) => SourceValue::Digest(Cow::Borrowed(digits)),
        }
    }
}

/// Finds the entry `name` of a descriptor. Names are compared exactly, and values are not decoded: Envoy's config
/// produces both.
fn find_entry<'d>(descriptor: &[DescriptorEntry<'d>], name: &str, repeated: Repeated) -> FoundValue<'d> {
    let mut values = descriptor.iter().filter(|entry| entry.key == name.as_bytes()).map(|entry| entry.value);
    let value = match repeated {
        Repeated::First => values.next(),
        Repeated::Last => values.next_back(),
        Repeated::Refuse => {
            let value = values.next();
            if values.next().is_some() {
                return Err(Ambiguous);
            }
            value
        }
    };
    Ok(value.map(Cow::Borrowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_occurs_once_and_is_matched_literally() {
        let entry =
            |key: &'static str, value: &'static str| DescriptorEntry { key: key.as_bytes(), value: value.as_bytes() };
        let twice = [entry("path", "/a%20b"), entry("user", ""), entry("path", "/c"), entry("Path", "/d")];
        let of = |name, repeated| find_entry(&twice, name, repeated);
        assert_eq!(of("user", Repeated::Refuse), Ok(Some(b"".as_slice().into())));
        assert_eq!(of("path", Repeated::Refuse), Err(Ambiguous));
        assert_eq!(of("path", Repeated::First), Ok(Some(b"/a%20b".as_slice().into())));
        assert_eq!(of("path", Repeated::Last), Ok(Some(b"/c".as_slice().into())));
        assert_eq!(of("pat", Repeated::Refuse), Ok(None));
    }
}
