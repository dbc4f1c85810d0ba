//! Explains a question of another proxy: the request in question, and the decision of the limits.

use std::net::IpAddr;

use http::HeaderMap;
use http::request::Parts;

use crate::config::{Config, Service};
use crate::explain::explanation::RouteReport;
use crate::explain::input::UrlEndpoint;
use crate::explain::limits;
use crate::explain::walk::{ExplainWalk, Findings};
use crate::net::ListenAddr;
use crate::proxy::arrival::check_denied;
use crate::proxy::decide::question::{QuestionPurpose, read_question};
use crate::proxy::inbound::identity::{ClientAddress, identify};
use crate::proxy::inbound::validate::{ValidatedHead, judge_faults};
use crate::proxy::request_context::RoutedRequest;
use crate::proxy::response::refusal::{QuestionFault, Refusal};
use crate::route::Route;
use crate::route::decide::{DecidePoint, DenyStatus};

/// Reads a question, if a listener for questions has the port of the URL, and replaces its head by that of the request
/// in question.
pub fn find_question<'c>(
    config: &'c Config,
    peer: IpAddr,
    endpoint: &UrlEndpoint,
    parts: &mut Parts,
) -> Option<Result<&'c DecidePoint, QuestionFault>> {
    let has_port = |addr: &ListenAddr| matches!(addr, ListenAddr::Tcp(addr) if addr.port() == endpoint.port);
    let listener = config.listeners.iter().find(|listener| has_port(&listener.address))?;
    if listener.service != Service::Decide {
        return None;
    }
    if !identify(peer, &parts.headers, &config.server.trusted_proxies).trusted_peer {
        return Some(Err(QuestionFault::UntrustedPeer));
    }
    Some(read_question(parts, config).and_then(|question| match question.purpose {
        QuestionPurpose::Decide => Ok(question.point),
        QuestionPurpose::Settle => Err(QuestionFault::Facts("settlements are not explained; only decisions are")),
    }))
}

/// Decides a question, and describes the decision.
pub async fn decide_question(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    (route, point): (&Route, &DecidePoint),
    head: &ValidatedHead,
    identity: &ClientAddress,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    found.explanation.route =
        Some(RouteReport { name: route.name.clone(), path: route.matcher.path.to_string(), hosts: Vec::new() });
    found.explanation.notes.push(format!(
        "another proxy asks about this request at /decide/{}; it states the request as `from = \"{}\"`",
        route.name,
        point.from.label()
    ));
    if point.deny_as == DenyStatus::Forbidden {
        found.explanation.notes.push("a refusal has status 403 and its own status in X-Limit-Status".to_owned());
    }
    if let Some(name) = &point.once {
        found.explanation.notes.push(format!("a question with a recent {name} gets the earlier answer; not checked"));
    }
    judge_faults(head, walk.parsed.fault, route.parsing).map_err(Refusal::InvalidHead)?;
    check_denied(route, *identity)?;
    limits::apply_limits_of_question(walk, found, RoutedRequest { route, head, identity }, headers).await
}
