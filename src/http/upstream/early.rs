//! Interim responses of a server, such as early hints (103), on their way to a client of HTTP/1.1. Passed on by
//! `forward` while it waits for the response.

use std::io::Write;

use http::header::CONTENT_LENGTH;

use super::h1::request::write_field;
use super::interim::InterimHead;
use crate::http::context::Client;
use crate::http::headers;
use crate::route::HeaderEdit;

/// Bytes of interim responses that wait for a client; those that do not fit are left out.
const WAITING_MAX: usize = 16 * 1024;

/// More than the status line and the last line break of any.
const LINES: usize = 64;

/// Where they go, and what of them does not.
pub struct EarlyHints<'a> {
    pub client: &'a Client,
    pub edit: &'a HeaderEdit,
}

impl EarlyHints<'_> {
    /// Leaves an interim response to be written before the final one. It may be left out, and is where an earlier
    /// response is still being written.
    pub fn pass(&self, head: InterimHead) {
        let InterimHead { status, mut fields } = head;
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
        if early.len() + LINES + bytes > WAITING_MAX {
            return;
        }
        let reason = status.canonical_reason().unwrap_or_default();
        let _ = write!(early, "HTTP/1.1 {} {reason}\r\n", status.as_str());
        fields.iter().for_each(|(name, value)| write_field(&mut early, name, value));
        early.extend_from_slice(b"\r\n");
        self.client.deadline().flushed(false);
    }
}
