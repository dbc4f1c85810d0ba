//! Early hints (103) of a server on their way to a client of HTTP/1.1. Passed on by `forward` while the answer is
//! waited for.

use http::HeaderMap;

use super::h1::request::write_field;
use crate::http::context::Client;
use crate::http::headers;
use crate::route::HeaderEdit;

/// Bytes of hints that wait for a client; more are left out.
const WAITING_MAX: usize = 16 * 1024;

/// Where they go, and what of them does not.
pub struct EarlyHints<'a> {
    pub client: &'a Client,
    pub edit: &'a HeaderEdit,
}

impl EarlyHints<'_> {
    /// Leaves a head with these fields to be written before the answer. Hints may be left out, and are where an
    /// earlier answer is still being written.
    pub fn pass(&self, mut fields: HeaderMap) {
        let mut early = self.client.early.borrow_mut();
        let free = self.client.deadline().is_flushed() || !early.is_empty();
        if !free || early.len() > WAITING_MAX {
            return;
        }
        headers::forward_response(&mut fields, None);
        for name in &self.edit.remove {
            fields.remove(name);
        }
        early.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\n");
        fields.iter().for_each(|(name, value)| write_field(&mut early, name, value));
        early.extend_from_slice(b"\r\n");
        self.client.deadline().flushed(false);
    }
}
