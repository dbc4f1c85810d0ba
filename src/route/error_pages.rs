//! Error pages of a route: which statuses have a file instead of the built-in response, and which responses of upstream
//! servers are replaced.

use std::sync::Arc;

use http::StatusCode;

use crate::template::TextTemplate;

/// The error pages of a route, with those of `[server]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorPages {
    /// The entries in the order in which they are tried: those of the route come before those of the server. Of each,
    /// statuses come before classes.
    pub entries: Vec<PageEntry>,
    pub intercept: Intercept,
}

/// The pages of one status or class.
#[derive(Clone, Debug, PartialEq)]
pub struct PageEntry {
    pub statuses: StatusPattern,
    /// The pages, at most one per format.
    pub pages: Vec<Arc<ErrorPage>>,
}

/// A status, or a class of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPattern {
    Status(StatusCode),
    /// The first digit: 5 for `5xx`.
    Class(u16),
}

impl StatusPattern {
    fn matches(self, status: StatusCode) -> bool {
        match self {
            StatusPattern::Status(only) => only == status,
            StatusPattern::Class(class) => status.as_u16() / 100 == class,
        }
    }
}

/// A file with the text of an error.
#[derive(Debug, PartialEq)]
pub struct ErrorPage {
    pub format: PageFormat,
    pub text: TextTemplate<PagePlaceholder>,
}

/// The formats of an error response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// A problem document, or another JSON document.
    Json,
    Html,
    Text,
}

/// A placeholder in the file of an error page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagePlaceholder {
    Status,
    /// The reason phrase of the status.
    Reason,
    /// One sentence about this error.
    Detail,
    /// The request id as the access log has it. A trusted peer may have chosen it.
    RequestId,
    /// The value of `Retry-After`.
    RetryAfter,
}

/// Which error responses of upstream servers are replaced.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Intercept {
    #[default]
    None,
    /// The responses whose status has an error page.
    Paged,
    /// The responses with these statuses, with or without an error page.
    Only(Vec<StatusPattern>),
}

impl ErrorPages {
    /// Returns the page for a status in a format.
    pub fn find(&self, status: StatusCode, format: PageFormat) -> Option<&ErrorPage> {
        let matching = self.entries.iter().filter(|entry| entry.statuses.matches(status));
        matching.flat_map(|entry| &entry.pages).find(|page| page.format == format).map(|page| &**page)
    }

    /// Returns whether a response of an upstream server with this status is replaced.
    pub fn replaces(&self, status: StatusCode) -> bool {
        let is_error = status.is_client_error() || status.is_server_error();
        is_error
            && match &self.intercept {
                Intercept::None => false,
                Intercept::Paged => self.entries.iter().any(|entry| entry.statuses.matches(status)),
                Intercept::Only(statuses) => statuses.iter().any(|pattern| pattern.matches(status)),
            }
    }
}
