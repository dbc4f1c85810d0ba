//! Records requests that limits refuse, for `/-/refusals`. Called when the limits have decided.

use crate::limiting::limit::Mode;
use crate::limiting::usage::refusals::{RefusalCause, RefusedRequest, RefusingLimit};
use crate::limiting::{LimitResult, Outcome, Verdict};
use crate::proxy::account::request_context::RequestContext;
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::request_id;
use crate::proxy::steps::response::error_page;
use crate::proxy::steps::response::problem::limit_refusal_status;
use crate::route::Route;

/// Records the refusal of the request's verdict, and gives the request an id if it has none.
pub fn record_refusal(request: &mut RequestContext<'_>, route: &Route, identity: &ClientAddress) {
    let Some(verdict) = &request.admission.verdict else { return };
    let Some(status) = refusal_status(route, verdict) else { return };
    let headers = &request.received.parts.headers;
    let id = request.request_id.get_or_insert_with(|| request_id::received_or_new(headers, identity.trusted_peer));
    // An id that no response shows cannot be asked for.
    let id = error_page::showable_id(id).unwrap_or_default();
    let started = request.account.started();
    let refusal = RefusedRequest { started, client: identity.ip, status, route: &route.name, id };
    let limits = [Mode::Enforce, Mode::Shadow].into_iter().flat_map(|mode| verdict.refusals_of(&route.limits, mode));
    request.client.worker.refusals.record(refusal, limits.map(|checked| describe_limit(route, verdict, checked)));
}

fn describe_limit<'a>(route: &'a Route, verdict: &'a Verdict, checked: &'a LimitResult) -> RefusingLimit<'a> {
    let refused_key = verdict.refused_keys.iter().find(|refused| refused.limit == checked.limit);
    RefusingLimit {
        limit: &route.limits[checked.limit],
        why: describe_cause(checked.outcome),
        override_rule: checked.override_rule.as_ref(),
        cost: refused_key.and_then(|refused| refused.cost),
        key: refused_key.map_or("", |refused| refused.key.as_str()),
    }
}

fn describe_cause(outcome: Outcome) -> RefusalCause {
    RefusalCause {
        reason: outcome.end().label(),
        answer: outcome.answer().copied(),
        is_local: matches!(outcome, Outcome::Local(_)),
        is_blocked: outcome == Outcome::Blocked,
    }
}

/// Returns the status of the response, which the limit that refuses for longest determines.
fn refusal_status(route: &Route, verdict: &Verdict) -> Option<u16> {
    let strictest = verdict.longest_refusal(&route.limits)?;
    let refuse = route.limits[strictest.limit].refusal_response(&route.refuse);
    Some(limit_refusal_status(refuse, strictest.outcome).as_u16())
}
