//! Takes a request through the steps of `proxy::doors::request::handle_request`, in the same order. Each step
//! calls the function that requests of clients call, and records its result.

use http::HeaderMap;
use http::header::LOCATION;

use crate::explain::explanation::Explanation;
use crate::explain::input::ExplainInput;
use crate::explain::parser::parse_head;
use crate::explain::verdict::{describe_admission, describe_cutoff, describe_refusal};
use crate::explain::walk::{ExplainContext, ExplainWalk, Findings, MadeCharge};
use crate::explain::{action, client, identity, limits, question, routes};
use crate::limiting::decision::Op;
use crate::limiting::key::shown_key::{KeyDisplay, KeyHasher, KeyVisibility};
use crate::net::ListenAddr;
use crate::overload::OverloadCondition;
use crate::proxy::account::refusal::Refusal;
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::head::hop::Via;
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::{LastHost, ValidatedHead, judge_faults, validate_head};
use crate::proxy::steps::forwarded_head::{
    ReceivedFacts, check_described_head, fit_head_to_route, make_forwarded_head, remove_own_headers,
};
use crate::proxy::steps::pipeline::{check_denied, parsing_rules};
use crate::proxy::steps::response::local_responses;
use crate::route::{Action, Route};

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
    if let Some(name) = &input.ext_authz {
        return question::explain_check(input, context, name).await;
    }
    let (head, endpoint) = input.to_head()?;
    let mut found = Findings::new(context);
    found.explanation.request.method = input.method.clone();
    let mut parsed = match parse_head(&head, context.config) {
        Ok(parsed) => parsed,
        Err(cutoff) => {
            found.explanation.verdict = describe_cutoff(cutoff);
            return Ok((found.explanation, Vec::new()));
        }
    };
    let question = question::find_question(context.config, input.peer(), &endpoint, &mut parsed);
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
            return Err((None, fault.into()));
        }
        let invalid = |reject| (None, Refusal::InvalidHead(reject));
        let fields = self.parsed.header_set;
        let mut head = validate_head(&self.parsed.parts, fields, &LastHost::default()).map_err(invalid)?;
        found.explanation.request = self.describe_head(&head);
        if let Some(Ok(point)) = self.question {
            check_described_head(&headers, fields, &mut head).map_err(invalid)?;
            remove_own_headers(&mut headers, config);
            let route = config.route_at(point.route);
            let decided = question::decide_question(self, found, (route, point), &head, &identity, &headers).await;
            return decided.map(|()| (Some(route), Some(200))).map_err(|refusal| (Some(route), refusal));
        }
        // The name of this process differs from every name that a gateway has.
        let via = Via::new(0);
        let facts = self.received_facts(&identity, &via);
        let offer = make_forwarded_head(&mut headers, &mut head, facts).map_err(invalid)?;
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
        found.offer = fit_head_to_route(&mut headers, route, offer, facts)
            .map_err(|reject| (Some(route), Refusal::InvalidHead(reject)))?;
        let entered = self.enter_route(found, route, &head, &identity, &mut headers).await;
        entered.map(|status| (Some(route), status)).map_err(|refusal| (Some(route), refusal))
    }

    fn received_facts<'f>(&'f self, identity: &ClientAddress, via: &'f Via) -> ReceivedFacts<'f> {
        ReceivedFacts {
            fields: self.parsed.header_set,
            version: self.parsed.parts.version,
            body_length: self.parsed.body_length,
            trusted_peer: identity.trusted_peer,
            via,
            config: self.context.config,
        }
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
        if let Some(note) = action::describe_unknown(found, &report) {
            found.explanation.notes.push(note);
        }
        found.explanation.action = Some(report);
        Ok(status)
    }

    /// Adds notes about what may refuse the request before its limits and depends on other requests.
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
