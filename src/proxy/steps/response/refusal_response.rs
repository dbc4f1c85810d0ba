//! The response to a refusal: the body that the config sets with `refuse`, or an error in the format that the client
//! prefers. gRPC clients get those of `grpc`.

use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};

use crate::ends::End;
use crate::limiting::{LimitResult, Verdict};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::render::call_ids::CallIds;
use crate::proxy::render::ratelimit::ceil_seconds;
use crate::proxy::steps::response::api_error;
use crate::proxy::steps::response::error_page;
use crate::proxy::steps::response::error_page::ErrorFacts;
use crate::proxy::steps::response::problem::{
    add_refuse_headers, capacity_problem, fixed_response, limit_problem, limit_refusal_status, problem_document,
    refusal_title, retry_after_s, write_fact,
};
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::route::error_pages::{ErrorPages, PageFormat};

/// How a client gets an error.
#[derive(Clone, Copy)]
pub struct ErrorFormat<'e> {
    /// The format that the client prefers.
    pub format: PageFormat,
    /// The pages that replace the built-in responses.
    pub pages: Option<&'e ErrorPages>,
    /// The request id, if the access log, a span or the list of refusals has it.
    pub request_id: Option<&'e str>,
    /// The setting that governs the error, if the client may see it.
    pub hint: Option<&'static str>,
    /// The error answers a question of another proxy, which would take a server error for a failure of the gateway, and
    /// might let the request pass.
    pub is_for_proxy: bool,
    /// The JSON-RPC calls that the error is for.
    pub call_ids: &'e CallIds,
}

impl ErrorFormat<'_> {
    /// Returns the status of the error; `instead` replaces a server error for another proxy.
    fn status(&self, status: StatusCode, instead: StatusCode) -> StatusCode {
        if self.is_for_proxy && status.is_server_error() { instead } else { status }
    }
}

impl Refusal {
    /// Builds the response to a refusal. `ratelimit` adds the rate limit headers.
    pub fn to_response(
        self,
        route: Option<&Route>,
        verdict: Option<&Verdict>,
        wanted: ErrorFormat,
    ) -> Response<ResponseBody> {
        if let (true, Some(route), Some(verdict)) = (self.end.is_by_limit(), route, verdict)
            && let Some(checked) = verdict.longest_refusal(&route.limits)
        {
            let mut response = build_limit_refusal(route, verdict, checked, wanted);
            add_refuse_headers(response.headers_mut(), route, checked);
            return response;
        }
        let (status, detail) = (wanted.status(self.status(), StatusCode::BAD_REQUEST), self.detail());
        let retry_ms = self.retry_ms();
        let retry_after = retry_ms.map(ceil_seconds);
        let facts = ErrorFacts { status, detail, request_id: wanted.request_id, retry_after };
        let problem = || match retry_ms {
            Some(retry_ms) => capacity_problem(status, detail, retry_ms, wanted.hint),
            None => problem_document(status, detail, wanted.hint),
        };
        let mut response = error_page::build_response(&facts, wanted.format, wanted.pages, problem);
        if self.status() == StatusCode::UNAUTHORIZED
            && let Some(auth) = route.and_then(|route| route.auth.as_ref())
            && let Some(challenge) = auth.challenge(self.end)
            && let Ok(challenge) = HeaderValue::try_from(challenge)
        {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        if self.end == End::FileMethod {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}

/// Builds the response to a limit's refusal, with `Retry-After`: the body of `refuse`, or an error page.
fn build_limit_refusal(
    route: &Route,
    verdict: &Verdict,
    checked: &LimitResult,
    wanted: ErrorFormat,
) -> Response<ResponseBody> {
    let (limit, outcome) = (&route.limits[checked.limit], checked.outcome);
    let refuse = limit.refusal_response(&route.refuse);
    let status = wanted.status(limit_refusal_status(refuse, outcome), StatusCode::TOO_MANY_REQUESTS);
    let wait = retry_after_s(outcome);
    if let Some(dialect) = refuse.dialect {
        return api_error::build_response(dialect, status, (limit, outcome), wanted.call_ids);
    }
    let Some(template) = refuse.body.as_ref().filter(|_| outcome.end().is_configurable()) else {
        let detail = refusal_title(outcome, limit);
        let facts = ErrorFacts { status, detail: &detail, request_id: wanted.request_id, retry_after: wait };
        let problem = || limit_problem(status, route, verdict, (limit, outcome), (wanted.hint, wanted.request_id));
        return error_page::build_response(&facts, wanted.format, wanted.pages, problem);
    };
    let text = template.render(|placeholder, text| write_fact(*placeholder, text, route, limit, outcome));
    let mut response = fixed_response(status, text, refuse.content_type.clone());
    if let Some(wait) = wait {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait));
    }
    response
}
