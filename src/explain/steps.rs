//! Takes a request through the steps of the request page, in the order of `proxy::request::handle_request`. Each step
//! calls the function that requests of clients call, and writes down what it found.

use std::sync::Arc;

use http::HeaderMap;
use http::header::LOCATION;

use crate::explain::explanation::{
    Explanation, LimitEffect, LimitReport, RequestDecision, RequestReport, RewriteReport, VerdictReport,
};
use crate::explain::input::ExplainInput;
use crate::explain::parser::parse_head;
use crate::explain::walk::{ExplainContext, ExplainWalk, Findings, MadeCharge};
use crate::explain::{action, client, identity, limits, question, routes};
use crate::limiting::answer::NEVER;
use crate::limiting::decision::Op;
use crate::limiting::limit::Limit;
use crate::limiting::over::Over;
use crate::limiting::shown_key::{KeyDisplay, KeyHasher, KeyVisibility};
use crate::limiting::{Verdict, clock};
use crate::net::ListenAddr;
use crate::overload::OverloadCondition;
use crate::proxy::arrival::check_denied;
use crate::proxy::auth::remove_identity_headers;
use crate::proxy::connection::parse_failure::rejection_status;
use crate::proxy::inbound::identity::ClientAddress;
use crate::proxy::inbound::validate::{LastHost, ValidatedHead, judge_faults, validate_head};
use crate::proxy::request::parsing_rules;
use crate::proxy::request_context::RoutedRequest;
use crate::proxy::response::cause::Cause;
use crate::proxy::response::refusal::Refusal;
use crate::proxy::response::{local_responses, problem};
use crate::route::{Action, Route};
use crate::telemetry::metrics::Cutoff;

/// Returns the setting that shows all keys as they are, for users who can read the config.
pub fn plain_display() -> KeyDisplay {
    KeyDisplay { rules: Vec::new(), default: Some(KeyVisibility::Plain), hasher: KeyHasher::of_process() }
}

/// Explains a request, and returns what it was charged.
///
/// # Errors
/// The input is not a request that a client can send.
pub async fn explain_request(
    input: &ExplainInput,
    context: &ExplainContext<'_>,
) -> Result<(Explanation, Vec<MadeCharge>), String> {
    let (head, endpoint) = input.to_head()?;
    let mut found = Findings {
        explanation: Explanation { live: context.is_live, ..Explanation::default() },
        decision: RequestDecision::Admit,
        verdict: None,
        charges: Vec::new(),
        user: None,
        claims: None,
        is_user_unknown: false,
        is_body_unknown: false,
    };
    found.explanation.request.method = input.method.clone();
    let mut parsed = match parse_head(&head, context.config) {
        Ok(parsed) => parsed,
        Err(cutoff) => {
            found.explanation.verdict = describe_cutoff(cutoff);
            return Ok((found.explanation, Vec::new()));
        }
    };
    let question = question::find_question(context.config, input.peer(), &endpoint, &mut parsed.parts);
    let walk = ExplainWalk { context, input, endpoint, parsed: &parsed, question };
    let ended = walk.take_steps(&mut found).await;
    found.explanation.verdict = match ended {
        Ok((route, status)) => describe_admission(&found, route, status),
        Err((route, refusal)) => describe_refusal(&found, route, &refusal),
    };
    Ok((found.explanation, found.charges))
}

/// A refusal, and the route that the request has entered by then.
type RefusedAt<'c> = (Option<&'c Route>, Refusal);

impl<'a> ExplainWalk<'a> {
    /// Returns the route of an admitted request, and the status of its response if the gateway makes it.
    async fn take_steps(&self, found: &mut Findings) -> Result<(Option<&'a Route>, Option<u16>), RefusedAt<'a>> {
        let ExplainContext { config, display, .. } = *self.context;
        let mut headers = self.parsed.parts.headers.clone();
        let (identity, report) = client::find_client(self.input.peer(), &headers, config);
        found.explanation.client = report;
        if let Some(Err(fault)) = self.question {
            return Err((None, Refusal::Question(fault)));
        }
        let head = validate_head(&self.parsed.parts, self.parsed.header_set, &LastHost::default())
            .map_err(|reject| (None, Refusal::InvalidHead(reject)))?;
        found.explanation.request = self.describe_head(&head);
        remove_identity_headers(&mut headers, config);
        if let Some(Ok(point)) = self.question {
            let route = config.route_at(point.route);
            let decided = question::decide_question(self, found, (route, point), &head, &identity, &headers).await;
            return decided.map(|()| (Some(route), Some(200))).map_err(|refusal| (Some(route), refusal));
        }
        let index = config.table.find_route(&config.routes, head.read_host(), head.path(), head.method(), &headers);
        let route = index.map(|index| &config.routes[index]);
        found.explanation.route = index.map(|index| routes::describe_route(config, index, &config.routes[index]));
        if self.context.op == Op::Peek {
            found.explanation.other_routes = routes::find_nearest_routes(config, &head, &headers, index, display);
            if config.routes.len() > routes::COMPARED_MAX {
                let note = format!("only the first {} routes were compared with the request", routes::COMPARED_MAX);
                found.explanation.notes.push(note);
            }
        }
        judge_faults(&head, self.parsed.fault, parsing_rules(config, index))
            .map_err(|reject| (None, Refusal::InvalidHead(reject)))?;
        if let Some(port) = self.redirect_port() {
            return self.redirect_to_https(found, &head, port).map_err(|refusal| (None, refusal));
        }
        let route = route.ok_or((None, Refusal::NoRoute))?;
        let entered = self.enter_route(found, route, &head, &identity, &mut headers).await;
        entered.map(|status| (Some(route), status)).map_err(|refusal| (Some(route), refusal))
    }

    /// Takes the steps of a request that has a route. Returns the status of the response if the gateway makes it.
    async fn enter_route(
        &self,
        found: &mut Findings,
        route: &Route,
        head: &ValidatedHead,
        identity: &ClientAddress,
        headers: &mut HeaderMap,
    ) -> Result<Option<u16>, Refusal> {
        if let Some(max) = route.max_in_flight {
            let note = format!("the route refuses requests while {max} are in progress (max_in_flight); not checked");
            found.explanation.notes.push(note);
        }
        self.note_shedding(found, route);
        if let Some(note) = action::describe_overload(self, route) {
            found.explanation.notes.push(note);
        }
        check_denied(route, *identity)?;
        let routed = RoutedRequest { route, head, identity };
        identity::authenticate(self, found, routed, headers).await?;
        limits::apply_limits(self, found, routed, headers).await?;
        let diversion = found.verdict.as_ref().and_then(|verdict| verdict.diversion(&route.limits));
        let (report, status) = action::run_action(self, routed, headers, diversion)?;
        if let Some(note) = action::describe_unknown(self, route, &report) {
            found.explanation.notes.push(note);
        }
        found.explanation.action = Some(report);
        Ok(status)
    }

    /// Notes what may refuse the request before its limits, and depends on other requests.
    fn note_shedding(&self, found: &mut Findings, route: &Route) {
        let config = self.context.config;
        let mut note = |text: String| found.explanation.notes.push(text);
        if let Some(rule) = &config.server.overload {
            let conditions: Vec<&str> = rule.conditions().map(OverloadCondition::label).collect();
            note(format!(
                "the gateway refuses requests while it is overloaded (overload: {}); not checked",
                conditions.join(", ")
            ));
        }
        if let Action::Upstream(index) = route.action
            && let Some(upstream) = config.upstreams.get(index).filter(|upstream| upstream.breaker.is_some())
        {
            let name = &upstream.name;
            note(format!("the breaker of upstream {name} refuses requests while it is open; not checked"));
        }
        if route.breaker.is_some() {
            note("the breaker of the route refuses requests while it is open; not checked".to_owned());
        }
    }

    fn describe_head(&self, head: &ValidatedHead) -> RequestReport {
        let parts = &self.parsed.parts;
        let mut rewritten = Vec::new();
        let mut compare = |part: &str, received: &str, canonical: &str| {
            if received != canonical {
                let [part, received, canonical] = [part, received, canonical].map(str::to_owned);
                rewritten.push(RewriteReport { part, received, canonical });
            }
        };
        let (method, host, path) = (head.method().as_str(), head.read_host(), head.path());
        compare("method", parts.method.as_str(), method);
        let authority = parts.headers.get(http::header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
        let authority = authority.unwrap_or_default();
        if head.is_host_rewritten() {
            compare("host", &authority, &String::from_utf8_lossy(head.authority().as_bytes()));
        }
        compare("path", parts.uri.path(), path);
        RequestReport { method: method.to_owned(), host: host.to_owned(), path: path.to_owned(), rewritten }
    }

    /// Returns the HTTPS port to which the listener of the URL redirects all requests.
    fn redirect_port(&self) -> Option<u16> {
        let has_port = |addr: &ListenAddr| matches!(addr, ListenAddr::Tcp(addr) if addr.port() == self.endpoint.port);
        self.context.config.listeners.iter().find(|listener| has_port(&listener.address))?.redirect_port
    }

    fn redirect_to_https(
        &self,
        found: &mut Findings,
        head: &ValidatedHead,
        port: u16,
    ) -> Result<(Option<&'a Route>, Option<u16>), Refusal> {
        let response = local_responses::redirect_to_https(head, port).ok_or(Refusal::NoRoute)?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        found.explanation.action = Some(action::describe_redirect(location));
        found.explanation.route = None;
        found.explanation.notes.push("the listener of this port redirects all requests (redirect_http)".to_owned());
        Ok((None, Some(response.status().as_u16())))
    }
}

fn describe_cutoff(cutoff: Cutoff) -> VerdictReport {
    let cause = Cause::from(cutoff);
    VerdictReport {
        decision: RequestDecision::Reject.label().to_owned(),
        status: Some(rejection_status(cutoff).as_u16()),
        reason: Some(cause.reason.to_owned()),
        setting: cause.setting.map(|setting| setting.label().to_owned()),
        detail: "the parser rejects the request line or a header".to_owned(),
        ..VerdictReport::default()
    }
}

fn describe_admission(found: &Findings, route: Option<&Route>, status: Option<u16>) -> VerdictReport {
    let limits = route.map_or(&[][..], |route| &route.limits);
    let delay = found.verdict.as_ref().and_then(|verdict| verdict.delay_ms(limits));
    let exceeded = found.verdict.as_ref().and_then(|verdict| find_exceeded(verdict, limits));
    let decision = match (exceeded, delay) {
        (Some((_, decision)), _) => decision,
        (None, Some(_)) => RequestDecision::Delay,
        (None, None) => found.decision,
    };
    let is_unknown = |limit: &LimitReport| limit.effect == LimitEffect::Unknown.label();
    let has_unknown = found.explanation.limits.iter().any(is_unknown);
    let detail = match (decision, delay) {
        (RequestDecision::Annotate, _) => "it is over the limit, and is forwarded with x-limit-exceeded".to_owned(),
        (RequestDecision::Divert, _) => {
            "it is over the limit, and is forwarded to another upstream with x-limit-exceeded".to_owned()
        }
        (_, Some((place, delay_ms))) => format!("limit {} delays it by {delay_ms} ms", limits[place].name),
        (RequestDecision::Bypass, _) => "the client is on the route's `allow` list, so no limit applies".to_owned(),
        _ if has_unknown => "the limits that are known admit it".to_owned(),
        _ if limits.is_empty() => "no limit applies".to_owned(),
        _ => "all limits admit it".to_owned(),
    };
    VerdictReport {
        decision: decision.label().to_owned(),
        status,
        limit: exceeded
            .map(|(place, _)| place)
            .or(delay.map(|(place, _)| place))
            .map(|place| limits[place].name.clone()),
        delay_ms: delay.map(|(_, delay_ms)| delay_ms),
        detail,
        ..VerdictReport::default()
    }
}

/// Returns the limit that decides how a request over limits is forwarded, and how: the first that diverts it, or the
/// first that annotates it.
fn find_exceeded(verdict: &Verdict, limits: &[Arc<Limit>]) -> Option<(usize, RequestDecision)> {
    let places = verdict.excesses(limits).map(|checked| match &limits[checked.limit].over {
        Over::Divert(_) => (checked.limit, RequestDecision::Divert),
        Over::Refuse | Over::Delay | Over::Annotate => (checked.limit, RequestDecision::Annotate),
    });
    places.min_by_key(|(place, decision)| (*decision != RequestDecision::Divert, *place))
}

fn describe_refusal(found: &Findings, route: Option<&Route>, refusal: &Refusal) -> VerdictReport {
    let decision = match refusal {
        Refusal::NoRoute => RequestDecision::NoRoute,
        Refusal::Denied => RequestDecision::Deny,
        Refusal::Unauthorized(_) => RequestDecision::Unauthorized,
        Refusal::Limited => RequestDecision::Refuse,
        _ => RequestDecision::Reject,
    };
    let refusing = found.verdict.as_ref().zip(route).filter(|_| matches!(refusal, Refusal::Limited));
    let refusing = refusing.and_then(|(verdict, route)| Some((route, verdict.longest_refusal(&route.limits)?)));
    let cause = Cause::from_refusal(refusal, refusing.map(|(_, checked)| checked.outcome));
    let mut report = VerdictReport {
        decision: decision.label().to_owned(),
        status: Some(refusal.status().as_u16()),
        reason: Some(cause.reason.to_owned()),
        setting: cause.setting.map(|setting| setting.label().to_owned()),
        detail: refusal.detail().to_owned(),
        ..VerdictReport::default()
    };
    let Some((route, checked)) = refusing else { return report };
    let limit = &route.limits[checked.limit];
    let status = problem::limit_refusal_status(limit.refusal_response(&route.refuse), checked.outcome);
    report.status = Some(status.as_u16());
    report.limit = Some(limit.name.clone());
    report.detail = problem::refusal_title(checked.outcome, limit).into_owned();
    report.retry_after_ms =
        checked.outcome.answer().map(|answer| answer.retry_ms).filter(|retry_ms| *retry_ms != NEVER);
    report.passes_at =
        report.retry_after_ms.and_then(|retry_ms| format_instant(clock::now_ms().checked_add(retry_ms)?));
    report
}

fn format_instant(ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(ms).ok().map(|instant| instant.to_string())
}
