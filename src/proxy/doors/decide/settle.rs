//! Corrects the charges of an earlier decision by its receipt (`/settle/NAME`), at most once. The asking proxy states
//! how the request ended as headers: the true cost, or the status of the response with its headers.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::ends::End;
use crate::limiting::integers::units;
use crate::limiting::limit::Limit;
use crate::limiting::limit::request_end::{RequestEnd, ResponseTail};
use crate::limiting::limit::settle::BodyUsage;
use crate::limiting::receipts::Receipt;
use crate::limiting::receipts::bundle::ReceiptBundle;
use crate::limiting::store::once::MarkUse;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::RequestContext;
use crate::proxy::doors::decide::decision::X_LIMIT_RECEIPT;
use crate::proxy::doors::decide::question::ProxyQuestion;
use crate::proxy::steps::response::problem::fixed_response;
use crate::proxy::words::refusal::Refusal;
use crate::route::decide::X_LIMIT_STATUS;
use crate::telemetry::metrics::QuestionResult;

const X_LIMIT_COST: HeaderName = HeaderName::from_static("x-limit-cost");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// How the request of a receipt ended.
enum StatedEnd {
    /// The request cost this much, for every limit of the receipt.
    Cost(i64),
    /// The request got a response with this status. The rules of each limit apply, with the headers of the settlement
    /// as those of the response.
    Status(StatusCode),
}

/// Redeems the receipt of a settlement.
pub async fn settle_charges(
    request: &RequestContext<'_>,
    question: &ProxyQuestion<'_>,
) -> Result<Response<ResponseBody>, Refusal> {
    let corrections = redeem_receipt(request, question).await?;
    request.view.questions.count(QuestionResult::Settled);
    Ok(fixed_response(StatusCode::OK, json!({ "settled": corrections }).to_string(), JSON))
}

/// Returns the units by which each limit was corrected.
async fn redeem_receipt(
    request: &RequestContext<'_>,
    question: &ProxyQuestion<'_>,
) -> Result<Map<String, Value>, Refusal> {
    let parts = &request.received.parts;
    if parts.method != Method::POST {
        return Err(Refusal::with_text(End::DecideFacts, "a receipt is redeemed with POST"));
    }
    let end = read_end(&parts.headers)?;
    let token = read_once(&parts.headers, &X_LIMIT_RECEIPT)?.ok_or(End::ReceiptInvalid)?;
    let config = &request.view.snapshot.config;
    let token = token.to_str().map_err(|_| End::ReceiptInvalid)?;
    let bundle = ReceiptBundle::from_token(token, &config.admin.key_display.hasher)
        .filter(|bundle| bundle.name == question.name)
        .ok_or(End::ReceiptInvalid)?;
    let limiter = &request.view.limiter;
    // The mark of the last charge to expire makes the receipt usable once.
    let last = bundle.charges.iter().max_by_key(|charge| charge.expires_ms).ok_or(End::ReceiptInvalid)?;
    match last.use_once(limiter).await {
        Ok(MarkUse::First) => {}
        Ok(MarkUse::Again) => return Err(End::ReceiptUsed.into()),
        Ok(MarkUse::Expired) => return Err(End::ReceiptExpired.into()),
        Err(_) => return Err(End::ReceiptStoreDown.into()),
    }
    let mut corrections = Map::new();
    let mut has_failed = false;
    for charge in &bundle.charges {
        let Some((name, _)) = charge.limit_and_algorithm() else { continue };
        let Some(limit) = question.find_limit(config, name) else { continue };
        if clears(limit, &end, &parts.headers) {
            has_failed |= charge.clear_key(limiter, limit).await.is_err();
            continue;
        }
        let (Some(rule), Some(units)) =
            (charge.correcting_rule(limit), correction(limit, charge, &end, &parts.headers))
        else {
            continue;
        };
        if units == 0 || is_over(charge, request).await {
            continue;
        }
        // The cost of the request is known now. The usage counts it, even if the limit has forgotten the charge.
        match charge.correct_charge(limiter, limit, rule, units, |_| units).await {
            Ok(Some(_)) => {
                corrections.insert(limit.name.clone(), units.into());
            }
            Ok(None) => {}
            Err(_) => has_failed = true,
        }
    }
    if has_failed { Err(End::ReceiptStoreDown.into()) } else { Ok(corrections) }
}

/// Returns whether the charge has expired by itself, before others of the receipt.
async fn is_over(charge: &Receipt, request: &RequestContext<'_>) -> bool {
    let limiter = &request.view.limiter;
    let now_ms = match charge.local {
        true => Ok(limiter.memory_now_ms()),
        false => limiter.store().read_clock().await,
    };
    now_ms.is_ok_and(|now_ms| now_ms >= charge.expires_ms)
}

/// Returns whether the stated end of the request resets the key of a charge.
fn clears(limit: &Limit, end: &StatedEnd, headers: &HeaderMap) -> bool {
    let (StatedEnd::Status(status), Some(rules)) = (end, &limit.charge_rules) else { return false };
    let end = RequestEnd::Response { status: *status, head: headers, tail: ResponseTail::Whole(headers) };
    rules.clears(end) == Some(true)
}

/// Returns the units to add to a charge, or to refund if negative.
fn correction(limit: &Limit, charge: &Receipt, end: &StatedEnd, headers: &HeaderMap) -> Option<i64> {
    match end {
        StatedEnd::Cost(cost) => Some(cost - charge.cost),
        StatedEnd::Status(status) => {
            let rules = limit.charge_rules.as_ref()?;
            let end = RequestEnd::Response { status: *status, head: headers, tail: ResponseTail::Whole(headers) };
            // The usage in a body is not stated: the asking proxy can state it as the cost.
            rules.correction(end, charge.cost, BodyUsage::Unread)
        }
    }
}

/// Reads how the request ended.
fn read_end(headers: &HeaderMap) -> Result<StatedEnd, Refusal> {
    let cost = read_once(headers, &X_LIMIT_COST)?;
    let status = read_once(headers, &X_LIMIT_STATUS)?;
    match (cost, status) {
        (Some(cost), None) => {
            let fault = Refusal::with_text(End::DecideFacts, "X-Limit-Cost must be an integer without a sign");
            units(cost.as_bytes()).map(StatedEnd::Cost).ok_or(fault)
        }
        (None, Some(status)) => {
            let fault = Refusal::with_text(
                End::DecideFacts,
                "X-Limit-Status must be the status of a response, from 100 to 599",
            );
            let status = StatusCode::from_bytes(status.as_bytes()).ok().filter(|status| status.as_u16() < 600);
            status.map(StatedEnd::Status).ok_or(fault)
        }
        (Some(_), Some(_)) => {
            Err(Refusal::with_text(End::DecideFacts, "X-Limit-Cost and X-Limit-Status must not both be set"))
        }
        (None, None) => {
            Err(Refusal::with_text(End::DecideFacts, "X-Limit-Cost or X-Limit-Status must tell how the request ended"))
        }
    }
}

/// Returns the value of a header that may occur once.
fn read_once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Refusal::with_text(End::DecideFacts, "a header of the settlement is repeated")),
        (value, None) => Ok(value),
    }
}
