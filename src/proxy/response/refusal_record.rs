//! Records requests that limits refuse, for `/-/refusals`. Called when the limits have decided.

use crate::limiting::limit::Mode;
use crate::limiting::usage::refusals::{RecordedRefusal, RefusalCause};
use crate::limiting::{Outcome, Verdict, clock};
use crate::proxy::inbound::request_id;
use crate::proxy::request_context::{RequestContext, RoutedRequest};
use crate::proxy::response::error_page;
use crate::proxy::response::problem::limit_refusal_status;
use crate::proxy::response::refusal::refusal_reason;
use crate::route::Route;

/// Records the refusal of the request's verdict, and gives the request an id if it has none.
pub fn record_refusal(request: &mut RequestContext<'_>, routed: RoutedRequest<'_>) {
    let RoutedRequest { route, identity, .. } = routed;
    let Some(verdict) = &request.verdict else { return };
    let Some(status) = refusal_status(route, verdict) else { return };
    let headers = &request.received.parts.headers;
    let id = request.request_id.get_or_insert_with(|| request_id::received_or_new(headers, identity.trusted_peer));
    // An id that no response shows cannot be asked for.
    let id = error_page::showable_id(id).unwrap_or_default();
    let mut refusal = RecordedRefusal::new(clock::now_ms(), identity.ip, status, &route.name, id);
    for mode in [Mode::Enforce, Mode::Shadow] {
        for checked in verdict.refusals_of(&route.limits, mode) {
            let known = verdict.refused_keys.iter().find(|refused| refused.limit == checked.limit);
            let key = known.map_or(("", None), |refused| (refused.key.as_str(), refused.cost));
            let limit = route.limits[checked.limit].clone();
            refusal.add_check(limit, describe_cause(checked.outcome), checked.override_rule.clone(), key);
        }
    }
    request.client.local.refusals.record(refusal);
}

fn describe_cause(outcome: Outcome) -> RefusalCause {
    RefusalCause {
        reason: refusal_reason(outcome).label(),
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
