//! What sources read: the facts of a request, and the values found there. Facts are gathered by the
//! request page and by the replay.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;

use super::body::BodyFacts;
use super::inputs::{self, Ambiguous, Found, Repeated};
use super::{CertificateName, Source};
use crate::limit::jwt::TokenClaims;
use crate::tls::ClientCertificate;

/// What a request shows to limits: the canonical forms that also route and forward it.
pub struct Facts<'a> {
    pub client: IpAddr,
    pub method: &'a str,
    pub host: &'a str,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub route: &'a str,
    /// Of the route's template.
    pub params: &'a [PathParam],
    /// Of the verified token, if there is one and a limit of the route asks for it.
    pub claims: Option<TokenClaims>,
    /// That the client showed, verified.
    pub certificate: Option<&'a ClientCertificate>,
    /// If a limit of the route goes by it.
    pub body: BodyFacts<'a>,
}

/// A `{NAME}` of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathParam {
    pub name: String,
    /// The segment of the path that it takes, from 0.
    pub segment: usize,
}

/// Who has values of sources: a request, or somebody who asks about one.
pub trait SourceValues {
    /// `None` when absent.
    ///
    /// # Errors
    /// There is more than one, and `repeated` chooses none.
    fn value(&self, source: &Source, repeated: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous>;
}

pub enum SourceValue<'a> {
    /// Whole; its source says how much counts.
    Ip(IpAddr),
    Bytes(Cow<'a, [u8]>),
}

impl SourceValues for Facts<'_> {
    fn value(&self, source: &Source, repeated: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous> {
        let found = match source {
            Source::Ip(_) => return Ok(Some(SourceValue::Ip(self.client))),
            Source::Host => plain(self.host),
            Source::Path => plain(self.path),
            Source::Method => plain(self.method),
            Source::Route => plain(self.route),
            Source::Param(name) => self.param(name, repeated),
            Source::Header(name) => inputs::header(self.headers, name, repeated),
            Source::Cookie(name) => inputs::cookie(self.headers, name, repeated),
            Source::Query(name) => inputs::query(self.query, name, repeated),
            Source::Claim(name) => match &self.claims {
                Some(claims) => claims.get(name, repeated).map(|claim| claim.map(|text| text.as_bytes().into())),
                None => Ok(None),
            },
            Source::Tls(name) => match self.certificate.and_then(|certificate| certificate_text(certificate, *name)) {
                Some(text) => plain(text),
                None => Ok(None),
            },
            Source::Form(name) => match self.body {
                BodyFacts::Form(text) => inputs::query(Some(text), name, repeated),
                BodyFacts::Json(document) if is_also_form(document, name, repeated) => Err(Ambiguous),
                BodyFacts::None | BodyFacts::Json(_) | BodyFacts::UnreadableBody(_) => Ok(None),
            },
            Source::Json(pointer) => match self.body {
                BodyFacts::Json(document) if is_also_form(document, pointer.name(), repeated) => Err(Ambiguous),
                BodyFacts::Json(document) => pointer.find(document, repeated),
                BodyFacts::None | BodyFacts::Form(_) | BodyFacts::UnreadableBody(_) => Ok(None),
            },
        };
        Ok(found?.map(SourceValue::Bytes))
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

fn plain(text: &str) -> Found<'_> {
    Ok(Some(Cow::Borrowed(text.as_bytes())))
}

impl Facts<'_> {
    fn param(&self, name: &str, repeated: Repeated) -> Found<'_> {
        match self.params.iter().find(|param| param.name == name) {
            Some(param) => inputs::segment(self.path, param.segment, repeated),
            None => Ok(None),
        }
    }

    /// The value of `source` as text.
    ///
    /// # Errors
    /// As [`SourceValues::value`].
    pub fn text(&self, source: &Source, repeated: Repeated) -> Found<'_> {
        Ok(self.value(source, repeated)?.map(|value| source.text(value)))
    }
}

impl SourceValue<'_> {
    pub fn borrowed(&self) -> SourceValue<'_> {
        match self {
            SourceValue::Ip(ip) => SourceValue::Ip(*ip),
            SourceValue::Bytes(bytes) => SourceValue::Bytes(Cow::Borrowed(bytes)),
        }
    }
}
