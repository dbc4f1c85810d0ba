//! The list of the steps from a head to the decision about it. HTTP, questions of other proxies, checks of Envoy,
//! explanations, test cases and replays all take these steps, each through its [`Door`].
//!
//! [`arrive`] makes an [`Arrival`] of a received head, and [`admit`] an [`Admitted`] request of that. A head that
//! another proxy describes takes the steps of [`decide_described`], which are fewer: that proxy serves the request.

use http::{HeaderMap, Response};

use crate::config::Config;
use crate::ends::End;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{Admitted, RoutedRequest};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::rewritten::rewrite_target;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::head::validate::{ValidatedHead, judge_faults};
use crate::proxy::steps::auth::authenticate;
use crate::proxy::steps::door::{Ask, Door};
use crate::proxy::steps::forwarded_head::{
    check_described_head, fit_head_to_route, make_forwarded_head, remove_own_headers,
};
use crate::proxy::steps::limits::{apply_described_limits, apply_limits, await_stated_keys};
use crate::proxy::steps::response::cors::answer_preflight;
use crate::proxy::steps::response::local_responses;
use crate::proxy::steps::response::preflight::find_preflight;
use crate::proxy::words::refusal::Refusal;
use crate::route::{ParsingRules, Route};

/// A request whose forwarded head is made: what routes, `auth`, limits and the log read.
pub struct Arrival {
    pub identity: ClientAddress,
    /// The canonical host, path and method. The door has the headers.
    pub head: ValidatedHead,
    /// The fault that the parser has repaired.
    parser_fault: Option<End>,
    /// The protocols that the client offers to switch to.
    offer: Option<UpgradeOffer>,
}

/// How the steps end, unless the request is refused.
pub enum Passage<'a> {
    Admitted(Admitted<'a>),
    /// The gateway proves to an ACME server that it has the domain.
    AcmeProof(Response<ResponseBody>),
    /// The listener redirects every request to HTTPS.
    HttpsRedirect(Response<ResponseBody>),
    /// The gateway answers a preflight.
    Preflight(Response<ResponseBody>),
    /// The client gets the response of the auth server.
    AuthResponse(Response<ResponseBody>),
}

impl Arrival {
    /// Returns the request with its route.
    pub fn on<'r>(&'r self, route: &'r Route) -> RoutedRequest<'r> {
        RoutedRequest { route, head: &self.head, identity: &self.identity }
    }
}

/// Reads a head strictly, and makes the head that is forwarded. An error is the reason to refuse the request.
pub fn arrive<'a, D: Door<'a>>(door: &mut D) -> Result<Arrival, Refusal> {
    let identity = door.identify_client();
    let parser_fault = door.check_framing()?;
    let mut head = door.validate_head()?;
    door.report_untrusted_headers();
    let facts = door.received_facts(identity);
    let offer = make_forwarded_head(door.headers_mut(), &mut head, facts).map_err(Refusal::from)?;
    door.record_forwarded_head();
    Ok(Arrival { identity, head, parser_fault, offer })
}

/// Takes a request from its head to the admission by its limits. An error is the reason to refuse it.
pub async fn admit<'a, D: Door<'a>>(door: &mut D, arrival: &mut Arrival) -> Result<Passage<'a>, Refusal> {
    let config = door.config();
    let (identity, offer) = (arrival.identity, arrival.offer.take());
    let head = &arrival.head;
    let preflight = find_preflight(config, head, door.headers());
    let index = match &preflight {
        Some(preflight) => preflight.route,
        None => find_route(config, head, door.headers()),
    };
    if index.is_some_and(|index| config.routes[index].parsing.keeps_repeated_slashes) {
        arrival.head.keep_repeated_slashes();
    }
    let head = &arrival.head;
    door.observe_route(index, head, preflight.as_ref().map_or(head.method(), |preflight| &preflight.method));
    check_strictness(door, head, arrival.parser_fault, parsing_rules(config, index))?;
    if let Some(acme) = &config.acme
        && let Some(response) = local_responses::answer_acme_challenge(acme, head.method(), head.path())
    {
        return Ok(Passage::AcmeProof(response));
    }
    if !door.covers_host(head.read_host()) {
        return Err(End::Misdirected.into());
    }
    if let Some(port) = door.redirect_port() {
        return local_responses::redirect_to_https(head, port).map(Passage::HttpsRedirect).ok_or(End::NoRoute.into());
    }
    let entered = match index {
        Some(index) => door.enter_route(index, &config.routes[index]).map(|()| &config.routes[index]),
        None => Err(End::NoRoute.into()),
    };
    if let Some(preflight) = preflight {
        // A page can read a refusal, such as that of `max_in_flight`, only if its preflight was allowed.
        door.observe_preflight(&preflight);
        return Ok(Passage::Preflight(answer_preflight(&preflight, door.headers())));
    }
    let route = entered?;
    let target = rewrite_target(head, &route.matcher.path, &route.rewrite, route.parsing).map_err(Refusal::from)?;
    if let Some(target) = target {
        arrival.head.set_rewritten(target);
    }
    let facts = door.received_facts(identity);
    let offer = fit_head_to_route(door.headers_mut(), route, offer, facts).map_err(Refusal::from)?;
    door.fit_to_route(route);
    check_denied(door, route, identity)?;
    door.check_overload()?;
    let routed = arrival.on(route);
    door.check_breakers(routed)?;
    if let Some(response) = authenticate(door, routed).await? {
        return Ok(Passage::AuthResponse(response));
    }
    await_stated_keys(door, route).await;
    door.record_client(routed);
    let places = apply_limits(door, routed, offer.is_some()).await?;
    Ok(Passage::Admitted(Admitted { route, offer, places }))
}

/// Takes a request that another proxy describes and forwards from its head to its limits. `repaired`: what was repaired
/// to read it. An error is the reason to refuse it.
pub fn admit_described<'a, D: Door<'a>>(
    door: &mut D,
    route: &Route,
    identity: ClientAddress,
    repaired: Option<End>,
) -> Result<ValidatedHead, Refusal> {
    let mut head = door.validate_head()?;
    let fields = door.received_facts(identity).fields;
    check_described_head(door.headers(), fields, &mut head).map_err(Refusal::from)?;
    if route.parsing.keeps_repeated_slashes {
        head.keep_repeated_slashes();
    }
    check_strictness(door, &head, repaired, route.parsing)?;
    let config = door.config();
    remove_own_headers(door.headers_mut(), config);
    check_denied(door, route, identity)?;
    Ok(head)
}

/// Takes a request that another proxy describes from its head to the decision of all limits of the route.
pub async fn decide_described<'a, D: Door<'a>>(
    door: &mut D,
    route: &Route,
    identity: ClientAddress,
    repaired: Option<End>,
    ask: Ask,
) -> Result<(), Refusal> {
    let head = admit_described(door, route, identity, repaired)?;
    let routed = RoutedRequest { route, head: &head, identity: &identity };
    door.record_client(routed);
    apply_described_limits(door, routed, ask).await
}

/// Returns the index of the route that matches.
fn find_route(config: &Config, head: &ValidatedHead, headers: &HeaderMap) -> Option<usize> {
    config.table.find_route(&config.routes, head.read_host(), head.matched_path(), head.method(), headers)
}

/// Returns the rules for ambiguous requests of the route at index `found`, or those of the server if no route matches.
fn parsing_rules(config: &Config, found: Option<usize>) -> ParsingRules {
    found.map_or(ParsingRules::new(config.server.strictness, None), |index| config.routes[index].parsing)
}

/// Refuses an ambiguous head that the rules do not allow.
fn check_strictness<'a, D: Door<'a>>(
    door: &mut D,
    head: &ValidatedHead,
    parser_fault: Option<End>,
    rules: ParsingRules,
) -> Result<(), Refusal> {
    if let Some(reject) = judge_faults(head, parser_fault, rules).map_err(Refusal::from)? {
        door.count_would_reject(reject);
    }
    Ok(())
}

/// Refuses a client on the route's `deny` list.
fn check_denied<'a, D: Door<'a>>(door: &D, route: &Route, identity: ClientAddress) -> Result<(), Refusal> {
    if door.is_client_in(&route.deny, &identity) { Err(End::Denied.into()) } else { Ok(()) }
}
