//! Early hints (103) of a server on their way to a client of HTTP/1.1. Passed on by `forward` while the answer is
//! waited for.

use http::HeaderMap;
use http::header::CONTENT_LENGTH;

use super::h1::request::write_field;
use crate::http::context::Client;
use crate::http::headers;
use crate::route::HeaderEdit;

/// Bytes of hints that wait for a client; those that do not fit are left out.
const WAITING_MAX: usize = 16 * 1024;

const START: &[u8] = b"HTTP/1.1 103 Early Hints\r\n";

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
        if !self.client.deadline().is_flushed() && early.is_empty() {
            return;
        }
        headers::forward_response(&mut fields, None);
        // It has no body, and a length might be taken for that of the answer's.
        fields.remove(CONTENT_LENGTH);
        for name in &self.edit.remove {
            fields.remove(name);
        }
        let bytes: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum();
        if early.len() + START.len() + bytes + "\r\n".len() > WAITING_MAX {
            return;
        }
        early.extend_from_slice(START);
        fields.iter().for_each(|(name, value)| write_field(&mut early, name, value));
        early.extend_from_slice(b"\r\n");
        self.client.deadline().flushed(false);
    }
}
