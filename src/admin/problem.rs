//! Problem documents of the admin listener (RFC 9457). Used by all its pages.

use std::collections::HashSet;

use http::StatusCode;
use serde_json::{Value, json};

use crate::labels::labels;

labels! {
    /// Kind of a problem, for programs: the end of `type` in a problem document. A kind never changes its text.
    ProblemKind:
    InvalidRequest = "invalid-request",
    TokenMissing = "token-missing",
    TokenUnknown = "token-unknown",
    TokenExpired = "token-expired",
    SessionEnded = "session-ended",
    CodeUnknown = "code-unknown",
    Forbidden = "forbidden",
    RoleTooLow = "role-too-low",
    ForeignSite = "foreign-site",
    NotLocal = "not-local",
    NotFound = "not-found",
    MethodNotAllowed = "method-not-allowed",
    Timeout = "timeout",
    Conflict = "conflict",
    StaleGeneration = "stale-generation",
    BodyTooLarge = "body-too-large",
    WrongContentType = "wrong-content-type",
    InvalidBody = "invalid-body",
    ConfigRejected = "config-rejected",
    EditDisabled = "edit-disabled",
    UnknownFile = "unknown-file",
    UnknownGeneration = "unknown-generation",
    TextsNotKept = "texts-not-kept",
    NotInFiles = "not-in-files",
    UnreadableFile = "unreadable-file",
    UnwritableFile = "unwritable-file",
    OtherFiles = "other-files",
    NotApplied = "not-applied",
    FilesUnavailable = "files-unavailable",
    PreconditionRequired = "precondition-required",
    TooManyAttempts = "too-many-attempts",
    InternalError = "internal-error",
    StoreUnavailable = "store-unavailable",
    Unavailable = "unavailable",
}

impl ProblemKind {
    /// Returns the kind of a status that says nothing more.
    pub fn of_status(status: StatusCode) -> ProblemKind {
        match status.as_u16() {
            401 => ProblemKind::TokenMissing,
            403 => ProblemKind::Forbidden,
            404 => ProblemKind::NotFound,
            405 => ProblemKind::MethodNotAllowed,
            408 => ProblemKind::Timeout,
            409 => ProblemKind::Conflict,
            412 => ProblemKind::StaleGeneration,
            413 => ProblemKind::BodyTooLarge,
            415 => ProblemKind::WrongContentType,
            422 => ProblemKind::InvalidBody,
            428 => ProblemKind::PreconditionRequired,
            429 => ProblemKind::TooManyAttempts,
            503 => ProblemKind::Unavailable,
            500..600 => ProblemKind::InternalError,
            _ => ProblemKind::InvalidRequest,
        }
    }

    /// Returns the value of `type`.
    pub fn urn(self) -> String {
        format!("urn:sluicegate:problem:{}", self.label())
    }
}

/// Why a request is rejected.
#[derive(Debug)]
pub struct Problem {
    pub status: StatusCode,
    pub kind: ProblemKind,
    pub detail: String,
    /// Members besides type, title, status and detail.
    pub more: Value,
}

impl Problem {
    /// Returns a problem with the kind of its status.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem { status, kind: ProblemKind::of_status(status), detail: detail.into(), more: json!({}) }
    }

    pub fn with_kind(self, kind: ProblemKind) -> Problem {
        Problem { kind, ..self }
    }
}

/// Returns the response to a query with an error.
pub fn bad_query(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

/// Refuses a query with a parameter that occurs twice, except those in `lists`: one of them would be ignored.
pub fn refuse_repeated(query: &str, lists: &[&str]) -> Result<(), Problem> {
    let names = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split('=').next().unwrap_or(pair));
    let mut earlier = HashSet::new();
    match names.filter(|name| !lists.contains(name)).find(|name| !earlier.insert(*name)) {
        Some(name) => {
            let detail = format!("the parameter `{name}` occurs twice; send it once");
            Err(bad_query(detail))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kind_is_different_and_documented() {
        let text = std::fs::read_to_string("docs/reference/admin-api.md").unwrap();
        let mut seen = HashSet::new();
        for kind in ProblemKind::ALL {
            assert!(seen.insert(kind.label()), "{}", kind.label());
            assert!(
                text.lines().any(|line| line.starts_with("| `") && line.contains(&format!("`{}`", kind.label()))),
                "{} is not documented",
                kind.label()
            );
        }
    }
}
