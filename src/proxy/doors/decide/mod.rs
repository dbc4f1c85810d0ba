//! Handles the requests of listeners with `serve = "decide"`: answers other proxies that ask whether the limits admit
//! one of their requests.
//!
//! Input: a question, which is a request of a trusted peer about a request of its client. Output: the decision as a
//! status with headers. `proxy::doors::request` calls this page instead of its own, and every answer passes
//! `finish_response`.
//!
//! - `question`: reads the name and the facts of the request in question
//! - `decision`: decides by the limits, and makes the receipt of the charges
//! - `recent`: answers of the last seconds, for questions that repeat (`once`); `recorded_answer`: their text in a
//!   shared store
//! - `settle`: corrects charges by their receipt
//!
//! The head of a request in question takes the steps of `proxy::steps::pipeline`.

pub mod decision;
pub mod question;
pub mod settle;

use http::Version;

use crate::ends::End;
use crate::proxy::account::request_context::{Reply, RequestContext, RoutedRequest};
use crate::proxy::doors::decide::decision::decide_question;
use crate::proxy::doors::decide::question::{ProxyQuestion, QuestionPurpose, lacks_host, read_question};
use crate::proxy::doors::decide::settle::settle_charges;
use crate::proxy::steps::arrival::{
    check_framing, open_log_entry, record_kept_slashes, report_unnamed_client, report_untrusted_headers,
};
use crate::proxy::steps::pipeline::admit_described;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::telemetry::metrics::QuestionResult;

/// Takes a question from its head to the answer. An error is the reason to refuse it.
pub async fn handle_question(request: &mut RequestContext<'_>) -> Result<Reply, Refusal> {
    // The asking proxy reads the status, whatever the client of the request in question speaks.
    request.wants_grpc_errors = false;
    let parser_fault = check_framing(request);
    let question = ask(request);
    open_log_entry(request);
    report_untrusted_headers(request);
    // A receipt has no client.
    if matches!(&question, Ok(question) if question.purpose == QuestionPurpose::Decide) {
        report_unnamed_client(request);
    }
    let result = match question {
        Err(fault) => Err(fault),
        Ok(question) => answer(request, &question, parser_fault).await,
    };
    count_result(request, &result);
    result
}

/// Reads the question, if the peer may ask.
fn ask<'a>(request: &mut RequestContext<'a>) -> Result<ProxyQuestion<'a>, Refusal> {
    if !request.identity.trusted_peer {
        return Err(End::DecidePeer.into());
    }
    let view = request.view;
    read_question(&mut request.received.parts, &view.snapshot.config)
}

/// Answers a question, or redeems a receipt.
async fn answer<'a>(
    request: &mut RequestContext<'a>,
    question: &ProxyQuestion<'a>,
    parser_fault: Result<Option<End>, Refusal>,
) -> Result<Reply, Refusal> {
    let identity = request.identity;
    let route = enter_point(request, question);
    if question.purpose == QuestionPurpose::Settle {
        parser_fault?;
        return settle_charges(request, question).await.map(|response| Reply::Route(response, None));
    }
    // From here on, refusals are about the request in question, and have the status that the asking proxy accepts.
    request.question = Some(question.point);
    request.has_joined_lines = question.point.joins_lines();
    let parser_fault = parser_fault?;
    let fault = question.described.map_err(Refusal::from)?;
    // The version of the request in question is unknown, so it may lack a host like a request over HTTP/1.0: the asking
    // proxy has accepted it.
    let version = request.received.parts.version;
    if lacks_host(&request.received.parts) {
        request.received.parts.version = Version::HTTP_10;
    }
    let head = admit_described(request, route, identity, parser_fault.or(fault));
    request.received.parts.version = version;
    let head = head?;
    record_kept_slashes(request, &head);
    let routed = RoutedRequest { route, head: &head, identity: &identity };
    decide_question(request, routed, question).await.map(Reply::Decision)
}

/// Counts the question on the route whose limits decide.
fn enter_point<'a>(request: &mut RequestContext<'a>, question: &ProxyQuestion<'_>) -> &'a Route {
    let index = question.point.route;
    let route = request.view.snapshot.config.route_at(index);
    request.route = Some((index, route));
    request.account.count_on_route(route, request.view.route_counters(index));
    route
}

fn count_result(request: &RequestContext<'_>, result: &Result<Reply, Refusal>) {
    let outcome = match result {
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
    request.view.questions.count(outcome);
}
