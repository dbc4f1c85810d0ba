//! What a server does before it chooses a location: its `if`, `rewrite` and `return`, in their order.

use crate::import::error::Result;
use crate::import::model::{LIMITS_MAX, RouteBody};
use crate::import::nginx::conditions::guards::read_refusal;
use crate::import::nginx::conditions::hosts::{HostCondition, read_host_condition};
use crate::import::nginx::conditions::variants::{HeaderRedirect, read_header_redirect};
use crate::import::nginx::conditions::{ListenTls, ServerCondition, read_condition};
use crate::import::nginx::locations::Context;
use crate::import::nginx::redirects::is_response;
use crate::import::nginx::scope::{Scope, sets_request};
use crate::import::nginx::server_redirects::{close_prefix, translate_server_redirect};
use crate::import::nginx::sites::hosts::{KnownNames, ServerHosts};
use crate::import::nginx::sites::{Site, is_host};
use crate::import::paths::{Location, LocationMatcher};
use crate::import::syntax::Directive;

const OTHER_HOSTS: &str =
    "for hosts that are not names of this server, this condition is not available, so they are closed";

/// The steps of a server before its locations.
#[derive(Default)]
pub struct ServerSteps<'a> {
    /// Redirects and closed paths, which come before the locations.
    pub locations: Vec<Location>,
    /// Hosts that get another response, with the routes of each.
    pub by_host: Vec<(Vec<String>, Vec<Location>)>,
    /// The directive that answers all other requests.
    pub answer: Option<&'a Directive>,
}

impl ServerSteps<'_> {
    /// Adds the response of some hosts. Redirects before it come first.
    fn add_hosts(&mut self, hosts: Option<Vec<String>>, body: RouteBody) {
        let mut before = self.locations.clone();
        before.push(Location { matcher: match_all(), body });
        self.by_host.extend(hosts.map(|hosts| (hosts, before)));
    }
}

/// Returns the matcher of all paths.
pub fn match_all() -> LocationMatcher {
    LocationMatcher::Prefix { path: "/".to_owned(), first: false }
}

/// Reads the steps of a server. Hosts with another response are taken from `hosts`. `unreachable`: the comment on why
/// requests for unknown hosts are closed.
pub fn read_steps<'a>(
    context: &mut Context<'a, '_>,
    site: &Site<'a>,
    scope: &Scope<'a>,
    hosts: &mut ServerHosts,
    is_default: bool,
    known: &KnownNames,
    unreachable: &mut Option<usize>,
) -> Result<ServerSteps<'a>> {
    let mut steps = ServerSteps::default();
    let server: &'a Directive = site.server;
    let tls = ListenTls { all: site.all_listens().all(|listen| listen.tls), any: site.has_tls() };
    for directive in server.inner() {
        let close = |context: &mut Context, why: &str| {
            context.closed.get_or_insert(context.out.remarks.add(directive, why));
        };
        // The names of a server are known, so a condition on them is evaluated here.
        let has_patterns = hosts.own.iter().any(|name| name.contains('*'));
        if let Some(condition) = read_host_condition(directive).filter(|_| !has_patterns) {
            answer_names(&condition, context, scope, hosts, is_default, known, &mut steps)?;
            if is_default {
                unreachable.get_or_insert(context.out.remarks.add(directive, OTHER_HOSTS));
            }
            continue;
        }
        let known_condition = read_condition(directive, tls).filter(|_| directive.name == "if");
        if known_condition.is_none()
            && let Some(guard) = read_refusal(directive, context.variables)
        {
            match context.guards.len() < LIMITS_MAX {
                true => context.guards.push(guard),
                false => close(context, "a route has no more conditions, so the server is closed"),
            }
            continue;
        }
        let redirect = read_header_redirect(directive).filter(|_| known_condition.is_none());
        if let Some(redirect) = redirect.filter(|redirect| !redirect.needs_trust || context.facts.has_trusted) {
            steps.locations.push(redirect_by_header(context, directive, &redirect, scope)?);
            continue;
        }
        match directive.name.as_str() {
            "return" | "rewrite" if is_response(directive) => {
                steps.answer = Some(directive);
                break;
            }
            _ if sets_request(directive) => {
                close(context, "a variable of the request cannot get another value, so the server is closed");
            }
            "if" => match known_condition {
                Some(ServerCondition::Never | ServerCondition::SetsVariables) => {}
                Some(ServerCondition::Always(response)) => {
                    steps.answer = Some(response);
                    break;
                }
                Some(ServerCondition::Host { name, is_host: is_name, response }) if is_host(&name) => {
                    note_ignored_port(context, directive);
                    let taken = hosts.split(&name, is_name, is_default, known);
                    let body = context.translate_body(response, std::slice::from_ref(response), scope, &match_all())?;
                    steps.add_hosts(taken, body);
                }
                _ => match close_prefix(server, directive, context.out) {
                    Some(location) => steps.locations.push(location),
                    None => close(context, "this condition is not available, so the server is closed"),
                },
            },
            "rewrite" => match translate_server_redirect(server, directive, scope, context.out) {
                Some(mut location) => {
                    // An `if` before it that is not available may have refused the request.
                    context.closed.iter().for_each(|number| location.body.close(*number));
                    context.apply_server_guards(scope, &mut location.body);
                    steps.locations.push(location);
                }
                None => close(context, "this rewrite is not available, so the server is closed"),
            },
            _ => {}
        }
    }
    Ok(steps)
}

/// Adds a comment if a condition reads the host with its port.
fn note_ignored_port(context: &mut Context, condition: &Directive) {
    let reads_port = condition.args.iter().any(|arg| arg.contains("$http_host"));
    if reads_port && !context.facts.has_default_ports() {
        context.out.remarks.add(condition, "the port of the host does not count");
    }
}

/// Translates an `if` on a header that redirects to a route of all paths, which comes before the others.
fn redirect_by_header<'a>(
    context: &mut Context<'a, '_>,
    at: &Directive,
    redirect: &HeaderRedirect,
    scope: &Scope<'a>,
) -> Result<Location> {
    let response = redirect.response;
    let mut body = context.translate_body(response, std::slice::from_ref(response), scope, &match_all())?;
    body.condition = Some(redirect.condition.clone());
    if redirect.needs_trust {
        let why = "the header counts if a proxy in trusted_proxies sent it; nginx reads that of every client";
        body.add_remark(context.out.remarks.add(at, why));
    }
    // Routes with the same path stand together, and no location has this one.
    Ok(Location { matcher: LocationMatcher::Server { pattern: "^".to_owned(), ignore_case: false }, body })
}

/// Adds the responses of a condition for the names of the server.
fn answer_names<'a>(
    condition: &HostCondition,
    context: &mut Context<'a, '_>,
    scope: &Scope<'a>,
    hosts: &mut ServerHosts,
    is_default: bool,
    known: &KnownNames,
    steps: &mut ServerSteps,
) -> Result<()> {
    for name in hosts.own.clone() {
        let Some(response) = condition.answer(&name) else { continue };
        let body = context.translate_body(&response, std::slice::from_ref(&response), scope, &match_all())?;
        steps.add_hosts(hosts.split(&name, true, is_default, known), body);
    }
    Ok(())
}
