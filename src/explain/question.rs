//! Explains what other proxies ask about a request: a question to a listener for decisions, or a check of Envoy.

use http::Version;

use crate::config::Service;
use crate::ends::End;
use crate::explain::client::describe_source;
use crate::explain::explanation::{Explanation, RequestDecision, RouteReport, VerdictReport};
use crate::explain::input::{ExplainInput, UrlEndpoint};
use crate::explain::parser::ParsedHead;
use crate::explain::verdict::describe_refusal;
use crate::explain::walk::{ExplainContext, ExplainWalk, Findings, MadeCharge};
use crate::grpc::CallError;
use crate::proxy::doors::decide::question::{QuestionPurpose, lacks_host, read_question};
use crate::proxy::doors::grpc::authorization::{NAME, build_parts, find_http, find_limits, joins_lines};
use crate::proxy::head::hop::Via;
use crate::proxy::steps::door::{Ask, Door};
use crate::proxy::steps::pipeline::decide_described;
use crate::proxy::words::known_headers::HeaderSet;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::route::decide::{DecidePoint, DenyStatus};

impl<'a> ExplainWalk<'a> {
    /// Returns whether the URL belongs to a listener for questions of other proxies.
    pub fn asks_for_decision(&self) -> bool {
        self.listener().is_some_and(|listener| listener.service == Service::Decide)
    }

    fn enter_point(&mut self, route: &'a Route) {
        self.route = Some(route);
        self.found.explanation.route =
            Some(RouteReport { name: route.name.clone(), path: route.matcher.path.to_string(), hosts: Vec::new() });
    }
}

/// Takes a question of another proxy through its steps.
pub async fn answer_question(walk: &mut ExplainWalk<'_>) -> Result<(), Refusal> {
    let identity = walk.identify_client();
    if !identity.trusted_peer {
        return Err(End::DecidePeer.into());
    }
    let config = walk.context.config;
    let question = read_question(&mut walk.parsed.parts, config)?;
    if question.purpose == QuestionPurpose::Settle {
        return Err(Refusal::with_text(End::DecideFacts, "settlements are not explained; only decisions are"));
    }
    let route = config.route_at(question.point.route);
    walk.enter_point(route);
    note_point(walk, route, question.point);
    walk.has_joined_lines = question.point.joins_lines();
    let fault = question.described.map_err(Refusal::from)?;
    if lacks_host(&walk.parsed.parts) {
        walk.parsed.parts.version = Version::HTTP_10;
    }
    let fault = walk.parsed.fault.or(fault);
    decide_described(walk, route, identity, fault, Ask::CHARGE).await
}

fn note_point(walk: &mut ExplainWalk<'_>, route: &Route, point: &DecidePoint) {
    walk.note(format!(
        "another proxy asks about this request at /decide/{}; it states the request as `from = \"{}\"`",
        route.name,
        point.from.label()
    ));
    if point.deny_as == DenyStatus::Forbidden {
        walk.note("a refusal has status 403 and its own status in X-Limit-Status");
    }
    if let Some(name) = &point.once {
        walk.note(format!("a question with a recent {name} gets the earlier answer; not checked"));
    }
}

/// Explains an authorization check of Envoy (`ext_authz`) about the limits `name`.
///
/// # Errors
/// The input is not a request that a client can send.
pub async fn explain_check(
    input: &ExplainInput,
    context: &ExplainContext<'_>,
    endpoint: UrlEndpoint,
    name: &str,
    mut found: Findings,
) -> Result<(Explanation, Vec<MadeCharge>), String> {
    let attributes = input.to_attributes(name)?;
    let found_limits = find_limits(context.config, &attributes);
    let (point, route, http) = match found_limits.and_then(|(point, route)| Ok((point, route, find_http(&attributes)?)))
    {
        Ok(found) => found,
        Err(error) => {
            found.explanation.verdict = describe_call_error(&error);
            return Ok((found.explanation, Vec::new()));
        }
    };
    found.explanation.notes.push(format!(
        "Envoy asks about this request (`ext_authz`, context_extensions: {{ {NAME}: {name} }}); the peer is the client as Envoy \
         determined it"
    ));
    let (parts, fault) = match build_parts(http) {
        Ok(built) => built,
        Err(reject) => {
            found.explanation.verdict = describe_refusal(&found, Some(route), &reject.into(), context.now_ms());
            return Ok((found.explanation, Vec::new()));
        }
    };
    let (identity, report) = describe_source(input.peer(), context.config);
    found.explanation.client = report;
    let parsed = ParsedHead { header_set: HeaderSet::from_headers(&parts.headers), parts, fault, body_length: Some(0) };
    let via = Via::new(0);
    let mut walk = ExplainWalk::new(context, input, endpoint, (parsed, &via), found);
    walk.enter_point(route);
    walk.has_joined_lines = joins_lines(point, http);
    let result = decide_described(&mut walk, route, identity, fault, Ask::CHARGE).await;
    Ok(walk.finish(result.map(|()| None)))
}

/// Describes a call that ends with an error instead of a decision.
pub fn describe_call_error(error: &CallError) -> VerdictReport {
    VerdictReport {
        decision: RequestDecision::Reject.label().to_owned(),
        detail: format!("the call fails with {}: {}", error.code.label(), error.message),
        ..VerdictReport::default()
    }
}
