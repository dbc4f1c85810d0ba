//! How long a request has been waiting for its server. `forward` starts the clock, `breaker_watch` reads it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use crate::proxy::connection::upload::{UploadProgress, UploadState};

/// Since when a request has been waiting for its server: from the first attempt, and after its whole body has arrived.
pub struct SendClock {
    begun: Cell<Option<Instant>>,
    upload: Option<Rc<UploadProgress>>,
    uploaded: Cell<Option<Instant>>,
}

impl SendClock {
    pub fn new(upload: Option<Rc<UploadProgress>>) -> Rc<SendClock> {
        Rc::new(SendClock { begun: Cell::new(None), upload, uploaded: Cell::new(None) })
    }

    /// Records that an attempt begins on a connection.
    pub fn start(&self) {
        if self.begun.get().is_none() {
            self.begun.set(Some(Instant::now()));
        }
    }

    /// Returns since when only the server keeps the request. `None` while the client still sends its body, or no
    /// attempt has begun. Called whenever the request has moved, so that it notices the end of the body.
    pub fn waiting_since(&self) -> Option<Instant> {
        let start = self.begun.get()?;
        let Some(upload) = &self.upload else { return Some(start) };
        if upload.state() != UploadState::Done {
            return None;
        }
        let end = self.uploaded.get().unwrap_or_else(Instant::now);
        self.uploaded.set(Some(end));
        Some(start.max(end))
    }
}
