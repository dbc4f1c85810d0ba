//! The request page of listeners with `serve = "decide"`: answers other proxies that ask whether the limits admit one
//! of their requests.
//!
//! Input: a question, which is a request of a trusted peer about a request of its client. Output: the decision as a
//! status with headers. `proxy::request` calls this page in place of its own, and every answer passes `finish_response`.
//!
//! To add a step, write a function that takes the `RequestContext`, and call it in `handle_question`.

use http::Response;

use crate::proxy::arrival::{
    check_certificate, check_framing, identify_client, open_log_entry, report_untrusted_headers, validate_head,
};
use crate::proxy::request_context::RequestContext;
use crate::proxy::response::body::ResponseBody;
use crate::proxy::response::refusal::Refusal;

/// Takes a question from its head to the answer. An error is the reason to refuse it.
pub async fn handle_question(request: &mut RequestContext<'_>) -> Result<Response<ResponseBody>, Refusal> {
    let identity = identify_client(request);
    open_log_entry(request, identity);
    let fault = check_framing(request)?;
    let head = validate_head(request)?;
    report_untrusted_headers(request, identity);
    check_certificate(request, &head)?;
    match fault {
        Some(reject) => Err(Refusal::InvalidHead(reject)),
        None => Err(Refusal::NoRoute),
    }
}
