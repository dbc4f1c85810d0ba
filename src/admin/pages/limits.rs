//! Pages about limits: each reads its request and calls `LimitsApi`. Listed in `admin::pages`.

use http::StatusCode;
use tokio::task::{JoinHandle, spawn_local};

use crate::admin::limits::{OverrideChange, Refunded};
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response};

/// Maximum size of the body of a refund, in bytes.
const BODY_MAX: usize = 64 * 1024;
/// Maximum size of a body with many decisions, in bytes.
const DECISIONS_MAX: usize = 1024 * 1024;
/// Maximum size of the body of a request to explain, in bytes: enough for the longest request in Base64.
const EXPLAIN_MAX: usize = 2 * 1024 * 1024;

pub async fn list_limits(request: PageRequest) -> Result<AdminResponse, Problem> {
    Ok(json_response(request.context.limits.list_limits()))
}

pub async fn show_limit(request: PageRequest) -> Result<AdminResponse, Problem> {
    Ok(json_response(request.context.limits.show_limit(&request.name)?))
}

pub async fn explain(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let body = request.read_body(EXPLAIN_MAX).await?;
    let limits = &request.context.limits;
    let _turn = limits.wait_for_turn(body.len()).await?;
    let _work = request.start_work()?;
    Ok(json_response(limits.explain_request(&body, request.caller.role).await?))
}

pub async fn list_top(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    Ok(json_response(request.context.limits.list_top(request.query()).await?.to_string()))
}

pub async fn show_state(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let limits = &request.context.limits;
    Ok(json_response(limits.show_state(&request.name, request.query(), request.caller.role).await?.to_string()))
}

pub async fn reset_key(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let answer = request.context.limits.reset_key(&request.name, request.query()).await?;
    request.note_key(answer["key"].as_str());
    request.note_change(if answer["existed"] == false { "nothing to reset" } else { "usage reset" });
    Ok(json_response(answer.to_string()))
}

pub async fn set_override(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let body = request.read_body(BODY_MAX).await?;
    change_override(request, Some(body)).await
}

pub async fn remove_override(request: PageRequest) -> Result<AdminResponse, Problem> {
    change_override(request, None).await
}

async fn change_override(request: PageRequest, body: Option<Vec<u8>>) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    // The change continues without the client, so that the gateway reads what it has written.
    let (context, name, query) = (request.context.clone(), request.name.clone(), request.query().to_owned());
    let caller = request.caller.name.clone();
    let change = spawn_local(async move {
        match body {
            Some(body) => context.limits.set_override(&name, &query, (&body, caller.as_deref())).await,
            None => context.limits.remove_override(&name, &query).await,
        }
    });
    finish_change(&request, change).await
}

/// Waits for a change of an override, and reports it for the audit log.
async fn finish_change(
    request: &PageRequest,
    change: JoinHandle<Result<OverrideChange, Problem>>,
) -> Result<AdminResponse, Problem> {
    let broken = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the change was aborted");
    let OverrideChange { answer, key, summary } = change.await.map_err(broken)??;
    request.note_limit(answer["limit"].as_str());
    request.note_key(key.as_deref());
    request.note_change(summary);
    Ok(json_response(answer.to_string()))
}

pub async fn list_overrides(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    Ok(json_response(request.context.limits.list_overrides(request.query()).await?.to_string()))
}

/// Removes a live override that the list shows, whatever its key is.
pub async fn remove_listed(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let (context, query) = (request.context.clone(), request.query().to_owned());
    let change = spawn_local(async move { context.limits.remove_listed(&query).await });
    finish_change(&request, change).await
}

pub async fn list_bans(request: PageRequest) -> Result<AdminResponse, Problem> {
    let limits = &request.context.limits;
    let _turn = limits.wait_for_turn(usize::MAX).await?;
    let _work = request.start_work()?;
    Ok(json_response(limits.list_bans(request.query(), request.caller.role).await?.to_string()))
}

pub async fn show_usage(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let limits = &request.context.limits;
    Ok(json_response(limits.show_usage(&request.name, request.query(), request.caller.role).await?.to_string()))
}

pub async fn show_customer(request: PageRequest) -> Result<AdminResponse, Problem> {
    let limits = &request.context.limits;
    let _turn = limits.wait_for_turn(usize::MAX).await?;
    let _work = request.start_work()?;
    Ok(json_response(limits.show_customer(request.query(), request.caller.role).await?.to_string()))
}

pub async fn refund_charge(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let body = request.read_body(BODY_MAX).await?;
    let _work = request.start_work()?;
    // The refund continues without the client: a receipt that is marked as used must have been refunded.
    let (context, name) = (request.context.clone(), request.name.clone());
    let refund = spawn_local(async move { context.limits.refund_charge(&name, &body).await });
    let broken = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the refund was aborted");
    let Refunded { answer, key } = refund.await.map_err(broken)??;
    request.note_key(key.as_deref());
    request.note_change(if answer["applied"] == true { "charge refunded" } else { "nothing refunded" });
    Ok(json_response(answer.to_string()))
}

pub async fn decide(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let body = request.read_body(DECISIONS_MAX).await?;
    let limits = &request.context.limits;
    let _turn = limits.wait_for_turn(body.len()).await?;
    let _work = request.start_work()?;
    Ok(json_response(limits.decide_all(&body).await?.to_string()))
}

pub async fn list_refusals(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    Ok(json_response(request.context.limits.list_refusals(request.query()).await?.to_string()))
}

pub async fn what_if(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let body = request.read_body(BODY_MAX).await?;
    let _work = request.start_work()?;
    Ok(json_response(request.context.limits.estimate_change(&request.name, &body)?.to_string()))
}
