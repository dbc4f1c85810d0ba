//! Explains a question of another proxy: the request in question, and the decision of the limits.

use std::net::IpAddr;

use http::{HeaderMap, Version};

use crate::config::{Config, Service};
use crate::explain::client::describe_source;
use crate::explain::explanation::{Explanation, RequestDecision, RouteReport, VerdictReport};
use crate::explain::input::{ExplainInput, UrlEndpoint};
use crate::explain::limits;
use crate::explain::parser::ParsedHead;
use crate::explain::verdict::{describe_admission, describe_refusal};
use crate::explain::walk::{ExplainContext, ExplainWalk, Findings, MadeCharge};
use crate::grpc::CallError;
use crate::net::ListenAddr;
use crate::proxy::account::refusal::{QuestionFault, Refusal};
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::doors::decide::question::{HeadFault, QuestionPurpose, lacks_host, read_question};
use crate::proxy::doors::grpc::authorization::{NAME, build_parts, find_http, find_limits};
use crate::proxy::head::identity::{ClientAddress, identify};
use crate::proxy::head::validate::{LastHost, ValidatedHead, judge_faults, validate_head};
use crate::proxy::steps::forwarded_head::{check_described_head, remove_own_headers};
use crate::proxy::steps::pipeline::check_denied;
use crate::proxy::words::known_headers::HeaderSet;
use crate::route::Route;
use crate::route::decide::{DecidePoint, DenyStatus};

/// Reads a question, if a listener for questions has the port of the URL, and replaces its head by that of the request
/// in question.
pub fn find_question<'c>(
    config: &'c Config,
    peer: IpAddr,
    endpoint: &UrlEndpoint,
    parsed: &mut ParsedHead,
) -> Option<Result<&'c DecidePoint, HeadFault>> {
    let has_port = |addr: &ListenAddr| matches!(addr, ListenAddr::Tcp(addr) if addr.port() == endpoint.port);
    let listener = config.listeners.iter().find(|listener| has_port(&listener.address))?;
    if listener.service != Service::Decide {
        return None;
    }
    let parts = &mut parsed.parts;
    if !identify(peer, &parts.headers, &config.server.trusted_proxies).trusted_peer {
        return Some(Err(QuestionFault::UntrustedPeer.into()));
    }
    let question = match read_question(parts, config) {
        Ok(question) => question,
        Err(fault) => return Some(Err(fault.into())),
    };
    if question.purpose == QuestionPurpose::Settle {
        let why = "settlements are not explained; only decisions are";
        return Some(Err(QuestionFault::Facts(why).into()));
    }
    if lacks_host(parts) {
        parts.version = Version::HTTP_10;
    }
    Some(question.described.map_err(HeadFault::from).map(|repaired| {
        parsed.fault = parsed.fault.or(repaired);
        question.point
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
    decide_limits(walk, found, RoutedRequest { route, head, identity }, headers).await
}

async fn decide_limits(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    routed: RoutedRequest<'_>,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let RoutedRequest { route, head, identity } = routed;
    found.explanation.route =
        Some(RouteReport { name: route.name.clone(), path: route.matcher.path.to_string(), hosts: Vec::new() });
    judge_faults(head, walk.parsed.fault, route.parsing).map_err(Refusal::InvalidHead)?;
    check_denied(route, *identity)?;
    limits::apply_limits_of_question(walk, found, routed, headers).await
}

/// Explains an authorization check of Envoy (`ext_authz`) about the limits `name`.
///
/// # Errors
/// The input is not a request that a client can send.
pub async fn explain_check(
    input: &ExplainInput,
    context: &ExplainContext<'_>,
    name: &str,
) -> Result<(Explanation, Vec<MadeCharge>), String> {
    let config = context.config;
    let attributes = input.to_attributes(name)?;
    let mut found = Findings::new(context);
    found.explanation.request.method = input.method.clone();
    let resolved = find_limits(config, &attributes).and_then(|(_, route)| Ok((route, find_http(&attributes)?)));
    let (route, http) = match resolved {
        Ok(resolved) => resolved,
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
            found.explanation.verdict = describe_refusal(&found, Some(route), &Refusal::InvalidHead(reject));
            return Ok((found.explanation, Vec::new()));
        }
    };
    let mut headers = parts.headers.clone();
    let header_set = HeaderSet::from_headers(&headers);
    let parsed = ParsedHead { parts, header_set, fault, body_length: Some(0) };
    let walk = ExplainWalk { context, input, endpoint: input.endpoint()?, parsed: &parsed, question: None };
    let (identity, report) = describe_source(input.peer());
    found.explanation.client = report;
    let validated = validate_head(&parsed.parts, header_set, &LastHost::default());
    let checked = validated.and_then(|mut head| check_described_head(&headers, header_set, &mut head).map(|()| head));
    remove_own_headers(&mut headers, config);
    let decided = match checked {
        Ok(head) => {
            found.explanation.request = walk.describe_head(&head);
            let routed = RoutedRequest { route, head: &head, identity: &identity };
            decide_limits(&walk, &mut found, routed, &headers).await
        }
        Err(reject) => Err(Refusal::InvalidHead(reject)),
    };
    found.explanation.verdict = match decided {
        Ok(()) => describe_admission(&found, Some(route), None),
        Err(refusal) => describe_refusal(&found, Some(route), &refusal),
    };
    Ok((found.explanation, found.charges))
}

/// Describes a call that ends with an error in place of a decision.
pub fn describe_call_error(error: &CallError) -> VerdictReport {
    VerdictReport {
        decision: RequestDecision::Reject.label().to_owned(),
        detail: format!("the call fails with {}: {}", error.code.label(), error.message),
        ..VerdictReport::default()
    }
}
