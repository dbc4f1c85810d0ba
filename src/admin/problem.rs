//! Problem documents of the admin listener (RFC 9457). Used by all its pages.

use http::StatusCode;
use serde_json::{Value, json};

/// Why a request is rejected.
#[derive(Debug)]
pub struct Problem {
    pub status: StatusCode,
    pub detail: String,
    /// Members besides title, status and detail.
    pub more: Value,
}

impl Problem {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem { status, detail: detail.into(), more: json!({}) }
    }
}
