//! What the rest of the config says that limits refer to.

use super::jwt::JWT_HELP;
use super::names::Definitions;
use super::set::ListedItem;
use crate::config::values::{Fault, fault};
use crate::limit::limits::OnError;
use crate::limit::source::{Source, SourceOrigin};

pub struct LimitContext<'a> {
    pub on_error: OnError,
    pub sets: &'a Definitions<ListedItem>,
    pub has_jwt: bool,
    /// A listener asks clients for certificates.
    pub asks_clients: bool,
    /// Of the whole store.
    pub max_keys: usize,
}

impl LimitContext<'_> {
    /// `source`, unless it reads tokens or certificates and nothing says how these are verified.
    pub fn readable(&self, source: Source) -> Result<Source, Fault> {
        match source.kind().origin() {
            SourceOrigin::Token if !self.has_jwt => {
                fault("there is no [jwt] that says how tokens are verified", JWT_HELP)
            }
            SourceOrigin::Certificate if !self.asks_clients => fault(
                "no listener asks clients for certificates",
                "set `client_ca` in `tls` of the [[listener]] that these clients use",
            ),
            SourceOrigin::Certificate
            | SourceOrigin::Token
            | SourceOrigin::Request
            | SourceOrigin::Target
            | SourceOrigin::Fields
            | SourceOrigin::Body => Ok(source),
        }
    }
}
