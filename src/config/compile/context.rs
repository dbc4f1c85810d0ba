//! What the rest of the config says that limits refer to.

use super::names::Names;
use super::set::Listed;
use crate::limit::rule::OnError;

pub struct Context<'a> {
    pub on_error: OnError,
    pub sets: &'a Names<Listed>,
    pub has_jwt: bool,
    /// Of the whole store.
    pub max_keys: usize,
}
