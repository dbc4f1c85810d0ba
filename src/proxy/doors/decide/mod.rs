//! Handles the requests of listeners with `serve = "decide"`: answers other proxies that ask whether the limits admit
//! one of their requests.
//!
//! Input: a question, which is a request of a trusted peer about a request of its client. Output: the decision as a
//! status with headers. `proxy::doors::request` calls this page in place of its own, and every answer passes
//! `finish_response`.
//!
//! - `question`: reads the name and the facts of the request in question
//! - `decision`: decides by the limits
//! - `recent`: answers of the last seconds, for questions that repeat (`once`); `recorded_answer`: their text in a
//!   shared store
//! - `charged`: the charges that go into a receipt; `settle`: corrects them by their receipt
//!
//! To add a step, write a function that takes the `RequestContext`, and call it in `handle_question`.

pub mod charged;
pub mod decision;
pub mod question;
pub mod settle;

use http::{Response, Version};

use crate::ends::End;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{Received, RequestContext, RoutedRequest};
use crate::proxy::doors::decide::decision::decide_question;
use crate::proxy::doors::decide::question::{ProxyQuestion, QuestionPurpose, lacks_host, read_question};
use crate::proxy::doors::decide::settle::settle_charges;
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::{ValidatedHead, judge_faults};
use crate::proxy::steps::arrival::{
    check_denied, check_framing, identify_client, open_log_entry, report_untrusted_headers, validate_head,
};
use crate::proxy::steps::forwarded_head::{check_described_head, remove_own_headers};
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::telemetry::metrics::QuestionResult;

/// Takes a question from its head to the answer. An error is the reason to refuse it.
pub async fn handle_question(request: &mut RequestContext<'_>) -> Result<Response<ResponseBody>, Refusal> {
    // The asking proxy reads the status, whatever the client of the request in question speaks.
    request.wants_grpc_errors = false;
    let identity = identify_client(request);
    let parser_fault = check_framing(request);
    let question = ask(request, identity);
    open_log_entry(request, identity);
    report_untrusted_headers(request, identity);
    let result = match question {
        Err(fault) => Err(fault),
        Ok(question) => answer(request, identity, &question, parser_fault).await,
    };
    count_result(request, &result);
    result
}

/// Reads the question, if the peer may ask.
fn ask<'a>(request: &mut RequestContext<'a>, identity: ClientAddress) -> Result<ProxyQuestion<'a>, Refusal> {
    if !identity.trusted_peer {
        return Err(End::DecidePeer.into());
    }
    let view = request.view;
    read_question(&mut request.received.parts, &view.snapshot.config)
}

/// Answers a question, or redeems a receipt.
async fn answer<'a>(
    request: &mut RequestContext<'a>,
    identity: ClientAddress,
    question: &ProxyQuestion<'a>,
    parser_fault: Result<Option<End>, Refusal>,
) -> Result<Response<ResponseBody>, Refusal> {
    let route = enter_point(request, question);
    if question.purpose == QuestionPurpose::Settle {
        parser_fault?;
        return settle_charges(request, question).await;
    }
    // From here on, refusals are about the request in question, and have the status that the asking proxy accepts.
    request.question = Some(question.point);
    let parser_fault = parser_fault?;
    let repaired = question.described.map_err(Refusal::from)?;
    let mut head = validate_described_head(request)?;
    let Received { parts, header_set, .. } = &mut *request.received;
    check_described_head(&parts.headers, *header_set, &mut head).map_err(Refusal::from)?;
    check_strictness(request, route, &head, parser_fault.or(repaired))?;
    remove_own_headers(&mut request.received.parts.headers, &request.view.snapshot.config);
    check_denied(route, identity)?;
    decide_question(request, RoutedRequest { route, head: &head, identity: &identity }, question).await
}

/// Validates the head of the request in question. The version of that request is unknown, so it may lack a host like a
/// request over HTTP/1.0: the asking proxy has accepted it.
fn validate_described_head(request: &mut RequestContext<'_>) -> Result<ValidatedHead, Refusal> {
    let parts = &mut request.received.parts;
    let version = parts.version;
    if lacks_host(parts) {
        parts.version = Version::HTTP_10;
    }
    let head = validate_head(request);
    request.received.parts.version = version;
    head
}

/// Counts the question on the route whose limits decide.
fn enter_point<'a>(request: &mut RequestContext<'a>, question: &ProxyQuestion<'_>) -> &'a Route {
    let index = question.point.route;
    let route = request.view.snapshot.config.route_at(index);
    request.route = Some((index, route));
    request.account.count_on_route(route, request.view.route_counters(index));
    route
}

/// Refuses an ambiguous request that the `strictness` of the route does not allow.
fn check_strictness(
    request: &RequestContext<'_>,
    route: &Route,
    head: &ValidatedHead,
    parser_fault: Option<End>,
) -> Result<(), Refusal> {
    if let Some(reject) = judge_faults(head, parser_fault, route.parsing).map_err(Refusal::from)? {
        request.client.local.common.metrics.would_reject_counter(reject).inc();
    }
    Ok(())
}

fn count_result(request: &RequestContext<'_>, result: &Result<Response<ResponseBody>, Refusal>) {
    let counted = match result {
        // Steps that answer count their own results.
        Ok(_) => return,
        Err(refusal) => match refusal.end {
            End::Denied => QuestionResult::Refused,
            end if end.is_by_limit() => QuestionResult::Refused,
            End::DecidePeer => QuestionResult::UntrustedPeer,
            End::DecideName => QuestionResult::UnknownName,
            End::DecideFacts => QuestionResult::BadFacts,
            End::ReceiptInvalid | End::ReceiptUsed | End::ReceiptExpired | End::ReceiptStoreDown => {
                QuestionResult::NotSettled
            }
            _ => QuestionResult::InvalidRequest,
        },
    };
    request.view.questions.count(counted);
}
