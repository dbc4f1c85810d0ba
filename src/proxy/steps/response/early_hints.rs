//! Forwards interim responses of a server, such as early hints (103), to an HTTP/1.1 client. Called by `forward` while
//! it waits for the final response.

use std::io::Write;

use http::header::CONTENT_LENGTH;

use crate::proxy::context::ClientConnection;
use crate::proxy::head::headers;
use crate::proxy::outbound::http1::request::write_header;
use crate::proxy::outbound::interim::InterimResponse;
use crate::route::HeaderEdit;

/// Bytes of interim responses that wait for a client. Further ones are dropped.
const WAITING_MAX: usize = 16 * 1024;

/// Upper bound for the status line and the empty line of an interim response, in bytes.
const LINES: usize = 64;

/// The client of the interim responses, and the header edits of its route.
pub struct EarlyHints<'a> {
    pub client: &'a ClientConnection,
    pub edit: &'a HeaderEdit,
}

impl EarlyHints<'_> {
    /// Queues an interim response, which is written before the final one. Drops it if an earlier response is still
    /// being written or if too many wait.
    pub fn forward_interim(&self, head: InterimResponse) {
        let InterimResponse { status, mut fields } = head;
        let mut early = self.client.interim.borrow_mut();
        if !self.client.connection().is_flushed() && early.is_empty() {
            return;
        }
        headers::clean_response_headers(&mut fields, None);
        // An interim response has no body. Clients might mistake the length for the length of the final response.
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
        fields.iter().for_each(|(name, value)| write_header(&mut early, name, value));
        early.extend_from_slice(b"\r\n");
        self.client.connection().set_flushed(false);
    }
}
