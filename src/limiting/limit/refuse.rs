//! The response to requests that a limit refuses: the `refuse` of the limit, or of its route.

use http::{HeaderName, HeaderValue, StatusCode};

use crate::labels::labels;
use crate::template::TextTemplate;

/// Response to a refused request.
#[derive(Debug, PartialEq, Eq)]
pub struct Refuse {
    pub status: StatusCode,
    /// The body. `None` sends an `application/problem+json` document, or an error page.
    pub body: Option<TextTemplate<RefusePlaceholder>>,
    pub content_type: HeaderValue,
    /// Further headers, whatever format the body has.
    pub headers: Vec<(HeaderName, TextTemplate<RefusePlaceholder>)>,
    /// The API in whose format clients get the refusal, instead of `body`.
    pub dialect: Option<RefusalDialect>,
}

labels! {
    /// API in whose error format clients get a refusal.
    RefusalDialect:
    OpenAi = "openai",
    Anthropic = "anthropic",
    Gemini = "gemini",
    Bedrock = "bedrock",
    /// JSON-RPC 2.0: an error for each call.
    JsonRpc = "jsonrpc",
}

impl Refuse {
    /// Returns whether the response names the calls in the body of the request.
    pub fn names_calls(&self) -> bool {
        self.dialect == Some(RefusalDialect::JsonRpc)
    }
}

/// 429 with a problem document.
impl Default for Refuse {
    fn default() -> Refuse {
        Refuse {
            status: StatusCode::TOO_MANY_REQUESTS,
            body: None,
            content_type: HeaderValue::from_static("application/problem+json"),
            headers: Vec::new(),
            dialect: None,
        }
    }
}

/// A placeholder in the body or in a header of `refuse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusePlaceholder {
    RetryAfter,
    Limit,
    Route,
}
