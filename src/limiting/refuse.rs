//! The response to requests that a limit refuses: the `refuse` of the limit, or of its route.

use http::{HeaderValue, StatusCode};

/// Response to a refused request.
#[derive(Debug, PartialEq, Eq)]
pub struct Refuse {
    pub status: StatusCode,
    /// Body with the placeholders `{retry_after}`, `{limit}` and `{route}`. `None` sends an
    /// `application/problem+json` document.
    pub body: Option<String>,
    pub content_type: HeaderValue,
}
