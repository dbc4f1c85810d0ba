//! Why a request is not forwarded, why its exchange with a server failed, or why its response broke off: an end of the
//! table, with what only this request can tell.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::ends::End;

/// An end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub end: End,
    context: RefusalContext,
}

/// The facts that the table of ends does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalContext {
    Nothing,
    /// The text for the client where the table has none. Otherwise it is for the log.
    Text(&'static str),
    /// The client may try again after this time.
    RetryAfter(Duration),
    /// Nothing arrived within this time.
    Within(Duration),
}

impl From<End> for Refusal {
    fn from(end: End) -> Refusal {
        Refusal { end, context: RefusalContext::Nothing }
    }
}

impl Refusal {
    pub fn with_text(end: End, text: &'static str) -> Refusal {
        Refusal { end, context: RefusalContext::Text(text) }
    }

    /// `wait` has a jitter, so that clients do not return together.
    pub fn retry_after(end: End, wait: Duration) -> Refusal {
        Refusal { end, context: RefusalContext::RetryAfter(wait) }
    }

    pub fn within(end: End, limit: Duration) -> Refusal {
        Refusal { end, context: RefusalContext::Within(limit) }
    }

    /// Returns the status of the error response.
    pub fn status(&self) -> StatusCode {
        self.end.status()
    }

    /// Returns the time after which the client may retry, in milliseconds, if the gateway can name one. Limits name
    /// their own.
    pub fn retry_ms(&self) -> Option<i64> {
        match self.context {
            RefusalContext::RetryAfter(wait) => Some(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)),
            _ => None,
        }
    }

    /// Returns one sentence for the client: what is wrong and, if there is a remedy, what to do.
    pub fn detail(&self) -> &'static str {
        match (self.end.row().text, self.context) {
            ("", RefusalContext::Text(text)) => text,
            (text, _) => text,
        }
    }
}

/// The text for the log.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context {
            RefusalContext::Text(text) => f.write_str(text),
            RefusalContext::Within(limit) => write!(f, "no response within {limit:?}"),
            RefusalContext::Nothing | RefusalContext::RetryAfter(_) => f.write_str(self.end.row().log_text()),
        }
    }
}

impl std::error::Error for Refusal {}
