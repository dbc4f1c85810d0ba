//! What the rest of the config says that limits refer to.

use super::jwt::JWT_HELP;
use super::names::Names;
use super::set::Listed;
use crate::config::values::{Fault, fault};
use crate::limit::limits::OnError;
use crate::limit::source::{Origin, Source};

pub struct Context<'a> {
    pub on_error: OnError,
    pub sets: &'a Names<Listed>,
    pub has_jwt: bool,
    /// Of the whole store.
    pub max_keys: usize,
}

impl Context<'_> {
    /// `source`, unless it reads tokens and nothing says how these are verified.
    pub fn readable(&self, source: Source) -> Result<Source, Fault> {
        match source.kind().origin() {
            Origin::Token if !self.has_jwt => fault("there is no [jwt] that says how tokens are verified", JWT_HELP),
            Origin::Token | Origin::Request | Origin::Target | Origin::Fields => Ok(source),
        }
    }
}
