//! How a limit's refusal looks to the client. Said by a limit, or by a route for those of its limits that
//! say nothing; read by whoever answers.

use http::{HeaderValue, StatusCode};

/// `body: None` = `application/problem+json`.
#[derive(Debug, PartialEq, Eq)]
pub struct Refuse {
    pub status: StatusCode,
    /// May hold `{retry_after}`, `{limit}`, `{route}`.
    pub body: Option<String>,
    pub content_type: HeaderValue,
}
