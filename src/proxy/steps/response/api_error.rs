//! Refusals of limits in the error formats of LLM APIs and of JSON-RPC, so that their clients raise the right error and
//! retry in time.

use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::limiting::Outcome;
use crate::limiting::answer::NEVER;
use crate::limiting::limit::Limit;
use crate::limiting::limit::refuse::RefusalDialect;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::render::call_ids::CallIds;
use crate::proxy::steps::response::problem::{fixed_response, refusal_title, retry_after_s};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// Tells the clients of OpenAI and Anthropic whether to repeat the request by themselves.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Type of an error of Amazon services.
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
/// Longest wait that clients observe. They ignore a longer `Retry-After` and repeat the request too early.
const WAIT_MAX_S: i64 = 60;

/// Names of an error in the APIs.
struct ErrorNames {
    openai: &'static str,
    anthropic: &'static str,
    gemini: &'static str,
    bedrock: &'static str,
}

/// Builds the response to a refusal of `limit`, with `Retry-After`. `call_ids`: the calls in the request.
pub fn build_response(
    dialect: RefusalDialect,
    status: StatusCode,
    (limit, outcome): (&Limit, Outcome),
    call_ids: &CallIds,
) -> Response<ResponseBody> {
    let wait_s = retry_after_s(outcome);
    let is_worth_waiting = wait_s.is_some_and(|wait_s| wait_s <= WAIT_MAX_S);
    let (names, message) = (ErrorNames::find(status, is_worth_waiting), refusal_title(outcome, limit));
    let body = match dialect {
        RefusalDialect::OpenAi => {
            let code = if status == StatusCode::TOO_MANY_REQUESTS { names.openai } else { outcome.end().label() };
            json!({ "error": { "message": message, "type": names.openai, "param": null, "code": code } }).to_string()
        }
        RefusalDialect::Anthropic => {
            json!({ "type": "error", "error": { "type": names.anthropic, "message": message } }).to_string()
        }
        RefusalDialect::Gemini => {
            let mut error = json!({ "code": status.as_u16(), "message": message, "status": names.gemini });
            if let Some(wait_s) = wait_s {
                let kind = "type.googleapis.com/google.rpc.RetryInfo";
                error["details"] = json!([{ "@type": kind, "retryDelay": format!("{wait_s}s") }]);
            }
            json!({ "error": error }).to_string()
        }
        RefusalDialect::Bedrock => json!({ "message": message }).to_string(),
        RefusalDialect::JsonRpc => call_ids.to_response(&call_error(status, &message, outcome)),
    };
    let mut response = fixed_response(status, body, JSON);
    let headers = response.headers_mut();
    if let Some(wait_s) = wait_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(wait_s));
    }
    if let Some(answer) = outcome.answer().filter(|answer| answer.retry_ms != NEVER) {
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(answer.retry_ms));
    }
    if !is_worth_waiting && dialect != RefusalDialect::JsonRpc {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    if dialect == RefusalDialect::Bedrock {
        headers.insert(ERROR_TYPE, HeaderValue::from_static(names.bedrock));
    }
    response
}

/// Returns the error of a JSON-RPC call. The codes from -32099 to -32000 are for servers to define; -32029 is a full
/// limit.
fn call_error(status: StatusCode, message: &str, outcome: Outcome) -> Value {
    let code = match status.as_u16() {
        429 => -32029,
        400..500 => -32600,
        _ => -32603,
    };
    let mut error = json!({ "code": code, "message": message });
    let wait_ms = outcome.answer().map(|answer| answer.retry_ms).filter(|wait_ms| *wait_ms != NEVER);
    if let Some(wait_ms) = wait_ms.or_else(|| Some(retry_after_s(outcome)? * 1000)) {
        error["data"] = json!({ "retry_after_ms": wait_ms });
    }
    error
}

impl ErrorNames {
    fn find(status: StatusCode, is_worth_waiting: bool) -> ErrorNames {
        let (openai, anthropic, gemini, bedrock) = match status.as_u16() {
            429 if is_worth_waiting => {
                ("rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED", "ThrottlingException")
            }
            429 => ("insufficient_quota", "rate_limit_error", "RESOURCE_EXHAUSTED", "ThrottlingException"),
            401 => ("invalid_request_error", "authentication_error", "UNAUTHENTICATED", "AccessDeniedException"),
            403 => ("invalid_request_error", "permission_error", "PERMISSION_DENIED", "AccessDeniedException"),
            413 => ("invalid_request_error", "request_too_large", "INVALID_ARGUMENT", "ValidationException"),
            400..500 => ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT", "ValidationException"),
            _ => ("server_error", "overloaded_error", "UNAVAILABLE", "ServiceUnavailableException"),
        };
        ErrorNames { openai, anthropic, gemini, bedrock }
    }
}
