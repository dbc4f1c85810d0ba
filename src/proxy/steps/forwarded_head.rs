//! Makes the head that the server gets, once, before anything reads it: routes, `auth`, limits, the access log, auth
//! servers and explanations read what is forwarded. Otherwise a client could show a limit one request, and the server
//! another: by naming a header in `Connection`, by listing protocols in `Upgrade`, or by repeating a header as a
//! trailer.
//!
//! Input: the headers of a valid head. Output: the same map without what concerns only the connection of the client.
//! After that, only the headers that the gateway itself states and the operator's edits change it, in `dispatch`.
//!
//! - [`make_forwarded_head`] is for all requests, before their route is known.
//! - [`fit_head_to_route`] applies what depends on the route.
//! - [`check_described_head`] is for heads that other proxies describe. These proxies forward them, so nothing is
//!   removed.

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRAILER, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::auth::AuthMethod;
use crate::auth::forward::states_request;
use crate::config::{Config, UnderscoreHeaders};
use crate::ends::End;
use crate::names::is_header_alias;
use crate::proxy::head::headers;
use crate::proxy::head::hop::Via;
use crate::proxy::head::identity::{ClientAddress, ReadHeader};
use crate::proxy::head::reject::FaultPolicy;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::words::known_headers::{HeaderSet, KnownHeader};
use crate::received_headers::{is_ambiguous_name, may_keep_underscores};
use crate::route::{Action, Route, Upgrades};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The facts, besides the route, that decide which headers of a head are forwarded.
#[derive(Clone, Copy)]
pub struct ReceivedFacts<'a> {
    /// The well-known headers that were received.
    pub fields: HeaderSet,
    pub version: Version,
    /// Length of the body; `None` if the client did not announce it.
    pub body_length: Option<u64>,
    pub identity: ClientAddress,
    pub via: &'a Via,
    pub config: &'a Config,
}

/// Turns received headers into those of the forwarded head, as far as that does not depend on the route. Returns the
/// protocol that the client offers to switch to, which is the only one that the head then has.
///
/// # Errors
/// The request has already passed this gateway. Other faults are added to those of `head`.
pub fn make_forwarded_head(
    headers: &mut HeaderMap,
    head: &mut ValidatedHead,
    facts: ReceivedFacts<'_>,
) -> Result<Option<UpgradeOffer>, End> {
    let ReceivedFacts { fields, version, body_length, identity, via, config } = facts;
    let offer = UpgradeOffer::from_headers(headers, fields, version);
    head.report_faults(|head, policy| {
        if fields.has_ambiguous_names {
            check_aliases(headers, config, policy)?;
        }
        let is_kept = |name: &HeaderName| is_kept(name, config);
        headers::clean_request_headers(headers, fields, head, identity.trusted_peer, via, is_kept, policy)
    })?;
    remove_own_headers(headers, config);
    remove_unread_addresses(headers, identity, config);
    if fields.has(KnownHeader::Te) {
        headers::set_te_connection(headers);
    }
    // Only HTTP/1.1 has this expectation, and only a body needs it.
    if fields.has(KnownHeader::Expect) && (version != Version::HTTP_11 || body_length == Some(0)) {
        headers.remove(EXPECT);
    }
    if fields.has(KnownHeader::ContentLength) {
        write_length_once(headers, body_length);
    }
    if let Some(offer) = &offer {
        headers::set_upgrade(headers, offer.header_value());
    }
    Ok(offer)
}

/// Reports a header whose name differs only in punctuation from one that the config reads, such as `x_api_key` for
/// `x-api-key`. Servers that map headers to variables would confuse the two. `clean_request_headers` removes the header
/// if `policy` admits the request.
///
/// # Errors
/// `policy` refuses such a head.
fn check_aliases(headers: &HeaderMap, config: &Config, policy: &mut FaultPolicy) -> Result<(), End> {
    for name in headers.keys().filter(|name| is_ambiguous_name(name.as_str())) {
        // Headers that only the gateway or a trusted proxy states are removed in every other spelling.
        let is_removed = |name: &HeaderName| {
            let mut singles = config.server.client_address.headers.singles();
            config.identity_headers.contains(name) || singles.any(|single| single == name)
        };
        let mut read = config.guarded_headers.iter().filter(|name| !is_removed(name));
        if read.any(|read| is_header_alias(read, name)) {
            policy.report(End::HeaderAlias)?;
        }
    }
    Ok(())
}

/// Returns whether a header with an ambiguous name is forwarded: `underscore_headers` says so, and no server can
/// confuse it with a header that the gateway reads or writes.
fn is_kept(name: &HeaderName, config: &Config) -> bool {
    config.server.underscore_headers == UnderscoreHeaders::Keep
        && may_keep_underscores(name.as_str())
        && !config.guarded_headers.iter().any(|guarded| is_header_alias(guarded, name))
}

/// Returns the number of header lines that are removed because of their names alone.
pub fn count_ambiguous_lines(headers: &HeaderMap, config: &Config) -> usize {
    headers.iter().filter(|(name, _)| is_ambiguous_name(name.as_str()) && !is_kept(name, config)).count()
}

/// Removes the headers in which the gateway states identities and exceeded limits. A client must not be able to claim
/// one, whether its route uses them or not.
pub fn remove_own_headers(headers: &mut HeaderMap, config: &Config) {
    for name in &*config.identity_headers {
        headers.remove(name);
    }
}

/// Removes the headers that may name the client in this config, but do not name it in this request: those of other
/// peers are forged, and a trusted proxy may pass on what its client wrote in a header that it does not write itself.
/// `Forwarded` has been removed already.
fn remove_unread_addresses(headers: &mut HeaderMap, identity: ClientAddress, config: &Config) {
    let rules = &config.server.client_address.headers;
    if !rules.is_configured {
        return;
    }
    for (index, name) in rules.singles().enumerate() {
        if !identity.is_named_in_single(index) {
            headers.remove(name);
        }
    }
    if identity.read != ReadHeader::XForwardedFor {
        headers.remove(X_FORWARDED_FOR);
    }
}

/// Replaces a length with leading zeros by the one that the server gets.
fn write_length_once(headers: &mut HeaderMap, body_length: Option<u64>) {
    let has_zeros = |value: &HeaderValue| value.len() > 1 && value.as_bytes().starts_with(b"0");
    if headers.get(CONTENT_LENGTH).is_some_and(has_zeros)
        && let Some(length) = body_length
    {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Applies what the route says about the head: the protocols that clients may switch to, the trailers that may follow,
/// and which headers may state another target to the server than to an auth server. Returns the offer that is left.
///
/// # Errors
/// The client offers to switch protocols, and the route refuses such requests.
pub fn fit_head_to_route(
    headers: &mut HeaderMap,
    route: &Route,
    offer: Option<UpgradeOffer>,
    facts: ReceivedFacts<'_>,
) -> Result<Option<UpgradeOffer>, End> {
    if facts.fields.has(KnownHeader::Trailer) {
        let is_streamed = facts.fields.has(KnownHeader::TransferEncoding) || facts.fields.has_streamed_body;
        let may_follow = is_streamed && route.request_trailers;
        announce_trailers(headers, may_follow.then_some(&facts.config.guarded_headers));
    }
    if let Some(auth) = &route.auth
        && matches!(auth.method, AuthMethod::Forward(_))
    {
        remove_stated_requests(headers);
    }
    let Some(received) = offer else { return Ok(None) };
    let is_proxied = matches!(route.action, Action::Upstream(_));
    if is_proxied && route.upgrades == Upgrades::Refused {
        return Err(End::Upgrade);
    }
    let offer = Some(received).filter(|offer| is_proxied && offer.is_allowed_by(&route.upgrades));
    if offer.is_none() {
        headers.remove(CONNECTION);
        headers.remove(UPGRADE);
        headers::set_te_connection(headers);
    }
    Ok(offer)
}

/// Removes the headers by which applications replace host, method or target of a request: the application would serve
/// another request than the auth server judges. Requests of trusted proxies are no exception, because many proxies
/// forward such headers of their clients.
fn remove_stated_requests(headers: &mut HeaderMap) {
    let stating: Vec<HeaderName> = headers.keys().filter(|name| states_request(name)).cloned().collect();
    for name in stating {
        headers.remove(name);
    }
}

/// Has `Trailer` list the trailers that may follow. Without `guarded`, none may. Some servers merge trailers with the
/// headers, so no trailer may have the name of a header of the request, of one that the config reads or states, or of
/// one that states another request.
fn announce_trailers(headers: &mut HeaderMap, guarded: Option<&Vec<HeaderName>>) {
    let mut names: Vec<HeaderName> = Vec::new();
    if let Some(guarded) = guarded {
        let trailer_names = headers::announced_trailers(headers);
        for name in trailer_names {
            let is_guarded = headers.contains_key(&name) || guarded.contains(&name) || states_request(&name);
            if !is_guarded && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let list = names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
    match HeaderValue::try_from(list) {
        Ok(list) if !list.is_empty() => drop(headers.insert(TRAILER, list)),
        _ => drop(headers.remove(TRAILER)),
    }
}

/// Reports the faults of a head that another proxy describes. That proxy forwards it, so nothing is removed.
///
/// # Errors
/// A fault that is refused in any case.
pub fn check_described_head(headers: &HeaderMap, fields: HeaderSet, head: &mut ValidatedHead) -> Result<(), End> {
    if !fields.has(KnownHeader::Connection) {
        return Ok(());
    }
    head.report_faults(|_, policy| headers::check_connection_named(headers, policy))
}
